"""Telling people: who hears what, once, without a word of an agent, at most one message a minute, and never at anybody's expense."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from actions.times import format_rfc3339, from_datetime
from console import tasks
from console.models import Channel, Decision, Event, Incident, Inquiry, Notice, NoticeState, StoredVerdict
from console.services import channels, notices
from console.services.channels import InvalidChannel, Quiet
from console.services.correct import CorrectionRequest, correct_end
from console.services.decide import decide
from console.services.deliver import as_column
from console.services.notices import announce, find
from console.services.notifications import compose, is_quiet, plain_tool, send_due
from console.services.policies import save_policy
from console.services.sealing import reseal_all
from local.processes import free_port
from tests.console.conftest import Cast
from tests.console.entries import console_entries
from tests.console.test_services_races import a_request
from tests.console.view_helpers import browser, text_of
from tests.console.workers import Worker, wait_for
from tests.hostile.corpus import CORPUS, Hostile
from tests.recall_writer import RecallWriter, RecordWriter
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

pytestmark = pytest.mark.django_db

ALL = [event.value for event in Event]
NEVER = Quiet()
NIGHT = Quiet.parse("22:00", "07:00", urgent_passes=True)
SECRET = {"amount": 900, "to": "IBAN-SECRET-77", "subject": "<b>hostile</b>"}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    notices.forget_looks()


@pytest.fixture
def slack(settings: Settings) -> Iterator[WebServer]:
    with serve(lambda asked, conversation: conversation.answer(200, b"ok", "text/plain")) as server:
        settings.RESOLVER_ALLOWED_HOSTS = (server.host,)
        settings.NOTIFY_WEBHOOK_S = 60.0
        yield server


@pytest.fixture
def channel(amy: User, slack: WebServer) -> Channel:
    return channels.add_webhook("ops", f"http://{slack.host}/T0/secret-part", ALL, NEVER, by=amy)


def heard(server: WebServer) -> list[str]:
    return [json.loads(asked.body)["text"] for asked in server.asked]


def pay(records: RecordWriter, agent: str, *, tool: str = "create_payment", minutes: int = 1, **more: str) -> None:
    at = format_rfc3339(from_datetime(timezone.now() - timedelta(minutes=minutes)))
    records.action(agent, 1, tool=tool, args=SECRET, started_at=at, **({"status": "unknown"} | more))


def told(channel: Channel) -> list[tuple[str, str]]:
    return sorted(Notice.objects.filter(channel=channel).values_list("event", "ref"))


def turn(channel: Channel) -> None:
    """Its minute is over."""
    Channel.objects.filter(pk=channel.pk).update(next_at=timezone.now())


# --- what is worth telling -------------------------------------------------------------------------------------------


def test_a_call_that_moves_money_is_told_once_without_its_arguments(
    records: RecordWriter, channel: Channel, slack: WebServer
) -> None:
    pay(records, "billing-7")
    pay(records, "mail-1", tool="send_email")
    pay(records, "billing-8", cls="idempotent")

    assert find() == 1
    notices.forget_looks()
    assert find() == 0
    assert send_due(channel.pk) == 1
    turn(channel)
    assert send_due(channel.pk) == 0

    (text,) = heard(slack)
    assert text.startswith(
        "Settle: a call that moves money is in doubt\n- a call that moves money is in doubt (create_payment): "
    )
    assert "/actions/main/billing-7/1/" in text
    assert "IBAN" not in text
    assert "900" not in text
    assert slack.asked[0].headers["content-type"] == "application/json"


def test_an_agent_whose_id_no_row_can_hold_is_told_of_and_keeps_nobody_from_hearing_of_the_others(
    records: RecordWriter, channel: Channel, slack: WebServer
) -> None:
    pay(records, "x" * 500)
    pay(records, "billing-7")

    assert find() == 2
    assert send_due(channel.pk) == 2
    assert len(heard(slack)) == 1


def test_a_call_whose_process_is_alive_is_no_news_until_it_dies(records: RecordWriter, channel: Channel) -> None:
    records.lease("billing-7", state="live")
    pay(records, "billing-7", status="started")
    assert find() == 0

    records.lease("billing-7", state="expired")

    assert find() == 1


@pytest.mark.parametrize(("minutes", "event"), [(60, ""), (195, "ageing"), (245, "overdue")])
def test_a_call_ages_at_four_fifths_and_at_all_of_four_hours(
    memory: RecordWriter, channel: Channel, minutes: int, event: str
) -> None:
    pay(memory, "m-1", tool="send_email", minutes=minutes)

    find()

    assert told(channel) == ([(event, "main/m-1/1")] if event else [])


def a_decision(by: User, **fields: Any) -> Decision:
    row = {"decision_id": "d-12345678", "store": "main", "agent": "billing-7", "seq": 1, "tool": "create_payment", "by": by}
    row |= {
        "outcome": "done",
        "reason": "IBAN-SECRET-77",
        "username": by.get_username(),
        "actor": "x",
        "claim": "c",
        "content_digest": "c",
    }
    return Decision.objects.create(**(row | {"state": "proposed"} | fields))


class Mailbox:
    """What a real SMTP server took."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], Message]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.taken.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 OK"


