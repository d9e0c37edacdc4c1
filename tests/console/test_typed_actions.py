"""Actions as people name them in forms, and forms that hold more than anybody means."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from tests.console import own_resolver as world
from tests.console.view_helpers import HTMX, browser, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

NAMES = [
    "main/m-1/1",
    " main/m-1/1/ ",
    "/actions/main/m-1/1/",
    "http://testserver/actions/main/m-1/1/",
    "https://settle.example/actions/main/m-1/1/#decision",
    "http://testserver/?tool=send_email&open=main/m-1/1",
]
NO_NAMES = [
    "https://elsewhere.example/actions/main/m-1/1/",
    "ftp://testserver/actions/main/m-1/1/",
    "main/m-1",
    "/main/m-1/1/",
    "http://[",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_action_is_named_by_itself_or_by_the_address_of_its_page(
    memory: RecordWriter, amy: User, settings: Settings, name: str
) -> None:
    settings.BASE_URL = "https://settle.example"
    memory.action("m-1", 1, args={"to": "b@example.com"})
    world.define(amy)
    world.bring(world.match())
    client = browser(amy)

    simulated = client.post("/simulator/", {"action": name})
    dry = client.post("/resolvers/sent-folder/dry-run/", {"action": name})

    assert (simulated.status_code, dry.status_code) == (200, 200)
    assert "recipient to b@example.com" in words_of(simulated.content.decode())
    assert "found by our key" in words_of(dry.content.decode())


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_names_no_action_of_this_console_asks_nobody_and_stays_in_the_form(
    memory: RecordWriter, amy: User, name: str
) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com"})
    world.define(amy)
    client = browser(amy)

    simulated = client.post("/simulator/", {"action": name})
    dry = client.post("/resolvers/sent-folder/dry-run/", {"action": name})

    assert (simulated.status_code, dry.status_code) == (422, 409)
    for answer in (simulated, dry):
        html = answer.content.decode()
        assert "names no action" in words_of(html)
        assert f'value="{name}"' in html  # typed once, kept
    assert world.asked == []


def test_an_action_that_is_not_there_is_said_at_the_simulators_form_which_keeps_what_was_typed(
    memory: RecordWriter, ana: User
) -> None:
    form = {"tool": "typed_tool", "args": '{"typed": 1}', "action": "main/m-9/9"}
    client = browser(ana)

    page = client.post("/simulator/", form)
    part = client.post("/simulator/", form, headers=HTMX).content.decode()
    html = page.content.decode()

    assert page.status_code == 404
    assert "There is no such action, or it is not yours to see." in words_of(html)
    assert 'value="main/m-9/9"' in html
    assert 'value="typed_tool"' in html
    assert "&quot;typed&quot;: 1" in html
    assert 'id="simulation"' in part
    assert "<html" not in part


@pytest.mark.parametrize(
    "path",
    [
        "/simulator/",
        "/tools/send_email/",
        "/resolvers/new/http/",
        "/resolvers/new/http/expressions/",
        "/resolvers/sent-folder/hook/",
    ],
)
@pytest.mark.parametrize("checks", [True, False], ids=["read by the CSRF check", "read by the view"])
def test_a_form_that_is_too_large_is_refused_in_words_as_page_and_as_panel(
    memory: RecordWriter, amy: User, path: str, checks: bool
) -> None:
    world.define(amy)
    client = browser(amy, enforce_csrf_checks=checks)
    body, kind = b"try_body=" + b"x" * 2_700_000, "application/x-www-form-urlencoded"

    page = client.generic("POST", path, body, content_type=kind)
    part = client.generic("POST", path, body, content_type=kind, headers=HTMX)

    for answer in (page, part):
        assert answer.status_code == 413
        assert "a form may hold at most 2.5 MB" in words_of(answer.content.decode())
    assert "<html" in page.content.decode()
    assert "Go back" in words_of(page.content.decode())
    assert "<html" not in part.content.decode()
    assert part["HX-Reswap"] == "afterbegin"  # the part it stands in is still there, with what was typed


def test_a_pasted_answer_that_is_longer_than_is_tried_is_said_and_not_cut(memory: RecordWriter, amy: User) -> None:
    answer = browser(amy).post("/resolvers/new/http/expressions/", {"try_body": '{"a": "' + "x" * 1_200_000 + '"}'}, headers=HTMX)

    assert answer.status_code == 422
    assert "is longer than 1,100,000 characters" in words_of(answer.content.decode())
