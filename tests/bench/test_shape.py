"""The benchmark's data: exact in its totals, the same each time, and readable as Recall's own."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from actions.records import Action
from actions.store import codec
from bench.shape import Life, Shape, in_doubt, lives, records

SMALL = Shape(agents=60, actions=1_200, open_actions=30, turns=700)
DECODERS: dict[str, Any] = {
    "action": codec.decode_action,
    "turn": codec.decode_turn,
    "output": codec.decode_output,
    "working_state": codec.decode_working_state,
    "working_state_head": codec.decode_working_state,
}


@pytest.fixture(scope="module")
def decoded() -> list[Any]:
    rows = [row for life in lives(SMALL) for row in records(life, SMALL.seed)]
    return [DECODERS[metadata["record"]](record_id, json.loads(json.dumps(metadata))) for record_id, metadata in rows]


def test_totals_are_met_exactly(decoded: list[Any]) -> None:
    actions = [record for record in decoded if isinstance(record, Action)]

    assert len(actions) == SMALL.actions
    assert sum(action.is_open for action in actions) == SMALL.open_actions
    assert Counter(type(record).__name__ for record in decoded)["Turn"] == SMALL.turns
    assert len({action.agent for action in actions}) == SMALL.agents


def test_leases_come_in_all_states_and_open_calls_agree_with_them() -> None:
    agents = lives(Shape())

    assert Counter(life.lease for life in agents).keys() == {"live", "expired", "released"}
    assert {life.open_status for life in agents if life.lease == "released"} == {"unknown"}
    assert {life.open_status for life in agents if life.lease != "released"} == {"started"}
    assert {life.open_actions for life in agents} == {0, 1, 2}


def test_the_same_seed_makes_the_same_data_and_another_seed_others() -> None:
    life = Life(agent="agent-1", actions=20, open_actions=1, turns=10, lease="expired")

    assert list(records(life, 1)) == list(records(life, 1))
    assert list(records(life, 1)) != list(records(life, 2))
    assert lives(SMALL) == lives(SMALL)
    assert lives(SMALL) != lives(Shape(agents=60, actions=1_200, open_actions=30, turns=700, seed=1))


def test_the_pages_of_many_records_are_recalls() -> None:
    life = Life(agent="agent-1", actions=130, open_actions=0, turns=130, lease="released")
    pages = {record_id: metadata.get("page") for record_id, metadata in records(life, 1)}

    assert [pages[f"agent-1:turn:{seq}"] for seq in (1, 64, 65, 128, 129)] == ["0", "0", "1", "1", "2"]
    assert [pages[f"agent-1:act:{seq}"] for seq in (1, 64, 65, 128, 129)] == ["0", "0", "1", "1", "2"]


def test_shapes_with_prefixes_of_their_own_share_no_agent_and_those_in_doubt_can_be_decided_at_once() -> None:
    late = lives(Shape(agents=5, actions=9, open_actions=3, turns=0, prefix="late"))
    doubtful = in_doubt(4, "spare")

    names = [life.agent for life in (*lives(SMALL), *late, *doubtful)]
    assert len(set(names)) == len(names)
    assert all((life.lease, life.open_actions, life.open_status) == ("released", 1, "unknown") for life in doubtful)
    opened = [meta for life in doubtful for _, meta in records(life, 1) if meta.get("status") == "unknown"]
    assert [(meta["seq"], meta["class"]) for meta in opened] == [(2, "external")] * 4
