"""Providers that call: who is let in, what a call makes due, and what an admin is shown once."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import stripe
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from actions.keys import action_key
from actions.queries import get_action
from actions.records import ActionRef
from console.models import Hook, Incident, Inquiry, StoredVerdict
from console.models.action_key import ActionKey
from console.services import hooks, inquiries, resolve
from console.services.asking import request_asking
from console.services.decide import DecisionRequest, decide
from console.services.hooks import SPARED, NewHook, make_hook, set_hook_secret
from console.services.incidents import close_incident
from console.stores import get_store
from tests.console.asking import PAYMENT, TOOL, PaymentProvider, configure, payment_provider
from tests.console.view_helpers import browser, words_of
from tests.recall_writer import RecallWriter, RecordWriter

pytestmark = pytest.mark.django_db

KEY = action_key("billing-7", 1)


@pytest.fixture
def provider(settings: Settings) -> Iterator[PaymentProvider]:
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        yield provider


@pytest.fixture
def hook(memory: RecordWriter, provider: PaymentProvider, amy: User) -> NewHook:
    """Of the resolver for payments, which may settle; nobody has paid."""
    configure(amy, provider, mode="settle")
    return make_hook("payments", "generic", by=amy)


def doubtful(records: RecordWriter) -> ActionRef:
    records.lease("billing-7", state="expired")
    return records.action("billing-7", 1, tool=TOOL, args=PAYMENT)


def failed(records: RecordWriter, by: User) -> ActionRef:
    ref = doubtful(records)
    decide(ref, DecisionRequest(outcome="failed", reason="the bank says no", decision_id=f"test-{uuid4()}"), by=by)
    return ref


def signed(body: bytes, secret: str, *, at: float | None = None) -> str:
    second = int(time.time() if at is None else at)
    return f"t={second},v1={hmac.new(secret.encode(), f'{second}.'.encode() + body, hashlib.sha256).hexdigest()}"


def call(hook: NewHook, said: Any, *, header: str = "X-Settle-Signature", signature: str | None = None, path: str = "") -> Any:
    """As a provider does: from elsewhere, without cookies."""
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    headers = {header: signed(body, hook.secret) if signature is None else signature, "Sec-Fetch-Site": "cross-site"}
    client = Client(enforce_csrf_checks=True)
    return client.post(path or hook.path, body, content_type="application/json", headers=headers)


def status_of(ref: ActionRef) -> str:
    action = get_action(get_store(ref.store), ref).action
    assert action is not None
    return action.status


def test_what_failed_and_is_there_after_all_becomes_one_incident_however_often_the_provider_calls(
    memory: RecordWriter, hook: NewHook, ana: User, provider: PaymentProvider
) -> None:
    ref = failed(memory, ana)
    provider.pay("billing-7", 1)

    for _ in range(2):
        assert call(hook, {"key": KEY}).status_code == 204
        resolve.ask(Inquiry.objects.get().pk)

    incident = Incident.objects.get()
    assert "written as failed" in incident.text
    assert status_of(ref) == "failed"
    close_incident(incident.pk, "refunded by hand", by=ana)
    assert call(hook, {"key": KEY}).status_code == 204
    resolve.ask(Inquiry.objects.get().pk)
    assert Incident.objects.count() == 1
    assert provider.times_asked(ref) == 1


def test_a_call_that_finds_nothing_does_not_stand_in_for_the_recheck_of_the_next_day(
    memory: RecordWriter, hook: NewHook, ana: User, provider: PaymentProvider
) -> None:
    ref = failed(memory, ana)
    call(hook, {"key": KEY})
    resolve.ask(Inquiry.objects.get().pk)

    assert provider.times_asked(ref) == 1
    assert not Incident.objects.exists()
    assert Inquiry.objects.get().recheck_done == ""


def test_an_open_question_is_due_at_once_and_the_provider_is_believed_only_by_asking(
    memory: RecordWriter, hook: NewHook, ana: User, amy: User, provider: PaymentProvider
) -> None:
    ref = doubtful(memory)
    assert inquiries.discover() == 1
    row = Inquiry.objects.get()
    assert resolve.ask(row.pk) is not None
    assert resolve.ask(row.pk) is None  # not due for a while

    answered_a_while_ago()
    assert call(hook, {"key": KEY, "status": "succeeded"}).status_code == 204
    told = resolve.ask(row.pk)
    assert told is not None
    assert (told.outcome, status_of(ref)) == ("unknown", "started")

    provider.pay("billing-7", 1)
    answered_a_while_ago()
    assert call(hook, {"key": KEY}).status_code == 204
    resolve.ask(row.pk)
    assert status_of(ref) == "done"


def test_a_call_that_is_sent_again_and_again_asks_once_in_some_seconds(
    memory: RecordWriter, hook: NewHook, ana: User, amy: User, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SPARED", timedelta(hours=1))  # however slow the machine is
    ref = doubtful(memory)
    inquiries.discover()
    row = Inquiry.objects.get()
    assert resolve.ask(row.pk) is not None

    for _ in range(4):
        assert call(hook, {"key": KEY}).status_code == 204
        assert resolve.ask(row.pk) is None

    row.refresh_from_db()
    assert provider.times_asked(ref) == 1
    assert row.due_at is not None
    assert timedelta(minutes=50) < row.due_at - timezone.now() <= timedelta(hours=1)


def answered_a_while_ago() -> None:
    StoredVerdict.objects.update(asked_at=timezone.now() - 2 * SPARED)


def test_stripes_own_signature_and_event_are_understood(memory: RecordWriter, hook: NewHook, amy: User) -> None:
    doubtful(memory)
    inquiries.discover()
    Inquiry.objects.update(due_at=None)
    new = make_hook("payments", "stripe", by=amy)
    set_hook_secret("payments", "whsec_0123456789abcdef", by=amy)
    body = json.dumps({"id": "evt_1", "object": "event", "data": {"object": {"metadata": {"idempotency_key": KEY}}}}).encode()
    signature = signed(body, "whsec_0123456789abcdef")
    stripe.Webhook.construct_event(body, signature, "whsec_0123456789abcdef")

    assert call(new, body, header="Stripe-Signature", signature=signature).status_code == 204

    assert Inquiry.objects.get().due_at is not None
    assert call(new, body, header="Stripe-Signature").status_code == 400  # the secret that was drawn is nobody's any more
    assert call(hook, {"key": KEY}).status_code == 404


def bad(hook: NewHook, body: bytes) -> dict[str, dict[str, Any]]:
    now = time.time()
    good = signed(body, hook.secret)
    second, _, mac = good.partition(",v1=")
    return {
        "unsigned": {"signature": ""},
        "by another secret": {"signature": signed(body, "another secret")},
        "of another body": {"signature": signed(b'{"key": ""}', hook.secret)},
        "stale": {"signature": signed(body, hook.secret, at=now - 301 - 5)},
        "of the future": {"signature": signed(body, hook.secret, at=now + 301 + 5)},
        "with two times": {"signature": f"t=1,{good}"},
        "without a time": {"signature": f"v1={mac}"},
        "of another scheme": {"signature": f"{second},v0={mac}"},
        "no hex": {"signature": f"{second},v1=é{mac[1:]}"},
        "in the other header": {"header": "Stripe-Signature"},
    }


@pytest.mark.parametrize("what", bad(NewHook(path="", secret=""), b""))
def test_what_is_not_signed_well_changes_nothing(memory: RecordWriter, hook: NewHook, ana: User, what: str) -> None:
    failed(memory, ana)
    body = json.dumps({"key": KEY}).encode()

    answer = call(hook, body, **bad(hook, body)[what])

    assert answer.status_code == 400
    assert answer["Content-Type"] == "text/plain"
    assert not Inquiry.objects.exists()
    assert Hook.objects.get().called_at is None


def test_unknown_addresses_long_bodies_and_other_methods_are_refused(
    memory: RecordWriter, hook: NewHook, amy: User, caplog: pytest.LogCaptureFixture
) -> None:
    answers: dict[int, Any] = {
        1: call(hook, {"key": KEY}, path=hook.path[:-1]),
        2: call(hook, {"key": KEY}, path=hook.path.replace("generic", "stripe")),
        3: call(hook, {"key": KEY}, path=hook.path.replace("generic", "nobody")),
        4: call(hook, b" " * (hooks.MAX_BYTES + 1)),
        5: Client().get(hook.path),
    }
    assert {number: answer.status_code for number, answer in answers.items()} == {1: 404, 2: 404, 3: 404, 4: 413, 5: 405}
    assert "a call of a hook was refused: 413" in caplog.text
    assert hook.path.rpartition("/")[2][:10] not in caplog.text
    hooks.remove_hook("payments", by=amy)
    assert call(hook, {"key": KEY}).status_code == 404


@pytest.mark.parametrize("said", [{"key": "0" * 32}, {"key": 7}, {"key": "\x00' OR 1=1"}, [], b"", b"\xff", b"[" * 100_000])
def test_a_good_signature_learns_nothing_about_what_is_here(memory: RecordWriter, hook: NewHook, ana: User, said: Any) -> None:
    failed(memory, ana)

    answer = call(hook, said)

    assert (answer.status_code, answer.content) == (204, b"")
    assert not Inquiry.objects.exists()
    assert Hook.objects.get().called_at is not None


def test_more_calls_than_anybody_needs_wait_for_the_next_minute(
    memory: RecordWriter, hook: NewHook, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(memory, ana)
    still = time.time()
    monkeypatch.setattr(hooks.time, "time", lambda: still)  # the minute does not turn
    now = int(still) // 60
    Hook.objects.update(minute=now, calls=hooks.MOST_PER_MINUTE)
    refused = call(hook, {"key": KEY})
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert not Inquiry.objects.exists()

    Hook.objects.update(minute=now - 1)
    assert call(hook, {"key": KEY}).status_code == 204


@pytest.mark.django_db(transaction=True)
def test_a_call_in_the_middle_of_a_question_is_not_lost(
    postgres: RecallWriter, provider: PaymentProvider, ana: User, amy: User
) -> None:
    configure(amy, provider)
    hook = make_hook("payments", "generic", by=amy)
    ref = doubtful(postgres)
    row = request_asking(ref, by=ana)
    provider.gate.clear()

    def ask() -> StoredVerdict | None:
        try:
            return resolve.ask(row.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        assert provider.waiting.acquire(timeout=60)
        assert call(hook, {"key": KEY}).status_code == 204
        provider.gate.set()
        asking.result(60)

    row.refresh_from_db()
    assert row.due_at is not None
    assert row.due_at <= timezone.now()
    provider.pay("billing-7", 1)
    told = resolve.ask(row.pk)
    assert told is not None
    assert told.outcome == "done"


def test_address_and_secret_are_shown_once_and_to_admins_alone(
    memory: RecordWriter, provider: PaymentProvider, amy: User, ana: User
) -> None:
    configure(amy, provider)
    client = browser(amy)
    refused = browser(ana).post("/resolvers/payments/hook/", {"do": "make", "provider": "generic"})
    assert refused.status_code == 403
    assert not Hook.objects.exists()

    made = client.post("/resolvers/payments/hook/", {"do": "make", "provider": "generic"})
    page = made.content.decode()
    path = "/hooks/generic/" + page.split("/hooks/generic/")[1].split("<")[0]
    secret = page.split('Signing secret</dt><dd class="mono">')[1].split("<")[0]

    assert made["Cache-Control"] == "no-store"
    assert call(NewHook(path=path, secret=secret), {"key": KEY}).status_code == 204
    row = Hook.objects.get()
    later = client.get("/resolvers/payments/").content.decode() + browser(ana).get("/resolvers/payments/").content.decode()
    for hidden in (path, secret):
        assert hidden not in later
    assert "set by amy" in words_of(later)
    assert secret.encode() not in bytes(row.secret)
    assert path.rpartition("/")[2] not in row.token_hash


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"do": "make", "provider": "pigeon"}, 422),
        ({"do": "secret", "hook_secret": "long enough, with spaces"}, 422),
        ({"do": "secret", "hook_secret": "whsec_0123456789abcdef"}, 409),
        ({"do": "dance"}, 422),
        ({}, 422),
    ],
)
def test_a_hook_that_cannot_be_is_refused_in_a_sentence(
    memory: RecordWriter, provider: PaymentProvider, amy: User, form: dict[str, str], status: int
) -> None:
    configure(amy, provider)

    answer = browser(amy).post("/resolvers/payments/hook/", form)

    assert answer.status_code == status
    assert "Nothing was changed." in words_of(answer.content.decode())
    assert not Hook.objects.exists()


@pytest.mark.parametrize("agent", ["billing-7", "a.b_c-9", "größe", "back\\slash\\x41", "it's"])
def test_the_database_finds_an_action_by_its_key_whatever_its_agent_is_called(db: None, agent: str) -> None:
    row = Inquiry.objects.create(store="main", agent=agent, seq=12, tool=TOOL)

    found = Inquiry.objects.alias(key=ActionKey()).filter(key=action_key(agent, 12))

    assert found.get() == row
    assert not Inquiry.objects.alias(key=ActionKey()).filter(key=action_key(agent, 1)).exists()


@pytest.mark.parametrize("is_second", [False, True], ids=["the first address", "a new one in its place"])
def test_a_form_that_is_sent_again_changes_neither_address_nor_secret(
    memory: RecordWriter, provider: PaymentProvider, amy: User, is_second: bool
) -> None:
    configure(amy, provider)
    if is_second:
        make_hook("payments", "generic", by=amy)
    client = browser(amy)
    form = {"do": "make", "provider": "generic", "seen_hook": hooks.hook_mark(hooks.find_hook("payments"))}

    made = client.post("/resolvers/payments/hook/", form)
    kept = Hook.objects.values_list("token_hash", "secret", "set_at").get()
    again = client.post("/resolvers/payments/hook/", form)

    assert (made.status_code, again.status_code) == (200, 409)
    assert "shown only once" in words_of(again.content.decode())
    assert "Copy both now" not in again.content.decode()
    assert Hook.objects.values_list("token_hash", "secret", "set_at").get() == kept
