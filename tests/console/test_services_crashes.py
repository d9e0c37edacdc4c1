"""Which calls in doubt one crash left: the same process, or one host that fell silent within a minute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pytest_django import DjangoAssertNumQueries

from actions.queries import IN_DOUBT, ActionItem, list_actions
from console.services.crashes import CrashGroup, groups_of, host_of
from console.services.observe import Observer
from console.stores import list_stores
from tests.console.test_services_observe import a_lease, at
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def items() -> tuple[ActionItem, ...]:
    return list_actions(list_stores(), replace(IN_DOUBT, classes=frozenset()), limit=200).items


def groups() -> dict[str, CrashGroup]:
    return {f"{ref.agent}/{ref.seq}": crash for ref, crash in groups_of(items()).items()}


def died(agent: str, holder: str, *, epoch: int = 1, silent_s: float = 60) -> None:
    """A holder that somebody watched until its lease ran out."""
    watcher = Observer("main")
    watcher.observe([a_lease(holder, epoch, agent=agent, at_s=silent_s - 30, ends_s=silent_s)])
    watcher.observe([a_lease(holder, epoch, agent=agent, at_s=silent_s + 5, ends_s=silent_s)])


def test_one_host_that_falls_silent_within_a_minute_is_one_crash(
    records: RecordWriter, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for agent, holder, silent_s in (
        ("m-1", "pod-a:1:aaaa", 55),
        ("m-2", "pod-a:2:bbbb", 70),
        ("m-3", "pod-a:3:cccc", 400),
        ("m-4", "pod-b:1:dddd", 60),
    ):
        died(agent, holder, silent_s=silent_s)
        records.action(agent, 1)
    records.action("m-2", 2, status="unknown")
    listed = items()

    with django_assert_num_queries(1):
        found = {f"{ref.agent}/{ref.seq}": crash for ref, crash in groups_of(listed).items()}

    assert found["m-1/1"] == found["m-2/1"] == found["m-2/2"]
    assert len({crash.key for crash in found.values()}) == 3
    assert found["m-1/1"].label == f"pod-a went silent at {at(55):%H:%M} UTC, seen: 3 calls of 2 agents"
    assert (found["m-3/1"].calls, found["m-4/1"].calls) == (1, 1)


def test_calls_of_two_processes_of_one_agent_are_two_crashes(records: RecordWriter) -> None:
    died("m-1", "pod-a:1:aaaa", epoch=3)
    died("m-1", "pod-b:7:bbbb", epoch=6, silent_s=900)
    records.action("m-1", 1, epoch=3, status="unknown")
    records.action("m-1", 2, epoch=6)
    records.action("m-1", 3, epoch=4, status="unknown")  # between the two: nobody can tell

    found = groups()

    assert [found[f"m-1/{seq}"].who for seq in (1, 2, 3)] == ["pod-a", "pod-b", "m-1"]
    assert found["m-1/3"].label == "m-1: nobody saw its process go: 1 call"


def test_without_observations_the_lease_says_who_died_only_where_nobody_resumed(records: RecordWriter) -> None:
    records.lease("m-1", "pod-a:1:aaaa", 4, "expired")
    records.action("m-1", 1)
    records.action("m-1", 2, status="unknown")
    records.lease("m-2", "console:ana:7f3a9c20", 4, "released")
    records.action("m-2", 1)

    found = groups()

    assert (found["m-1/1"].who, found["m-1/1"].is_seen, found["m-1/1"].at is None) == ("pod-a", False, False)
    assert ", seen" not in found["m-1/1"].label
    assert [found[name].who for name in ("m-1/2", "m-2/1")] == ["m-1", "m-2"]


def test_a_settle_of_ours_does_not_part_what_one_crash_left(records: RecordWriter) -> None:
    died("m-1", "pod-a:1:aaaa", epoch=2)
    records.lease("m-1", "console:ana:7f3a9c20", 4, "released")
    records.action("m-1", 1, epoch=2)
    records.action("m-1", 2, epoch=2, status="unknown")

    found = groups()

    assert found["m-1/1"] == found["m-1/2"]
    assert found["m-1/1"].is_seen


def test_releases_that_nobody_dated_are_not_thrown_together(records: RecordWriter) -> None:
    """A watcher that starts after the fact finds them all at once; that is no crash of the host."""
    Observer("main").observe(
        [a_lease("pod-a:1:aaaa", agent="m-1", ends_s=None), a_lease("pod-a:2:bbbb", agent="m-2", ends_s=None)]
    )
    records.action("m-1", 1)
    records.action("m-2", 1)

    found = groups()

    assert found["m-1/1"] != found["m-2/1"]
    assert found["m-1/1"].who == "pod-a:1:aaaa"


def test_what_is_not_in_doubt_has_no_group_and_costs_no_query(
    records: RecordWriter, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    records.lease("live-1", state="live")
    records.action("live-1", 1)
    listed = list_actions(list_stores(), replace(IN_DOUBT, states=frozenset(), classes=frozenset()), limit=9).items
    assert len(listed) == 1

    with django_assert_num_queries(0):
        assert groups_of(listed) == {}
        assert groups_of(()) == {}


@pytest.mark.parametrize(
    ("holder", "host"),
    [("vm:19961:3171617c", "vm"), ("fe80::1:77:aaaa0000", "fe80::1"), ("worker", ""), ("a:b:c", ""), ("", ""), ("x:1:zzzz", "")],
)
def test_a_host_is_read_only_out_of_a_name_as_recall_makes_it(holder: str, host: str) -> None:
    assert host_of(holder) == host
