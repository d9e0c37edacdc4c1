"""A polign_db store in the console: its history in the console's database, and decisions that were cut off half way."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from pytest_django import Settings

from actions.records import ActionRef
from actions.store import steps
from console import stores
from console.models import Decision
from console.services.answers import AnswerKind
from console.services.decide import DecisionRequest, decide
from console.services.deliver import deliver
from console.services.withdraw import withdraw
from console.stores import get_store
from local.polign import RunningPolign
from tests.console.conftest import Cast
from tests.console.test_commands import run
from tests.http_gateway import LOST, UNANSWERED, Gateway
from tests.polign_writer import PolignWriter

pytestmark = pytest.mark.django_db

DONE = DecisionRequest(outcome="done", reason="found in the Sent folder", decision_id="decision-1")


@pytest.fixture
def gateway(polign_server: RunningPolign, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """What stands between the console and its store `main`."""
    monkeypatch.setattr(steps, "WAIT_S", 0)
    with Gateway(polign_server.base) as opened:
        settings.ACTION_STORES = {"main": f"polign+{opened.base}?collection=t{secrets.token_hex(8)}"}
        stores.reset()
        assert run("prepare_store", "main").code == 0
        yield opened
        stores.reset()


@pytest.fixture
def recall(gateway: Gateway, polign_server: RunningPolign, settings: Settings) -> Iterator[PolignWriter]:
    with PolignWriter(polign_server, settings.ACTION_STORES["main"].partition("collection=")[2]) as writer:
        yield writer


def cut_off_at_the_close(gateway: Gateway, recall: PolignWriter, ref: ActionRef, by: User, how: str) -> Decision:
    """The turn is written; the close never arrives, or nobody hears that it did. The lease has run out since."""
    gateway.fails = lambda _, request: how if request.startswith("PUT") and request.endswith(":act:1") else None
    answer = decide(ref, DONE, by=by)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "half written" in answer.detail
    assert answer.decision is not None
    assert (answer.decision.state, answer.decision.may_be_written) == ("waiting", True)
    held = recall.lease_of(ref.agent)
    assert held is not None
    recall.lease(ref.agent, held[0], held[1], "expired")
    gateway.mend()
    return answer.decision


def test_its_history_stands_in_the_consoles_database(recall: PolignWriter, ana: User) -> None:
    ref = recall.action("billing-7", 1)

    answer = decide(ref, DONE, by=ana)

    assert answer.kind is AnswerKind.WRITTEN
    database = connection.settings_dict
    with psycopg.connect(
        host=database["HOST"],
        port=database["PORT"],
        user=database["USER"],
        password=database["PASSWORD"],
        dbname=database["NAME"],
    ) as console:
        chain = get_store("main").read_head().chain
        kinds = console.execute("SELECT kind FROM settle_audit.entries WHERE chain = %s ORDER BY number", [chain]).fetchall()
    assert kinds == [("settling",), ("settled",)]
    said = run("verify_audit")
    assert (said.code, said.out.splitlines()[-1]) == (0, "intact: 2 entries, anchored up to 0")


def test_check_stores_says_what_it_cannot_promise(recall: PolignWriter) -> None:
    recall.turn("billing-7", 1)

    said = run("check_stores")

    assert said.code == 0
    assert said.out.startswith("main: polign_db; holds Recall's records, prepared, ")
    assert "; can be settled" in said.out.splitlines()[0]
    assert [line.partition(": caution: ")[2][:40] for line in said.out.splitlines() if ": caution: " in line] == [
        "polign_db 0.14 does not fence writes: a ",
        "polign_db does not say who holds an agen",
    ]


@pytest.mark.parametrize("how", [LOST, UNANSWERED])
def test_a_decision_that_was_cut_off_is_completed_by_the_next_attempt(
    gateway: Gateway, recall: PolignWriter, ana: User, how: str
) -> None:
    """Also where its close arrived: it is not taken for the agent's own."""
    row = cut_off_at_the_close(gateway, recall, recall.action("billing-7", 1), ana, how)
    Decision.objects.filter(pk=row.pk).update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))

    deliver(row.pk)

    row.refresh_from_db()
    assert (row.state, row.turn_seq, row.written_by) == ("written", 1, "us")
    assert recall.body_of("billing-7:act:1")["status"] == "done"
    assert len(get_store("main").list_turns("billing-7", limit=9)) == 1
    assert run("verify_audit").code == 0


@pytest.mark.parametrize("how", [LOST, UNANSWERED])
def test_a_decision_that_was_cut_off_cannot_be_withdrawn(gateway: Gateway, recall: PolignWriter, ana: User, how: str) -> None:
    """Its agent may have read it."""
    ref = recall.action("billing-7", 1)
    row = cut_off_at_the_close(gateway, recall, ref, ana, how)

    answer = withdraw(ref, by=ana)

    assert (answer.kind, answer.detail.partition(":")[0]) == (AnswerKind.UNAVAILABLE, "too late")
    row.refresh_from_db()
    assert row.state == "waiting"
    assert decide(ref, DONE, by=ana).kind is AnswerKind.REPEATED


def test_a_decision_that_waits_for_a_living_agent_can_be_withdrawn(recall: PolignWriter, person: Cast, ana: User) -> None:
    ref = recall.action("billing-7", 1)
    recall.lease("billing-7", "pod-a", 3, "live")

    answer = decide(ref, DONE, by=ana)

    assert answer.kind is AnswerKind.WAITING
    assert withdraw(ref, by=ana).kind is AnswerKind.WITHDRAWN
    assert recall.body_of("billing-7:act:1")["status"] == "started"
