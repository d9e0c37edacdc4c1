"""Rows that the real binary wrote, decoded field by field: from the file, and out of PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actions import queries
from actions.digests import sha256_text
from actions.keys import action_key
from actions.records import CLOSED_STATUSES, OPEN_STATUSES, Action, ActionEnd, ActionStatus, Turn
from actions.store import codec
from actions.store.base import ActionStore
from actions.times import format_rfc3339
from actions.turns import settlement_turn
from tests.interop import expected
from tests.interop.driver import Recall
from tests.interop.expected import BILLING, LIVE, S7, S8, S9
from tests.interop.fixtures import load
from tests.interop.rows import COLLECTION, rows_of

pytestmark = pytest.mark.interop

DECODERS: dict[str, Any] = {
    "action": codec.decode_action,
    "turn": codec.decode_turn,
    "output": codec.decode_output,
    "working_state": codec.decode_working_state,
    "working_state_head": codec.decode_working_state,
    "pointer": codec.decode_pointer,
}
AGENTS = (BILLING, LIVE, S7, S8, S9)


def rows() -> dict[str, dict[str, Any]]:
    return {row["id"]: row["metadata"] for row in load("postgres")["tables"][COLLECTION]}


def opened(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with its body as a value: the order of keys is nobody's business."""
    return {**metadata, "body": json.loads(metadata["body"])}


def by_id() -> dict[str, Any]:
    wanted: dict[str, Any] = {codec.action_id(action.agent, action.seq): action for action in expected.ACTIONS}
    wanted |= {codec.turn_id(turn.agent, turn.seq): turn for turn in expected.TURNS}
    wanted |= {codec.output_id(output.agent, output.ref): output for output in expected.OUTPUTS}
    return wanted | expected.WORKING_STATES | expected.POINTERS


def test_every_record_of_the_fixture_decodes_as_written_down_by_hand() -> None:
    found = {record_id: DECODERS[metadata["record"]](record_id, metadata) for record_id, metadata in rows().items()}

    assert found == by_id()
    assert len(found) == 37


def test_times_keep_their_nine_digits() -> None:
    action = codec.decode_action(f"{S7}:act:4", rows()[f"{S7}:act:4"])

    assert action.started_at == 1_795_976_946_219_072_333
    assert format_rfc3339(action.started_at) == "2026-11-29T18:29:06.219072333Z"


def test_every_key_is_the_one_that_we_compute() -> None:
    assert {action.key for action in expected.ACTIONS} == {action_key(action.agent, action.seq) for action in expected.ACTIONS}


def test_the_fixtures_settle_is_what_we_would_write() -> None:
    """The fixture's `after` was written by hand-made SQL and read back by the real binary."""
    fixture = load("settle-postgres")
    before, after = fixture["before"]["records"], fixture["after"]["records"]
    end = ActionEnd(
        status=ActionStatus.DONE, reason="-", resolution="operator ana: found in the sent folder", result="message-id 1204"
    )
    closed = codec.decode_action(f"{S7}:act:4", after[f"{S7}:act:4"])
    told = codec.decode_turn(f"{S7}:turn:4", after[f"{S7}:turn:4"])
    assert closed.ended_at is not None

    written = codec.encode_end(before[f"{S7}:act:4"], end, epoch=2, result=end.result, ref="", at=closed.ended_at)
    words = settlement_turn(end, end.result)
    turn = Turn(agent=S7, seq=4, role="tool", name="send_email", content=words.content, brief=words.brief, at=told.at)

    assert opened(written) == opened(after[f"{S7}:act:4"])
    assert opened(codec.encode_turn(turn, epoch=2)) == opened(after[f"{S7}:turn:4"])
    assert {name for name in after if after[name] != before.get(name)} == {f"{S7}:act:4", f"{S7}:turn:4"}


# --- the same rows in PostgreSQL, in tables that the real binary made ----------------------------------------------------


@pytest.fixture
def url(pg_url: str) -> str:
    return pg_url


