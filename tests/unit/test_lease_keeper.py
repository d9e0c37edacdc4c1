"""An agent's lease in its own process: who may write under it, and when it must be taken for lost."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from typing import Any, cast

import pytest

from actions.errors import ActionsError, LeaseLost
from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from agents import harness, keeper
from agents.harness import DurableAgent
from tests.store.agent_gestures import LosingAnswers
from tests.store.gestures import until


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
        child.join(60)

        assert "of which this one is a child" in said.get()
        assert agent.record_turn("user", "mine").seq == 1


def test_a_renewal_that_is_not_answered_is_asked_for_until_the_lease_must_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the agent's own clock, which stands still here but for what the test says: how long its thread sleeps does not count."""
    now = [1_000.0]
    monkeypatch.setattr(keeper, "monotonic", lambda: now[0])
    monkeypatch.setattr(harness, "monotonic", lambda: now[0])
    memory = MemoryStore()
    store = LosingAnswers(memory)
    agent = DurableAgent.resume(cast("AgentStore", store), "a", lease_ttl=timedelta(seconds=1.2))
    assert agent._keeper is not None
    store.lose_renewals = 2
    held = agent._keeper
    now[0] += 1.1
    until(lambda: not store.lose_renewals)  # both were asked for again
    until(lambda: not held._in_doubt)
    assert not agent.is_lost
    assert agent.record_turn("user", "still mine").seq == 1

    store.lose_renewals = 10_000
    now[0] += 1.1
    until(lambda: store.lose_renewals < 9_999)
    assert not agent.is_lost
    now[0] += 0.2
    held._thread.join(60)

    assert not held._thread.is_alive()
    assert agent.is_lost
    before = dict(memory.records)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            agent.record_turn("user", "mine no more")
    agent.release()
    assert dict(memory.records) == before
