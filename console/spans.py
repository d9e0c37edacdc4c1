"""What happened, as OpenTelemetry spans, where OTEL_EXPORTER_OTLP_ENDPOINT is set: steps of runs with their calls, settles, questions.

A span holds ids, numbers, states and names out of code or a policy; never arguments, results, reasons, or what a person or an agent is called.
Its trace follows from the name of the agent, which is the run's id: every step of a run is in one trace, whichever worker made it. What goes
wrong with spans is a line of the log and nothing else. Nothing of OpenTelemetry is imported here, nor anywhere while it is not asked for.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings

from console.models import Parked, Run, RunEvent

if TYPE_CHECKING:
    from actions.records import Action
    from agents.compensation import UndoOutcome
    from agents.runs import RunType
    from agents.steps import Step
    from console.span_exporter import Begun

log = logging.getLogger(__name__)

MAX_CHARS = 200
_EXPORTER = "console.span_exporter"
_KEY = re.compile(r"[0-9a-f]{8,128}")
T = TypeVar("T")
Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(slots=True)
class StepSpan:
    """What is told of one attempt at a step, forward or back, filled in by whoever makes it. Without a state nothing was begun: there is no span."""

    number: int = 0
    state: str = ""
    step: Step | UndoOutcome | None = None
    problem: BaseException | None = None

    def came_to(self, step: Step | UndoOutcome, *, is_ours: bool) -> None:
        self.step, self.state = step, step.state.value if is_ours else "lost"

    def broke_off(self, problem: BaseException) -> None:
        """Of the error its kind alone. The calls that it made stand in the records."""
        self.problem, self.state = problem, "broken_off"


def is_on() -> bool:
    return bool(settings.OTEL_EXPORTER_OTLP_ENDPOINT)


def load() -> None:
    """Import what spans are sent by, before a worker forks; each process opens its own connection at its first span."""
    if is_on():
        _quietly(_exporter)


def flush() -> None:
    """Send what waits, or give up within seconds. For the end of a process."""
    if _EXPORTER in sys.modules:
        _quietly(lambda: _exporter().flush())


@contextmanager
def step_of(run: Run, kind: RunType) -> Iterator[StepSpan]:
    """One step of a run, the current span meanwhile. Reads the run's newest event, and what it restarts."""
    told = StepSpan(number=run.steps + 1)
    begun = _quietly(lambda: _begin_step(run)) if is_on() else None
    try:
        yield told
    finally:
        if begun is not None:
            _quietly(lambda: _end_step(begun[0], kind, told, _of_step(run, kind, told, is_resumed=begun[1])))


@contextmanager
def undo_of(run: Run, kind: RunType) -> Iterator[StepSpan]:
    """One call of a run that is taken back, the current span meanwhile. Reads the run's newest event."""
    told = StepSpan()
    begun = _quietly(lambda: (_exporter().begin("run.undo", run.run_id, is_first=False), _is_resumed(run))) if is_on() else None
    try:
        yield told
    finally:
        if begun is not None:
            _quietly(lambda: _end_step(begun[0], kind, told, _of_undo(run, kind, told, is_resumed=begun[1])))


def tell(name: str, agent: str, attributes: Mapping[str, Value], *, took: float, problem: BaseException | None = None) -> None:
    """A span of its own that ended just now, `took` seconds after its beginning, in the trace of its agent."""
    if is_on():
        now = time.time_ns()
        said = {**attributes, "error.type": type(problem).__name__ if problem is not None else None}
        _quietly(
            lambda: _exporter().tell(
                name, agent, _said(said), began=now - int(took * 1e9), ended=now, is_error=problem is not None
            )
        )


def _begin_step(run: Run) -> tuple[Begun, bool]:
    restarts = run.restart_of.run_id if run.restart_of is not None and run.steps == 0 else ""
    # The span of the first attempt is known by the run alone, so that a restart can name it.
    is_first = run.steps == run.resumes == 0 and run.stepped_at is None and run.parked == Parked.NO
    return _exporter().begin("run.step", run.run_id, is_first=is_first, link=restarts), _is_resumed(run)


def _is_resumed(run: Run) -> bool:
    newest = RunEvent.objects.filter(run=run).order_by("-number").values_list("kind", flat=True).first()
    return newest == "resumed"


def _end_step(begun: Begun, kind: RunType, told: StepSpan, said: Mapping[str, Value]) -> None:
    exporter, step = _exporter(), told.step
    if not told.state and told.problem is None:
        exporter.drop(begun)
        return
    for action in step.calls if step is not None else ():
        exporter.add_child(
            begun,
            "run.call",
            _said(_call(action, kind)),
            began=action.started_at,
            ended=action.ended_at,
            is_error=action.status == "failed",
        )
    exporter.end(begun, _said(said), is_error=told.state in ("failed", "stopped", "broken_off"))


def _of_step(run: Run, kind: RunType, told: StepSpan, *, is_resumed: bool) -> dict[str, Value]:
    step: Any = told.step
    return {
        **_of_any(run, kind, told, is_resumed=is_resumed),
        "settle.run.step": told.number,
        "settle.run.nodes": step.nodes if step is not None else (),
        "settle.run.checkpoint": step.checkpoint if step is not None else "",
    }


def _of_undo(run: Run, kind: RunType, told: StepSpan, *, is_resumed: bool) -> dict[str, Value]:
    outcome: Any = told.step
    undone = outcome.step if outcome is not None else None
    return {
        **_of_any(run, kind, told, is_resumed=is_resumed),
        "settle.undo.seq": undone.call.seq if undone is not None else None,
        "settle.undo.tool": undone.tool if undone is not None and kind.tool(undone.tool) is not None else None,
    }


def _of_any(run: Run, kind: RunType, told: StepSpan, *, is_resumed: bool) -> dict[str, Value]:
    return {
        "settle.run.id": run.run_id,
        "settle.run.type": kind.name,
        "settle.run.state": told.state,
        "settle.run.resumed": is_resumed,
        "error.type": type(told.problem).__name__ if told.problem is not None else None,
    }


def _call(action: Action, kind: RunType) -> dict[str, Value]:
    """A tool that the type does not declare may be called anything, so it is not named."""
    took = None if action.ended_at is None else max(0, action.ended_at - action.started_at) / 1e6
    return {
        "settle.call.tool": action.tool if kind.tool(action.tool) is not None else None,
        "settle.call.class": action.action_class.value,
        "settle.call.seq": action.seq,
        "settle.call.key": action.key if _KEY.fullmatch(action.key) else None,
        "settle.call.status": action.status.value,
        "settle.call.ms": took,
    }


def _said(attributes: Mapping[str, Value]) -> dict[str, Any]:
    """Without what is not known; texts short, and such as can be sent: one that cannot would take its whole batch with it."""
    return {name: _plain(value) for name, value in attributes.items() if value not in (None, "", ())}


def _plain(value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(str(_plain(one)) for one in value)
    return value[:MAX_CHARS].encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _exporter() -> Any:
    from console import span_exporter

    return span_exporter


def _quietly(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except Exception as exc:  # nothing that is told of may fail because of the telling
        log.warning("a span is lost: %s", type(exc).__name__)
        return None
