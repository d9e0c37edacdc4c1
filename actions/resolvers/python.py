"""The kind `python`: a callable of the team's own, `resolver(action) -> Verdict | ActionEnd | None`, as `RecallResume(resolver=...)` takes it.

Which callables there are, the deployment says (`Allowed.callables`); a definition can only choose one of them. What one answers is weighed by
the same rules as every other finding: its bare word is strong at best, and its "failed" is a negative without a canary.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from importlib import import_module
from time import monotonic
from typing import Any

from actions.facts import read_number
from actions.records import Action, ActionStatus
from actions.redaction import redact_text
from actions.resolvers.base import (
    Allowed,
    Canary,
    Claim,
    Effect,
    Field,
    FieldType,
    Finding,
    InvalidDefinition,
    Kind,
    Match,
    MatchedBy,
    Reply,
    Resolver,
)
from actions.resolvers.claim import people_in
from actions.resolvers.texts import read_texts
from actions.resolvers.verdict import Grade, Outcome, Verdict
from actions.times import Instant, format_rfc3339

MAX_HANGING = 4
"""Calls of one callable that may be left running; beyond that it is not called again until one of them ends."""
MAX_WORD_CHARS = 500

KIND = Kind(
    name="python",
    label="A callable of your own",
    help="Calls resolver(action) of your own code, as Recall's RecallResume does; its answer is weighed like every other.",
    fields=(
        Field(
            name="callable",
            label="Callable",
            help="Its dotted path, such as billing.recall.resolver; one of those that the deployment lists.",
            is_required=True,
        ),
        Field(
            name="proves_absence",
            label="Absence is proof",
            type=FieldType.FLAG,
            help="What it does not find does not exist. Counts only where it returns a Finding or a Verdict that tells of a canary.",
        ),
        Field(
            name="copies_are_normal",
            label="Copies are normal",
            type=FieldType.FLAG,
            help="Several objects with the same key are one effect, as with a mail in two folders.",
        ),
        Field(
            name="timeout_s",
            label="Time limit in seconds",
            type=FieldType.NUMBER,
            default="10",
            help="How long its answer is waited for; at most 10. A call that takes longer is left to end by itself, and not believed.",
        ),
    ),
)

_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)


def load_callables(paths: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Import what a deployment lists. Runs the modules' own code, so the list is the environment's and never a form's.

    Raises:
        InvalidDefinition: one of them is no dotted path, cannot be imported or is not callable.
    """
    return {path: _load(path) for path in paths}


