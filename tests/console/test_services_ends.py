"""Ends that are not ours: found by comparing with what was open, and entered once, however many look and wherever one of them dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection

from actions.errors import StoreUnavailable
from actions.records import ActionRef, ActionStatus, Entry, Reading
from actions.store.memory import MemoryStore
from console.models import SeenEnd
from console.services import ends
from console.services.decide import DecisionRequest, decide
from console.services.ends import Seen, observe_end, sweep_ends
from console.stores import console_chain, get_store
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.gestures import verify
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db

STARTED = Seen(ActionStatus.STARTED, 1)


def look(agent: str = "m-1", seq: int = 1, before: Seen = STARTED) -> SeenEnd | None:
    return observe_end(get_store("main"), ActionRef("main", agent, seq), before)


def observed() -> list[Entry]:
    return [entry for entry in get_store("main").list_entries(limit=50) if entry.kind == "observed"]


def settle_here(ref: ActionRef, by: User) -> None:
    decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id=f"test-{uuid4()}"), by=by)


def sent_to(records: RecordWriter, *calls: tuple[str, int]) -> None:
    for agent, seq in calls:
        records.action(agent, seq)
    sweep_ends()


def test_an_end_that_its_agent_wrote_is_entered_once(records: RecordWriter) -> None:
    records.action("m-1", 1, status="done", written_epoch=4, resolution="asked the mailbox")

    first, again = look(), look()

    assert first is not None
    assert again == first
    assert (first.tool, first.status, first.written_epoch, first.entry_number) == ("send_email", "done", 4, 1)
    (entry,) = observed()
    assert (entry.actor, entry.agent, entry.seq, entry.tool, entry.outcome) == ("system watcher", "m-1", 1, "send_email", "done")
    assert entry.reason == "asked the mailbox"
    assert entry.detail["before"] == {"status": "started", "epoch": 1}
    assert SeenEnd.objects.count() == 1


def test_an_end_of_ours_an_open_call_and_what_is_not_there_are_not_entered(records: RecordWriter, ana: User) -> None:
    settle_here(records.action("m-1", 1), ana)
    records.action("m-1", 2)
    records.action("m-1", 3, body="{")

    assert [look(seq=seq) for seq in (1, 2, 3, 4)] == [None] * 4
    assert look(seq=2, before=Seen(ActionStatus.UNKNOWN, 1)) is None
    assert not SeenEnd.objects.exists()
    assert observed() == []


def test_a_call_that_a_resume_could_not_tell_is_entered_and_so_is_its_end(records: RecordWriter) -> None:
    records.action("m-1", 1, status="unknown", written_epoch=3)
    look()
    records.action("m-1", 1, status="failed", written_epoch=5)

    look(before=Seen(ActionStatus.UNKNOWN, 3))

    assert [(entry.outcome, entry.detail["after"]["epoch"]) for entry in reversed(observed())] == [("unknown", 3), ("failed", 5)]  # type: ignore[index]


def test_what_a_resolution_holds_is_redacted(memory: RecordWriter) -> None:
    memory.action("m-1", 1, status="done", written_epoch=2, resolution="asked with password=hunter22222")

    look()

    assert "hunter22222" not in observed()[0].text


def test_a_sweep_enters_what_ended_since_the_one_before_with_nobody_watching(records: RecordWriter, ana: User) -> None:
    records.action("old", 1, status="done")
    sent_to(records, ("m-1", 1), ("m-1", 2), ("m-2", 1), ("m-3", 1))
    records.action("m-1", 1, status="abandoned", written_epoch=3, cls="pure")
    records.action("m-1", 2, status="unknown", written_epoch=3)
    settle_here(ActionRef("main", "m-3", 1), ana)

    assert sweep_ends() == 2
    assert sweep_ends() == 0

    assert [(e.agent, e.seq, e.outcome) for e in reversed(observed())] == [("m-1", 1, "abandoned"), ("m-1", 2, "unknown")]
    marks = SeenEnd.objects.filter(entry_number=None).order_by("agent", "seq")
    assert list(marks.values_list("agent", "seq", "status")) == [("m-1", 2, "was unknown"), ("m-2", 1, "was started")]
    records.action("m-1", 2, status="done", written_epoch=4)
    assert sweep_ends() == 1
    assert observed()[0].outcome == "done"


def test_an_end_in_the_year_9999_keeps_no_other_from_being_entered(records: RecordWriter) -> None:
    sent_to(records, ("m-1", 1), ("m-2", 1))
    records.action("m-1", 1, status="done", written_epoch=3, ended_at="9999-12-31T23:59:59.5Z")
    records.action("m-2", 1, status="failed", written_epoch=3)

    assert sweep_ends() == 2

    assert {(e.agent, e.outcome, "ended_at" in e.detail["after"]) for e in observed()} == {  # type: ignore[operator]
        ("m-1", "done", False),
        ("m-2", "failed", True),
    }
    assert sweep_ends() == 0


def test_a_sweep_reads_nothing_of_a_store_that_did_not_move(memory: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_to(memory, ("m-1", 1))
    monkeypatch.setattr(get_store("main"), "read_actions", None)

    assert sweep_ends() == 0


def test_a_sweep_asks_for_no_closed_call_again(memory: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for seq in range(1, 40):
        memory.action("m-1", seq, status="done")
    sent_to(memory, ("m-1", 40), ("m-1", 41))
    memory.action("m-1", 40, status="done", written_epoch=2)
    asked: list[int] = []
    get_action = MemoryStore.get_action

    def noted(store: MemoryStore, agent: str, seq: int) -> Reading:
        asked.append(seq)
        return get_action(store, agent, seq)

    monkeypatch.setattr(MemoryStore, "get_action", noted)

    assert sweep_ends() == 1
    assert asked == [40]


def test_more_ends_than_one_sweep_takes_are_the_next_ones(memory: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "ENDS_PER_SWEEP", 2)
    sent_to(memory, *(("m-1", seq) for seq in range(1, 6)))
    for seq in range(1, 6):
        memory.action("m-1", seq, status="done", written_epoch=2)

    assert [sweep_ends() for _ in range(4)] == [2, 2, 1, 0]
    assert sorted(entry.seq or 0 for entry in observed()) == [1, 2, 3, 4, 5]


def test_an_open_call_that_a_cut_list_leaves_out_is_no_end(memory: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_to(memory, ("m-1", 1), ("m-2", 1))
    monkeypatch.setattr(ends, "MAX_ROWS_PER_STORE", 1)
    memory.action("m-1", 2)

    assert sweep_ends() == 0
    assert observed() == []
    assert SeenEnd.objects.filter(status="was started", agent="m-2").count() == 1


@pytest.mark.parametrize("dies", ["before the entry", "between entry and row"])
def test_a_watcher_that_dies_in_between_leaves_one_entry_in_the_end(
    records: RecordWriter, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    sent_to(records, ("m-1", 1))
    records.action("m-1", 1, status="done", written_epoch=2)
    store = get_store("main")

    def die(*args: object) -> None:
        if dies != "before the entry":
            type(store).append_observed(store, args[0])  # type: ignore[arg-type]
        raise StoreUnavailable("main", "killed", may_be_written=True)

    with monkeypatch.context() as killed:
        killed.setattr(store, "append_observed", die)
        with pytest.raises(StoreUnavailable):
            look()
        assert sweep_ends() == 0

    sweep_ends()

    assert [entry.seq for entry in observed()] == [1]
    assert list(SeenEnd.objects.values_list("status", "entry_number")) == [("done", 1)]
    assert verify(store).is_intact


@pytest.mark.django_db(transaction=True)
def test_where_the_store_can_only_be_read_the_end_stands_once_in_the_consoles_own_history(memory: MemoryWriter) -> None:
    memory.kept._is_prepared = False
    memory.action("m-1", 1, status="failed", written_epoch=2)
    before = console_chain().read_head().number

    first, again = look(), look()

    assert first == again
    (entry,) = console_chain().list_entries(limit=9, kinds=("observed",))
    assert (entry.number, entry.agent, entry.outcome) == (before + 1, "m-1", "failed")
    assert (entry.detail["store"], entry.detail["seq"]) == ("main", 1)
    assert first is not None
    assert first.entry_number == entry.number
    memory.kept._is_prepared = True
    look()
    assert observed() == []


@pytest.mark.django_db(transaction=True)
def test_of_many_who_look_at_one_moment_one_enters_it(postgres: RecallWriter) -> None:
    sent_to(postgres, *(("m-1", seq) for seq in range(1, 9)))
    for seq in range(1, 9):
        postgres.action("m-1", seq, status="done", written_epoch=2)
    sweeps: list[Callable[[], object]] = [sweep_ends, sweep_ends]
    watchers: list[Callable[[], object]] = [lambda: [look(seq=seq) for seq in range(1, 9)] for _ in range(3)]
    gate = threading.Barrier(5)

    def run(work: Callable[[], object]) -> None:
        try:
            gate.wait()
            work()
        finally:
            connection.close()

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(run, sweeps + watchers))

    assert sorted(entry.seq or 0 for entry in observed()) == list(range(1, 9))
    assert SeenEnd.objects.filter(entry_number__gt=0).count() == SeenEnd.objects.count() == 8
    report = verify(get_store("main"))
    assert (report.is_intact, report.entries) == (True, 8)
