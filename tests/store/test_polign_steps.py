"""A settle on polign_db is cut off at each of its steps; asking again with the same decision id repairs it, and no other one may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from actions.correct import correct, make_correction
from actions.digests import sha256_text
from actions.errors import ActionNotOpen, DecisionIdReused, LeaseLive, StoreError, StoreUnavailable, WriteConflict
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus, NewEntry, Settled, Turn
from actions.settle import settle
from actions.store import steps
from actions.store.polign import PolignStore
from actions.store.polign_steps import WINDOW
from local.polign import RunningPolign
from tests.http_gateway import LOST, UNANSWERED, Gateway
from tests.polign_writer import PolignWriter
from tests.recall_writer import RecallWriter, time_text
from tests.store.gestures import an_end, decide, look_at_world, verify
from tests.store.test_postgres_all_or_nothing import DIE, RAISE, sabotage

LONG = an_end(result="x" * 9000)
SETTLE = [
    "GET /vectors/a:act:1",  # everything is checked without the lease first
    "POST /vectors:get",  # the agent's head, the whole arguments, turns of earlier attempts
    "GET /vectors",  # the newest turns
    "POST /leases/a/acquire",
    "GET /vectors/a:act:1",  # and again under it
    "POST /vectors:get",
    "GET /vectors",
    "GET /vectors/a:turn:3",  # whether that number is free
    "PUT /vectors/a:out:act-1-result",
    "PUT /vectors/a:turn:3",
    "PUT /vectors/a:act:1",
    "POST /leases/a/release",
]
FREE, OUTPUT, TURN, CLOSE, RELEASE = 7, 8, 9, 10, 11


@dataclass(frozen=True)
class Line:
    """A store behind a gateway, the same store without one, and who writes its records."""

    gateway: Gateway
    store: PolignStore
    near: PolignStore
    recall: PolignWriter
    path: str

    def asked(self) -> list[str]:
        return [request.replace(self.path, "") for request in self.gateway.asked]

    def begun(self) -> ActionRef:
        ref = self.recall.action("a", 1)
        self.recall.turns("a", 2)
        self.recall.lease("a", epoch=4, state="expired")
        return ref

    def cut(self, number: int, how: str) -> None:
        self.gateway.fails = lambda found, _: how if found == number else None

    def half_done(self, ref: ActionRef, *, at: int = CLOSE, how: str = LOST, decision_id: str = "decision-1") -> None:
        """A settle that is cut off there, and whose lease has run out since."""
        self.cut(at, how)
        with pytest.raises(StoreUnavailable):
            decide(self.store, ref, LONG, decision_id=decision_id)
        self.expire()
        self.gateway.mend()

    def expire(self) -> None:
        """What waiting out the lease of a process that died comes to, without the wait."""
        held = self.recall.lease_of("a")
        if held is not None and held[2] == "live":
            self.recall.lease("a", held[0], held[1], "expired")


@pytest.fixture
def line(polign_server: RunningPolign, records_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setattr(steps, "WAIT_S", 0)
    collection = f"c{uuid4().hex[:12]}"
    with (
        Gateway(polign_server.base) as gateway,
        closing(PolignStore(f"polign+{gateway.base}?collection={collection}", entries_url=records_url)) as store,
        closing(PolignStore(polign_server.url(collection), entries_url=records_url)) as near,
        PolignWriter(polign_server, collection) as recall,
    ):
        yield Line(gateway, store, near, recall, f"/v1/collections/{collection}_agents")


def told(store: PolignStore) -> list[str]:
    """The message ids of the turns that tell a decision."""
    turns = (turn for turn in store.list_turns("a", limit=50) if isinstance(turn, Turn))
    return [turn.message_id for turn in turns if turn.message_id.startswith("settle:")]


def kinds(store: PolignStore) -> list[str]:
    return [entry.kind for entry in reversed(store.list_entries(limit=50))]


def is_settled(line: Line) -> bool:
    """Exactly one turn, one close, one `settled` entry, and the lease given back."""
    assert told(line.near) == ["settle:1:decision-1"]
    assert line.recall.body_of("a:act:1")["status"] == "done"
    assert kinds(line.near).count("settled") == 1
    assert verify(line.near).is_intact
    lease = line.recall.lease_of("a")
    return lease is not None and lease[2] == "released"


def test_a_settle_sends_these_requests(line: Line) -> None:
    ref = line.begun()

    settled = decide(line.store, ref, LONG, decision_id="decision-1")

    assert line.asked() == SETTLE
    assert (settled.turn_seq, settled.is_repeat) == (3, False)
    assert is_settled(line)
    assert kinds(line.near) == ["settling", "settled"]


def test_every_write_names_the_lease_as_recalls_do(line: Line) -> None:
    """The server ignores it today; one that does not must find what it needs."""
    decide(line.store, line.begun(), LONG)

    lease = line.recall.lease_of("a")
    assert lease is not None
    for request, headers in zip(line.asked(), line.gateway.headers, strict=True):
        named = tuple(headers.get(f"Polign-Lease-{name}") for name in ("Name", "Holder", "Epoch"))
        assert named == (("a", lease[0], "5") if request.startswith("PUT") else (None, None, None))


@pytest.mark.parametrize("how", [LOST, UNANSWERED])
@pytest.mark.parametrize("number", range(len(SETTLE) - 1), ids=[f"{n}-{r.split()[0]}" for n, r in enumerate(SETTLE[:-1])])
def test_cut_off_at_any_request_it_is_repaired_by_asking_again(line: Line, number: int, how: str) -> None:
    ref = line.begun()
    before = look_at_world(line.near, line.recall)
    line.cut(number, how)

    with pytest.raises(StoreUnavailable) as caught:
        decide(line.store, ref, LONG, decision_id="decision-1")

    arrived = number if how == UNANSWERED else number - 1
    assert caught.value.may_be_written == (number >= OUTPUT)  # whether it arrived, nobody here can know
    after = look_at_world(line.near, line.recall)
    changed = {key for key in after.records if after.records[key] != before.records.get(key)}
    assert changed == {
        record_id
        for place, record_id in ((OUTPUT, "a:out:act-1-result"), (TURN, "a:turn:3"), (CLOSE, "a:act:1"))
        if arrived >= place
    }
    assert kinds(line.near) == (["settling"] if number >= FREE else [])

    line.expire()
    again = decide(line.near, ref, LONG, decision_id="decision-1")

    assert (again.turn_seq, again.is_repeat) == (3, False)
    assert is_settled(line) or arrived >= CLOSE  # nobody had to take the lease only to write the entry
    assert decide(line.near, ref, LONG, decision_id="decision-1").is_repeat
    assert kinds(line.near).count("settled") == 1


@pytest.mark.parametrize("how", [LOST, UNANSWERED])
def test_a_lease_that_could_not_be_given_back_runs_out_and_is_no_failure(line: Line, how: str) -> None:
    ref = line.begun()
    line.cut(RELEASE, how)

    assert not decide(line.store, ref, LONG, decision_id="decision-1").is_repeat

    assert line.near.find_settled_entry("decision-1") is not None
    assert told(line.near) == ["settle:1:decision-1"]


@pytest.mark.parametrize("act", [RAISE, DIE], ids=["an error", "a killed connection"])
@pytest.mark.parametrize(("kind", "written"), [("settling", set()), ("settled", {"a:turn:1", "a:act:1"})])
def test_an_entry_that_cannot_be_written(
    polign_server: RunningPolign, alone: tuple[object, RecallWriter], alone_url: str, kind: str, written: set[str], act: str
) -> None:
    """Without the intent nothing is written; without the result it is written, and asking again writes the entry."""
    collection, console = f"c{uuid4().hex[:12]}", alone[1]
    with (
        closing(PolignStore(polign_server.url(collection), entries_url=alone_url)) as store,
        PolignWriter(polign_server, collection) as recall,
    ):
        ref = recall.action("a", 1)
        before = look_at_world(store, recall)
        sabotage(console, "BEFORE INSERT ON settle_audit.entries", f"NEW.kind = '{kind}'", act)

        with pytest.raises(StoreError) as caught:
            decide(store, ref, decision_id="decision-1")

        assert getattr(caught.value, "may_be_written", False) == (kind == "settled")
        after = look_at_world(store, recall)
        assert {key for key in after.records if after.records[key] != before.records.get(key)} == written
        lease = recall.lease_of("a")
        assert lease is not None
        assert lease[2] == "released"
        console.run("DROP FUNCTION public.injected CASCADE")
        recall.acquire("a", "pod-b") if kind == "settled" else None
        assert decide(store, ref, decision_id="decision-1").turn_seq == 1
        assert [entry.kind for entry in store.list_entries(limit=9)] == ["settled", "settling"]


# --- what the entry says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [None, TURN, CLOSE])
def test_the_entry_says_the_same_whenever_it_is_written(line: Line, number: int | None) -> None:
    """Whole at once, after a turn that was written before, or after a close that was."""
    ref = line.recall.action("a", 1, status="unknown", args={"to": "ann", "api_key": "hunter2hunter2"}, written_epoch=2)
    line.recall.turns("a", 2)
    line.recall.lease("a", epoch=4, state="expired")
    digest = get_action(line.near, ref).digest
    if number is not None:
        line.cut(number, UNANSWERED)
        with pytest.raises(StoreUnavailable):
            decide(line.store, ref, LONG, decision_id="decision-1", seen=digest)
        line.expire()

    entry = decide(line.near, ref, LONG, decision_id="decision-1", seen=digest).entry

    epoch = line.near.get_action("a", 1).action.written_epoch  # type: ignore[union-attr]
    assert (entry.kind, entry.actor, entry.tool, entry.outcome, entry.reason, entry.seq) == (
        "settled", "operator ana", "send_email", "done", "found in the Sent folder", 1,
    )  # fmt: skip
    assert entry.detail == {
        "before": {
            "status": "unknown",
            "resolution": "",
            "error": "",
            "result": "",
            "epoch": 2,
            "args": '{"api_key": "[redacted]", "to": "ann"}',
            "args_digest": sha256_text('{"api_key": "hunter2hunter2", "to": "ann"}'),
        },
        "after": {
            "status": "done",
            "resolution": "operator ana: found in the Sent folder",
            "error": "",
            "result": "x" * 3999 + "…",
            "result_digest": sha256_text("x" * 9000),
            "epoch": epoch,
        },
        "turn": 3,
        "started_at": time_text(1),
        "lease": None,
        "seen": digest,
    }
    intent = line.near.list_entries(limit=1, before=entry.number)[0]
    assert intent.kind == "settling"
    assert {**intent.detail, "holder": ""} == {**entry.detail, "holder": ""}
    assert str(intent.detail["holder"]).startswith("console:operator-ana:")


# --- half done, and somebody else comes ----------------------------------------------------------------------------------


@dataclass
class Other:
    """Another operator's decision about the same action."""

    store: PolignStore
    ref: ActionRef
    raised: list[Exception] = field(default_factory=list)

    def decide(self) -> Settled:
        return settle(
            self.store, self.ref, an_end(ActionStatus.FAILED, "no"), actor="operator ben", decision_id="decision-of-ben"
        )


