"""Coming in and going out: throttled, back to where one wanted to be, ended when nobody is there; and what every answer carries."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from console import middleware
from tests.console.conftest import PASSWORD
from tests.console.view_helpers import HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PAGES = (
    "/",
    "/actions/main/m-1/1/",
    "/actions/main/m-1/1/arguments/",
    "/agents/main/m-1/",
    "/history/",
    "/stores/",
    "/nothing/",
    "/?state=x",
)


def sign_in(client: Client, password: str = PASSWORD, **fields: str) -> object:
    return client.post("/login/", {"username": "ana", "password": password, **fields})


def test_it_lets_in_and_leads_to_where_one_wanted_to_be(memory: RecordWriter, ana: User) -> None:
    client = browser()

    response = sign_in(client, next="/stores/")

    assert response["Location"] == "/stores/"  # type: ignore[index]
    assert client.get("/stores/").status_code == 200


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_it_never_leads_to_another_site(memory: RecordWriter, ana: User, elsewhere: str) -> None:
    assert sign_in(browser(), next=elsewhere)["Location"] == "/"  # type: ignore[index]


def test_a_wrong_password_says_no_more_than_that(memory: RecordWriter, ana: User) -> None:
    known = browser().post("/login/", {"username": "ana", "password": "wrong"})
    unknown = browser().post("/login/", {"username": "nobody", "password": "wrong"})

    assert known.status_code == unknown.status_code == 200
    assert "do not match" in text_of(known.content.decode())
    assert text_of(known.content.decode()) == text_of(unknown.content.decode())


def test_after_five_wrong_passwords_even_the_right_one_waits(memory: RecordWriter, ana: User) -> None:
    client = browser()
    for _ in range(5):
        sign_in(client, "wrong")

    response = sign_in(client)

    assert response.status_code == 429  # type: ignore[attr-defined]
    assert "Too many wrong passwords. Try again in 15 minutes." in text_of(response.content.decode())  # type: ignore[attr-defined]
    assert client.get("/").status_code == 302


def test_going_out_needs_a_post(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)

    assert client.get("/logout/")["Location"] == "/"
    assert client.get("/").status_code == 200
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_the_session_gets_a_new_key_at_the_login(memory: RecordWriter, ana: User) -> None:
    client = browser()
    client.get("/login/")
    client.cookies["sessionid"] = "chosen-by-somebody-else"

    sign_in(client)

    assert client.cookies["sessionid"].value != "chosen-by-somebody-else"


def test_a_session_that_nobody_used_ends(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    client = browser(ana)
    client.get("/")
    _wind_clock(monkeypatch, settings.SESSION_IDLE_TIMEOUT - timedelta(minutes=1))
    assert client.get("/").status_code == 200
    _wind_clock(monkeypatch, settings.SESSION_IDLE_TIMEOUT * 2 - timedelta(minutes=2))
    assert client.get("/").status_code == 200

    _wind_clock(monkeypatch, settings.SESSION_IDLE_TIMEOUT * 4)

    assert client.get("/")["Location"] == "/login/?next=%2F&ended=get"


def test_what_a_page_fetches_by_itself_keeps_no_session_alive(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    client = browser(ana)
    client.get("/")
    _wind_clock(monkeypatch, settings.SESSION_IDLE_TIMEOUT - timedelta(minutes=1))
    client.get("/", headers={**HTMX, "X-Background": "1"})

    _wind_clock(monkeypatch, settings.SESSION_IDLE_TIMEOUT + timedelta(minutes=1))

    assert client.get("/").status_code == 302


def _wind_clock(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    import time

    now = time.time()
    monkeypatch.setattr(middleware, "now_s", lambda: int(now + by.total_seconds()))


def test_every_background_request_of_the_pages_says_so(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1)
    client = browser(ana)

    for path in ("/?open=main/m-1/1", "/actions/main/m-1/1/"):
        for element in re.findall(r"<[a-z]+ [^>]*hx-trigger=\"changed[^>]*>", client.get(path).content.decode()):
            assert "data-live-part" in element  # settle.js gives what such a part asks the header X-Background


def test_the_light_is_kept_in_a_cookie_and_leads_back_to_this_site_only(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)

    response = client.post("/theme/", {"theme": "dark", "next": "/stores/"})

    assert response["Location"] == "/stores/"
    assert 'data-theme="dark"' in client.get("/").content.decode()
    assert client.post("/theme/", {"theme": "auto", "next": "https://evil.example/"})["Location"] == "/"
    assert "data-theme" not in client.get("/").content.decode()
    assert client.get("/theme/")["Location"] == "/"


@pytest.mark.parametrize("path", [*PAGES, "/login/"])
def test_every_page_carries_the_headers_and_nothing_inline(memory: RecordWriter, ana: User, path: str) -> None:
    memory.action("m-1", 1)

    response = (browser() if path == "/login/" else browser(ana)).get(path)
    html = response.content.decode()

    policy = response["Content-Security-Policy"]
    assert "'unsafe" not in policy
    for part in ("default-src 'self'", "frame-ancestors 'none'", "object-src 'none'", "base-uri 'none'"):
        assert part in policy
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Referrer-Policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", html)
    assert "<style" not in html
    assert not re.search(r"\sstyle=|\son[a-z]+=|hx-on|javascript:", html)
    assert '"allowEval":false' in unescape(html)


def test_the_pages_for_what_went_wrong_are_drawn(memory: RecordWriter, ana: User, settings: Settings) -> None:
    client = browser(ana)
    client.raise_request_exception = False

    for path, status, words in (("/nothing/", 404, "Not here"), ("/?state=x", 400, "cannot be understood")):
        response = client.get(path)
        assert response.status_code == status
        assert words in response.content.decode()
        assert "<html" in response.content.decode()
        assert "<html" not in client.get(path, headers=HTMX).content.decode()


def test_a_mistake_of_ours_is_drawn_and_promises_nothing(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser(ana)
    client.raise_request_exception = False
    monkeypatch.setattr("console.views.store.visible_stores", lambda user: 1 / 0)

    response = client.get("/stores/")

    assert response.status_code == 500
    assert "It is not known whether what you sent was written" in text_of(response.content.decode())
    assert "ZeroDivision" not in response.content.decode()


# --- a page that outlived its session --------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "page"])
def test_a_post_after_signing_out_elsewhere_is_told_that_nothing_was_written(db: None, headers: dict[str, str]) -> None:
    response = browser().post("/actions/main/m-1/1/decision/", {"reason": "x"}, headers=headers)

    assert "ended=post" in (response.headers.get("HX-Redirect") or response["Location"])


@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "page"])
def test_a_post_of_another_persons_page_says_who_is_signed_in_now(ana: User, bea: User, headers: dict[str, str]) -> None:
    client = browser(bea, enforce_csrf_checks=True)

    response = client.post("/actions/main/m-1/1/decision/", {"opened_by": "ana", "csrfmiddlewaretoken": "old"}, headers=headers)

    assert response.status_code == 403
    said = text_of(response.content.decode())
    assert "You are signed in as bea now; this page was opened by ana. Nothing was written." in said
