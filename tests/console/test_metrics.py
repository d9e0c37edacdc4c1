"""Numbers for programs: who may read them, what they hold after gestures, and that nothing of an agent's text is in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from actions.resolvers.base import Reply
from console import tasks, urls
from console.models import CheckpointDelivery, Decision, Inquiry, StoredCheckpoint, StoreLook, Sweep, Tally, Verification
from console.schedule import SCHEDULE
from console.services import resolve, tallies
from console.services.asking import request_asking
from console.services.looks import look_at_stores
from console.services.tokens import create_agent_token, create_user_token
from tests.console import own_resolver as world
from tests.console.conftest import Api, Cast
from tests.console.test_entry_points import pages
from tests.console.view_helpers import browser
from tests.hostile.corpus import CORPUS
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


TABLES = {"settle_audit_entries", "settle_audit_head", "settle_new"}
"""What the page of operations names besides, which are no numbers."""


class Numbers:
    """Every number by its name and the values of its labels, in whatever order."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self._found = {(one.name, frozenset(one.labels.values())): one.value for family in families for one in family.samples}

    def __getitem__(self, key: str | tuple[str, ...]) -> float:
        name, *labels = (key,) if isinstance(key, str) else key
        return self._found[name, frozenset(labels)]

    def of(self, name: str, *common: str) -> dict[str, float]:
        """All numbers of one name, by what is left of its labels without these."""
        return {"/".join(sorted(labels - set(common))): value for (one, labels), value in self._found.items() if one == name}


def scrape(user: User) -> Numbers:
    answer = asked(create_user_token(user))
    assert answer.status_code == 200, answer.content[:2_000]
    return Numbers(answer.content.decode())


def asked(token: str) -> Any:
    return Client().get("/metrics", headers={"Authorization": f"Bearer {token}"})


def test_who_may_read_everything_may_and_nobody_else(memory: RecordWriter, ben: User, cyd: User, dot: User) -> None:
    assert Client().get("/metrics").status_code == 401
    assert asked("settle_wrong").status_code == 401
    assert browser(ben).get("/metrics").status_code == 401  # a session is no token
    assert asked(create_user_token(ben)).status_code == 200
    refused = [create_user_token(cyd), create_user_token(dot), create_agent_token("main", "billing-7")]
    for answer in map(asked, refused):
        assert answer.status_code == 403
        assert answer.json()["error"] == "forbidden"
        assert b"settle_" not in answer.content
    assert Client().post("/metrics").status_code == 405


def test_without_a_database_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OperationalError("connection to 10.0.0.7 refused for user console")

    monkeypatch.setattr(connection, "cursor", gone)
    answer = asked("settle_any")

    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert "10.0.0.7" not in answer.content.decode()


def test_what_the_page_of_operations_alerts_on_is_there_under_exactly_that_name(ana: User) -> None:
    said = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    told = asked(create_user_token(ana)).content.decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told, re.MULTILINE))
    parts = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    there = {f"{name}{end}" for name, kind in types.items() for end in parts[kind]}

    named = set(re.findall(r"\bsettle_[a-z_]+[a-z]\b", said)) - TABLES
    assert len(named) >= 20
    assert named - there == set()
    (row,) = (line for line in said.splitlines() if line.startswith("| `settle_sweep_age_seconds"))
    assert set(re.findall(r"[`\"]([a-z]+)[`\"]", row)) >= set(SCHEDULE)


def test_gestures_are_counted(memory: RecordWriter, ana: User, ben: User, api: Callable[[User], Api]) -> None:
    for seq in (1, 2):
        memory.action("billing-7", seq)
    memory.lease("agent-2", state="live")
    memory.action("agent-2", 1)
    for agent, seq in (("billing-7", 1), ("billing-7", 2), ("agent-2", 1)):
        body = {"outcome": "done", "reason": "seen", "decision_id": f"d-{agent}-{seq}"}
        api(ana).post(f"actions/main/{agent}/{seq}/decision", body)
    api(ben).post("actions/main/billing-7/1/decision", {"outcome": "done", "reason": "seen", "decision_id": "d-12345678"})

    found = scrape(ana)

    assert found["settle_decisions_total", "written", "done"] == 2
    assert found["settle_decisions_pending", "waiting", "done"] == 1
    assert found["settle_settle_seconds_count", "main"] == 2
    assert found["settle_settle_seconds_bucket", "main", "+Inf"] == 2
    assert found["settle_settle_seconds_sum", "main"] > 0
    assert found["settle_refusals_total", "forbidden"] == 1
    assert found["settle_web_request_seconds_count", "POST", "/api/v1/actions/<store>/<agent>/<int:seq>/decision", "201"] >= 2
    assert found["settle_web_listeners"] == 0
    assert found["settle_web_process_resident_memory_bytes"] > 1_000_000


