"""What is read over all agents for the page of agents and for whoever watches: leases, those that end last first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from actions.records import Output, Unreadable, WorkingState
from actions.store.base import ActionStore
from tests.recall_writer import RecordWriter
from tests.store.conftest import fenced


@fenced
def test_the_leases_of_all_agents_come_with_those_that_end_last_first(store: ActionStore, recall: RecordWriter) -> None:
    recall.lease("gave-up", "pod-a:1:aaaa", 9, "released")
    recall.lease("died", "pod-b:2:bbbb", 4, "expired")
    recall.lease("lives-b", "pod-c:3:cccc", 2, "live", ttl=timedelta(seconds=30))
    recall.lease("lives-a", "pod-c:4:dddd", 3, "live", ttl=timedelta(seconds=90))
    recall.action("never-leased", 1)

    read = store.read_leases(limit=10)

    assert not read.is_truncated
    assert [(lease.agent, lease.holder, lease.epoch) for lease in read.leases] == [
        ("lives-a", "pod-c:4:dddd", 3),
        ("lives-b", "pod-c:3:cccc", 2),
        ("died", "pod-b:2:bbbb", 4),
        ("gave-up", "pod-a:1:aaaa", 9),
    ]
    assert [(lease.is_live, lease.is_released) for lease in read.leases] == [(True, False)] * 2 + [(False, False), (False, True)]
    assert read.leases[0] == _read_again(store, read.leases[0].agent, read.leases[0].read_at)


def _read_again(store: ActionStore, agent: str, at: int) -> object:
    """The lease as it is read alone, at the other reading's moment."""
    lease = store.find_lease(agent)
    assert lease is not None
    return replace(lease, read_at=at)


@fenced
def test_beyond_the_limit_it_says_so_and_keeps_what_is_live(store: ActionStore, recall: RecordWriter) -> None:
    for number in range(3):
        recall.lease(f"old-{number}", state="released")
    recall.lease("z-live", state="live")

    read = store.read_leases(limit=2)

    assert read.is_truncated
    assert [lease.agent for lease in read.leases] == ["z-live", "old-0"]


def test_leases_are_read_without_a_lock_and_where_there_are_none(store: ActionStore, recall: RecordWriter) -> None:
    assert store.read_leases(limit=5).leases == ()
    recall.lease("a", epoch=4, state="live")

    assert len(store.read_leases(limit=5).leases) == int(store.leases_known)
    assert recall.lease_of("a") == ("pod-a:1:aaaa", 4, "live")


def test_versions_of_the_working_state_come_newest_first_without_the_head(store: ActionStore, recall: RecordWriter) -> None:
    for version in range(1, 13):
        recall.working_state("a", version=version, goal=f"goal {version}")
    recall.working_state("b", version=40)

    states = store.list_working_states("a", limit=3)

    assert [state.version for state in states if isinstance(state, WorkingState)] == [12, 11, 10]
    assert [s.version for s in store.list_working_states("a", limit=2, before=10) if isinstance(s, WorkingState)] == [9, 8]
    assert len(store.list_working_states("a", limit=99)) == 12
    assert store.list_working_states("nobody", limit=5) == ()


def test_a_version_that_cannot_be_decoded_keeps_its_number(store: ActionStore, recall: RecordWriter) -> None:
    recall.working_state("a", version=1)
    recall.working_state("a", version=2, body="{")

    broken, whole = store.list_working_states("a", limit=5)

    assert isinstance(broken, Unreadable)
    assert (broken.record_id, broken.seq) == ("a:ws:2", 2)
    assert isinstance(whole, WorkingState)


def test_an_agents_outputs_come_whole_by_ref_and_no_other_agents(store: ActionStore, recall: RecordWriter) -> None:
    for ref in ("r-2", "r-10", "r-1"):
        recall.output("a", ref, f"content of {ref}")
    recall.output("b", "r-3", "of another")
    recall.output("a", "s-broken", "x", body="{")

    outputs = store.list_outputs("a", limit=9)

    assert [output.ref for output in outputs if isinstance(output, Output)] == ["r-1", "r-10", "r-2"]
    assert [output.content for output in store.list_outputs("a", limit=1) if isinstance(output, Output)] == ["content of r-1"]
    assert isinstance(outputs[-1], Unreadable)
    assert store.list_outputs("nobody", limit=5) == ()
