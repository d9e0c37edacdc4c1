"""What runs ask people: every gate reaches the queue once, an answer is bound to what was shown, and silence is nobody's answer."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404
from django.utils import timezone

from actions.records import Action, ActionRef
from agents.gates import EDITED
from console import run_types
from console.models import Approval, Run
from console.services.approvals import (
    AlreadyAnswered,
    ApprovalChanged,
    ApprovalVoid,
    InvalidAnswer,
    answer,
    expire_approvals,
    get_approval,
    pending_approvals,
    shown_args,
)
from console.services.decide import DecisionRequest, decide
from console.services.policies import save_policy
from console.services.run_claims import wake_parked
from console.services.runs import cancel_run, restart_run, resume_run
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.entries import console_entries
from tests.console.run_kinds import TOOLS, effects, paying
from tests.console.runs import LOOK, PAY, PAY_MUCH, SEND, Call, calls_told, details_of, drive, kinds_of, start
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]
PAY_MORE: Call = ("pay", {"amount": 9000.0, "to": "Bolt"})
WHY = "seen in the dashboard"


def asking(by: User, *turns: Any, kind: str = "errand") -> tuple[Run, Approval]:
    run = drive(start(by, *(turns or (PAY_MUCH,)), kind=kind))
    assert run.status == "waiting_approval", run.problem
    return run, Approval.objects.filter(run=run, state="pending").order_by("pk")[0]


def say(row: Approval, decision: str, by: User, **more: Any) -> Approval:
    return answer(row.approval_id, decision=decision, seen=more.pop("seen", row.digest), by=by, **more)


def test_a_gate_parks_the_run_without_worker_lease_or_call_and_an_approval_lets_exactly_that_call_be_made(
    records: RecordWriter, ana: User, bea: User
) -> None:
    run, row = asking(ana, PAY, PAY_MUCH, LOOK)
    assert (run.due_at, run.held_until, run.token, len(effects("pay"))) == (None, None, "", 1)
    assert (row.tool, shown_args(row), row.description) == ("pay", {"amount": 5000.0, "to": "ACME"}, "more than 1000")
    assert details_of(run, "asked")[0]["approval"] == row.approval_id

    say(row, "approve", bea)
    drive(run)

    assert (run.status, [one["amount"] for one in effects("pay")]) == ("done", [120.0, 5000.0])
    assert len(effects("look_up")) == 1
    assert kinds_of(run).count("asked") == 1
    (entry,) = console_entries("run_answered")
    assert (entry.actor, entry.tool, entry.detail["changed"]) == ("operator bea", "pay", {"approval": ["pending", "approved"]})
    assert (entry.detail["digest"], entry.detail["approval"]) == (row.digest, row.approval_id)


def test_several_gates_of_one_turn_all_reach_the_queue_and_the_run_goes_on_once_all_are_answered(
    memory: RecordWriter, ana: User
) -> None:
    run, first = asking(ana, [PAY_MUCH, SEND, PAY_MORE])
    shown = pending_approvals(by=ana)
    assert sorted(shown_args(row)["amount"] for row in shown) == [5000.0, 9000.0]

    say(first, "approve", ana)
    run.refresh_from_db()
    assert (run.status, run.due_at, effects("pay")) == ("waiting_approval", None, [])
    say(next(row for row in shown if row.pk != first.pk), "reject", ana, message="not that one")
    drive(run)

    assert (run.status, len(effects("pay")), len(effects("send"))) == ("done", 1, 1)
    assert effects("pay")[0]["amount"] == shown_args(first)["amount"]
    assert kinds_of(run).count("asked") == 2
    assert "not that one" in run.result


def test_four_gates_of_one_turn_are_answered_each_in_another_way(memory: RecordWriter, ana: User, bea: User) -> None:
    calls: list[Call] = [("pay", {"amount": amount, "to": to}) for amount, to in ((5000.0, "ACME"), (6000.0, "Bolt"))]
    calls += [("send", {"to": "ann"}), ("pay", {"amount": 7000.0, "to": "Cog"}), ("pay", {"amount": 8000.0, "to": "Dyn"})]
    run, _ = asking(ana, calls)
    asked = {row.call_id: row for row in pending_approvals(by=ana)}
    assert sorted(asked) == ["c0-0", "c0-1", "c0-3", "c0-4"]

    say(asked["c0-4"], "respond", bea, message="Dyn was paid by hand")
    say(asked["c0-1"], "edit", bea, args={"amount": 60.0, "to": "Bolt"})
    say(asked["c0-3"], "reject", bea, message="not Cog")
    run.refresh_from_db()
    assert (run.status, run.due_at, effects("pay"), calls_told(run)) == ("waiting_approval", None, [], {})
    say(asked["c0-0"], "approve", bea)
    drive(run)

    assert (run.status, run.problem) == ("done", "")
    paid = {one["to"]: one for one in effects("pay")}
    assert [(one["to"], one["amount"]) for one in effects("pay")] in (
        [("ACME", 5000.0), ("Bolt", 60.0)],
        [("Bolt", 60.0), ("ACME", 5000.0)],
    )
    assert len(effects("send")) == 1
    assert calls_told(run) == {
        "c0-0": f"pay {paid['ACME']['key'][:8]}",
        "c0-1": EDITED.format(tool="pay", args='{"amount": 60.0, "to": "Bolt"}') + f"\n\npay {paid['Bolt']['key'][:8]}",
        "c0-2": f"send {effects('send')[0]['key'][:8]}",
        "c0-3": "User rejected the tool call for `pay` with reason: not Cog",
        "c0-4": "Dyn was paid by hand",
    }
    made = [one.action for one in get_store("main").list_agent_actions(run.run_id, limit=10)]
    assert sorted((one.tool, one.status) for one in made if isinstance(one, Action)) == [("pay", "done")] * 2 + [("send", "done")]
    assert kinds_of(run).count("asked") == 4
    assert pending_approvals(by=ana) == ()


@pytest.mark.parametrize(
    ("decision", "more", "paid", "told"),
    [
        ("edit", {"args": {"amount": 700.0, "to": "ACME"}}, [700.0], "pay "),
        ("reject", {"message": "too much"}, [], "too much"),
        ("respond", {"message": "paid by hand yesterday"}, [], "paid by hand yesterday"),
    ],
)
def test_an_edit_a_rejection_and_a_response_reach_the_model(
    memory: RecordWriter, ana: User, decision: str, more: dict[str, Any], paid: list[float], told: str
) -> None:
    run, row = asking(ana)

    say(row, decision, ana, **more)
    drive(run)

    assert (run.status, [one["amount"] for one in effects("pay")]) == ("done", paid)
    assert told in run.result
    changed = console_entries("run_answered")[0].detail["changed"]
    assert ("arguments" in changed) is (decision == "edit")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("decision", "more", "said"),
    [
        ("perhaps", {}, "choose approve, edit, reject, respond"),
        ("approve", {"args": {"amount": 1.0}}, "args go with edit"),
        ("approve", {"message": "fine"}, "reject and respond only"),
        ("edit", {}, "args go with edit"),
        ("edit", {"args": {"amount": "much", "to": "ACME"}}, "amount"),
        ("edit", {"args": {"amount": 1.0}}, "to"),
        ("edit", {"args": {"amount": 1.0, "to": "ACME", "bcc": "x"}}, "bcc"),
        ("edit", {"args": {"amount": float("nan"), "to": "ACME"}}, "not JSON"),
        ("edit", {"args": {"amount": True, "to": "ACME"}}, "amount"),
        ("edit", {"args": {"amount": "5000", "to": "ACME"}}, "amount"),
        ("edit", {"args": {"amount": 1.0, "to": "a\x00b"}}, "to: holds a NUL"),
        ("edit", {"args": {"amount": 1.0, "to": "\ud800"}}, "half a character"),
        ("edit", {"args": {"amount": 1.0, "to": "[redacted]"}}, "stands for a hidden value"),
        ("edit", {"args": {"amount": 1.0, "to": "pay [redacted]"}}, "stands for a hidden value"),
        ("reject", {"message": "x" * 2_001}, "the limit is 2000"),
        ("reject", {"message": "a\x00b"}, "message"),
        ("respond", {"message": " "}, "a message is required"),
    ],
)
def test_an_answer_that_cannot_be_meant_changes_nothing(
    memory: RecordWriter, ana: User, decision: str, more: dict[str, Any], said: str
) -> None:
    run, row = asking(ana)

    with pytest.raises(InvalidAnswer, match=".") as refused:
        say(row, decision, ana, **more)

    assert said in str(refused.value)
    assert (Approval.objects.get().state, console_entries("run_answered"), kinds_of(run)[-1]) == ("pending", [], "asked")


def test_a_gate_that_allows_two_decisions_refuses_the_others(memory: RecordWriter, ana: User) -> None:
    _, row = asking(ana, PAY, kind="yes-or-no")
    with pytest.raises(InvalidAnswer, match="this gate does not allow edit; choose approve, reject"):
        say(row, "edit", ana, args={"amount": 1.0, "to": "ACME"})


def test_what_is_not_what_was_shown_is_refused_with_what_stands_there_now(memory: RecordWriter, ana: User) -> None:
    _, row = asking(ana)
    with pytest.raises(ApprovalChanged) as refused:
        say(row, "approve", ana, seen="0" * 64)
    assert refused.value.digest == row.digest
    assert (Approval.objects.get().state, effects("pay")) == ("pending", [])


def test_what_a_policy_hides_is_not_shown_and_keeps_its_value_through_an_edit(memory: RecordWriter, ana: User, amy: User) -> None:
    save_policy("pay", {"redacted": "to"}, seen_version=0, by=amy)
    run, row = asking(ana)
    assert shown_args(row) == {"amount": 5000.0, "to": "[redacted]"}

    say(row, "edit", ana, args={"amount": 10.0, "to": "[redacted]"})
    drive(run)

    assert [(one["amount"], one["to"]) for one in effects("pay")] == [(10.0, "ACME")]
    assert "ACME" not in console_entries("run_answered")[0].text


def test_what_is_hidden_inside_a_text_keeps_its_value_through_an_edit(memory: RecordWriter, ana: User) -> None:
    to = "ACME, postgres://acme:hunter2hunter2@db.example/x"
    run, row = asking(ana, ("pay", {"amount": 5000.0, "to": to}))
    shown = shown_args(row)
    assert "hunter2" not in json.dumps(shown)

    say(row, "edit", ana, args={**shown, "amount": 10.0})
    drive(run)

    assert [(one["amount"], one["to"]) for one in effects("pay")] == [(10.0, to)]


@pytest.mark.parametrize("decision", ["approve", "edit", "respond"])
def test_whoever_comes_too_late_is_told_that_and_not_what_else_is_wrong(
    memory: RecordWriter, ana: User, bea: User, decision: str
) -> None:
    run, row = asking(ana)
    say(row, "reject", bea)
    with pytest.raises(AlreadyAnswered):
        say(row, decision, ana, message="\x00")
    drive(run)
    other, late = asking(ana)
    cancel_run(other.run_id, by=ana, reason=WHY)

    with pytest.raises(ApprovalVoid, match="its run is cancelled"):
        say(late, decision, ana, message="\x00")

    assert (Approval.objects.get(pk=late.pk).state, effects("pay")) == ("void", [])


def test_four_eyes_are_an_approver_who_did_not_start_the_run(memory: RecordWriter, ana: User, bea: User, person: Cast) -> None:
    own = person("own", "operator", "approver", email="o@example.com")
    twin, second = person("twin", "approver", email="O@example.com"), person("sec", "approver")
    run, row = asking(own, PAY, kind="four-eyes")
    for who, why in ((own, "you started this run"), (twin, "same email address"), (bea, "may approve")):
        with pytest.raises(PermissionDenied, match=why):
            say(row, "approve", who)
    assert (Approval.objects.get().state, effects("pay")) == ("pending", [])

    say(row, "approve", second)

    assert (drive(run).status, len(effects("pay"))) == ("done", 1)


def test_who_started_a_run_is_known_by_their_account_whatever_it_is_called_now(
    memory: RecordWriter, bea: User, person: Cast
) -> None:
    own = person("both", "operator", "approver")
    run, row = asking(own, PAY, kind="four-eyes")
    User.objects.filter(pk=own.pk).update(username="renamed")
    own = User.objects.get(pk=own.pk)
    namesake = person("both", "operator", "approver")

    with pytest.raises(PermissionDenied, match="you started this run"):
        say(row, "approve", own)
    assert effects("pay") == []
    say(row, "approve", namesake)

    assert drive(run).status == "done"


@pytest.mark.parametrize(
    ("roles", "error"),
    [
        (["viewer"], PermissionDenied),
        (["approver"], PermissionDenied),
        (["admin"], PermissionDenied),
        ([], Http404),
        ([("operator", "main", "send")], Http404),
        ([("operator", "other", "")], Http404),
    ],
)
def test_who_may_not_settle_that_tool_answers_nothing(
    memory: RecordWriter, ana: User, person: Cast, roles: list[Any], error: type[Exception]
) -> None:
    _, row = asking(ana)
    who = person("who", *roles)

    with pytest.raises(error):
        say(row, "approve", who)

    assert len(pending_approvals(by=who)) == (error is PermissionDenied)
    assert Approval.objects.get().state == "pending"


def test_who_may_settle_that_one_tool_answers_it(memory: RecordWriter, ana: User, person: Cast) -> None:
    _, row = asking(ana)
    assert say(row, "approve", person("who", ("operator", "main", "pay"))).state == "approved"


def test_an_answer_to_a_cancelled_run_is_void_and_nothing_is_called(memory: RecordWriter, ana: User) -> None:
    run, row = asking(ana)
    cancel_run(run.run_id, by=ana, reason=WHY)

    with pytest.raises(ApprovalVoid, match="its run is cancelled"):
        say(row, "approve", ana)

    assert (Approval.objects.get().state, pending_approvals(by=ana), drive(run).status, effects("pay")) == (
        "void",
        (),
        "cancelled",
        [],
    )


@pytest.mark.parametrize("before", ["asked", "agreed to", "handed to the graph"])
def test_what_was_agreed_to_before_a_cancel_is_asked_anew_once_the_run_goes_on(
    memory: RecordWriter, ana: User, bea: User, errands: Path, before: str
) -> None:
    run, row = asking(ana)
    if before != "asked":
        say(row, "approve", bea)
    if before == "handed to the graph":
        (errands / "vague-pay").touch()
        assert drive(run).parked == "open_calls"
        (errands / "vague-pay").unlink()
        (errands / "pay.jsonl").unlink()  # it had not arrived
        decide(ActionRef("main", run.run_id, 1), DecisionRequest(outcome="failed", reason=WHY, decision_id="decision-1"), by=ana)
    cancel_run(run.run_id, by=ana, reason=WHY)
    resume_run(run.run_id, by=ana, reason=WHY)

    drive(run)

    assert (run.status, run.problem, effects("pay")) == ("waiting_approval", "", [])
    (new,) = pending_approvals(by=ana)
    assert (new.approval_id != row.approval_id, new.digest != row.digest, new.args) == (True, True, row.args)
    with pytest.raises(ApprovalChanged):
        say(new, "approve", ana, seen=row.digest)
    say(new, "approve", ana)
    assert (drive(run).status, len(effects("pay"))) == ("done", 1)
    assert calls_told(run) == {"c0-0": f"pay {effects('pay')[0]['key'][:8]}"}


@pytest.mark.parametrize("since", ["cancelled", "another version", "gate gone"])
def test_a_call_that_was_made_as_a_person_changed_it_is_known_again_however_it_is_agreed_to_since(
    records: RecordWriter, ana: User, errands: Path, since: str
) -> None:
    run, row = asking(ana)
    say(row, "edit", ana, args={"amount": 10.0, "to": "ACME"})
    (errands / "vague-pay").touch()
    assert drive(run).parked == "open_calls"
    decide(
        ActionRef("main", run.run_id, 1),
        DecisionRequest(outcome="done", result="p1", reason=WHY, decision_id="decision-1"),
        by=ana,
    )
    known = run_types.run_types()
    if since == "cancelled":
        cancel_run(run.run_id, by=ana, reason=WHY)
        resume_run(run.run_id, by=ana, reason=WHY)
    else:
        changed = (
            {"version": 2} if since == "another version" else {"tools": (*TOOLS[:2], replace(TOOLS[2], gate=None), *TOOLS[3:])}
        )
        known["errand"] = replace(known["errand"], **changed)  # type: ignore[arg-type]
        Run.objects.update(queued_until=None)
        assert wake_parked(10) == 1

    drive(run)
    for new in pending_approvals(by=ana):
        say(new, "approve", ana)

    assert drive(run).status == "done", run.problem
    assert [one["amount"] for one in effects("pay")] == [10.0]
    assert calls_told(run)["c0-0"].endswith("\n\np1")
    assert '"amount": 10.0' in calls_told(run)["c0-0"]


def test_an_edit_that_is_nested_too_deeply_is_refused_and_changes_nothing(memory: RecordWriter, ana: User) -> None:
    _, row = asking(ana)
    inner: list[Any] = []
    for _ in range(700):
        inner = [inner]

    with pytest.raises(InvalidAnswer, match="nested too deeply"):
        say(row, "edit", ana, args={"amount": 10.0, "to": inner})

    assert Approval.objects.get().state == "pending"


def test_an_approval_lets_nothing_through_in_the_run_that_is_begun_anew(memory: RecordWriter, ana: User) -> None:
    run, row = asking(ana)
    say(row, "approve", ana)
    cancel_run(run.run_id, by=ana, reason=WHY)

    new = drive(restart_run(run.run_id, by=ana, reason=WHY))

    assert (new.status, effects("pay")) == ("waiting_approval", [])
    assert [one.run_id for one in pending_approvals(by=ana)] == [new.pk]


@pytest.mark.parametrize(
    "changed", [{"version": 2}, {"tools": paying(when="args.amount > 900.0")}, {"tools": paying(needs_another=True)}]
)
def test_what_was_agreed_to_under_another_version_or_rule_is_asked_anew(
    memory: RecordWriter, ana: User, person: Cast, changed: dict[str, Any]
) -> None:
    run, row = asking(ana)
    say(row, "approve", ana)
    known = run_types.run_types()
    known["errand"] = replace(known["errand"], **changed)

    drive(run)

    assert (run.status, effects("pay")) == ("waiting_approval", [])
    (new,) = pending_approvals(by=ana)
    assert new.digest != row.digest
    say(new, "approve", person("second", "operator", "approver"))
    assert (drive(run).status, len(effects("pay"))) == ("done", 1)


@pytest.mark.parametrize(("kind", "status"), [("hurried", "failed"), ("patient", "waiting_approval")])
def test_silence_is_nobodys_answer(memory: RecordWriter, ana: User, kind: str, status: str) -> None:
    run, row = asking(ana, PAY, kind=kind)
    assert expire_approvals(10) == 0
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(ApprovalVoid, match="nobody answered in time"):
        say(row, "approve", ana)

    assert expire_approvals(10) == 1

    drive(run)
    assert (run.status, effects("pay"), calls_told(run)) == (status, [], {})
    assert (Approval.objects.get(pk=row.pk).state, Approval.objects.get(pk=row.pk).answered_by) == ("expired", "")
    assert "expired" in kinds_of(run)
    if status == "failed":
        assert run.problem == "nobody said in time whether pay may be called"
        resume_run(run.run_id, by=ana, reason=WHY)
        drive(run)
    (new,) = pending_approvals(by=ana)
    assert new.expires_at is not None
    assert new.expires_at > timezone.now()
    assert calls_told(run) == {}
    say(new, "approve", ana)
    assert (drive(run).status, len(effects("pay"))) == ("done", 1)
    assert calls_told(run) == {"c0-0": f"pay {effects('pay')[0]['key'][:8]}"}
    turns = get_store("main").list_turns(run.run_id, limit=50)
    assert not [turn for turn in turns if re.search("expire|in time|reject|denied|nobody", turn.content)]


@pytest.mark.django_db(transaction=True)
def test_of_two_people_at_one_moment_one_answers_and_the_other_is_told_who(memory: RecordWriter, ana: User, bea: User) -> None:
    run, row = asking(ana)

    def press(who: User, decision: str) -> str:
        try:
            return say(row, decision, who).answered_by
        except AlreadyAnswered as exc:
            return f"{exc}"
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        said = [one.result(120) for one in (pool.submit(press, ana, "approve"), pool.submit(press, bea, "reject"))]

    first = Approval.objects.get()
    assert sorted(said) == sorted([first.answered_by, f"{first.answered_by} has answered it already: {first.state}"])
    assert len(console_entries("run_answered")) == 1
    assert len(effects("pay")) == 0
    assert drive(run).status == "done"
    assert len(effects("pay")) == (first.state == "approved")


def test_a_worker_that_reports_the_same_question_twice_asks_once(memory: RecordWriter, ana: User) -> None:
    run, row = asking(ana)
    Run.objects.filter(pk=run.pk).update(status="running", due_at=timezone.now())  # it died before it could say so

    drive(run)

    assert [one.pk for one in pending_approvals(by=ana)] == [row.pk]
    assert kinds_of(run).count("asked") == 1


def test_an_id_that_is_none_is_not_found(memory: RecordWriter, ana: User) -> None:
    for text in ("", "nothing", "a\x00b", "\ud800", "x" * 500):
        with pytest.raises(Http404):
            get_approval(text, by=ana)
