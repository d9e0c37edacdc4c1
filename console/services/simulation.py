"""Which policy an action would meet, and what would be read out of its arguments. Asks nobody and stores nothing."""

from __future__ import annotations

from dataclasses import dataclass

from actions.arguments import parse_arguments
from actions.facts import facts_of, is_irreversible, moves_money
from actions.keys import action_key
from actions.records import Action, ActionClass, ActionStatus
from actions.redaction import redact_arguments
from actions.resolvers.claim import claim_of, sources_of
from console.models import Definition, Mode, Policy
from console.services.definitions import find_definition
from console.services.deliver import as_column
from console.services.gates import Gates, gates_of
from console.services.policies import policy_of, roles_of
from console.services.registry import design_gaps
from console.tool_rules import rule_from

MAX_ARGS_CHARS = 1_100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One part of the claim: which argument it came from, and what was read. Redacted."""

    role: str
    source: str  # empty: no argument tells it
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What an action of this tool with these arguments meets."""

    tool: str
    policy: Policy
    definition: Definition | None
    reads: tuple[Read, ...]
    problems: tuple[str, ...]  # of the arguments
    moves_money: bool
    is_irreversible: bool
    gaps: tuple[str, ...]
    why: str
    gates: Gates  # before deciding that it is done


def simulate(tool: str, args: str, action_class: ActionClass = ActionClass.EXTERNAL, *, store: str = "main") -> Simulation:
    """The policy in force now for that tool, and the claim as it would be read. Never raises; the arguments need not be JSON."""
    policy = policy_of(tool)
    rule = rule_from(policy)
    arguments = redact_arguments(parse_arguments(args[:MAX_ARGS_CHARS]), rule.redacted)
    kind = facts_of(tool, action_class, arguments, rule).kind
    roles = roles_of(policy)
    call = example_action(tool, args[:MAX_ARGS_CHARS], action_class)
    claim = claim_of(example_action(tool, arguments.text, action_class), arguments.text, roles)
    sources = sources_of(arguments.text, roles)
    values = {
        "recipient": ", ".join(claim.recipients),
        "amount": "" if claim.amount is None else f"{claim.amount:f}",
        "currency": claim.currency,
        "reference": claim.reference,
    }
    definition = find_definition(policy.resolver) if policy.resolver else None
    return Simulation(
        tool=tool,
        policy=policy,
        definition=definition,
        reads=tuple(Read(role=role, source=sources[role], value=value) for role, value in values.items()),
        problems=arguments.problems,
        moves_money=moves_money(kind, rule),
        is_irreversible=is_irreversible(kind, rule),
        gaps=tuple(design_gaps(policy, definition, (action_class,), tool)),
        why=_why(policy, definition, action_class),
        gates=gates_of(policy, call, call.args, store=store, outcome=ActionStatus.DONE.value, roles=roles),
    )


def _why(policy: Policy, definition: Definition | None, action_class: ActionClass) -> str:
    """What happens to such a call in doubt, and because of what, in one sentence."""
    if action_class is ActionClass.PURE:
        return "It only reads, so nobody is asked about it."
    named = f"policy {policy.version}" if policy.version else "no policy is set, so the defaults hold"
    if not policy.resolver:
        return f"Nobody is asked: {named}, and no resolver is named. A person decides."
    if definition is None or not definition.is_enabled:
        state = "is switched off" if definition else "does not exist"
        return f"Nobody is asked: {named} names resolver {policy.resolver}, which {state}. A person decides."
    if action_class is ActionClass.IDEMPOTENT:
        return f"{policy.resolver} is asked when somebody says so: {named}; the agent itself runs idempotent calls again."
    if policy.mode == Mode.SETTLE:
        return f"{policy.resolver} is asked by itself, and an exact find is written without a person: {named} says settle."
    return f"{policy.resolver} is asked by itself, and a person decides: {named} says propose."


def example_action(tool: str, args: str, action_class: ActionClass = ActionClass.EXTERNAL) -> Action:
    """A call that nobody made."""
    return Action(
        agent="example",
        seq=1,
        tool=as_column(tool),
        action_class=action_class,
        key=action_key("example", 1),
        args=args,
        status=ActionStatus.STARTED,
        epoch=1,
        written_epoch=1,
        started_at=0,
    )
