"""What the console keeps for itself: roles, decisions, notes, tokens, policies, resolvers, verdicts. Never an action, a turn or an entry."""

from __future__ import annotations

from console.models.change import Change
from console.models.checkpoint import CheckpointDelivery, StoredCheckpoint
from console.models.decision import PENDING_STATES, Decision, DecisionOutcome, DecisionState, WrittenBy
from console.models.decision_id import DecisionId
from console.models.definition import Definition, Pace, Secret
from console.models.grant import Grant, Role
from console.models.hook import Hook, Provider
from console.models.inquiry import Incident, Inquiry, StoredVerdict
from console.models.known_count import KnownCount
from console.models.note import Note
from console.models.policy import Mode, Policy, Weight
from console.models.token import Token
from console.models.verification import ExportRecord, Verification

__all__ = [
    "PENDING_STATES",
    "Change",
    "CheckpointDelivery",
    "Decision",
    "DecisionId",
    "DecisionOutcome",
    "DecisionState",
    "Definition",
    "ExportRecord",
    "Grant",
    "Hook",
    "Incident",
    "Inquiry",
    "KnownCount",
    "Mode",
    "Note",
    "Pace",
    "Policy",
    "Provider",
    "Role",
    "Secret",
    "StoredCheckpoint",
    "StoredVerdict",
    "Token",
    "Verification",
    "Weight",
    "WrittenBy",
]
