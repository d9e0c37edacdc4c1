"""Asking the world: what is kept of it, what an exact answer may write, and who asks when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404
from pytest_django import Settings

from actions.errors import StoreUnavailable
from actions.queries import get_action
from actions.records import Action, ActionRef, Entry, Turn
from actions.times import format_rfc3339, from_datetime
from console.models import Decision, Incident, Inquiry, StoredVerdict
from console.services import incidents, inquiries, resolve
from console.services.asking import NobodyToAsk, request_asking
from console.services.decide import DecisionRequest, decide
from console.services.evidence import find_contradiction, refs_with_verdict, standings_of
from console.services.incidents import close_incident
from console.services.policies import ChangedMeanwhile, InvalidPolicy, policy_of, save_policy
from console.stores import get_store
from tests.console.asking import PAYMENT, TOOL, PaymentProvider, configure, define, payment_provider
from tests.console.conftest import Cast
from tests.recall_writer import RecallWriter, RecordWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Settings) -> Iterator[PaymentProvider]:
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        yield provider


def doubtful(records: RecordWriter, agent: str = "billing-7", seq: int = 1, **changes: Any) -> ActionRef:
    """A payment whose process died."""
    records.lease(agent, state="expired")
    return records.action(agent, seq, **{"tool": TOOL, "args": PAYMENT, **changes})


def hours_ago(hours: float) -> str:
    return format_rfc3339(from_datetime(datetime.now(UTC) - timedelta(hours=hours)))


def ask(ref: ActionRef, by: User) -> StoredVerdict | None:
    return resolve.ask(request_asking(ref, by=by).pk)


def action_of(ref: ActionRef) -> Action:
    action = get_action(get_store(ref.store), ref).action
    assert action is not None
    return action


def entries_of(ref: ActionRef, kind: str) -> list[Entry]:
    return [one for one in get_store(ref.store).list_entries(limit=50, agent=ref.agent, seq=ref.seq) if one.kind == kind]


def turns_of(ref: ActionRef) -> list[Turn]:
    return [turn for turn in get_store(ref.store).list_turns(ref.agent, limit=50) if isinstance(turn, Turn)]


def later(row: Inquiry | None = None, **ago: float) -> None:
    """As so much time later: whatever is due comes due."""
    rows = Inquiry.objects.all() if row is None else Inquiry.objects.filter(pk=row.pk)
    rows.update(due_at=datetime.now(UTC) - timedelta(seconds=1), queued_until=None, **ago)


# --- what an answer may do -------------------------------------------------------------------------------------------


def test_an_exact_answer_is_shown_and_settles_nothing_where_the_policy_says_propose(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1)
    configure(amy, provider)

    verdict = ask(ref, ana)

    assert verdict is not None
    assert (verdict.outcome, verdict.grade, verdict.asked_for) == ("done", "exact", "ana")
    assert action_of(ref).is_open
    assert not Decision.objects.exists()
    assert turns_of(ref) == []
    evidence = json.loads(verdict.evidence)
    assert [(row["name"], row["agrees"]) for row in evidence["fields"]] == [
        ("recipient", True),
        ("amount", True),
        ("currency", True),
        ("reference", True),
    ]
    assert evidence["matched_ids"] == ["pay_1"]


def test_an_exact_answer_settles_by_itself_where_the_policy_says_settle(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1)
    configure(amy, provider, mode="settle")

    verdict = ask(ref, ana)

    assert verdict is not None
    action = action_of(ref)
    assert (action.status, action.resolution) == ("done", f"resolver payments: {verdict.resolution}")
    (entry,) = entries_of(ref, "settled")
    assert (entry.actor, entry.evidence_id) == ("resolver payments", verdict.evidence_id)
    assert len(turns_of(ref)) == 1
    decision = Decision.objects.get()
    assert (decision.state, decision.username, decision.by) == ("written", "resolver:payments", None)


@pytest.mark.parametrize(
    ("payment", "grade"),
    [({"amount": 1200.0}, "conflict"), ({"payee": "somebody else"}, "conflict"), ({"payee": ""}, "exact")],
    ids=str,
)
def test_what_differs_never_settles(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, payment: dict[str, Any], grade: str
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1, **payment)
    configure(amy, provider, mode="settle", accepts_strong=True)

    verdict = ask(ref, ana)

    assert verdict is not None
    assert verdict.grade == grade
    assert action_of(ref).is_open is (grade == "conflict")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_no_answer_is_kept_as_such_and_asked_again(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, status: int
) -> None:
    ref = doubtful(records)
    configure(amy, provider, mode="settle")
    provider.status = status

    verdict = ask(ref, ana)

    assert verdict is not None
    assert (verdict.outcome, verdict.is_negative) == ("unknown", False)
    row = Inquiry.objects.get()
    assert row.misses == 1
    assert row.due_at is not None
    assert row.due_at > datetime.now(UTC)
    assert action_of(ref).is_open


def test_absence_is_proposed_after_two_negatives_and_never_written_by_itself(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records, started_at=hours_ago(10))
    records.lease("billing-7", state="expired", ttl=timedelta(hours=9))
    configure(amy, provider, mode="settle", settle_window_s=3_600)

    first = ask(ref, ana)
    assert first is not None
    assert (first.outcome, first.is_negative) == ("unknown", True)
    StoredVerdict.objects.update(asked_at=datetime.now(UTC) - timedelta(hours=2))
    later()
    second = ask(ref, ana)

    assert second is not None
    assert second.outcome == "failed"
    assert action_of(ref).is_open
    assert not Decision.objects.exists()


def test_a_frozen_process_that_goes_on_moves_the_end_of_what_it_may_have_done(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    """It was seen with a lease that had run out, renewed it, and released it much later: only from then on nothing could happen any more."""
    ref = doubtful(records, started_at=hours_ago(10))
    records.lease("billing-7", state="expired", ttl=timedelta(hours=9))
    configure(amy, provider, settle_window_s=3_600)
    ask(ref, ana)
    StoredVerdict.objects.update(asked_at=datetime.now(UTC) - timedelta(hours=2))
    Inquiry.objects.filter(lost_at__isnull=False).update(lost_at=datetime.now(UTC) - timedelta(hours=3))
    records.lease("billing-7", state="live", epoch=2)
    records.lease("billing-7", state="released", epoch=3)
    later()

    verdict = ask(ref, ana)

    assert verdict is not None
    assert verdict.outcome == "unknown"
    lost_at = Inquiry.objects.get().lost_at
    assert lost_at is not None
    assert datetime.now(UTC) - lost_at < timedelta(minutes=1)


def test_negatives_of_an_earlier_version_of_the_resolver_do_not_count(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records, started_at=hours_ago(10))
    records.lease("billing-7", state="expired", ttl=timedelta(hours=9))
    configure(amy, provider)
    ask(ref, ana)
    StoredVerdict.objects.update(asked_at=datetime.now(UTC) - timedelta(hours=2))

    define(amy, provider, timeout_s="3")
    later()
    second = ask(ref, ana)

    assert second is not None
    assert second.outcome == "unknown"


def test_an_idempotent_call_is_checked_and_never_settled_by_itself(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records, cls="idempotent")
    provider.pay("billing-7", 1)
    configure(amy, provider, mode="settle")

    verdict = ask(ref, ana)

    assert verdict is not None
    assert verdict.outcome == "done"
    assert action_of(ref).is_open


def test_a_person_who_decides_first_is_not_overtaken(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    records.lease("billing-7", state="live")
    decide(ref, DecisionRequest(outcome="failed", reason="the bank says no", decision_id=f"test-{uuid4()}"), by=ana)
    records.lease("billing-7", state="expired", epoch=2)
    provider.pay("billing-7", 1)
    configure(amy, provider, mode="settle")

    verdict = ask(ref, ana)

    assert verdict is not None
    assert verdict.outcome == "done"
    (decision,) = Decision.objects.all()
    assert (decision.outcome, decision.state) == ("failed", "waiting")
    assert action_of(ref).is_open


def test_an_agent_whose_id_no_row_can_hold_keeps_no_other_from_being_asked_about(
    amy: User, provider: PaymentProvider, records: RecordWriter
) -> None:
    configure(amy, provider)
    doubtful(records, "x" * 300)
    ref = doubtful(records)

    assert inquiries.discover() == 1
    assert list(Inquiry.objects.values_list("agent", "seq")) == [(ref.agent, ref.seq)]


def test_giving_up_is_reported_once_and_leaves_it_open(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    configure(amy, provider, give_up_after_s=60)
    provider.status = 500
    ask(ref, ana)
    Inquiry.objects.update(first_asked_at=datetime.now(UTC) - timedelta(hours=1))
    later()

    given_up = resolve.ask(Inquiry.objects.get().pk)

    assert given_up is not None
    assert given_up.has_given_up
    assert Inquiry.objects.get().due_at is None
    assert len(entries_of(ref, "gave_up")) == 1
    assert action_of(ref).is_open
    later()
    resolve.ask(Inquiry.objects.get().pk)
    assert len(entries_of(ref, "gave_up")) == 1


def test_that_it_was_given_up_stands_in_the_history_though_its_worker_dies_right_after(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = doubtful(records)
    configure(amy, provider, give_up_after_s=60)
    provider.status = 500
    ask(ref, ana)
    Inquiry.objects.update(first_asked_at=datetime.now(UTC) - timedelta(hours=1))
    later()

    def die(*args: object) -> None:
        raise KeyboardInterrupt  # after the commit, where the first thing is counted

    monkeypatch.setattr(resolve, "_count_asked", die)
    with pytest.raises(KeyboardInterrupt):
        resolve.ask(Inquiry.objects.get().pk)

    assert Inquiry.objects.get().given_up_at is not None
    assert len(entries_of(ref, "gave_up")) == 1


# --- who may, and about what -----------------------------------------------------------------------------------------


def test_who_may_not_settle_may_not_ask(
    records: RecordWriter, ben: User, dot: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    configure(amy, provider)

    with pytest.raises(PermissionDenied):
        request_asking(ref, by=ben)
    with pytest.raises(PermissionDenied):
        request_asking(ref, by=amy)
    with pytest.raises(Http404):
        request_asking(ref, by=dot)
    assert not Inquiry.objects.exists()


def test_nobody_is_asked_about_what_has_ended_or_has_no_resolver(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    with pytest.raises(NobodyToAsk, match="no resolver is configured for create_payment"):
        request_asking(doubtful(records), by=ana)
    configure(amy, provider)
    with pytest.raises(NobodyToAsk, match="it has ended already: done"):
        request_asking(doubtful(records, seq=2, status="done"), by=ana)
    with pytest.raises(NobodyToAsk, match="it is pure"):
        request_asking(doubtful(records, seq=3, cls="pure"), by=ana)
    assert not Inquiry.objects.exists()
    assert not provider.asked


def test_a_store_that_does_not_answer_is_not_a_provider_that_says_no(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = doubtful(records)
    configure(amy, provider)
    row = request_asking(ref, by=ana)

    def down(*_: object) -> None:
        raise StoreUnavailable("main", "it does not answer")

    monkeypatch.setattr(type(get_store("main")), "get_action", down)

    assert resolve.ask(row.pk) is None
    row.refresh_from_db()
    assert "does not answer" in row.problem
    assert row.due_at is not None
    assert row.due_at > datetime.now(UTC)
    assert not provider.asked


def test_a_resolver_that_cannot_be_built_is_said_and_asked_again_once_it_is_mended(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, settings: Settings
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1)
    configure(amy, provider)
    row = request_asking(ref, by=ana)
    switch(amy, provider, is_enabled=False)

    assert resolve.ask(row.pk) is None
    row.refresh_from_db()
    assert "switched off" in row.problem
    switch(amy, provider, is_enabled=True)
    assert resolve.ask(row.pk) is not None


def switch(by: User, provider: PaymentProvider, *, is_enabled: bool) -> None:
    from console.services.definitions import find_definition, options_of, save_definition

    known = find_definition("payments")
    assert known is not None
    save_definition(
        "payments", "http", options_of(known), {}, seen_version=known.version, by=by, per_minute=6_000, is_enabled=is_enabled
    )


# --- once ------------------------------------------------------------------------------------------------------------


def test_a_question_is_asked_once_however_often_its_task_comes(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    configure(amy, provider)
    row = request_asking(ref, by=ana)

    answers = [resolve.ask(row.pk) for _ in range(3)]

    assert [answer is not None for answer in answers] == [True, False, False]
    assert provider.times_asked(ref) == 1
    assert StoredVerdict.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_workers_at_one_moment_one_asks(postgres: RecallWriter, ana: User, amy: User, provider: PaymentProvider) -> None:
    ref = doubtful(postgres)
    provider.pay("billing-7", 1)
    configure(amy, provider, mode="settle")
    row = request_asking(ref, by=ana)
    provider.gate.clear()

    def work() -> StoredVerdict | None:
        try:
            return resolve.ask(row.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=4) as threads:
        running = [threads.submit(work) for _ in range(4)]
        assert provider.waiting.acquire(timeout=60)
        for _ in zip(range(3), as_completed(running, timeout=60), strict=False):
            pass  # three leave while the fourth waits for its answer
        provider.gate.set()
        answers = [one.result() for one in running]

    assert sum(answer is not None for answer in answers) == 1
    assert provider.times_asked(ref) == 1
    assert len(entries_of(ref, "settled")) == 1
    assert len(turns_of(ref)) == 1


@pytest.mark.django_db(transaction=True)
def test_an_answer_that_comes_after_its_claim_ran_out_is_dropped(
    postgres: RecallWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(postgres)
    provider.pay("billing-7", 1)
    configure(amy, provider, mode="settle")
    row = request_asking(ref, by=ana)
    provider.gate.clear()

    def work() -> StoredVerdict | None:
        try:
            return resolve.ask(row.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=2) as threads:
        slow = threads.submit(work)
        assert provider.waiting.acquire(timeout=60)
        Inquiry.objects.update(asking_until=datetime.now(UTC) - timedelta(seconds=1))
        second = threads.submit(work)
        assert provider.waiting.acquire(timeout=60)
        provider.gate.set()
        answers = [slow.result(), second.result()]

    assert answers[0] is None
    assert answers[1] is not None
    assert StoredVerdict.objects.count() == 1
    assert len(entries_of(ref, "settled")) == 1


def test_a_provider_is_asked_no_faster_than_it_allows(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    refs = [doubtful(records, f"billing-{n}") for n in range(3)]
    define(amy, provider, per_minute=1, at_once=1)
    configure(amy, provider)
    rows = [request_asking(ref, by=ana) for ref in refs]

    answers = [resolve.ask(row.pk) for row in rows]

    assert sum(answer is not None for answer in answers) == 1
    assert sum(provider.times_asked(ref) for ref in refs) == 1
    waiting = Inquiry.objects.filter(asked=0)
    assert len(waiting) == 2
    assert all(row.due_at and row.queued_until and row.queued_until > datetime.now(UTC) for row in waiting)


# --- by itself -------------------------------------------------------------------------------------------------------


def test_a_sweep_finds_what_should_be_asked_about_and_nothing_else(
    records: RecordWriter, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider)
    interrupted = doubtful(records, "a")
    unknown = doubtful(records, "b", status="unknown")
    doubtful(records, "c", tool="send_email")
    doubtful(records, "d", cls="idempotent")
    doubtful(records, "e", status="done")
    doubtful(records, "f")
    records.lease("f", state="live", epoch=2)

    assert inquiries.discover() == 2
    assert inquiries.discover() == 0

    assert {row.ref for row in Inquiry.objects.all()} == {interrupted, unknown}
    assert all(row.due_at is not None for row in Inquiry.objects.all())


def test_two_sweeps_never_take_the_same_question(records: RecordWriter, amy: User, provider: PaymentProvider) -> None:
    configure(amy, provider)
    for number in range(5):
        doubtful(records, f"agent-{number}")
    inquiries.discover()

    first, second = resolve.claim_due(100), resolve.claim_due(100)

    assert len(first) == 5
    assert second == []


def test_a_question_whose_task_was_lost_is_sent_again(records: RecordWriter, amy: User, provider: PaymentProvider) -> None:
    configure(amy, provider)
    doubtful(records)
    inquiries.discover()
    (pk,) = resolve.claim_due(100)

    Inquiry.objects.update(queued_until=datetime.now(UTC) - timedelta(seconds=1))

    assert resolve.claim_due(100) == [pk]


# --- contradictions --------------------------------------------------------------------------------------------------


def decided_failed(records: RecordWriter, by: User) -> ActionRef:
    ref = doubtful(records)
    decide(ref, DecisionRequest(outcome="failed", reason="the bank says no", decision_id=f"test-{uuid4()}"), by=by)
    assert action_of(ref).status == "failed"
    return ref


def test_a_payment_that_turns_up_after_all_opens_an_incident_and_rewrites_nothing(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider, mode="settle")
    ref = decided_failed(records, ana)
    Decision.objects.update(updated_at=datetime.now(UTC) - timedelta(hours=25))
    provider.pay("billing-7", 1)

    assert inquiries.recheck_failed() == 1
    resolve.ask(Inquiry.objects.get().pk)

    incident = Incident.objects.get()
    assert "written as failed" in incident.text
    assert incident.closed_at is None
    (entry,) = entries_of(ref, "incident")
    assert entry.evidence_id == incident.verdict.evidence_id
    assert action_of(ref).status == "failed"
    assert len(entries_of(ref, "settled")) == 1
    assert inquiries.recheck_failed() == 0


def test_a_recheck_that_finds_nothing_opens_nothing(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider)
    decided_failed(records, ana)
    Decision.objects.update(updated_at=datetime.now(UTC) - timedelta(hours=25))

    assert inquiries.recheck_failed() == 1
    resolve.ask(Inquiry.objects.get().pk)

    assert provider.asked.total() >= 1
    assert not Incident.objects.exists()
    assert Inquiry.objects.get().due_at is None


def test_what_failed_less_than_a_day_ago_is_left_alone(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider)
    decided_failed(records, ana)

    assert inquiries.recheck_failed() == 0
    assert not Inquiry.objects.exists()


def test_an_incident_is_closed_once_by_somebody_who_may_settle(
    records: RecordWriter, ana: User, bea: User, ben: User, amy: User, provider: PaymentProvider
) -> None:
    test_a_payment_that_turns_up_after_all_opens_an_incident_and_rewrites_nothing(records, ana, amy, provider)
    incident = Incident.objects.get()

    with pytest.raises(PermissionDenied):
        close_incident(incident.pk, "refunded", by=ben)
    close_incident(incident.pk, "refunded by hand", by=ana)
    close_incident(incident.pk, "nothing to do", by=bea)

    incident.refresh_from_db()
    assert (incident.closed_by, incident.closing_note) == ("ana", "refunded by hand")
    assert len(entries_of(incident.ref, "incident_closed")) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", ["incident", "incident_closed"])
def test_an_incident_whose_entry_was_never_written_is_entered_by_the_sweep_once(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider, step: str
) -> None:
    """Whoever made it died between its commit and its entry."""

    def die(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        if step == "incident":
            patch.setattr(incidents, "enter_beside", die)
            with pytest.raises(KeyboardInterrupt):
                test_a_payment_that_turns_up_after_all_opens_an_incident_and_rewrites_nothing(records, ana, amy, provider)
        else:
            test_a_payment_that_turns_up_after_all_opens_an_incident_and_rewrites_nothing(records, ana, amy, provider)
            patch.setattr(incidents, "enter_beside", die)
            with pytest.raises(KeyboardInterrupt):
                close_incident(Incident.objects.get().pk, "refunded by hand", by=ana)
    incident = Incident.objects.get()
    assert (incident.closed_at is not None) is (step == "incident_closed")
    assert entries_of(incident.ref, step) == []

    def sweep(_: int) -> int:
        try:
            return incidents.sweep_incidents()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        swept = sorted(pool.map(sweep, range(2)))

    assert swept == [0, 1]
    (entry,) = entries_of(incident.ref, step)
    assert entry.actor == ("operator ana" if step == "incident_closed" else f"resolver {incident.verdict.resolver}")
    assert incidents.sweep_incidents() == 0
    Incident.objects.update(opened_at=datetime.now(UTC) - timedelta(days=8))
    assert incidents.sweep_incidents() == 0


# --- policies --------------------------------------------------------------------------------------------------------


def test_only_an_admin_of_everything_changes_a_policy(
    records: RecordWriter, ana: User, person: Cast, provider: PaymentProvider
) -> None:
    local = person("loc", ("admin", "main", ""))

    for by in (ana, local):
        with pytest.raises(PermissionDenied):
            save_policy(TOOL, {"give_up_after_s": 60}, seen_version=0, by=by)
    assert policy_of(TOOL).version == 0


def test_of_two_who_save_one_is_told(amy: User, person: Cast, provider: PaymentProvider, memory: RecordWriter) -> None:
    configure(amy, provider)

    with pytest.raises(ChangedMeanwhile, match="version 1 by amy"):
        save_policy(TOOL, {"mode": "settle"}, seen_version=0, by=person("ada", "admin"))
    assert policy_of(TOOL).mode == "propose"


@pytest.mark.parametrize(
    "values",
    [
        {"resolver": "nobody"},
        {"mode": "always"},
        {"mode": "settle", "resolver": ""},
        {"settle_window_s": 1},
        {"settle_window_s": 7_200, "retention_s": 3_600},
        {"give_up_after_s": 10**9},
        {"recipient": "x" * 201},
        {"compensation": "a\x00b"},
        {"moves_money": "perhaps"},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused_and_changes_nothing(
    values: dict[str, Any], amy: User, provider: PaymentProvider, memory: RecordWriter
) -> None:
    configure(amy, provider)

    with pytest.raises(InvalidPolicy):
        save_policy(TOOL, values, seen_version=1, by=amy)
    assert policy_of(TOOL).version == 1


def test_a_change_of_the_resolver_asks_the_open_questions_anew(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    configure(amy, provider)
    ask(ref, ana)
    save_policy(TOOL, {"resolver": ""}, seen_version=1, by=amy)
    assert Inquiry.objects.get().due_at is None

    save_policy(TOOL, {"resolver": "payments"}, seen_version=2, by=amy)

    row = Inquiry.objects.get()
    assert row.due_at is not None
    assert row.due_at <= datetime.now(UTC)


# --- what nobody answered --------------------------------------------------------------------------------------------


def test_an_answer_that_did_not_come_takes_nothing_back(
    records: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(records)
    provider.pay("billing-7", 1)
    configure(amy, provider)
    ask(ref, ana)
    provider.status = 500
    unanswered = ask(ref, ana)

    assert unanswered is not None
    assert unanswered.outcome == "unknown"
    standing = standings_of([ref])[ref]
    assert (standing.outcome, standing.grade) == ("done", "exact")
    assert ref in refs_with_verdict("done")
    assert ref not in refs_with_verdict("unknown")
    against = find_contradiction(ref, "failed")
    assert against is not None
    assert against.needs_word
