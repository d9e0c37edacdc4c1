"""Whoever is known and is refused leaves an entry: by their rights, by the second person, for want of a proof; and a flood leaves few."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from console.services import denials
from console.services.denials import enter_denial
from console.services.policies import save_policy
from console.services.tokens import create_agent_token
from tests.console.conftest import Api, Cast
from tests.console.entries import console_entries
from tests.console.test_services_approve import PAY, payment, proposed
from tests.console.view_helpers import browser, filled, path_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def test_a_person_without_the_right_leaves_who_what_and_about_what(memory: RecordWriter, ben: User, amy: User) -> None:
    ref = payment(memory, 1)

    assert browser(ben).post(path_of(ref, "claim/"), {"do": "claim"}).status_code == 403
    assert browser(ben).post("/people/", {"username": "eve"}).status_code == 403

    added, claim = console_entries("denied")
    assert (claim.actor, claim.detail["about"], claim.detail["why"]) == ("user ben", "action claim", "forbidden")
    assert (claim.agent, claim.seq, claim.detail["of"]) == ("billing-7", 1, {"store": "main"})
    assert claim.reason == "you need a role that may settle here"
    assert (added.actor, added.detail["about"], added.agent) == ("user ben", "people", "")
    assert not User.objects.filter(username="eve").exists()


def test_self_approval_and_a_missing_proof_are_entries(memory: RecordWriter, person: Cast, amy: User) -> None:
    save_policy(PAY, {"second_person_when": "amount > 1000"}, seen_version=0, by=amy)
    both = person("both", "operator", "approver")
    ref, other = payment(memory, 1), payment(memory, 2)
    row = proposed(ref, both)
    save_policy(PAY, {"second_person_when": "amount > 1000", "step_up_when": "amount > 500"}, seen_version=1, by=amy)
    client = browser(both)

    own = client.post(path_of(ref, "decision/approve/"), {"decision_id": row.decision_id})
    unproved = client.post(path_of(other, "decision/"), filled(client, other))

    assert (own.status_code, unproved.status_code) == (403, 403)
    found = [(entry.detail["about"], entry.detail["why"]) for entry in console_entries("denied")]
    assert found == [("decision", "confirm_identity"), ("decision approve", "own_decision")]


def test_tokens_leave_their_holder_and_never_themselves(
    memory: RecordWriter, ben: User, cyd: User, api: Callable[[User], Api]
) -> None:
    ref, token = payment(memory, 1), create_agent_token("main", "billing-7")

    assert api(ben).post(f"actions/main/{ref.agent}/{ref.seq}/claim", {})[0] == 403
    assert api(cyd).get("actions")[0] == 403
    assert Api(token).get("audit")[0] == 403

    found = console_entries("denied")
    assert [(entry.actor, entry.detail["about"]) for entry in found] == [
        ("agent main/billing-7", "GET audit"),
        ("user cyd", "GET actions"),
        ("user ben", "POST actions claim"),
    ]
    assert not any(token in entry.text for entry in found)


def test_strangers_other_sites_and_what_only_reads_leave_none(memory: RecordWriter, ben: User) -> None:
    ref = payment(memory, 1)

    Client().post(path_of(ref, "claim/"))
    Client().post("/api/v1/bulk", {}, headers={"Authorization": "Bearer settle_none"}, content_type="application/json")
    assert browser(ben).post(path_of(ref, "claim/"), headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert browser(ben, enforce_csrf_checks=True).post(path_of(ref, "claim/")).status_code == 403
    assert browser(ben).get("/people/").status_code == 403

    assert console_entries("denied") == []


@pytest.fixture
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute that does not turn while a test counts."""
    monkeypatch.setattr(denials, "_MINUTE_S", 10**9)


@pytest.mark.usefixtures("one_minute")
def test_a_flood_leaves_few_entries_and_the_last_says_how_many(db: None) -> None:
    for _ in range(40):
        enter_denial("user ben", "people", why="forbidden", reason="no")
    enter_denial("user ben", "export", why="forbidden", reason="no")

    found = [(entry.detail["about"], entry.detail["times"]) for entry in console_entries("denied")]
    assert found == [("export", 1), *(("people", times) for times in (32, 16, 8, 4, 2, 1))]


@pytest.mark.usefixtures("one_minute")
@pytest.mark.django_db(transaction=True)
def test_two_processes_count_together() -> None:
    def attempt(_: int) -> bool:
        try:
            return enter_denial("user ben", "people", why="forbidden", reason="no")
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        entered = sum(pool.map(attempt, range(16)))

    assert [entry.detail["times"] for entry in console_entries("denied")] == [16, 8, 4, 2, 1]
    assert entered == 5
