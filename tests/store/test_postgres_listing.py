"""A long list takes metadata value by value where they are as Recall writes them: it must come to the same as reading one record whole."""

from __future__ import annotations

from typing import Any

import pytest

from actions.records import Action, ActionStatus, Unreadable
from actions.store.postgres import MAX_DECODED_CHARS, PostgresStore
from tests.recall_writer import RecallWriter

VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "as Recall writes them": ({}, ()),
    "a key that nobody knows": ({"team": "billing"}, ()),
    "a key that nobody knows with a value of its own size": ({"absurd": "x" * 10_000}, ()),
    "no class": ({}, ("class",)),
    "a class that is null": ({"class": None}, ()),
    "another class": ({"class": "pure"}, ()),
    "no epoch": ({}, ("epoch",)),
    "an epoch as MongoDB keeps it": ({"epoch": 1.0}, ()),
    "half an epoch": ({"epoch": 1.5}, ()),
    "a negative epoch": ({"epoch": -1}, ()),
    "an epoch beyond any integer": ({"epoch": 10**40}, ()),
    "an epoch that is a text": ({"epoch": "1"}, ()),
    "an epoch that is null": ({"epoch": None}, ()),
    "an act that is a number": ({"act": 1}, ()),
    "another act": ({"act": "2"}, ()),
    "no act": ({}, ("act",)),
    "another agent": ({"recall_agent": "b"}, ()),
    "an agent that is a number": ({"recall_agent": 5}, ()),
    "no agent": ({}, ("recall_agent",)),
    "a body that is an object": ({"body": {"seq": 1}}, ()),
    "a body that is null": ({"body": None}, ()),
    "no body": ({}, ("body",)),
    "a page that is a number": ({"page": 0}, ()),
    "no seq": ({}, ("seq",)),
}


@pytest.mark.parametrize("agent", ["a", "5"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_listed_record_is_the_same_as_the_one_that_is_read_alone(
    pg: tuple[PostgresStore, RecallWriter], name: str, agent: str
) -> None:
    store, recall = pg
    meta, drop = VARIANTS[name]
    recall.lease(agent, "pod-a:1:aaaa", 3, "expired")
    recall.action(agent, 1, meta=meta, drop=drop)

    alone = store.get_action(agent, 1)
    listed = store.read_actions([ActionStatus.STARTED], limit=10).readings

    assert [reading.action for reading in listed] == [alone.action]
    assert [reading.lease and (reading.lease.holder, reading.lease.expires_at) for reading in listed] == [
        alone.lease and (alone.lease.holder, alone.lease.expires_at)
    ]
    assert all(reading.read_at >= alone.read_at for reading in listed)


@pytest.mark.parametrize("size", [10, MAX_DECODED_CHARS, 3 * MAX_DECODED_CHARS])
def test_a_record_that_changed_is_never_shown_as_it_was(pg: tuple[PostgresStore, RecallWriter], size: int) -> None:
    """What was decoded once is kept: for that text, not for that record."""
    store, recall = pg
    recall.action("a", 1, args="x" * size)
    first = store.read_actions([ActionStatus.STARTED], limit=10).readings[0].action
    recall.action("a", 1, args="y" * size)
    second = store.read_actions([ActionStatus.STARTED], limit=10).readings[0].action
    recall.action("a", 1, args="y" * size, written_epoch=7)
    third = store.read_actions([ActionStatus.STARTED], limit=10).readings[0].action

    assert isinstance(first, Action)
    assert isinstance(second, Action)
    assert isinstance(third, Action)
    assert (first.args[0], second.args[0], third.args[0]) == ("x", "y", "y")
    assert (second.written_epoch, third.written_epoch) == (1, 7)


@pytest.mark.parametrize("expiry", ["infinity", "-infinity", "294276-12-31", "0001-01-01 BC", "2026-11-29 18:29:06.123456"])
def test_a_listed_lease_is_the_same_as_the_one_that_is_read_alone(pg: tuple[PostgresStore, RecallWriter], expiry: str) -> None:
    store, recall = pg
    recall.lease("a", "pod-a:1:aaaa", 3, "expired")
    recall.action("a", 1)
    recall.run("UPDATE {leases} SET expires_at = %s", [expiry])

    alone, listed = store.get_action("a", 1), store.read_actions([ActionStatus.STARTED], limit=10).readings[0]

    assert alone.lease is not None
    assert listed.lease is not None
    assert listed.lease.expires_at == alone.lease.expires_at
    assert listed.lease.is_live == alone.lease.is_live
    assert not isinstance(listed.action, Unreadable)
