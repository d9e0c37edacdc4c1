"""Whoever is known and is refused leaves an entry: by their rights, by the second person, for want of a proof; and a flood leaves few."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from console import urls
from console.models import Decision, Grant
from console.services import batches, denials
from console.services.batches import advance, undo
from console.services.bulk import commit, draft_selected
from console.services.denials import enter_denial
from console.services.policies import save_policy
from console.services.tokens import create_agent_token
from tests.console.conftest import Api, Cast
from tests.console.entries import console_entries
from tests.console.test_commands import run
from tests.console.test_entry_points import operations, pages
from tests.console.test_every_change_is_an_entry import NO_ENTRY
from tests.console.test_services_approve import PAY, nothing_written, payment, proposed
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


def test_an_item_that_a_worker_refuses_for_want_of_a_right_is_an_entry_of_its_batchs_person(
    memory: RecordWriter, ana: User
) -> None:
    lost, kept = memory.action("m-1", 1), memory.action("t-1", 1, tool="open_ticket")
    batch = draft_selected([lost, kept], by=ana)
    commit(batch.batch_id, by=ana, outcome="done", reason="the provider's log")
    Grant.objects.filter(user=ana).update(tool="open_ticket")

    advance(batch.pk)

    (entry,) = console_entries("denied")
    assert (entry.actor, entry.agent, entry.seq, entry.detail["of"]) == ("user ana", "m-1", 1, {"store": "main"})
    assert (entry.detail["tried"], entry.detail["why"]) == ("deciding about a call of a batch", "forbidden")
    assert [item.outcome_shown for item in batches.items_showing(batch, "")] == ["no_right", "written"]


def test_a_batch_that_is_withdrawn_without_the_right_any_more_leaves_one_too(memory: RecordWriter, ana: User) -> None:
    memory.lease("m-1", state="live")
    batch = draft_selected([memory.action("m-1", 1, status="unknown")], by=ana)
    commit(batch.batch_id, by=ana, outcome="done", reason="the provider's log")
    advance(batch.pk)
    undo(batch.batch_id, by=ana)
    Grant.objects.filter(user=ana).update(role="viewer")

    advance(batch.pk)

    assert [entry.detail["tried"] for entry in console_entries("denied")] == ["withdrawing a decision of a batch"]
    assert Decision.objects.get().state == "waiting"


NOT_THEIRS = {
    "settle": ("main", "billing-7", "1", "done", "--reason", "seen"),
    "correct": ("main", "billing-7", "1", "failed", "--reason", "seen"),
    "approve": ("main", "billing-7", "1", "--reason", "seen"),
    "evict": ("main", "billing-7", "--holder", "pod-a", "--reason", "it is gone"),
    "export_replay": ("main", "billing-7", "--output", "unused"),
    "export_audit": ("--format", "csv", "--output", "unused"),
}


@pytest.mark.parametrize("role", ["viewer", ""])
@pytest.mark.parametrize("name", NOT_THEIRS)
def test_a_command_for_somebody_without_the_right_leaves_the_entry_of_a_page(
    memory: RecordWriter, person: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, role: str
) -> None:
    monkeypatch.chdir(tmp_path)
    person("sam", *([role] if role else []))
    ref = payment(memory, 1)

    said = run(name, *NOT_THEIRS[name], "--user", "sam")

    assert said.code == 1
    assert nothing_written(ref)
    assert not list(tmp_path.iterdir())
    (entry,) = console_entries("denied")
    # To somebody without a role there is no such action or store; that they tried is an entry all the same.
    why = "missing" if not role and name in ("approve", "export_replay") else "forbidden"
    assert (entry.actor, entry.detail["why"], entry.reason) == ("user sam", why, said.err)
    assert entry.detail["about"] == f"command {name}"
    assert (entry.agent, entry.seq) == (
        ("", None) if name == "export_audit" else ("billing-7", None if name in ("evict", "export_replay") else 1)
    )


def test_a_command_about_what_is_not_configured_is_wrong_usage_and_no_attempt(memory: RecordWriter, ana: User) -> None:
    for arguments in (("nowhere", "billing-7", "1"), ("main", "billing-7", "1")):
        said = run("settle", *arguments, "done", "--reason", "seen", "--user", "ana" if arguments[0] == "nowhere" else "nobody")
        assert said.code == 2

    assert console_entries("denied") == []


def test_every_gesture_has_words_and_every_words_a_gesture() -> None:
    only_read = NO_ENTRY["it only reads"] | {"export-manifest"}
    changing = {str(one.name) for one in pages(urls.urlpatterns)} - only_read
    api = set()
    for method, path in operations():
        parts = [part for part in path.removeprefix("/api/v1/").split("/") if part and "{" not in part]
        api.add(" ".join([method.upper(), *parts]))
    commands = {f"command {name}" for name in NOT_THEIRS}
    workers = {"batch item", "batch item withdraw"}

    assert {name.replace("-", " ") for name in changing} | api | commands | workers == set(denials.GESTURES)
    for gesture, words in denials.GESTURES.items():
        assert re.fullmatch(r"[a-z]+ing [A-Za-z',\- ]+", words), gesture
        assert words != gesture
        assert "_" not in words
    assert denials.words_of("agent briefing") == "sending something to the page agent briefing"


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
