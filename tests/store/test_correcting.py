"""What a correction writes: one turn, one entry, the lease given back; never the action. Under one contract with settling."""

from __future__ import annotations

from functools import partial

import pytest

from actions.correct import WasRead, correct, find_told, make_correction, preview_correction, was_read
from actions.errors import (
    ActionNotFound,
    CorrectedMeanwhile,
    DecisionIdReused,
    InvalidDecision,
    LeaseLive,
    NothingToCorrect,
    StoreReadOnly,
)
from actions.records import ActionRef, ActionStatus, Correction, Settled, Turn
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from tests.recall_writer import RecordWriter
from tests.store.conftest import Backend, fenced
from tests.store.gestures import an_end, decide, look_at_world, new_decision_id, race, readable_action, verify

ROUNDS = 8


def a_correction(outcome: str = "failed", reason: str = "the provider never had it") -> Correction:
    return make_correction(outcome, reason, actor="operator bea")


def put_right(
    store: ActionStore,
    ref: ActionRef,
    correction: Correction | None = None,
    *,
    correction_id: str = "",
    basis: int | None = None,
) -> Settled:
    return correct(
        store,
        ref,
        correction or a_correction(),
        actor="operator bea",
        decision_id=correction_id or new_decision_id(),
        basis=basis,
    )


def settled(store: ActionStore, recall: RecordWriter, agent: str = "a", seq: int = 1) -> ActionRef:
    """A call that was written as done."""
    ref = recall.action(agent, seq)
    recall.turns(agent, 2)
    decide(store, ref, an_end(result="message-id 1204"))
    return ref


def turns_of(store: ActionStore, agent: str = "a") -> list[Turn]:
    return [turn for turn in reversed(store.list_turns(agent, limit=50)) if isinstance(turn, Turn)]


@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        ("failed", "correction: action 1 was settled as done, which was wrong; in truth it did not happen: no copy"),
        (
            "unknown",
            "correction: action 1 was settled as done, which was wrong; in truth nobody knows whether it happened: no copy",
        ),
    ],
)
def test_a_correction_is_one_turn_and_one_entry_and_the_action_stays(
    store: ActionStore, recall: RecordWriter, outcome: str, content: str
) -> None:
    ref = settled(store, recall)
    before = look_at_world(store, recall, "a")
    told = find_told(store, ref)
    assert told is not None
    shown = preview_correction(readable_action(store, ref), told, a_correction(outcome, "no copy"))

    written = put_right(store, ref, a_correction(outcome, "no copy"), correction_id="correction-1", basis=told.number)

    after = look_at_world(store, recall, "a")
    turn = turns_of(store)[-1]
    assert {key for key in after.records if after.records[key] != before.records.get(key)} == {"a:turn:4"}
    assert (turn.seq, turn.role, turn.name, turn.content) == (4, "tool", "send_email", content)
    assert turn.brief == f"(correction of action 1: done, now {outcome}; operator bea: no copy) {content}"
    assert (shown.content, shown.brief) == (turn.content, turn.brief)
    assert (written.turn_seq, written.is_repeat) == (4, False)
    entry = written.entry
    assert (entry.kind, entry.actor, entry.agent, entry.seq, entry.tool) == ("corrected", "operator bea", "a", 1, "send_email")
    assert (entry.outcome, entry.reason, entry.decision_id) == (outcome, "no copy", "correction-1")
    assert (entry.detail["corrects"], entry.detail["turn"]) == (told.number, 4)
    assert entry.detail["before"] == {"outcome": "done", "turn": 3}
    assert recall.body_of("a:act:1")["status"] == "done"
    assert verify(store).is_intact
    lease = recall.lease_of("a")
    assert lease is not None
    assert lease[2] == "released"


