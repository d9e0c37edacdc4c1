"""The queue: what stands in it, for whom, as page and as partial, and what it costs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries

from actions.store.memory import MemoryStore
from console import checks
from console.services.decide import DecisionRequest, decide
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import BACK, BOOSTED, HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    checks.forget()


def strips(html: str) -> list[str]:
    """The strips of a page, as text."""
    return [text_of(strip) for strip in re.findall(r'<li class="strip .*?</li>', html, re.DOTALL)]


def page(user: User, query: str = "", **headers: str) -> str:
    return browser(user).get(f"/{query}", headers=headers).content.decode()


def test_it_shows_an_email_in_doubt_as_one_plain_sentence(records: RecordWriter, ana: User) -> None:
    records.action("mailer-1", 1, args={"to": "b@example.com", "subject": "Refund"})

    html = page(ana)

    assert len(strips(html)) == 1
    assert "Email to b@example.com, 'Refund'" in strips(html)[0]
    assert "send_email" in strips(html)[0]
    assert "interrupted" in strips(html)[0]
    assert 'href="/actions/main/mailer-1/1/"' in html


def test_money_stands_first_and_then_the_oldest(memory: RecordWriter, ana: User) -> None:
    memory.action("a", 1, args={"to": "late@example.com"}, started_at="2026-11-29T10:00:02Z")
    memory.action("b", 1, args={"to": "early@example.com"}, started_at="2026-11-29T10:00:01Z")
    memory.action("c", 1, tool="create_payment", args={"amount": 5, "currency": "EUR"}, started_at="2026-11-29T10:00:03Z")

    shown = strips(page(ana))

    assert [words for strip in shown for words in ("5.00 EUR", "early@", "late@") if words in strip] == [
        "5.00 EUR",
        "early@",
        "late@",
    ]


def test_calls_in_flight_and_leftovers_are_one_click_away(memory: RecordWriter, ana: User) -> None:
    memory.lease("alive", state="live")
    memory.action("alive", 1, args={"to": "flying@example.com"})
    memory.action("dead", 1, tool="put_object", cls="idempotent", args={"path": "left-over"})
    memory.action("dead", 2, args={"to": "closed@example.com"}, status="done")
    html = page(ana)

    assert strips(html) == []
    assert "Nothing is in doubt" in html
    assert "flying@example.com" in page(ana, "?state=in_flight&class=any")
    assert "left-over" in page(ana, "?class=idempotent,pure")
    assert "closed@example.com" in page(ana, "?state=done,failed,abandoned&class=any")


def test_an_unreadable_record_is_listed_with_its_id(memory: RecordWriter, ana: User) -> None:
    memory.action("broken-1", 1, body="{not json")

    assert "Record broken-1:act:1" in strips(page(ana))[0]
    assert "unreadable" in strips(page(ana))[0]


def test_a_record_whose_id_names_no_action_has_no_link_and_does_no_harm(memory: RecordWriter, ana: User) -> None:
    memory.action("x", 1, body="{", record_id="an id/with <b>slashes")

    html = page(ana)

    assert "an id/with <b>slashes" in strips(html)[0]
    assert "<b>slashes" not in html


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?tool=open_ticket", ["t-1"]),
        ("?agent=m-1", ["m-1"]),
        ("?text=safari", ["t-1"]),
        ("?store=main", ["m-1", "t-1"]),
        ("?store=elsewhere", []),
        ("?age=31536000", []),
    ],
)
def test_filters_stand_in_the_address(memory: RecordWriter, ana: User, query: str, found: list[str]) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com"})
    memory.action("t-1", 1, tool="open_ticket", args={"title": "Safari"})

    shown = strips(page(ana, query))

    assert [agent for agent in ("m-1", "t-1") if any(agent in strip for strip in shown)] == found


def test_a_filter_that_does_not_exist_is_named(memory: RecordWriter, ana: User) -> None:
    response = browser(ana).get("/?state=bogus")

    assert response.status_code == 400
    assert "no state is called 'bogus'" in text_of(response.content.decode())


@pytest.mark.parametrize("query", ["?cursor=x", "?age=many", "?cursor=bnVsbA"])
def test_an_address_that_cannot_be_understood_says_so(memory: RecordWriter, ana: User, query: str) -> None:
    assert browser(ana).get(f"/{query}").status_code == 400


def test_pages_follow_each_other_without_gaps(memory: RecordWriter, ana: User) -> None:
    for seq in range(1, 71):
        memory.action("a", seq, args={"to": f"c{seq}@example.com"})
    first = page(ana)
    following = re.search(r'<a href="(\?[^"]*cursor=[^"]*)" rel="next">', first)
    assert following is not None

    second = page(ana, following[1].replace("&amp;", "&"))

    assert len(strips(first)) == 50
    assert len(strips(second)) == 20
    assert not set(strips(first)) & set(strips(second))
    assert "50 of 70 actions" in text_of(first)


def test_counts_are_capped(memory: RecordWriter, ana: User) -> None:
    for seq in range(1, 1002):
        memory.action("a", seq)

    assert "1,000+ actions" in text_of(page(ana))


def test_a_store_that_is_down_is_said_and_the_others_are_listed(memory: RecordWriter, down: str, ana: User) -> None:
    memory.action("m-1", 1)

    html = page(ana)

    assert len(strips(html)) == 1
    assert "Store down does not answer." in text_of(html)
    assert "secret-pw" not in html


def test_a_store_that_cannot_be_settled_is_said_with_the_remedy(memory: RecordWriter, ana: User) -> None:
    assert isinstance(memory, MemoryWriter)
    memory.kept._is_prepared = False
    memory.action("m-1", 1)

    html = page(ana)

    assert len(strips(html)) == 1
    assert "can be read, not settled" in text_of(html)
    assert "prepare_store main" in text_of(html)


def test_a_note_and_a_decision_on_its_way_stand_in_their_strips(memory: RecordWriter, ana: User) -> None:
    noted = memory.action("m-1", 1)
    memory.lease("m-2", state="live")
    waiting = memory.action("m-2", 1, status="unknown")
    decide(noted, DecisionRequest(outcome="later", reason="The mailbox is down", decision_id="0" * 8), by=ana)
    decide(waiting, DecisionRequest(outcome="done", reason="Seen", decision_id="1" * 8), by=ana)

    one, two = strips(page(ana))

    assert "The mailbox is down" in one
    assert "done, waiting by ana" in two


def test_people_without_a_role_see_a_page_that_says_so(memory: RecordWriter, cyd: User) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com"})

    response = browser(cyd).get("/")

    assert response.status_code == 403
    assert "You have no role here yet" in response.content.decode()
    assert "b@example.com" not in response.content.decode()


def test_somebody_limited_to_a_tool_sees_and_counts_only_that(memory: RecordWriter, dot: User) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com"})
    memory.action("t-1", 1, tool="open_ticket", args={"title": "Safari"})
    memory.action("broken", 1, body="{")

    html = page(dot)

    assert len(strips(html)) == 1
    assert "1 action" in text_of(html)
    assert "b@example.com" not in html


def test_somebody_limited_to_a_store_does_not_see_the_other(
    records: RecordWriter, other_store: MemoryWriter, person: Cast
) -> None:
    eve = person("eve", ("viewer", "other", ""))
    records.action("m-1", 1, args={"to": "main@example.com"})
    other_store.action("m-1", 1, args={"to": "other@example.com"})

    html = page(eve)

    assert "other@example.com" in html
    assert "main@example.com" not in html


def test_strangers_are_sent_to_the_login_and_come_back(memory: RecordWriter, db: None) -> None:
    response = browser().get("/?tool=send_email")

    assert response.status_code == 302
    assert response["Location"] == "/login/?next=%2F%3Ftool%3Dsend_email"


def test_it_answers_get_only(memory: RecordWriter, ana: User) -> None:
    assert browser(ana).post("/").status_code == 405


@pytest.mark.parametrize(("headers", "is_page"), [({}, True), (HTMX, False), (BACK, True), (BOOSTED, True)])
def test_htmx_gets_the_list_and_everybody_else_the_page(
    memory: RecordWriter, ana: User, headers: dict[str, str], is_page: bool
) -> None:
    memory.action("m-1", 1)

    response = browser(ana).get("/", headers=headers)
    html = response.content.decode()

    assert ("<html" in html) == is_page
    assert len(strips(html)) == 1
    assert "HX-Request" in response["Vary"]
    assert response["Cache-Control"] == "no-store"


def test_an_ended_session_sends_the_whole_page_to_the_login(memory: RecordWriter, db: None) -> None:
    client = browser()
    client.cookies["sessionid"] = "ended"

    response = client.get("/", headers={**HTMX, "HX-Current-URL": "http://testserver/?open=main/m-1/1"})

    assert response["HX-Redirect"] == "/login/?next=%2F%3Fopen%3Dmain%2Fm-1%2F1&ended=get"
    assert response.content == b""


def test_the_opened_action_stands_beside_the_list(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com", "body": "only in the article"})

    html = page(ana, "?open=main/m-1/1")

    assert "only in the article" in html
    assert 'aria-current="true"' in re.findall(r'<li class="strip .*?>', html, re.DOTALL)[0]


@pytest.mark.parametrize("opened", ["main/nobody/7", "elsewhere/m-1/1", "<script>", "main/m-1/0"])
def test_an_opened_action_that_is_not_there_leaves_the_list_alone(memory: RecordWriter, ana: User, opened: str) -> None:
    memory.action("m-1", 1)

    response = browser(ana).get("/", {"open": opened})

    assert response.status_code == 200
    assert len(strips(response.content.decode())) == 1


@pytest.mark.parametrize("count", [2, 200])
def test_it_costs_the_same_with_2_rows_and_with_200(
    memory: RecordWriter,
    ana: User,
    count: int,
    django_assert_num_queries: DjangoAssertNumQueries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seq in range(1, count + 1):
        memory.action("m-1", seq, args={"body": "x" * 9000})
    client = browser(ana)
    client.get("/")
    asked: list[str] = []
    for name in ("read_actions", "read_outputs", "get_action", "check", "find_lease", "list_turns", "list_entries"):
        _count_calls(monkeypatch, name, asked)

    # session, user, roles, claims, looks, decisions, notes, evidence, decisions without a store, proposals, hand-overs, open incidents
    with django_assert_num_queries(12):
        client.get("/")

    assert asked == ["read_actions", "read_outputs"]


def _count_calls(monkeypatch: pytest.MonkeyPatch, name: str, asked: list[str]) -> None:
    real = getattr(MemoryStore, name)

    def counted(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MemoryStore, name, counted)


def test_a_store_that_does_not_answer_is_a_question_mark_and_never_nothing(memory: RecordWriter, ana: User, down: str) -> None:
    html = page(ana)
    said = text_of(html)
    assert "Nothing is in doubt." not in said
    assert "It is not known whether anything is in doubt." in said
    assert re.search(r"In doubt \?\s*not known in down", said)

    memory.action("m-1", 1)

    said = text_of(page(ana))
    assert re.search(r"In doubt 1 \+ \?", said)
    assert "1 action, not known in down" in said
    assert "+ " in text_of(page(ana, **HTMX))