def test_another_decision_writes_no_second_turn_over_a_half_done_one(line: Line) -> None:
    ref = line.begun()
    line.half_done(ref)
    before = look_at_world(line.near, line.recall, "a")

    with pytest.raises(WriteConflict, match="decision decision-1 about action main/a/1 is half written: turn 3 tells it"):
        Other(line.near, ref).decide()

    assert look_at_world(line.near, line.recall, "a") == before
    assert not decide(line.near, ref, LONG, decision_id="decision-1").is_repeat
    assert is_settled(line)
    with pytest.raises(ActionNotOpen):
        Other(line.near, ref).decide()


def test_a_console_with_a_history_of_its_own_sees_a_half_done_decision_too(
    line: Line, alone_url: str, polign_server: RunningPolign
) -> None:
    """The turn says which action it is about: no entry is needed to know that."""
    ref = line.begun()
    line.half_done(ref)
    line.recall.turns("a", 2)
    collection = line.recall.collection.removesuffix("_agents")
    with closing(PolignStore(polign_server.url(collection), entries_url=alone_url)) as foreign:
        with pytest.raises(WriteConflict, match="half written"):
            Other(foreign, ref).decide()

        assert foreign.read_head().number == 0


def test_a_half_done_decision_behind_hundreds_of_turns_is_remembered_by_its_intent(line: Line) -> None:
    """Its turn is looked for where the intent says that it is, however long ago that was."""
    ref = line.begun()
    line.half_done(ref)
    line.recall.put_many(line.recall.turn_records("a", 4, 3 + WINDOW))

    with pytest.raises(WriteConflict, match="turn 3 tells it"):
        Other(line.near, ref).decide()
    assert decide(line.near, ref, LONG, decision_id="decision-1").turn_seq == 3
    assert len(told(line.near)) == 0  # further back than one looks
    assert len(line.recall.record_ids()) == len(["the action", "the output"]) + 3 + WINDOW


