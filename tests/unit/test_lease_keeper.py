"""An agent's lease in its own process: who may write under it, and when it must be taken for lost."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from typing import Any, cast

import pytest

from actions.errors import ActionsError, LeaseLost
from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from agents.harness import DurableAgent
from tests.store.agent_gestures import LosingAnswers


def _write(agent: DurableAgent, said: Any) -> None:
    try:
        agent.record_turn("user", "from the child")
        said.put("written")
    except ActionsError as exc:
        said.put(str(exc))
    agent.release()


def test_a_child_after_a_fork_writes_nothing() -> None:
    forking = multiprocessing.get_context("fork")
    with DurableAgent.resume(MemoryStore(), "a") as agent:
        said = forking.SimpleQueue()
        child = forking.Process(target=_write, args=(agent, said))
        child.start()
        child.join(20)

        assert "of which this one is a child" in said.get()
        assert agent.record_turn("user", "mine").seq == 1


def test_a_renewal_that_is_not_answered_is_asked_for_until_the_lease_must_have_ended() -> None:
    memory = MemoryStore()
    store = LosingAnswers(memory)
    agent = DurableAgent.resume(cast("AgentStore", store), "a", lease_ttl=timedelta(seconds=1.2))
    assert agent._keeper is not None
    store.lose_renewals = 2
    held = agent._keeper
    while store.lose_renewals:  # both were asked for again
        held._stopped.wait(0.01)
    while held._in_doubt:
        held._stopped.wait(0.01)
    assert not agent.is_lost
    assert agent.record_turn("user", "still mine").seq == 1

    store.lose_renewals = 10_000
    held._thread.join(20)

    assert agent.is_lost
    before = dict(memory.records)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            agent.record_turn("user", "mine no more")
    agent.release()
    assert dict(memory.records) == before
