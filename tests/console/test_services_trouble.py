"""Errors that nobody foresaw, inside a delivery: they reach the row, nobody is answered with an error page, and nothing is lost."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import InternalError, OperationalError

from actions.records import ActionRef
from console.models import Decision, DecisionId
from console.services import deliver as deliveries
from console.services.answers import AnswerKind
from console.services.decide import DecisionRequest, decide
from console.services.deliver import claim_due, deliver
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.conftest import MemoryWriter
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

SECRET = "9" * 50
ERRORS = [
    ValueError(SECRET),
    OverflowError(SECRET),
    RecursionError(SECRET),
    KeyError(SECRET),
    UnicodeEncodeError("utf-8", SECRET, 0, 1, SECRET),
]


def a_request(outcome: str = "done", **fields: Any) -> DecisionRequest:
    return DecisionRequest(outcome=outcome, **{"reason": "seen", "decision_id": f"test-{uuid4()}", **fields})


def raising(error: Exception) -> Any:
    def call(*args: object, **kwargs: object) -> None:
        raise error

    return call


def due(row: Decision) -> None:
    Decision.objects.filter(pk=row.pk).update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_unforeseen_error_reaches_the_row_and_the_log_without_what_was_sent(
    memory: MemoryWriter, ana: User, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ref = memory.action("billing-7", 1)
    monkeypatch.setattr(memory.kept, "settle", raising(error))
    request = a_request()

    with caplog.at_level(logging.ERROR):
        answer = decide(ref, request, by=ana)

    row = Decision.objects.get()
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "not known" in answer.detail
    assert (row.state, row.attempts, row.may_be_written) == ("waiting", 1, True)
    assert type(error).__name__ in row.why
    assert "unexpected" in caplog.text
    assert SECRET not in row.why + answer.detail + caplog.text


def test_it_is_tried_again_ever_more_seldom_until_it_works(
    memory: MemoryWriter, ana: User, bea: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = memory.action("billing-7", 1)
    request = a_request()
    pauses = []
    with monkeypatch.context() as patch:
        patch.setattr(memory.kept, "settle", raising(ValueError(SECRET)))
        decide(ref, request, by=ana)
        for _ in range(5):
            row = Decision.objects.get()
            assert row.next_try_at is not None
            pauses.append((row.next_try_at - row.updated_at).total_seconds())
            due(row)
            assert claim_due(10) == [row.pk]
            deliver(row.pk)
        assert decide(ref, a_request("failed"), by=bea).kind is AnswerKind.PENDING

    assert pauses == sorted(pauses)
    assert pauses[-1] > 3 * pauses[0]
    assert Decision.objects.get().attempts == 6
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED
    assert Decision.objects.get().state == "written"


def test_where_it_breaks_after_the_store_committed_nothing_is_lost(
    memory: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = memory.action("billing-7", 1)
    settle = memory.kept.settle

    def written_and_broken(*args: Any, **kwargs: Any) -> Any:
        settle(*args, **kwargs)
        raise ValueError(SECRET)

    request = a_request()
    with monkeypatch.context() as patch:
        patch.setattr(memory.kept, "settle", written_and_broken)
        assert decide(ref, request, by=ana).kind is AnswerKind.UNAVAILABLE
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED
    assert len(memory.kept.list_turns("billing-7", limit=5)) == 1


def test_a_read_that_breaks_is_answered_too(memory: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = memory.action("billing-7", 1)
    monkeypatch.setattr(memory.kept, "get_action", raising(ValueError(SECRET)))
    answer = decide(ref, a_request(), by=ana)
    assert (answer.kind, Decision.objects.count()) == (AnswerKind.UNAVAILABLE, 0)
    assert SECRET not in answer.detail


@pytest.mark.parametrize("number", [2**63, 10**30, -1])
def test_a_number_that_no_column_holds_does_not_keep_it_from_being_written(
    memory: MemoryWriter, ana: User, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = memory.action("billing-7", 1)
    real = deliveries._settle
    monkeypatch.setattr(deliveries, "_settle", lambda *args: (real(*args)[0], number))
    assert decide(ref, a_request(), by=ana).kind is AnswerKind.WRITTEN
    row = Decision.objects.get()
    assert (row.state, row.turn_seq, row.entry_number) == ("written", None, 1)


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_a_text_that_no_column_holds_does_not_either(records: RecordWriter, ana: User, text: str) -> None:
    records.lease("billing-7", state="live")
    ref = records.action("billing-7", 1)
    answer = decide(ref, a_request(), by=ana)
    assert answer.decision is not None
    records.action("billing-7", 1, status="failed", error=text)
    row = deliver(answer.decision.pk)
    assert row is not None
    assert row.state == "refused"
    assert row.why.startswith("its agent ended it first: failed, a")


def test_an_entry_that_cannot_be_made_stops_nothing(memory: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.lease("billing-7", state="live")
    ref = memory.action("billing-7", 1)
    monkeypatch.setattr(memory.kept, "append_entry", raising(ValueError(SECRET)))
    assert decide(ref, a_request(), by=ana).kind is AnswerKind.WAITING
    assert withdraw(ref, by=ana).kind is AnswerKind.WITHDRAWN


@pytest.mark.parametrize("error", [OperationalError("gone"), InternalError("read-only transaction")])
def test_a_console_database_that_fails_is_an_answer(
    memory: MemoryWriter, ana: User, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = memory.action("billing-7", 1)
    monkeypatch.setattr("console.services.decide.numbers_shown", raising(error))  # once its id is kept
    answer = decide(ref, a_request(), by=ana)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "database" in answer.detail
    assert not Decision.objects.exists()
    assert not DecisionId.objects.exists()


# --- a store that is gone --------------------------------------------------------------------------------------------


def test_what_was_never_asked_for_can_be_withdrawn_when_its_store_is_gone(
    records: RecordWriter, ana: User, settings: Any
) -> None:
    records.lease("billing-7", state="live")
    ref = records.action("billing-7", 1)
    decide(ref, a_request(), by=ana)
    assert Decision.objects.get().may_be_written is False
    settings.ACTION_STORES = {"elsewhere": "memory:"}

    assert withdraw(ref, by=ana).kind is AnswerKind.WITHDRAWN
    assert Decision.objects.get().state == "withdrawn"


def test_what_may_be_written_cannot_and_the_answer_says_what_to_do(flaky: MemoryWriter, ana: User, settings: Any) -> None:
    ref = flaky.action("billing-7", 1)
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    decide(ref, a_request(), by=ana)
    settings.ACTION_STORES = {"elsewhere": "memory:"}

    answer = withdraw(ref, by=ana)

    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "store main is no longer in ACTION_STORES" in answer.detail
    assert "Put the store back" in answer.detail
    assert Decision.objects.get().state == "waiting"


def test_that_it_may_be_written_is_committed_before_its_store_is_asked(
    memory: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.lease("billing-7", state="live")
    ref: ActionRef = memory.action("billing-7", 1)
    answer = decide(ref, a_request(), by=ana)
    assert answer.decision is not None
    memory.lease("billing-7", epoch=2, state="released")

    def dying(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(get_store("main"), "settle", dying)
    with pytest.raises(KeyboardInterrupt):
        deliver(answer.decision.pk)
    assert Decision.objects.get().may_be_written is True
