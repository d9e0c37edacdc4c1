"""What the demo itself reads in a store: which agents there are and which calls they recorded. By the same reads as the console's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from actions.records import Action, ActionStatus
from actions.store import open_store

LIMIT = 20_000  # whoever has run the demo that often has seen enough of it


def calls(url: str) -> Sequence[Action]:
    """Every recorded call, ordered by record id; none while Recall has not made its tables. Those that cannot be read are left out:
    what is wrong with them, the console shows; the demo has no business with them."""
    with closing(open_store(url)) as store:
        readings = store.read_actions(list(ActionStatus), limit=LIMIT).readings
    return [reading.action for reading in readings if isinstance(reading.action, Action)]


def agents(url: str) -> frozenset[str]:
    """Every agent that recorded a call."""
    return frozenset(call.agent for call in calls(url))
