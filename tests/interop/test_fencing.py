"""Who may write after whom: a frozen holder, a live one, one that waits for its lease. All of them real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from polign_recall import RecallError, ResumedAgent

from actions import queries
from actions.errors import LeaseLive
from actions.records import ActionRef, ActionState, ActionStatus, Settled, Turn
from actions.store.base import ActionStore
from actions.times import format_rfc3339
from tests.interop.decisions import an_end, chain_of, decide, settled_entries
from tests.interop.driver import (
    PATIENCE,
    Recall,
    crash,
    expire_lease,
    freeze,
    kill,
    lease_of,
    records_of,
    revision,
    thaw,
    wait_until_true,
)
from tests.interop.rows import rows_of

pytestmark = pytest.mark.interop

AGENT = "deploy-7"
END = an_end(ActionStatus.DONE, result="message-id 1204")
LATE_WRITES: dict[str, Callable[[ResumedAgent], object]] = {
    "end_action": lambda agent: agent.end_action(1, "failed", error="timeout"),
    "record_turn": lambda agent: agent.record_turn("tool", "sent", "send_email"),
    "begin_action": lambda agent: agent.begin_action("send_email", "external"),
    "working_state": lambda agent: agent.update_working_state(goal="overwrites"),
}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as threads:
        yield threads


def begin(recall: Recall, **options: Any) -> ResumedAgent:
    running = recall.resume(AGENT, **options)
    running.record_turn("user", "Tell Ann")
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    return running


def is_free(store: ActionStore) -> bool:
    lease = store.find_lease(AGENT)
    assert lease is not None
    return not lease.is_live


def assert_only_our_turn_stands(recall: Recall, store: ActionStore) -> None:
    turns = store.list_turns(AGENT, limit=10)
    assert [(t.seq, t.role, t.content) for t in turns if isinstance(t, Turn)] == [
        (2, "tool", "message-id 1204"),
        (1, "user", "Tell Ann"),
    ]
    assert set(records_of(recall.url, AGENT)) == {f"{AGENT}:act:1", f"{AGENT}:turn:1", f"{AGENT}:turn:2"}
    assert queries.get_action(store, ActionRef("main", AGENT, 1)).state is ActionState.DONE
    assert settled_entries(store, AGENT, 1) == 1
    assert chain_of(store).is_intact


def test_a_holder_frozen_past_its_lease_cannot_write_after_us(recall: Recall, store: ActionStore) -> None:
    frozen = begin(recall, lease_ttl=1)
    freeze(frozen)
    wait_until_true(lambda: is_free(store), "the frozen holder's lease to expire")
    decide(store, AGENT, 1, END)
    before = records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)
    thaw(frozen)

    for name, write in LATE_WRITES.items():
        with pytest.raises(RecallError) as refused:
            write(frozen)
        assert refused.value.code == "lease_lost", name

    assert (records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)) == before
    assert_only_our_turn_stands(recall, store)
    resumed = recall.resume(AGENT)
    assert resumed.context.pending_actions == ()
    assert resumed.record_turn("user", "go on").seq == 3


@pytest.mark.parametrize("name", ["end_action", "record_turn"])
def test_a_write_that_waits_inside_the_frozen_holder_comes_too_late(
    recall: Recall, store: ActionStore, pool: ThreadPoolExecutor, name: str
) -> None:
    """The request lies in the binary's input while we settle; it is answered when the binary thaws."""
    frozen = begin(recall, lease_ttl=1)
    freeze(frozen)
    late = pool.submit(LATE_WRITES[name], frozen)
    wait_until_true(lambda: is_free(store), "the frozen holder's lease to expire")
    decide(store, AGENT, 1, END)
    assert not late.done()
    thaw(frozen)

    assert code_of(late) == "lease_lost"
    assert_only_our_turn_stands(recall, store)


def code_of(late: Future[object]) -> str:
    with pytest.raises(RecallError) as refused:
        late.result(timeout=PATIENCE.total_seconds())
    return refused.value.code


@pytest.mark.parametrize("name", ["record_turn", "begin_action", "working_state"])
def test_a_holder_that_believes_its_lease_is_fresh_is_fenced_in_the_database(
    recall: Recall, store: ActionStore, name: str
) -> None:
    """Its minute has barely begun by its own clock, so it does not renew before it writes: only the fence stops it."""
    running = begin(recall, lease_ttl=60)
    expire_lease(recall.url, AGENT)
    decide(store, AGENT, 1, END)

    with pytest.raises(RecallError, match="write fenced") as refused:
        LATE_WRITES[name](running)

    assert refused.value.code == "lease_lost"
    assert_only_our_turn_stands(recall, store)


