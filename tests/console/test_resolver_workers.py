"""Questions asked by real workers that are killed at every point: one verdict, one end, one turn, one entry; and a thousand of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from pytest_django import Settings

from actions.queries import get_action
from actions.records import ActionRef
from console.models import Decision, Inquiry, Pace, StoredVerdict
from console.stores import get_store
from tests.console.asking import CANARY, PAYMENT, TOOL, PaymentProvider, configure, define, payment_provider
from tests.console.workers import Worker, kill, lease_row_held, somebody_waits_for, sweep_now, wait_for
from tests.recall_writer import RecallWriter

MANY = 1_000


@pytest.fixture
def provider(settings: Settings) -> Iterator[PaymentProvider]:
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        yield provider


def paid_and_killed(postgres: RecallWriter, provider: PaymentProvider) -> ActionRef:
    """The payment was made; its process died before it could say so."""
    postgres.lease("billing-7", state="expired")
    provider.pay("billing-7", 1)
    return postgres.action("billing-7", 1, tool=TOOL, args=PAYMENT)


def as_after_a_minute() -> None:
    """What a dead worker held is free again."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    Inquiry.objects.filter(due_at__isnull=False).update(due_at=past, queued_until=None, asking_until=None)
    Decision.objects.filter(state="waiting").update(next_try_at=past)


def is_done(ref: ActionRef) -> bool:
    action = get_action(get_store("main"), ref).action
    return action is not None and action.status == "done"


def assert_once(ref: ActionRef) -> None:
    store = get_store("main")
    assert StoredVerdict.objects.count() == 1
    assert len(store.list_turns(ref.agent, limit=10)) == 1
    assert [entry.kind for entry in store.list_entries(limit=50, agent=ref.agent)] == ["settled", "asked"]
    assert Decision.objects.get().state == "written"


def test_a_worker_killed_before_it_asks_leaves_the_question_to_another(
    worker: Worker, postgres: RecallWriter, amy: User, provider: PaymentProvider
) -> None:
    ref = paid_and_killed(postgres, provider)
    configure(amy, provider, mode="settle")
    hosts = {"RESOLVER_ALLOWED_HOSTS": provider.host}
    Pace.objects.create(name="payments", next_at=datetime.now(UTC))
    with transaction.atomic():
        Pace.objects.select_for_update().get()  # nobody gets a turn
        first = worker(**hosts)
        wait_for(lambda: somebody_waits_for(connection.connection, postgres), "the worker wants its turn")
        kill(first)
    assert not provider.asked
    assert not StoredVerdict.objects.exists()

    as_after_a_minute()
    worker(**hosts)
    wait_for(lambda: is_done(ref), "another worker asks and settles")

    wait_for(lambda: Decision.objects.filter(state="written").exists(), "the decision is marked")
    assert provider.times_asked(ref) == 1
    assert_once(ref)


def test_a_worker_killed_while_it_asks_leaves_no_verdict_and_another_asks_again(
    worker: Worker, postgres: RecallWriter, amy: User, provider: PaymentProvider
) -> None:
    ref = paid_and_killed(postgres, provider)
    configure(amy, provider, mode="settle")
    provider.gate.clear()
    hosts = {"RESOLVER_ALLOWED_HOSTS": provider.host}
    first = worker(**hosts)
    assert provider.waiting.acquire(timeout=150)
    kill(first)
    provider.gate.set()
    assert not StoredVerdict.objects.exists()
    assert not is_done(ref)

    as_after_a_minute()
    worker(**hosts)
    wait_for(lambda: is_done(ref), "another worker asks and settles")

    wait_for(lambda: Decision.objects.filter(state="written").exists(), "the decision is marked")
    assert_once(ref)


def test_a_worker_killed_while_it_settles_leaves_the_verdict_and_another_settles(
    worker: Worker, postgres: RecallWriter, amy: User, provider: PaymentProvider
) -> None:
    ref = paid_and_killed(postgres, provider)
    configure(amy, provider, mode="settle")
    hosts = {"RESOLVER_ALLOWED_HOSTS": provider.host}
    with lease_row_held(postgres, "billing-7") as somebody_waits:
        first = worker(**hosts)
        wait_for(somebody_waits, "the worker is inside the settle")
        kill(first)
    assert StoredVerdict.objects.count() == 1
    assert not is_done(ref)

    as_after_a_minute()
    worker(**hosts)
    wait_for(lambda: Decision.objects.filter(state="written").exists(), "another worker writes it")

    assert is_done(ref)
    assert provider.times_asked(ref) == 1
    assert_once(ref)


def test_a_worker_killed_after_it_settled_changes_nothing_any_more(
    worker: Worker, postgres: RecallWriter, amy: User, provider: PaymentProvider
) -> None:
    ref = paid_and_killed(postgres, provider)
    configure(amy, provider, mode="settle")
    hosts = {"RESOLVER_ALLOWED_HOSTS": provider.host}
    first = worker(**hosts)
    wait_for(lambda: is_done(ref), "the worker asks and settles")
    kill(first)

    as_after_a_minute()
    worker(**hosts)
    wait_for(lambda: Decision.objects.filter(state="written").exists(), "what the first one could not say is found")

    wait_for(lambda: Inquiry.objects.get().due_at is None, "nothing is due")
    assert provider.times_asked(ref) == 1
    assert_once(ref)


def test_a_thousand_open_actions_are_asked_about_once_by_two_workers(
    worker: Worker, postgres: RecallWriter, amy: User, provider: PaymentProvider
) -> None:
    postgres.lease("many-1", state="expired")
    for seq in range(1, MANY + 1):
        postgres.action("many-1", seq, tool=TOOL, args=PAYMENT)
    define(amy, provider, per_minute=6_000, at_once=32)
    configure(amy, provider)
    hosts = {"RESOLVER_ALLOWED_HOSTS": provider.host}
    workers = [worker(**hosts), worker(**hosts)]
    wait_for(lambda: _all_asked_or_more_sent(MANY), "everything is asked about", seconds=400)
    for process in workers:
        process.send_signal(signal.SIGTERM)

    asked = {key: count for key, count in provider.asked.items() if key != CANARY}
    assert len(asked) == MANY
    assert set(asked.values()) == {1}
    assert StoredVerdict.objects.values("inquiry").distinct().count() == StoredVerdict.objects.count() == MANY


def _all_asked_or_more_sent(count: int) -> bool:
    """Whether all are asked about; a sweep is sent as soon as the last one's questions are through, not two seconds later."""
    if not Inquiry.objects.filter(due_at__isnull=False, queued_until__gt=datetime.now(UTC)).exists():
        sweep_now()
    return StoredVerdict.objects.count() >= count
