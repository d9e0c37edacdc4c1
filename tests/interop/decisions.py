"""An operator's decision, the way every caller makes one: through `actions.settle`."""

from __future__ import annotations

from uuid import uuid4

from actions import queries
from actions.records import ActionEnd, ActionRef, ActionStatus, Settled
from actions.settle import make_end, settle
from actions.store.audit import ChainReport, verify_chain
from actions.store.base import ActionStore

OPERATOR = "operator ana"
REASON = "looked in the sent folder"


def an_end(status: ActionStatus, *, reason: str = REASON, result: str = "", error: str = "") -> ActionEnd:
    return make_end(status, reason, actor=OPERATOR, result=result, error=error)


def decide(store: ActionStore, agent: str, seq: int, end: ActionEnd) -> Settled:
    """Settle what is shown now, as the form on a page does."""
    ref = ActionRef(store.name, agent, seq)
    seen = queries.get_action(store, ref).digest
    return settle(store, ref, end, actor=OPERATOR, decision_id=uuid4().hex, seen=seen)


def chain_of(store: ActionStore) -> ChainReport:
    head = store.read_head()
    return verify_chain(head.chain, store.iterate_links(), head)


def settled_entries(store: ActionStore, agent: str, seq: int) -> int:
    """How many settles of one action stand in the audit."""
    return sum(entry.kind == "settled" for entry in store.list_entries(limit=1000, agent=agent, seq=seq))