def test_an_intent_without_a_turn_stands_in_nobodys_way(line: Line) -> None:
    ref = line.begun()
    line.half_done(ref, at=OUTPUT)
    line.expire()

    other = Other(line.near, ref).decide()

    assert other.turn_seq == 3
    assert told(line.near) == ["settle:1:decision-of-ben"]
    with pytest.raises(ActionNotOpen) as caught:
        decide(line.near, ref, LONG, decision_id="decision-1")
    assert caught.value.entry == other.entry
    assert kinds(line.near) == ["settling", "settling", "settled"]


def test_another_action_of_the_agent_is_not_held_up(line: Line) -> None:
    ref, other = line.begun(), line.recall.action("a", 2)
    line.half_done(ref)

    assert decide(line.near, other).turn_seq == 4
    assert decide(line.near, ref, LONG, decision_id="decision-1").turn_seq == 3


def test_a_resume_between_the_turn_and_the_close_changes_nothing(line: Line) -> None:
    """It turns `started` into `unknown`: what was shown before was compared before the turn was written."""
    ref = line.begun()
    digest = get_action(line.near, ref).digest
    line.cut(CLOSE, LOST)
    with pytest.raises(StoreUnavailable):
        decide(line.store, ref, LONG, decision_id="decision-1", seen=digest)
    line.recall.action("a", 1, status="unknown", resolution="interrupted; no resolver", written_epoch=9)
    line.recall.turn("a", 4, "what is going on?")
    line.recall.lease("a", "pod-b", 9, "released")

    assert decide(line.near, ref, LONG, decision_id="decision-1", seen=digest).turn_seq == 3
    assert is_settled(line)


