"""Runs, their events, calls and approvals as lines of a screen, and run types in words. Reads what it is given; nothing here writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.utils import timezone

from actions.arguments import Arguments, parse_arguments
from actions.errors import ActionsError
from actions.facts import LOWEST_RISK, Facts, amount_in, argument_at, facts_of, risk_of
from actions.long_arguments import redacted_arguments
from actions.queries import ActionItem
from actions.records import Action, ActionClass
from actions.redaction import redact_arguments, redact_text
from actions.summary import fill_summary
from actions.times import to_datetime
from actions.tool_rules import ToolRules
from agents.runs import Expiry, Gate, Recovery, RunTool, RunType
from console.access import Person
from console.durations import format_duration
from console.edits import Edit, edits_between
from console.models import Approval, ApprovalState, Run, RunEvent, RunStatus, Undoing
from console.run_types import run_types
from console.services.approvals import why_not_answer
from console.untrusted import pretty
from console.words import APPROVAL_STATES, PARKED, RUN_EVENTS, RUN_STATUSES, UNDOING, RunWord

log = logging.getLogger(__name__)

ENDED = frozenset({RunStatus.FAILED, RunStatus.DONE, RunStatus.CANCELLED})
CLOSE = timedelta(minutes=30)
"""An approval that expires within this is said to be close."""
_LABELS: Mapping[str, str] = {
    "nodes": "nodes",
    "checkpoint": "checkpoint",
    "decision": "decision",
    "tool": "tool",
    "calls": "calls",
    "open_calls": "in doubt",
    "cost": "cost",
    "lost_cost": "of it in lost attempts",
    "busy_ms": "took",
    "compensates": "takes back call",
    "call": "call",
    "by_tool": "by",
    "by_call": "as call",
    "why": "because",
    "lost": "workers lost",
    "type": "type",
    "version": "version",
}
_SAID = ("reason", "problem", "message")
"""What an event quotes, in a line of its own."""


# --- run types -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWords:
    """One tool of a run type: its gate and its compensation in words. Empty: it has none."""

    name: str
    action_class: str
    gate: str
    undo: str
    notes: tuple[str, ...]
    is_gap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeWords:
    """A run type as it is declared."""

    name: str
    title: str
    version: int
    tools: tuple[ToolWords, ...]
    limits: str
    recovery: str
    gaps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTypes:
    """The registered types by name; `problem` says why there are none though some are named."""

    types: Mapping[str, RunType]
    problem: str = ""

    def title_of(self, name: str) -> str:
        kind = self.types.get(name)
        return (kind.title if kind else "") or name.replace("_", " ").replace("-", " ").capitalize()


def known_types() -> KnownTypes:
    """A declaration that cannot work takes no page away: it is said instead."""
    try:
        return KnownTypes(types=run_types())
    except ActionsError as exc:
        return KnownTypes(types={}, problem=str(exc))


def words_of_types(known: KnownTypes) -> tuple[TypeWords, ...]:
    """Every type with its tools, for the registry."""
    return tuple(
        TypeWords(
            name=kind.name,
            title=known.title_of(kind.name),
            version=kind.version,
            tools=tuple(_tool_words(tool) for tool in kind.tools),
            limits=_limits(kind),
            recovery=_recovery(kind),
            gaps=kind.design_gaps,
        )
        for kind in known.types.values()
    )


def gaps_by_tool(known: KnownTypes) -> Mapping[str, tuple[str, ...]]:
    """The run types in which a tool can neither be confirmed nor taken back."""
    found: dict[str, tuple[str, ...]] = {}
    for kind in known.types.values():
        for tool in kind.design_gaps:
            found[tool] = (*found.get(tool, ()), kind.name)
    return found


def gate_words(gate: Gate) -> tuple[str, ...]:
    """What a gate says, in short sentences."""
    after = "the run fails" if gate.on_expiry is Expiry.FAIL else "it is asked again"
    expires = (
        f"after {_lasting(gate.expires_after)} without an answer {after}"
        if gate.expires_after
        else "it waits as long as it takes"
    )
    return (
        f"Somebody has to agree when {' '.join(gate.when.split())}" if gate.when.strip() else "Somebody always has to agree",
        *(("not who started the run, and with the role approver",) if gate.needs_another else ()),
        f"{expires}; silence is never consent",
    )


def _tool_words(tool: RunTool) -> ToolWords:
    undo = tool.compensate
    notes = {
        "moves money": tool.moves_money,
        "does no harm if it stays": tool.is_reversible,
        "only takes back": tool.only_undoes,
    }
    return ToolWords(
        name=tool.name,
        action_class=tool.action_class,
        gate="; ".join(gate_words(tool.gate)) if tool.gate else "",
        undo=undo.tool if undo else "",
        notes=tuple(words for words, holds in notes.items() if holds),
        is_gap=tool.is_design_gap,
    )


def _limits(kind: RunType) -> str:
    most = kind.limits
    cost = f", cost {most.cost}" if most.cost is not None else ""
    return f"{most.steps} steps, {_lasting(most.busy)} at work{cost}"


def _recovery(kind: RunType) -> str:
    anew, goes_on = "begins anew as another run, unless money has moved", "goes on from its last checkpoint"
    words = anew if kind.recovery is Recovery.RESTART else goes_on
    within = f" within {_lasting(kind.resume_within)}" if kind.resume_within else ""
    undo = "; what it did is taken back by itself when it fails or is cancelled" if kind.compensates_itself else ""
    return f"When its worker dies it {words}{within}{undo}"


def _lasting(span: timedelta) -> str:
    return format_duration(int(span.total_seconds()))


# --- approvals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLine:
    """One approval with what it asks, read by us from its arguments. `why_not`: why this person cannot answer it; empty: they can."""

    row: Approval
    word: RunWord
    facts: Facts
    arguments: Arguments  # redacted
    title: str  # of the run's type
    why_not: str
    gate: tuple[str, ...]  # what the gate says; empty where its type is not known any more
    edits: tuple[Edit, ...] = ()  # of an edited one

    @property
    def weighs(self) -> bool:
        return self.facts.risk < LOWEST_RISK

    @property
    def is_pending(self) -> bool:
        return self.row.state == ApprovalState.PENDING

    @property
    def is_close(self) -> bool:
        return self.row.expires_at is not None and self.row.expires_at - timezone.now() < CLOSE

    @property
    def is_over(self) -> bool:
        return self.row.expires_at is not None and self.row.expires_at <= timezone.now()

    @property
    def left_s(self) -> int:
        return max(0, int((self.row.expires_at - timezone.now()).total_seconds())) if self.row.expires_at else 0

    @property
    def pretty(self) -> str:
        return pretty(self.arguments)

    @property
    def version(self) -> str:
        return f"{self.row.state}:{self.row.digest}:{self.is_close}:{self.is_over}"


def approval_line(row: Approval, viewer: Person, rules: ToolRules, known: KnownTypes) -> ApprovalLine:
    """`row` with its run; nothing is asked of a database."""
    rule, kind = rules.of(row.tool), known.types.get(row.run.type)
    tool = kind.tool(row.tool) if kind else None
    arguments = redacted_arguments(row.args, rule.redacted)
    action_class = ActionClass(tool.action_class) if tool else ActionClass.EXTERNAL
    return ApprovalLine(
        row=row,
        word=APPROVAL_STATES[row.state],
        facts=facts_of(redact_text(row.tool), action_class, arguments, rule, risk=risk_of(row.tool, row.args, rule)),
        arguments=arguments,
        title=known.title_of(row.run.type),
        why_not=why_not_answer(row, viewer) if row.state == ApprovalState.PENDING else "",
        gate=gate_words(tool.gate) if tool and tool.gate else (),
        edits=edits_between(row.args, row.edited_args, rule.redacted) if row.edited_args else (),
    )


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run of the list. `waits`: how many approvals of it wait."""

    run: Run
    word: RunWord
    sentence: str  # what it is for, redacted
    waits: int = 0
    more: RunWord | None = None  # parked, or being undone

    @property
    def version(self) -> str:
        return f"{self.run.status}:{self.run.parked}:{self.run.undoing}:{self.run.steps}:{self.waits}"

    @property
    def age_s(self) -> int:
        return max(0, int((timezone.now() - self.run.created_at).total_seconds()))


