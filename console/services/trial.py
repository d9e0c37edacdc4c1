"""Trying out the expressions of a form on an answer that somebody pastes. Asks nobody and stores nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.contrib.auth.models import User

from actions.queries import read_whole_args
from actions.records import ActionRef
from actions.resolvers.base import Claim
from actions.resolvers.claim import claim_of
from console.access import Right, item_or_404
from console.services.asking import NobodyToAsk
from console.services.definitions import require_admin
from console.services.policies import policy_of, roles_of
from console.services.simulation import example_action
from console.stores import get_store

CEL_KINDS = frozenset({"http"})
"""Kinds whose fields of code are CEL."""
MAX_BODY_CHARS = 1_100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one expression gives, of the whole answer (number 0) or of one object in it."""

    field: str
    number: int
    value: str
    problem: str


def try_out(values: Mapping[str, str], status: int, body: str, ref: ActionRef | None, *, by: User) -> tuple[Trial, ...]:
    """Each expression as typed on this answer, and on this action, else on one that is made up.

    Raises:
        PermissionDenied, Http404: not an admin of everything, or the person may not see the action.
        NobodyToAsk: the record is unreadable. StoreError: its store did not answer.
    """
    from actions.resolvers.http_trial import try_expressions

    require_admin(by)
    claim = _claim(ref, by)
    tried = try_expressions(values, status, body[:MAX_BODY_CHARS], claim)
    return tuple(Trial(field=one.field, number=one.number, value=one.value, problem=one.problem) for one in tried)


def _claim(ref: ActionRef | None, by: User) -> Claim:
    if ref is None:
        return claim_of(example_action("example", "{}"), "{}")
    item = item_or_404(by, ref, Right.READ)
    if item.action is None:
        raise NobodyToAsk("the record is unreadable, so nothing can be compared with it")
    return claim_of(item.action, read_whole_args(get_store(ref.store), item.action), roles_of(policy_of(item.action.tool)))
