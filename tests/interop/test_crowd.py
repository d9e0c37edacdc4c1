"""Eight operators and eight resuming agents, all at once: one end, one turn and one entry for each action, and a chain that holds."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from polign_recall import Client

from actions.errors import ActionNotOpen, LeaseLive, StoreUnavailable
from actions.records import Action, ActionRef, ActionStatus, Turn
from actions.settle import settle
from actions.store import open_store
from actions.store.base import ActionStore
from tests.interop.decisions import OPERATOR, an_end, chain_of, settled_entries
from tests.interop.driver import PATIENCE, Recall, expire_lease, kill

pytestmark = pytest.mark.interop

CROWD = 8
AGENTS = [f"agent-{number}" for number in range(CROWD)]
RESULT = "message-id 1204"
END = an_end(ActionStatus.DONE, result=RESULT)


def all_crash(recall: Recall) -> None:
    """One machine ran them all, and went away inside their calls."""
    machine = recall.open()
    running = [machine.resume(agent) for agent in AGENTS]
    for agent in running:
        agent.record_turn("user", "Refund order 881")
        agent.begin_action("send_email", "external", {"to": "ann@example.com"})
    kill(running[0])
    for name in AGENTS:
        expire_lease(recall.url, name)


def operator(url: str, number: int, start: threading.Barrier) -> int:
    """Decides about every agent, beginning with another one than the others do, and asks again while its process is alive. How often it
    was the first."""
    with closing(open_store(url, name="main")) as store:
        store.read_watch()
        start.wait()
        return sum(decides_first(store, AGENTS[(number + place) % CROWD], number) for place in range(CROWD))


def decides_first(store: ActionStore, agent: str, number: int) -> bool:
    while True:
        try:
            settle(store, ActionRef("main", agent, 1), END, actor=OPERATOR, decision_id=f"decision-{agent}-{number}")
        except (
            LeaseLive,
            StoreUnavailable,
        ):  # on a busy machine it is too long behind the others, and asks again under the same id
            continue
        except ActionNotOpen:
            return False
        return True


def next_process(client: Client, agent: str, start: threading.Barrier) -> int:
    """Resumes, says something, and hands its lease over; the number of its turn."""
    start.wait()
    resumed = client.resume(agent)
    turn = resumed.record_turn("user", "go on")
    resumed.release()
    return turn.seq


def test_a_crowd_ends_every_action_once(recall: Recall, store: ActionStore, url: str) -> None:
    all_crash(recall)
    clients = [recall.open() for _ in AGENTS]
    start = threading.Barrier(2 * CROWD, timeout=PATIENCE.total_seconds())

    with ThreadPoolExecutor(2 * CROWD) as crowd:
        deciding = [crowd.submit(operator, url, number, start) for number in range(CROWD)]
        resuming = [crowd.submit(next_process, client, agent, start) for client, agent in zip(clients, AGENTS, strict=True)]
        won = [decision.result() for decision in deciding]
        told = [turn.result() for turn in resuming]

    assert sum(won) == CROWD
    for agent, own in zip(AGENTS, told, strict=True):
        action = store.get_action(agent, 1).action
        assert isinstance(action, Action)
        assert (action.status, action.result) == (ActionStatus.DONE, RESULT)
        turns = {turn.seq: turn.content for turn in store.list_turns(agent, limit=9) if isinstance(turn, Turn)}
        assert turns == {1: "Refund order 881", own: "go on", 5 - own: RESULT}
        assert settled_entries(store, agent, 1) == 1
        resumed = recall.open().resume(agent).context
        assert (resumed.pending_actions, resumed.turn_seq) == ((), 3)
    assert (chain_of(store).problem, chain_of(store).entries) == ("", CROWD)
