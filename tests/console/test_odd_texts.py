"""What no database column keeps, in any field of the forms about tools, resolvers, hooks and incidents; and our own refusals, readable."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import User
from django.test import Client

from actions.resolvers import KINDS, get_kind
from actions.resolvers.base import FieldType
from console.models import Definition, Hook, Incident, Inquiry, Policy, Secret, StoredVerdict
from tests.console import own_resolver as world
from tests.console.conftest import Cast
from tests.console.view_helpers import HTMX, browser, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

SECRETS = [(kind, field.name) for kind in KINDS for field in get_kind(kind).fields if field.type is FieldType.SECRET]
HIDDEN = "[redacted]"


class _Forms(HTMLParser):
    """Each form of a page: where it is sent, by any of its buttons, and what it sends as it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[set[str], dict[str, str]]] = []
        self._is_in = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in = said.get("method") == "post"
            if self._is_in:
                self.found.append(({said["action"].partition("#")[0]}, {}))
        elif self._is_in and tag in ("input", "select", "textarea", "button"):
            if "formaction" in said:
                self.found[-1][0].add(said["formaction"].partition("#")[0])
            if said.get("name"):
                self.found[-1][1].setdefault(said["name"], said.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_in = False


def forms_of(client: Client, page: str) -> list[tuple[set[str], dict[str, str]]]:
    """The page's own forms, without those that stand on every page."""
    forms = _Forms()
    forms.feed(client.get(page).content.decode())
    return [form for form in forms.found if not form[0] & {"/logout/", "/theme/"}]


def rows() -> tuple[int, ...]:
    models = (Definition, Secret, Policy, Hook, Inquiry, StoredVerdict, Incident)
    return (*(model.objects.count() for model in models), Incident.objects.filter(closed_at=None).count())


@pytest.fixture
def eve(person: Cast) -> User:
    """She may open every form."""
    return person("eve", "admin", "operator")


@pytest.fixture
def pages(memory: RecordWriter, eve: User) -> list[str]:
    memory.lease("m-1")
    world.define(eve)
    world.name_it(eve)
    ref = memory.action("m-1", 1, args={"to": "b@example.com"})
    world.bring(world.match())
    verdict = world.ask(ref, eve)
    incident = Incident.objects.create(
        store=ref.store, agent=ref.agent, seq=1, tool="send_email", verdict=verdict, text="it is there"
    )
    browser(eve).post("/resolvers/sent-folder/hook/", {"do": "make", "provider": "generic"})
    kinds = [f"/resolvers/new/{kind}/" for kind in KINDS]
    return ["/tools/send_email/", "/simulator/", "/resolvers/sent-folder/", f"/incidents/{incident.pk}/", *kinds]


def test_what_no_column_keeps_is_refused_in_every_field_of_every_form_and_changes_nothing(pages: list[str], eve: User) -> None:
    client = browser(eve)
    before, tried = rows(), 0

    for page in pages:
        for addresses, fields in forms_of(client, page):
            for address in sorted(addresses):
                for name in fields:
                    answer = client.post(address, {**fields, name: "a\x00b"}, headers=HTMX)
                    assert answer.status_code == 422, (address, name)
                    assert "NUL character; remove it" in words_of(answer.content.decode()), (address, name)
                    tried += 1

    assert tried > 100
    assert rows() == before


def test_half_a_surrogate_pair_is_refused_and_the_form_is_drawn_again(pages: list[str], eve: User) -> None:
    client = browser(eve)
    before, tried = rows(), 0

    for page in pages:
        for addresses, fields in forms_of(client, page):
            for address in sorted(addresses):
                # No browser sends it; a charset that can spell it does. In all fields at once.
                parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\na\\ud800b\r\n' for name in fields]
                sent = "".join(parts) + "--x--\r\n"
                kind = "multipart/form-data; boundary=x; charset=unicode_escape"
                answer = client.generic("POST", address, sent.encode(), content_type=kind)
                assert answer.status_code == 422, address
                assert "half a surrogate pair" in words_of(answer.content.decode()), address
                tried += 1

    assert tried > 10
    assert rows() == before


@pytest.mark.parametrize(("kind", "field"), SECRETS)
def test_what_is_wrong_with_a_secret_can_be_read_and_does_not_repeat_it(
    memory: RecordWriter, amy: User, kind: str, field: str
) -> None:
    client = browser(amy)
    ref = memory.action("m-1", 1)
    secret = "hunter2-hunter2"
    form = {
        "name": "new",
        "seen_version": "0",
        "per_minute": "60",
        "at_once": "4",
        "action": str(ref),
        f"set-{field}": f"{secret}\x00",
    }

    answers = [client.post(f"/resolvers/new/{kind}/{rest}", form) for rest in ("", "dry-run/")]

    for answer in answers:
        said = words_of(answer.content.decode())
        assert answer.status_code == 422
        assert "contains a NUL character; remove it" in said
        assert secret not in said
        assert HIDDEN not in said


NEEDED = {
    "imap": ({"host": "imap.example.com", "user": "u"}, "Password"),
    "http": (
        {"url": "https://api.example.com/", "auth": "bearer", "key": "object.key", "objects": "body.data", "canary_key": "k"},
        "Secret",
    ),
    "stripe": ({}, "Restricted key"),
    "sql": (
        {"dsn": "postgresql://u@db.example.com/d?sslmode=verify-full", "query": "SELECT key FROM t WHERE key = :key"},
        "Password",
    ),
}


@pytest.mark.parametrize("kind", NEEDED)
def test_a_secret_that_is_missing_is_said_in_a_dry_run_in_words(memory: RecordWriter, amy: User, kind: str) -> None:
    ref = memory.action("m-1", 1)
    settings, label = NEEDED[kind]
    client = browser(amy)
    form = forms_of(client, f"/resolvers/new/{kind}/")[0][1]
    form |= {"name": "new", "action": str(ref), **{f"set-{name}": text for name, text in settings.items()}}
    form |= {f"set-{one.name}": one.default for one in get_kind(kind).fields if one.default and one.name not in settings}

    answer = client.post(f"/resolvers/new/{kind}/dry-run/", form)
    said = re.sub(r"\s+", " ", words_of(answer.content.decode()))

    assert answer.status_code == 422
    assert f"{label} : is needed" in said.replace(f"{label}: ", f"{label} : ")
    assert HIDDEN not in said
    assert not Definition.objects.exists()


def test_what_is_wrong_with_a_hooks_secret_can_be_read(memory: RecordWriter, amy: User) -> None:
    world.define(amy)
    client = browser(amy)
    client.post("/resolvers/sent-folder/hook/", {"do": "make", "provider": "generic"})

    answer = client.post("/resolvers/sent-folder/hook/", {"do": "secret", "hook_secret": "short-hunter2"})
    said = words_of(answer.content.decode())

    assert answer.status_code == 422
    assert "16 to 200 printable characters without spaces" in said
    assert "hunter2" not in said + HIDDEN
    assert HIDDEN not in said


@pytest.mark.parametrize(
    ("kind", "typed", "field"),
    [
        ("stripe", {"api_base": "https://127.0.0.1/"}, "api_base"),
        ("sql", {"dsn": "postgresql://u@127.0.0.1/d", "query": "x"}, "dsn"),
    ],
)
def test_an_address_that_is_refused_is_said_before_a_secret_is_asked_for(
    memory: RecordWriter, amy: User, kind: str, typed: dict[str, str], field: str
) -> None:
    form = {"name": "new", "seen_version": "0", "per_minute": "60", "at_once": "4"}

    answer = browser(amy).post(f"/resolvers/new/{kind}/", form | {f"set-{name}": text for name, text in typed.items()})
    html = answer.content.decode()

    assert answer.status_code == 422
    assert html.count('class="error"') == 1
    assert 'class="error"' in html.split(f'id="field-set-{field}"')[1].split('<div class="setting')[0]
    assert not Definition.objects.exists()
