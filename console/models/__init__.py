"""What the console keeps for itself: roles, decisions, notes, tokens, policies, resolvers, verdicts, notices. Never an action, a turn or an entry."""

from __future__ import annotations

from console.models.change import Change
from console.models.channel import Channel, Event, Notice, NoticeState, Way
from console.models.decision import PENDING_STATES, Decision, DecisionOutcome, DecisionState, WrittenBy
from console.models.decision_id import DecisionId
from console.models.definition import Definition, Pace, Secret
from console.models.grant import Grant, Role
from console.models.hook import Hook, Provider
from console.models.inquiry import Incident, Inquiry, StoredVerdict
from console.models.known_count import KnownCount
from console.models.note import Note
from console.models.person import Light, Preferences, SignIn
from console.models.policy import Mode, Policy, Weight
from console.models.token import Token

__all__ = [
    "PENDING_STATES",
    "Change",
    "Channel",
    "Decision",
    "DecisionId",
    "DecisionOutcome",
    "DecisionState",
    "Definition",
    "Event",
    "Grant",
    "Hook",
    "Incident",
    "Inquiry",
    "KnownCount",
    "Light",
    "Mode",
    "Note",
    "Notice",
    "NoticeState",
    "Pace",
    "Policy",
    "Preferences",
    "Provider",
    "Role",
    "Secret",
    "SignIn",
    "StoredVerdict",
    "Token",
    "Way",
    "Weight",
    "WrittenBy",
]
