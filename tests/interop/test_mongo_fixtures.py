"""Documents that the real binary wrote: the same run as the PostgreSQL rows, so the same records at other times."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from actions import queries
from actions.records import CLOSED_STATUSES, OPEN_STATUSES, ActionEnd, ActionStatus, Turn
from actions.store import codec
from actions.store.base import ActionStore
from actions.store.mongo_documents import read_metadata, written_fields
from actions.times import format_rfc3339
from actions.turns import settlement_turn
from tests.interop import expected
from tests.interop.driver import Recall
from tests.interop.expected import BILLING, LIVE, S7, S8, S9
from tests.interop.fixtures import load
from tests.interop.rows import COLLECTION, rows_of
from tests.interop.test_fixtures import AGENTS, DECODERS, by_id, opened

pytestmark = pytest.mark.interop

TIMES = ("started_at", "ended_at", "at", "updated_at")


def documents(fixture: str = "mongodb") -> dict[str, dict[str, Any]]:
    return {document["_id"]: document for document in load(fixture)["collections"][f"rc_{COLLECTION}"]}


def timeless(record: Any) -> Any:
    """A record without its times, which differ from one run to the next."""
    names = {field.name for field in fields(record)} if record is not None else set()
    return replace(record, **{name: 0 for name in TIMES if name in names}) if names else record


def test_every_document_of_the_fixture_decodes_as_the_rows_of_postgresql_do() -> None:
    metadata = {record_id: read_metadata(document) for record_id, document in documents().items()}
    found = {record_id: DECODERS[said["record"]](record_id, said) for record_id, said in metadata.items()}

    assert {key: timeless(record) for key, record in found.items()} == {key: timeless(record) for key, record in by_id().items()}
    for record_id, record in found.items():
        body = json.loads(metadata[record_id]["body"])
        times = {name: format_rfc3339(value) for name in TIMES if (value := getattr(record, name, None)) is not None}
        assert times == {name: body[name] for name in TIMES if name in body}


def test_what_we_write_has_the_shape_that_the_binary_gives_it() -> None:
    """The order and types of `md`; `m` as the same value, since nobody minds the escapes in it."""
    for document in documents().values():
        written = written_fields(read_metadata(document))

        assert written["md"] == document["md"]
        assert [type(entry["v"]) for entry in written["md"]] == [type(entry["v"]) for entry in document["md"]]
        assert json.loads(written["m"]) == json.loads(document["m"])
        assert list(json.loads(written["m"])) == list(json.loads(document["m"]))


def test_the_fixtures_settle_is_what_we_would_write() -> None:
    """The fixture's `after` was written by hand and read back by the real binary."""
    fixture = load("settle-mongodb")
    before, after = (
        {document["_id"]: read_metadata(document) for document in fixture[moment]["records"]} for moment in ("before", "after")
    )
    end = ActionEnd(
        status=ActionStatus.DONE, reason="-", resolution="operator ana: found in the sent folder", result="message-id 1204"
    )
    closed = codec.decode_action(f"{S7}:act:4", after[f"{S7}:act:4"])
    told = codec.decode_turn(f"{S7}:turn:4", after[f"{S7}:turn:4"])
    assert closed.ended_at is not None

    written = codec.encode_end(before[f"{S7}:act:4"], end, epoch=2, result=end.result, ref="", at=closed.ended_at)
    words = settlement_turn(end, end.result)
    turn = Turn(agent=S7, seq=4, role="tool", name="send_email", content=words.content, brief=words.brief, at=told.at)

    assert codec.decode_action(f"{S7}:act:4", written) == closed
    assert {**opened(written), "body": ""} == {**opened(after[f"{S7}:act:4"]), "body": ""}
    assert opened(codec.encode_turn(turn, epoch=2)) == opened(after[f"{S7}:turn:4"])
    assert {name for name in after if after[name] != before.get(name)} == {f"{S7}:act:4", f"{S7}:turn:4"}


# --- the same documents in a database that the real binary set up ---------------------------------------------------------


@pytest.fixture
def url(mongo_url: str) -> str:
    return mongo_url


@pytest.fixture
def loaded(recall: Recall, store: ActionStore) -> ActionStore:
    """The fixture's documents and leases."""
    recall.resume("maker").record_turn("user", "makes the collections")
    recall.close()
    rows_of(recall.url).load(load("mongodb"))
    return store


def test_actions_come_out_of_mongodb_as_written_down(loaded: ActionStore) -> None:
    readings = [
        reading for statuses in (OPEN_STATUSES, CLOSED_STATUSES) for reading in loaded.read_actions(statuses, limit=100).readings
    ]
    found = sorted((timeless(reading.action) for reading in readings), key=lambda action: (action.agent, action.seq))

    assert found == [timeless(action) for action in expected.ACTIONS]


def test_the_five_agents_are_in_the_states_that_their_leases_say(loaded: ActionStore) -> None:
    page = queries.list_actions([loaded], queries.ActionFilter(), limit=100)

    assert {(item.agent, item.seq): item.state for item in page.items} == expected.OPEN_STATES


def test_the_leases_come_out_of_mongodb_as_written_down(loaded: ActionStore) -> None:
    leases = {agent: loaded.find_lease(agent) for agent in AGENTS}

    assert {agent: (lease.holder, lease.epoch, lease.is_live, lease.is_released) for agent, lease in leases.items() if lease} == {
        BILLING: ("vm:20198:35c4201d", 2, False, True),
        LIVE: ("vm:20275:5a37711a", 1, True, False),
        S7: ("vm:20132:6ab7b8ff", 1, False, False),
        S8: ("vm:20180:f05c3ad5", 3, False, True),
        S9: ("vm:20252:c3c5c141", 3, False, True),
    }


def test_one_agents_records_come_out_of_mongodb_as_written_down(loaded: ActionStore) -> None:
    for agent in AGENTS:
        turns = [timeless(turn) for turn in expected.TURNS if turn.agent == agent]
        pointers = [timeless(pointer) for pointer in expected.POINTERS.values() if pointer and pointer.agent == agent]
        assert [timeless(turn) for turn in loaded.list_turns(agent, limit=50)] == turns[::-1]
        assert timeless(loaded.find_working_state(agent)) == timeless(expected.WORKING_STATES.get(codec.head_id(agent)))
        assert [timeless(pointer) for pointer in loaded.list_pointers(agent)] == pointers
    wanted = {(output.agent, output.ref): timeless(output) for output in expected.OUTPUTS}
    assert {key: timeless(output) for key, output in loaded.read_outputs([*wanted, (S8, "never-stored")]).items()} == wanted
