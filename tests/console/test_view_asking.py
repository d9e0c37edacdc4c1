"""Asking about several actions in one gesture: the ticked ones of the queue, and what one agent left open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from actions.errors import StoreUnavailable
from actions.records import ActionRef
from actions.store.memory import MemoryStore
from console.models import Inquiry, Pace, StoredVerdict
from console.services import resolve
from console.services.asking import MAX_ASKED_AT_ONCE, QUEUED, open_calls_of, request_asking, request_asking_many
from console.stores import get_store
from tests.console.asking import PaymentProvider, configure, define, payment_provider
from tests.console.conftest import Cast, MemoryWriter
from tests.console.test_view_world import NASTY
from tests.console.view_helpers import HTMX, browser, path_of, words_of
from tests.console.workers import wait_until_somebody_waits_for_us
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Settings) -> Iterator[PaymentProvider]:
    with payment_provider() as provider:
        settings.RESOLVER_ALLOWED_HOSTS = (provider.host,)
        yield provider


@pytest.fixture
def payments(memory: RecordWriter, amy: User, provider: PaymentProvider) -> list[ActionRef]:
    """Three payments in doubt whose provider can be asked."""
    configure(amy, provider)
    return [payment(memory, f"billing-{n}") for n in range(3)]


def payment(records: RecordWriter, agent: str, seq: int = 1, **fields: str) -> ActionRef:
    records.lease(agent)
    args = {"amount": 120, "currency": "EUR", "to": "ACME GmbH", "reference": "R-7"}
    return records.action(agent, seq, tool="create_payment", args=args, **fields)


def ask(client: Client, *refs: object, **headers: str) -> tuple[int, str]:
    answer = client.post("/asking/", {"ref": [str(ref) for ref in refs]}, headers=headers or HTMX)
    return answer.status_code, answer.content.decode()


def boxes(html: str) -> dict[str, str]:
    """The boxes of a queue by their action, as written."""
    return {found[1]: found[0] for found in re.findall(r'(<input type="checkbox" name="ref" value="([^"]*)"[^>]*>)', html)}


def due() -> set[ActionRef]:
    return {row.ref for row in Inquiry.objects.filter(due_at__isnull=False)}


def work() -> None:
    """What a worker does with all that is due."""
    for row in Inquiry.objects.filter(due_at__isnull=False):
        Pace.objects.all().delete()
        resolve.ask(row.pk)


# --- the boxes -------------------------------------------------------------------------------------------------------


def test_a_row_that_can_be_asked_about_has_a_box_for_those_who_may_settle_it(
    memory: RecordWriter, ana: User, ben: User, dot: User
) -> None:
    email, ticket = memory.action("m-1", 1), memory.action("m-1", 2, tool="open_ticket")
    memory.action("m-2", 1, status="done")
    memory.action("m-2", 2, cls="pure")
    memory.action("m-2", 3, body="{")
    everything = "/?state=any&class=any"

    ticked = boxes(browser(ana).get(f"{everything}&select=all").content.decode())

    assert set(boxes(browser(ana).get(everything).content.decode())) == {str(email), str(ticket)} == set(ticked)
    assert set(boxes(browser(dot).get(everything).content.decode())) == {str(ticket)}
    assert all(" checked" in box and 'aria-labelledby="pick-word what-' in box for box in ticked.values())
    assert " checked" not in "".join(boxes(browser(ana).get(everything).content.decode()).values())
    seen_by_ben = browser(ben).get(everything).content.decode()
    assert boxes(seen_by_ben) == {}
    assert 'id="selection' not in seen_by_ben


# --- the selected ----------------------------------------------------------------------------------------------------


def test_the_selected_are_asked_about_and_of_each_other_one_it_is_said_why_not(
    payments: list[ActionRef], memory: RecordWriter, ana: User
) -> None:
    email, ended = memory.action("m-1", 1), payment(memory, "billing-9", status="done")
    gone = ActionRef("main", "nobody", 7)

    status, html = ask(browser(ana), payments[0], email, ended, gone, payments[1])
    said = words_of(html)

    assert status == 202
    assert "<html" not in html
    assert "2 of the selected calls are being asked about, 3 are not." in said
    assert said.count("asking payments …") == 2
    assert "no resolver is configured for send_email" in said
    assert "it has ended already: done" in said
    assert "main/nobody/7 not found" in said
    assert re.findall(r'data-asked="([^"]*)"', html) == [str(payments[0]), str(payments[1])]
    assert due() == {payments[0], payments[1]}
    assert set(Inquiry.objects.values_list("asked_for", flat=True)) == {"ana"}


def test_without_javascript_the_answer_is_a_page_with_the_way_back(payments: list[ActionRef], ana: User) -> None:
    status, html = ask(browser(ana), payments[0], accept="text/html")

    assert status == 202
    assert "<html" in html
    assert 'href="/"' in html
    assert f'href="{path_of(payments[0])}"' in html
    assert browser(ana).get("/asking/")["Location"] == "/"
    assert due() == {payments[0]}


def test_nothing_selected_and_more_than_may_be_at_a_time_ask_nothing(payments: list[ActionRef], ana: User) -> None:
    too_many = [payments[0], *(f"main/m/{n}" for n in range(1, MAX_ASKED_AT_ONCE + 1))]

    for refs, why in (((), "Select at least one action."), (too_many, "201 are selected; at most 200")):
        for headers in ({}, HTMX):
            answer = browser(ana).post("/asking/", {"ref": [str(ref) for ref in refs]}, headers=headers)
            assert answer.status_code == 422
            assert f"Nobody was asked. {why}" in words_of(answer.content.decode())
    assert not Inquiry.objects.exists()


def test_what_is_not_yours_to_see_or_settle_is_as_absent_as_what_does_not_exist(
    payments: list[ActionRef], memory: RecordWriter, ben: User, amy: User, dot: User, person: Cast
) -> None:
    ticket = memory.action("t-1", 1, tool="open_ticket", args={"title": "Secret"})
    configured = path_of(payments[0])
    half = person("eli", "viewer", ("operator", "main", "open_ticket"))

    for user in (dot, half):
        status, html = ask(browser(user), payments[0], "main/billing-0/99", "elsewhere/billing-0/1", ticket)
        said = words_of(html)
        assert status == 409
        assert said.count("not found") == 3
        assert "no resolver is configured for open_ticket" in said
        assert "ACME" not in html
        assert f'href="{configured}"' not in html
    for user in (ben, amy):
        assert ask(browser(user), payments[0])[0] == 403
    assert not Inquiry.objects.exists()
    with pytest.raises(PermissionDenied):
        request_asking(payments[0], by=half)


HOSTILE = {
    "empty": "",
    "slash": "/",
    "short": "main/m-1",
    "zero": "main/m-1/0",
    "negative": "main/m-1/-1",
    "long": "main/m-1/1/",
    "dots": "main/../1",
    "other-digits": "main/m-1/٣",
    "huge": "main/m-1/" + "9" * 40,
    "nul": "a\x00b/c/1",
    "line-feed": "main/m-1/1\n",
    "sql": "main/'; DROP TABLE x;--/1",
    "markup": NASTY,
    "endless": "main/" + "x" * 4000 + "/1",
    "surrogate": "main/\ud800/1",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_reference_names_nothing_and_stops_no_other(payments: list[ActionRef], ana: User, text: str) -> None:
    sent = text.encode("utf-8", "surrogatepass")

    answer = browser(ana).post("/asking/", {"ref": [sent, str(payments[0])]}, headers=HTMX)
    html = answer.content.decode()

    assert answer.status_code == 202
    assert "1 of the selected calls is being asked about, 1 is not." in words_of(html)
    assert "<script" not in html
    assert "<a hx-get" not in html
    assert len(html) < 4_000
    assert due() == {payments[0]}


def test_only_a_signed_in_page_of_ours_may_ask(payments: list[ActionRef], ana: User) -> None:
    client = browser(ana, enforce_csrf_checks=True)

    assert client.post("/asking/", {"ref": str(payments[0])}).status_code == 403
    assert browser().post("/asking/", {"ref": str(payments[0])}).status_code == 302
    assert not Inquiry.objects.exists()


def test_the_same_one_ticked_twice_and_the_same_form_sent_twice_ask_once(
    payments: list[ActionRef], ana: User, bea: User, amy: User, provider: PaymentProvider
) -> None:
    one, other = payments[:2]

    first = ask(browser(ana), one, one, other)[1]
    before_any_answer = ask(browser(bea), other, one)[1]
    work()
    after_it = ask(browser(ana), one, other)
    work()

    assert "2 of the selected calls are being asked about." in words_of(first)
    assert "2 of the selected calls are being asked about." in words_of(before_any_answer)
    assert after_it[0] == 202
    assert "0 of the selected calls are being asked about, 2 were answered a moment ago." in words_of(after_it[1])
    assert [provider.times_asked(ref) for ref in payments] == [1, 1, 0]
    define(amy, provider, per_minute=3_000)
    ask(browser(ana), one)
    work()
    assert provider.times_asked(one) == 2  # by another version of the resolver: another question
    assert StoredVerdict.objects.count() == 3


def test_a_store_that_does_not_answer_is_waited_for_once_and_can_be_asked_again(
    flaky: MemoryWriter, ana: User, amy: User, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(amy, provider)
    refs = [payment(flaky, f"billing-{n}") for n in range(3)]
    reads = []

    def down(store: MemoryStore, agent: str, seq: int) -> None:
        reads.append(seq)
        raise StoreUnavailable("main", "password of postgres://u:secret@host refused")

    monkeypatch.setattr(type(get_store("main")), "get_action", down)

    status, html = ask(browser(ana), *refs, accept="text/html")

    assert status == 409
    assert words_of(html).count("its store does not answer") == 3
    assert "secret" not in html
    assert html.count('type="hidden" name="ref"') == 3
    assert len(reads) == 1
    assert not Inquiry.objects.exists()


def test_a_bulk_request_is_the_same_question_as_a_single_one(payments: list[ActionRef], ana: User) -> None:
    single = request_asking(payments[0], by=ana)
    (outcome,) = request_asking_many([payments[1]], by=ana)

    assert outcome.inquiry is not None
    for name in ("tool", "resolver", "asked_for", "problem", "given_up_at", "asking_until"):
        assert getattr(single, name) == getattr(outcome.inquiry, name)
    assert single.queued_until
    assert single.due_at
    assert single.queued_until - single.due_at == QUEUED


# --- what one agent left open ----------------------------------------------------------------------------------------


def test_all_open_calls_of_an_agent_are_offered_on_an_action_of_it_and_older_ones_are_not_forgotten(
    payments: list[ActionRef], memory: RecordWriter, ana: User, ben: User, dot: User
) -> None:
    first = payment(memory, "busy", 1)
    for seq in range(2, 60):
        memory.action("busy", seq, status="done")
    last = payment(memory, "busy", 60)
    memory.action("busy", 61, cls="pure")
    memory.action("busy", 62, body="{")
    button = "Ask about all 2 open calls of this agent"

    assert button in words_of(browser(ana).get(path_of(last)).content.decode())
    assert "of this agent" not in words_of(browser(ana).get(path_of(payments[0])).content.decode())
    assert "of this agent" not in words_of(browser(ana).get(path_of(ActionRef("main", "busy", 2))).content.decode())
    assert button not in words_of(browser(ben).get(path_of(last)).content.decode())
    assert open_calls_of("busy", "main", by=dot) == ()

    said = words_of(browser(ana).post("/agents/main/busy/ask/", headers=HTMX).content.decode())

    assert "2 of its open calls are being asked about." in said
    assert due() == {first, last}


# --- at the same moment ----------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_gestures_over_the_same_actions_at_once_and_while_an_answer_comes_ask_once(
    memory: RecordWriter, ana: User, bea: User, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider)
    refs = [payment(memory, f"billing-{n}") for n in range(6)]
    slow = request_asking(refs[0], by=ana)
    provider.gate.clear()

    def alone(work: Callable[[], Any]) -> Any:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(5) as threads:
        answer = threads.submit(alone, lambda: resolve.ask(slow.pk))
        assert provider.waiting.acquire(timeout=60)
        pressed = [
            threads.submit(alone, lambda user=user, order=order: request_asking_many(refs[::order], by=user))
            for user, order in ((ana, 1), (bea, -1), (ana, -1), (bea, 1))
        ]
        outcomes = [one.result(timeout=60) for one in pressed]
        provider.gate.set()
        assert answer.result(timeout=60) is not None
    work()

    assert all(one.inquiry for gesture in outcomes for one in gesture)
    assert [provider.times_asked(ref) for ref in refs] == [1] * 6
    assert Inquiry.objects.count() == StoredVerdict.objects.count() == 6


def keep_an_answer(row: Inquiry) -> None:
    """What a worker commits with the row locked."""
    row.verdicts.create(
        resolver="payments",
        version=1,
        policy_version=1,
        outcome="unknown",
        resolution="not yet",
        evidence="{}",
        asked_at=timezone.now(),
        claim="",
    )
    Inquiry.objects.filter(pk=row.pk).update(due_at=None)


@pytest.mark.django_db(transaction=True)
def test_an_answer_that_is_kept_while_the_gesture_waits_for_its_row_is_not_asked_for_again(
    memory: RecordWriter, ana: User, amy: User, provider: PaymentProvider
) -> None:
    configure(amy, provider)
    ref = payment(memory, "billing-7")
    row = request_asking(ref, by=ana)

    def press() -> Any:
        try:
            return request_asking_many([ref], by=ana)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            Inquiry.objects.select_for_update().get(pk=row.pk)
            pressed = threads.submit(press)
            wait_until_somebody_waits_for_us()
            keep_an_answer(row)
        (outcome,) = pressed.result(timeout=60)

    assert outcome.inquiry is None
    assert outcome.answered is not None
    row.refresh_from_db()
    assert row.due_at is None
