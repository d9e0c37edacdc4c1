"""A person's own settings: time zone, light, keys, passwords, and where they are signed in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core import mail
from django.db import connection
from django.test.utils import CaptureQueriesContext
from kombu.exceptions import OperationalError
from pytest_django import Settings

from console import tasks
from console.models import Preferences, SignIn
from console.services.passwords import mail_link
from console.services.people import password_path
from tests.console.conftest import PASSWORD
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]

DISPLAY = {"time_zone": "Europe/Warsaw", "theme": "dark", "single_keys": ""}
NEW = "a quite different battery staple"


def test_a_person_without_a_role_has_settings_and_a_stranger_has_none(memory: RecordWriter, cyd: User) -> None:
    assert browser(cyd).get("/settings/").status_code == 200
    assert browser().get("/settings/")["Location"].startswith("/login/?next=%2Fsettings%2F")


def test_every_time_on_a_page_is_in_the_zone_of_who_reads_it_and_names_it(memory: RecordWriter, ana: User, ben: User) -> None:
    memory.action("m-1", 1, started_at="2026-07-01T21:30:00Z")
    client = browser(ana)
    assert "1 Jul 21:30 UTC" in text_of(client.get("/actions/main/m-1/1/").content.decode())

    assert client.post("/settings/", DISPLAY)["Location"] == "/settings/?saved=display#display"

    page = client.get("/actions/main/m-1/1/").content.decode()
    assert "1 Jul 23:30 CEST" in text_of(page)
    assert "21:30 UTC" not in text_of(page)
    assert 'title="2026-07-01T21:30:00Z"' in page
    assert 'data-zone="Europe/Warsaw"' in page
    assert 'data-theme="dark"' in page
    assert 'data-single-keys="off"' in page
    assert "1 Jul 21:30 UTC" in text_of(browser(ben).get("/actions/main/m-1/1/").content.decode())
    # The same on another computer, before anything was chosen there.
    assert 'data-theme="dark"' in browser(ana).get("/").content.decode()


@pytest.mark.parametrize(
    "wrong", [{"time_zone": "Mars/Olympus"}, {"theme": "blinding"}, {"time_zone": "../../etc/passwd"}, {"time_zone": "a\x00"}]
)
def test_what_cannot_be_is_refused_in_a_line_and_changes_nothing(memory: RecordWriter, ana: User, wrong: dict[str, str]) -> None:
    answer = browser(ana).post("/settings/", DISPLAY | wrong)

    assert answer.status_code == 422
    assert "Not saved" in answer.content.decode()
    assert not Preferences.objects.exists()


def test_the_pages_cost_no_statement_more_for_who_has_preferences(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    client.get("/stores/")
    with CaptureQueriesContext(connection) as before:
        client.get("/stores/")
    Preferences.objects.create(user=ana, time_zone="Asia/Tokyo")

    with CaptureQueriesContext(connection) as after:
        page = client.get("/stores/").content.decode()

    assert 'data-zone="Asia/Tokyo"' in page
    assert len(after) == len(before) > 0


def test_keys_are_switched_off_from_their_list_by_their_person_only(memory: RecordWriter, ana: User, ben: User) -> None:
    assert browser(ana).post("/settings/keys/", {"single_keys": ""}).status_code == 204

    assert [(one.user, one.single_keys) for one in Preferences.objects.all()] == [(ana, False)]
    assert "data-single-keys" not in browser(ben).get("/").content.decode()


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_says_where_it_is_and_only_its_person_ends_it(memory: RecordWriter, ana: User, ben: User) -> None:
    here, there, other = browser(ana), browser(), browser(ben)
    there.post("/login/", {"username": "ana", "password": PASSWORD}, headers={"User-Agent": "<b>X (Linux) Firefox/145.0"})
    page = here.get("/settings/").content.decode()
    assert "Firefox 145 on Linux" in page
    assert "<b>X" not in page
    assert page.count("this browser") == 1
    row = SignIn.objects.get(session_key=there.session.session_key)

    other.post("/settings/sessions/", {"session": row.pk})
    assert there.get("/").status_code == 200
    here.post("/settings/sessions/", {"session": row.pk})

    assert there.get("/").status_code == 302
    assert here.get("/").status_code == 200
    assert "Firefox" not in here.get("/settings/").content.decode()


def test_all_others_end_and_this_one_stays(memory: RecordWriter, ana: User, ben: User) -> None:
    here, others, stranger = browser(ana), [browser(ana), browser(ana)], browser(ben)

    here.post("/settings/sessions/", {"session": "others"})

    assert [client.get("/").status_code for client in (here, *others, stranger)] == [200, 302, 302, 200]


def test_a_session_that_ran_out_is_not_listed(memory: RecordWriter, ana: User) -> None:
    here, gone = browser(ana), browser(ana)
    Session.objects.filter(session_key=gone.session.session_key).update(expire_date=datetime(2020, 1, 1, tzinfo=UTC))

    assert here.get("/settings/").content.decode().count('class="tag">this browser') == 1
    assert SignIn.objects.count() == 1


# --- passwords -------------------------------------------------------------------------------------------------------


def test_a_new_password_ends_every_other_session_and_this_one_goes_on_under_a_new_key(memory: RecordWriter, ana: User) -> None:
    here, other = browser(ana), browser(ana)
    before = here.session.session_key
    form = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert here.post("/settings/password/", form | {"old_password": "wrong"}).status_code == 200
    assert other.get("/").status_code == 200

    assert here.post("/settings/password/", form)["Location"] == "/settings/"

    assert here.session.session_key != before
    assert [client.get("/").status_code for client in (here, other)] == [200, 302]
    assert [row.session_key for row in SignIn.objects.all()] == [here.session.session_key]


def test_a_link_by_mail_is_good_once_and_signs_nobody_in(memory: RecordWriter, ana: User, settings: Settings) -> None:
    User.objects.filter(pk=ana.pk).update(email="ana@example.com")
    signed_in = browser(ana)
    assert mail_link("ANA@example.com") == 1
    (sent,) = mail.outbox
    link = next(word for word in sent.body.split() if word.startswith(settings.BASE_URL)).removeprefix(settings.BASE_URL)
    assert sent.to == ["ana@example.com"]
    client = browser()
    form = client.get(link)["Location"]
    assert "too common" in client.post(form, {"new_password1": "password1234", "new_password2": "password1234"}).content.decode()

    assert client.post(form, {"new_password1": NEW, "new_password2": NEW})["Location"] == "/login/"

    assert client.get("/").status_code == 302
    assert signed_in.get("/").status_code == 302
    assert browser().post("/login/", {"username": "ana", "password": NEW})["Location"] == "/"
    assert "used already" in browser().get(link, follow=True).content.decode()


def test_asking_for_a_link_says_the_same_whoever_there_is_and_not_too_often(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(tasks.send_password_link, "delay", asked.append)

    known, unknown = (browser().post("/password/", {"who": who}) for who in ("ana", "nobody"))

    assert text_of(known.content.decode()) == text_of(unknown.content.decode())
    assert asked == ["ana", "nobody"]
    for _ in range(6):
        last = browser().post("/password/", {"who": "ana"})
    assert last.status_code == 429
    assert len(asked) < 8


def test_where_no_broker_takes_it_nobody_is_told_that_a_mail_is_on_its_way(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(said: str) -> None:
        raise OperationalError("no broker")

    monkeypatch.setattr(tasks.send_password_link, "delay", silent)

    answer = browser().post("/password/", {"who": "ana"})

    assert answer.status_code == 503
    assert "No mail can be sent now" in answer.content.decode()


def test_who_was_deactivated_or_has_no_address_gets_no_link(ana: User, ben: User) -> None:
    User.objects.filter(pk=ben.pk).update(email="ben@example.com", is_active=False)

    assert (mail_link("ana"), mail_link("ben@example.com"), mail_link("\x00")) == (0, 0, 0)
    assert mail.outbox == []
    assert browser().post(password_path(ben), {}).status_code == 200
