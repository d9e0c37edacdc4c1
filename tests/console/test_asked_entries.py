"""Each run of a resolver is an entry beside its action: who was asked, what was found, by which rule; what is no news does not flood."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from actions.records import ActionRef
from console.models import Inquiry, StoredVerdict
from console.services import resolve
from console.services.decide import DecisionRequest, decide
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.asking import PaymentProvider, configure, payment_provider
from tests.console.conftest import DownStore
from tests.console.entries import console_entries
from tests.console.test_services_resolve import ask, doubtful, entries_of, later
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Settings) -> Iterator[PaymentProvider]:
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        yield provider


def ask_by_itself(ref: ActionRef) -> StoredVerdict | None:
    """As a sweep does."""
    row, _ = Inquiry.objects.get_or_create(store=ref.store, agent=ref.agent, seq=ref.seq, defaults={"tool": "create_payment"})
    Inquiry.objects.filter(pk=row.pk).update(resolver="payments")
    later()
    return resolve.ask(row.pk)


def test_a_run_says_who_was_asked_what_was_found_and_on_what_evidence(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1)
    configure(amy, provider)

    verdict = ask(ref, ana)

    assert verdict is not None
    (entry,) = entries_of(ref, "asked")
    assert (entry.actor, entry.outcome, entry.evidence_id) == ("resolver payments", "done", verdict.evidence_id)
    assert entry.reason == verdict.resolution
    said = {name: entry.detail[name] for name in ("version", "grade", "rule", "asked_by")}
    assert said == {"version": 1, "grade": "exact", "rule": "found by our key; the fields agree", "asked_by": "ana"}
    assert console_entries("asked") == []


def test_an_automatic_run_that_cannot_tell_again_adds_none_and_a_persons_always_does(
    memory: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(memory)
    configure(amy, provider)

    for _ in range(4):
        assert ask_by_itself(ref) is not None
    assert StoredVerdict.objects.count() == 4
    assert [entry.outcome for entry in entries_of(ref, "asked")] == ["unknown"]
    assert ask(ref, ana) is not None
    assert len(entries_of(ref, "asked")) == 2
    provider.pay("billing-7", 1)
    ask_by_itself(ref)

    assert [entry.outcome for entry in entries_of(ref, "asked")] == ["done", "unknown", "unknown"]
    assert [entry.detail["asked_by"] for entry in entries_of(ref, "asked")] == ["itself", "ana", "itself"]


def test_where_the_store_takes_no_entry_it_stands_in_the_consoles_own_history(
    flaky: MemoryWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(flaky)
    configure(amy, provider)
    store = get_store("main")
    assert isinstance(store, DownStore)
    store.fails = "entry"

    verdict = ask(ref, ana)

    assert verdict is not None
    (entry,) = console_entries("asked")
    assert (entry.detail["of"], entry.agent, entry.seq) == ({"store": "main"}, "billing-7", 1)
    assert entry.evidence_id == verdict.evidence_id


def test_steps_of_a_decision_stand_there_too(flaky: MemoryWriter, ana: User) -> None:
    ref = doubtful(flaky)
    flaky.lease("billing-7", state="live")
    store = get_store("main")
    assert isinstance(store, DownStore)
    store.fails = "entry"

    decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id="decision-1"), by=ana)
    withdraw(ref, by=ana)

    assert [(entry.kind, entry.decision_id) for entry in console_entries()] == [
        ("withdrawn", "decision-1"),
        ("waiting", "decision-1"),
    ]


def test_an_entry_that_can_be_written_nowhere_keeps_no_verdict_from_being_kept(
    flaky: MemoryWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(flaky)
    configure(amy, provider)
    store = get_store("main")
    assert isinstance(store, DownStore)
    store.fails = "entry"
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION public.a_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;"
            "CREATE TRIGGER a_full BEFORE INSERT ON settle_audit.entries FOR EACH ROW EXECUTE FUNCTION public.a_full()"
        )

    assert ask(ref, ana) is not None

    assert StoredVerdict.objects.count() == 1
    assert console_entries("asked") == []


def test_what_is_no_news_costs_one_look_more_and_no_write(memory: RecordWriter, amy: User, provider: PaymentProvider) -> None:
    ref = doubtful(memory)
    configure(amy, provider)
    ask_by_itself(ref)

    with CaptureQueriesContext(
        connection,
    ) as looked:
        ask_by_itself(ref)

    assert not any("settle_audit" in one["sql"] for one in looked)
    assert len(entries_of(ref, "asked")) == 1
