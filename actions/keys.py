"""Names that follow from an action's agent and number: Recall's idempotency key and the outputs that hold its large values."""

from __future__ import annotations

import hashlib
import re

AGENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
"""What Recall accepts as an agent id, and as the name of an output or a pointer (recall-records 3.8)."""


def action_key(agent: str, seq: int) -> str:
    """The first 32 hex digits of SHA-256 of `agent:seq` (recall-records 3.4). A run is an agent, so it is also the run-and-step key."""
    return hashlib.sha256(f"{agent}:{seq}".encode()).hexdigest()[:32]


def is_agent_id(text: str) -> bool:
    return AGENT_ID.fullmatch(text) is not None


def args_ref(seq: int) -> str:
    """The output that holds an action's whole arguments when they overflow (recall-records 3.5)."""
    return f"act-{seq}-args"


def result_ref(seq: int) -> str:
    """The output that holds an action's whole result when it overflows (recall-records 3.5)."""
    return f"act-{seq}-result"
