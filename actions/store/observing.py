"""What the entry of an end that is nobody's here is compared with, the same for every store: pure. The adapters read and append in one
transaction under the chain's head."""

from __future__ import annotations

from collections.abc import Iterable

from actions.records import Entry, NewEntry

OBSERVED = "observed"
"""The kind of the entry."""
OURS = ("settled", "settling")
"""The kinds of entries about an end that was written here, or may be: what is being settled in steps may be half written."""
LOOKED_AT = (OBSERVED, *OURS)
"""The kinds of entries about one action that tell whether its end was observed before, or is ours."""


def find_observed(known: Iterable[Entry], new: NewEntry) -> Entry | None:
    """The entry that was appended before for the same end."""
    return next((entry for entry in known if (entry.kind, entry.decision_id) == (OBSERVED, new.decision_id)), None)


def is_ours(known: Iterable[Entry]) -> bool:
    """Whether the action's end was written here, or may be."""
    return any(entry.kind in OURS for entry in known)
