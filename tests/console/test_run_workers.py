"""Runs by real workers that are killed at every point, told twice or never, and replaced by others: each effect exactly once, counted outside."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from actions.records import ActionRef
from console.celery import app
from console.models import Run
from console.services.decide import DecisionRequest, decide
from tests.console import run_kinds
from tests.console.run_kinds import effects
from tests.console.runs import BOOK, LOOK, PAY, SEND, SEND_BOB, details_of, start
from tests.console.workers import Worker, kill, somebody_waits_for, wait_for
from tests.recall_writer import RecallWriter

WHY = "counted in the world"


def settings_of(errands: Path) -> dict[str, str]:
    """A lease that no worker loses only because the machine is busy: what a dead one holds is taken away by the test."""
    return {"RUN_TYPES": run_kinds.MODULE, run_kinds.EFFECTS: str(errands), "RUN_LEASE_S": "120", "RUN_STORE": "main"}


def as_after_its_time(postgres: RecallWriter) -> None:
    """What the dead worker held has run out."""
    postgres.run(
        "UPDATE {leases} SET expires_at = clock_timestamp() - interval '1 minute' WHERE collection = %s", [postgres.collection]
    )
    Run.objects.filter(held_until__isnull=False).update(held_until=timezone.now() - timedelta(seconds=1))


def status_of(run: Run) -> tuple[str, str]:
    run.refresh_from_db()
    return run.status, run.parked


def until(run: Run, status: str, parked: str = "") -> None:
    def is_there() -> bool:
        assert status_of(run)[0] in ("running", status), run.problem
        return status_of(run) == (status, parked)

    wait_for(is_there, f"{run.type} is {status} {parked}: {status_of(run)}")


def settle(run: Run, outcome: str, by: User) -> None:
    """What a person says who counted the effects."""
    ref = ActionRef("main", run.run_id, 1)
    said = decide(ref, DecisionRequest(outcome=outcome, reason=WHY, decision_id=f"decision-{run.pk}"), by=by)
    assert said.decision is not None, said.detail


@pytest.mark.django_db(transaction=True)
def test_workers_killed_at_every_point_leave_a_doubt_at_most_and_never_a_second_effect(
    worker: Worker, postgres: RecallWriter, ana: User, errands: Path
) -> None:
    before, after = start(ana, SEND, LOOK), start(ana, PAY, LOOK)
    booked, kept = start(ana, BOOK), start(ana, SEND_BOB, LOOK)
    points = ("before-ann", "after-ACME", "after-room", "after-bob")
    for point in points:
        (errands / f"stop-{point}").touch()
    first = worker(6, **settings_of(errands))
    for point in points:
        wait_for((errands / f"at-{point}").exists, f"a worker is at {point}")
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=kept.pk)  # its step ends, the state is kept, and nobody can say so
        (errands / "stop-after-bob").unlink()
        wait_for(lambda: somebody_waits_for(connection.connection, postgres), "the worker has made its checkpoint")
        kill(first)
    for point in points[:3]:
        (errands / f"stop-{point}").unlink()
    assert sorted(one["to"] for one in effects("send")) == ["bob"]
    as_after_its_time(postgres)

    worker(**settings_of(errands))
    for run in (before, after):
        until(run, "running", "open_calls")
    settle(before, "failed", ana)
    settle(after, "done", ana)
    for run in (before, after, booked, kept):
        until(run, "done")

    assert sorted(one["to"] for one in effects("send")) == ["ann", "bob"]
    assert [len(effects(tool)) for tool in ("pay", "book", "look_up")] == [1, 1, 3]
    assert [run.resumes for run in (before, after, booked, kept)] == [1, 1, 1, 1]
    gone, settled = "the worker that was at it is gone", "the calls that were in doubt are settled"
    assert [said["reason"] for said in details_of(before, "resumed")] == [gone, settled]
    assert [said["reason"] for said in details_of(kept, "resumed")] == [gone]
    assert [bool(step.get("told_by")) for step in details_of(kept, "step")].count(True) == 1
    assert len({run.steps for run in (before, after, kept)}) == 1
    assert not details_of(kept, "parked")
    assert not details_of(booked, "parked")


@pytest.mark.django_db(transaction=True)
def test_messages_that_come_five_times_or_never_and_a_deploy_in_the_middle_change_nothing(
    worker: Worker, postgres: RecallWriter, ana: User, errands: Path
) -> None:
    runs = [start(ana, LOOK, [SEND, BOOK], PAY) for _ in range(3)]
    (errands / "stop-before-ann").touch()
    first = worker(**settings_of(errands))
    wait_for((errands / "at-before-ann").exists, "a worker is in a call")
    app.control.purge()
    first.send_signal(signal.SIGTERM)
    for run in runs:
        for _ in range(5):
            app.send_task("console.tasks.advance_run", [run.pk])
    worker(**settings_of(errands))
    (errands / "stop-before-ann").unlink()
    assert first.wait(150) == 0
    for run in runs:
        Run.objects.filter(pk=run.pk, held_until=None).update(queued_until=None)  # what was purged is not waited for
        until(run, "done")

    assert [len(effects(tool)) for tool in ("look_up", "send", "book", "pay")] == [3, 3, 3, 3]
    assert all(len({one["key"] for one in effects(tool)}) == 3 for tool in ("send", "book", "pay"))
    assert [run.resumes for run in runs] == [0, 0, 0]
    assert len({run.steps for run in runs}) == 1


@pytest.mark.django_db(transaction=True)
def test_preparing_the_checkpoints_twice_at_once_breaks_neither(postgres: RecallWriter) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from console.stores import prepare_run_checkpoints, run_checkpoints

    with (
        run_checkpoints() as saver,
        psycopg.connect(saver.conn.info.dsn, password=saver.conn.info.password, autocommit=True) as owner,
    ):
        owner.execute("DROP SCHEMA settle_runs CASCADE")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(prepare_run_checkpoints) for _ in range(4)]:
            done.result(120)

    with run_checkpoints() as saver:
        assert list(saver.list({"configurable": {"thread_id": "none"}})) == []
        valid = saver.conn.execute(
            "SELECT count(*) AS made, bool_and(indisvalid) AS are_valid FROM pg_index WHERE indrelid IN "
            "(SELECT oid FROM pg_class WHERE relnamespace = 'settle_runs'::regnamespace)"
        ).fetchone()
    assert valid["are_valid"]
    assert valid["made"] >= 7