def run_line(run: Run, known: KnownTypes, *, waits: int = 0) -> RunLine:
    return RunLine(
        run=run,
        word=RUN_STATUSES[run.status],
        more=more_of(run),
        sentence=sentence_of(run, known),
        waits=waits,
    )


def more_of(run: Run) -> RunWord | None:
    """What stands beside a run's status: why it stands still, or how far its undoing is."""
    if run.parked and (run.status == RunStatus.RUNNING or run.undoing == Undoing.RUNNING):
        return PARKED[run.parked]
    return UNDOING[run.undoing] if run.undoing else None


def sentence_of(run: Run, known: KnownTypes) -> str:
    """What a run is for, in the words of its type, else its title with the first values of its input; money as in an action's sentence."""
    kind, value = known.types.get(run.type), redact_arguments(parse_arguments(run.input)).value
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    name, money, currency = amount_in(given)
    moves_money = kind is not None and any(tool.moves_money for tool in kind.tools)
    amount = {name: money} if money and (moves_money or currency) else {}
    own = fill_summary(kind.summary, lambda path: amount.get(path.lower()) or _words(argument_at(given, path))) if kind else ""
    if own:
        return own
    values = [f"{one} {amount.get(one.lower()) or _words(said)}" for one, said in given.items() if _words(said)]
    return " · ".join(filter(None, [known.title_of(run.type), ", ".join(values[:3])]))


