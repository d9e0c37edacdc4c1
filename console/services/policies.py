"""What is to be done about each tool: policies by tool, in versions that are never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from actions.errors import ActionsError
from actions.queries import ActionItem, read_whole_args
from actions.resolvers.base import Windows
from actions.resolvers.claim import Roles
from actions.rules import check_text
from actions.summary import problem_of_summary
from actions.tool_rules import hidden_name
from console.access import Right, may
from console.durations import format_duration
from console.models import Definition, Inquiry, Mode, Policy, Weight
from console.services import journal
from console.services.changes import bump
from console.services.deliver import as_column
from console.services.gates import Gates, check_rule, gates_of
from console.stores import get_store, store_names

CHANGEABLE = (
    "resolver",
    "mode",
    "accepts_strong",
    "tool_timeout_s",
    "settle_window_s",
    "retention_s",
    "give_up_after_s",
    "recipient",
    "amount",
    "currency",
    "reference",
    "is_minor",
    "moves_money",
    "is_irreversible",
    "compensation",
    "second_person_when",
    "step_up_when",
    "hold_s",
    "sla_s",
    "summary",
    "redacted",
)
"""What a person may set of a policy."""

LONGEST_S = 366 * 86_400
LONGEST_HOLD_S = 3_600
"""A decision that can be undone for longer is better kept as a proposal."""


class InvalidPolicy(ActionsError):
    """A policy breaks a rule; `.field` names where. Nothing was stored."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class ChangedMeanwhile(ActionsError):
    """Somebody saved a newer version since this form was opened. Nothing was stored; `.by` is who, `.version` what is there now."""

    def __init__(self, what: str, version: int, by: str) -> None:
        self.version = version
        self.by = by
        super().__init__(f"{what} was changed meanwhile: version {version} by {by}; look at it, then save again")


def policy_of(tool: str) -> Policy:
    """The policy in force; the defaults as version 0 where nobody has set one."""
    return policies_of([tool])[as_column(tool)]


def policies_of(tools: Iterable[str]) -> dict[str, Policy]:
    """The policy in force of each of these tools, in one statement."""
    names = {as_column(tool) for tool in tools}
    found = Policy.objects.filter(tool__in=names).order_by("tool", "-version").distinct("tool")
    return {name: Policy(tool=name, version=0) for name in names} | {policy.tool: policy for policy in found}


def all_policies() -> dict[str, Policy]:
    """Every policy in force, by tool."""
    return {policy.tool: policy for policy in Policy.objects.order_by("tool", "-version").distinct("tool")}


def list_versions(tool: str, *, limit: int = 50) -> list[Policy]:
    """Who changed what when, newest first."""
    return list(Policy.objects.filter(tool=as_column(tool)).order_by("-version")[:limit])


def windows_of(policy: Policy) -> Windows:
    return Windows(
        tool_timeout_s=policy.tool_timeout_s,
        settle_window_s=policy.settle_window_s,
        retention_s=policy.retention_s,
        give_up_after_s=policy.give_up_after_s,
    )


def roles_of(policy: Policy) -> Roles:
    return Roles(
        recipient=policy.recipient,
        amount=policy.amount,
        currency=policy.currency,
        reference=policy.reference,
        is_minor=policy.is_minor,
    )


def gates_before(item: ActionItem, outcome: str) -> Gates:
    """The gates that the policy in force puts before this outcome for this action. Its whole arguments are read, where a rule speaks of them.

    Raises:
        StoreError: they could not be read; nothing is known.
    """
    if item.action is None:
        return Gates()
    policy = policy_of(item.action.tool)
    has_rules = policy.second_person_when.strip() or policy.step_up_when.strip()
    args = read_whole_args(get_store(item.store), item.action) if has_rules else ""
    return gates_of(policy, item.action, args, store=item.store, outcome=outcome, roles=roles_of(policy))


