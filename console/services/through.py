"""A person has a waiting decision written through the tenant's own server, while the agent's lease is live: deliberately, and confirmed.

The server keeps the lease of a dead agent alive, so the decision would wait for ever; but if the agent's process lives after all, it goes on
with a call that it may be making. In steps, which sending it again completes (actions/store/serve.py).
"""

from __future__ import annotations

import logging

from django.contrib.auth.models import User
from django.db import Error as ConsoleDatabaseError

from actions.errors import StoreError, StoreUnavailable
from actions.queries import ActionItem
from actions.records import ActionRef
from console.access import Right, item_or_404
from console.models import Decision, DecisionState
from console.services.answers import DATABASE_TROUBLE, Answer, AnswerKind, answer_of
from console.services.deliver import Attempt, as_column, attempt
from console.stores import find_server

log = logging.getLogger(__name__)

NO_SERVER = "this store's address names no server of its tenant (serve, serve_key)"
_AGAIN = "a part of it may be written; send it again, nothing of it is written twice"


def write_through(ref: ActionRef, *, decision_id: str, confirm: str, by: User) -> Answer:
    """Write the decision that waits for a live lease through the tenant's server. `confirm` is the agent's id, typed once more.

    Where the lease is free by now it is settled as any other. The same id again answers what became of it, and completes what was cut off.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was written.
    """
    try:
        item = item_or_404(by, ref, Right.SETTLE)
    except StoreError as exc:
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{exc}; nothing was written now")
    row = Decision.objects.filter(decision_id=as_column(decision_id), store=ref.store, agent=ref.agent, seq=ref.seq).first()
    if row is None:
        return Answer(kind=AnswerKind.NOTHING, detail="no such decision waits here", item=item)
    if row.state != DecisionState.WAITING:
        return answer_of(None, row, item, fresh=False)
    if confirm.strip() != ref.agent:
        return Answer(
            kind=AnswerKind.INVALID, detail="type the agent's id exactly, to confirm that it is this one", decision=row, item=item
        )
    server = find_server(ref.store)
    if server is None:
        return Answer(kind=AnswerKind.READ_ONLY, detail=f"{NO_SERVER}; nothing was written now", decision=row, item=item)
    try:
        if row.attempts == 0:
            attempt(row.pk, wait=True)  # that it was tried before is how a repair knows that it may have been begun
        return _answer(attempt(row.pk, wait=True, through=server), row, item)
    except ConsoleDatabaseError as exc:
        log.error("writing decision %s through its tenant's server: the console's database: %s", decision_id, type(exc).__name__)
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{DATABASE_TROUBLE}; {_AGAIN}", decision=row, item=item)


def _answer(after: Attempt | None, row: Decision, item: ActionItem) -> Answer:
    problem = after.problem if after else None
    if after is None or after.decision.state != DecisionState.WAITING or not isinstance(problem, StoreError):
        return answer_of(after, row, item, fresh=True)
    is_open = isinstance(problem, StoreUnavailable) and problem.may_be_written
    detail = f"{problem}; {_AGAIN if is_open else 'nothing was written now'}"
    return Answer(kind=AnswerKind.UNAVAILABLE, detail=detail, decision=after.decision, item=item)
