"""Seeing what is hidden: who may, what it asks, that the history says so first, and that nobody else sees anything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from actions.digests import sha256_text
from actions.errors import StoreUnavailable
from actions.records import ActionRef, Entry
from console import stores
from console.services.policies import save_policy
from console.services.reveal import NotConfirmed, reveal
from tests.console.conftest import PASSWORD, Cast, DownStore
from tests.console.entries import console_entries
from tests.console.view_helpers import browser, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db
SECRETS = {"to": "b@example.com", "password": "s3cr3tValue42", "iban": "DE02", "note": "a\u202eb"}


@pytest.fixture
def eve(person: Cast) -> User:
    return person("eve", "auditor")


@pytest.fixture
def ref(memory: RecordWriter, amy: User) -> ActionRef:
    save_policy("send_email", {"redacted": "iban"}, seen_version=0, by=amy)
    return memory.action("m-1", 1, args=SECRETS, status="failed", error="bad key sk_live_abcdefghijklmnop123")


def proved(user: User, ago: timedelta = timedelta(0)) -> Client:
    """Their browser, in which they gave their password so long ago."""
    client = browser(user)
    assert client.post("/confirm/", {"password": PASSWORD}).status_code == 302
    session = client.session
    for record in session["account_authentication_methods"]:
        record["at"] -= ago.total_seconds()
    session.save()
    return client


def entries() -> tuple[Entry, ...]:
    return stores.get_store("main").list_entries(limit=10)


def test_an_auditor_sees_it_in_one_answer_and_the_history_says_who_and_why(ref: ActionRef, eve: User) -> None:
    client = proved(eve)
    assert path_of(ref, "reveal/") in client.get(path_of(ref)).content.decode()
    form = client.get(path_of(ref, "reveal/"))
    assert (form.status_code, entries()) == (200, ())

    answer = client.post(path_of(ref, "reveal/"), {"reason": "the customer asks which account"})

    said = text_of(answer.content.decode())
    for hidden in ("s3cr3tValue42", "DE02", "sk_live_abcdefghijklmnop123"):
        assert hidden in said
        assert hidden not in form.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert "\u202e" not in said  # what nobody sees is named here too
    (entry,) = entries()
    assert (entry.kind, entry.actor, entry.agent, entry.seq, entry.tool) == ("revealed", "auditor eve", "m-1", 1, "send_email")
    assert entry.reason == "the customer asks which account"
    assert entry.detail["digests"] == {
        "arguments": sha256_text(stores.get_store("main").get_action("m-1", 1).action.args),  # type: ignore[union-attr]
        "result": sha256_text(""),
    }
    assert "s3cr3tValue42" not in entry.text
    assert "auditor eve saw what is hidden" in text_of(client.get("/history/").content.decode())
    assert "s3cr3tValue42" not in client.get(path_of(ref, "reveal/")).content.decode()  # a reload without the POST


@pytest.mark.parametrize(("who", "status"), [("ana", 403), ("ben", 403), ("amy", 403), ("dot", 404), ("cyd", 403)])
def test_nobody_else_sees_it_or_leaves_anything(ref: ActionRef, who: str, status: int, request: pytest.FixtureRequest) -> None:
    client = proved(request.getfixturevalue(who))

    answers = [client.get(path_of(ref, "reveal/")), client.post(path_of(ref, "reveal/"), {"reason": "curious"})]

    assert [answer.status_code for answer in answers] == [status] * 2
    assert all("s3cr3tValue42" not in answer.content.decode() for answer in answers)
    assert path_of(ref, "reveal/") not in client.get(path_of(ref)).content.decode()
    assert entries() == ()


def test_who_sees_all_but_another_store_is_told_that_it_is_not_there(ref: ActionRef, person: Cast) -> None:
    client = proved(person("far", ("auditor", "other", "")))

    assert client.post(path_of(ref, "reveal/"), {"reason": "curious"}).status_code == 404
    assert entries() == ()


@pytest.mark.parametrize("reason", ["", "  ", "\u200b", "x" * 2001, "a\x00b"])
def test_without_a_reason_nothing_is_shown(ref: ActionRef, eve: User, reason: str) -> None:
    answer = proved(eve).post(path_of(ref, "reveal/"), {"reason": reason})

    assert answer.status_code == 422
    assert "s3cr3tValue42" not in answer.content.decode()
    assert entries() == ()


def test_a_signed_in_browser_alone_is_not_enough_and_the_reason_is_kept(ref: ActionRef, eve: User) -> None:
    client = proved(eve, ago=timedelta(hours=1))

    form, answer = client.get(path_of(ref, "reveal/")), client.post(path_of(ref, "reveal/"), {"reason": "for the report"})

    assert (form.status_code, answer.status_code) == (200, 403)
    assert all("Prove first that it is you" in text_of(one.content.decode()) for one in (form, answer))
    assert "for the report" in answer.content.decode()
    assert "s3cr3tValue42" not in answer.content.decode()
    assert entries() == ()
    (denial,) = console_entries("denied")
    assert (denial.detail["tried"], denial.detail["why"]) == ("seeing what is hidden of a call", "confirm_identity")
    assert denial.reason == "nobody has proved lately that it is this person"


@pytest.mark.django_db(transaction=True)
def test_where_its_store_takes_no_entry_it_stands_in_the_consoles_own_history_and_where_none_does_nothing_is_shown(
    flaky: RecordWriter, eve: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, client = flaky.action("m-1", 1, args=SECRETS), proved(eve)
    store = stores.get_store("main")
    assert isinstance(store, DownStore)
    store.fails = "entry"

    shown = client.post(path_of(ref, "reveal/"), {"reason": "for the report"})

    own = [entry for entry in stores.console_chain().list_entries(limit=10) if entry.kind == "revealed"]
    assert [(entry.actor, entry.agent, entry.seq, entry.detail["of"]) for entry in own] == [
        ("auditor eve", "m-1", 1, {"store": "main"})
    ]
    assert "s3cr3tValue42" in text_of(shown.content.decode())

    def refuse(*_: Any, **__: Any) -> Entry:
        raise StoreUnavailable("console", "gone")

    monkeypatch.setattr(stores.console_chain(), "append_on", refuse)
    refused = client.post(path_of(ref, "reveal/"), {"reason": "for the report"})

    assert refused.status_code == 503
    assert "s3cr3tValue42" not in refused.content.decode()


def test_the_service_itself_asks_for_the_proof(ref: ActionRef, eve: User) -> None:
    for at in (None, datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)):
        with pytest.raises(NotConfirmed):
            reveal(ref, "for the report", by=eve, confirmed_at=at)
    assert entries() == ()
