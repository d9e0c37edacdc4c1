"""Records <-> what Recall stores: everything comes back, and what does not fit is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.errors import RecordUnreadable
from actions.records import Action, ActionEnd, ActionStatus, Output, Turn
from actions.store.codec import (
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    encode_end,
    encode_output,
    encode_turn,
    load_metadata,
    output_id,
    page_of,
    turn_id,
    unreadable,
)
from actions.times import format_rfc3339
from tests.unit.strategies import actions, instants, json_values, numbers, outputs, turns, wild_text


def stored(action: Action) -> dict[str, Any]:
    """An action's metadata as Recall keeps them; written here, since we ourselves never write one anew."""
    body = {
        "seq": action.seq,
        "tool": action.tool,
        "class": action.action_class.value,
        "args": action.args,
        "key": action.key,
        "status": action.status.value,
        "result": action.result,
        "error": action.error,
        "resolution": action.resolution,
        "epoch": action.epoch,
        "started_at": format_rfc3339(action.started_at),
        "ended_at": None if action.ended_at is None else format_rfc3339(action.ended_at),
    }
    return {
        "recall_agent": action.agent,
        "record": "action",
        "act": str(action.seq),
        "seq": action.seq,
        "page": page_of(action.seq),
        "class": action.action_class.value,
        "status": action.status.value,
        "epoch": action.written_epoch,
        "body": json.dumps(body),
    }


ends = st.builds(
    ActionEnd,
    status=st.sampled_from([ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED]),
    reason=wild_text,
    resolution=wild_text,
    result=wild_text,
    error=wild_text,
)


@given(actions)
def test_every_action_is_read_as_it_was_stored(action: Action) -> None:
    assert decode_action(action_id(action.agent, action.seq), stored(action)) == action


@given(turns)
def test_every_turn_comes_back(turn: Turn) -> None:
    assert decode_turn(turn_id(turn.agent, turn.seq), encode_turn(turn, epoch=3)) == turn


@given(outputs)
def test_every_output_comes_back(output: Output) -> None:
    assert decode_output(output_id(output.agent, output.ref), encode_output(output, epoch=3)) == output


@given(turns)
def test_a_stored_turn_survives_a_database_that_keeps_json_as_utf8(turn: Turn) -> None:
    """jsonb refuses half a surrogate pair and NUL outside of a body: the metadata must hold neither."""
    metadata = encode_turn(replace(turn, agent="a"), epoch=3)
    text = json.dumps(metadata, ensure_ascii=False)

    assert text.encode("utf-8").decode() == text
    assert "\\u0000" not in text.replace("\\\\u0000", "")


@given(actions, ends, st.integers(1, 2**53), instants)
def test_an_end_changes_the_end_and_nothing_else(action: Action, end: ActionEnd, epoch: int, at: int) -> None:
    before = stored(action) | {"later": 1}

    after = encode_end(before, end, epoch=epoch, result=end.result, ref="", at=at)

    assert decode_action(action_id(action.agent, action.seq), after) == replace(
        action,
        status=end.status,
        result=end.result,
        error=end.error,
        resolution=end.resolution or action.resolution,
        result_ref="",
        written_epoch=epoch,
        ended_at=at,
    )
    assert {**after, "body": "", "status": "", "epoch": 0} == {**before, "body": "", "status": "", "epoch": 0}
    assert before == stored(action) | {"later": 1}


raw_values = st.sampled_from(
    [
        "1.23456789012345678901",
        "10.50",
        "-0",
        "-0.0",
        "1e5",
        "1E-7",
        "123456789012345678901234567890",
        '{"a":  10.50, "a": 1.0, "b": [1e2, {"c": 0.10}]}',
        "[ ]",
        '"\\u0000\\ud800 \\/ é"',
        '"}, {:"',
        "null",
        "true",
    ]
)
blanks = st.text(" \t\n\r", max_size=3)