def test_open_actions_and_stores_are_as_a_sweep_saw_them(memory: RecordWriter, down: str, ana: User) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    memory.lease("agent-2", state="expired")
    for seq in (1, 2):
        memory.action("agent-2", seq)
    assert scrape(ana).of("settle_open_actions") == {}  # nobody has looked, and a scrape asks no store

    tasks.sweep_ends()

    found = scrape(ana)
    assert found.of("settle_open_actions", "main") == {
        "in_flight": 1,
        "interrupted": 2,
    }
    assert (found["settle_store_up", "main"], found["settle_store_up", down]) == (1, 0)
    assert found["settle_store_look_age_seconds", "main"] < 60


def test_a_lease_that_runs_out_is_seen_although_nothing_was_written(memory: RecordWriter, ana: User) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    look_at_stores()
    memory.lease("billing-7", state="expired")

    look_at_stores()

    assert StoreLook.objects.get().states == '{"interrupted": 1}'


def test_of_a_store_that_went_down_what_was_last_known_stays(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actions.errors import StoreUnavailable
    from console.stores import get_store

    memory.action("billing-7", 1)
    look_at_stores()
    before = StoreLook.objects.get()

    def gone() -> None:
        raise StoreUnavailable("main", "it does not answer")

    monkeypatch.setattr(get_store("main"), "read_watch", gone)
    look_at_stores()

    now = StoreLook.objects.get()
    assert (now.is_up, now.states, now.entries) == (False, before.states, before.entries)
    assert scrape(ana)["settle_store_up", "main"] == 0


def test_sweeps_tell_when_they_ran_and_that_beat_is_alive(memory: RecordWriter, ana: User) -> None:
    assert scrape(ana)["settle_beat_alive"] == 0
    for sweep in (
        tasks.sweep,
        tasks.sweep_inquiries,
        tasks.sweep_ends,
        tasks.sweep_notices,
        tasks.recheck_failed,
        tasks.verify_all,
    ):
        sweep()
    found = scrape(ana)
    ages = found.of("settle_sweep_age_seconds")
    assert set(ages) == set(SCHEDULE)  # also those that never ran: an alert on a number that is not there never fires
    assert max(ages[name] for name in ("sweep", "ask", "ends", "notify", "recheck", "verify")) < 60
    assert found["settle_beat_alive"] == 1

    Sweep.objects.update(ran_at=timezone.now() - timedelta(minutes=5))

    found = scrape(ana)
    assert found["settle_sweep_age_seconds", "sweep"] >= 300
    assert found["settle_beat_alive"] == 0


def test_what_never_ran_is_as_old_as_the_last_migration_and_is_no_sign_of_life(ana: User) -> None:
    Sweep.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_migrations SET applied = now() - interval '3 days' WHERE app = 'console'")
        cursor.execute("UPDATE django_migrations SET applied = now() - interval '2 hours' WHERE name = '0017_corrections_by_two'")

    found = scrape(ana)

    assert all(7_200 <= age < 7_300 for age in found.of("settle_sweep_age_seconds").values())
    assert found["settle_beat_alive"] == 0


def test_what_is_rare_is_due_by_the_database_and_not_by_how_long_beat_has_been_up(
    memory: RecordWriter, ana: User, api: Callable[[User], Api]
) -> None:
    assert all(one["schedule"] <= 600 for one in SCHEDULE.values())  # a beat that is replaced every day comes to it

    def enter(number: int) -> None:
        memory.action("billing-7", number)
        api(ana).post(
            f"actions/main/billing-7/{number}/decision", {"outcome": "done", "reason": "seen", "decision_id": f"d-{number:08}"}
        )

    counts = []
    hour = timedelta(hours=1)
    for number, ago in enumerate((None, timedelta(0), hour - timedelta(minutes=1), hour), start=1):
        enter(number)
        if ago is not None:
            Sweep.objects.filter(name="checkpoints").update(ran_at=timezone.now() - ago)
        tasks.sign_checkpoints()
        counts.append(StoredCheckpoint.objects.filter(name="main").count())

    assert counts == [1, 1, 1, 2]


def test_how_long_a_second_person_is_awaited(memory: RecordWriter, ana: User, api: Callable[[User], Api]) -> None:
    assert scrape(ana).of("settle_awaiting_person_seconds") == {"decision": 0, "correction": 0, "approval": 0}
    for seq in (1, 2):
        memory.action("billing-7", seq)
        api(ana).post(
            f"actions/main/billing-7/{seq}/decision", {"outcome": "done", "reason": "seen", "decision_id": f"d-1234567{seq}"}
        )
    now = timezone.now()
    Decision.objects.filter(seq=1).update(state="proposed", created_at=now - timedelta(hours=5))
    Decision.objects.filter(seq=2).update(created_at=now - timedelta(hours=9))  # nobody waits for that one

    found = scrape(ana).of("settle_awaiting_person_seconds")

    assert 18_000 <= found["decision"] < 18_100
    assert (found["correction"], found["approval"]) == (0, 0)


def test_a_store_that_did_not_answer_the_walk_is_no_broken_history(memory: RecordWriter, ana: User) -> None:
    now = timezone.now()
    Verification.objects.create(name="main", asked_by="system beat", finished_at=now - timedelta(hours=30), entries=12)
    Verification.objects.create(
        name="main", asked_by="system beat", finished_at=now, problem="did not answer within 8 s", is_known=False
    )
    Verification.objects.create(name="console", asked_by="system beat")
    Verification.objects.filter(name="console").update(started_at=now - timedelta(hours=60))  # its worker died, every time

    found = scrape(ana)

    assert (found["settle_chain_intact", "main"], found["settle_chain_verified", "main"]) == (1, 12)
    assert found["settle_chain_verified_age_seconds", "main"] >= 30 * 3_600  # and it grows: that is what is told
    assert found["settle_chain_verified_age_seconds", "console"] >= 60 * 3_600
    assert found.of("settle_chain_intact") == {"main": 1}


def test_what_was_never_signed_is_signed_up_to_nothing_and_places_that_are_named_no_more_are_not_waited_for(
    memory: RecordWriter, ana: User, settings: Settings
) -> None:
    assert scrape(ana).of("settle_chain_checkpointed") == {"main": 0, "console": 0}
    row = StoredCheckpoint.objects.create(name="main", chain="main", serial=1, number=10, line="{}")
    for place in ("https://dead.example.com/in", "file:/x"):
        CheckpointDelivery.objects.create(checkpoint=row, sink=place, next_try_at=timezone.now())

    settings.AUDIT_ANCHORS = ("file:/x",)
    assert scrape(ana)["settle_chain_anchors_waiting"] == 1
    settings.AUDIT_ANCHORS = ()
    assert scrape(ana)["settle_chain_anchors_waiting"] == 0


def test_what_is_due_is_how_far_the_workers_are_behind(memory: RecordWriter, ana: User, api: Callable[[User], Api]) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    api(ana).post("actions/main/billing-7/1/decision", {"outcome": "done", "reason": "seen", "decision_id": "d-12345678"})
    past = timezone.now() - timedelta(minutes=1)
    Decision.objects.update(next_try_at=past)
    Inquiry.objects.create(store="main", agent="billing-7", seq=1, tool="send_email", due_at=past)
    Inquiry.objects.create(store="main", agent="billing-7", seq=2, tool="send_email", due_at=past + timedelta(hours=1))

    found = scrape(ana)

    due = found.of("settle_due")
    assert due == {"decisions": 1, "corrections": 0, "batches": 0, "questions": 1, "notices": 0}


def test_chains_tell_how_far_they_are_signed_anchored_and_verified(memory: RecordWriter, ana: User, settings: Settings) -> None:
    settings.AUDIT_ANCHORS = ("file:/x",)
    now = timezone.now()
    rows = [
        StoredCheckpoint.objects.create(name="main", chain="main", serial=serial, number=10 * serial, line="{}")
        for serial in (1, 2)
    ]
    CheckpointDelivery.objects.create(checkpoint=rows[0], sink="file:/x", sent_at=now, next_try_at=now)
    CheckpointDelivery.objects.create(checkpoint=rows[1], sink="file:/x", next_try_at=now)
    Verification.objects.create(name="main", asked_by="system beat", finished_at=now, entries=12, broken="entry 13: changed")
    Verification.objects.create(name="main", asked_by="system beat")  # still on its way
    Verification.objects.create(name="console", asked_by="system beat", finished_at=now, entries=5)

    found = scrape(ana)

    assert found["settle_chain_checkpointed", "main"] == 20
    assert found["settle_chain_anchored", "main"] == 10
    assert found["settle_chain_anchors_waiting"] == 1
    assert (found["settle_chain_verified", "main"], found["settle_chain_intact", "main"]) == (12, 0)
    assert found["settle_chain_intact", "console"] == 1
    assert found["settle_chain_verified_age_seconds", "main"] < 60
    assert found["settle_chain_entries", "console"] >= 0


def test_resolvers_are_counted_by_name(memory: RecordWriter, own_resolver: None, amy: User, ana: User) -> None:
    world.define(amy, per_minute=1, at_once=1)
    world.name_it(amy)
    memory.lease("billing-7", state="expired")
    refs = [memory.action("billing-7", seq) for seq in (1, 2, 3)]
    world.bring(world.match())
    world.ask(refs[0], ana)
    world.bring(reply=Reply.NO_ANSWER)
    world.ask(refs[1], ana)
    assert resolve.ask(request_asking(refs[2], by=ana).pk) is None  # its turn has not come

    found = scrape(ana)

    assert found["settle_resolver_questions_total", "sent-folder"] == 2
    assert sum(found.of("settle_resolver_verdicts_total").values()) == 2
    assert found["settle_resolver_failures_total", "sent-folder"] == 1
    assert found["settle_resolver_waits_total", "sent-folder"] == 1
    assert found["settle_due", "questions"] == 1


def test_nothing_that_an_agent_writes_is_in_it(memory: RecordWriter, person: Cast, ana: User, api: Callable[[User], Api]) -> None:
    client = browser(ana, raise_request_exception=False)
    for number, case in enumerate(CORPUS[:40], start=1):
        text = case.text[:200].encode("utf-8", "ignore").decode()
        agent = f"needle-{number}"
        memory.action(agent, 1, tool=text.replace("\x00", "") or "x", args=text)
        client.get(f"/actions/main/{agent}/1/")
        api(ana).post(f"actions/main/{agent}/1/decision", {"outcome": "done", "reason": text, "decision_id": f"d-{number:08}"})
    tasks.sweep_ends()

    body = asked(create_user_token(ana)).content.decode()

    assert "needle" not in body
    assert [
        case.name for case in CORPUS[:40] for piece in (case.text[:60], *case.never) if len(piece) > 3 and piece in body
    ] == []
    # Of each route a line for every bound of its times, method and status, of which this process may have seen each; of calls none.
    assert len(body.splitlines()) < 100 * len(list(pages(urls.urlpatterns)))


def test_a_name_has_a_bounded_number_of_labels(ana: User) -> None:
    for number in range(2 * tallies.MOST):
        tallies.count("settle_resolver_waits_total", f"resolver-{number}")

    found = scrape(ana)

    names = found.of("settle_resolver_waits_total")
    assert len(names) == tallies.MOST + 1
    assert found["settle_resolver_waits_total", "other"] == tallies.MOST


def test_processes_add_up_and_a_count_that_cannot_be_written_is_kept(monkeypatch: pytest.MonkeyPatch, ana: User) -> None:
    tallies.count("settle_refusals_total", "forbidden")
    tallies.flush()
    tallies.forget()  # another process
    tallies.count("settle_refusals_total", "forbidden", by=2)
    with monkeypatch.context() as patch:
        patch.setattr(tallies, "connection", SimpleNamespace(cursor=_gone, in_atomic_block=True))
        tallies.flush()
    assert Tally.objects.get().value == 1

    tallies.flush()
    tallies.flush()

    assert Tally.objects.get().value == 3


def _gone() -> None:
    raise OperationalError("gone")


@pytest.mark.parametrize("rows", [2, 200])
def test_a_scrape_is_a_few_statements_however_much_there_is(memory: RecordWriter, ana: User, rows: int) -> None:
    token = create_user_token(ana)
    for seq in range(1, rows + 1):
        memory.action("billing-7", seq)
        Inquiry.objects.create(store="main", agent="billing-7", seq=seq, tool="send_email", due_at=timezone.now())
        StoredCheckpoint.objects.create(name="main", chain="main", serial=seq, number=seq, line="{}")
    tasks.sweep_ends()
    tallies.flush()
    with CaptureQueriesContext(connection) as statements:
        assert asked(token).status_code == 200

    assert len(statements) == 4, [one["sql"][:80] for one in statements]  # the token, its roles, the gauges, the tallies
