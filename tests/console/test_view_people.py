"""People, by admins: roles, who may come in, second factors; never the last admin, and every change ends what was open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from pytest_django import Settings

from console.models import Change, Grant, Role
from console.services.changes import PEOPLE
from console.services.people import LastAdmin, set_active, take_role
from tests.console.conftest import Cast
from tests.console.entries import console_entries
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]


def roles_of(user: User) -> list[tuple[str, str, str]]:
    return sorted(Grant.objects.filter(user=user).values_list("role", "store", "tool"))


def path_of(user: User) -> str:
    return f"/people/{user.pk}/"


@pytest.mark.parametrize("path", ["/people/", "/people/{}/", "/notifications/"])
def test_it_is_for_admins_of_everything_alone(memory: RecordWriter, ana: User, amy: User, person: Cast, path: str) -> None:
    path = path.format(ana.pk)
    assert browser(amy).get(path).status_code == 200

    for other in (ana, person("eve", ("admin", "main", ""))):
        assert browser(other).get(path).status_code == 403
        assert browser(other).post(path, {"do": "give", "role": "admin", "username": "x"}).status_code == 403
    assert browser().get(path).status_code == 302
    assert roles_of(ana) == [("operator", "", "")]
    assert User.objects.filter(username="x").count() == 0


def test_everybody_is_listed_with_what_they_may_do(memory: RecordWriter, amy: User, dot: User, cyd: User) -> None:
    TOTP.activate(dot, generate_totp_secret())

    said = text_of(browser(amy).get("/people/").content.decode())

    assert "dot operator in main for open_ticket authenticator app" in said
    assert "cyd no role password only" in said


def test_a_role_is_given_for_a_store_and_a_tool_and_taken_away_exactly(memory: RecordWriter, amy: User, cyd: User) -> None:
    admin = browser(amy)

    for form in ({"role": "viewer"}, {"role": "operator", "store": "main", "tool": "send_email"}):
        assert admin.post(path_of(cyd), {"do": "give", **form})["Location"] == path_of(cyd)
    assert roles_of(cyd) == [("operator", "main", "send_email"), ("viewer", "", "")]
    admin.post(path_of(cyd), {"do": "take", "role": "operator"})
    assert len(roles_of(cyd)) == 2
    admin.post(path_of(cyd), {"do": "take", "role": "operator", "store": "main", "tool": "send_email"})

    assert roles_of(cyd) == [("viewer", "", "")]


@pytest.mark.parametrize(
    "form", [{"role": "king"}, {"role": "viewer", "store": "nowhere"}, {"role": "viewer", "tool": "x" * 256}, {"role": "v\x00"}]
)
def test_a_role_that_cannot_be_is_refused_and_nothing_is_changed(
    memory: RecordWriter, amy: User, cyd: User, form: dict[str, str]
) -> None:
    answer = browser(amy).post(path_of(cyd), {"do": "give", **form})

    assert answer.status_code == 422
    assert "Nothing was changed" in answer.content.decode()
    assert roles_of(cyd) == []


def test_a_change_of_roles_ends_the_sessions_and_streams_of_its_person_and_is_entered(
    memory: RecordWriter, amy: User, ana: User, ben: User
) -> None:
    theirs, another, admin = browser(ana), browser(ben), browser(amy)
    theirs.get("/")
    before = Change.objects.filter(store=PEOPLE).values_list("number", flat=True).first() or 0

    admin.post(path_of(ana), {"do": "take", "role": "operator"})

    assert theirs.get("/")["Location"].startswith("/login/")
    assert another.get("/").status_code == 200
    assert admin.get("/people/").status_code == 200
    assert Change.objects.get(store=PEOPLE).number > before
    entry = console_entries()[0]
    assert (entry.kind, entry.actor, entry.detail["about"]) == ("role_changed", "admin amy", "ana")
    assert entry.detail["changed"] == {"roles": [["operator"], []]}


def test_whose_own_roles_change_goes_on_under_a_new_key(memory: RecordWriter, amy: User) -> None:
    admin, elsewhere = browser(amy), browser(amy)
    before = admin.session.session_key

    admin.post(path_of(amy), {"do": "give", "role": "viewer"})

    assert admin.session.session_key != before
    assert admin.get("/people/").status_code == 200
    assert elsewhere.get("/people/").status_code == 302


def test_the_last_admin_stays_and_a_limited_one_does_not_count(memory: RecordWriter, amy: User, person: Cast) -> None:
    person("eve", ("admin", "main", ""))
    person("old", "admin", is_active=False)
    admin = browser(amy)

    answer = admin.post(path_of(amy), {"do": "take", "role": "admin"})

    assert answer.status_code == 409
    assert "amy is the last admin of everything" in answer.content.decode()
    assert roles_of(amy) == [("admin", "", "")]
    assert admin.post(path_of(amy), {"do": "deactivate"}).status_code == 422
    person("bob", "admin")
    assert admin.post(path_of(amy), {"do": "take", "role": "admin"}).status_code == 302
    assert roles_of(amy) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["take", "deactivate"])
def test_of_two_admins_who_remove_each_other_at_once_one_stays(settings: Settings, person: Cast, how: str) -> None:
    amy, bob = person("amy", "admin"), person("bob", "admin")

    def remove(pair: tuple[User, User]) -> str:
        by, other = (User.objects.get(pk=one.pk) for one in pair)
        try:
            if how == "take":
                take_role(other, Role.ADMIN, by=by)
            else:
                set_active(other, False, by=by)
        except LastAdmin:
            return "last"
        except Exception as exc:  # who was removed first may nothing any more
            return type(exc).__name__
        finally:
            connection.close()
        return "done"

    with ThreadPoolExecutor(2) as both:
        became = sorted(both.map(remove, [(amy, bob), (bob, amy)]))

    assert became in (["done", "last"], ["PermissionDenied", "done"])
    assert Grant.objects.filter(role="admin", user__is_active=True).count() == 1


def test_who_is_deactivated_is_out_at_once_and_comes_in_again_when_let(memory: RecordWriter, amy: User, ana: User) -> None:
    theirs, admin = browser(ana), browser(amy)

    admin.post(path_of(ana), {"do": "deactivate"})

    assert theirs.get("/").status_code == 302
    assert sign_in("ana").status_code == 200
    admin.post(path_of(ana), {"do": "activate"})
    assert sign_in("ana").status_code == 302


def sign_in(name: str) -> object:
    from tests.console.conftest import PASSWORD

    return Client().post("/login/", {"username": name, "password": PASSWORD})


@pytest.mark.parametrize("what", ["email", "deactivate", "reset", "link", "end"])
def test_only_a_superuser_changes_the_account_of_a_superuser(memory: RecordWriter, amy: User, person: Cast, what: str) -> None:
    root = person("root", is_superuser=True, email="root@example.com")
    TOTP.activate(root, generate_totp_secret())
    theirs = browser(root)
    theirs.get("/")

    answer = browser(amy).post(path_of(root), {"do": what, "email": "amy@example.com"})

    assert answer.status_code == 403
    assert "/password/" not in answer.content.decode()
    root.refresh_from_db()
    assert (root.email, root.is_active, Authenticator.objects.count()) == ("root@example.com", True, 1)
    assert theirs.get("/").status_code == 200


def test_a_lost_second_factor_is_taken_off_by_an_admin(memory: RecordWriter, amy: User, ana: User) -> None:
    TOTP.activate(ana, generate_totp_secret())

    browser(amy).post(path_of(ana), {"do": "reset"})

    assert not Authenticator.objects.filter(user=ana).exists()
    assert sign_in("ana")["Location"] == "/"  # type: ignore[index]


def test_somebody_new_chooses_a_password_behind_a_link_that_is_shown_once(
    memory: RecordWriter, amy: User, settings: Settings
) -> None:
    admin = browser(amy)
    page = admin.post("/people/", {"username": "new.person", "email": "new@example.com"}).content.decode()
    link = next(word for word in text_of(page).split() if word.startswith(settings.BASE_URL + "/password/"))
    stranger = browser()
    form = stranger.get(link.removeprefix(settings.BASE_URL))["Location"]

    stranger.post(form, {"new_password1": "correct horse battery staple", "new_password2": "correct horse battery staple"})

    assert sign_in("new.person")["Location"] == "/"  # type: ignore[index]
    assert roles_of(User.objects.get(username="new.person")) == []
    assert "/password/" not in admin.get("/people/").content.decode()


@pytest.mark.parametrize(("name", "email"), [("ANA", ""), ("a b", ""), ("", ""), ("eve", "no address"), ("e\x00", "")])
def test_nobody_is_added_who_cannot_be(memory: RecordWriter, amy: User, ana: User, name: str, email: str) -> None:
    answer = browser(amy).post("/people/", {"username": name, "email": email})

    assert answer.status_code == 422
    assert "Nobody was added" in answer.content.decode()
    assert User.objects.count() == 2
