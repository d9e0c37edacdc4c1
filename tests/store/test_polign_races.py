"""Two who want the same at the same moment on polign_db: the lease decides between consoles. What it does not stop, stands here too."""

from __future__ import annotations

from functools import partial

import pytest

from actions.errors import ActionNotOpen, DecisionIdReused, LeaseLive
from actions.records import ActionRef, ActionStatus, Settled, Turn
from actions.settle import settle
from actions.store.base import ActionStore
from tests.recall_writer import turn_metadata
from tests.store.conftest import Backend
from tests.store.gestures import an_end, decide, race, verify

ROUNDS = 8
pytestmark = pytest.mark.parametrize("backend", ["polign"], indirect=True)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up another's lease because the machine is busy."""
    monkeypatch.setattr("actions.store.steps.WAIT_S", 60.0)


def turn_names(store: ActionStore, agent: str) -> list[str]:
    return [turn.name for turn in store.list_turns(agent, limit=50) if isinstance(turn, Turn)]


def settled_numbers(store: ActionStore) -> list[int]:
    return [entry.number for entry in store.list_entries(limit=500) if entry.kind == "settled"]


def test_of_two_operators_one_decides_and_the_other_sees_it_closed(backend: Backend) -> None:
    """The second waits a moment for the first one's lease, as databases let one wait for a lock."""
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        ref = recall.action(f"a{number}", 1)
        recall.lease(ref.agent, epoch=3)

        answers = race(
            partial(settle, store, ref, an_end(), actor="operator ana", decision_id=f"ana-decision-{ref.agent}"),
            partial(
                settle,
                other,
                ref,
                an_end(ActionStatus.FAILED, "no"),
                actor="operator ben",
                decision_id=f"ben-decision-{ref.agent}",
            ),
        )

        written = [answer for answer in answers if isinstance(answer, Settled)]
        refused = [answer for answer in answers if isinstance(answer, ActionNotOpen)]
        assert (len(written), len(refused)) == (1, 1), answers
        assert refused[0].entry == written[0].entry
        assert refused[0].action.status == written[0].entry.outcome
        assert turn_names(store, ref.agent) == ["send_email"]
        lease = recall.lease_of(ref.agent)
        assert lease is not None
        assert lease[2] == "released"
    assert len(settled_numbers(store)) == ROUNDS
    assert verify(store).is_intact