@pytest.fixture
def loaded(recall: Recall, store: ActionStore) -> ActionStore:
    """The fixture's rows and leases."""
    recall.resume("maker").record_turn("user", "makes the tables")
    recall.close()
    rows_of(recall.url).load(load("postgres"))
    return store


def test_actions_come_out_of_postgresql_as_written_down(loaded: ActionStore) -> None:
    open_ones = loaded.read_actions(OPEN_STATUSES, limit=100)
    closed_ones = loaded.read_actions(CLOSED_STATUSES, limit=100)
    found = [reading.action for reading in (*open_ones.readings, *closed_ones.readings)]

    assert sorted(found, key=lambda action: (action.agent, action.seq or 0)) == list(expected.ACTIONS)
    assert not open_ones.is_truncated
    assert not closed_ones.is_truncated


def test_the_five_agents_are_in_the_states_that_their_leases_say(loaded: ActionStore) -> None:
    page = queries.list_actions([loaded], queries.ActionFilter(), limit=100)

    assert {(item.agent, item.seq): item.state for item in page.items} == expected.OPEN_STATES
    assert page.total == len(expected.OPEN_STATES)
    assert page.stores == (queries.StoreStatus(name="main", in_doubt=5),)  # the external ones that no live process holds


def test_the_leases_come_out_of_postgresql_as_written_down(loaded: ActionStore) -> None:
    leases = {agent: loaded.find_lease(agent) for agent in AGENTS}

    assert {agent: (lease.holder, lease.epoch, lease.is_live, lease.is_released) for agent, lease in leases.items() if lease} == {
        BILLING: ("vm:20041:a6987f00", 2, False, True),
        LIVE: ("vm:20105:bbf7950a", 1, True, False),
        S7: ("vm:19961:3171617c", 1, False, False),
        S8: ("vm:20028:876f512b", 3, False, True),
        S9: ("vm:20086:2484e048", 3, False, True),
    }


def test_one_agents_records_come_out_of_postgresql_as_written_down(loaded: ActionStore) -> None:
    for agent in AGENTS:
        turns = [turn for turn in expected.TURNS if turn.agent == agent]
        actions = [action for action in expected.ACTIONS if action.agent == agent]
        assert loaded.list_turns(agent, limit=50) == tuple(reversed(turns))
        assert [reading.action for reading in loaded.list_agent_actions(agent, limit=50)] == actions[::-1]
        assert loaded.find_working_state(agent) == expected.WORKING_STATES.get(codec.head_id(agent))
        assert loaded.list_pointers(agent) == tuple(p for p in expected.POINTERS.values() if p and p.agent == agent)
    wanted = {(output.agent, output.ref): output for output in expected.OUTPUTS}
    assert loaded.read_outputs([*wanted, (S8, "never-stored")]) == wanted


def test_the_queue_shows_arguments_whole_and_binds_the_digest_to_them(loaded: ActionStore) -> None:
    page = queries.list_actions([loaded], queries.ActionFilter(agents=frozenset({S7})), limit=100)
    item = next(item for item in page.items if item.seq == 5)

    assert item.arguments.text == expected.LONG_EMAIL
    assert not item.is_args_missing
    assert item.digest == sha256_text(
        json.dumps(
            {
                "args": expected.LONG_EMAIL,
                "class": "external",
                "epoch": 1,
                "key": "ccc74abc3e2d1bfa7d69bf457dda0cdb",
                "status": "started",
                "tool": "send_email",
            },
            separators=(",", ":"),
        )
    )


def test_the_real_binary_reads_the_loaded_rows_as_we_do(recall: Recall, loaded: ActionStore) -> None:
    """Otherwise the loading would prove nothing about the reading."""
    for agent in (BILLING, S8, S9):
        resumed = recall.open().resume(agent, defer_lease=True).context

        assert [(a.seq, a.tool, a.status, a.key) for a in resumed.pending_actions] == [
            (a.seq, a.tool, a.status, a.key) for a in expected.ACTIONS if a.agent == agent and a.is_open
        ]
        assert [t.content for t in resumed.recent_turns] == [t.content for t in expected.TURNS if t.agent == agent]
    assert isinstance(loaded.get_action(S7, 4).action, Action)
