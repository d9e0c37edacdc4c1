"""What a load balancer is told: the process, the console's database, its migrations. Never a store, never a detail."""

from __future__ import annotations

from typing import NoReturn

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from console import health
from console.services.tokens import create_user_token

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_addresses")]


@pytest.fixture(autouse=True)
def _as_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_migrated", False)


def _no_database(*_: object, **__: object) -> NoReturn:
    raise OperationalError("connection to 10.0.0.7 refused for user console")


def test_a_process_that_answers_is_healthy(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "cursor", _no_database)
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert "no-store" in response["Cache-Control"]


def test_it_is_ready_once_migrated(client: Client, down: str) -> None:
    for _ in range(2):
        response = client.get("/readyz")
        assert (response.status_code, response.json()) == (200, {"status": "ready"})


def test_it_is_not_ready_before(client: Client) -> None:
    newest = MigrationLoader(connection).graph.leaf_nodes("console")[0]
    MigrationRecorder(connection).record_unapplied(*newest)
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})
    MigrationRecorder(connection).record_applied(*newest)
    assert client.get("/readyz").status_code == 200


def test_it_is_not_ready_without_its_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(connection, "cursor", _no_database)
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_only_asking_is_allowed(client: Client, path: str) -> None:
    assert client.head(path).status_code == 200
    assert client.post(path).status_code == 405


def test_it_is_not_ready_while_its_database_is_read_only(client: Client) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    assert client.get("/readyz").status_code == 503


def test_each_process_can_be_probed_and_scraped_by_its_address_and_nothing_else_is_answered_there(ana: User) -> None:
    bearer = {"Authorization": f"Bearer {create_user_token(ana)}"}

    def asked(path: str, **headers: str) -> int:
        return int(Client().get(path, headers={"host": "10.0.0.7:8000", **headers}).status_code)

    assert [asked("/healthz"), asked("/readyz"), asked("/metrics", **bearer)] == [200, 200, 200]
    assert asked("/metrics") == 401
    others = ("/", "/login/", "/api/v1/actions", "/metrics/", "/healthz/", "/hooks/generic/x")
    assert {asked(path, **bearer) for path in others} == {400}
