"""Every gesture in every state of a run, through the API: what it does, or the line that refuses it, with nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from console.models import Approval, Run, RunEvent
from console.stores import get_store
from tests.console.conftest import Api
from tests.console.entries import console_entries
from tests.console.runs import PAY, a_run, an_approval, errand
from tests.store.memory_writer import MemoryWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]
WHY = {"reason": "seen in the dashboard"}
GESTURES = ("cancel", "resume", "restart", "done", "compensate", "approve", "edit", "reject", "respond", "start again")
ANSWERS = GESTURES[5:9]
ASKED = {"amount": 5000.0, "to": "ACME"}
ENTRIES = {
    "cancel": "run_cancelled",
    "resume": "run_resumed",
    "restart": "run_restarted",
    "done": "run_marked",
    "compensate": "run_undoing",
    **dict.fromkeys(ANSWERS, "run_answered"),
}

BEING_UNDONE = "what it did is taken back, or was begun to be"
IN_STATE: dict[str, dict[str, str]] = {
    # What becomes of the run: its status, and after a slash how far it is taken back. Else the line.
    "due": {
        "cancel": "cancelled",
        "resume": "the run is running; only one that failed or was cancelled can be resumed",
        "restart": "the run is running; only one that failed or was cancelled begins anew",
        "done": "done",
        "compensate": "the run is running; only what one did that failed or was cancelled is taken back; cancel it first",
        "answer": "its run is running and does not wait for this answer any more",
    },
    "with a worker": {
        "cancel": "running",  # until the step ends
        "resume": "the run is running; only one that failed or was cancelled can be resumed",
        "restart": "the run is running; only one that failed or was cancelled begins anew",
        "done": "a worker is at it; cancel it first, or wait",
        "compensate": "the run is running; only what one did that failed or was cancelled is taken back; cancel it first",
        "answer": "its run is running and does not wait for this answer any more",
    },
    "stopping": {
        "cancel": "bea has cancelled it already; it stops after the step that it is in",
        "resume": "the run is running; only one that failed or was cancelled can be resumed",
        "restart": "the run is running; only one that failed or was cancelled begins anew",
        "done": "a worker is at it; cancel it first, or wait",
        "compensate": "the run is running; only what one did that failed or was cancelled is taken back; cancel it first",
        "answer": "its run is running and does not wait for this answer any more",
    },
    "in doubt": {
        "cancel": "cancelled",
        "resume": "the run is running; only one that failed or was cancelled can be resumed",
        "restart": "the run is running; only one that failed or was cancelled begins anew",
        "done": "it says done, and calls are still open: 1 (pay); settle them first",
        "compensate": "the run is running; only what one did that failed or was cancelled is taken back; cancel it first",
        "answer": "its run is running and does not wait for this answer any more",
    },
    "waiting": {
        "cancel": "cancelled",
        "resume": "the run is waiting approval; only one that failed or was cancelled can be resumed",
        "restart": "the run is waiting approval; only one that failed or was cancelled begins anew",
        "done": "done",
        "compensate": "the run is waiting approval; only what one did that failed or was cancelled is taken back; cancel it first",
        "answer": "running",
    },
    "failed": {
        "cancel": "the run is failed already, so there is nothing to stop",
        "resume": "running",
        "restart": "failed",
        "done": "done",
        "compensate": "failed/running",
        "answer": "its run is failed and does not wait for this answer any more",
    },
    "cancelled": {
        "cancel": "the run is cancelled already, so there is nothing to stop",
        "resume": "running",
        "restart": "cancelled",
        "done": "done",
        "compensate": "cancelled/running",
        "answer": "its run is cancelled and does not wait for this answer any more",
    },
    "done": {
        "cancel": "the run is done already, so there is nothing to stop",
        "resume": "the run is done; only one that failed or was cancelled can be resumed",
        "restart": "the run is done; only one that failed or was cancelled begins anew",
        "done": "the run is done already",
        "compensate": "the run is done; only what one did that failed or was cancelled is taken back",
        "answer": "its run is done and does not wait for this answer any more",
    },
    "being taken back": {
        "cancel": "the run is failed already, so there is nothing to stop",
        "resume": f"{BEING_UNDONE}; begin it anew instead",
        "restart": "what it did is being taken back; wait until that is over",
        "done": f"{BEING_UNDONE}, so it is not done; begin it anew instead",
        "compensate": "what it did is being taken back already",
        "answer": "its run is failed and does not wait for this answer any more",
    },
    "not all taken back": {
        "cancel": "the run is failed already, so there is nothing to stop",
        "resume": f"{BEING_UNDONE}; begin it anew instead",
        "restart": "failed/stopped",
        "done": f"{BEING_UNDONE}, so it is not done; begin it anew instead",
        "compensate": "failed/running",
        "answer": "its run is failed and does not wait for this answer any more",
    },
    "taken back": {
        "cancel": "the run is failed already, so there is nothing to stop",
        "resume": f"{BEING_UNDONE}; begin it anew instead",
        "restart": "failed/done",
        "done": f"{BEING_UNDONE}, so it is not done; begin it anew instead",
        "compensate": "there is nothing to take back",
        "answer": "its run is failed and does not wait for this answer any more",
    },
    "begun anew": {
        "cancel": "the run is failed already, so there is nothing to stop",
        "resume": "it was begun anew already, as run-anew; both would make the same calls",
        "restart": "it was begun anew already, as run-anew",
        "done": "done",
        "compensate": "failed/running",
        "answer": "its run is failed and does not wait for this answer any more",
    },
}


def brought_to(state: str, run: Run, memory: MemoryWriter) -> Approval:
    """The row and the records as such a run has them. Its approval, which waits only where the run does."""
    now = timezone.now()
    ended = {"status": "failed", "due_at": None, "ended_at": now}
    fields: dict[str, Any] = {
        "due": {},
        "with a worker": {"held_until": now + timedelta(minutes=1), "token": "f" * 32},
        "stopping": {"held_until": now + timedelta(minutes=1), "token": "f" * 32, "cancel_asked_by": "bea"},
        "in doubt": {"parked": "open_calls", "due_at": None},
        "waiting": {"status": "waiting_approval", "due_at": None},
        "cancelled": {**ended, "status": "cancelled"},
        "done": {**ended, "status": "done"},
        "being taken back": {**ended, "undoing": "running", "due_at": now},
        "not all taken back": {**ended, "undoing": "stopped"},
        "taken back": {**ended, "undoing": "done"},
    }.get(state, ended)
    Run.objects.filter(pk=run.pk).update(**fields)
    if state == "in doubt":
        memory.action(run.run_id, 1, tool="pay", status="unknown", args=PAY[1])
    elif state != "due":
        memory.action(run.run_id, 1, tool="pay", status="done", args=PAY[1], result="pay 1")
    if state == "taken back":
        memory.action(run.run_id, 2, tool="take_back", status="done", args={"payment": "pay 1", "compensates": 1})
    if state == "begun anew":
        a_run("run-anew", type="errand", given=errand(PAY), restart_of=run)
    return an_approval(run, args=ASKED, state="pending" if state == "waiting" else "void")


def made(gesture: str, caller: Api, run: Run, asked: Approval, body: dict[str, Any]) -> tuple[int, Any]:
    path = f"runs/{run.run_id}"
    if gesture == "start again":
        return caller.post("runs", body)
    if gesture in ANSWERS:
        more = {"edit": {"args": {**ASKED, "amount": 10.0}}, "respond": {"message": "paid by hand"}}.get(gesture, {})
        return caller.post(f"approvals/{asked.approval_id}", {"decision": gesture, "seen": asked.digest, **more})
    seen = {"seen": caller.get(f"{path}/compensation")[1]["digest"]} if gesture == "compensate" else {}
    return caller.post(f"{path}/{gesture}", {**WHY, **seen})


def everything() -> dict[str, Any]:
    store = get_store("main")
    return {
        "runs": list(Run.objects.order_by("pk").values()),
        "approvals": list(Approval.objects.order_by("pk").values()),
        "events": list(RunEvent.objects.order_by("pk").values()),
        "entries": [(entry.kind, entry.agent) for entry in console_entries()],
        "calls": [[one.action for one in store.list_agent_actions(run.run_id, limit=10)] for run in Run.objects.order_by("pk")],
    }


@pytest.mark.parametrize("state", IN_STATE)
def test_what_a_gesture_does_in_each_state_or_why_it_does_nothing(
    memory: MemoryWriter, ana: User, api: Callable[[User], Api], state: str
) -> None:
    caller = api(ana)
    for gesture in GESTURES:
        body = {"type": "errand", "input": errand(PAY), "idempotency_key": f"key-{gesture}"}
        run = Run.objects.get(run_id=caller.post("runs", body)[1]["id"])
        asked = brought_to(state, run, memory)
        before = everything()

        status, said = made(gesture, caller, run, asked, body)

        expected = IN_STATE[state].get("answer" if gesture in ANSWERS else gesture, "")
        run.refresh_from_db()
        if gesture == "start again":
            assert (status, said) == (202, {"id": run.run_id}), gesture
            assert everything() == before, gesture
        elif " " in expected:
            assert (status, said["detail"]) == (409, expected), gesture
            assert everything() == before, gesture
        else:
            assert status == (202 if gesture == "restart" else 200), (gesture, said)
            assert "/".join(filter(None, (run.status, run.undoing))) == expected, gesture
            (entry,) = [one for one in console_entries(ENTRIES[gesture]) if one.agent == run.run_id]
            assert entry.actor == "operator ana", gesture
            asked.refresh_from_db()
            assert asked.state != "pending", gesture
            others = [one for one in before["runs"] if one["id"] != run.pk]
            after = [one for one in everything()["runs"] if one["id"] != run.pk]
            assert after[: len(others)] == others, gesture
            assert len(after) - len(others) == (gesture == "restart"), gesture
        Run.objects.filter(run_id="run-anew").delete()
