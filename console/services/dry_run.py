"""A dry run: ask the world about one action as a resolver would, and say what would follow. Stores nothing, settles nothing, takes no turn."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from actions.queries import ActionItem
from actions.records import ActionClass, ActionRef, ActionStatus
from actions.redaction import redact_text
from actions.resolvers.base import Resolver
from actions.resolvers.verdict import Grade, Outcome, Verdict
from console.access import Right, item_or_404
from console.models import Definition, Inquiry, Policy
from console.services.asking import NobodyToAsk
from console.services.definitions import build, build_draft, find_definition, require_admin
from console.services.policies import policy_of
from console.services.resolve import ask_about, circumstances_of, evidence_text, settles_alone
from console.stores import get_store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What was asked and what it came to. `evidence` is redacted, as a stored verdict's would be."""

    item: ActionItem
    policy: Policy
    resolver: str
    kind: str
    is_saved: bool  # False: as typed in the form
    outcome: str
    grade: str
    evidence: Mapping[str, Any]
    verdict: Verdict
    would: str  # what would follow, in one sentence


def run_saved(name: str, ref: ActionRef, *, by: User) -> DryRun:
    """Ask with a resolver as it is saved, about one action of any status.

    Raises:
        PermissionDenied, Http404: not an admin of everything, or the person may not see the action. Nobody was asked.
        InvalidDefinition: it cannot be built. NobodyToAsk: the record stands in the way. StoreError: the store did not answer.
    """
    require_admin(by)
    definition = find_definition(name)
    if definition is None:
        raise NobodyToAsk(f"there is no resolver {name[:63]!r}")
    item = _item(ref, by)
    return _run(build(definition), item, definition.kind, definition, by=by)


def run_draft(name: str, kind: str, values: Mapping[str, str], secrets: Mapping[str, str], ref: ActionRef, *, by: User) -> DryRun:
    """The same as typed in a form that is not saved; a secret that is left empty is the one that is set, if it still goes to the same place.

    Earlier negatives are those of another version, so none counts. Raises as `run_saved`.
    """
    require_admin(by)
    resolver = build_draft(name, kind, values, secrets)
    return _run(resolver, _item(ref, by), kind, None, by=by)


def _item(ref: ActionRef, by: User) -> ActionItem:
    item = item_or_404(by, ref, Right.READ)
    if item.action is None:
        raise NobodyToAsk("the record is unreadable, so nobody can be asked about it")
    if item.action.action_class is ActionClass.PURE:
        raise NobodyToAsk("it is pure: it only read, so there is nothing in the world to look for")
    return item


def _run(resolver: Resolver, item: ActionItem, kind: str, definition: Definition | None, *, by: User) -> DryRun:
    action, store = item.action, get_store(item.store)
    assert action is not None  # noqa: S101 - _item has seen to it
    policy = policy_of(action.tool)
    row = Inquiry.objects.filter(store=item.store, agent=action.agent, seq=action.seq).first()
    circumstances = circumstances_of(row, item, definition, store)
    log.info("dry run of resolver %s about %s by %s", resolver.name, item.ref, by.get_username())
    asked = ask_about(resolver, item, action, policy, store=store, circumstances=circumstances)
    verdict = asked.verdict
    return DryRun(
        item=item,
        policy=policy,
        resolver=resolver.name,
        kind=kind,
        is_saved=definition is not None,
        outcome=verdict.outcome.value,
        grade=verdict.grade.value if verdict.grade else "",
        evidence=json.loads(evidence_text(verdict.evidence)),
        verdict=verdict,
        would=redact_text(what_would_follow(verdict, item, policy)),
    )


def what_would_follow(verdict: Verdict, item: ActionItem, policy: Policy) -> str:
    """What the console would do with this verdict about this action as it is now."""
    action = item.action
    if action is not None and not action.is_open:
        tells = verdict.grade in (Grade.EXACT, Grade.STRONG, Grade.CONFLICT)
        if action.status is ActionStatus.FAILED and tells:
            return "The action was written as failed and the world says otherwise: an incident would be opened."
        return f"The action has ended already ({action.status}): nothing would be written."
    if settles_alone(verdict, item, policy):
        return "It would be settled by itself, as done: the policy says settle, and this is exact."
    if verdict.outcome is Outcome.DONE:
        return "A person would be shown that it happened, and would decide."
    if verdict.outcome is Outcome.FAILED:
        return "A person would be shown that it did not happen, and would decide; that is never written without one."
    if verdict.has_given_up or verdict.check_again_at is None:
        return "Nothing is proposed, and it would not be asked again by itself."
    return "Nothing is proposed; it would be asked again by itself."