def _load(path: str) -> Callable[..., Any]:
    if not _PATH.fullmatch(path):
        raise InvalidDefinition("callable", f"{path[:80]!r} is no dotted path such as billing.recall.resolver")
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise InvalidDefinition("callable", f"{path} cannot be imported ({type(exc).__name__})") from exc
    if not callable(found):
        raise InvalidDefinition("callable", f"{path} is a {type(found).__name__} and cannot be called")
    resolver: Callable[..., Any] = found
    return resolver


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> Resolver:
    texts = read_texts(KIND, settings, secrets)
    path = texts.text("callable")
    if path not in allowed.callables:
        there_are = f"there are {', '.join(sorted(allowed.callables))}" if allowed.callables else "it lists none"
        raise InvalidDefinition("callable", f"{path[:80]!r} is not among those that the deployment lists; {there_are}")
    return PythonResolver(
        name=name,
        path=path,
        call=allowed.callables[path],
        proves_absence=texts.flag("proves_absence"),
        copies_are_normal=texts.flag("copies_are_normal"),
        seconds=float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAction:
    """What a resolver gets from `RecallResume`: the names and types of `polign_recall.Action` (0.23), `class_` and texts as times.

    The status is the record's own: a resume would have made an interrupted external action unknown before. The arguments are whole, so
    `args_ref` is empty and there is nothing to fetch.
    """

    seq: int
    tool: str
    class_: str
    key: str
    status: str
    args: str = ""
    result: str = ""
    error: str = ""
    args_ref: str = ""
    result_ref: str = ""
    resolution: str = ""
    epoch: int = 0
    started_at: str = ""
    ended_at: str = ""

    @property
    def open(self) -> bool:
        return self.status in ("started", "unknown")


def recall_action(action: Action, whole_args: str) -> RecallAction:
    """An action as Recall's client shows it."""
    return RecallAction(
        seq=action.seq,
        tool=action.tool,
        class_=str(action.action_class),
        key=action.key,
        status=str(action.status),
        args=whole_args,
        result=action.result,
        error=action.error,
        result_ref=action.result_ref,
        resolution=action.resolution,
        epoch=action.epoch,
        started_at=format_rfc3339(action.started_at),
        ended_at="" if action.ended_at is None else format_rfc3339(action.ended_at),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonResolver:
    """One callable of the deployment."""

    name: str
    path: str
    call: Callable[..., Any] = field(repr=False)
    proves_absence: bool
    copies_are_normal: bool
    seconds: float
    kind: str = "python"

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        """In a thread of its own, since nothing can stop a call that hangs: it is left behind, at most MAX_HANGING of one callable."""
        began = monotonic()
        action = recall_action(claim.action, claim.arguments.text)
        finding = _called(self.path, lambda: _finding(self.call(action), now), self.seconds)
        return replace(
            finding,
            asked=(f"{self.path}(action {claim.action.seq}, tool {redact_text(claim.action.tool)[:200]})", *finding.asked),
            account=finding.account or self.path,
            asked_at=now,
            took_ms=int((monotonic() - began) * 1000),
        )


# --- the call --------------------------------------------------------------------------------------------------------

_left_behind: Counter[str] = Counter()
_lock = threading.Lock()


def _called(path: str, call: Callable[[], Finding], seconds: float) -> Finding:
    """What the callable's answer comes to, or why there is none. What a call that was left behind answers later is thrown away."""
    with _lock:
        if _left_behind[path] >= MAX_HANGING:
            return _no_answer(f"{MAX_HANGING} earlier calls of it still hang; it is not called again before one of them ends")
    answers: list[Finding] = []
    is_late = False

    def run() -> None:
        try:
            found = call()
        except BaseException as exc:  # a resolver that exits must not end anything but its thread
            found = _no_answer(f"it raised {type(exc).__name__}{_where(exc)}")
        with _lock:
            answers.append(found)
            if is_late:
                _left_behind[path] -= 1

    thread = threading.Thread(target=run, name=f"resolver {path}", daemon=True)
    thread.start()
    thread.join(seconds)
    with _lock:
        if answers:
            return answers[0]
        is_late = True
        _left_behind[path] += 1
    return _no_answer(f"it took longer than {seconds:.3g} s; its call is left to end by itself")


def _where(exc: BaseException) -> str:
    """File and line, which name no values; the message of an exception can hold a password."""
    frame = exc.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "" if frame is None else f" in {frame.tb_frame.f_code.co_filename.rpartition('/')[2]} line {frame.tb_lineno}"


def _no_answer(problem: str) -> Finding:
    return Finding(reply=Reply.NO_ANSWER, problem=problem, asked_at=0)


# --- what it answered ------------------------------------------------------------------------------------------------


def _finding(value: Any, now: Instant) -> Finding:
    """Any answer as a Finding, never worth more than what it shows."""
    if value is None:
        return _no_answer("it cannot tell")
    if isinstance(value, Finding):
        return _checked(value)
    if isinstance(value, Verdict):
        return _of_verdict(value, now)
    status, word = getattr(value, "status", None), getattr(value, "resolution", None)
    if isinstance(status, str) and isinstance(word, str):
        return _of_end(value, str(status), word, now)
    return _no_answer(f"it answered a {type(value).__name__}, which is no ActionEnd, Verdict or None")


def _of_end(end: Any, status: str, word: str, now: Instant) -> Finding:
    """A bare word: of "done" a match that shows nothing, of "failed" a negative without a canary, of all else nothing."""
    more = getattr(end, "result" if status == ActionStatus.DONE else "error", "")
    said = _said(word, more)
    digest = hashlib.sha256(f"{status}\n{word}\n{more}".encode(errors="replace")).hexdigest()
    if status == ActionStatus.DONE:
        match = Match(object_id="", by=MatchedBy.OWN_WORD, note=said)
        return Finding(reply=Reply.ANSWERED, matches=(match,), asked_at=now, status=status, answer_digest=digest)
    if status == ActionStatus.FAILED:
        notes = (f"its resolver says that it failed: {said}" if said else "its resolver says that it failed",)
        return Finding(reply=Reply.ANSWERED, asked_at=now, status=status, answer_digest=digest, notes=notes)
    return replace(
        _no_answer(f"it says {status[:20]!r}{f': {said}' if said else ''}, which settles nothing"), answer_digest=digest
    )


def _said(*texts: Any) -> str:
    joined = "; ".join(text for text in texts if isinstance(text, str) and text)
    return redact_text(joined[:10_000])[:MAX_WORD_CHARS]


def _checked(finding: Finding) -> Finding:
    """Its own Finding, if its types are those of a Finding, with its sentences redacted: it is code of the team's, and may be wrong."""
    texts = (*finding.asked, *finding.notes, finding.account, finding.status, finding.answer_digest, finding.problem)
    is_sound = (
        isinstance(finding.reply, Reply)
        and isinstance(finding.canary, Canary)
        and isinstance(finding.is_complete, bool)
        and type(finding.retry_after_s) is int
        and all(isinstance(text, str) for text in texts)
        and all(_is_match(match) for match in finding.matches)
    )
    if not is_sound:
        return _no_answer("it answered a Finding whose fields have other types")
    is_answered = finding.reply is Reply.ANSWERED
    return replace(
        finding,
        matches=tuple(finding.matches) if is_answered else (),
        canary=finding.canary if is_answered else Canary.NOT_ASKED,
        is_complete=finding.is_complete and is_answered,
        asked=tuple(_said(text) for text in finding.asked),
        notes=tuple(_said(text) for text in finding.notes),
        problem="" if is_answered else _said(finding.problem) or "it does not say why",
    )


def _is_match(match: object) -> bool:
    return (
        isinstance(match, Match)
        and isinstance(match.by, MatchedBy)
        and isinstance(match.effect, Effect)
        and isinstance(match.recipients, tuple)
        and all(
            isinstance(text, str) for text in (*match.recipients, match.object_id, match.currency, match.reference, match.note)
        )
        and (match.amount is None or (isinstance(match.amount, Decimal) and match.amount.is_finite()))
        and (match.at is None or type(match.at) is int)
    )


_BY_GRADE = {
    Grade.EXACT: MatchedBy.KEY,
    Grade.STRONG: MatchedBy.PROVIDER_ID,
    Grade.WEAK: MatchedBy.FIELDS,
    # What differs stands in the verdict's fields or only in its rule; as a look-alike it settles nothing either way.
    Grade.CONFLICT: MatchedBy.FIELDS,
}


def _of_verdict(verdict: Verdict, now: Instant) -> Finding:
    """The evidence of its verdict, to be weighed again: fields as it found them, ids, canary. Its outcome alone is not believed."""
    evidence = verdict.evidence
    if not evidence.is_answered:
        return _no_answer(f"its verdict: {_said(evidence.rule)}")
    said = (f"its own verdict: {_said(verdict.resolution)}", *evidence.notes)
    if verdict.grade is None:
        return Finding(
            reply=Reply.ANSWERED,
            canary=evidence.canary,
            is_complete=evidence.is_negative,
            asked_at=now,
            status=evidence.status,
            answer_digest=evidence.answer_digest,
            notes=said,
        )
    found = {row.name: row.found for row in evidence.fields}
    match = Match(
        object_id="",
        by=_BY_GRADE[verdict.grade],
        # Only its "done" says that the effect is finished.
        effect=Effect.HAPPENED if verdict.outcome is Outcome.DONE else Effect.PENDING,
        recipients=people_in(found.get("recipient", "")),
        amount=read_number(found.get("amount", "")),
        currency=found.get("currency", ""),
        reference=found.get("reference", ""),
    )
    return Finding(
        reply=Reply.ANSWERED,
        matches=tuple(replace(match, object_id=one) for one in evidence.matched_ids or ("",)),
        canary=evidence.canary,
        asked=evidence.asked,
        account=evidence.account,
        asked_at=now,
        status=evidence.status,
        answer_digest=evidence.answer_digest,
        notes=said,
    )