@given(st.dictionaries(wild_text, raw_values, max_size=5), actions, ends, blanks)
def test_an_end_keeps_what_it_does_not_know_to_the_letter(
    unknown: dict[str, str], action: Action, end: ActionEnd, gap: str
) -> None:
    before = stored(action)
    names = json.loads(before["body"])
    unknown = {name: raw for name, raw in unknown.items() if name not in names and name != "result_ref"}
    members = "".join(f"{gap}{json.dumps(name)}{gap}:{gap}{raw}{gap},{gap}" for name, raw in unknown.items())
    before["body"] = f"{gap}{{{gap}{members}{before['body'][1:]}{gap}"

    after = encode_end(before, end, epoch=2, result=end.result, ref="", at=0)

    body = json.loads(after["body"], parse_float=str, parse_int=str)
    assert {name: body[name] for name in unknown} == {
        name: json.loads(raw, parse_float=str, parse_int=str) for name, raw in unknown.items()
    }
    assert all(f":{raw}" in after["body"] for raw in unknown.values())
    after["body"].encode()
    decode_action(action_id(action.agent, action.seq), after)


@given(st.integers(-(2**64), 2**64), st.sampled_from(["act", "turn", "head"]))
def test_a_number_outside_of_recalls_range_is_refused(number: int, kind: str) -> None:
    check_range(number, kind)


def check_range(number: int, kind: str) -> None:
    action, least = an_action(number), 0 if kind == "head" else 1
    body = {"seq": number, "class": "external", "status": "started", "turn_seq": number, "action_seq": number}
    record = {"act": "action", "turn": "turn", "head": "working_state_head"}[kind]
    metadata = {**action, "record": record, "act": str(number), "body": json.dumps(body)}
    record_id = "a:ws:head" if kind == "head" else f"a:{kind}:{number}"
    decode = {"act": decode_action, "turn": decode_turn, "head": decode_working_state}[kind]

    if least <= number < 2**63:
        decode(record_id, metadata)
    else:
        with pytest.raises(RecordUnreadable, match="seq is"):
            decode(record_id, metadata)


@pytest.mark.parametrize(
    ("number", "kind"), [(0, "act"), (0, "turn"), (2**63, "act"), (2**63, "turn"), (-1, "head"), (2**63, "head")]
)
def test_the_edges_of_recalls_range(number: int, kind: str) -> None:
    check_range(number, kind)


@pytest.mark.parametrize("name", ["epoch", "version", "step", "turn_seq", "action_seq"])
@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 10**30])
def test_counts_below_zero_and_beyond_int64_are_refused(name: str, number: int) -> None:
    action = an_action(1)
    body = {"seq": 1, "class": "external", "status": "started", name: number}
    decode, record, record_id = (
        (decode_action, "action", "a:act:1") if name == "epoch" else (decode_working_state, "working_state", "a:ws:1")
    )

    with pytest.raises(RecordUnreadable, match=name):
        decode(record_id, {**action, "record": record, "body": json.dumps(body)})


def an_action(seq: int) -> dict[str, Any]:
    return {"recall_agent": "a", "record": "action", "act": str(seq), "status": "started", "epoch": 1}


def test_an_earlier_result_and_error_are_cleared_by_an_end_without_them() -> None:
    metadata = {"body": json.dumps({"seq": 1, "result": "x", "error": "y", "result_ref": "z", "resolution": "old"})}
    end = ActionEnd(status=ActionStatus.ABANDONED, reason="r", resolution="")

    body = json.loads(encode_end(metadata, end, epoch=2, result="", ref="", at=0)["body"])

    assert body == {"seq": 1, "resolution": "old", "status": "abandoned", "ended_at": "1970-01-01T00:00:00Z"}


@given(json_values)
def test_metadata_of_any_shape_are_refused_in_words(value: Any) -> None:
    for decode in (decode_action, decode_turn, decode_output, decode_working_state, decode_pointer):
        with pytest.raises(RecordUnreadable):
            decode("a:act:1", value)


