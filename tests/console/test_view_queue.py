"""The queue: what stands in it, for whom, as page and as partial, and what it costs."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from actions.digests import sha256_text
from actions.queries import get_action
from actions.records import Action
from actions.store.memory import MemoryStore
from console import checks
from console.services.decide import DecisionRequest, decide
from console.services.policies import save_policy
from console.stores import get_store
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

    # session, user, roles, what stands around, policies, what stands beside these actions; of neither is there anything to read
    with django_assert_num_queries(6):
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


# --- what the policies say -------------------------------------------------------------------------------------------


def test_the_policy_decides_sentence_place_heading_weight_and_what_is_hidden(records: RecordWriter, ana: User, amy: User) -> None:
    records.action("m-1", 1, args={"to": "b@example.com", "subject": "Hello"}, started_at="2026-11-29T10:00:01Z")
    records.action("p-1", 1, tool="pay_out", args={"amount": 5, "currency": "EUR"}, started_at="2026-11-29T10:00:00Z")
    ref = records.action(
        "x-1", 1, tool="sync", args={"who": {"iban": "DE02S3CRET", "name": "ACME"}, "sum": 7}, started_at="2026-11-29T10:00:02Z"
    )
    digest, stored = get_action(get_store("main"), ref).digest, get_store("main").get_action("x-1", 1).action
    assert isinstance(stored, Action)
    save_policy("pay_out", {"moves_money": "no"}, seen_version=0, by=amy)
    values = {
        "moves_money": "yes",
        "amount": "sum",
        "summary": "Payout of {amount} to {who.name}, {who.iban}",
        "redacted": "IBAN, pin",
    }
    save_policy("sync", values, seen_version=0, by=amy)

    html = page(ana)

    assert [text_of(one) for one in re.findall(r'<li class="group".*?</li>', html, re.DOTALL)] == [
        "Money oldest first",
        "Everything else oldest first",
    ]
    assert [re.search(r"Payout of 7.00 to ACME, \[redacted\]|5.00 EUR|b@example", strip)[0] for strip in strips(html)] == [  # type: ignore[index]
        "Payout of 7.00 to ACME, [redacted]",
        "5.00 EUR",
        "b@example",
    ]
    assert re.findall(r'<li class="strip is-interrupted( weighs)?', html) == [" weighs", "", ""]
    whole = browser(ana).get("/actions/main/x-1/1/").content.decode()
    assert "S3CRET" not in html + whole + browser(ana).get("/actions/main/x-1/1/arguments/").content.decode()
    assert strips(page(ana, "?text=S3CRET")) == []
    assert f'value="{digest}"' in whole  # a decision stays bound to what is stored
    decide(ref, DecisionRequest(outcome="done", reason="Seen", decision_id="decision-1"), by=ana)
    (entry,) = get_store("main").list_entries(limit=5, agent="x-1", seq=1)
    assert "S3CRET" not in str(entry)
    assert f"'args_digest': '{sha256_text(stored.args)}'" in str(entry.detail)


@pytest.mark.parametrize("before", [False, True])
def test_a_policy_that_changes_between_two_pages_loses_and_repeats_no_row(
    memory: RecordWriter, ana: User, amy: User, before: bool
) -> None:
    """Rows that would move before the place of the cursor keep theirs until somebody begins from the first page."""
    for seq in range(1, 41):
        memory.action("a", seq, tool="create_payment", args={"to": f"p{seq}x"})
        memory.action("b", seq, tool="sync", args={"to": f"s{seq}x"})
    if before:
        save_policy("other", {"compensation": "x"}, seen_version=0, by=amy)
    first = page(ana)
    following = re.search(r'<a href="(\?[^"]*cursor=[^"]*)" rel="next">', first)
    assert following is not None
    save_policy("sync", {"moves_money": "yes", "summary": "Synced {to}"}, seen_version=0, by=amy)
    save_policy("create_payment", {"moves_money": "no"}, seen_version=0, by=amy)

    second = page(ana, following[1].replace("&amp;", "&"))

    seen = re.findall(r"to ([ps]\d+x)|Synced (s\d+x)", " ".join(strips(first) + strips(second)))
    assert sorted(one or other for one, other in seen) == sorted(f"{kind}{seq}x" for kind in "ps" for seq in range(1, 41))
    assert "Synced" in second  # words are those of now
    assert strips(page(ana))[0].startswith("Synced")


# --- clocks ----------------------------------------------------------------------------------------------------------


def at(**ago: float) -> str:
    return (timezone.now() - timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("ago", "words", "mark"),
    [
        ({"minutes": 30}, r"evidence until \d+ \w{3}", "clock"),
        ({"days": 7, "hours": 1}, r"evidence until \d+ \w{3}", "clock"),
        ({"days": 9, "hours": 12}, r"evidence until \d\d:\d\d UTC", "clock is-close"),
        ({"days": 11}, "evidence expired", "clock is-over"),
    ],
)
def test_the_clock_of_a_call_runs_to_the_end_of_its_evidence(
    memory: RecordWriter, ana: User, amy: User, ago: dict[str, float], words: str, mark: str
) -> None:
    save_policy("send_email", {"retention_s": 10 * 86_400}, seen_version=0, by=amy)
    memory.action("m-1", 1, started_at=at(**ago))
    memory.lease("m-2", state="live")
    memory.action("m-2", 1, started_at=at(**ago))
    memory.action("m-3", 1, cls="pure", started_at=at(**ago))

    one, *rest = strips(page(ana, "?state=any&class=any"))

    assert re.search(words, one)
    assert not [strip for strip in rest if "evidence" in strip]
    assert f'class="{mark}"' in page(ana)
    assert ("late" in one) == (ago != {"minutes": 30})
    assert not [strip for strip in rest if "late" in strip]


def test_the_evidence_counts_from_the_end_of_a_lease_that_ran_longer_than_the_tool(
    memory: RecordWriter, ana: User, amy: User
) -> None:
    save_policy("send_email", {"retention_s": 86_400}, seen_version=0, by=amy)
    memory.lease("m-1", state="expired", ttl=timedelta(hours=1))  # ran out an hour ago
    memory.action("m-1", 1, started_at=at(hours=25))
    memory.action("m-2", 1, started_at=at(hours=25))

    one, two = strips(page(ana))

    assert re.search(r"evidence until \d\d:\d\d UTC", one)
    assert "evidence expired" in two


# --- conditions ------------------------------------------------------------------------------------------------------


def test_each_condition_is_a_chip_that_takes_away_itself_alone(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1)

    html = page(ana, "?tool=send_email,pay&age=300&text=%3Cb%3E&cursor=&open=main/m-1/1&state=unknown")

    chips = re.search(r'<ul class="conditions".*?</ul>', html, re.DOTALL)
    assert chips is not None
    found = [(text_of(words), unescape(href)) for href, words in re.findall(r'href="([^"]*)">(.*?)</a>', chips[0], re.DOTALL)]
    assert found[:-1] == [
        ("State: unknown ×, remove", "?tool=send_email,pay&age=300&text=%3Cb%3E"),
        ("Tool: send_email ×, remove", "?state=unknown&tool=pay&age=300&text=%3Cb%3E"),
        ("Tool: pay ×, remove", "?state=unknown&tool=send_email&age=300&text=%3Cb%3E"),
        ("Age: over 5 min ×, remove", "?state=unknown&tool=send_email,pay&text=%3Cb%3E"),
        ("Text: <b> ×, remove", "?state=unknown&tool=send_email,pay&age=300"),
    ]
    assert "No action matches this filter. State: unknown · Tool: send_email · Tool: pay" in text_of(html)
    assert "conditions" not in page(ana)


def test_a_text_is_looked_for_in_the_stored_part_of_long_arguments_and_the_page_says_so(records: RecordWriter, ana: User) -> None:
    records.action("m-1", 1, args={"to": "b@example.com", "body": "x" * 9_000 + " needle"})
    records.action("m-2", 1, args={"to": "needle@example.com"})

    found = page(ana, "?text=needle")

    assert len(strips(found)) == 1
    assert "Not everything was searched. 1 call with long arguments is not listed" in text_of(found)
    assert "Not everything was searched" not in page(ana, "?text=needle&agent=m-2")
    assert "Not everything was searched" not in page(ana)


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_calls_of_one_crash_stand_together_under_what_was_seen_of_it(memory: RecordWriter, ana: User, ben: User) -> None:
    memory.lease("m-1", holder="pod-a:1:aaaa")
    for agent, seq in (("m-1", 1), ("m-2", 1), ("m-1", 2)):
        memory.action(agent, seq, started_at=f"2026-11-29T10:00:0{seq}Z")
    memory.action("z-1", 1, body="{")

    html = page(ana, "?group=crash")

    assert [agent for strip in strips(html) for agent in ("m-1", "m-2", "z-1") if agent in strip] == ["m-1", "m-1", "m-2", "z-1"]
    form = re.search(r'<li class="group crash".*?</li>', html, re.DOTALL)
    assert form is not None
    assert "pod-a" in text_of(form[0])
    assert re.findall(r'name="ref" value="([^"]*)"', form[0]) == ["main/m-1/1", "main/m-1/2"]
    assert "Ask the resolver about these 2" in form[0]
    assert "csrfmiddlewaretoken" in form[0]
    assert "Ask the resolver" not in page(ben, "?group=crash")
    assert browser(ana).get("/?group=moon").status_code == 400


# --- empty -----------------------------------------------------------------------------------------------------------


def test_an_empty_queue_says_what_would_stand_in_it_until_somebody_has_decided_something(memory: RecordWriter, ana: User) -> None:
    assert "A line will look like this" in text_of(page(ana))

    decide(memory.action("m-1", 1), DecisionRequest(outcome="done", reason="Seen", decision_id="decision-1"), by=ana)

    assert "Nothing is in doubt." in text_of(page(ana))
    assert "A line will look like this" not in text_of(page(ana))


def test_where_no_store_answers_that_is_said_and_nothing_is_called_empty(ana: User, down: str, settings: Settings) -> None:
    settings.ACTION_STORES = {down: settings.ACTION_STORES[down]}

    said = text_of(page(ana, "?tool=send_email"))

    assert "no store answers" in said
    assert "No action matches" not in said
    assert "secret-pw" not in said