@pytest.mark.parametrize("status", ["done", "failed"])
def test_an_agent_that_ended_it_itself_between_turn_and_close_is_told_of(line: Line, status: str) -> None:
    ref = line.begun()
    line.half_done(ref)
    line.recall.action("a", 1, status=status, written_epoch=9, resolution="asked the mailbox")
    before = look_at_world(line.near, line.recall, "a")

    with pytest.raises(
        WriteConflict, match=f"turn 3 tells the agent of this decision, but the agent ended .* itself meanwhile: {status}"
    ):
        decide(line.near, ref, LONG, decision_id="decision-1")

    assert look_at_world(line.near, line.recall, "a") == before


def test_an_end_in_our_words_under_another_epoch_is_not_ours(line: Line) -> None:
    ref = line.begun()
    line.half_done(ref)
    line.recall.action("a", 1, status="done", resolution=LONG.resolution, written_epoch=9)

    with pytest.raises(WriteConflict):
        decide(line.near, ref, LONG, decision_id="decision-1")
    assert kinds(line.near) == ["settling"]


def test_while_somebody_holds_the_agent_a_half_done_decision_is_not_called_unwritten(line: Line) -> None:
    ref = line.begun()
    line.half_done(ref)
    line.recall.acquire("a", "pod-b")

    with pytest.raises(StoreUnavailable, match="an earlier attempt .* pod-b holds the agent until") as caught:
        decide(line.near, ref, LONG, decision_id="decision-1")

    assert caught.value.may_be_written
    with pytest.raises(WriteConflict):
        Other(line.near, ref).decide()


def test_a_decision_that_meets_a_living_agent_leaves_no_entry_however_often_it_is_tried(line: Line) -> None:
    ref = line.begun()
    line.recall.lease("a", "pod-b", 7, "live")
    before = look_at_world(line.near, line.recall, "a")

    for _ in range(3):
        with pytest.raises(LeaseLive) as caught:
            decide(line.store, ref, decision_id="decision-1")
        assert (caught.value.lease.holder, caught.value.lease.epoch, caught.value.lease.is_live) == ("pod-b", 7, True)

    assert look_at_world(line.near, line.recall, "a") == before


