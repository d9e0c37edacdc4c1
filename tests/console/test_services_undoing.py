"""Taking back what a run did: newest first, each once, bound to what was shown, and stopped by what nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils import timezone

from actions.records import ActionRef
from console.models import Run
from console.services import run_claims
from console.services.decide import DecisionRequest, decide
from console.services.run_claims import UNDOING, claim_due_runs, free_the_lost, wake_parked
from console.services.run_rows import RunNotPossible
from console.services.runs import cancel_run, resume_run
from console.services.undoing import PreviewChanged, digest_of, preview, start_undoing, undo_run
from tests.console.conftest import Api, Cast
from tests.console.entries import console_entries
from tests.console.run_kinds import effects
from tests.console.runs import LOOK, PAY, SEND, Call, details_of, drive, kinds_of, start
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]
WHY = "the order was cancelled"
PAY_BOLT: Call = ("pay", {"amount": 80.0, "to": "Bolt"})


def failed(by: User, errands: Path, *calls: Call, kind: str = "errand") -> Run:
    """A run that made these calls and broke then."""
    (errands / "broken").touch()
    run = drive(start(by, *calls, breaks=len(calls), kind=kind))
    assert run.status == "failed"
    return run


def back(run: Run) -> Run:
    """Take back as long as something is due at once."""
    for _ in range(20):
        if not undo_run(run.pk):
            break
    run.refresh_from_db()
    return run


def begin(run: Run, by: User, **more: Any) -> Run:
    return start_undoing(run.run_id, by=by, reason=WHY, seen=more.get("seen", digest_of(preview(run.run_id, by=by))))


def test_what_happened_is_taken_back_newest_first_and_each_once(records: RecordWriter, ana: User, errands: Path) -> None:
    run = failed(ana, errands, PAY, LOOK, SEND, PAY_BOLT)
    shown = preview(run.run_id, by=ana)
    assert [(one.call.seq, one.state, one.tool) for one in shown] == [
        (4, "waiting", "take_back"),
        (3, "nothing_to_undo", ""),
        (1, "waiting", "take_back"),
    ]

    run = back(begin(run, ana))

    assert (run.undoing, run.status, run.due_at, run.token) == ("done", "failed", None, "")
    assert [one["payment"] for one in effects("take_back")] == [f"pay {one['key'][:8]}" for one in reversed(effects("pay"))]
    assert [said.get("call") for said in details_of(run, "undone")] == [4, 1, None]
    (entry,) = console_entries("run_undoing")
    assert (entry.reason, entry.detail["changed"]) == (WHY, {"taken back": ["no", "running"]})
    with pytest.raises(RunNotPossible, match="nothing to take back"):
        begin(run, ana)
    with pytest.raises(RunNotPossible, match="begin it anew"):
        resume_run(run.run_id, by=ana, reason=WHY)
    assert not undo_run(run.pk)
    assert len(effects("take_back")) == 2


def test_it_is_bound_to_what_was_shown_and_starts_once(memory: RecordWriter, ana: User, errands: Path) -> None:
    run = failed(ana, errands, PAY)
    with pytest.raises(PreviewChanged) as refused:
        begin(run, ana, seen="0" * 64)
    assert refused.value.digest == digest_of(preview(run.run_id, by=ana))

    begin(run, ana)
    with pytest.raises(RunNotPossible, match="already"):
        begin(run, ana)

    assert (len(console_entries("run_undoing")), effects("take_back")) == (1, [])


def test_a_compensation_that_nobody_knows_about_waits_until_it_is_settled(memory: RecordWriter, ana: User, errands: Path) -> None:
    run = failed(ana, errands, PAY, PAY_BOLT)
    (errands / "vague-take_back").touch()
    run = back(begin(run, ana))
    assert (run.undoing, run.parked, run.due_at, len(effects("take_back"))) == ("running", "open_calls", None, 1)
    Run.objects.update(queued_until=timezone.now())
    assert wake_parked(10) == 0
    (errands / "vague-take_back").unlink()

    decide(ActionRef("main", run.run_id, 3), DecisionRequest(outcome="done", reason=WHY, decision_id="decision-1"), by=ana)
    Run.objects.update(queued_until=timezone.now())
    assert wake_parked(10) == 1
    assert claim_due_runs(10) == []
    assert claim_due_runs(10, UNDOING) == [run.pk]
    back(run)

    assert (run.undoing, run.status, len(effects("take_back"))) == ("done", "failed", 2)


def test_a_compensation_that_fails_stops_and_asks_and_a_person_has_it_made_once_more(
    memory: RecordWriter, ana: User, errands: Path
) -> None:
    run = failed(ana, errands, PAY, PAY_BOLT)
    (errands / "fails-take_back").touch()
    run = back(begin(run, ana))
    assert (run.undoing, run.due_at, effects("take_back")) == ("stopped", None, [])
    assert "RuntimeError" in details_of(run, "undo_stopped")[0]["problem"]
    assert [one.state for one in preview(run.run_id, by=ana)] == ["failed", "waiting"]
    (errands / "fails-take_back").unlink()

    run = back(begin(run, ana))

    assert (run.undoing, len(effects("take_back"))) == ("done", 2)
    assert [entry.detail["changed"]["taken back"] for entry in console_entries("run_undoing")] == [  # type: ignore[index]
        ["stopped", "running"],
        ["no", "running"],
    ]


def test_a_worker_lost_while_it_takes_back_is_replaced_and_nothing_goes_on_forward(
    memory: RecordWriter, ana: User, errands: Path
) -> None:
    run = failed(ana, errands, PAY)
    begin(run, ana)
    assert run_claims.take_claim(run.pk) is None
    assert run_claims.take_claim(run.pk, UNDOING)
    Run.objects.update(held_until=timezone.now() + timedelta(seconds=60))
    assert free_the_lost(10) == 1

    back(run)

    assert (run.status, run.undoing, len(effects("take_back"))) == ("failed", "done", 1)


def test_a_type_may_have_it_taken_back_by_itself(memory: RecordWriter, ana: User, errands: Path) -> None:
    run = failed(ana, errands, PAY, kind="tidy")
    assert (run.undoing, claim_due_runs(10, UNDOING)) == ("running", [run.pk])

    back(run)

    assert (run.undoing, len(effects("take_back"))) == ("done", 1)
    assert console_entries("run_undoing") == []
    cancelled = start(ana, SEND, kind="tidy")
    cancel_run(cancelled.run_id, by=ana, reason=WHY)
    assert (back(cancelled).undoing, kinds_of(cancelled)[-1]) == ("done", "undone")


@pytest.mark.parametrize(("roles", "error"), [(["viewer"], PermissionDenied), (["admin"], PermissionDenied), ([], Http404)])
def test_who_may_not_settle_takes_nothing_back(
    memory: RecordWriter, ana: User, person: Cast, errands: Path, roles: list[str], error: type[Exception]
) -> None:
    run, who = failed(ana, errands, PAY), person("who", *roles)
    with pytest.raises(error):
        start_undoing(run.run_id, by=who, reason=WHY, seen=digest_of(preview(run.run_id, by=ana)))
    run.refresh_from_db()
    assert run.undoing == ""


def test_a_program_looks_first_and_then_has_it_taken_back(
    memory: RecordWriter, ana: User, errands: Path, api: Callable[[User], Api]
) -> None:
    run, caller = failed(ana, errands, PAY), api(ana)
    path = f"runs/{run.run_id}"
    status, shown = caller.get(f"{path}/compensation")
    (item,) = shown["items"]
    assert (status, item["state"], item["by_tool"], item["args"]) == (
        200,
        "waiting",
        "take_back",
        {"amount": 120.0, "to": "ACME"},
    )
    changed = caller.post(f"{path}/compensate", {"reason": WHY, "seen": "0"})
    assert (changed[0], changed[1]["digest"]) == (412, shown["digest"])

    assert caller.post(f"{path}/compensate", {"reason": WHY, "seen": shown["digest"]})[1]["undoing"] == "running"
    back(run)

    assert caller.get(path)[1]["undoing"] == "done"
    assert caller.get(f"{path}/compensation")[1]["items"][0]["state"] == "happened"
    assert caller.post(f"{path}/compensate", {"reason": WHY, "seen": shown["digest"]})[0] == 412
