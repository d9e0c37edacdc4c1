"""The tasks: delivered twice, never, or by a worker that is killed in the middle; a decision is written once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import current_app
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone
from kombu import Connection
from structlog.contextvars import bound_contextvars

from actions.queries import get_action
from actions.records import ActionRef
from console import tasks
from console.celery import app
from console.models import Batch, Decision, Sweep, Verification
from console.services import batches, verification
from console.services.batches import items_showing
from console.services.bulk import commit, draft_selected
from console.services.decide import DecisionRequest, decide
from console.stores import get_store
from local import valkey
from tests.console.workers import SWEEPS, Worker, kill, lease_row_held, wait_for
from tests.recall_writer import RecallWriter, RecordWriter

ROOT = Path(__file__).resolve().parents[2]


def kept(records: RecordWriter, by: User, agent: str = "billing-7") -> Decision:
    """A decision that waits for a living agent."""
    records.lease(agent, state="live", ttl=timedelta(hours=1))
    request = DecisionRequest(outcome="done", reason="found in the Sent folder", decision_id=f"test-{uuid4()}")
    answer = decide(records.action(agent, 1), request, by=by)
    assert answer.decision is not None
    assert answer.decision.state == "waiting"
    return answer.decision


def settled_entries(ref: ActionRef) -> int:
    return sum(entry.kind == "settled" for entry in get_store(ref.store).list_entries(limit=50, agent=ref.agent))


@pytest.fixture
def at_once() -> Iterator[None]:
    """Tasks run where they are sent."""
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield
    app.conf.update(task_always_eager=False, task_eager_propagates=False)


@pytest.mark.django_db
def test_a_task_delivered_twice_writes_once(records: RecordWriter, ana: User) -> None:
    decision = kept(records, ana)
    records.lease("billing-7", epoch=2, state="expired")
    tasks.deliver(decision.pk)
    tasks.deliver(decision.pk)
    decision.refresh_from_db()
    assert decision.state == "written"
    assert settled_entries(decision.ref) == 1
    assert len(get_store("main").list_turns("billing-7", limit=10)) == 1


@pytest.mark.django_db
def test_a_task_about_nothing_does_nothing(records: RecordWriter) -> None:
    tasks.deliver(12345)


@pytest.mark.django_db
def test_a_sweep_delivers_what_is_due_and_nothing_else(records: RecordWriter, ana: User, at_once: None) -> None:
    due, early = kept(records, ana, "agent-1"), kept(records, ana, "agent-2")
    for agent in ("agent-1", "agent-2"):
        records.lease(agent, epoch=2, state="released")
    Decision.objects.update(next_try_at=datetime.now(UTC) + timedelta(minutes=1))
    Decision.objects.filter(pk=due.pk).update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))
    tasks.sweep()
    due.refresh_from_db()
    early.refresh_from_db()
    assert (due.state, early.state) == ("written", "waiting")


@pytest.mark.django_db
def test_a_task_that_is_lost_is_sent_again(
    records: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    decision = kept(records, ana)
    records.lease("billing-7", epoch=2, state="released")
    Decision.objects.update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))
    with monkeypatch.context() as patch:
        patch.setattr(tasks.deliver, "delay", lambda pk: None)
        tasks.sweep()
    tasks.sweep()
    decision.refresh_from_db()
    assert decision.state == "waiting"
    Decision.objects.update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))  # half a minute later
    tasks.sweep()
    decision.refresh_from_db()
    assert decision.state == "written"


@pytest.mark.django_db
def test_a_sweep_goes_on_with_a_batch_that_stands_still_and_leaves_a_preview_alone(
    memory: RecordWriter, ana: User, at_once: None
) -> None:
    refs = [memory.action("many-1", seq) for seq in range(1, batches.STEP + 3)]
    preview = draft_selected(refs[:1], by=ana)
    batch, _ = commit(draft_selected(refs, by=ana).batch_id, by=ana, outcome="done", reason="found in the Sent folder")

    tasks.sweep()

    batch.refresh_from_db()
    assert (batch.state, batch.due_at) == ("finished", None)
    assert sum(settled_entries(ref) for ref in refs[:1]) == len(refs)  # of that agent
    tasks.advance_batch(batch.pk)
    tasks.advance_batch(preview.pk)
    preview.refresh_from_db()
    assert (preview.state, settled_entries(refs[0])) == ("draft", len(refs))


def test_beat_knows_every_sweep() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in current_app.conf.beat_schedule.values()}
    sweeps = (
        *("sweep", "sweep_inquiries", "sweep_runs", "recheck_failed", "sweep_ends", "sweep_notices", "sign_checkpoints"),
        "verify_all",
    )
    assert scheduled == {f"console.tasks.{name}" for name in sweeps}
    assert scheduled <= set(app.tasks)


# --- a real worker ---------------------------------------------------------------------------------------------------


def is_written(decision: Decision) -> bool:
    return Decision.objects.filter(pk=decision.pk, state="written").exists()


def test_a_worker_delivers_once_the_lease_is_free(worker: Worker, postgres: RecallWriter, ana: User, tmp_path: Path) -> None:
    decision = kept(postgres, ana)
    worker()
    wait_for(lambda: Decision.objects.get().attempts > 2, "the worker looks at the living agent")
    assert Decision.objects.get().state == "waiting"
    postgres.lease("billing-7", epoch=2, state="released")
    wait_for(lambda: is_written(decision), "the decision is written")
    assert settled_entries(decision.ref) == 1
    with bound_contextvars(request_id="request-0042"):
        tasks.verify.delay(12345)
    (log,) = tmp_path.glob("worker-*.log")
    wait_for(lambda: _lines(log, request_id="request-0042"), "the worker's line carries the id of who sent the task")
    (line,) = _lines(log, request_id="request-0042")
    assert (line["event"], line["task"], line["state"]) == ("task", "verify", "success")
    (settle,) = (one for one in _lines(log, event="settle") if one["state"] == "written")
    assert settle["decision"] == decision.decision_id
    wait_for(lambda: Sweep.objects.filter(name="sweep").exists(), "the sweep notes that it ran")


def test_sweeps_do_not_wait_behind_a_heap_of_steps_of_runs(worker: Worker, postgres: RecallWriter, tmp_path: Path) -> None:
    for _ in range(400):
        tasks.advance_run.apply_async((0,), expires=600)  # a worker may take its time to start
    worker(1)
    (log,) = tmp_path.glob("worker-*.log")
    sweeps = {name.rpartition(".")[2] for name in SWEEPS}
    both = {*sweeps, "advance_run"}
    wait_for(lambda: both <= {line["task"] for line in _lines(log, event="task")}, "each sweep has run, and a step")

    taken = [line["task"] for line in _lines(log, event="task")]
    assert both <= set(taken[:40])
    assert tasks.advance_run.expires > settings.RUN_QUEUED_S  # the heap does not grow by what the sweep sends again


def _lines(log: Path, **said: str) -> list[dict[str, Any]]:
    """Whole lines of a worker's log; one that is no JSON fails."""
    lines = [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines() if line.startswith("{")]
    return [line for line in lines if all(line.get(name) == value for name, value in said.items())]