def test_a_close_whose_entry_is_missing_is_completed_while_the_agent_lives_again(line: Line) -> None:
    ref = line.begun()
    line.half_done(ref, how=UNANSWERED)
    line.recall.acquire("a", "pod-b")
    before = look_at_world(line.near, line.recall, "a")

    assert decide(line.near, ref, LONG, decision_id="decision-1").turn_seq == 3

    after = look_at_world(line.near, line.recall, "a")
    assert (after.records, after.leases) == (before.records, before.leases)
    assert kinds(line.near) == ["settling", "settled"]


@pytest.mark.parametrize("at", [TURN, CLOSE])
def test_an_id_that_has_begun_stands_for_its_decision(line: Line, at: int) -> None:
    ref, other = line.begun(), line.recall.action("b", 1)
    line.half_done(ref, at=at)
    before = look_at_world(line.near, line.recall, "a")

    with pytest.raises(DecisionIdReused):
        decide(line.near, ref, an_end(ActionStatus.FAILED, "no"), decision_id="decision-1")
    with pytest.raises(DecisionIdReused):
        decide(line.near, other, LONG, decision_id="decision-1")

    after = look_at_world(line.near, line.recall, "a")
    assert (after.records, after.leases, after.head) == (before.records, before.leases, before.head)


def test_a_turn_that_is_there_although_we_hold_the_lease_is_never_overwritten(line: Line) -> None:
    """A process that lost the agent without noticing: the server does not stop it."""
    ref = line.begun()

    def write_at_the_last_moment(request: str) -> None:
        if request == f"GET {line.path}/vectors/a:turn:3":
            line.recall.turn("a", 3, "I am back")

    line.gateway.before = write_at_the_last_moment

    with pytest.raises(WriteConflict, match="turn 3 of agent a exists although we hold its lease"):
        decide(line.store, ref, decision_id="decision-1")

    assert line.recall.body_of("a:turn:3")["content"] == "I am back"
    assert line.recall.body_of("a:act:1")["status"] == "started"
    line.gateway.before = lambda request: None
    assert decide(line.store, ref, decision_id="decision-1").turn_seq == 4


def test_other_kinds_of_entries_stand_around_them(line: Line) -> None:
    ref = line.begun()
    for kind in ("proposed", "waiting"):
        line.store.append_entry(NewEntry(kind=kind, actor="operator ana", agent="a", seq=1, decision_id="decision-1"))
    decide(line.store, ref, decision_id="decision-1")

    assert kinds(line.near) == ["proposed", "waiting", "settling", "settled"]
    assert verify(line.near).is_intact


CORRECTING = 8
"""Of a correction's requests, which are those of a settle as far as the turn: the one that writes it."""


@pytest.mark.parametrize("how", [LOST, UNANSWERED])
@pytest.mark.parametrize("number", [3, 6, CORRECTING])
def test_a_correction_that_is_cut_off_is_repaired_by_asking_again(line: Line, number: int, how: str) -> None:
    ref = line.begun()
    decide(line.near, ref, decision_id="decision-1")
    words = make_correction("failed", "no copy", actor="operator bea")
    before = look_at_world(line.near, line.recall)
    line.gateway.asked.clear()
    line.gateway.headers.clear()
    line.cut(number, how)

    with pytest.raises(StoreUnavailable) as caught:
        correct(line.store, ref, words, actor="operator bea", decision_id="correction-1")

    assert caught.value.may_be_written == (number == CORRECTING)
    after = look_at_world(line.near, line.recall)
    changed = {key for key in after.records if after.records[key] != before.records.get(key)}
    assert changed == ({"a:turn:4"} if number == CORRECTING and how == UNANSWERED else set())
    line.expire()
    line.gateway.mend()
    if changed:  # the agent goes on between the attempts, further than is looked back
        for seq in range(5, WINDOW + 10):
            line.recall.turn("a", seq, "I go on")

    again = correct(line.near, ref, words, actor="operator bea", decision_id="correction-1")

    assert (again.turn_seq, again.is_repeat) == (4, False)
    marked = [
        turn for turn in line.near.list_turns("a", limit=WINDOW * 2) if isinstance(turn, Turn) and "correct:" in turn.message_id
    ]
    assert [(turn.seq, turn.message_id) for turn in marked] == [(4, "correct:1:correction-1")]
    assert correct(line.near, ref, words, actor="operator bea", decision_id="correction-1").is_repeat
    assert kinds(line.near).count("corrected") == 1
    assert line.recall.body_of("a:act:1")["status"] == "done"
    assert verify(line.near).is_intact
