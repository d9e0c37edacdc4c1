"""An operator and a resuming agent reach for the same agent at the same moment: one of the two orders, and nothing between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest
from polign_recall import ResumedAgent

from actions.errors import ActionNotOpen, LeaseLive
from actions.records import Action, ActionRef, ActionStatus, Settled, Turn
from actions.settle import settle
from actions.store.base import ActionStore
from tests.interop.decisions import OPERATOR, an_end, chain_of, decide, settled_entries
from tests.interop.driver import PATIENCE, Recall, crash, lease_of, records_of, wait_for_lock_waiters

pytestmark = pytest.mark.interop

T = TypeVar("T")
ROUNDS = 16
END = an_end(ActionStatus.DONE, result="message-id 1204")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as threads:
        yield threads


def begin_and_crash(recall: Recall, agent: str) -> None:
    running = recall.resume(agent)
    running.record_turn("user", "Refund order 881")
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    crash(running, recall.url)


def operator(store: ActionStore, agent: str) -> Settled | LeaseLive | ActionNotOpen:
    try:
        return settle(
            store, ActionRef("main", agent, 1), END, actor=OPERATOR, decision_id=f"decision-{agent}-{threading.get_ident()}"
        )
    except (LeaseLive, ActionNotOpen) as refused:
        return refused


def assert_operator_was_first(store: ActionStore, resumed: ResumedAgent, settled: object) -> None:
    assert isinstance(settled, Settled)
    assert resumed.context.pending_actions == ()
    assert [(t.seq, t.content) for t in resumed.context.recent_turns] == [(1, "Refund order 881"), (2, "message-id 1204")]
    assert settled_entries(store, resumed.agent_id, 1) == 1
    assert resumed.record_turn("user", "go on").seq == 3


def assert_agent_was_first(store: ActionStore, url: str, resumed: ResumedAgent, refused: object) -> None:
    """We were refused and wrote nothing; once the agent is free, the same decision goes through."""
    agent = resumed.agent_id
    assert isinstance(refused, LeaseLive)
    assert refused.lease.holder == lease_of(url, agent)[0]
    assert [(a.seq, a.status) for a in resumed.pending_actions()] == [(1, "unknown")]
    assert resumed.context.turn_seq == 1
    assert settled_entries(store, agent, 1) == 0
    assert set(records_of(url, agent)) == {f"{agent}:act:1", f"{agent}:turn:1"}
    assert resumed.record_turn("user", "go on").seq == 2
    resumed.release()
    assert decide(store, agent, 1, END).turn_seq == 3


def assert_settled_once(store: ActionStore, agent: str) -> None:
    action = store.get_action(agent, 1).action
    assert isinstance(action, Action)
    assert action.status is ActionStatus.DONE
    turns = store.list_turns(agent, limit=10)
    assert sum(isinstance(turn, Turn) and turn.content == "message-id 1204" for turn in turns) == 1
    assert [turn.seq for turn in turns] == list(range(len(turns), 0, -1))


def test_operator_against_a_resuming_agent(recall: Recall, store: ActionStore, pool: ThreadPoolExecutor) -> None:
    client = recall.open()
    for number in range(ROUNDS):
        agent = f"support-{number}"
        begin_and_crash(recall, agent)
        barrier = threading.Barrier(2, timeout=PATIENCE.total_seconds())
        resuming = pool.submit(after, barrier, lambda agent=agent: client.resume(agent))
        deciding = pool.submit(after, barrier, lambda agent=agent: operator(store, agent))
        resumed, answer = result(resuming), result(deciding)

        if isinstance(answer, Settled):
            assert_operator_was_first(store, resumed, answer)
        else:
            assert_agent_was_first(store, recall.url, resumed, answer)
        assert_settled_once(store, agent)
    assert chain_of(store).is_intact
    assert chain_of(store).problem == ""


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # MongoDB lets nobody wait in a queue
@pytest.mark.parametrize("agent_first", [True, False], ids=["agent-first", "operator-first"])
def test_both_orders_happen_when_the_lease_row_is_waited_for(
    recall: Recall, store: ActionStore, pool: ThreadPoolExecutor, agent_first: bool
) -> None:
    """Somebody else's lock on the lease row makes both wait at their first write; PostgreSQL then lets them in as they came."""
    begin_and_crash(recall, "support-7")
    client = recall.open()

    def resume() -> ResumedAgent:
        return client.resume("support-7")

    def settle_it() -> Settled | LeaseLive | ActionNotOpen:
        return operator(store, "support-7")

    first: Callable[[], Any] = resume if agent_first else settle_it
    second: Callable[[], Any] = settle_it if agent_first else resume
    with psycopg.connect(recall.url) as blocker, psycopg.connect(recall.url, autocommit=True) as observer:
        blocker.execute("SELECT 1 FROM recall.recall_leases WHERE name = 'support-7' FOR UPDATE")
        answers = [pool.submit(first)]
        wait_for_lock_waiters(observer, 1)
        answers.append(pool.submit(second))
        wait_for_lock_waiters(observer, 2)
        blocker.rollback()
    one, other = (result(answer) for answer in answers)

    if agent_first:
        assert_agent_was_first(store, recall.url, one, other)
    else:
        assert_operator_was_first(store, other, one)
    assert_settled_once(store, "support-7")
    assert chain_of(store).is_intact


def test_two_operators_and_a_resuming_agent(recall: Recall, store: ActionStore, pool: ThreadPoolExecutor) -> None:
    client = recall.open()
    for number in range(8):
        agent = f"billing-{number}"
        begin_and_crash(recall, agent)
        barrier = threading.Barrier(3, timeout=PATIENCE.total_seconds())
        resuming = pool.submit(after, barrier, lambda agent=agent: client.resume(agent))
        deciding = [pool.submit(after, barrier, lambda agent=agent: operator(store, agent)) for _ in range(2)]
        resumed, answers = result(resuming), [result(one) for one in deciding]

        won = [answer for answer in answers if isinstance(answer, Settled)]
        lost = [answer for answer in answers if not isinstance(answer, Settled)]
        assert len(won) <= 1
        assert settled_entries(store, agent, 1) == len(won)
        if won:
            assert_operator_was_first(store, resumed, won[0])
            assert_settled_once(store, agent)
        else:
            assert all(isinstance(answer, LeaseLive) for answer in lost)
            assert [a.status for a in resumed.pending_actions()] == ["unknown"]
            assert resumed.context.turn_seq == 1
    assert chain_of(store).is_intact


def after(barrier: threading.Barrier, act: Callable[[], T]) -> T:
    barrier.wait()
    return act()


def result(future: Future[T]) -> T:
    return future.result(timeout=PATIENCE.total_seconds())