@pytest.fixture
def mailbox(settings: Settings) -> Iterator[Mailbox]:
    mailbox = Mailbox()
    server = Controller(mailbox, hostname="127.0.0.1", port=free_port(), ready_timeout=60)
    server.start()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
    yield mailbox
    server.stop()


def test_a_proposal_is_told_to_those_who_may_approve_it_but_not_to_who_made_it(
    memory: RecordWriter, person: Cast, mailbox: Mailbox
) -> None:
    people = {
        "ann": ("operator", "approver"),
        "app": ("approver",),
        "far": (("approver", "elsewhere", ""),),
        "ben": ("viewer",),
    }
    users = {name: person(name, *roles, email=f"{name}@example.com") for name, roles in people.items()}
    for user in users.values():
        channels.set_own_mail(user, ["approval"], NEVER, time_zone="UTC")
    a_decision(users["ann"])

    assert find() == 1

    (channel,) = Channel.objects.filter(notices__isnull=False)
    assert send_due(channel.pk) == 1
    ((to, sent),) = mailbox.taken
    assert (to, sent["Subject"]) == (["app@example.com"], "Settle: a decision waits for a second person")
    assert sent["Auto-Submitted"] == "auto-generated"
    assert "/actions/main/billing-7/1/" in str(sent.get_payload())
    assert "IBAN" not in str(sent)


def test_a_broken_glass_is_told_however_old_the_proposal_but_not_to_who_broke_it(memory: RecordWriter, person: Cast) -> None:
    users = {name: person(name, "operator", email=f"{name}@example.com") for name in ("ann", "ben")}
    for user in users.values():
        channels.set_own_mail(user, ["break_glass"], NEVER, time_zone="UTC")
    made = a_decision(users["ann"])
    Decision.objects.filter(pk=made.pk).update(created_at=timezone.now() - timedelta(days=30))
    assert find() == 0

    Decision.objects.filter(pk=made.pk).update(
        state="waiting", broke_glass="nobody is awake", broke_glass_by="ben", updated_at=timezone.now()
    )

    assert find() == 1
    (channel,) = Channel.objects.filter(notices__isnull=False)
    assert channel.user == users["ann"]
    assert find() == 0


def test_an_incident_is_told_with_the_address_of_its_page(memory: RecordWriter, channel: Channel, slack: WebServer) -> None:
    inquiry = Inquiry.objects.create(store="main", agent="m-1", seq=1, tool="send_email")
    verdict = StoredVerdict.objects.create(
        inquiry=inquiry,
        resolver="sent",
        version=1,
        policy_version=1,
        outcome="done",
        resolution="r",
        evidence="{}",
        asked_at=timezone.now(),
        claim="c",
    )
    incident = Incident.objects.create(store="main", agent="m-1", seq=1, tool="send_email", verdict=verdict, text="secret words")

    find()
    send_due(channel.pk)

    (text,) = heard(slack)
    assert f"/incidents/{incident.pk}/" in text
    assert "secret words" not in text


def test_a_person_hears_only_of_what_they_may_see(memory: RecordWriter, person: Cast) -> None:
    user = person("eve", ("viewer", "main", "refund_order"), email="eve@example.com")
    channels.set_own_mail(user, ["money"], NEVER, time_zone="UTC")
    pay(memory, "a-1")
    pay(memory, "b-1", tool="refund_order")

    find()

    assert [notice.agent for notice in Notice.objects.all()] == ["b-1"]


def test_where_nobody_wants_to_be_told_no_store_is_read(memory: RecordWriter, down: str, django_assert_num_queries: Any) -> None:
    pay(memory, "a-1")

    with django_assert_num_queries(1):
        assert find() == 0


