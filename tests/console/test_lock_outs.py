"""That a door was closed after wrong passwords is in the history: once for each time, and never what was typed."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.console.entries import console_entries
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


def wrong(name: str, times: int) -> int:
    client = Client()
    return [client.post("/login/", {"username": name, "password": f"wrong-{count}"}).status_code for count in range(times)][-1]


def test_a_lock_out_is_one_entry_however_often_the_closed_door_is_tried(memory: RecordWriter, ana: User, ben: User) -> None:
    assert wrong("ana", 4) == 200
    assert console_entries("locked_out") == []
    assert wrong("ana", 6) == 429
    assert wrong("ben", 5) == 429

    found = console_entries("locked_out")
    assert [entry.detail["about"] for entry in found] == ["ben", "ana"]
    assert "wrong-" not in "".join(entry.text for entry in found)


def test_what_was_typed_as_a_name_that_nobody_has_is_not_repeated(memory: RecordWriter) -> None:
    assert wrong("hunter2-in-the-wrong-field", 7) == 429

    (entry,) = console_entries("locked_out")
    assert entry.detail["about"] == "a name that nobody has"
    assert "hunter2" not in entry.text
