"""What only a polign_db store reads and says of itself: no leases, no history of its own, answers of at most a thousand records."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from actions import queries
from actions.errors import ActionNotOpen, StoreReadOnly, StoreUnavailable
from actions.records import ActionRef, ActionState, ActionStatus, NewEntry, Turn
from actions.rules import state_of_reading
from actions.store import open_store
from actions.store.audit import GENESIS
from actions.store.polign import CAUTIONS, NO_ENTRIES, PolignStore
from local.polign import RunningPolign
from local.postgres import Postgres
from tests.http_gateway import Gateway
from tests.polign_writer import PolignWriter
from tests.recall_writer import RecallWriter
from tests.store.gestures import an_end, decide, look_at_world, verify

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
Polign = tuple[PolignStore, PolignWriter]


@pytest.mark.parametrize(
    ("status", "cls", "state"),
    [
        ("started", "external", ActionState.UNCLEAR),
        ("started", "pure", ActionState.UNCLEAR),
        ("unknown", "external", ActionState.UNKNOWN),
        ("done", "external", ActionState.DONE),
    ],
)
@pytest.mark.parametrize("lease", ["live", "released"])
def test_nobody_can_tell_in_flight_from_interrupted(
    polign: Polign, lease: Any, status: str, cls: str, state: ActionState
) -> None:
    store, recall = polign
    recall.action("a", 1, status=status, cls=cls)
    recall.lease("a", state=lease)

    reading = store.get_action("a", 1)

    assert not store.leases_known
    assert (reading.lease, store.find_lease("a")) == (None, None)
    assert state_of_reading(reading, leases_known=store.leases_known) is state
    (item,) = queries.list_actions([store], queries.ActionFilter(states=frozenset({state})), limit=5).items
    assert (item.state, item.lease) == (state, None)


def test_a_turn_carries_the_mark_of_its_decision(polign: Polign) -> None:
    store, recall = polign
    decide(store, recall.action("a", 7), decision_id="decision-1")

    (turn,) = store.list_turns("a", limit=5)

    assert isinstance(turn, Turn)
    assert (turn.message_id, turn.role, turn.name) == ("settle:7:decision-1", "tool", "send_email")
    assert recall.values_of("a:turn:1") == [0] * 256


def test_an_action_that_cannot_be_decoded_is_not_settled(polign: Polign) -> None:
    store, recall = polign
    ref = recall.action("a", 1, body="{")
    before = look_at_world(store, recall, "a")

    with pytest.raises(Exception, match="a:act:1 is unreadable"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


# --- more than one answer holds ------------------------------------------------------------------------------------------


def many(recall: PolignWriter, count: int, status: str = "started") -> dict[str, dict[str, Any]]:
    """So many agents with one action each, made from one that was written as usual."""
    recall.action("model", 1, status=status)
    model = recall.metadata_of("model:act:1")
    assert model is not None
    records = {f"agent-{number:05d}:act:1": {**model, "recall_agent": f"agent-{number:05d}"} for number in range(count)}
    recall.put_many(records)
    return records


def test_a_long_list_is_read_page_by_page_and_in_order(polign: Polign) -> None:
    store, recall = polign
    records = many(recall, 2300)

    read = store.read_actions(OPEN, limit=20_000)

    ids = [f"{reading.action.agent}:act:1" for reading in read.readings]
    assert ids == [*sorted(records), "model:act:1"]
    assert not read.is_truncated
    cut = store.read_actions(OPEN, limit=2000)
    assert ([r.action.agent for r in cut.readings], cut.is_truncated) == ([key.partition(":")[0] for key in ids[:2000]], True)


@pytest.mark.parametrize("closed", [50, 150, 2000])
def test_what_is_closed_while_the_list_is_read_hides_nothing_else(
    polign: Polign, polign_server: RunningPolign, closed: int
) -> None:
    """Those that left the list move the others to the front, past the page that is asked for next."""
    _, recall = polign
    records = many(recall, 2300)
    gone = dict(sorted(records.items())[:closed])
    pages: list[str] = []

    def close_some(request: str) -> None:
        pages.append(request)
        if len(pages) == 2:
            recall.put_many({key: {**metadata, "status": "done"} for key, metadata in gone.items()})

    collection = recall.collection.removesuffix("_agents")
    with Gateway(polign_server.base) as gateway, closing(PolignStore(f"polign+{gateway.base}?collection={collection}")) as store:
        gateway.before = close_some
        if closed == 2000:
            with pytest.raises(StoreUnavailable, match="changed too fast"):
                store.read_actions(OPEN, limit=20_000)
            return
        seen = {f"{reading.action.agent}:act:1" for reading in store.read_actions(OPEN, limit=20_000).readings}

    assert seen >= records.keys() - gone.keys()
    assert len(pages) >= 3


def test_turns_beyond_a_thousand_are_numbered_on(polign: Polign) -> None:
    store, recall = polign
    recall.put_many(recall.turn_records("a", 1, 1210))
    ref = recall.action("a", 1)

    assert [turn.seq for turn in store.list_turns("a", limit=5)] == [1210, 1209, 1208, 1207, 1206]
    assert [turn.seq for turn in store.list_turns("a", limit=3, before=400)] == [399, 398, 397]
    assert [turn.seq for turn in store.list_turns("a", limit=3, before=10**30)] == [1210, 1209, 1208]
    assert decide(store, ref).turn_seq == 1211


# --- what it can be used for ---------------------------------------------------------------------------------------------


def test_it_says_on_every_check_what_it_cannot_promise(polign: Polign) -> None:
    store, recall = polign
    recall.turn("a", 1)

    check = store.check()

    assert check.cautions == CAUTIONS
    assert len(CAUTIONS) == 2
    assert "0.14 does not fence writes" in CAUTIONS[0]
    assert "does not say who holds an agent" in CAUTIONS[1]
    assert (check.server, check.is_reachable, check.has_records, check.is_prepared) == ("polign_db", True, True, True)
    assert (check.can_settle, check.why_not) == (True, "")
    assert any("superuser" in warning for warning in check.warnings)  # of the console's database


def test_a_server_that_is_not_there_has_its_cautions_too() -> None:
    with closing(PolignStore("polign+http://127.0.0.1:9/")) as store:
        check = store.check()

    assert (check.is_reachable, check.cautions) == (False, CAUTIONS)
    assert "no connection" in check.why_not


def test_before_the_first_agent_it_says_that_there_is_nothing_yet(polign: Polign) -> None:
    store, _ = polign

    check = store.check()

    assert (check.has_records, check.can_settle) == (False, False)
    assert "Recall makes it with its first agent's first record" in check.why_not
    assert store.read_actions(OPEN, limit=5).readings == ()
    assert store.read_watch().entries == 0


def test_without_a_database_for_its_history_it_is_read_and_not_settled(polign_server: RunningPolign) -> None:
    collection = f"c{uuid4().hex[:12]}"
    with closing(open_store(polign_server.url(collection))) as store, PolignWriter(polign_server, collection) as recall:
        ref = recall.action("a", 1)
        before = look_at_world(store, recall, "a")

        for attempt in (
            lambda: decide(store, ref),
            lambda: store.append_entry(NewEntry(kind="refused", actor="ana")),
            store.prepare,
        ):
            with pytest.raises(StoreReadOnly, match="set DATABASE_URL"):
                attempt()

        assert look_at_world(store, recall, "a") == before
        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        assert (store.list_entries(limit=5), store.find_settled_entry("decision-1"), list(store.iterate_links())) == (
            (),
            None,
            [],
        )
        assert (store.read_head().number, store.read_head().hash) == (0, GENESIS)
        assert (store.check().why_not, store.check().is_prepared) == (NO_ENTRIES, False)


def test_prepare_makes_the_history_in_the_consoles_database(polign_server: RunningPolign, pg_url: str) -> None:
    collection = f"c{uuid4().hex[:12]}"
    url = polign_server.url(collection)
    with closing(open_store(url, entries_url=pg_url)) as store, PolignWriter(polign_server, collection) as recall:
        ref = recall.action("a", 1)
        before = look_at_world(store, recall, "a")
        with pytest.raises(StoreReadOnly, match="prepare_store main"):
            decide(store, ref)
        assert look_at_world(store, recall, "a") == before
        assert "prepare_store main" in store.check().why_not

        assert store.prepare(index=True) == (
            "schema settle_audit: created (version 2)",
            "index of open actions: not needed, polign_db has none",
        )

        assert store.prepare() == ("schema settle_audit: in place (version 2)",)
        assert store.check().can_settle
        assert decide(store, ref).turn_seq == 1
        assert store.read_watch().entries == 2
    with RecallWriter(pg_url) as console:
        assert console.run("SELECT count(*) FROM pg_tables WHERE schemaname = 'recall'") == [(0,)]


def test_where_the_history_cannot_be_reached_records_are_still_read(polign_server: RunningPolign) -> None:
    collection = f"c{uuid4().hex[:12]}"
    nowhere = "postgres://nobody:geheim-123@127.0.0.1:9/x"
    with (
        closing(open_store(polign_server.url(collection), entries_url=nowhere)) as store,
        PolignWriter(polign_server, collection) as recall,
    ):
        ref = recall.action("a", 1)
        before = recall.lease_of("a")

        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        assert store.read_watch().entries == 0
        assert "the history of its decisions: no connection" in store.check().why_not
        with pytest.raises(StoreUnavailable, match="no connection") as caught:
            decide(store, ref)
        assert not caught.value.may_be_written
        assert recall.lease_of("a") == before


def test_each_store_of_a_console_has_a_chain_of_its_own(polign_server: RunningPolign, records_url: str) -> None:
    """By name and collection; a PostgreSQL store in the same database has its own too."""
    one, other = f"c{uuid4().hex[:12]}", f"c{uuid4().hex[:12]}"
    stores = [
        open_store(polign_server.url(collection), name=name, entries_url=records_url)
        for name, collection in (("north", one), ("south", one), ("north", other))
    ]
    for store in stores:
        with closing(store):
            store.append_entry(NewEntry(kind="refused", actor="operator ana"))

            assert (store.read_head().number, verify(store).is_intact) == (1, True)
    assert [store.read_head().chain for store in stores] == [
        f"polign:north:{one}_agents", f"polign:south:{one}_agents", f"polign:north:{other}_agents",
    ]  # fmt: skip


def test_the_watch_moves_with_every_write_and_with_every_entry(polign: Polign) -> None:
    store, recall = polign
    revisions = [store.read_watch().revision]
    recall.action("a", 1)
    revisions.append(store.read_watch().revision)
    recall.turn("a", 1)
    revisions.append(store.read_watch().revision)

    assert len(set(revisions)) == 3
    assert all(0 <= revision < 2**63 for revision in revisions)
    before = store.read_watch()
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))
    assert (store.read_watch().entries, before.next_expiry) == (before.entries + 1, None)


def test_a_watch_searches_no_records(polign: Polign, polign_server: RunningPolign) -> None:
    _, recall = polign
    collection = recall.collection.removesuffix("_agents")
    with Gateway(polign_server.base) as gateway, closing(PolignStore(f"polign+{gateway.base}?collection={collection}")) as store:
        store.read_watch()

        assert gateway.asked == [f"GET /v1/collections/{recall.collection}/watermark"]


def test_times_are_the_servers_own(polign: Polign) -> None:
    store, recall = polign
    ref = recall.action("a", 1)
    earliest = store.read_watch().read_at  # in whole seconds, as HTTP says it

    settled = decide(store, ref)

    action, (turn,) = queries.get_action(store, ref).action, store.list_turns("a", limit=1)
    assert action is not None
    assert action.ended_at is not None
    assert isinstance(turn, Turn)
    assert earliest <= action.ended_at == turn.at <= settled.entry.at
    with pytest.raises(ActionNotOpen):
        decide(store, ref, an_end(ActionStatus.FAILED, "no"))


def test_an_agent_that_no_column_could_hold_is_read_and_not_settled(polign: Polign, pg_server: Postgres) -> None:
    store, recall = polign
    recall.action("a\x00b", 1)

    assert store.get_action("a\x00b", 1).action.agent == "a\x00b"
    with pytest.raises(Exception, match="has no action 1"):
        decide(store, ActionRef("main", "a\x00b", 1))
