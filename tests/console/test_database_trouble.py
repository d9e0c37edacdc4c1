"""The console's own database is read-only or gone: a 503 with a clear line on every face, and no error page that asks it for anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DataError, InterfaceError, InternalError, OperationalError, ProgrammingError, connection
from django.test import Client

from console.models import Decision
from console.services.tokens import create_user_token
from tests.console.conftest import PASSWORD
from tests.console.view_helpers import HTMX, browser, filled, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)

ERRORS = [
    OperationalError("gone"),
    InternalError("read-only"),
    InterfaceError("closed"),
    ProgrammingError("no table"),
    DataError("x"),
]


def _read_only(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_read_only = {value}")


@pytest.fixture
def read_only() -> Iterator[Any]:
    """Switches the database of this test's connection to read-only, as after a failover."""
    yield lambda: _read_only("on")
    _read_only("off")


def api(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_user_token(user)}"}


def test_a_decision_is_not_kept_and_both_faces_say_so(memory: RecordWriter, ana: User, read_only: Any) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana, raise_request_exception=False)
    form, headers = filled(client, ref), api(ana)
    read_only()

    page = client.post(path_of(ref, "decision/"), form)
    piece = client.post(path_of(ref, "decision/"), form, headers=HTMX)
    body = {"outcome": "done", "reason": "seen", "decision_id": "decision-1"}
    answer = Client().post(f"/api/v1{path_of(ref)}decision", body, content_type="application/json", headers=headers)

    assert (page.status_code, piece.status_code, answer.status_code) == (503, 503, 503)
    assert "not known whether it was written" in text_of(piece.content.decode())
    assert "database" in answer.json()["detail"]
    assert answer.json()["error"] == "unavailable"
    assert not Decision.objects.exists()


def test_reading_goes_on_while_it_is_read_only(memory: RecordWriter, ana: User, read_only: Any) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana, raise_request_exception=False)  # its session has never been seen: noting that is refused
    headers = api(ana)
    read_only()
    for path in ("/", path_of(ref), "/history/"):
        assert client.get(path).status_code == 200
    assert Client().get("/api/v1/actions", headers=headers).status_code == 200
    assert Client().get("/readyz").status_code == 503


def test_nobody_signs_in_while_it_is_read_only(ana: User, read_only: Any) -> None:
    read_only()
    answer = Client(raise_request_exception=False).post("/login/", {"username": "ana", "password": PASSWORD})
    assert answer.status_code == 503
    assert "database" in text_of(answer.content.decode())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_of_it_is_a_503(memory: RecordWriter, ana: User, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    client, headers = browser(ana, raise_request_exception=False), api(ana)
    ref = memory.action("m-1", 1)

    def broken(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("console.views.action.what_is_there", broken)
    monkeypatch.setattr("console.api.actions.current_decisions", broken)
    for extra in ({}, HTMX):
        page = client.get(path_of(ref), headers=extra)
        assert page.status_code == 503
        assert "The console's own database cannot be used" in text_of(page.content.decode())
    answer = Client().get(f"/api/v1{path_of(ref).rstrip('/')}", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")


def test_where_it_is_gone_the_page_that_says_so_needs_nothing_of_it(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser(ana, raise_request_exception=False)

    def gone(*args: object, **kwargs: object) -> None:
        raise OperationalError("connection to 10.0.0.7 refused for user console")

    monkeypatch.setattr(connection, "cursor", gone)
    for headers in ({}, HTMX):
        answer = client.get("/", headers=headers)
        assert answer.status_code == 503
        assert "10.0.0.7" not in answer.content.decode()


@pytest.mark.parametrize("method", ["TRACE", "FOO", "CONNECT", "trace", "X" * 300])
def test_a_method_that_nobody_knows_is_answered_in_json(memory: RecordWriter, method: str) -> None:
    for path in ("/api/v1/actions", "/api/v1/actions/main/m-1/1", "/api/v1/actions/main/m-1/1/decision", "/api/v1/x", "/api/v1/"):
        answer = Client().generic(method, path)
        assert (answer.status_code, answer["Content-Type"], answer.json()["error"]) == (
            405,
            "application/json",
            "method_not_allowed",
        )