def test_a_double_submit_is_written_once(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        ref = recall.action(f"a{number}", 1)
        click = f"decision-click-{number}"

        first, second = race(partial(decide, store, ref, decision_id=click), partial(decide, other, ref, decision_id=click))

        assert isinstance(first, Settled), first
        assert isinstance(second, Settled), second
        assert sorted([first.is_repeat, second.is_repeat]) == [False, True]
        assert first.entry == second.entry
        assert turn_names(store, ref.agent) == ["send_email"]
    assert len(settled_numbers(store)) == ROUNDS


def test_one_decision_id_for_two_agents_is_written_for_one(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        refs = [recall.action(f"{name}{number}", 1) for name in "ab"]
        click = f"decision-click-{number}"

        answers = race(partial(decide, store, refs[0], decision_id=click), partial(decide, other, refs[1], decision_id=click))

        written = [answer for answer in answers if isinstance(answer, Settled)]
        refused = [answer for answer in answers if isinstance(answer, DecisionIdReused)]
        assert (len(written), len(refused)) == (1, 1), answers
        loser = next(ref for ref in refs if ref.agent != written[0].entry.agent)
        assert recall.body_of(f"{loser.agent}:act:1")["status"] == "started"
        assert turn_names(store, loser.agent) == []
        assert store.list_entries(limit=5, agent=loser.agent) == ()
    assert verify(store).is_intact


def test_operator_against_a_resuming_agent(backend: Backend) -> None:
    store, recall, agent = backend.store, backend.recall, backend.another()
    for number in range(ROUNDS):
        ref = recall.action(f"a{number}", 1)
        recall.lease(ref.agent, holder="pod-a", epoch=1)

        settled, epoch = race(partial(decide, store, ref), partial(agent.acquire, ref.agent, "pod-b"))

        if isinstance(settled, Settled):
            assert epoch in (4, None)  # after us, or it met our lease and tries again
            assert turn_names(store, ref.agent) == ["send_email"]
        else:
            assert isinstance(settled, LeaseLive), settled
            assert settled.lease.holder == "pod-b"
            assert epoch == 2
            assert recall.body_of(f"{ref.agent}:act:1")["status"] == "started"
            assert turn_names(store, ref.agent) == []


def test_operators_on_different_actions_of_one_agent_both_write(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        agent = f"a{number}"
        first, second = recall.action(agent, 1), recall.action(agent, 2)

        answers = race(partial(decide, store, first), partial(decide, other, second))

        assert sorted(answer.turn_seq if isinstance(answer, Settled) else -1 for answer in answers) == [1, 2], answers
        assert turn_names(store, agent) == ["send_email", "send_email"]


def test_the_chain_holds_after_many_threads_wrote_at_once(backend: Backend) -> None:
    recall, threads, settles = backend.recall, 4, 5
    refs = [[recall.action(f"agent-{thread}-{number}", 1) for number in range(settles)] for thread in range(threads)]
    stores = [backend.again() for _ in refs]

    def work(store: ActionStore, mine: list[ActionRef]) -> int:
        return sum(1 for ref in mine if not decide(store, ref).is_repeat)

    answers = race(*(partial(work, *pair) for pair in zip(stores, refs, strict=True)))

    assert answers == [settles] * threads
    report = verify(backend.store)
    assert (report.is_intact, report.entries) == (True, 2 * threads * settles)


# --- what this server does not stop --------------------------------------------------------------------------------------


def test_a_frozen_holder_that_thaws_overwrites_what_we_wrote(backend: Backend) -> None:
    """Why every screen of such a store says so. Should a later server refuse this, the cautions are to go."""
    store, recall = backend.store, backend.recall
    ref = recall.action("a", 1)
    recall.turns("a", 3)
    recall.lease("a", holder="pod-a", epoch=6, state="expired")
    stale_action = recall.metadata_of("a:act:1")
    assert stale_action is not None
    decide(store, ref, decision_id="decision-1")

    assert recall.write_fenced("a", "pod-a", 6, "a:turn:4", turn_metadata("a", 4, "I am back"))
    assert recall.write_fenced("a", "pod-a", 6, "a:act:1", stale_action)

    assert turn_names(store, "a")[0] == ""
    assert recall.body_of("a:act:1")["status"] == "started"
    assert decide(store, ref, decision_id="decision-1").is_repeat  # what we wrote stands in the history
    assert any("does not fence writes" in caution for caution in store.check().cautions)


def test_a_close_that_was_overwritten_can_be_decided_anew(backend: Backend) -> None:
    """Its turn is no half of a settle: the history has the whole."""
    store, recall = backend.store, backend.recall
    ref = recall.action("a", 1)
    decide(store, ref, decision_id="decision-1")
    recall.action("a", 1)

    assert decide(store, ref, an_end(ActionStatus.FAILED, "no"), decision_id="decision-2").turn_seq == 2
    assert recall.body_of("a:act:1")["status"] == "failed"
    assert len(settled_numbers(store)) == 2


def test_a_lease_of_a_console_that_died_is_waited_for_only_a_moment(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actions.store.steps.WAIT_S", 0.1)
    store, recall = backend.store, backend.recall
    ref = recall.action("a", 1)
    recall.lease("a", "console:operator-ben:0123456789abcdef", 5, "live")

    with pytest.raises(LeaseLive) as caught:
        decide(store, ref)

    assert caught.value.lease.holder == "console:operator-ben:0123456789abcdef"
    assert store.read_head().number == 0