def test_a_holder_that_believes_its_lease_is_fresh_is_told_that_its_call_has_ended(recall: Recall, store: ActionStore) -> None:
    """Ending reads the record before it writes: it never comes to the fence."""
    running = begin(recall, lease_ttl=60)
    expire_lease(recall.url, AGENT)
    decide(store, AGENT, 1, END)

    with pytest.raises(RecallError, match="already ended done"):
        running.end_action(1, "failed", error="timeout")

    assert_only_our_turn_stands(recall, store)


def test_a_holder_that_lost_its_lease_to_us_cannot_release_the_next_ones(recall: Recall, store: ActionStore) -> None:
    old = begin(recall, lease_ttl=60)
    expire_lease(recall.url, AGENT)
    decide(store, AGENT, 1, END)
    successor = recall.resume(AGENT)
    held = lease_of(recall.url, AGENT)

    old.release()

    assert lease_of(recall.url, AGENT) == held
    assert held[2:] == (True, False)
    assert successor.record_turn("user", "go on").seq == 3


def test_a_live_lease_refuses_us_names_its_holder_and_nothing_is_written(recall: Recall, store: ActionStore) -> None:
    running = begin(recall, lease_ttl=60)
    before = records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)

    with pytest.raises(LeaseLive) as refused:
        decide(store, AGENT, 1, END)
    with pytest.raises(RecallError, match="lease is held") as second:
        recall.resume(AGENT)

    lease = refused.value.lease
    until = format_rfc3339(lease.expires_at // 1_000_000_000 * 1_000_000_000)
    assert f"held by {lease.holder!r} until {until}".replace("'", '"') in str(second.value)
    assert lease.epoch == running.context.epoch
    assert lease.is_live
    assert (records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)) == before
    assert settled_entries(store, AGENT, 1) == 0
    assert running.end_action(1, "done", "message-id 77").result == "message-id 77"


def test_a_killed_holders_lease_is_respected_until_it_expires(recall: Recall, store: ActionStore) -> None:
    """The process is dead, but nobody can know before its time is over."""
    running = begin(recall, lease_ttl=60)
    kill(running)
    with pytest.raises(LeaseLive):
        decide(store, AGENT, 1, END)
    rows_of(recall.url).expire_lease(AGENT, in_s=0.7)
    lease = store.find_lease(AGENT)
    assert lease is not None

    def is_settled() -> bool:
        with suppress(LeaseLive):
            settled.append(decide(store, AGENT, 1, END))
        return bool(settled)

    settled: list[Settled] = []
    wait_until_true(is_settled, "the dead holder's lease to expire")

    assert settled[0].entry.at >= lease.expires_at
    assert_only_our_turn_stands(recall, store)


def test_an_agent_that_waits_for_its_lease_gets_it_after_us_and_sees_our_turn(recall: Recall, store: ActionStore) -> None:
    dead = begin(recall, lease_ttl=60)
    kill(dead)
    waiting = recall.resume(AGENT, defer_lease=True)
    assert [a.status for a in waiting.context.pending_actions] == ["started"]
    assert not waiting.acquire()
    with pytest.raises(RecallError) as refused:
        waiting.record_turn("user", "too early")
    assert refused.value.code == "lease_not_held"
    expire_lease(recall.url, AGENT)

    decide(store, AGENT, 1, END)

    assert waiting.acquire()
    assert waiting.context.pending_actions == ()
    assert [(t.seq, t.content) for t in waiting.context.recent_turns] == [(1, "Tell Ann"), (2, "message-id 1204")]
    assert waiting.record_turn("user", "go on").seq == 3
    assert waiting.begin_action("send_email", "external").seq == 2
    with pytest.raises(RecallError, match="already ended done"):
        waiting.end_action(1, "failed", error="timeout")


def test_looking_never_disturbs_a_live_agent(recall: Recall, store: ActionStore) -> None:
    """No read takes a lock on a lease row, changes a lease, or moves the revision."""
    running = begin(recall, lease_ttl=60)
    before = records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)

    queries.list_actions([store], queries.ActionFilter(), limit=50)
    queries.read_agent(store, AGENT)
    queries.get_action(store, ActionRef("main", AGENT, 1))
    store.read_watch()
    store.check()

    assert (records_of(recall.url, AGENT), revision(recall.url), lease_of(recall.url, AGENT)) == before
    assert running.end_action(1, "done").status == "done"


def test_a_resume_after_a_settle_needs_no_wait(recall: Recall, store: ActionStore) -> None:
    crash(begin(recall, lease_ttl=60), recall.url)
    decide(store, AGENT, 1, END)

    assert recall.resume(AGENT, lease_ttl=60).context.lease_held
