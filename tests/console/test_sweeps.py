"""A sweep that stands still is said on every page, by what a page reads anyway, and is gone by itself."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from console import tasks
from console.models import Sweep
from tests.console.view_helpers import HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

SAID = "Nothing goes on by itself."
PAGES = ["/", "/tools/", "/stores/", "/history/", "/settings/", "/nowhere/"]


def swept(ago: timedelta) -> None:
    Sweep.objects.update_or_create(name="sweep", defaults={"ran_at": Now() - ago})


@pytest.mark.parametrize("path", PAGES)
def test_every_page_says_that_no_sweep_has_run_for_a_minute(memory: RecordWriter, ana: User, path: str) -> None:
    client = browser(ana)
    client.get(path)  # the session notes that it is used
    swept(timedelta(seconds=20))
    with CaptureQueriesContext(connection) as before:
        assert SAID not in text_of(client.get(path).content.decode())
    swept(timedelta(seconds=70))
    with CaptureQueriesContext(connection) as after:
        assert SAID in text_of(client.get(path).content.decode())

    assert len(after) == len(before)


def test_it_goes_by_itself_once_a_sweep_has_run(memory: RecordWriter, ana: User) -> None:
    swept(timedelta(hours=3))
    client = browser(ana)
    assert SAID in text_of(client.get("/incidents/banner/", headers=HTMX).content.decode())

    tasks.sweep()

    part = client.get("/incidents/banner/", headers=HTMX).content.decode()
    assert SAID not in text_of(part)
    assert "every 30s" in part


def test_another_sweep_does_not_stand_in_for_it(memory: RecordWriter, ana: User) -> None:
    swept(timedelta(hours=3))
    tasks.sweep_notices()
    assert SAID in text_of(browser(ana).get("/").content.decode())


def test_where_nothing_is_known_nothing_is_said_and_strangers_are_told_nothing(
    memory: RecordWriter, ana: User, cyd: User
) -> None:
    assert SAID not in text_of(browser(ana).get("/").content.decode())
    swept(timedelta(hours=3))
    for client in (browser(), browser(cyd)):
        assert SAID not in text_of(client.get("/login/").content.decode())
        assert SAID not in text_of(client.get("/").content.decode())
    assert browser().get("/readyz").json() == {"status": "ready"}


def test_a_sweep_that_breaks_has_not_run(memory: RecordWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(limit: int) -> list[int]:
        raise RuntimeError("broken")

    monkeypatch.setattr(tasks.deliveries, "claim_due", broken)
    with pytest.raises(RuntimeError):
        tasks.sweep()
    assert not Sweep.objects.exists()


def test_a_late_worker_does_not_turn_the_time_back(memory: RecordWriter) -> None:
    Sweep.objects.create(name="sweep", ran_at=Now() + timedelta(hours=1))
    ahead = Sweep.objects.get().ran_at
    tasks.sweep()
    assert Sweep.objects.get().ran_at == ahead