@given(
    st.dictionaries(
        st.sampled_from(["seq", "tool", "class", "args", "status", "epoch", "started_at", "ended_at", "ref"]), json_values
    )
)
def test_a_body_of_any_shape_is_read_or_refused_and_nothing_else(body: dict[str, Any]) -> None:
    common = {
        "recall_agent": "a",
        "act": "1",
        "seq": 1,
        "status": "started",
        "class": "external",
        "epoch": 1,
        "body": json.dumps(body),
    }
    for record, decode in (
        ("action", decode_action),
        ("turn", decode_turn),
        ("output", decode_output),
        ("pointer", decode_pointer),
    ):
        with suppress(RecordUnreadable):
            decode("a:act:1", common | {"record": record})


@given(wild_text)
def test_a_body_of_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with pytest.raises(RecordUnreadable):
        decode_action("a:act:1", {"record": "action", "body": text, "recall_agent": "a"})


@given(wild_text)
def test_any_id_can_be_told(record_id: str) -> None:
    told = unreadable(record_id, "why")

    assert (told.record_id, told.problem) == (record_id, "why")
    assert told.agent == record_id.split(":", 1)[0]


@pytest.mark.parametrize(
    ("record_id", "agent", "seq"),
    [
        ("a:act:7", "a", 7),
        ("a:turn:12", "a", 12),
        ("a:out:7", "a", None),
        ("a:act:x", "a", None),
        ("a:act:-1", "a", None),
        ("a:act:٣", "a", None),
        ("a:act:" + "9" * 19, "a", None),
        ("plain", "plain", None),
        ("", "", None),
        ("a:act:7\nb", "a", None),
    ],
)
def test_what_an_id_claims(record_id: str, agent: str, seq: int | None) -> None:
    assert (unreadable(record_id, "").agent, unreadable(record_id, "").seq) == (agent, seq)


@given(numbers)
def test_pages_are_texts_of_sixty_four(seq: int) -> None:
    assert page_of(seq) == str((seq - 1) // 64)
    assert (page_of(1), page_of(64), page_of(65), page_of(128), page_of(129)) == ("0", "0", "1", "1", "2")


@pytest.mark.parametrize("number", [1.0, 7.0])
def test_a_double_that_is_whole_is_a_number_in_the_metadata(number: float) -> None:
    """MongoDB keeps every number of the metadata as a double."""
    metadata = {
        "recall_agent": "a",
        "record": "output",
        "ref": "r",
        "tokens": number,
        "epoch": 1.0,
        "body": '{"ref":"r","content":"x"}',
    }

    assert decode_output("a:out:r", metadata).tokens == int(number)


@pytest.mark.parametrize("number", [1.5, float("inf"), float("nan"), True, "1", [], 2**70])
def test_any_other_number_is_refused(number: object) -> None:
    metadata = {"recall_agent": "a", "record": "output", "ref": "r", "tokens": number, "body": '{"ref":"r","content":"x"}'}

    with pytest.raises(RecordUnreadable, match="tokens"):
        decode_output("a:out:r", metadata)


def test_a_removed_pointer_is_none_whatever_else_it_says() -> None:
    assert (
        decode_pointer("a:ptr:x", {"recall_agent": "a", "record": "pointer", "name": "x", "removed": True, "body": "{}"}) is None
    )


def test_a_short_output_has_a_summary_as_recall_makes_it() -> None:
    body = json.loads(encode_output(Output(agent="a", ref="r", content="ü" * 150, at=0), epoch=1)["body"])

    assert body["summary"] == "ü" * 100 + "..."


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "9" * 5_000, "nul", '"\\ud8'])
def test_a_text_that_is_no_json_spoils_nothing(text: str) -> None:
    assert isinstance(load_metadata(text), str)
    with pytest.raises(RecordUnreadable, match="not an object"):
        decode_action("a:act:1", load_metadata(text))
