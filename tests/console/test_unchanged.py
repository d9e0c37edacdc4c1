"""What a live part shows already is not sent again, and what is sent is compressed; neither ever goes past a look at rights."""

from __future__ import annotations

import gzip

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db
PIECE = {"HX-Request": "true", "HX-Target": "queue"}


def test_a_piece_that_says_the_same_is_answered_with_304_and_nothing_else(
    client: Client, ana: User, memory: RecordWriter
) -> None:
    memory.lease("billing-7", state="expired")
    memory.action("billing-7", 1)
    client.force_login(ana)
    first = client.get("/?tool=send_email", headers=PIECE)

    again = client.get("/?tool=send_email", headers={**PIECE, "If-None-Match": first["ETag"]})
    weakly = client.get("/?tool=send_email", headers={**PIECE, "If-None-Match": f"W/{first['ETag']}"})

    assert b"csrfmiddlewaretoken" in first.content  # masked anew each time, and no news
    assert [(one.status_code, one.content, one["ETag"]) for one in (again, weakly)] == [(304, b"", first["ETag"])] * 2
    assert again["Cache-Control"] == "no-store"
    assert "HX-Request" in again["Vary"]


def test_a_piece_that_changed_is_sent_whole(client: Client, ana: User, memory: RecordWriter) -> None:
    memory.lease("billing-7", state="expired")
    memory.action("billing-7", 1)
    client.force_login(ana)
    first = client.get("/", headers=PIECE)
    memory.action("billing-7", 2)

    again = client.get("/", headers={**PIECE, "If-None-Match": first["ETag"]})

    assert again.status_code == 200
    assert again["ETag"] != first["ETag"]
    assert again.content.count(b'class="strip') > first.content.count(b'class="strip')


def test_a_tag_opens_no_page_to_who_may_not_see_it_and_a_whole_page_has_none(
    client: Client, ana: User, memory: RecordWriter
) -> None:
    memory.lease("billing-7", state="expired")
    memory.action("billing-7", 1)
    client.force_login(ana)
    tag = client.get("/", headers=PIECE)["ETag"]
    whole = client.get("/", headers={"If-None-Match": tag})
    client.logout()

    stranger = client.get("/", headers={**PIECE, "If-None-Match": tag})

    assert (whole.status_code, "ETag" in whole) == (200, False)
    assert stranger.status_code != 304
    assert b"billing-7" not in stranger.content


def test_pages_and_pieces_are_compressed_and_say_the_same(client: Client, ana: User, memory: RecordWriter) -> None:
    memory.lease("billing-7", state="expired")
    memory.action("billing-7", 1)
    client.force_login(ana)
    plain = client.get("/agents/", headers=PIECE)

    packed = client.get("/agents/", headers={**PIECE, "Accept-Encoding": "gzip"})

    assert packed["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed["Vary"]
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) < len(plain.content)
    unchanged = client.get("/agents/", headers={**PIECE, "Accept-Encoding": "gzip", "If-None-Match": packed["ETag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
