"""What the console keeps for itself: roles, decisions, batches, notes, tokens, policies, resolvers, verdicts, notices. Never an action, a turn or
an entry."""

from __future__ import annotations

from console.models.batch import (
    FAILED_STATES,
    OPEN_ITEM_STATES,
    RETRYABLE_STATES,
    Batch,
    BatchItem,
    BatchState,
    ItemState,
)
from console.models.change import Change
from console.models.channel import Channel, Event, Notice, NoticeState, Way
from console.models.checkpoint import CheckpointDelivery, StoredCheckpoint
from console.models.claim import Claim, ClaimEnd, HandOver
from console.models.correction import PENDING_CORRECTIONS, Correction, CorrectionState
from console.models.decision import PENDING_STATES, Decision, DecisionOutcome, DecisionState, WrittenBy
from console.models.decision_id import DecisionId
from console.models.definition import Definition, Pace, Secret
from console.models.grant import Grant, Role
from console.models.hook import Hook, Provider
from console.models.inquiry import Incident, Inquiry, StoredVerdict
from console.models.known_count import KnownCount
from console.models.note import Note
from console.models.observation import HolderState, Observation, SeenEnd
from console.models.person import Light, Preferences, SignIn
from console.models.policy import DEFAULT_SLA_S, Mode, Policy, Weight
from console.models.run import Approval, ApprovalState, Parked, Run, RunEvent, RunStatus, Undoing
from console.models.running import StoreLook, Sweep, Tally
from console.models.saved_view import FirstView, SavedView
from console.models.token import Token
from console.models.verification import ExportRecord, Verification

__all__ = [
    "DEFAULT_SLA_S",
    "FAILED_STATES",
    "OPEN_ITEM_STATES",
    "PENDING_CORRECTIONS",
    "PENDING_STATES",
    "RETRYABLE_STATES",
    "Approval",
    "ApprovalState",
    "Batch",
    "BatchItem",
    "BatchState",
    "Change",
    "Channel",
    "CheckpointDelivery",
    "Claim",
    "ClaimEnd",
    "Correction",
    "CorrectionState",
    "Decision",
    "DecisionId",
    "DecisionOutcome",
    "DecisionState",
    "Definition",
    "Event",
    "ExportRecord",
    "FirstView",
    "Grant",
    "HandOver",
    "HolderState",
    "Hook",
    "Incident",
    "Inquiry",
    "ItemState",
    "KnownCount",
    "Light",
    "Mode",
    "Note",
    "Notice",
    "NoticeState",
    "Observation",
    "Pace",
    "Parked",
    "Policy",
    "Preferences",
    "Provider",
    "Role",
    "Run",
    "RunEvent",
    "RunStatus",
    "SavedView",
    "Secret",
    "SeenEnd",
    "SignIn",
    "StoreLook",
    "StoredCheckpoint",
    "StoredVerdict",
    "Sweep",
    "Tally",
    "Token",
    "Undoing",
    "Verification",
    "Way",
    "Weight",
    "WrittenBy",
]
