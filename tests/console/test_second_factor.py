"""Second factors: asked for after the password, limited, kept encrypted, and required of whoever may change anything where that is set."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, generate_totp_secret, hotp_value
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from pytest_django import Settings

from console.identity import confirmed_at
from console.services.sealing import reseal_all, unseal
from tests.console.conftest import PASSWORD, Cast
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


@pytest.fixture(autouse=True)
def _one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half minute of a code does not turn between its making and its typing."""
    step = int(time.time()) // 30
    monkeypatch.setattr(auth, "yield_hotp_counters_from_time", lambda: iter([step]))


def code_of(secret: str, steps: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, next(auth.yield_hotp_counters_from_time()) + steps))


def wrong(secret: str) -> str:
    right = {code_of(secret, step) for step in range(-3, 4)}
    return next(
        code for code in ("000000", "111111", "222222", "333333", "444444", "555555", "666666", "777777") if code not in right
    )


@pytest.fixture
def secret(ana: User) -> str:
    """Ana has an authenticator app."""
    secret = generate_totp_secret()
    TOTP.activate(ana, secret)
    return secret


def past_the_password(**more: str) -> Client:
    client = browser()
    assert client.post("/login/", {"username": "ana", "password": PASSWORD, **more})["Location"] == "/login/code/"
    return client


def test_the_password_alone_lets_nobody_in_who_has_an_app_and_the_code_leads_to_where_one_wanted_to_be(
    memory: RecordWriter, secret: str
) -> None:
    client = past_the_password(next="/stores/")
    assert client.get("/").status_code == 302

    refused = client.post("/login/code/", {"code": wrong(secret)})
    assert "Incorrect code" in text_of(refused.content.decode())
    assert client.get("/").status_code == 302

    assert client.post("/login/code/", {"code": code_of(secret)})["Location"] == "/stores/"
    assert client.get("/stores/").status_code == 200


def test_a_code_is_good_once(memory: RecordWriter, secret: str) -> None:
    code = code_of(secret)
    past_the_password().post("/login/code/", {"code": code})

    second = past_the_password()
    answer = second.post("/login/code/", {"code": code})

    assert answer.status_code == 200
    assert second.get("/").status_code == 302


def test_after_five_wrong_codes_even_the_right_one_waits_in_whatever_browser(memory: RecordWriter, secret: str) -> None:
    guessing = past_the_password()
    for _ in range(5):
        guessing.post("/login/code/", {"code": wrong(secret)})

    client = past_the_password()
    answer = client.post("/login/code/", {"code": code_of(secret)})

    assert "Too many" in text_of(answer.content.decode())
    assert client.get("/").status_code == 302


def test_setting_up_an_app_asks_for_the_password_and_shows_the_recovery_codes_once(memory: RecordWriter, ana: User) -> None:
    client = browser()
    client.post("/login/", {"username": "ana", "password": PASSWORD})
    assert client.get("/settings/app/")["Location"] == "/confirm/?next=%2Fsettings%2Fapp%2F"
    assert "That is not your password" in text_of(client.post("/confirm/", {"password": "wrong"}).content.decode())
    assert client.post("/confirm/?next=/settings/app/", {"password": PASSWORD})["Location"] == "/settings/app/"
    page = client.get("/settings/app/").content.decode()
    found = re.search(r"<code>([A-Z2-7]{32})</code>", page)
    assert found
    assert 'src="data:image/svg+xml' in page

    code = code_of(found[1])
    answer = client.post("/settings/app/", {"code": code})

    assert answer["Location"] == "/settings/recovery-codes/"
    # It has been used with that: whoever read it over a shoulder does not come in.
    assert past_the_password().post("/login/code/", {"code": code}).status_code == 200
    codes = re.findall(r"<li>(\d{8})</li>", client.get("/settings/recovery-codes/").content.decode())
    assert len(codes) == 10
    assert not re.findall(r"<li>\d{8}</li>", client.get("/settings/recovery-codes/").content.decode())
    # A recovery code lets in once.
    for status in (302, 200):
        assert past_the_password().post("/login/code/", {"code": codes[0]}).status_code == status


def test_secrets_stand_encrypted_in_the_database_and_follow_a_rotation_of_the_keys(
    memory: RecordWriter, ana: User, secret: str, settings: Settings
) -> None:
    kept = Authenticator.objects.get(user=ana).data["secret"]
    assert secret not in kept
    assert unseal(kept.encode()) == secret
    settings.SECRETS_KEYS = ("YW5vdGhlci1rZXktb2YtMzItYnl0ZXMtZm9yLXRlc3Q=", *settings.SECRETS_KEYS)

    assert reseal_all() == (1, ())

    settings.SECRETS_KEYS = settings.SECRETS_KEYS[:1]
    assert past_the_password().post("/login/code/", {"code": code_of(secret)}).status_code == 302


@pytest.mark.parametrize(("role", "must"), [("operator", True), ("approver", True), ("admin", True), ("viewer", False)])
def test_where_it_is_required_whoever_may_change_anything_gets_to_their_settings_only(
    memory: RecordWriter, person: Cast, settings: Settings, role: str, must: bool
) -> None:
    settings.REQUIRE_SECOND_FACTOR = True
    client = browser(person("eve", role))

    answer = client.get("/")

    assert answer.headers.get("Location") == ("/settings/#second-factor" if must else None)
    assert ("A second factor is needed" in client.get("/settings/").content.decode()) is must
    TOTP.activate(User.objects.get(username="eve"), generate_totp_secret())
    assert client.get("/").status_code == 200


# --- confirming ------------------------------------------------------------------------------------------------------


def when(client: Client, user: User) -> datetime | None:
    request = RequestFactory().get("/")
    request.session = client.session
    request.user = user
    return confirmed_at(request)


def test_it_is_known_when_somebody_proved_who_they_are_and_an_open_browser_proves_nothing(
    memory: RecordWriter, ana: User, bea: User
) -> None:
    client = browser(ana)
    assert when(client, ana) is None

    before = datetime.now(UTC) - timedelta(seconds=1)
    assert client.post("/confirm/?next=/stores/", {"password": PASSWORD})["Location"] == "/stores/"

    proved = when(client, ana)
    assert proved is not None
    assert before < proved <= datetime.now(UTC)
    assert when(client, bea) is None
    client.post("/confirm/", {"password": "wrong"})
    assert when(client, ana) == proved


def test_a_code_confirms_too(memory: RecordWriter, ana: User, secret: str) -> None:
    client = browser(ana)
    assert "Use a code" in client.get("/confirm/?next=/stores/").content.decode()

    assert client.post("/confirm/code/?next=/stores/", {"code": code_of(secret)})["Location"] == "/stores/"

    assert when(client, ana) is not None


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_confirming_never_leads_to_another_site(memory: RecordWriter, ana: User, elsewhere: str) -> None:
    assert browser(ana).post("/confirm/", {"password": PASSWORD, "next": elsewhere})["Location"] == "/"


def test_strangers_confirm_nothing(db: None) -> None:
    assert browser().get("/confirm/")["Location"].startswith("/login/")


def test_who_has_nothing_to_confirm_by_is_led_to_where_a_first_factor_is_set_up(memory: RecordWriter, ana: User) -> None:
    ana.set_unusable_password()
    ana.save()
    client = browser(ana)

    there = client.get("/confirm/?next=/stores/")["Location"]

    assert there == "/settings/?needs=factor#second-factor"
    assert "nothing to confirm it by" in client.get(there).content.decode()
    assert client.get("/settings/app/").status_code == 200
    assert when(client, ana) is None
