"""How an open action ends that an earlier process left: by its class, or by what a resolver says. Pure but for asking it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from actions.limits import check_end_status, clean_text, value_text
from actions.records import Action, ActionClass, ActionStatus
from actions.redaction import redact_text

log = logging.getLogger(__name__)

PURE_GIVEN_UP = "interrupted; pure, not run again"
NO_RESOLVER = "interrupted; no resolver to check whether it happened"
MAX_PROBLEM = 400
COULD_NOT_TELL = "could not tell whether it happened"


@dataclass(frozen=True, slots=True)
class End:
    """How a resolver settled an action: done, failed, abandoned or unknown, and how that is known."""

    status: str
    result: str = ""
    error: str = ""
    resolution: str = ""


Resolver = Callable[[Action], Any]
"""Answers an `End`, or anything with its attributes; None or an error where it cannot tell."""


def interrupted_end(action: Action, now: int) -> Action | None:
    """An open action as the next resume leaves it; None where it stays as it is (recall-records 7)."""
    cleared = replace(action, result="", result_ref="", error="")  # as every end replaces them
    if action.action_class is ActionClass.PURE:
        return replace(cleared, status=ActionStatus.ABANDONED, resolution=PURE_GIVEN_UP, ended_at=now)
    if action.action_class is ActionClass.EXTERNAL and action.status is ActionStatus.STARTED:
        return replace(cleared, status=ActionStatus.UNKNOWN, resolution=NO_RESOLVER)
    return None


def ask(resolver: Resolver | None, action: Action) -> End:
    """What a resolver says, as texts that can be kept. Whatever is no end is "cannot tell": an error is never taken for a failed call."""
    if resolver is None:
        return End("unknown")
    try:
        said = resolver(action)
        if said is None:
            return End("unknown")
        end = End(
            status=check_end_status(said.status).value,
            result=value_text("result", getattr(said, "result", "")),
            error=clean_text("error", getattr(said, "error", "") or ""),
            resolution=clean_text("resolution", getattr(said, "resolution", "") or ""),
        )
    except Exception:
        log.exception("the resolver could not tell about action %s of agent %s", action.seq, action.agent)
        return End("unknown")
    return end


def one_line(exc: BaseException) -> str:
    """Its type and the first line of what it says, redacted: never a trace."""
    try:
        said = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
    except Exception:  # an exception whose own text raises
        said = ""
    text = redact_text(f"{type(exc).__name__}: {said}" if said else type(exc).__name__)
    return text if len(text) <= MAX_PROBLEM else f"{text[: MAX_PROBLEM - 1]}…"
