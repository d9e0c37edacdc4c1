"""The kind `python`: a resolver written for Recall works unchanged, and its word is worth what it shows."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import polign_recall
import pytest

from actions.records import ActionEnd, ActionStatus
from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Effect, Finding, InvalidDefinition, MatchedBy, Reply
from actions.resolvers.python import MAX_HANGING, RecallAction, load_callables, recall_action
from actions.resolvers.verdict import Evidence, Grade, Outcome, Verdict
from actions.times import format_rfc3339
from tests.resolvers.makers import BEGAN, LONG_AFTER, make_claim, make_finding, make_match, weigh

Callee = Callable[..., Any]


def ask(call: Callee, path: str = "billing.resolver", **form: str) -> Finding:
    allowed = Allowed(callables={path: call})
    settings = {"callable": path, "timeout_s": "10", **form}
    return build_resolver("python", "own", settings, allowed=allowed).ask(make_claim(), now=LONG_AFTER)


def verdict_of(finding: Finding, **changes: Any) -> Verdict:
    return weigh(finding, **changes)


# --- what it is given ------------------------------------------------------------------------------------------------


def test_it_is_given_what_recall_gives() -> None:
    """The same record as Recall's server sends it, read by Recall's own client and by us."""
    claim = make_claim()
    action = claim.action
    wire = {
        "seq": action.seq, "tool": action.tool, "class": "external", "key": action.key, "status": "started", "args": action.args,
        "epoch": 1, "started_at": format_rfc3339(action.started_at),
    }  # fmt: skip
    theirs, ours = polign_recall.Action.decode(wire), recall_action(action, claim.arguments.text)

    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert {field.name: field.type for field in dataclasses.fields(RecallAction)} == {
        field.name: field.type for field in dataclasses.fields(polign_recall.Action)
    }
    assert ours.open is theirs.open is True


def test_a_resolver_written_for_recall_works_unchanged() -> None:
    def resolver(action: polign_recall.Action) -> polign_recall.ActionEnd | None:
        if action.class_ != "external" or not action.open:
            return None
        payee = json.loads(action.args)["payee"]
        return polign_recall.ActionEnd("done", result=f"paid {payee}", resolution=f"found {action.key} in the ledger")

    finding = ask(resolver)

    assert [(match.by, match.effect) for match in finding.matches] == [(MatchedBy.OWN_WORD, Effect.HAPPENED)]
    accepted = verdict_of(finding, accepts_strong=True)
    assert (accepted.outcome, accepted.grade, accepted.may_settle_alone) == (Outcome.DONE, Grade.STRONG, False)
    assert verdict_of(finding).outcome is Outcome.UNKNOWN
    assert accepted.evidence.notes == (f"found {make_claim().action.key} in the ledger; paid ACME GmbH",)


# --- what it answers -------------------------------------------------------------------------------------------------


def test_its_failed_is_a_negative_without_a_canary_and_proves_nothing() -> None:
    finding = ask(lambda action: polign_recall.ActionEnd("failed", error="no such payment"), proves_absence="yes")

    assert (finding.reply, finding.canary, finding.is_complete) == (Reply.ANSWERED, Canary.NOT_ASKED, False)
    verdict = verdict_of(finding)
    assert (verdict.outcome, verdict.evidence.is_negative) == (Outcome.UNKNOWN, False)
    assert verdict.evidence.notes == ("its resolver says that it failed: no such payment",)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "it cannot tell"),
        (polign_recall.ActionEnd("unknown", resolution="the ledger is closed"), "it says 'unknown': the ledger is closed"),
        (polign_recall.ActionEnd("abandoned"), "it says 'abandoned', which settles nothing"),
        (polign_recall.ActionEnd("DONE"), "it says 'DONE', which settles nothing"),
        (True, "it answered a bool"),
        ("done", "it answered a str"),
        ({"status": "done"}, "it answered a dict"),
        (SimpleNamespace(status="done"), "it answered a SimpleNamespace"),
        (dataclasses.replace(make_finding(), matches=("pay_1",)), "whose fields have other types"),
        (dataclasses.replace(make_finding(), matches=None), "it raised TypeError"),
        (dataclasses.replace(make_finding(make_match(amount=1.5))), "whose fields have other types"),
        (dataclasses.replace(make_finding(make_match(amount=Decimal("nan")))), "whose fields have other types"),
    ],
    ids=repr,
)
def test_every_other_answer_is_none(answer: object, says: str) -> None:
    finding = ask(lambda action: answer)

    assert (finding.reply, finding.matches) == (Reply.NO_ANSWER, ())
    assert says in finding.problem


def test_our_own_end_is_an_end_too() -> None:
    end = ActionEnd(status=ActionStatus.DONE, reason="looked", resolution="found")

    assert ask(lambda action: end).matches[0].by is MatchedBy.OWN_WORD


def test_a_finding_is_weighed_like_every_other_with_the_questions_own_times() -> None:
    finding = ask(lambda action: make_finding(make_match(), asked_at=1, asked=("SELECT token=hunter2",)))

    assert (finding.asked_at, finding.asked[1:]) == (LONG_AFTER, ("SELECT token=[redacted]",))
    assert verdict_of(finding).grade is Grade.EXACT
    assert verdict_of(ask(lambda action: make_finding(), proves_absence="yes")).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("theirs", "outcome", "grade"),
    [
        (weigh(make_finding(make_match())), Outcome.DONE, Grade.EXACT),
        (weigh(make_finding(make_match(by=MatchedBy.PROVIDER_ID)), accepts_strong=True), Outcome.UNKNOWN, Grade.STRONG),
        (weigh(make_finding(make_match(by=MatchedBy.FIELDS))), Outcome.UNKNOWN, Grade.WEAK),
        (weigh(make_finding(make_match(effect=Effect.PENDING))), Outcome.UNKNOWN, Grade.EXACT),
        (weigh(make_finding(make_match(amount=Decimal(1)))), Outcome.UNKNOWN, Grade.WEAK),
        (weigh(make_finding(make_match(effect=Effect.UNDONE))), Outcome.UNKNOWN, Grade.WEAK),
        (weigh(make_finding()), Outcome.FAILED, None),
        (weigh(make_finding(canary=Canary.MISSING)), Outcome.UNKNOWN, None),
        (weigh(make_finding(is_complete=False)), Outcome.UNKNOWN, None),
        (weigh(make_finding(reply=Reply.NO_ANSWER, problem="busy")), Outcome.UNKNOWN, None),
    ],
    ids=lambda value: value.resolution[:40] if isinstance(value, Verdict) else str(value),
)
def test_a_verdict_is_weighed_again_by_what_it_shows(theirs: Verdict, outcome: Outcome, grade: Grade | None) -> None:
    again = verdict_of(ask(lambda action: theirs))

    assert (again.outcome, again.grade) == (outcome, grade)


def test_a_verdict_that_only_claims_to_be_exact_is_not() -> None:
    evidence = Evidence(
        asked=(), account="", asked_at=0, took_ms=0, status="", answer_digest="", matched_ids=("pay_1",), fields=(),
        canary=Canary.FOUND, rule="trust me",
    )  # fmt: skip
    claimed = Verdict(outcome=Outcome.DONE, grade=Grade.EXACT, resolution="trust me", evidence=evidence)
    failed = Verdict(outcome=Outcome.FAILED, resolution="trust me", evidence=evidence)

    assert verdict_of(ask(lambda action: claimed)).grade is Grade.STRONG
    assert verdict_of(ask(lambda action: failed)).outcome is Outcome.UNKNOWN


# --- how it fails ----------------------------------------------------------------------------------------------------


class _Trap:
    resolution = "x"

    @property
    def status(self) -> str:
        raise ValueError("hunter2")


def _raise(error: BaseException) -> Callee:
    def resolver(action: object) -> None:
        raise error

    return resolver


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (_raise(ValueError("postgres://x:hunter2@db")), "it raised ValueError in test_python.py line "),
        (_raise(SystemExit("hunter2")), "it raised SystemExit"),
        (_raise(KeyboardInterrupt()), "it raised KeyboardInterrupt"),
        (lambda: None, "it raised TypeError"),
        (lambda action: _Trap(), "it raised ValueError"),
        (lambda action: sys.exit(1), "it raised SystemExit"),
    ],
)
def test_a_callable_that_raises_is_no_answer_and_its_message_is_not_told(call: Callee, says: str) -> None:
    finding = ask(call)

    assert (finding.reply, finding.matches) == (Reply.NO_ANSWER, ())
    assert says in finding.problem
    assert "hunter2" not in repr(finding)


def test_calls_that_hang_are_left_behind_up_to_a_number_and_called_again_once_they_end() -> None:
    release, begun = threading.Event(), threading.Semaphore(0)
    called: list[threading.Thread] = []

    def resolver(action: object) -> polign_recall.ActionEnd:
        called.append(threading.current_thread())
        begun.release()
        release.wait(60)
        return polign_recall.ActionEnd("done", resolution="found, too late")

    late = [ask(resolver, "hanging.resolver", timeout_s="0.05") for _ in range(MAX_HANGING)]
    refused = ask(resolver, "hanging.resolver", timeout_s="0.05")
    other = ask(lambda action: None, "another.resolver")
    assert all(begun.acquire(timeout=60) for _ in range(MAX_HANGING))

    assert {(finding.reply, finding.matches) for finding in late} == {(Reply.NO_ANSWER, ())}
    assert "longer than 0.05 s; its call is left to end by itself" in late[0].problem
    assert "4 earlier calls of it still hang" in refused.problem
    assert len(called) == MAX_HANGING
    assert other.problem == "it cannot tell"

    release.set()
    for thread in called:
        thread.join(60)
    assert ask(resolver, "hanging.resolver").matches[0].by is MatchedBy.OWN_WORD


# --- which there are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["os.system", "billing.other", "resolver", "__import__('os').system", "billing.resolver "[:-1] + "x"]
)
def test_a_form_can_name_only_what_the_deployment_lists(path: str) -> None:
    allowed = Allowed(callables={"billing.resolver": lambda action: None})
    with pytest.raises(
        InvalidDefinition, match="not among those that the deployment lists; there are billing.resolver"
    ) as refused:
        build_resolver("python", "own", {"callable": path}, allowed=allowed)

    assert refused.value.field == "callable"


def test_without_a_list_there_is_none() -> None:
    with pytest.raises(InvalidDefinition, match="it lists none"):
        build_resolver("python", "own", {"callable": "os.system"})


def test_the_deployments_list_is_imported() -> None:
    loaded = load_callables([f"{__name__}.listed"])

    assert loaded == {f"{__name__}.listed": listed}
    assert ask(loaded[f"{__name__}.listed"]).matches[0].at == BEGAN


def listed(action: Any) -> Finding:
    return make_finding(make_match(at=BEGAN))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nodots", "no dotted path"),
        ("os.system; import x", "no dotted path"),
        ("no_such_module.resolver", r"cannot be imported \(ModuleNotFoundError\)"),
        ("json.no_such_name", r"cannot be imported \(AttributeError\)"),
        ("json.__name__", "is a str and cannot be called"),
    ],
)
def test_a_list_that_cannot_be_imported_is_refused(path: str, says: str) -> None:
    with pytest.raises(InvalidDefinition, match=says):
        load_callables([path])
