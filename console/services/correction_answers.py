"""What a gesture about a correction came to. Refusals are answers too, so that no face has to catch them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.utils import timezone

from actions.correct import WasRead
from actions.errors import (
    ActionsError,
    CorrectedMeanwhile,
    DecisionIdReused,
    NothingToCorrect,
    StoreError,
    StoreReadOnly,
    StoreUnusable,
)
from actions.redaction import redact_text
from console.models import Correction, CorrectionState, Incident
from console.services.correction_delivery import Attempted
from console.services.gates import Gates, is_confirmed

UNKNOWN_OUTCOME = "whether it was written is not known; ask again with the same id, it is never written twice"


class CorrectionKind(StrEnum):
    """What happened, or what stood in the way. Only `written` and `repeated` mean that the agent's history says so."""

    WRITTEN = "written"
    REPEATED = "repeated"  # the same id again; it stands written since the first time
    PROPOSED = "proposed"  # kept: a second person has to approve it
    WAITING = "waiting"  # kept: its agent is alive; delivered once the lease is free
    TURNED_DOWN = "turned_down"  # refused by a second person; it will not be written
    NOT_PROPOSED = "not_proposed"  # nobody has to approve it any more; `detail` says what stands
    OWN = "own_correction"  # nobody is the second person of their own; nothing was changed
    WITHDRAWN = "withdrawn"
    NOTHING = "nothing"  # there is no correction on its way
    PENDING = "pending"  # another correction is on its way
    NOT_OURS = "not_ours"  # it is open, or nobody here ended it
    CHANGED = "changed"  # it was corrected since it was shown
    ID_REUSED = "id_reused"
    CONFIRM = "confirm_identity"  # whoever says so has to prove first who they are
    INVALID = "invalid"
    READ_ONLY = "read_only"
    UNAVAILABLE = "unavailable"


STATUS_OF_CORRECTION = {
    CorrectionKind.WRITTEN: 201,
    CorrectionKind.REPEATED: 200,
    CorrectionKind.PROPOSED: 202,
    CorrectionKind.WAITING: 202,
    CorrectionKind.TURNED_DOWN: 200,
    CorrectionKind.NOT_PROPOSED: 409,
    CorrectionKind.OWN: 403,
    CorrectionKind.WITHDRAWN: 200,
    CorrectionKind.NOTHING: 404,
    CorrectionKind.PENDING: 409,
    CorrectionKind.NOT_OURS: 409,
    CorrectionKind.CHANGED: 412,
    CorrectionKind.ID_REUSED: 409,
    CorrectionKind.CONFIRM: 403,
    CorrectionKind.INVALID: 422,
    CorrectionKind.READ_ONLY: 503,
    CorrectionKind.UNAVAILABLE: 503,
}
_READ_SAYS = {
    WasRead.YES: "its agent has read what it was told first, and has gone on since",
    WasRead.NO: "its agent has not read what it was told first: nobody has resumed it since; it reads both",
    WasRead.UNKNOWN: "whether its agent has read what it was told first is not known",
    "": "whether its agent has read what it was told first is not known",
}
_REFUSALS: tuple[tuple[type[ActionsError], CorrectionKind], ...] = (
    (NothingToCorrect, CorrectionKind.NOT_OURS),
    (CorrectedMeanwhile, CorrectionKind.CHANGED),
    (DecisionIdReused, CorrectionKind.ID_REUSED),
    (StoreReadOnly, CorrectionKind.READ_ONLY),
    (StoreUnusable, CorrectionKind.READ_ONLY),
    (StoreError, CorrectionKind.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionAnswer:
    """What it came to. `detail` is one sentence for a person, redacted."""

    kind: CorrectionKind
    detail: str
    correction: Correction | None = None
    incident: Incident | None = None  # opened by this, or open about the action already


def answer_of(done: Attempted | None, row: Correction, *, is_new: bool) -> CorrectionAnswer:
    """What an attempt came to, or without one the row as it stands. `is_new`: this request made or approved the correction."""
    now = done.correction if done else row
    problem = done.problem if done else None
    if now.state == CorrectionState.WRITTEN:
        incident = Incident.objects.filter(correction=now).first()
        kind = CorrectionKind.WRITTEN if is_new else CorrectionKind.REPEATED
        return CorrectionAnswer(kind=kind, detail=_READ_SAYS[now.was_read], correction=now, incident=incident)
    if now.state == CorrectionState.REFUSED:
        kind = next((kind for error, kind in _REFUSALS if isinstance(problem, error)), CorrectionKind.INVALID)
        return CorrectionAnswer(kind=kind, detail=f"nothing was written: {redact_text(now.why)}", correction=now)
    if now.state == CorrectionState.WITHDRAWN:
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail="it was withdrawn meanwhile", correction=now)
    if now.is_proposed:
        detail = f"nothing is written: {redact_text(now.rule) or 'a second person has to approve it'}"
        return CorrectionAnswer(kind=CorrectionKind.PROPOSED, detail=detail, correction=now)
    if isinstance(problem, StoreError):
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=f"{problem}; {UNKNOWN_OUTCOME}", correction=now)
    return CorrectionAnswer(kind=CorrectionKind.WAITING, detail=f"not written yet: {redact_text(now.why)}", correction=now)


def must_confirm(gates: Gates, confirmed_at: datetime | None) -> CorrectionAnswer | None:
    """What whoever has to prove first who they are is told; None where no gate asks for that, or they did lately. Nothing is changed."""
    if not gates.needs_step_up or is_confirmed(confirmed_at, timezone.now()):
        return None
    detail = f"prove first that it is you ({gates.rule}); nothing was changed"
    return CorrectionAnswer(kind=CorrectionKind.CONFIRM, detail=redact_text(detail))
