"""An agent's page: lease, actions, words, turns; for whom, and paged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.template import Context, Template

from console.services.decide import DecisionRequest, decide
from console.services.observe import Observer
from console.services.story import find_done, read_story
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.test_services_observe import a_lease
from tests.console.view_helpers import BACK, HTMX, browser, text_of
from tests.recall_writer import RecordWriter, time_text

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


def test_a_turn_of_the_year_1_keeps_nobody_from_those_below_it(memory: RecordWriter) -> None:
    memory.turns("m-1", 60)
    memory.turn("m-1", 30, at="0001-01-01T00:00:00Z")

    first = read_story(get_store("main"), "m-1")
    second = read_story(get_store("main"), "m-1", cursor=first.next)

    assert [one.number for one in (*first.events, *second.events)] == list(range(60, 0, -1))
    assert second.next is None


def test_the_time_line_is_paged_and_tells_everything_once(memory: RecordWriter, ana: User) -> None:
    for number in range(1, 41):
        memory.turn("m-1", number, f"turn {number};", at=time_text(10 * number))
        memory.action("m-1", number, tool=f"tool-{number}", status="done", started_at=time_text(10 * number + 1))
        memory.working_state("m-1", version=number, goal="", progress=f"state {number};")
    client, path, pages = browser(ana), PATH, []

    while path:
        pages.append(client.get(path).content.decode().partition('id="story-title"')[2])
        older = re.search(r'href="([^"]*)" rel="next"', pages[-1])
        path = PATH + older[1] if older else ""

    whole = "".join(pages)
    assert len(pages) == 3
    for number in range(1, 41):
        assert [whole.count(words) for words in (f"turn {number};", f"tool-{number}<", f"state {number};")] == [1, 1, 1], number
    assert "turn 40;" in pages[0]
    assert "turn 1;" not in pages[0]


def test_things_stand_in_the_order_of_their_times_and_turns_in_that_of_their_numbers(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1, "beginning", at=time_text(0))
    memory.turn("m-1", 2, "by a clock that runs ahead", at=time_text(900))
    memory.turn("m-1", 3, "third", at=time_text(20))
    memory.action("m-1", 1, tool="early", started_at=time_text(10))
    memory.action("m-1", 2, tool="late", started_at=time_text(30), status="failed", ended_at=time_text(400))
    memory.action("m-1", 3, tool="broken", body="{")

    said = text_of(browser(ana).get(PATH).content.decode().partition("Time line")[2])

    order = ["act:3", "Action 2 ended", "late", "third", "runs ahead", "early", "beginning"]
    places = [said.index(words) for words in order]
    assert places == sorted(places)


def test_takeovers_decisions_and_entries_stand_on_it(memory: RecordWriter, ana: User) -> None:
    watcher = Observer("main")
    watcher.observe([a_lease("pod-a:1:aaaa", 3, agent="m-1")])
    watcher.observe([a_lease("pod-b:2:bbbb", 5, agent="m-1", at_s=90, ends_s=150)])
    ref = memory.action("m-1", 1)
    decide(ref, DecisionRequest(outcome="done", reason="found it there", decision_id="test-12345678"), by=ana)
    memory.lease("m-1", state="live")
    waiting = memory.action("m-1", 2, tool="open_ticket")
    decide(waiting, DecisionRequest(outcome="failed", reason="not in the log", decision_id="test-23456789"), by=ana)

    said = text_of(browser(ana).get(PATH).content.decode().partition("Time line")[2])

    assert "Seen: taken by pod-b:2:bbbb" in said
    assert "Seen: taken by pod-a:1:aaaa epochs 3 to 3, silent since" in said
    assert "operator ana decided done, action 1" in said
    assert said.count("found it there") == 2  # its entry, and the turn that the agent reads
    assert "not in the log" in said
    assert "Not repeated so far" in said


@pytest.mark.parametrize("right", ["viewer", "approver"])
def test_entries_are_for_those_who_may_read_the_history(memory: RecordWriter, ana: User, person: Cast, right: str) -> None:
    ref = memory.action("m-1", 1)
    decide(ref, DecisionRequest(outcome="abandoned", reason="no longer needed", decision_id="test-12345678"), by=ana)

    said = text_of(browser(person("eve", right)).get(PATH).content.decode())

    assert ("operator ana decided" in said) == (right == "viewer")


DONE = "I told Anna. The task is done."


@pytest.mark.parametrize(
    ("words", "role", "began_s", "is_flagged"),
    [
        (DONE, "assistant", 1, True),
        (DONE, "assistant", 900, False),  # begun after it was said
        (DONE, "user", 1, False),
        ("The task is not done. Everything is done once Anna answers.", "assistant", 1, False),
    ],
)
def test_says_done_with_calls_still_open_is_flagged(
    memory: RecordWriter, ana: User, words: str, role: str, began_s: float, is_flagged: bool
) -> None:
    memory.action("m-1", 1, started_at=time_text(began_s))
    memory.action("m-1", 2, cls="idempotent", started_at=time_text(1))
    memory.turn("m-1", 1, words, role=role, at=time_text(100))

    said = text_of(browser(ana).get(PATH).content.decode())

    assert ("It says it is done, and 1 external call begun before that is still open." in said) == is_flagged


def test_a_working_state_that_says_done_is_flagged_too_and_only_to_those_who_may_read_it(
    memory: RecordWriter, ana: User, dot: User
) -> None:
    memory.action("m-1", 1, tool="open_ticket", started_at=time_text(-9))
    memory.working_state("m-1", progress="All done.")

    assert "In its working state" in text_of(browser(ana).get(PATH).content.decode())
    assert "says it is done" not in text_of(browser(dot).get(PATH).content.decode())


@pytest.mark.parametrize(
    ("words", "is_done"),
    [
        ("Done.", True),
        ("Refund sent; the order is now complete.", True),
        ("everything has been finished", True),
        ("Everything is done but the email.", False),
        ("Is the task done?", False),
        ("The task isn't done.", False),
        ("I will report when it is done.", False),
        ("He is finished with the soup.", False),
        ("", False),
    ],
)
def test_what_counts_as_saying_so(words: str, is_done: bool) -> None:
    assert bool(find_done(words)) == is_done


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


def test_a_place_on_the_time_line_that_is_none_is_refused(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1)

    for cursor in ("many", "W10", "WzFd", "bnVsbA", "eyJhIjoxfQ"):
        assert browser(ana).get(f"{PATH}?cursor={cursor}").status_code == 400


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


def test_its_page_walks_over_the_turns_once_whatever_shows_them(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 71):
        memory.turn("m-1", number, f"turn {number};", at=time_text(number))
    store, walks = get_store("main"), list[int | None]()
    list_turns = store.list_turns

    def counted(agent: str, *, limit: int, before: int | None = None) -> object:
        walks.append(before)
        return list_turns(agent, limit=limit, before=before)

    monkeypatch.setattr(store, "list_turns", counted)

    newest = text_of(browser(ana).get(PATH).content.decode())

    assert walks == [None]
    assert "turn 70;" in newest
    assert "turn 21;" in newest
    assert "turn 20;" not in newest
