"""The replay of a run explains it alone: every step with its checkpoint, every resume with its reason, what was asked and who answered."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from console.models import Approval
from console.services.approvals import answer
from console.services.replay import begin_replay
from console.services.runs import cancel_run, resume_run
from console.stores import get_store
from console.tool_rules import read_rules
from tests.console.runs import LOOK, PAY_MUCH, drive, kinds_of, start
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]


def test_the_file_of_a_run_holds_all_that_happened_to_it_in_order(records: RecordWriter, ana: User, bea: User) -> None:
    run = drive(start(ana, LOOK, PAY_MUCH))
    cancel_run(run.run_id, by=ana, reason="the customer called")
    resume_run(run.run_id, by=bea, reason="the customer called again")
    drive(run)
    asked = Approval.objects.get(state="pending")
    answer(asked.approval_id, decision="approve", seen=asked.digest, by=bea)
    drive(run)

    made = begin_replay(get_store("main"), run.run_id, by="operator aud", rules=read_rules())
    header, *body, last = map(json.loads, made.pieces())

    told = [line for line in body if line["kind"] == "run"]
    assert [line["event"] for line in told] == kinds_of(run)
    assert [line["number"] for line in told] == list(range(1, len(told) + 1))
    assert header["counts"]["run"] == last["counts"]["run"] == len(told)
    by_event = {line["event"]: line for line in told}
    assert (by_event["resumed"]["by"], by_event["resumed"]["detail"]["reason"]) == ("bea", "the customer called again")
    assert by_event["cancelled"]["detail"]["reason"] == "the customer called"
    said = by_event["answered"]["detail"]
    assert (by_event["answered"]["by"], said["decision"], said["tool"], said["approval"]) == (
        "bea",
        "approve",
        "pay",
        asked.approval_id,
    )
    steps = [line["detail"] for line in told if line["event"] == "step"]
    assert len({step["checkpoint"] for step in steps}) == len(steps) == run.steps
    calls = {call["seq"]: call for step in steps for call in step["calls"]}
    assert {seq: call["tool"] for seq, call in calls.items()} == {
        line["seq"]: line["tool"] for line in body if line["kind"] == "call"
    }
    assert all(call["latency_ms"] is not None for call in calls.values())
    assert sum(float(step.get("cost", 0)) for step in steps) == pytest.approx(float(run.cost))
    order = [line["kind"] for line in body]
    assert order.index("call") < len(order) - 1 - order[::-1].index("run")
