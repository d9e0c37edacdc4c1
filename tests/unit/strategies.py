"""What may stand in a record: any text that JSON can hold, any JSON value, whole records."""

from __future__ import annotations

from hypothesis import strategies as st

from actions.records import Action, ActionClass, ActionStatus, NewEntry, Output, Turn
from actions.times import FIRST_SECOND, LAST_SECOND, SECOND

any_text = st.text(max_size=40)  # hypothesis leaves out surrogates unless asked
wild_text = st.text(st.characters(exclude_categories=()), max_size=40)
agent_ids = st.text("abcXYZ019._-", min_size=1, max_size=12)
numbers = st.integers(1, 10**6)
instants = st.integers(FIRST_SECOND * SECOND, LAST_SECOND * SECOND)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | wild_text,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(wild_text, children, max_size=4),
    max_leaves=12,
)

actions = st.builds(
    Action,
    agent=agent_ids,
    seq=numbers,
    tool=wild_text,
    action_class=st.sampled_from(ActionClass),
    key=any_text,
    args=wild_text,
    args_ref=st.just(""),
    status=st.sampled_from(ActionStatus),
    result=wild_text,
    result_ref=st.just(""),
    error=wild_text,
    resolution=wild_text,
    epoch=st.integers(0, 2**53),
    written_epoch=st.integers(0, 2**53),
    started_at=instants,
    ended_at=st.none() | instants,
)

turns = st.builds(
    Turn,
    agent=agent_ids,
    seq=numbers,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=wild_text,
    name=wild_text,
    brief=wild_text,
    output_ref=any_text,
    message_id=any_text,
    at=instants,
)

outputs = st.builds(
    Output,
    agent=agent_ids,
    ref=agent_ids,
    content=any_text,
    tool=any_text,
    summary=st.text(min_size=1, max_size=20),
    tokens=st.integers(1, 10**6),
    at=instants,
)

entries = st.builds(
    NewEntry,
    kind=wild_text,
    actor=wild_text,
    agent=wild_text,
    seq=st.none() | st.integers(-(2**70), 2**70),
    tool=wild_text,
    decision_id=wild_text,
    outcome=wild_text,
    reason=wild_text,
    evidence_id=wild_text,
    content_digest=wild_text,
    detail=st.dictionaries(wild_text, json_values, max_size=3),
)
