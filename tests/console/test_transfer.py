"""How answers travel: compressed where nobody else can have asked for them, never a stream; and not at all where they are known."""

from __future__ import annotations

import gzip

import brotli
import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory
from django_htmx.middleware import HtmxDetails

from console.services.tokens import create_user_token
from console.transfer import Compressed, Unchanged
from tests.console.view_helpers import HTMX, browser
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

OURS = {"Accept-Encoding": "gzip, deflate, br", "Sec-Fetch-Site": "same-origin"}
PART = {**HTMX, "X-Background": "1"}


@pytest.mark.parametrize(
    ("accepts", "way"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("deflate", ""),
        ("", ""),
        ("br;q=0.0", ""),
    ],
)
def test_a_page_of_ours_travels_as_its_asker_takes_it(memory: RecordWriter, ana: User, accepts: str, way: str) -> None:
    answer = browser(ana).get("/tools/", headers={**OURS, "Accept-Encoding": accepts})

    undo = {"br": brotli.decompress, "gzip": gzip.decompress, "": bytes}[way]
    assert answer.get("Content-Encoding", "") == way
    assert undo(answer.content).decode().rstrip().endswith("</html>")
    assert int(answer["Content-Length"]) == len(answer.content)
    assert {"Accept-Encoding", "Sec-Fetch-Site"} <= {name.strip() for name in answer["Vary"].split(",")}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense", None])
def test_what_another_site_may_have_asked_for_is_never_compressed(memory: RecordWriter, ana: User, site: str | None) -> None:
    said = {"Accept-Encoding": "br, gzip"} | ({"Sec-Fetch-Site": site} if site else {})
    answer = browser(ana).get("/?q=guess", headers=said)

    assert answer.status_code == 200
    assert not answer.has_header("Content-Encoding")
    assert len(answer.content) > 1_000


def test_programs_with_a_token_and_strangers_get_it_compressed(memory: RecordWriter, ana: User) -> None:
    for seq in range(1, 20):
        memory.action("billing-7", seq)
    headers = {"Authorization": f"Bearer {create_user_token(ana)}", "Accept-Encoding": "br"}

    assert Client().get("/api/v1/actions", headers=headers)["Content-Encoding"] == "br"
    assert Client().get("/metrics", headers=headers)["Content-Encoding"] == "br"
    assert Client().get("/login/", headers={"Accept-Encoding": "gzip"})["Content-Encoding"] == "gzip"


def test_streams_and_short_answers_are_left_as_they_are(rf: RequestFactory) -> None:
    stream = StreamingHttpResponse((b"x" * 5_000 for _ in range(3)), content_type="text/html")
    request = rf.get("/", headers=OURS)

    assert Compressed(lambda _: stream)(request) is stream
    for answer in (stream, browser().get("/healthz", headers=OURS)):
        assert not answer.has_header("Content-Encoding")
    assert len(b"".join(stream)) == 15_000  # nothing was read before


@pytest.mark.parametrize("path", ["/", "/incidents/banner/", "/proposals/", "/actions/main/billing-7/1/status/"])
def test_a_piece_that_did_not_change_is_not_sent_again(memory: RecordWriter, ana: User, path: str) -> None:
    memory.action("billing-7", 1)
    client = browser(ana)
    first = client.get(path, headers=PART)
    assert first.status_code == 200

    same = client.get(path, headers={**PART, "If-None-Match": first["ETag"]})

    assert (same.status_code, same.content) == (304, b"")
    assert same["ETag"] == first["ETag"]
    assert same["Cache-Control"] == first["Cache-Control"]


def test_a_piece_that_changed_is(memory: RecordWriter, ana: User) -> None:
    memory.action("billing-7", 1)
    client = browser(ana)
    first = client.get("/", headers=PART)
    memory.action("billing-7", 2)

    answer = client.get("/", headers={**PART, "If-None-Match": first["ETag"]})

    assert answer.status_code == 200
    assert answer["ETag"] != first["ETag"]
    assert "/actions/main/billing-7/2/" in answer.content.decode()


def test_the_mask_of_a_token_does_not_count_and_its_secret_does(rf: RequestFactory) -> None:
    def validator(mask: str, secret: str) -> str:
        request = rf.get("/", headers=HTMX)
        request.htmx = HtmxDetails(request)  # type: ignore[attr-defined]
        request.META["CSRF_COOKIE"] = secret
        page = HttpResponse(f'<form><input type="hidden" name="csrfmiddlewaretoken" value="{mask}">as before</form>')
        return str(Unchanged(lambda _: page)(request)["ETag"])

    assert validator("a" * 64, "s" * 32) == validator("b" * 64, "s" * 32)
    assert validator("a" * 64, "s" * 32) != validator("a" * 64, "t" * 32)


def test_a_validator_opens_nothing_to_whoever_may_not_see_it(memory: RecordWriter, ana: User, cyd: User) -> None:
    validator = browser(ana).get("/proposals/", headers=PART)["ETag"]
    for client in (browser(cyd), browser()):
        answer = client.get("/proposals/", headers={**PART, "If-None-Match": validator})
        assert answer.status_code != 304


def test_pages_and_posts_have_no_validator(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    assert not client.get("/").has_header("ETag")
    assert not client.get("/", headers={"HX-Request": "true", "HX-Boosted": "true"}).has_header("ETag")
    assert not client.post("/theme/", {"theme": "dark"}, headers=PART).has_header("ETag")
