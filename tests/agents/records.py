"""What stands in a store about one agent, and how a process of it dies without a word: for tests of the agents' side."""

from __future__ import annotations

from actions.records import Action, ActionClass, ActionRef, ActionStatus, Turn
from actions.settle import make_end, settle
from actions.store.base import ActionStore, AgentStore
from agents.harness import DurableAgent

AGENT = "support-7"


def actions_of(store: AgentStore, agent: str = AGENT) -> list[Action]:
    """In the order of their numbers."""
    found = [reading.action for reading in store.list_agent_actions(agent, limit=200)]
    assert all(isinstance(action, Action) for action in found)
    return [action for action in reversed(found) if isinstance(action, Action)]


def turns_of(store: AgentStore, agent: str = AGENT) -> list[Turn]:
    """In the order of their numbers."""
    return [turn for turn in reversed(store.list_turns(agent, limit=200)) if isinstance(turn, Turn)]


def interrupted(store: AgentStore, tool: str, args: object, action_class: str | ActionClass, agent: str = AGENT) -> Action:
    """An action that a process began before it was gone."""
    with DurableAgent.resume(store, agent) as died:
        return died.begin_action(tool, args, action_class)


def operator_settles(store: ActionStore, seq: int, status: ActionStatus, *, result: str = "", agent: str = AGENT) -> None:
    """What a person's click in the console writes, while nobody holds the agent."""
    end = make_end(status, "looked it up", actor="operator ana", result=result)
    settle(store, ActionRef(store.name, agent, seq), end, actor="operator ana", decision_id=f"decision-{seq:08}")