def test_a_worker_killed_while_it_settles_loses_and_doubles_nothing(worker: Worker, postgres: RecallWriter, ana: User) -> None:
    decision = kept(postgres, ana)
    postgres.lease("billing-7", epoch=2, state="released")
    with lease_row_held(postgres, "billing-7") as somebody_waits:
        first = worker()
        wait_for(somebody_waits, "the worker is inside the settle")
        kill(first)
    assert Decision.objects.get().state == "waiting"

    Decision.objects.update(next_try_at=datetime.now(UTC))  # as half a minute later
    worker()
    wait_for(lambda: is_written(decision), "another worker writes it")

    action = get_action(get_store("main"), decision.ref).action
    assert action is not None
    assert action.status == "done"
    assert settled_entries(decision.ref) == 1
    assert len(get_store("main").list_turns("billing-7", limit=10)) == 1


def test_a_worker_killed_within_a_batch_loses_and_doubles_nothing(worker: Worker, postgres: RecallWriter, ana: User) -> None:
    refs = [postgres.action(agent, 1) for agent in ("billing-6", "billing-7", "billing-8")]
    postgres.lease("billing-7", state="released")
    batch, _ = commit(draft_selected(refs, by=ana).batch_id, by=ana, outcome="done", reason="found in the Sent folder")
    with lease_row_held(postgres, "billing-7") as somebody_waits:
        first = worker()
        wait_for(somebody_waits, "the worker is inside the second settle")
        kill(first)
    assert [item.state for item in batch.items.order_by("number")] == ["decided", "begun", "queued"]

    # As a minute later: what the dead worker held is free again.
    Batch.objects.update(claimed_until=datetime.now(UTC), due_at=datetime.now(UTC))
    worker()
    wait_for(lambda: Batch.objects.get().state == "finished", "another worker finishes the batch")

    assert [item.outcome_shown for item in items_showing(batch, "")] == ["written"] * 3
    assert [settled_entries(ref) for ref in refs] == [1, 1, 1]
    assert [len(get_store("main").list_turns(ref.agent, limit=10)) for ref in refs] == [1, 1, 1]
    assert Decision.objects.count() == 3