def test_the_same_id_answers_what_it_wrote_also_when_the_agent_lives_again(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    first = put_right(store, ref, correction_id="correction-1")
    recall.acquire("a", "pod-b")
    before = look_at_world(store, recall, "a")

    again = put_right(store, ref, correction_id="correction-1", basis=1)

    assert again.is_repeat
    assert (again.entry, again.turn_seq) == (first.entry, first.turn_seq)
    assert look_at_world(store, recall, "a") == before


def test_a_living_agent_is_left_alone(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    recall.acquire("a", "pod-b")
    before = look_at_world(store, recall, "a")

    with pytest.raises(LeaseLive) as caught:
        put_right(store, ref)

    assert caught.value.lease.holder == "pod-b"
    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize("what", ["open", "its own", "not there"])
def test_only_what_we_ended_is_corrected(store: ActionStore, recall: RecordWriter, what: str) -> None:
    recall.action("a", 1, status="done" if what == "its own" else "started")
    recall.turns("a", 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionNotFound if what == "not there" else NothingToCorrect):
        put_right(store, ActionRef("main", "a", 7 if what == "not there" else 1))

    assert look_at_world(store, recall, "a") == before


def test_an_end_that_is_no_longer_ours_is_not_corrected(store: ActionStore, recall: RecordWriter) -> None:
    """A process that had lost its agent has written over it, where the server lets it."""
    ref = settled(store, recall)
    recall.action("a", 1, status="failed", error="550")
    before = look_at_world(store, recall, "a")

    with pytest.raises(NothingToCorrect):
        put_right(store, ref)

    assert look_at_world(store, recall, "a") == before


def test_a_correction_is_corrected_again_by_whoever_saw_it(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    first = put_right(store, ref)
    with pytest.raises(CorrectedMeanwhile) as caught:
        put_right(store, ref, a_correction("unknown"), basis=first.entry.number - 1)
    assert caught.value.entry == first.entry
    assert len(turns_of(store)) == 4

    second = put_right(store, ref, a_correction("done", "found it after all"), basis=first.entry.number)

    assert second.entry.detail["corrects"] == first.entry.number
    assert turns_of(store)[-1].content.startswith(
        "correction: action 1 was settled as failed, which was wrong; in truth it happened"
    )
    assert find_told(store, ref) == second.entry
    assert verify(store).is_intact


def test_an_id_stands_for_one_correction(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    put_right(store, ref, correction_id="correction-1")
    before = look_at_world(store, recall, "a")

    with pytest.raises(DecisionIdReused):
        put_right(store, ref, a_correction("unknown"), correction_id="correction-1")

    assert look_at_world(store, recall, "a") == before


def test_where_decisions_cannot_be_kept_nothing_is_corrected() -> None:
    store = MemoryStore(is_prepared=False)

    with pytest.raises(StoreReadOnly):
        put_right(store, ActionRef("main", "a", 1))

    assert not store.records


def test_no_secret_reaches_the_entry_of_a_correction(store: ActionStore, recall: RecordWriter) -> None:
    secret = "sk_live_abcdefgh12345678"

    entry = put_right(store, settled(store, recall), a_correction("failed", f"used {secret}")).entry

    assert secret not in entry.text


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [("abandoned", "x"), ("done ", "x"), ("", "x"), ("failed", " \u200b"), ("failed", "x" * 2001), ("done", "\x00a")],
)
def test_what_no_correction_may_say_is_refused_before_anything_is_read(outcome: str, reason: str) -> None:
    with pytest.raises(InvalidDecision):
        make_correction(outcome, reason, actor="operator bea")


# --- whether the agent has read the first one ---


def test_an_agent_that_nobody_resumed_has_not_read_it(backend: Backend) -> None:
    store, recall = backend.store, backend.recall
    ref = settled(store, recall)
    told = find_told(store, ref)
    assert told is not None
    decide(store, recall.action("a", 2))  # a turn of ours is nobody's reading

    before = was_read(store, told)
    written = put_right(store, ref)

    # polign_db does not say who has had the agent since.
    expected = WasRead.NO if store.leases_known else WasRead.UNKNOWN
    assert before is expected
    assert was_read(store, told, before=written.turn_seq) is expected


def test_an_agent_that_went_on_has_read_it(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    told = find_told(store, ref)
    assert told is not None
    recall.turn("a", 4, "I go on")

    written = put_right(store, ref)
    recall.turn("a", 6, "and on")

    assert was_read(store, told, before=written.turn_seq) is WasRead.YES
    assert was_read(store, written.entry) is WasRead.YES


@fenced
def test_an_agent_that_was_held_and_wrote_nothing_may_have_read_it(store: ActionStore, recall: RecordWriter) -> None:
    ref = settled(store, recall)
    told = find_told(store, ref)
    assert told is not None
    held = recall.lease_of("a")
    assert held is not None
    recall.lease("a", "pod-b", held[1] + 1, "expired")

    written = put_right(store, ref)

    assert was_read(store, told, before=written.turn_seq) is WasRead.UNKNOWN


# --- two at one moment ---


def test_one_correction_sent_twice_at_once_is_written_once(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        ref = settled(store, recall, f"a{number}")
        answers = race(*[partial(put_right, each, ref, correction_id=f"correction-{number}") for each in (store, other)])

        first, second = answers
        assert isinstance(first, Settled), first
        assert isinstance(second, Settled), second
        assert first.entry == second.entry
        assert sorted([first.is_repeat, second.is_repeat]) == [False, True]
        assert [turn.content.startswith("correction: ") for turn in turns_of(store, ref.agent)] == [False] * 3 + [True]
    assert verify(store).is_intact


def test_of_two_who_correct_what_they_saw_the_first_does(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        ref = settled(store, recall, f"a{number}")
        told = find_told(store, ref)
        assert told is not None
        answers = race(
            partial(put_right, store, ref, a_correction("failed"), basis=told.number),
            partial(put_right, other, ref, a_correction("unknown"), basis=told.number),
        )

        written = [answer for answer in answers if isinstance(answer, Settled)]
        refused = [answer for answer in answers if isinstance(answer, CorrectedMeanwhile)]
        assert (len(written), len(refused)) == (1, 1), answers
        assert refused[0].entry == written[0].entry
        assert len(turns_of(store, ref.agent)) == 4
    assert verify(store).is_intact


@fenced
def test_a_correction_and_an_agent_that_takes_its_lease_never_write_over_each_other(backend: Backend) -> None:
    store, recall, agent = backend.store, backend.recall, backend.another()
    for number in range(ROUNDS):
        ref = settled(store, recall, f"a{number}")
        answers = race(partial(put_right, store, ref), partial(agent.acquire, ref.agent, "pod-b"))

        correction, epoch = answers
        assert isinstance(correction, Settled | LeaseLive), correction
        assert epoch is None or isinstance(epoch, int), epoch
        turns = turns_of(store, ref.agent)
        assert [turn.seq for turn in turns] == list(range(1, len(turns) + 1))
        assert len(turns) == (4 if isinstance(correction, Settled) else 3)
        assert readable_action(store, ref).status is ActionStatus.DONE
    assert verify(store).is_intact
