"""What a watcher writes down: who was seen to hold an agent. Once, however many watch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from actions.records import Lease
from actions.times import RELEASED, SECOND, from_datetime, to_datetime
from console.models import Observation
from console.services.observe import Observer
from tests.recall_writer import BEGAN

pytestmark = pytest.mark.django_db

START = from_datetime(BEGAN)
MINUTE = 60 * SECOND


def a_lease(
    holder: str = "pod-a:1:aaaa", epoch: int = 1, *, at_s: float = 0, ends_s: float | None = 60, agent: str = "m-1"
) -> Lease:
    """A lease read so many seconds after START; it ends so many after it. None: released."""
    expires = RELEASED if ends_s is None else START + int(ends_s * SECOND)
    return Lease(agent=agent, holder=holder, epoch=epoch, expires_at=expires, read_at=START + int(at_s * SECOND))


def at(seconds: float) -> datetime:
    return to_datetime(START) + timedelta(seconds=seconds)


def rows() -> list[tuple[str, int, int, str, datetime | None]]:
    found = Observation.objects.order_by("lowest_epoch")
    return [(row.holder, row.lowest_epoch, row.highest_epoch, row.state, row.silent_at) for row in found]


def test_a_holder_is_written_once_and_not_again_for_each_renewal(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    watcher = Observer("main")
    watcher.observe([a_lease()])

    with django_assert_num_queries(0):
        for turn in range(1, 4):
            assert watcher.observe([a_lease(epoch=1 + turn, at_s=15 * turn, ends_s=60 + 15 * turn)]) == 0
    with django_assert_num_queries(1):
        assert watcher.observe([a_lease(epoch=5, at_s=61, ends_s=120)]) == 1

    row = Observation.objects.get()
    assert (row.lowest_epoch, row.highest_epoch, row.state) == (1, 5, "live")
    assert (row.first_seen_at, row.last_seen_at) == (at(0), at(61))


def test_a_second_watcher_adds_nothing_within_the_minute_and_takes_nothing_back() -> None:
    Observer("main").observe([a_lease(epoch=4, at_s=30)])
    before = Observation.objects.values().get()

    Observer("main").observe([a_lease(epoch=5, at_s=45, ends_s=90)])
    assert Observation.objects.values().get() == before

    Observer("main").observe([a_lease(epoch=3, at_s=10)])  # an older view, written later
    row = Observation.objects.get()
    assert (row.lowest_epoch, row.highest_epoch) == (3, 4)
    assert (row.first_seen_at, row.last_seen_at, row.state) == (at(30), at(30), "live")


def test_a_lease_that_runs_out_is_silent_since_its_expiry_and_a_thawed_holder_speaks_again() -> None:
    watcher = Observer("main")
    watcher.observe([a_lease(epoch=2)])
    watcher.observe([a_lease(epoch=2, at_s=75)])
    assert rows() == [("pod-a:1:aaaa", 2, 2, "expired", at(60))]

    Observer("main").observe([a_lease(epoch=2, at_s=59)])  # a slower watcher still saw it live
    assert rows() == [("pod-a:1:aaaa", 2, 2, "expired", at(60))]

    watcher.observe([a_lease(epoch=3, at_s=80, ends_s=140)])
    assert rows() == [("pod-a:1:aaaa", 2, 3, "live", None)]


@pytest.mark.parametrize("same_process", [True, False])
def test_a_release_is_dated_only_where_the_lease_was_seen_live_just_before(same_process: bool) -> None:
    watcher = Observer("main")
    watcher.observe([a_lease(epoch=2), a_lease("pod-b:9:ffff", agent="m-2", ends_s=None)])
    later = watcher if same_process else Observer("main")

    later.observe([a_lease(epoch=3, at_s=20, ends_s=None)])

    assert sorted(rows()) == [("pod-a:1:aaaa", 2, 3, "released", at(20)), ("pod-b:9:ffff", 1, 1, "released", None)]


def test_a_takeover_between_two_looks_ends_the_one_before_with_all_that_was_seen_of_it() -> None:
    watcher = Observer("main")
    watcher.observe([a_lease(epoch=1)])
    watcher.observe([a_lease(epoch=2, at_s=20, ends_s=80)])

    watcher.observe([a_lease("pod-b:2:bbbb", 3, at_s=90, ends_s=150)])

    assert rows() == [("pod-a:1:aaaa", 1, 2, "expired", at(80)), ("pod-b:2:bbbb", 3, 3, "live", None)]


def test_our_own_settles_are_no_holders() -> None:
    watcher = Observer("main")
    watcher.observe([a_lease(epoch=1)])
    watcher.observe([a_lease("console:ana:7f3a9c20", 3, at_s=70, ends_s=None)])
    watcher.observe([a_lease("console:ana:7f3a9c20", 3, at_s=200, ends_s=None)])

    assert rows() == [("pod-a:1:aaaa", 1, 1, "expired", at(60))]


def test_names_that_no_column_can_hold_take_nothing_down() -> None:
    odd = [
        a_lease("pod\x00\ud800:1:aaaa", agent="odd-holder"),
        a_lease("h" * 5000, agent="long-holder"),
        a_lease(agent="a\x00"),
        a_lease(agent="\ud800"),
        a_lease(agent="x" * 400),
        a_lease(epoch=2**70, agent="odd-epoch"),
        a_lease("", agent="nobody"),
    ]

    assert Observer("main").observe(odd) == 2
    assert {row.agent for row in Observation.objects.all()} == {"odd-holder", "long-holder"}


@pytest.mark.django_db(transaction=True)
def test_eight_watchers_at_once_leave_one_row_for_each_holder() -> None:
    leases = [a_lease(agent=f"m-{n}", holder=f"pod-{n % 3}:1:aaaa") for n in range(40)]
    gate = threading.Barrier(8)

    def watch(number: int) -> None:
        try:
            seen = [replace(lease, epoch=1 + number) for lease in (leases if number % 2 else reversed(leases))]
            gate.wait()
            Observer("main").observe(seen)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(watch, range(8)))

    found = Observation.objects.all()
    assert len(found) == 40
    assert {row.lowest_epoch for row in found} == {1}