def test_a_broker_that_takes_connections_and_says_nothing_is_left_to_the_sweep() -> None:
    """In a process of its own, with that broker; it comes back by itself, without an error."""
    program = "import django; django.setup(); from console.celery import app; from console.tasks import send_asking, send_batch; "
    program += "send_asking([1, 2]); send_batch(1)"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        environment = {**os.environ, "CELERY_BROKER_URL": broker, "DJANGO_SETTINGS_MODULE": "console.settings"}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180
        )

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is left to the sweep") == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("at_once")
def test_each_history_is_verified_once_a_day_however_often_it_is_due(records: RecordWriter) -> None:
    """Beat asks every hour, and again after each of its own restarts."""
    tasks.verify_all()
    tasks.verify_all()

    first = {row.name: row for row in Verification.objects.all()}
    assert set(first) == {"main", "console"}
    assert Verification.objects.count() == len(first)
    assert all(row.asked_by == "system beat" and row.is_intact for row in first.values())

    # A day later; and one of them could not be read since, so nothing is known of it.
    yesterday = timezone.now() - verification.EVERY - timedelta(minutes=1)
    Verification.objects.update(started_at=yesterday, finished_at=yesterday)
    away = Verification.objects.create(
        name="main", asked_by="operator ana", finished_at=timezone.now(), is_known=False, problem="away"
    )
    Verification.objects.create(name="console", asked_by="operator ana", finished_at=timezone.now())
    tasks.verify_all()
    assert Verification.objects.filter(asked_by="system beat").count() == 2  # not at once again
    Verification.objects.filter(pk=away.pk).update(started_at=timezone.now() - verification.AGAIN - timedelta(minutes=1))
    tasks.verify_all()

    assert Verification.objects.filter(name="main", asked_by="system beat").count() == 2
    assert Verification.objects.filter(name="console", asked_by="system beat").count() == 1


def test_beat_keeps_nothing_that_a_kill_could_leave_half_written(tmp_path: Path) -> None:
    """A real one, with a broker of its own, beside the torn file of an earlier one: it starts, sends, and writes no file."""
    place = tmp_path / "place"
    place.mkdir()
    torn = place / "celerybeat-schedule.dat"
    torn.touch()
    (place / "celerybeat-schedule.dir").write_text("'entries', (0, 400)\n")
    line = [sys.executable, "-m", "celery", "--app", "console.beat", "beat", "--pidfile", ""]
    with valkey.start() as broker, (tmp_path / "log").open("w") as log:
        own = {"DJANGO_SETTINGS_MODULE": "console.settings", "PYTHONPATH": str(ROOT), "CELERY_BROKER_URL": broker.url(0)}
        beat = subprocess.Popen(line, env={**os.environ, **own}, cwd=place, stdout=log, stderr=log)
        try:
            with Connection(broker.url(0)) as connection:
                client = connection.default_channel.client
                wait_for(lambda: beat.poll() is not None or client.llen("celery") > 0, "a sweep that is sent")
            assert beat.poll() is None, (tmp_path / "log").read_text()
        finally:
            beat.terminate()
            beat.wait(60)

    assert {file.name for file in place.iterdir()} == {"celerybeat-schedule.dat", "celerybeat-schedule.dir"}
    assert torn.read_bytes() == b""


def test_beat_by_itself_sends_the_same_and_loads_nothing_of_it() -> None:
    """As `celery -A console.beat beat` sets itself up."""
    program = (
        "import sys; from console.beat import app; app.loader.init_worker(); app.finalize(); "
        "print(sorted(entry['task'] for entry in app.conf.beat_schedule.values())); "
        "print([name for name in sys.modules if name in ('console.models', 'console.tasks', 'psycopg')])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "console.settings"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)

    scheduled = sorted(entry["task"] for entry in current_app.conf.beat_schedule.values())
    assert done.stdout.splitlines() == [str(scheduled), "[]"], done.stderr


def test_what_a_web_process_imports_has_nothing_of_what_advances_a_run() -> None:
    """Every page and every task, with run types named: LangGraph comes with the first step, tens of megabytes later."""
    program = (
        "import sys, django; django.setup(); import console.urls, console.tasks; from console.run_types import run_types; "
        "print(sorted(run_types())); print([name for name in sys.modules if name in ('langgraph', 'langchain_core', 'opentelemetry.sdk')])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "console.settings", "RUN_TYPES": "demo.runs"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.stdout.splitlines() == ["['refund']", "[]"], done.stderr
