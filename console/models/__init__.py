"""What the console keeps for itself: roles, decisions on their way, notes, tokens, counts. Never an action, a turn or an entry."""

from __future__ import annotations

from console.models.change import Change
from console.models.decision import PENDING_STATES, Decision, DecisionOutcome, DecisionState, WrittenBy
from console.models.decision_id import DecisionId
from console.models.grant import Grant, Role
from console.models.known_count import KnownCount
from console.models.note import Note
from console.models.token import Token

__all__ = [
    "PENDING_STATES",
    "Change",
    "Decision",
    "DecisionId",
    "DecisionOutcome",
    "DecisionState",
    "Grant",
    "KnownCount",
    "Note",
    "Role",
    "Token",
    "WrittenBy",
]