def test_a_store_that_is_down_keeps_nobody_from_hearing_of_the_others(memory: RecordWriter, channel: Channel, down: str) -> None:
    pay(memory, "a-1")

    assert find() == 1


# --- one message a minute --------------------------------------------------------------------------------------------


def test_a_thousand_calls_at_once_are_one_message(memory: RecordWriter, channel: Channel, slack: WebServer) -> None:
    found = [
        Notice(channel=channel, event="money", ref=f"main/m-{n}/1", store="main", tool="create_payment") for n in range(1_000)
    ]
    Notice.objects.bulk_create(found)
    Notice.objects.create(channel=channel, event="incident", ref="incident-1", store="main", tool="t")

    assert send_due(channel.pk) == 1_001
    announce("money", "main/late/1", store="main", tool="create_payment")
    assert send_due(channel.pk) == 0

    (text,) = heard(slack)
    assert text.splitlines()[0] == "Settle: an incident: found after it was written as failed, and 1,000 more"
    assert "- 1,000 calls that move money are in doubt" in text
    assert len(text) < 500
    turn(channel)
    assert send_due(channel.pk) == 1
    assert len(slack.asked) == 2


def test_the_same_event_is_told_once_however_often_it_is_found(memory: RecordWriter, channel: Channel) -> None:
    for _ in range(3):
        announce("break_glass", "d-1", store="main", tool="t", agent="m-1", seq=1)

    assert told(channel) == [("break_glass", "d-1")]


# --- quiet hours -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "utc", "quiet"),
    [
        ("UTC", "22:00", True), ("UTC", "06:59", True), ("UTC", "07:00", False), ("UTC", "21:59", False),
        ("Asia/Tokyo", "13:00", True), ("Asia/Tokyo", "22:30", False), ("America/New_York", "03:30", True),
    ],
)  # fmt: skip
def test_quiet_hours_are_the_channels_own_and_reach_over_midnight(channel: Channel, zone: str, utc: str, quiet: bool) -> None:
    channel.quiet_from, channel.quiet_until, channel.time_zone = NIGHT.start, NIGHT.end, zone
    assert is_quiet(channel, datetime.fromisoformat(f"2026-01-15T{utc}:00+00:00")) is quiet


@pytest.mark.parametrize("passes", [True, False])
def test_what_happens_at_night_is_told_in_the_morning_as_one_message(
    memory: RecordWriter, amy: User, slack: WebServer, passes: bool
) -> None:
    quiet = Quiet.parse("22:00", "07:00", urgent_passes=passes)
    channel = channels.add_webhook("ops", f"http://{slack.host}/", ALL, quiet, by=amy)
    Channel.objects.update(next_at=datetime(2026, 1, 1, tzinfo=UTC))
    for number in range(7):
        announce("money", f"main/m-{number}/1", store="main", tool="create_payment")
    announce("incident", "incident-1", store="main", tool="send_email")
    night, morning = (datetime(2026, 1, 15, hour, 30, tzinfo=UTC) for hour in (3, 7))

    assert send_due(channel.pk, now=night) == (1 if passes else 0)
    assert send_due(channel.pk, now=morning) == (7 if passes else 8)

    assert len(slack.asked) == (2 if passes else 1)
    assert "7 calls that move money" in heard(slack)[-1]


# --- channels that fail ----------------------------------------------------------------------------------------------


def refuses(asked: Asked, conversation: Conversation) -> None:
    conversation.answer(500)


def hangs(asked: Asked, conversation: Conversation) -> None:
    conversation.hang()


def redirects(asked: Asked, conversation: Conversation) -> None:
    conversation.answer(302, Location="http://169.254.169.254/")


@pytest.mark.parametrize(
    ("answer", "says"),
    [(refuses, "status 500"), (hangs, "took longer than"), (redirects, "redirects (302), which is not followed")],
)
def test_what_was_not_taken_is_sent_again_later_and_later_and_the_page_says_so(
    memory: RecordWriter, channel: Channel, slack: WebServer, amy: User, settings: Settings, answer: Any, says: str
) -> None:
    patient, settings.NOTIFY_WEBHOOK_S = settings.NOTIFY_WEBHOOK_S, 0.3 if answer is hangs else settings.NOTIFY_WEBHOOK_S
    slack.answer = answer
    announce("money", "main/m-1/1", store="main", tool="create_payment", agent="m-1", seq=1)
    pauses = []
    for _ in range(3):
        turn(channel)
        assert send_due(channel.pk) == 0
        pauses.append(round((Channel.objects.get().next_at - timezone.now()).total_seconds() / 60))
    assert pauses == [1, 2, 4]
    page = text_of(browser(amy).get("/notifications/").content.decode())
    assert says in page
    assert "1 waiting" in page
    assert "secret-part" not in page

    slack.answer, settings.NOTIFY_WEBHOOK_S = lambda asked, conversation: conversation.answer(204), patient
    turn(channel)
    assert send_due(channel.pk) == 1

    assert Channel.objects.get().problem == ""
    assert "not taken" not in browser(amy).get("/notifications/").content.decode()