def save_policy(tool: str, values: Mapping[str, Any], *, seen_version: int, by: User) -> Policy:
    """Store a new version; where nothing differs from the one in force, that one, and nothing is stored.

    Whoever is asking right now ends by the old one; open actions of the tool follow the new one from now on. What differs enters the
    console's history with it.

    Raises:
        PermissionDenied: no admin of this tool in every store. Nothing was stored.
        InvalidPolicy, ChangedMeanwhile: nothing was stored.
    """
    if not may(by, Right.ADMIN, tool=tool):
        raise PermissionDenied("you need the role admin, for this tool in every store")
    name = as_column(tool)
    current = policy_of(name)
    if current.version != seen_version:
        raise ChangedMeanwhile(f"the policy of {tool[:60]}", current.version, current.username)
    new = Policy(
        tool=name,
        version=seen_version + 1,
        by=by,
        username=by.get_username(),
        **{field: values.get(field, getattr(current, field)) for field in CHANGEABLE},
    )
    _check(new)
    if current.version and all(getattr(new, field) == getattr(current, field) for field in CHANGEABLE):
        return current
    try:
        with transaction.atomic(durable=True):
            # One after the other, so that versions of the rules (`tool_rules.read_book`) are seen in the order of their numbers.
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext('console_policy'))")
            new.save(force_insert=True)
            _follow(new)
            for store in sorted(store_names()):  # sentences and places may change on every screen
                bump(store)
            changed = journal.changes(_said(current), _said(new))
            journal.record("policy_changed", actor=journal.admin(by), tool=name, detail={"changed": changed})
    except IntegrityError as exc:
        current = policy_of(name)
        raise ChangedMeanwhile(f"the policy of {tool[:60]}", current.version, current.username) from exc
    return new


def _said(policy: Policy) -> dict[str, object]:
    return {field: getattr(policy, field) for field in ("version", *CHANGEABLE)}


def _follow(policy: Policy) -> None:
    """Open questions go to the resolver that is named now, at once: whoever changed it wants to see what it says."""
    waiting = Inquiry.objects.filter(tool=policy.tool, asking_until=None)
    if not policy.resolver:
        waiting.update(due_at=None, resolver="")
        return
    waiting.exclude(resolver=policy.resolver).update(
        resolver=policy.resolver, due_at=timezone.now(), queued_until=None, misses=0, given_up_at=None, problem=""
    )


def _check(policy: Policy) -> None:
    if policy.resolver and not Definition.objects.filter(name=policy.resolver).exists():
        raise InvalidPolicy("resolver", f"there is no resolver {policy.resolver[:63]!r}")
    if policy.mode not in Mode.values:
        raise InvalidPolicy("mode", "choose propose or settle")
    if policy.mode == Mode.SETTLE and not policy.resolver:
        raise InvalidPolicy("mode", "nobody can settle by itself without a resolver")
    for name in ("moves_money", "is_irreversible"):
        if getattr(policy, name) not in Weight.values:
            raise InvalidPolicy(name, "choose yes, no or by the tool's name")
    for name, lowest in (("tool_timeout_s", 1), ("settle_window_s", 60), ("retention_s", 3_600), ("give_up_after_s", 60)):
        value = getattr(policy, name)
        if not isinstance(value, int) or not lowest <= value <= LONGEST_S:
            raise InvalidPolicy(name, f"a length of time from {format_duration(lowest)} to {format_duration(LONGEST_S)}")
    for name, lowest, longest in (("hold_s", 0, LONGEST_HOLD_S), ("sla_s", 60, LONGEST_S)):
        value = getattr(policy, name)
        if not isinstance(value, int) or not lowest <= value <= longest:
            raise InvalidPolicy(name, f"a length of time from {format_duration(lowest)} to {format_duration(longest)}")
    for name in ("second_person_when", "step_up_when"):
        try:
            check_rule(getattr(policy, name))
        except ActionsError as exc:
            raise InvalidPolicy(name, str(exc)) from exc
    if policy.retention_s <= policy.settle_window_s + policy.tool_timeout_s:
        raise InvalidPolicy(
            "retention_s", "must be longer than tool time-out and settle window together, else absence never means anything"
        )
    for name in ("recipient", "amount", "currency", "reference", "compensation", "summary", "redacted"):
        value = getattr(policy, name)
        limit = 2_000 if name in ("compensation", "redacted") else 200
        if not isinstance(value, str) or len(value) > limit:
            raise InvalidPolicy(name, f"a text of at most {limit} characters")
        try:
            check_text(name, value)
        except ActionsError as exc:
            raise InvalidPolicy(name, str(exc)) from exc
    if problem := problem_of_summary(policy.summary):
        raise InvalidPolicy("summary", problem)
    for said in policy.redacted_names:
        if not hidden_name(said):
            raise InvalidPolicy("redacted", f"{said[:40]!r} is no name of an argument")
