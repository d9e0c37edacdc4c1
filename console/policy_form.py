"""A tool's policy and a resolver's definition as forms: fields with their help, what was typed, and what changed between versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from actions.resolvers.base import Field, FieldType, Kind
from actions.resolvers.texts import YES
from console.durations import NotADuration, format_duration, parse_duration
from console.models import Definition, Mode, Policy, Secret, Weight
from console.services.definitions import find_kind, options_of
from console.services.gates import InvalidRule, arguments_in
from console.services.policies import windows_of

DURATION = "duration"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field as it is drawn. `value` is what was typed or what is saved; a secret has none, ever."""

    name: str
    label: str
    help: str
    type: str = FieldType.TEXT.value
    value: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_required: bool = False
    is_address: bool = False
    note: str = ""  # about what is set: never what it is
    problem: str = ""

    @property
    def id(self) -> str:
        return f"field-{self.name}"

    @property
    def is_on(self) -> bool:
        return self.value == YES

    @property
    def shown_value(self) -> str:
        """For a page without a form."""
        if self.type == FieldType.FLAG:
            return "yes" if self.is_on else "no"
        if self.type == FieldType.CHOICE:
            return dict(self.choices).get(self.value, self.value)
        return self.value

    @property
    def rows(self) -> int:
        return min(12, max(2 if self.type == FieldType.CODE else 3, self.value.count("\n") + 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields under one heading."""

    title: str
    fields: tuple[FormField, ...]
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that differs between two versions."""

    label: str
    before: str
    after: str


# --- policies --------------------------------------------------------------------------------------------------------

_WEIGHTS = ((Weight.BY_NAME.value, "as the tool's name says"), (Weight.YES.value, "yes"), (Weight.NO.value, "no"))
_POLICY: tuple[tuple[str, str, tuple[FormField, ...]], ...] = (
    (
        "Who is asked",
        "",
        (
            FormField(
                name="resolver",
                label="Resolver",
                help="Whoever is asked whether a call of this tool happened. Without one, people look for themselves.",
                type=FieldType.CHOICE,
            ),
            FormField(
                name="mode",
                label="An exact find",
                help="Settle: found by our key, with every field agreeing, it is written as done without a person. Nothing else ever is.",
                type=FieldType.CHOICE,
                choices=((Mode.PROPOSE.value, "propose it to a person"), (Mode.SETTLE.value, "settle by itself")),
            ),
            FormField(
                name="accepts_strong",
                label="A strong find is a find",
                help="The provider's own id, or our key in something that tells nothing to compare, counts as done for a person to confirm.",
                type=FieldType.FLAG,
            ),
        ),
    ),
    (
        "How long things take",
        "Write 90 s, 15 min, 2 h or 3 d.",
        (
            FormField(
                name="tool_timeout_s",
                label="Tool time-out",
                help="After this the tool itself has given up: no effect begins later.",
                type=DURATION,
            ),
            FormField(
                name="settle_window_s",
                label="Settle window",
                help="The provider shows whatever happened longer ago than this. Only then does absence mean anything, and two negatives "
                "lie at least one window apart.",
                type=DURATION,
            ),
            FormField(
                name="retention_s",
                label="Retention",
                help="The provider forgets what is older; then absence means nothing any more.",
                type=DURATION,
            ),
            FormField(
                name="give_up_after_s",
                label="Give up asking after",
                help="From the first question. It is reported once, and the call stays open.",
                type=DURATION,
            ),
        ),
    ),
    (
        "Which argument is what",
        "Names of arguments, compared with what the world says; dots lead into nested objects, as in order.total. Empty: the usual names.",
        (
            FormField(name="recipient", label="Recipient", help="Usually to, recipient, email, payee, customer …"),
            FormField(name="amount", label="Amount", help="Usually amount, total, value, sum, price …"),
            FormField(name="currency", label="Currency", help="Usually currency."),
            FormField(name="reference", label="Reference", help="Usually reference, invoice, order, id …"),
            FormField(
                name="is_minor",
                label="The amount counts cents",
                help="A name that says cents or minor means so anyway.",
                type=FieldType.FLAG,
            ),
        ),
    ),
    (
        "Who decides",
        (
            "A rule is an expression (CEL) about the call, as in amount > 1000. It may use amount, currency, recipient, tool, agent, store, "
            "action_class, outcome, args (all arguments) and any argument by its own name. Empty: never. true: always. Where it cannot be "
            "worked out, because a field is missing or an amount is written in an odd way, it holds."
        ),
        (
            FormField(
                name="second_person_when",
                label="A second person when",
                help="The decision is then a proposal that somebody else has to approve. The rule is fixed when it is proposed.",
                type=FieldType.CODE,
            ),
            FormField(
                name="step_up_when",
                label="Confirm who you are when",
                help="Whoever decides or approves must have proved who they are within the last ten minutes. An API token never has.",
                type=FieldType.CODE,
            ),
            FormField(
                name="hold_s",
                label="Time to undo",
                help="A decision is held for so long before it is written, and can be undone. 0 s: it is written at once.",
                type=DURATION,
            ),
            FormField(
                name="sla_s",
                label="In doubt at most",
                help="A call of this tool that stays in doubt for longer is reported to people.",
                type=DURATION,
            ),
        ),
    ),
    (
        "What it weighs",
        "",
        (
            FormField(
                name="moves_money",
                label="Moves money",
                help="Its calls stand first in the queue, and missing safeguards are flagged.",
                type=FieldType.CHOICE,
                choices=_WEIGHTS,
            ),
            FormField(
                name="is_irreversible",
                label="Cannot be taken back",
                help="A sent email, a deployment, a deletion.",
                type=FieldType.CHOICE,
                choices=_WEIGHTS,
            ),
            FormField(
                name="compensation",
                label="Compensation",
                help="How an effect is taken back, in words for whoever has to do it.",
                type=FieldType.LINES,
            ),
        ),
    ),
    (
        "How its calls are read",
        "Of every call, on every page; what decisions are bound to is the whole call as it is stored.",
        (
            FormField(
                name="summary",
                label="Sentence",
                help="As in: Refund of {amount} to {customer.name}. In braces: an argument, with dots one inside another, or {amount}, {currency}, "
                "{recipient}, {reference}, {title} as they are read above. Where one is missing, and where nothing is written here: our own words.",
            ),
            FormField(
                name="redacted",
                label="Hidden arguments",
                help="Names, separated by commas, whose values nobody sees here, at every depth, beside passwords, keys and cards.",
            ),
        ),
    ),
)
RULES = ("second_person_when", "step_up_when")
_POLICY_FIELDS: Mapping[str, FormField] = {one.name: one for _, _, fields in _POLICY for one in fields}


def policy_values(policy: Policy) -> dict[str, str]:
    """A policy as the texts of its form."""
    found = {}
    for name, one in _POLICY_FIELDS.items():
        value = getattr(policy, name)
        found[name] = (
            format_duration(value)
            if one.type == DURATION
            else (YES if value else "")
            if one.type == FieldType.FLAG
            else str(value)
        )
    return found


def policy_groups(
    said: Mapping[str, str], definitions: Sequence[Definition], problems: Mapping[str, str] | None = None
) -> tuple[Group, ...]:
    """The form with these texts in it, and what is wrong with them by field."""
    resolvers = [("", "nobody")] + [(d.name, f"{d.name}{'' if d.is_enabled else ' (switched off)'}") for d in definitions]
    if said.get("resolver") and said["resolver"] not in dict(resolvers):
        resolvers.append((said["resolver"], f"{said['resolver']} (does not exist)"))
    problems = problems or {}

    def filled(one: FormField) -> FormField:
        choices = tuple(resolvers) if one.name == "resolver" else one.choices
        note = (
            _suggestions(definitions)
            if one.name == "resolver"
            else _arguments_of(said.get(one.name, ""))
            if one.name in RULES
            else ""
        )
        return replace(one, value=said.get(one.name, ""), choices=choices, problem=problems.get(one.name, ""), note=note)

    return tuple(Group(title=title, says=says, fields=tuple(filled(one) for one in fields)) for title, says, fields in _POLICY)


def read_policy(data: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[str, str]]:
    """What was typed, the values it stands for, and what cannot be read, by field."""
    said = {name: str(data.get(name, "")) for name in _POLICY_FIELDS}
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, one in _POLICY_FIELDS.items():
        if one.type == DURATION:
            try:
                values[name] = parse_duration(said[name])
            except NotADuration as exc:
                problems[name] = str(exc)
        elif one.type == FieldType.FLAG:
            values[name] = said[name] == YES
        else:
            values[name] = said[name].replace("\r\n", "\n").strip()
    return said, values, problems


def policy_changes(before: Policy, after: Policy) -> tuple[Change, ...]:
    """What differs, in the order of the form."""
    old, new = policy_values(before), policy_values(after)
    return _changes(_POLICY_FIELDS, old, new)


def _arguments_of(rule: str) -> str:
    """Which names of a rule are arguments: a misspelt one shows here, and would make the rule hold for every call."""
    try:
        names = arguments_in(rule)
    except InvalidRule:
        return ""
    return f"Arguments of the call itself: {', '.join(names)}. A call without them meets the rule." if names else ""


def _suggestions(definitions: Sequence[Definition]) -> str:
    """What each kind in use proposes for the lengths of time below, which are not changed by choosing it."""
    kinds = dict.fromkeys(definition.kind for definition in definitions)
    found = []
    for name in kinds:
        kind = find_kind(name)
        if kind is not None and (windows := kind.windows) != windows_of(Policy()):
            found.append(
                f"{name}: {format_duration(windows.tool_timeout_s)}, {format_duration(windows.settle_window_s)}, "
                f"{format_duration(windows.retention_s)}, {format_duration(windows.give_up_after_s)}"
            )
    return f"Proposed lengths of time, in the order below: {'; '.join(found)}." if found else ""


# --- definitions -----------------------------------------------------------------------------------------------------

RATE: tuple[FormField, ...] = (
    FormField(
        name="per_minute",
        label="Questions a minute",
        help="At most, over all workers: what the provider allows, or less.",
        type=FieldType.NUMBER,
        value="60",
        is_required=True,
    ),
    FormField(
        name="at_once",
        label="At the same time",
        help="Questions that may be on their way together.",
        type=FieldType.NUMBER,
        value="4",
        is_required=True,
    ),
    FormField(
        name="is_enabled",
        label="In use",
        help="Switched off, nobody is asked, and open questions wait.",
        type=FieldType.FLAG,
        value=YES,
    ),
)
_RATE_FIELDS: Mapping[str, FormField] = {one.name: one for one in RATE}
KIND_PREFIX = "set-"
"""Before the names of a kind's own fields in the form, so that none of them can be one of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """A definition's form as it was sent. Secrets are apart: they are never drawn again."""

    values: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    per_minute: str = ""
    at_once: str = ""
    is_enabled: bool = True


def read_definition(kind: Kind, data: Mapping[str, Any]) -> Typed:
    values, secrets = {}, {}
    for one in kind.fields:
        text = str(data.get(KIND_PREFIX + one.name, "")).replace("\r\n", "\n")
        if one.type is FieldType.SECRET:
            secrets[one.name] = text
        else:
            values[one.name] = text
    return Typed(
        values=values,
        secrets=secrets,
        per_minute=str(data.get("per_minute", "")).strip(),
        at_once=str(data.get("at_once", "")).strip(),
        is_enabled=data.get("is_enabled") == YES,
    )


def typed_of(definition: Definition) -> Typed:
    """A saved version as its form."""
    return Typed(
        values=options_of(definition),
        secrets={},
        per_minute=str(definition.per_minute),
        at_once=str(definition.at_once),
        is_enabled=definition.is_enabled,
    )


def new_definition(kind: Kind) -> Typed:
    """An empty form, with the kind's defaults."""
    values = {one.name: one.default for one in kind.fields if one.type is not FieldType.SECRET}
    return Typed(values=values, secrets={}, per_minute=RATE[0].value, at_once=RATE[1].value)


def definition_groups(
    kind: Kind, typed: Typed, secrets: Mapping[str, Secret], problems: Mapping[str, str] | None = None
) -> tuple[Group, ...]:
    """The form: the kind's own fields, then rate and switch."""
    problems = problems or {}
    said = {"per_minute": typed.per_minute, "at_once": typed.at_once, "is_enabled": YES if typed.is_enabled else ""}
    own = tuple(
        _own_field(one, typed.values.get(one.name, ""), secrets.get(one.name), problems.get(one.name, "")) for one in kind.fields
    )
    rate = tuple(replace(one, value=said[one.name], problem=problems.get(one.name, "")) for one in RATE)
    return Group(title=kind.label, says=kind.help, fields=own), Group(title="How often", fields=rate)


def definition_changes(before: Definition, after: Definition) -> tuple[Change, ...]:
    """What differs between two versions, without secrets: of those no old value is kept."""
    labels: dict[str, FormField] = {}
    for name in dict.fromkeys((before.kind, after.kind)):
        kind = find_kind(name)
        fields = kind.fields if kind is not None else ()
        labels |= {one.name: FormField(name=one.name, label=one.label, help="", type=one.type) for one in fields}
    old, new = options_of(before), options_of(after)
    labels |= {name: FormField(name=name, label=name, help="") for name in {*old, *new} - set(labels)}
    changes = _changes(labels, old, new)
    return changes + _changes(_RATE_FIELDS, _rate_values(before), _rate_values(after))


def _own_field(one: Field, value: str, secret: Secret | None, problem: str) -> FormField:
    is_secret = one.type is FieldType.SECRET
    return FormField(
        name=KIND_PREFIX + one.name,
        label=one.label,
        help=one.help,
        type=one.type.value,
        value="" if is_secret else value,
        choices=tuple((choice, choice) for choice in (("",) if not one.is_required and not one.default else ()) + one.choices),
        # A secret that is set need not be typed again.
        is_required=one.is_required and not (is_secret and secret is not None),
        is_address=one.is_address,
        note=_secret_note(secret) if is_secret else "",
        problem=problem,
    )


def _secret_note(secret: Secret | None) -> str:
    if secret is None:
        return "Not set."
    return f"Set by {secret.username}, {secret.set_at.day} {secret.set_at:%b %Y, %H:%M} UTC. Leave empty to keep it."


def _rate_values(definition: Definition) -> dict[str, str]:
    return {
        "per_minute": str(definition.per_minute),
        "at_once": str(definition.at_once),
        "is_enabled": YES if definition.is_enabled else "",
    }


def _changes(fields: Mapping[str, FormField], old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    differing: Iterable[FormField] = (one for name, one in fields.items() if old.get(name, "") != new.get(name, ""))
    return tuple(
        Change(
            label=one.label,
            before=replace(one, value=old.get(one.name, "")).shown_value,
            after=replace(one, value=new.get(one.name, "")).shown_value,
        )
        for one in differing
    )