def test_after_a_day_it_is_given_up_seen_and_sent_once_more_when_an_admin_says_so(
    memory: RecordWriter, channel: Channel, slack: WebServer, amy: User
) -> None:
    slack.answer = refuses
    announce("money", "main/m-1/1", store="main", tool="create_payment")
    Notice.objects.update(found_at=timezone.now() - timedelta(hours=25))

    send_due(channel.pk)

    assert Notice.objects.get().state == NoticeState.GIVEN_UP
    assert "1 given up after a day of trying" in text_of(browser(amy).get("/notifications/").content.decode())
    slack.answer = lambda asked, conversation: conversation.answer(200)
    browser(amy).post(f"/notifications/{channel.pk}/", {"do": "again"})
    assert send_due(channel.pk) == 1


def test_one_hanging_channel_holds_up_no_other_and_each_has_a_task_of_its_own(
    memory: RecordWriter, channel: Channel, slack: WebServer, amy: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient, settings.NOTIFY_WEBHOOK_S = settings.NOTIFY_WEBHOOK_S, 0.3
    slack.answer = lambda asked, conversation: conversation.hang() if asked.target == "/slow" else conversation.answer(200)
    slow = channels.add_webhook("slow", f"http://{slack.host}/slow", ALL, NEVER, by=amy)
    sent: list[int] = []
    monkeypatch.setattr(tasks.notify, "delay", sent.append)
    pay(memory, "a-1")

    tasks.sweep_notices()
    assert sent == [channel.pk, slow.pk]
    assert send_due(slow.pk) == 0
    settings.NOTIFY_WEBHOOK_S = patient
    assert send_due(channel.pk) == 1


def test_who_died_while_sending_is_followed_by_another_and_two_never_send_at_once(
    memory: RecordWriter, channel: Channel, slack: WebServer
) -> None:
    announce("money", "main/m-1/1", store="main", tool="create_payment")
    claimed_by_the_dead = timezone.now() + timedelta(minutes=2)
    Channel.objects.update(next_at=claimed_by_the_dead)

    assert send_due(channel.pk) == 0
    assert slack.asked == []

    assert send_due(channel.pk, now=claimed_by_the_dead + timedelta(seconds=1)) == 1


def test_beat_finds_and_a_worker_tells(worker: Worker, postgres: RecallWriter, amy: User, slack: WebServer) -> None:
    channels.add_webhook("ops", f"http://{slack.host}/T0", ALL, NEVER, by=amy)
    pay(postgres, "billing-7")

    worker(RESOLVER_ALLOWED_HOSTS=slack.host)

    wait_for(lambda: Notice.objects.filter(state=NoticeState.SENT).exists(), "the notice was sent")
    (text,) = heard(slack)
    assert "/actions/main/billing-7/1/" in text


@pytest.mark.django_db(transaction=True)
def test_of_two_workers_at_once_one_sends(memory: RecordWriter, channel: Channel, slack: WebServer) -> None:
    announce("money", "main/m-1/1", store="main", tool="create_payment")

    def work(pk: int) -> int:
        try:
            return send_due(pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as workers:
        sent = sorted(workers.map(work, [channel.pk] * 4))

    assert sent == [0, 0, 0, 1]
    assert len(slack.asked) == 1


@pytest.mark.parametrize(
    "address",
    ["http://hooks.example.com/x", "https://127.0.0.1/x", "https://169.254.169.254/latest", "https://10.0.0.1/", "https://[::1]/",
     "ftp://example.com/", "https://user:pw@example.com/", "", "javascript:alert(1)", "http://127.0.0.1:{port}1/x"],
)  # fmt: skip
def test_an_address_that_may_not_be_asked_makes_no_channel(
    memory: RecordWriter, amy: User, slack: WebServer, address: str
) -> None:
    form = {"name": "ops", "address": address.format(port=slack.port), "event": ["money"]}

    answer = browser(amy).post("/notifications/", form)

    assert answer.status_code == 422
    assert "Nothing was added" in answer.content.decode()
    assert not Channel.objects.exists()
    assert slack.asked == []


def test_a_channel_is_told_nothing_when_its_name_leads_elsewhere_later(
    memory: RecordWriter, amy: User, settings: Settings
) -> None:
    channel = channels.add_webhook("ops", "https://localhost.example.invalid/x", ALL, NEVER, by=amy)
    announce("money", "main/m-1/1", store="main", tool="t")

    assert send_due(channel.pk) == 0

    assert "has no address" in Channel.objects.get().problem


# --- tests, secrets, texts -------------------------------------------------------------------------------------------


def test_a_test_says_that_it_is_one_and_comes_not_twice_at_once(
    memory: RecordWriter, channel: Channel, slack: WebServer, amy: User
) -> None:
    admin = browser(amy)

    assert admin.post(f"/notifications/{channel.pk}/", {"do": "test"})["Location"] == f"/notifications/?tested={channel.pk}"
    assert admin.post(f"/notifications/{channel.pk}/", {"do": "test"}).status_code == 422

    (text,) = heard(slack)
    assert text.startswith("Settle: a test\nThis is a test that amy asked for. Nothing happened.")


def test_the_address_is_kept_encrypted_and_follows_a_rotation(
    memory: RecordWriter, channel: Channel, slack: WebServer, settings: Settings
) -> None:
    assert b"secret-part" not in bytes(Channel.objects.get().address)
    settings.SECRETS_KEYS = ("YW5vdGhlci1rZXktb2YtMzItYnl0ZXMtZm9yLXRlc3Q=", *settings.SECRETS_KEYS)
    assert reseal_all() == (1, ())
    settings.SECRETS_KEYS = settings.SECRETS_KEYS[:1]
    announce("money", "r", store="main", tool="t")

    assert send_due(channel.pk) == 1

    assert slack.asked[0].target == "/T0/secret-part"


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda one: one.name)
def test_nothing_that_an_agent_wrote_is_ever_sent(channel: Channel, hostile: Hostile) -> None:
    wrote = hostile.text if hostile.args is None else hostile.args
    said = compose([Notice(channel=channel, event="money", ref="r", store="main", tool=as_column(wrote), agent=wrote, seq=1)])

    assert said.subject == "Settle: a call that moves money is in doubt"
    assert "(a tool)" in said.text
    assert said.text.isascii()
    for never in (*hostile.never, *hostile.secrets):
        assert never not in said.text


@pytest.mark.parametrize(
    ("tool", "shown"), [("create_payment", "create_payment"), ("sk_live_51HxAAAAAAAAAAAAAAAAAAAA", "a tool"), ("a b", "a tool")]
)
def test_only_a_plain_name_of_a_tool_is_told(tool: str, shown: str) -> None:
    assert plain_tool(tool) == shown


def test_mail_is_for_who_has_an_address_and_stops_when_nothing_is_chosen(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    refused = client.post("/settings/mail/", {"event": ["money"], "urgent_passes": "yes"})
    assert refused.status_code == 422
    assert "has no mail address" in refused.content.decode()
    User.objects.filter(pk=ana.pk).update(email="ana@example.com")

    client.post("/settings/mail/", {"event": ["money", "bogus"], "quiet_from": "22:00", "quiet_until": "07:00"})

    kept = Channel.objects.get(user=ana)
    assert (kept.events, str(kept.quiet_from), kept.urgent_passes) == (["money"], "22:00:00", False)
    assert client.post("/settings/mail/", {"event": ["money"], "quiet_from": "22:00"}).status_code == 422
    assert client.post("/settings/mail/", {"do": "test"})["Location"] == "/settings/?saved=test#mail"
    assert [(one.to, one.subject) for one in mail.outbox] == [(["ana@example.com"], "Settle: a test")]
    client.post("/settings/mail/", {})
    assert not Channel.objects.exists()


def test_nobody_tests_the_mail_of_somebody_else(memory: RecordWriter, person: Cast, ana: User, amy: User) -> None:
    eve = person("eve", "viewer", email="eve@example.com")
    channels.set_own_mail(eve, ["money"], NEVER, time_zone="UTC")
    pk = Channel.objects.get().pk

    assert browser(amy).post(f"/notifications/{pk}/", {"do": "test"}).status_code == 422
    assert browser(ana).post(f"/notifications/{pk}/", {"do": "test"}).status_code == 403
    browser(amy).post(f"/notifications/{pk}/", {"do": "remove"})

    assert mail.outbox == []
    assert Channel.objects.count() == 1


@pytest.mark.parametrize("trouble", ["nobody listens", "refuses", "hangs"])
def test_a_mail_server_that_does_not_take_it_is_a_line_and_it_is_sent_again(
    memory: RecordWriter, person: Cast, settings: Settings, trouble: str
) -> None:
    eve = person("eve", "viewer", email="eve@example.com")
    channels.set_own_mail(eve, ["money"], NEVER, time_zone="UTC")
    channel = Channel.objects.get()
    announce("money", "r", store="main", tool="t")
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_TIMEOUT = 0.3
    answers = {"refuses": b"554 no\r\n", "hangs": b""}

    with smtp_that_says(answers.get(trouble, b"")) as port:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1 if trouble == "nobody listens" else port
        assert send_due(channel.pk) == 0

    assert "mail server" in Channel.objects.get().problem
    assert Notice.objects.get().state == NoticeState.DUE


@contextmanager
def smtp_that_says(greeting: bytes) -> Iterator[int]:
    """A server that greets so, and hangs where it greets with nothing."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                if greeting:
                    connection.sendall(greeting)
                over.wait(5)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_quiet_hours_that_are_none_are_refused() -> None:
    for start, end in (("22:00", ""), ("x", "y"), ("07:00", "07:00"), ("25:00", "07:00")):
        with pytest.raises(InvalidChannel):
            Quiet.parse(start, end, urgent_passes=True)


# --- names, and what is forgotten ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ops", " OPS "])
def test_two_webhooks_are_never_called_alike(channel: Channel, amy: User, slack: WebServer, name: str) -> None:
    entries = len(console_entries("channel_changed"))
    answer = browser(amy).post("/notifications/", {"name": name, "address": f"http://{slack.host}/T1/x", "event": "money"})

    assert answer.status_code == 422
    assert "a webhook is called so already" in text_of(answer.content.decode())
    assert list(Channel.objects.values_list("name", flat=True)) == ["ops"]
    assert len(console_entries("channel_changed")) == entries


def test_mails_have_no_name_and_any_number_of_people_get_them(person: Cast) -> None:
    for name in ("eve", "fay"):
        channels.set_own_mail(person(name, "viewer", email=f"{name}@example.com"), ["money"], NEVER, time_zone="UTC")

    assert Channel.objects.count() == 2


def test_whom_we_told_long_ago_is_forgotten_by_the_sweep_and_what_is_due_is_not(channel: Channel, memory: RecordWriter) -> None:
    old, young = (timezone.now() - notices.KEPT - timedelta(days=days) for days in (1, -1))
    for state, at in (("sent", old), ("given_up", old), ("sent", young), ("given_up", young), ("due", None)):
        Notice.objects.create(channel=channel, event="money", ref=f"{state} {at}", state=state, done_at=at)
    Notice.objects.update(found_at=old)

    tasks.recheck_failed()

    assert sorted(Notice.objects.values_list("state", flat=True)) == ["due", "given_up", "sent"]
    assert not Notice.objects.filter(done_at=old).exists()


def test_a_correction_that_waits_is_told_to_those_who_may_approve_it_and_not_to_its_proposer(
    memory: RecordWriter, channel: Channel, ana: User, amy: User, person: Cast
) -> None:
    both = person("both", "operator", "approver", email="both@example.com")
    cleo = person("cleo", "approver", email="cleo@example.com")
    for user in (both, cleo):
        channels.set_own_mail(user, ["approval"], NEVER, time_zone="UTC")
    ref = memory.action("m-1", 1, tool="create_payment")
    decide(ref, a_request("done"), by=ana)
    save_policy("create_payment", {"second_person_when": "true"}, seen_version=0, by=amy)
    row = correct_end(
        ref, CorrectionRequest(outcome="failed", reason="not there", correction_id="correction-1"), by=both
    ).correction

    find()

    assert row is not None
    heard_by = Notice.objects.filter(event="approval", ref=row.correction_id).values_list("channel__user__username", flat=True)
    assert sorted(heard_by, key=str) == [None, "cleo"]
