"""Two who want the same at the same moment: always exactly one wins, and the other knows."""

from __future__ import annotations

from functools import partial

import pytest

from actions.errors import ActionNotOpen, DecisionIdReused, LeaseLive
from actions.records import ActionRef, ActionStatus, NewEntry, Settled, Turn
from actions.settle import settle
from actions.store.base import ActionStore
from tests.recall_writer import turn_metadata
from tests.store.conftest import Backend, fenced
from tests.store.gestures import an_end, decide, race, verify

ROUNDS = 12
pytestmark = fenced


def turn_names(store: ActionStore, agent: str) -> list[str]:
    return [turn.name for turn in store.list_turns(agent, limit=50) if isinstance(turn, Turn)]


def test_of_two_operators_one_decides_and_the_other_sees_it_closed(backend: Backend) -> None:
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
        assert lease[1:] == (5, "released")
    assert store.read_head().number == ROUNDS
    assert verify(store).is_intact


def test_a_double_submit_is_written_once(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        ref = recall.action(f"a{number}", 1)
        click = f"decision-click-{number}"

        answers = race(
            partial(decide, store, ref, decision_id=click),
            partial(decide, other, ref, decision_id=click),
        )

        first, second = answers
        assert isinstance(first, Settled), first
        assert isinstance(second, Settled), second
        assert sorted([first.is_repeat, second.is_repeat]) == [False, True]
        assert first.entry == second.entry
        assert turn_names(store, ref.agent) == ["send_email"]
    assert store.read_head().number == ROUNDS


def test_one_decision_id_for_two_agents_is_written_for_one(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        refs = [recall.action(f"{name}{number}", 1) for name in "ab"]
        click = f"decision-click-{number}"

        answers = race(
            partial(decide, store, refs[0], decision_id=click),
            partial(decide, other, refs[1], decision_id=click),
        )

        written = [answer for answer in answers if isinstance(answer, Settled)]
        refused = [answer for answer in answers if isinstance(answer, DecisionIdReused)]
        assert (len(written), len(refused)) == (1, 1), answers
        loser = next(ref for ref in refs if ref.agent != written[0].entry.agent)
        assert recall.body_of(f"{loser.agent}:act:1")["status"] == "started"
        assert recall.lease_of(loser.agent) is None
        assert turn_names(store, loser.agent) == []
    assert verify(store).is_intact


def test_operator_against_a_resuming_agent(backend: Backend) -> None:
    store, recall, agent = backend.store, backend.recall, backend.another()
    for number in range(ROUNDS):
        ref = recall.action(f"a{number}", 1)
        recall.lease(ref.agent, holder="pod-a", epoch=1)

        settled, epoch = race(
            partial(decide, store, ref),
            partial(agent.acquire, ref.agent, "pod-b"),
        )

        lease = recall.lease_of(ref.agent)
        if isinstance(settled, Settled):
            # Ours first. The agent either came after us, or met our lease and tries again.
            assert epoch in (4, None)
            assert lease is not None
            assert lease[1:] == ((4, "live") if epoch else (3, "released"))
            assert turn_names(store, ref.agent) == ["send_email"]
        else:
            assert isinstance(settled, LeaseLive), settled
            assert settled.lease.holder == "pod-b"
            assert (epoch, lease) == (2, ("pod-b", 2, "live"))
            assert recall.body_of(f"{ref.agent}:act:1")["status"] == "started"
            assert turn_names(store, ref.agent) == []


def test_a_frozen_holder_that_thaws_is_fenced_off(backend: Backend) -> None:
    store, recall = backend.store, backend.recall
    ref = recall.action("a", 1)
    recall.turns("a", 3)
    recall.lease("a", holder="pod-a", epoch=6, state="expired")
    stale_action = recall.metadata_of("a:act:1")
    assert stale_action is not None

    decide(store, ref)

    assert not recall.write_fenced("a", "pod-a", 6, "a:turn:4", turn_metadata("a", 4, "I am back"))
    assert not recall.write_fenced("a", "pod-a", 6, "a:act:1", stale_action)
    assert turn_names(store, "a")[0] == "send_email"
    assert recall.body_of("a:act:1")["status"] == "done"


def test_a_holder_that_was_not_taken_over_may_still_write(backend: Backend) -> None:
    """An expired lease is not a lost one: a settle must take it, not just look at it (recall-records 5.3)."""
    recall = backend.recall
    recall.action("a", 1)
    recall.lease("a", holder="pod-a", epoch=6, state="expired")

    assert recall.write_fenced("a", "pod-a", 6, "a:turn:1", turn_metadata("a", 1, "I am slow"))


def test_operators_on_different_actions_of_one_agent_both_write(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        agent = f"a{number}"
        first, second = recall.action(agent, 1), recall.action(agent, 2)

        answers = race(partial(decide, store, first), partial(decide, other, second))

        assert sorted(_turn(answer) for answer in answers) == [1, 2], answers
        assert turn_names(store, agent) == ["send_email", "send_email"]


def _turn(answer: object) -> int:
    return answer.turn_seq if isinstance(answer, Settled) else -1


@pytest.mark.parametrize("threads", [8])
def test_the_chain_holds_after_many_threads_wrote_at_once(backend: Backend, threads: int) -> None:
    recall, settles = backend.recall, 6
    refs = [[recall.action(f"agent-{thread}-{number}", 1) for number in range(settles)] for thread in range(threads)]
    before = recall.revision()

    stores = [backend.again() for _ in refs]

    def work(store: ActionStore, mine: list[ActionRef]) -> int:
        return sum(1 for ref in mine if not decide(store, ref).is_repeat)

    answers = race(*(partial(work, *pair) for pair in zip(stores, refs, strict=True)))

    assert answers == [settles] * threads
    report = verify(backend.store)
    assert (report.is_intact, report.entries) == (True, threads * settles)
    assert recall.revision() == before + 2 * threads * settles


def test_settles_steps_and_what_was_seen_never_fork_the_chain(backend: Backend) -> None:
    """Every kind of write to the history at one moment, each by a connection of its own."""
    rounds, recall = 6, backend.recall
    refs = [[recall.action(f"{name}-{number}", 1) for number in range(rounds)] for name in "ab"]
    stores = [backend.again() for _ in range(6)]

    def settles(store: ActionStore, mine: list[ActionRef]) -> int:
        return sum(1 for ref in mine if not decide(store, ref).is_repeat)

    def appends(store: ActionStore, kind: str) -> int:
        return sum(
            1 for n in range(rounds) if store.append_entry(NewEntry(kind=kind, actor="operator ana", agent="c", seq=n + 1))
        )

    def observes(store: ActionStore) -> int:
        entries = [
            NewEntry(kind="observed", actor="system watcher", agent="d", seq=n + 1, decision_id="end") for n in range(rounds)
        ]
        return sum(1 for entry in entries if store.append_observed(entry))

    answers = race(
        partial(settles, stores[0], refs[0]),
        partial(settles, stores[1], refs[1]),
        partial(appends, stores[2], "proposed"),
        partial(appends, stores[3], "waiting"),
        partial(observes, stores[4]),
        partial(observes, stores[5]),
    )

    assert answers == [rounds] * 6
    links = list(backend.store.iterate_links())
    assert [link.number for link in links] == list(range(1, 5 * rounds + 1))  # what two saw stands once
    assert backend.store.read_head().hash == links[-1].hash
    assert verify(backend.store).is_intact
