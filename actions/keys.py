"""Recall's idempotency key: deterministic, the same in every store and tenant for the same agent id and number."""

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
