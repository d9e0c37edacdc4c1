"""Spans: which there are, whose children, in which trace, and what never stands in them; and that nobody waits for whoever takes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from pytest_django import Settings

from actions.records import ActionRef
from console import spans
from console.env import Environment
from console.models import Run, StoredVerdict
from console.services import resolve
from console.services.asking import request_asking
from console.services.decide import DecisionRequest, decide
from console.services.run_claims import free_the_lost
from console.services.runs import cancel_run, restart_run, resume_run
from console.stores import get_store
from tests.console.asking import PAYMENT, TOOL, configure, payment_provider
from tests.console.collector import Collector, Span, collecting
from tests.console.run_kinds import EFFECTS, MODULE, Call, effects
from tests.console.runs import BOOK, LOOK, PAY, PAY_MUCH, SEND, details_of, drive, start
from tests.console.test_services_runs import as_if_dead
from tests.console.test_services_undoing import back, begin, failed
from tests.console.workers import Worker, wait_for
from tests.recall_writer import RecallWriter, RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]

ROOT = Path(__file__).resolve().parents[2]
WHY = "needle-reason: seen in the dashboard"
HOSTILE = 'needle-argument\n"}]\x1b[2K\u202e</script> api_key=sk-live-0123456789abcdef0123'


@pytest.fixture
def collector(settings: Settings) -> Iterator[Collector]:
    """Spans leave this process when it is told to flush, unless a test wants them at once."""
    with collecting() as collector:
        settings.OTEL_EXPORTER_OTLP_ENDPOINT, settings.OTEL_SERVICE_NAME = collector.address, "settle-of-tests"
        settings.SPAN_EVERY_S, settings.SPAN_EXPORT_S = 600.0, 5.0
        yield collector
        collector.may_go_on.set()
        spans.flush()


def of_run(collector: Collector, run: Run) -> list[Span]:
    spans.flush()
    return collector.of("run.step", **{"settle.run.id": run.run_id})


def said(span: Span, *names: str) -> tuple[Any, ...]:
    return tuple(span.attributes.get(f"settle.{name}") for name in names)


def test_a_run_is_one_trace_with_a_span_for_each_step_and_a_child_for_each_call(
    records: RecordWriter, ana: User, collector: Collector
) -> None:
    run = drive(start(ana, LOOK, [SEND, BOOK]))
    other = drive(start(ana, LOOK))

    steps = of_run(collector, run)
    assert [said(one, "run.type", "run.step", "run.state", "run.resumed") for one in steps] == [
        ("errand", number, "going" if number < run.steps else "done", False) for number in range(1, run.steps + 1)
    ]
    told = details_of(run, "step")
    assert [one.attributes["settle.run.checkpoint"] for one in steps] == [step["checkpoint"] for step in told]
    assert [one.attributes.get("settle.run.nodes", []) for one in steps] == [step["nodes"] for step in told]
    assert [one.parent for one in steps] == [""] * run.steps
    assert len({one.id for one in collector.spans}) == len(collector.spans)
    calls = [one for one in collector.of("run.call") if one.trace == steps[0].trace]
    actions = {one.action.seq: one.action for one in get_store("main").list_agent_actions(run.run_id, limit=10)}  # type: ignore[union-attr]
    assert sorted(said(one, "call.tool", "call.class", "call.seq", "call.key", "call.status") for one in calls) == sorted(
        (one.tool, one.action_class.value, one.seq, one.key, "done") for one in actions.values()
    )
    of_seq = {call["seq"]: step["checkpoint"] for step in told for call in step["calls"]}
    parents = {one.id: one for one in steps}
    for call in calls:
        parent, action = parents[call.parent], actions[call.attributes["settle.call.seq"]]
        assert parent.attributes["settle.run.checkpoint"] == of_seq[action.seq]
        assert parent.began <= call.began <= call.ended <= parent.ended
        assert call.attributes["settle.call.ms"] == pytest.approx((action.ended_at - action.started_at) / 1e6)
    others = of_run(collector, other)
    assert {one.trace for one in steps} != {one.trace for one in others}
    assert len({one.trace for one in collector.spans}) == 2
    assert {(one.service, one.is_error, one.others, one.links) for one in collector.spans} == {("settle-of-tests", False, 0, ())}


def test_a_restart_is_a_trace_of_its_own_whose_first_step_links_to_the_first_of_the_run_before(
    memory: RecordWriter, ana: User, collector: Collector, errands: Path
) -> None:
    (errands / "broken").touch()
    run = drive(start(ana, SEND, LOOK, breaks=1))
    spans.flush()  # as another worker, another day
    cancelled = drive(restart_run(run.run_id, by=ana, reason=WHY))

    old, new = of_run(collector, run), of_run(collector, cancelled)
    assert [one.links for one in new] == [((old[0].trace, old[0].id),), *[()] * (len(new) - 1)]
    assert old[0].trace != new[0].trace
    assert [said(one, "run.state") for one in old] == [*[("going",)] * (len(old) - 1), ("failed",)]
    assert [one.is_error for one in old] == [*[False] * (len(old) - 1), True]
    assert [one.links for one in old] == [()] * len(old)


def test_what_goes_on_after_its_worker_died_or_by_a_persons_word_is_resumed_in_the_same_trace(
    memory: RecordWriter, ana: User, collector: Collector, errands: Path
) -> None:
    (errands / "broken").touch()
    run = start(ana, SEND, LOOK, breaks=1)
    as_if_dead(run)
    assert free_the_lost(1) == 1
    drive(run)
    (errands / "broken").unlink()
    resume_run(run.run_id, by=ana, reason=WHY)
    drive(run)

    steps = of_run(collector, run)
    failed = next(number for number, one in enumerate(steps) if one.is_error)
    assert run.status == "done"
    assert [number for number, one in enumerate(steps) if one.attributes["settle.run.resumed"]] == [0, failed + 1]
    assert [said(one, "run.step") for one in steps[failed : failed + 2]] == [said(steps[failed], "run.step")] * 2
    assert len({one.trace for one in steps}) == 1
    assert len({one.id for one in steps}) == len(steps)


def test_each_call_that_is_taken_back_is_a_span_in_the_runs_trace_with_its_call_below(
    memory: RecordWriter, ana: User, collector: Collector, errands: Path
) -> None:
    run = failed(ana, errands, PAY, LOOK, PAY)
    (errands / "fails-take_back").touch()
    back(begin(run, ana))
    (errands / "fails-take_back").unlink()
    back(begin(run, ana))

    steps = of_run(collector, run)
    undone = collector.of("run.undo", **{"settle.run.id": run.run_id})
    assert [said(one, "run.state", "undo.seq", "undo.tool") for one in undone] == [
        ("stopped", 3, "take_back"),
        ("going", 3, "take_back"),
        ("going", 1, "take_back"),
        ("done", None, None),
    ]
    assert [one.is_error for one in undone] == [True, False, False, False]
    assert {(one.trace, one.parent) for one in undone} == {(steps[0].trace, "")}
    assert len({one.id for one in (*steps, *undone)}) == len(steps) + 4
    calls = [one for one in collector.of("run.call") if one.attributes["settle.call.tool"] == "take_back"]
    assert [said(one, "call.seq", "call.status") for one in calls] == [(4, "failed"), (5, "done"), (6, "done")]
    assert [one.parent for one in calls] == [one.id for one in undone[:3]]
    for word in (b"ACME", b"ana", b"refused"):
        assert word not in b"".join(collector.raw)


def test_a_lease_that_somebody_has_is_no_step_and_a_store_that_fails_in_one_is_a_step_that_broke_off(
    memory: Any, ana: User, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from console.services import advancing

    waits, breaks = start(ana, SEND), start(ana, SEND)
    memory.lease(waits.run_id, state="live")
    drive(waits)
    monkeypatch.setattr(advancing, "advance", _loses)
    drive(breaks)

    assert (waits.parked, breaks.parked) == ("lease", "store")
    assert of_run(collector, waits) == []
    (one,) = of_run(collector, breaks)
    assert said(one, "run.step", "run.state", "run.checkpoint") == (1, "broken_off", None)
    assert (one.is_error, one.attributes["error.type"], one.others) == (True, "StoreUnavailable", 0)
    assert b"needle" not in b"".join(collector.raw)


def _loses(*_: Any, **__: Any) -> None:
    from actions.errors import StoreUnavailable

    raise StoreUnavailable("main", "needle-problem")


def test_a_settle_and_a_question_are_spans_in_the_trace_of_their_agent(
    memory: Any, ana: User, amy: User, collector: Collector, settings: Settings, errands: Path
) -> None:
    (errands / "vague-send").touch()
    run = drive(start(ana, SEND, LOOK))
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        memory.lease("needle-agent", state="expired")
        ref = memory.action("needle-agent", 1, tool=TOOL, args=PAYMENT)
        provider.pay("needle-agent", 1, amount=7.0, payee="needle-payee")
        configure(amy, provider)
        verdict = resolve.ask(request_asking(ref, by=ana).pk)
    decision = DecisionRequest(outcome="done", reason=WHY, decision_id="decision-1", result="needle-result")
    decide(ActionRef("main", run.run_id, 1), decision, by=ana)

    steps = of_run(collector, run)
    (settle,) = collector.of("settle")
    assert said(settle, "decision", "store", "call.seq", "outcome", "state") == ("decision-1", "main", 1, "done", "written")
    assert (settle.trace, settle.parent, settle.is_error) == (steps[0].trace, "", False)
    (asked,) = collector.of("resolver.ask")
    assert isinstance(verdict, StoredVerdict)
    assert said(asked, "resolver", "resolver.kind", "store", "call.seq") == ("payments", "http", "main", 1)
    assert said(asked, "outcome", "grade") == (verdict.outcome, verdict.grade)
    assert (asked.parent, asked.trace == settle.trace) == ("", False)
    assert [one.attributes["settle.call.status"] for one in collector.of("run.call")] == ["unknown"]
    for word in (b"needle", b"ana", b"ACME", b"R-7"):
        assert word not in b"".join(collector.raw)


def test_nothing_that_was_said_stands_in_a_span(memory: Any, ana: User, collector: Collector, errands: Path) -> None:
    for name in ("fails-book", "broken"):
        (errands / name).touch()
    calls: list[Call] = [
        ("send", {"to": HOSTILE}),
        ("look_up", {"order": HOSTILE}),
        ("needle_tool", {"x": HOSTILE}),
        ("book", {"item": HOSTILE}),
    ]
    run = start(ana, *calls, breaks=4)
    memory.lease(run.run_id, state="live")
    ref = memory.action(run.run_id, 1, tool="needle_of_nobody", status="unknown", args={"to": HOSTILE})
    decide(ref, DecisionRequest(outcome="done", reason=WHY, decision_id="decision-1", result="needle-result"), by=ana)
    memory.lease(run.run_id, state="expired")
    drive(run)
    asks = drive(start(ana, PAY_MUCH))
    cancel_run(asks.run_id, by=ana, reason=WHY)

    steps, raw = of_run(collector, run), b"".join(collector.raw)
    assert (run.status, len(effects("send"))) == ("failed", 1)
    told = [said(one, "call.seq", "call.tool", "call.status") for one in collector.of("run.call")]
    assert sorted(told) == [(1, None, "done"), (2, "send", "done"), (3, "look_up", "done"), (4, "book", "failed")]
    assert steps[-1].attributes["settle.run.state"] == "failed"
    assert [one.attributes["settle.run.state"] for one in of_run(collector, asks)][-1] == "asks"
    for word in (b"needle", b"sk-live", b"ana", b"ACME", b"errands", b"broke"):
        assert word not in raw
    assert {one.others for one in collector.spans} == {0}


@pytest.mark.parametrize("trouble", ["hangs", "500", "503", "nobody"])
def test_a_collector_that_hangs_fails_or_is_not_there_costs_a_run_nothing(
    memory: RecordWriter, ana: User, collector: Collector, settings: Settings, trouble: str
) -> None:
    settings.SPAN_EVERY_S, settings.SPAN_EXPORT_S = 0.05, 0.5
    if trouble == "hangs":
        collector.may_go_on.clear()
    elif trouble == "nobody":
        settings.OTEL_EXPORTER_OTLP_ENDPOINT = "http://127.0.0.1:9"
    else:
        collector.status = int(trouble)
    drive(start(ana, LOOK))
    if trouble != "nobody":
        assert collector.reached.wait(60), "the batch is on its way"

    run = drive(start(ana, SEND, LOOK))
    spans.flush()  # comes back too, with nobody let go on

    assert (run.status, run.problem, len(effects("send")), len(effects("look_up"))) == ("done", "", 1, 2)
    assert collector.spans == []


def test_spans_that_cannot_be_made_are_lost_and_their_steps_are_not(
    memory: RecordWriter, ana: User, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    from console import span_exporter

    def breaks(*_: Any, **__: Any) -> None:
        raise DatabaseError("needle")

    for name in ("begin", "add_child"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(span_exporter, name, breaks)
            run = drive(start(ana, SEND))
        assert (run.status, run.problem) == ("done", "")

    assert len(effects("send")) == 2
    assert {one.name for one in of_run(collector, run)} == {"run.step"}
    assert collector.of("run.call") == []
    assert "a span is lost: DatabaseError" in caplog.text
    assert "needle" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_worker_sends_what_waits_when_it_is_told_to_stop(
    worker: Worker, postgres: RecallWriter, ana: User, errands: Path, collector: Collector
) -> None:
    run = start(ana, SEND, LOOK)
    celery = worker(
        2,
        RUN_TYPES=MODULE,
        RUN_STORE="main",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.address,
        OTEL_BSP_SCHEDULE_DELAY="3600000",
        **{EFFECTS: str(errands)},
    )
    wait_for(lambda: Run.objects.get(pk=run.pk).status == "done", "the run is done")
    assert collector.raw == []

    celery.send_signal(signal.SIGTERM)
    celery.wait(150)

    run.refresh_from_db()
    steps = of_run(collector, run)
    assert [one.attributes["settle.run.step"] for one in steps] == list(range(1, run.steps + 1))
    assert len({one.trace for one in collector.spans}) == 1
    assert [one.attributes["settle.call.tool"] for one in collector.of("run.call")] == ["send", "look_up"]


ONE = "import django; django.setup(); from console import spans; spans.tell('settle', 'agent', {}, took=0.5)"


def test_a_process_that_ends_sends_what_waits(collector: Collector) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "console.settings", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.address
    subprocess.run([sys.executable, "-c", ONE], cwd=ROOT, env=environment, check=True)

    (one,) = collector.spans
    assert (one.name, one.parent, one.service, one.ended - one.began) == ("settle", "", "settle", 500_000_000)


NOTHING = """
import sys, threading
sys.modules["opentelemetry"] = None  # whoever imports it fails; other packages look whether it is there
import django; django.setup()
import console.celery
from types import SimpleNamespace
from console import spans
from console.env import Environment
spans.load()
spans.tell("settle", "agent", {}, took=0.0)
with spans.step_of(SimpleNamespace(steps=0), None) as told:
    told.state = "done"
console.celery.send_spans()
ours = ("opentelemetry", "console.span_", "google.protobuf")
print(sorted(name for name, found in sys.modules.items() if found and name.startswith(ours)))
print([one.name for one in threading.enumerate() if "Otel" in one.name])
"""


def test_without_a_collector_nothing_is_imported_and_no_thread_waits() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "console.settings", "OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    done = subprocess.run([sys.executable, "-c", NOTHING], cwd=ROOT, env=environment, capture_output=True, text=True)

    assert (done.stdout, done.returncode) == ("[]\n[]\n", 0), done.stderr
    assert "a span is lost" not in done.stderr


@pytest.mark.parametrize("address", ["collector:4318", "grpc://collector:4317", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="^OTEL_EXPORTER_OTLP_ENDPOINT is "):
        Environment({"OTEL_EXPORTER_OTLP_ENDPOINT": address}).optional_url("OTEL_EXPORTER_OTLP_ENDPOINT")
