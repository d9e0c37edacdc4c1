"""The stores page: what each store can be used for, in words, without a password."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import BACK, HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def test_it_says_what_each_store_can_be_used_for(records: RecordWriter, down: str, ben: User) -> None:
    html = browser(ben).get("/stores/").content.decode()
    said = text_of(html)

    assert "can be settled" in said
    assert "does not answer" in said
    assert "secret-pw" not in html


def test_a_store_that_is_not_prepared_comes_with_the_remedy(memory: MemoryWriter, ana: User) -> None:
    memory.kept._is_prepared = False

    assert "prepare_store main" in browser(ana).get("/stores/").content.decode()


def test_each_person_sees_their_own_stores(records: RecordWriter, other_store: MemoryWriter, person: Cast, cyd: User) -> None:
    html = browser(person("eve", ("viewer", "other", ""))).get("/stores/").content.decode()

    assert "<b>other</b>" in html
    assert "<b>main</b>" not in html
    assert browser(cyd).get("/stores/").status_code == 403
    assert browser().get("/stores/")["Location"] == "/login/?next=%2Fstores%2F"


def test_it_answers_get_only_and_a_piece_to_htmx(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)

    assert client.post("/stores/").status_code == 405
    assert "<html" not in client.get("/stores/", headers=HTMX).content.decode()
    assert "<html" in client.get("/stores/", headers=BACK).content.decode()
