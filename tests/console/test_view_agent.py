"""An agent's page: lease, actions, words, turns; for whom, and paged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.template import Context, Template

from tests.console.conftest import Cast
from tests.console.view_helpers import BACK, HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PATH = "/agents/main/m-1/"


def test_it_shows_lease_actions_working_state_pointers_and_turns(records: RecordWriter, ana: User) -> None:
    records.lease("m-1", holder="pod-b:7:cafe", epoch=4, state="live")
    records.working_state("m-1", goal="Tell Anna", plan=["Write", "Send"], open_questions=["Which address?"])
    records.pointer("m-1", "ticket", fields={"id": "HELP-1"})
    records.turn("m-1", 1, "I will write to Anna now", role="assistant")
    records.action("m-1", 1, args={"to": "anna@example.com"})
    records.action("m-1", 2, tool="find_order", cls="pure", status="done", args={"order": "881"})

    said = text_of(browser(ana).get(PATH).content.decode())

    for words in (
        "pod-b:7:cafe",
        "Tell Anna",
        "Which address?",
        "HELP-1",
        "I will write to Anna now",
        "Email to anna@example.com",
        "1 open",
    ):
        assert words in said


def test_who_holds_an_agent_is_never_drawn_without_whether_its_store_can_say() -> None:
    templates = Path(settings.BASE_DIR, "templates").rglob("*.html")

    assert [path.name for path in templates if re.search(r"include\s+.agents/_lease", path.read_text())] == []
    with pytest.raises(AttributeError):
        Template("{% load settle %}{% lease_of forgotten %}").render(Context())


def test_turns_are_paged(memory: RecordWriter, ana: User) -> None:
    memory.turns("m-1", 70)
    client = browser(ana)

    first = client.get(PATH).content.decode()
    older = re.search(r'href="(\?before=\d+)"', first)
    assert older is not None
    second = client.get(PATH + older[1]).content.decode()

    assert "turn 70" in first
    assert "turn 40" not in first
    assert "turn 40" in second
    assert "turn 41" not in second


def test_what_cannot_be_decoded_is_said_and_takes_nothing_down(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1, body="{")
    memory.working_state("m-1", body="{")
    memory.pointer("m-1", "p", body="{")
    memory.action("m-1", 1, body="{")

    response = browser(ana).get(PATH)

    assert response.status_code == 200
    assert text_of(response.content.decode()).count("cannot be decoded") >= 3


def test_somebody_limited_to_a_tool_sees_their_calls_and_not_the_agents_words(memory: RecordWriter, dot: User) -> None:
    memory.working_state("m-1", goal="Pay somebody")
    memory.turn("m-1", 1, "5000 EUR", role="tool", name="create_payment")
    memory.turn("m-1", 2, "ticket SHOP-1", role="tool", name="open_ticket")
    memory.turn("m-1", 3, "I paid 5000 EUR", role="assistant")
    memory.action("m-1", 1, tool="create_payment", args={"amount": 5000, "currency": "EUR"})
    memory.action("m-1", 2, tool="open_ticket", args={"title": "Safari"})

    html = browser(dot).get(PATH).content.decode()

    assert "Safari" in html
    assert "SHOP-1" in html
    assert "2 turns of other tools not shown" in text_of(html)
    assert "5000" not in text_of(html)
    assert "Pay somebody" not in html


def test_an_agent_of_other_tools_or_stores_is_not_there(memory: RecordWriter, dot: User, person: Cast) -> None:
    memory.action("m-1", 1)

    assert browser(dot).get(PATH).status_code == 404
    assert browser(person("eve", ("viewer", "other", ""))).get(PATH).status_code == 404


@pytest.mark.parametrize("path", ["/agents/main/nobody/", "/agents/elsewhere/m-1/"])
def test_an_agent_that_is_not_there_is_not_found(memory: RecordWriter, ana: User, path: str) -> None:
    assert browser(ana).get(path).status_code == 404


def test_a_page_number_that_is_none_is_refused(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1)

    assert browser(ana).get(f"{PATH}?before=many").status_code == 400


def test_viewers_may_read_it_and_people_without_a_role_may_not(memory: RecordWriter, ben: User, cyd: User) -> None:
    memory.action("m-1", 1)

    assert browser(ben).get(PATH).status_code == 200
    assert browser(cyd).get(PATH).status_code == 403
    assert browser().get(PATH)["Location"].startswith("/login/")


def test_it_answers_get_only_and_a_piece_to_htmx(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1)
    client = browser(ana)

    assert client.post(PATH).status_code == 405
    assert "<html" not in client.get(PATH, headers=HTMX).content.decode()
    assert "<html" in client.get(PATH, headers=BACK).content.decode()
