"""The history: every decision of all visible stores, newest first, filtered and paged, each with an address for good."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.auth.models import User

from actions.errors import StoreUnavailable
from actions.records import ActionRef, NewEntry, StoreCheck
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from console import checks, stores
from console.history import MAX_READ, HistoryFilter, list_history
from console.models import Grant
from console.services.decide import DecisionRequest, decide
from console.services.people import save_preferences
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import BACK, HTMX, browser, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)


def settle(ref: ActionRef, by: User, reason: str, outcome: str = "done") -> None:
    decide(ref, DecisionRequest(outcome=outcome, reason=reason, decision_id=f"{ref.store}-{ref.agent}-{ref.seq}"), by=by)


def entries(html: str) -> list[str]:
    return [text_of(one) for one in re.findall(r'<li class="entry">.*?</li>', html, re.DOTALL)]


def append(store: str, number: int, **fields: str) -> None:
    for n in range(number):
        stores.get_store(store).append_entry(NewEntry(kind="observed", actor="system", reason=f"entry {n + 1}", **fields))


def test_it_says_who_decided_what_about_which_action_and_why(records: RecordWriter, ana: User, ben: User) -> None:
    settle(records.action("m-1", 1), ana, "Found in the Sent folder")

    line = entries(browser(ben).get("/history/").content.decode())[0]

    for words in ("operator ana decided done", "“Found in the Sent folder”", "send_email", "action 1 of m-1", "#1"):
        assert words in line


def test_the_newest_of_all_stores_stands_first(records: RecordWriter, other_store: MemoryWriter, ana: User) -> None:
    settle(records.action("m-1", 1), ana, "first")
    settle(other_store.action("m-1", 1), ana, "second")
    settle(records.action("m-2", 1), ana, "third")

    shown = entries(browser(ana).get("/history/").content.decode())

    assert [word for line in shown for word in ("first", "second", "third") if word in line] == ["third", "second", "first"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?agent=m-2", ["second"]),
        ("?tool=open_ticket", ["second"]),
        ("?kind=withdrawn", []),
        ("?store=main", ["second", "first"]),
    ],
)
def test_filters_stand_in_the_address(memory: RecordWriter, ana: User, query: str, found: list[str]) -> None:
    settle(memory.action("m-1", 1), ana, "first")
    settle(memory.action("m-2", 1, tool="open_ticket"), ana, "second")

    shown = entries(browser(ana).get(f"/history/{query}").content.decode())

    assert [word for line in shown for word in ("first", "second") if word in line] == found


def test_pages_follow_each_other_without_gaps_while_entries_come(memory: RecordWriter, ana: User) -> None:
    append("main", 70)
    client = browser(ana)
    first = client.get("/history/").content.decode()
    older = re.search(r'href="(\?cursor=[^"]*)" rel="next"', first)
    assert older is not None
    append("main", 3)

    second = client.get("/history/" + older[1]).content.decode()

    numbers = [int(n) for html in (first, second) for n in re.findall(r"#(\d+)</a>", html)]
    assert numbers == list(range(70, 0, -1))
    assert 'rel="next"' not in second


def test_what_comes_meanwhile_belongs_above_the_first_page_whatever_store_it_comes_to(
    memory: RecordWriter, other_store: MemoryWriter
) -> None:
    append("other", 1)
    append("main", 3)
    names = stores.list_stores()

    def page(cursor: str | None) -> tuple[list[str], str | None]:
        found = list_history(names, HistoryFilter(), limit=2, cursor=cursor, may_see=lambda store, tool: True)
        return [f"{one.store} {one.entry.number}" for one in found.items], found.next

    first, cursor = page(None)
    append("other", 2)
    append("main", 2)

    assert (first, page(cursor)) == (["main 3", "main 2"], (["main 1", "other 1"], None))


def test_a_store_that_fails_goes_on_where_it_stood_and_the_others_repeat_nothing(
    memory: RecordWriter, other_store: MemoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        append("other", 1)
        append("main", 1)
    names, real, pages = stores.list_stores(), MemoryStore.list_entries, []

    def fails(self: MemoryStore, **options: Any) -> Any:
        if self.name == "other" and len(pages) == 1:
            raise StoreUnavailable("other", "connection refused")
        return real(self, **options)

    monkeypatch.setattr(MemoryStore, "list_entries", fails)
    cursor: str | None = None
    while not pages or cursor is not None:
        page = list_history(names, HistoryFilter(), limit=2, cursor=cursor, may_see=lambda store, tool: True)
        pages.append([f"{one.store} {one.entry.number}" for one in page.items])
        assert set(page.problems) == ({"other"} if len(pages) == 2 else set())
        cursor = page.next

    assert pages == [["main 4", "other 4"], ["main 3", "main 2"], ["other 3", "other 2"], ["main 1", "other 1"]]


def test_one_page_never_reads_more_than_its_share_of_many_stores(
    memory: RecordWriter, other_store: MemoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = MemoryStore.list_entries

    def counted(self: MemoryStore, *, limit: int, **options: Any) -> Any:
        asked.append(limit)
        return real(self, limit=limit, **options)

    append("main", 30)
    append("other", 30)
    monkeypatch.setattr(MemoryStore, "list_entries", counted)
    monkeypatch.setattr("console.history.MAX_READ", 20)

    page = list_history(stores.list_stores(), HistoryFilter(kind="settled"), limit=5, may_see=lambda store, tool: True)

    assert sum(asked) == 20
    assert (page.items, page.is_partial, page.next is not None) == ((), True, True)


@pytest.mark.parametrize("cursor", ["x", "bnVsbA", "eyJtYWluIjogMH0", "W10"])
def test_a_cursor_that_is_none_of_ours_is_refused(memory: RecordWriter, ana: User, cursor: str) -> None:
    assert browser(ana).get(f"/history/?cursor={cursor}").status_code == 400


def test_a_filter_that_matches_little_says_how_far_it_looked(memory: RecordWriter, ana: User) -> None:
    append("main", MAX_READ + 5)
    names: Sequence[ActionStore] = stores.list_stores()

    page = list_history(names, HistoryFilter(kind="settled"), limit=50, may_see=lambda store, tool: True)
    rest = list_history(names, HistoryFilter(kind="settled"), limit=50, cursor=page.next, may_see=lambda store, tool: True)

    assert (page.items, page.is_partial) == ((), True)
    assert (rest.items, rest.is_partial, rest.next) == ((), False, None)


def test_a_store_that_is_down_is_said(memory: RecordWriter, down: str, ana: User) -> None:
    settle(memory.action("m-1", 1), ana, "first")

    html = browser(ana).get("/history/").content.decode()

    assert len(entries(html)) == 1
    assert "The history of store down cannot be read." in text_of(html)


def test_somebody_limited_to_a_tool_sees_entries_of_that_alone(memory: RecordWriter, ana: User, dot: User) -> None:
    settle(memory.action("m-1", 1), ana, "about an email")
    settle(memory.action("t-1", 1, tool="open_ticket"), ana, "about a ticket")
    client = browser(dot)

    html = client.get("/history/").content.decode()

    assert "about a ticket" in html
    assert "about an email" not in html
    assert client.get("/history/main/1/").status_code == 404
    assert client.get("/history/main/2/").status_code == 200


def test_approvers_and_people_without_a_role_do_not_read_it(memory: RecordWriter, ana: User, cyd: User, person: Cast) -> None:
    settle(memory.action("m-1", 1), ana, "first")
    approver = browser(person("app", "approver"))

    assert approver.get("/history/").status_code == 403
    assert approver.get("/history/main/1/").status_code == 404
    assert 'href="/history/"' not in approver.get("/").content.decode()
    assert browser(cyd).get("/history/").status_code == 403


def test_an_entry_shows_the_text_that_its_hash_covers(records: RecordWriter, ana: User) -> None:
    settle(records.action("m-1", 1), ana, "Found <it>")
    entry = stores.get_store("main").list_entries(limit=1)[0]

    said = text_of(browser(ana).get(f"/history/main/{entry.number}/").content.decode())

    assert entry.hash in said
    assert entry.text in said
    assert entry.prev in said


@pytest.mark.parametrize(
    "path", ["/history/main/99/", "/history/main/0/", "/history/main/999999999999999999/", "/history/elsewhere/1/"]
)
def test_an_entry_that_is_not_there_is_not_found(memory: RecordWriter, ana: User, path: str) -> None:
    assert browser(ana).get(path).status_code == 404


@pytest.mark.parametrize("path", ["/history/", "/history/main/1/"])
def test_it_answers_get_only_and_a_piece_to_htmx(memory: RecordWriter, ana: User, path: str) -> None:
    append("main", 1)
    client = browser(ana)

    assert client.post(path).status_code == 405
    assert "<html" not in client.get(path, headers=HTMX).content.decode()
    assert "<html" in client.get(path, headers=BACK).content.decode()
    assert browser().get(path)["Location"].startswith("/login/")


def test_an_empty_history_says_what_would_stand_there(memory: RecordWriter, ana: User) -> None:
    assert "Nothing has been decided yet." in browser(ana).get("/history/").content.decode()


def test_a_history_that_cannot_be_read_is_never_an_empty_one(memory: RecordWriter, ana: User, down: str) -> None:
    said = text_of(browser(ana).get("/history/").content.decode())

    assert "The history of store down cannot be read." in said
    assert "Nothing has been decided yet." not in said


def test_a_store_that_is_not_prepared_keeps_no_history(memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = memory.action("m-1", 1)
    monkeypatch.setattr(MemoryStore, "check", lambda self: StoreCheck(is_reachable=True, why_not="it is not prepared"))
    checks.forget()

    said = text_of(browser(ana).get("/history/").content.decode())
    assert "Nothing has been decided yet." not in said
    assert "Store main is not prepared." in said
    said = text_of(browser(ana).get(path_of(ref)).content.decode())
    assert "Nobody has decided anything about it yet" not in said
    assert "no history is kept here" in said


def test_a_check_that_said_no_is_asked_again_soon(memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.get_store("main")
    now = [1000.0]
    monkeypatch.setattr(checks.time, "monotonic", lambda: now[0])
    checks.forget()
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "check", lambda self: StoreCheck(is_reachable=True, why_not="no right"))
        assert not checks.recent_check(store).can_settle
    now[0] += 6

    assert checks.recent_check(store).can_settle


# A moment of the clocks in Berlin: skipped on 29 March 2026 from 02:00 to 03:00, shown twice on 25 October from 02:00 to 03:00.
@pytest.mark.parametrize(
    ("typed", "since", "until"),
    [
        ("2026-11-30T18:20", "2026-11-30T17:20:00Z", "2026-11-30T17:20:00Z"),
        ("2026-07-01", "2026-06-30T22:00:00Z", "2026-06-30T22:00:00Z"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
        ("2026-03-29T02:30", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"),
        ("2026-11-30T18:20:00+09:00", "2026-11-30T09:20:00Z", "2026-11-30T09:20:00Z"),
        ("0001-01-01T00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_of_the_zone_of_whoever_typed_it(memory: RecordWriter, ana: User, typed: str, since: str, until: str) -> None:
    save_preferences(ana, time_zone="Europe/Berlin")
    client = browser(ana)

    for name, exact in (("since", since), ("until", until)):
        page = client.get("/history/", {name: typed})
        assert page.context["said"] == {name: exact}
        assert "From, Europe/Berlin" in page.content.decode()


def test_a_time_stands_in_its_field_as_its_reader_would_type_it(memory: RecordWriter, ana: User) -> None:
    save_preferences(ana, time_zone="Europe/Berlin")

    html = browser(ana).get("/history/?since=2026-07-01T10:00:00Z&until=2026-11-30").content.decode()

    assert 'name="since" value="2026-07-01T12:00"' in html
    assert 'name="until" value="2026-11-30T00:00"' in html
    assert "From, UTC" in browser(ana.__class__.objects.create_superuser("root")).get("/history/").content.decode()


@pytest.mark.parametrize(
    ("name", "typed", "says"),
    [
        ("since", "yesterday", "This is no time: write a day (2026-11-30)"),
        ("until", "30.11.2026", "This is no time: write a day (2026-11-30)"),
        ("store", "nowhere", "No store is called"),
        ("kind", "nonsense", "No kind of entry is called"),
        ("seq", "first", "Enter a whole number."),
    ],
)
def test_what_is_typed_stays_beside_a_condition_that_means_nothing_and_nothing_is_listed(
    memory: RecordWriter, ana: User, name: str, typed: str, says: str
) -> None:
    settle(memory.action("m-1", 1), ana, "not to be listed")
    Grant.objects.create(user=ana, role="auditor")
    others = {
        "actor": "ana",
        "agent": "m-1",
        "tool": "send_email",
        "text": "<b>bo",
        "outcome": "done",
        "since": "2026-07-01T10:00",
    }

    page = browser(ana).get("/history/", others | {name: typed})

    html = page.content.decode()
    assert page.status_code == 400
    for field in ("actor", "agent", "tool", "text", "since"):
        value = typed if field == name else others[field].replace("<", "&lt;").replace(">", "&gt;")
        assert f'name="{field}" value="{value}"' in html, field
    assert "<option selected>done</option>" in html
    assert f'id="h-{name}-wrong" role="alert">{says}' in html
    assert typed in html.partition("Nothing is listed.")[0]
    assert entries(html) == []
    assert "/history/export/" not in html


def test_a_page_that_stopped_looking_says_after_how_many_and_denies_nothing(memory: RecordWriter, ana: User) -> None:
    append("main", MAX_READ + 5)
    client = browser(ana)

    first = client.get("/history/?kind=settled&store=main")
    last = client.get("/history/", {"kind": "settled", "store": "main", "cursor": first.context["page"].next})

    said = text_of(first.content.decode())
    assert "Looked through 2,000 entries; “Older” looks through those before them." in said
    assert "None of the entries looked through matches." in said
    assert "No entry matches." not in said
    assert "No entry matches." in text_of(last.content.decode())
    assert "Looked through" not in text_of(last.content.decode())


@pytest.mark.parametrize("name", ["kind", "outcome"])
def test_a_row_whose_word_is_no_text_at_all_hides_no_other(memory: MemoryWriter, ana: User, name: str) -> None:
    settle(memory.action("m-1", 1), ana, "whole")
    settle(memory.action("m-1", 2), ana, "tampered with")
    link = memory.kept.links[1]
    memory.kept.links[1] = link._replace(text=json.dumps(json.loads(link.text) | {name: "\ud800"}))

    answers = [browser(ana).get(path) for path in ("/history/", "/history/main/2/", "/agents/main/m-1/", "/actions/main/m-1/2/")]

    assert [answer.status_code for answer in answers] == [200] * 4
    assert [line for line in entries(answers[0].content.decode()) if "whole" in line]