def _words(value: Any) -> str:
    """A plain value of an input on one line; nothing of what is made of several."""
    return " ".join(str(value).split())[:60] if isinstance(value, str | int | Decimal) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of a limit is used. `most` None: there is none."""

    label: str
    used: str
    most: str
    share: int  # percent, at most 100

    @property
    def is_close(self) -> bool:
        return self.share >= 80


def limits_of(run: Run, known: KnownTypes) -> tuple[Limit, ...]:
    """Steps, time at work, cost: what is used and what may be, where its type is known."""
    kind = known.types.get(run.type)
    busy, most = timedelta(milliseconds=run.busy_ms), kind.limits if kind else None
    return (
        _limit("Steps", run.steps, most.steps if most else None, str),
        _limit("At work", busy.total_seconds(), most.busy.total_seconds() if most else None, lambda s: format_duration(int(s))),
        _limit("Cost", run.cost, most.cost if most else None, _plain),
    )


def _limit(label: str, used: Any, most: Any, words: Any) -> Limit:
    share = min(100, round(100 * float(used) / float(most))) if most else 0
    return Limit(label=label, used=words(used), most=words(most) if most is not None else "", share=share)


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}" if number else "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event of a run. `said` is quoted, redacted; `facts` are (label, text)."""

    number: int
    at: datetime
    by: str
    says: str
    kind: str
    facts: tuple[tuple[str, str], ...]
    said: tuple[str, ...]
    calls: tuple[int, ...]
    approval: str
    run: str
    step: int  # which step of the graph it tells of; 0: none


def event_line(event: RunEvent, step: int = 0) -> EventLine:
    """Whatever stands in its detail; what cannot be read is left out."""
    try:
        detail = json.loads(event.detail)
    except ValueError:
        detail = {}
    detail = detail if isinstance(detail, dict) else {}
    run = detail.get("restarted_as") or detail.get("restart_of") or ""
    return EventLine(
        number=event.number,
        at=event.at,
        by=event.by,
        says=RUN_EVENTS[event.kind].word if event.kind in RUN_EVENTS else event.kind.replace("_", " "),
        kind=event.kind,
        facts=tuple(
            (_LABELS[name], text)
            for name in _LABELS
            if name not in ("calls", "open_calls") and (text := _fact(name, detail.get(name)))
        ),
        said=tuple(str(detail[name]) for name in _SAID if detail.get(name)),
        calls=numbers_in(detail.get("calls") or detail.get("open_calls")),
        approval=str(detail.get("approval") or ""),
        run=run if isinstance(run, str) else "",
        step=step,
    )


def numbers_in(value: Any) -> tuple[int, ...]:
    """The numbers of calls in a list of numbers, or of objects with `seq`."""
    rows = value if isinstance(value, list) else []
    found = [row.get("seq") if isinstance(row, dict) else row for row in rows]
    return tuple(one for one in found if isinstance(one, int) and not isinstance(one, bool))


def _fact(name: str, value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    if name == "why":
        return PARKED[value].word if value in PARKED else str(value)
    if name == "busy_ms":
        return milliseconds(value)
    if name == "checkpoint":
        return str(value)[-12:]
    if name == "cost":
        return _plain(Decimal(str(value))) if _is_number(value) else str(value)
    return ", ".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _is_number(value: Any) -> bool:
    try:
        return Decimal(str(value)).is_finite()
    except ArithmeticError:
        return False


def milliseconds(value: Any) -> str:
    """`240 ms`, `3.2 s`, `4 min`; as it stands where it is no number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 60_000 else format_duration(int(value / 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """One call of a run's agent. `step`: in which step of the graph it was begun; 0 where no event says so."""

    item: ActionItem
    took: str
    step: int = 0
    compensates: int = 0  # the call that it takes back
    compensated_by: tuple[int, ...] = ()


def call_lines(items: Sequence[ActionItem], steps: Mapping[int, int]) -> tuple[CallLine, ...]:
    """In the order given. `steps`: the number of the step by that of the call."""
    undone: dict[int, tuple[int, ...]] = {}
    for item in items:
        if (of := compensated_by_this(item)) and item.seq:
            undone[of] = (*undone.get(of, ()), item.seq)
    return tuple(
        CallLine(
            item=item,
            took=took(item.action),
            step=steps.get(item.seq or 0, 0),
            compensates=compensated_by_this(item),
            compensated_by=undone.get(item.seq or 0, ()),
        )
        for item in items
    )


def compensated_by_this(item: ActionItem) -> int:
    """The number of the call that this one takes back, as its own recorded arguments say; 0 where it takes none back."""
    value = item.arguments.value
    number = value.get("compensates") if isinstance(value, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 10**18 else 0


def took(action: Action | None) -> str:
    """How long a call took by its process's clock; empty while it is open."""
    if action is None or action.ended_at is None:
        return ""
    return milliseconds(max(0.0, (to_datetime(action.ended_at) - to_datetime(action.started_at)).total_seconds() * 1000))


def steps_of_calls(steps: Iterable[EventLine]) -> Mapping[int, int]:
    """In which step each call was begun, as far as these events say."""
    found: dict[int, int] = {}
    for event in sorted(steps, key=lambda one: one.number):
        for call in event.calls if event.step else ():
            found.setdefault(call, event.step)
    return found
