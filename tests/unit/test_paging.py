"""One queue over several stores: every page in order, nothing twice, nothing left out, whatever comes, goes or fails meanwhile."""

from __future__ import annotations

import base64
import threading
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.errors import InvalidQuery, StoreUnavailable
from actions.queries import IN_DOUBT, ActionFilter, ActionItem, ActionPage, list_actions
from actions.records import ActionState, ActionStatus, Output, Unreadable
from actions.store.memory import MemoryStore
from tests.store.memory_writer import MemoryWriter

NAMES = ("a", "b", "c")
TOOLS = ("create_payment", "send_email", "lookup")
Key = tuple[str, str, int]


class Store(MemoryStore):
    """A store whose reads can fail."""

    is_away = False
    is_cut_off = False

    def read_actions(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable(self.name, "connection refused")
        return super().read_actions(*args, **kwargs)

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        if self.is_cut_off:
            raise StoreUnavailable(self.name, "connection reset")
        return super().read_outputs(wanted)


class Board:
    """Three stores and their rows. The same agent id stands in all of them."""

    def __init__(self) -> None:
        self.stores = {name: Store(name) for name in NAMES}
        self.open: set[Key] = set()

    def begin(self, key: Key, tool: str, second: int) -> None:
        name, agent, seq = key
        args = {"amount": 5, "currency": "EUR"} if tool == "create_payment" else {"to": "ann@example.com"}
        MemoryWriter(self.stores[name]).action(agent, seq, tool=tool, args=args, started_at=f"2026-11-29T10:00:{second:02}Z")
        self.open.add(key)

    def close(self, key: Key) -> None:
        MemoryWriter(self.stores[key[0]]).action(key[1], key[2], status="done")
        self.open.discard(key)

    def page(self, limit: int, cursor: str | None) -> ActionPage:
        return list_actions(list(self.stores.values()), ActionFilter(), limit=limit, cursor=cursor)


def key_of(item: ActionItem) -> Key:
    assert item.seq is not None
    return item.store, item.agent, item.seq


def place_of(item: ActionItem) -> tuple[Any, ...]:
    """The order that the contract promises."""
    assert item.facts is not None
    assert item.action is not None
    return item.facts.risk, item.action.started_at, item.store, item.agent, item.seq


keys = st.tuples(st.sampled_from(NAMES), st.sampled_from(["bot-1", "bot-2"]), st.integers(1, 12))
rows = st.tuples(st.sampled_from(TOOLS), st.integers(0, 3))
changes = st.tuples(st.dictionaries(keys, st.none() | rows, max_size=6), st.sets(st.sampled_from(NAMES), max_size=2))


@given(st.dictionaries(keys, rows, max_size=30), st.integers(1, 7), st.lists(changes, max_size=8))
def test_every_row_that_stood_throughout_is_seen_once_on_the_way_down_and_once_on_the_way_back(
    first: dict[Key, tuple[str, int]], limit: int, meanwhile: list[tuple[dict[Key, tuple[str, int] | None], set[str]]]
) -> None:
    board = Board()
    for key, (tool, second) in first.items():
        board.begin(key, tool, second)
    stood, seen, cursor = set(board.open), [], None
    steps = iter(meanwhile)
    while True:
        changed, away = next(steps, ({}, set()))
        for key, row in changed.items():
            stood.discard(key)
            board.close(key) if row is None else board.begin(key, *row)
        for name, store in board.stores.items():
            store.is_away = name in away
        page = board.page(limit, cursor)
        assert [place_of(item) for item in page.items] == sorted(place_of(item) for item in page.items)
        assert {status.name for status in page.stores if status.problem} == away
        assert len(page.items) <= limit
        seen += [key_of(item) for item in page.items]
        assert len(seen) < 1000, "the pages never end"
        if page.next is None:
            break
        cursor = page.next
    missing = {key for key in stood if key[0] in away}  # and the last page names those stores
    assert sorted(key for key in seen if key in stood - missing) == sorted(stood - missing)

    for store in board.stores.values():
        store.is_away = False
    stood, back, page = set(board.open), [], board.page(limit, None)
    while page.next is not None:
        page = board.page(limit, page.next)
    back += [key_of(item) for item in reversed(page.items)]
    while page.previous is not None:
        changed, _ = next(steps, ({}, set()))
        for key, row in changed.items():
            stood.discard(key)
            board.close(key) if row is None else board.begin(key, *row)
        page = board.page(limit, page.previous)
        back += [key_of(item) for item in reversed(page.items)]
    assert sorted(key for key in back if key in stood) == sorted(stood)


@given(st.dictionaries(keys, rows, min_size=1, max_size=30), st.integers(1, 7))
def test_undisturbed_the_pages_are_the_whole_order_cut_into_pieces_in_both_directions(
    first: dict[Key, tuple[str, int]], limit: int
) -> None:
    board = Board()
    for key, (tool, second) in first.items():
        board.begin(key, tool, second)
    whole = [place_of(item) for item in board.page(1000, None).items]
    pages = [board.page(limit, None)]
    while (cursor := pages[-1].next) is not None:
        pages.append(board.page(limit, cursor))

    assert [place_of(item) for page in pages for item in page.items] == whole == sorted(set(whole))
    assert pages[0].previous is None
    for page, following in pairwise(pages):
        back = board.page(limit, following.previous)
        assert back.items[-1].ref == page.items[-1].ref
        assert [item.ref for item in back.items] == [item.ref for item in page.items]
        assert board.page(limit, back.next).items[0].ref == following.items[0].ref


@given(st.dictionaries(keys, rows, min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 6), st.sampled_from(NAMES))
def test_a_store_that_fails_on_one_page_in_the_middle_costs_nothing_once_it_is_back(
    first: dict[Key, tuple[str, int]], limit: int, failing: int, name: str
) -> None:
    board = Board()
    for key, (tool, second) in first.items():
        board.begin(key, tool, second)
    seen, cursor, number = [], None, 0
    while True:
        board.stores[name].is_away = number == failing
        page = board.page(limit, cursor)
        seen += [key_of(item) for item in page.items]
        assert len(seen) < 1000, "the pages never end"
        if page.next is None:
            break
        cursor, number = page.next, number + 1
    expected = {key for key in board.open if key[0] != name} if number == failing else board.open

    assert sorted(key for key in seen if key[0] != name) == sorted(key for key in board.open if key[0] != name)
    assert len(seen) == len(set(seen))
    assert set(seen) >= expected


def test_a_page_past_the_end_leads_back() -> None:
    board = Board()
    for seq in range(1, 4):
        board.begin(("a", "bot-1", seq), "send_email", seq)
    after_two = board.page(2, None).next
    board.close(("a", "bot-1", 3))

    page = board.page(2, after_two)

    assert (page.items, page.next, page.total) == ((), None, 2)
    assert [item.seq for item in board.page(2, page.previous).items] == [1, 2]


def test_a_page_before_which_everything_closed_leads_forward() -> None:
    board = Board()
    for seq in range(1, 4):
        board.begin(("a", "bot-1", seq), "send_email", seq)
    before_three = board.page(2, board.page(2, None).next).previous
    for seq in (1, 2):
        board.close(("a", "bot-1", seq))

    page = board.page(2, before_three)

    assert (page.items, page.previous) == ((), None)
    assert [item.seq for item in board.page(2, page.next).items] == [3]


def test_all_stores_are_asked_before_any_of_them_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    board, together = Board(), threading.Barrier(len(NAMES))
    for name in NAMES:
        board.begin((name, "bot-1", 1), "send_email", 1)
    read_actions = MemoryStore.read_actions

    def waits_for_the_others(self: MemoryStore, *args: Any, **kwargs: Any) -> Any:
        together.wait(timeout=30)
        return read_actions(self, *args, **kwargs)

    monkeypatch.setattr(MemoryStore, "read_actions", waits_for_the_others)

    assert [item.store for item in board.page(10, None).items] == list(NAMES)


def test_who_may_see_what_is_asked_in_the_callers_thread() -> None:
    board, threads = Board(), set()
    for name in NAMES:
        board.begin((name, "bot-1", 1), "send_email", 1)

    def may_see(store: str, tool: str) -> bool:
        threads.add(threading.get_ident())
        return store != "b"

    page = list_actions(list(board.stores.values()), ActionFilter(), limit=10, may_see=may_see)

    assert [item.store for item in page.items] == ["a", "c"]
    assert page.total == 2
    assert threads == {threading.get_ident()}


def test_each_store_says_how_many_it_holds_in_doubt_whatever_the_filter_and_whoever_asks() -> None:
    board = Board()
    writer = MemoryWriter(board.stores["a"])
    writer.action("bot-1", 1)
    writer.action("bot-1", 2, status="unknown")
    writer.action("bot-1", 3, cls="idempotent")
    writer.action("bot-1", 4, status="done")
    writer.action("bot-1", 5, body="{")
    writer.lease("bot-2", state="live")
    writer.action("bot-2", 1)
    board.stores["b"].is_away = True
    stores = list(board.stores.values())

    def counts(wanted: ActionFilter) -> dict[str, int | None]:
        page = list_actions(stores, wanted, limit=1, may_see=lambda store, tool: False)
        return {status.name: status.in_doubt for status in page.stores}

    assert counts(ActionFilter()) == {"a": 3, "b": None, "c": 0}
    assert counts(ActionFilter(states=frozenset({ActionState.IN_FLIGHT}), tools=frozenset({"x"}))) == {"a": 3, "b": None, "c": 0}
    assert counts(ActionFilter(agents=frozenset({"bot-2"}))) == {"a": None, "b": None, "c": None}
    assert counts(ActionFilter(states=frozenset({ActionState.DONE}))) == {"a": None, "b": None, "c": None}
    assert list_actions(stores, IN_DOUBT, limit=10).total == 3


def test_rows_whose_whole_arguments_cannot_be_asked_for_are_listed_without_a_digest() -> None:
    board = Board()
    MemoryWriter(board.stores["a"]).action("bot-1", 1, args={"body": "x" * 9000})
    MemoryWriter(board.stores["a"]).action("bot-1", 2, args={"body": "short"})
    whole = {item.seq: item for item in board.page(10, None).items}
    board.stores["a"].is_cut_off = True

    page = board.page(10, None)

    cut = {item.seq: item for item in page.items}
    assert (cut[1].is_args_missing, cut[1].digest, cut[1].claim) == (True, "", "")
    assert (cut[2].digest, cut[2].claim) == (whole[2].digest, whole[2].claim)
    status = page.stores[0]
    assert (status.problem, status.is_listed, page.total) == ("connection reset", True, 2)
    assert whole[1].digest


def test_the_same_agent_id_in_three_stores_is_three_agents() -> None:
    board = Board()
    for name in NAMES:
        board.begin((name, "bot-1", 1), "send_email", 1)
    board.close(("b", "bot-1", 1))

    items = board.page(10, None).items

    assert [str(item.ref) for item in items] == ["a/bot-1/1", "c/bot-1/1"]
    assert all(item.action is not None and item.action.status is ActionStatus.STARTED for item in items)


@pytest.mark.parametrize(
    "said",
    ["null", "[]", "5", '"after"', "{}", '{"after":1}', '{"after":[]}', '{"after":[1,2,"a","b","c",""]}', '{"after":null,"x":1}',
     '{"before":[1.5,2,"a","b",1,""]}', '{"after":null,"behind":[]}', '{"after":null,"behind":{"a":7}}', '{"behind":{}}', "[[[", '["after"]'],
)  # fmt: skip
def test_a_cursor_that_no_list_gave_out_is_refused(said: str) -> None:
    with pytest.raises(InvalidQuery, match="cursor"):
        Board().page(10, base64.urlsafe_b64encode(said.encode()).decode())
