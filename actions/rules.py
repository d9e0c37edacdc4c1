"""Pure rules: which state an action is in, and what may follow what."""

from __future__ import annotations

import re
import unicodedata

from actions.errors import InvalidDecision
from actions.records import Action, ActionClass, ActionEnd, ActionState, ActionStatus, Lease, Reading, Unreadable

MAX_VALUE_BYTES = 1_048_576
"""Recall's limit on arguments, results and contents (recall-records 3.8)."""
MAX_REASON_CHARS = 2_000
MAX_ERROR_CHARS = 8_000

SETTLED_STATUSES = frozenset({ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED})
"""The ends that a decision may write. `unknown` is no decision: the record says so already."""

_HALF_PAIR = re.compile("[\ud800-\udfff]")
# Look like a space or like nothing at all, though Unicode calls them letters or symbols.
_BLANK_LETTERS = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")

_CLOSED = {
    ActionStatus.DONE: ActionState.DONE,
    ActionStatus.FAILED: ActionState.FAILED,
    ActionStatus.ABANDONED: ActionState.ABANDONED,
}


def state_of(action: Action, lease: Lease | None, *, leases_known: bool = True) -> ActionState:
    """What may be claimed about an action, from its status and its agent's lease (recall-records 8).

    `leases_known` is False for a store whose leases cannot be read: then nobody can tell in flight from interrupted.
    """
    if not action.is_open:
        return _CLOSED[action.status]
    if action.status is ActionStatus.UNKNOWN:
        return ActionState.UNKNOWN
    if not leases_known:
        return ActionState.UNCLEAR
    if lease is None or not lease.is_live:
        return ActionState.INTERRUPTED
    # A resume leaves idempotent calls `started`, so under a live lease they may be an earlier process's.
    return ActionState.UNCLEAR if action.action_class is ActionClass.IDEMPOTENT else ActionState.IN_FLIGHT


def state_of_reading(reading: Reading, *, leases_known: bool = True) -> ActionState:
    if isinstance(reading.action, Unreadable):
        return ActionState.UNREADABLE
    return state_of(reading.action, reading.lease, leases_known=leases_known)


def check_end(end: ActionEnd) -> None:
    """Refuse an end that no decision may write.

    Raises:
        InvalidDecision: names the field, what was found and what is allowed. Nothing was read or written.
    """
    if end.status not in SETTLED_STATUSES:
        raise InvalidDecision(f"outcome {end.status} cannot be decided; choose done, failed or abandoned")
    if not has_visible_text(end.reason):
        raise InvalidDecision("a reason is required: what did you see, and where?")
    if len(end.reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(end.reason)} characters; the limit is {MAX_REASON_CHARS}")
    if end.result and end.status is not ActionStatus.DONE:
        raise InvalidDecision(f"a result goes with done only, not with {end.status}")
    if end.error and end.status is not ActionStatus.FAILED:
        raise InvalidDecision(f"an error goes with failed only, not with {end.status}")
    if len(end.error) > MAX_ERROR_CHARS:
        raise InvalidDecision(f"the error has {len(end.error)} characters; the limit is {MAX_ERROR_CHARS}")
    for name, text in (("reason", end.reason), ("result", end.result), ("error", end.error)):
        check_text(name, text)
    size = len(end.result.encode())
    if size > MAX_VALUE_BYTES:
        raise InvalidDecision(f"the result is {size} bytes; the limit is {MAX_VALUE_BYTES}")


def has_visible_text(text: str) -> bool:
    """Whether a person would see anything: a letter, digit, sign or symbol. Spaces, controls, zero-width, tag and private characters
    and marks without a letter are nothing to read."""
    return any(unicodedata.category(char)[0] not in "CZM" and char not in _BLANK_LETTERS for char in text)


def check_text(name: str, text: str) -> None:
    """Refuse text that no database column keeps as it is.

    Raises:
        InvalidDecision: a NUL or half a surrogate pair. Nothing was read or written.
    """
    if "\x00" in text:
        raise InvalidDecision(f"the {name} contains a NUL character; remove it")
    if not is_utf8(text):
        raise InvalidDecision(f"the {name} contains half a surrogate pair, which is no character; remove it")


def is_utf8(text: str) -> bool:
    """False where it holds half a surrogate pair, as Python makes of bytes that are no UTF-8 and JSON may escape: no database keeps it."""
    return _HALF_PAIR.search(text) is None


def as_column(text: str) -> str:
    """A text as a database column keeps it: an agent may have written a NUL or half a surrogate pair."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def check_end_for(action: Action, end: ActionEnd) -> None:
    """Refuse an end that does not fit the action's class.

    Raises:
        InvalidDecision: a pure call may only be abandoned: it changed nothing, so nobody can say that it "happened" to the world.
    """
    if action.action_class is ActionClass.PURE and end.status is not ActionStatus.ABANDONED:
        raise InvalidDecision(f"{action.tool} is pure: it only reads, so it can only be abandoned, not {end.status}")
