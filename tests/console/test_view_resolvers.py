"""Resolvers in the browser: definitions, write-only secrets, versions, dry runs that change nothing, and trying expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from console.models import Decision, Definition, Inquiry, Pace, Secret, StoredVerdict
from console.services.hooks import make_hook
from tests.console import own_resolver as world
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import HTMX, browser, words_of
from tests.recall_writer import RecordWriter
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

SECRET = "token-xyzzy-0123456789"


@pytest.fixture
def provider(settings: Settings) -> Iterator[WebServer]:
    """A provider that lists one payment, whatever is asked."""
    payment = {"id": "pay_1", "key": "", "to": "<script>alert(1)</script>", "amount": "120.00", "currency": "EUR"}

    def answer(asked: Asked, talk: Conversation) -> None:
        key = asked.target.partition("key=")[2]
        talk.answer(200, json.dumps({"data": [{**payment, "key": key}]}).encode())

    with serve(answer) as server:
        settings.RESOLVER_ALLOWED_HOSTS = (server.host,)
        yield server


def http_form(url: str = "https://api.example.com/v1/payments", **changes: str) -> dict[str, str]:
    """The form of an http resolver as an admin fills it in."""
    own = {
        "url": url,
        "params": "key={key}",
        "auth": "bearer",
        "secret": SECRET,
        "objects": "body.data",
        "key": "object.key",
        "id": "object.id",
        "amount": "object.amount",
        "currency": "object.currency",
    }
    fields = {f"set-{name}": value for name, value in own.items()}
    return {"name": "provider", "seen_version": "0", "per_minute": "60", "at_once": "4", "is_enabled": "yes", **fields, **changes}


def make(client: Client, **changes: str) -> Any:
    return client.post("/resolvers/new/http/", http_form(**changes))


def counts() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (Decision, Inquiry, StoredVerdict, Pace, Definition, Secret))


def test_an_admin_makes_a_resolver_and_nobody_ever_sees_its_secret(memory: RecordWriter, amy: User, ana: User) -> None:
    client = browser(amy)

    made = make(client)
    pages = "".join(client.get(path).content.decode() for path in ("/resolvers/", "/resolvers/provider/", made["Location"]))

    assert made.status_code == 302
    assert "Saved as version 1" in words_of(pages)
    assert "Set by amy" in pages
    assert "Leave empty to keep it" in pages
    assert SECRET not in pages + browser(ana).get("/resolvers/provider/").content.decode()
    assert SECRET.encode() not in bytes(Secret.objects.get().ciphertext)


def test_every_kind_has_a_form_with_help_beside_each_field(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)

    listed = client.get("/resolvers/").content.decode()

    for kind in ("imap", "http", "stripe", "sql", "python"):
        assert f'href="/resolvers/new/{kind}/"' in listed
        html = client.get(f"/resolvers/new/{kind}/").content.decode()
        inputs = html.count(' name="set-')
        assert inputs > 0
        assert html.count('id="field-set-') == 2 * inputs  # the field and its help
    assert client.get("/resolvers/new/carrier-pigeon/").status_code == 404


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"set-url": "ftp://api.example.com/"}, "set-url", ""),
        ({"set-key": "object.key +"}, "set-key", "line 1, column"),
        ({"set-secret": ""}, "set-secret", "is needed"),
        ({"set-timeout_s": "soon"}, "set-timeout_s", "is no number"),
        ({"name": "Not A Name"}, "name", "small letters"),
        ({"per_minute": "many"}, "per_minute", "a whole number"),
        ({"at_once": "99"}, "at_once", "from 1 to 32"),
    ],
)
def test_what_is_wrong_stands_at_its_field_and_the_secret_is_not_sent_back(
    memory: RecordWriter, amy: User, changes: dict[str, str], field: str, problem: str
) -> None:
    answer = make(browser(amy), **changes)
    html = answer.content.decode()

    assert answer.status_code == 422
    at_field = html.split(f'id="field-{field}"')[1].split('<div class="setting')[0]
    assert 'class="error"' in at_field
    assert problem in words_of(at_field)
    assert 'value="body.data"' in html or "body.data" in html
    assert "type them again" in html
    assert SECRET not in html
    assert not Definition.objects.exists()
    assert not Secret.objects.exists()


def test_a_new_version_keeps_the_secret_and_shows_what_changed(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    make(client)

    client.post(
        "/resolvers/provider/", http_form(**{"seen_version": "1", "set-secret": "", "set-id": "object.number", "is_enabled": ""})
    )
    said = words_of(client.get("/resolvers/provider/").content.decode())

    assert Definition.objects.count() == 2
    assert Secret.objects.count() == 1
    assert "Its id object.id became object.number" in said
    assert "In use yes became no" in said
    assert "Switched off." in said


def test_a_new_address_asks_for_the_secret_again_and_says_so(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    make(client)

    page = client.get("/resolvers/provider/").content.decode()
    moved = client.post(
        "/resolvers/provider/", http_form("https://elsewhere.example/", **{"seen_version": "1", "set-secret": ""})
    )

    assert "Changing Address or Header asks for them anew" in words_of(page)
    assert moved.status_code == 422
    assert "is needed" in words_of(moved.content.decode().split('id="field-set-secret"')[1])
    assert Definition.objects.count() == 1


def test_a_stale_form_is_told_and_keeps_what_was_typed_but_the_secret(memory: RecordWriter, amy: User, person: Cast) -> None:
    client = browser(amy)
    make(client)
    browser(person("eve", "admin")).post("/resolvers/provider/", http_form(**{"seen_version": "1", "set-id": "object.theirs"}))

    answer = client.post("/resolvers/provider/", http_form(**{"seen_version": "1", "set-id": "object.mine"}))
    html = answer.content.decode()

    assert answer.status_code == 409
    assert "Version 2 by eve" in words_of(html)
    assert "object.id became object.theirs" in words_of(html)
    assert "object.mine" in html
    assert SECRET not in html
    assert Definition.objects.count() == 2


def test_a_name_that_is_taken_is_said_at_its_field(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    make(client)

    answer = make(client, **{"set-id": "object.other"})

    assert answer.status_code == 409
    assert "there is a resolver provider already" in words_of(answer.content.decode())
    assert Definition.objects.count() == 1


def test_only_admins_of_everything_write_and_only_readers_of_everything_read(
    memory: RecordWriter, ana: User, amy: User, dot: User, person: Cast
) -> None:
    make(browser(amy))
    eve = person("eve", ("admin", "", "send_email"), "viewer")
    ref = memory.action("m-1", 1)

    for user in (ana, eve):
        client = browser(user)
        page = client.get("/resolvers/provider/").content.decode()
        assert "settings-form" not in page
        assert "api.example.com" in page
        assert client.get("/resolvers/new/http/").status_code == 403
        assert make(client).status_code == 403
        assert client.post("/resolvers/provider/", http_form(seen_version="1")).status_code == 403
        for rest in ("dry-run", "expressions"):
            assert client.post(f"/resolvers/provider/{rest}/", {"action": str(ref)}).status_code == 403
            assert client.post(f"/resolvers/new/http/{rest}/", http_form(action=str(ref))).status_code == 403
    for path in ("/resolvers/", "/resolvers/provider/"):
        answer = browser(dot).get(path)
        assert answer.status_code == 403
        assert "api.example.com" not in answer.content.decode()
    assert Definition.objects.count() == 1


def test_a_refused_post_does_not_say_the_secret_again(memory: RecordWriter, amy: User) -> None:
    client = browser(amy, enforce_csrf_checks=True)

    refused = make(client)

    assert refused.status_code == 403
    assert SECRET not in refused.content.decode()
    assert not Definition.objects.exists()


# --- dry runs --------------------------------------------------------------------------------------------------------


def test_a_dry_run_of_a_form_that_is_not_saved_shows_question_answer_and_rule_and_stores_nothing(
    memory: RecordWriter, amy: User, provider: WebServer
) -> None:
    ref = memory.action("m-1", 1, tool="create_payment", args={"amount": 120, "currency": "EUR", "payee": "ACME"})
    before = counts()

    answer = browser(amy).post("/resolvers/new/http/dry-run/", http_form(f"http://{provider.host}/v1/payments", action=str(ref)))
    html = answer.content.decode()
    said = words_of(html)

    assert answer.status_code == 200
    assert "found by our key; the fields agree" in said
    assert "A person would be shown that it happened, and would decide." in said
    assert f"GET http://{provider.host}/v1/payments?key=" in said
    assert "amount 120 120.00" in said
    assert "exact" in said
    assert SECRET not in html
    assert provider.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert counts() == before
    assert memory.body_of("m-1:act:1")["status"] == "started"


def test_a_dry_run_says_what_would_be_settled_and_settles_nothing(memory: RecordWriter, amy: User) -> None:
    ref = memory.action("m-1", 1, args={"to": "b@example.com"})
    memory.lease("m-1")
    world.define(amy)
    world.name_it(amy, mode="settle")
    world.bring(world.match())
    before = counts()

    answer = browser(amy).post("/resolvers/sent-folder/dry-run/", {"open_action": str(ref)}, headers=HTMX)
    said = words_of(answer.content.decode())

    assert "Dry run, as saved" in said
    assert "It would be settled by itself, as done" in said
    assert "Policy 1." in said
    assert "<html" not in answer.content.decode()
    assert counts() == before
    assert memory.body_of("m-1:act:1")["status"] == "started"


def test_a_dry_run_of_a_failed_call_that_turns_up_would_open_an_incident(memory: RecordWriter, amy: User) -> None:
    ref = memory.action("m-1", 1, args={"to": "b@example.com"}, status="failed")
    world.define(amy)
    world.bring(world.match())

    said = words_of(browser(amy).post("/resolvers/sent-folder/dry-run/", {"action": str(ref)}).content.decode())

    assert "an incident would be opened" in said
    assert not Inquiry.objects.exists()


@pytest.mark.parametrize(
    ("data", "status", "problem"),
    [
        ({}, 409, "choose an action"),
        ({"action": "nonsense"}, 409, "names no action"),
        ({"action": "main/m-9/1"}, 404, "no such action"),
        ({"action": "main/m-1/2"}, 409, "it only read"),
        ({"action": "main/broken-1/1"}, 409, "unreadable"),
    ],
)
def test_a_dry_run_without_a_usable_action_asks_nobody(
    memory: RecordWriter, amy: User, data: dict[str, str], status: int, problem: str
) -> None:
    memory.action("m-1", 2, cls="pure")
    memory.action("broken-1", 1, body="{")
    world.define(amy)

    answer = browser(amy).post("/resolvers/sent-folder/dry-run/", data)

    assert answer.status_code == status
    assert problem in words_of(answer.content.decode())
    assert world.asked == []


def test_a_dry_run_keeps_what_the_provider_says_inert(memory: RecordWriter, amy: User) -> None:
    ref = memory.action("m-1", 1, args={"to": "b@example.com<script>"})
    world.define(amy)
    nasty = '<script>alert(1)</script>\u202e<a hx-get="/stolen">'
    world.bring(world.match(object_id=nasty, recipients=(nasty,), note=nasty), status=nasty, account=nasty, asked=(nasty,))

    html = browser(amy).post("/resolvers/sent-folder/dry-run/", {"action": str(ref)}).content.decode()

    assert "alert(1)" in html
    assert "<script>alert" not in html
    assert "<a hx-get" not in html
    assert "\u202e" not in html


def test_a_dry_run_beside_a_store_that_is_down_says_so(flaky: MemoryWriter, amy: User) -> None:
    ref = flaky.action("m-1", 1)
    world.define(amy)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]

    answer = browser(amy).post("/resolvers/sent-folder/dry-run/", {"action": str(ref)})

    assert answer.status_code == 503
    assert "Store main does not answer, so nobody was asked." in words_of(answer.content.decode())


def test_the_page_offers_open_calls_of_the_tools_that_name_it(memory: RecordWriter, amy: User) -> None:
    memory.action("m-1", 1, args={"to": "b@example.com"})
    memory.action("m-1", 2, tool="open_ticket", args={"title": "Broken"})
    world.define(amy)
    world.name_it(amy)

    html = browser(amy).get("/resolvers/sent-folder/").content.decode()

    assert '<option value="main/m-1/1">' in html
    assert '<option value="main/m-1/2">' not in html


# --- trying expressions ----------------------------------------------------------------------------------------------


def test_expressions_are_tried_on_a_pasted_answer_and_a_chosen_action(memory: RecordWriter, amy: User) -> None:
    ref = memory.action("m-1", 1, tool="create_payment", args={"amount": 120, "currency": "EUR"})
    body = json.dumps({"data": [{"key": "k-1", "id": 7, "amount": 120.1}, {"id": 8}]})
    form = http_form(
        **{"set-key": "object.key", "set-amount": "object.amount == action.amount", "set-currency": "object.nothing.there"}
    )

    answer = browser(amy).post(
        "/resolvers/new/http/expressions/", {**form, "try_status": "200", "try_body": body, "action": str(ref)}
    )
    said = words_of(answer.content.decode().split('id="tried"')[1])

    assert "the answer The answer is complete true" in said
    assert 'object 1 Key of an object "k-1"' in said
    assert "object 1 Its id 7" in said
    assert "object 1 Its amount false" in said
    assert "object 2 Key of an object there is no field 'key'" in said
    assert SECRET not in answer.content.decode()
    assert not Definition.objects.exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"set-key": "object.key == "}, "line 1, column 14"),
        ({"set-key": "nothing.key"}, "there is no 'nothing'"),
        ({"try_body": "<html>"}, "no JSON that can be read"),
        ({"try_status": "soon"}, "is no HTTP status"),
        ({"action": "what"}, "names no action"),
        ({"set-objects": "body.count"}, "is no list"),
    ],
)
def test_what_is_wrong_with_an_expression_is_said_with_its_place(
    memory: RecordWriter, amy: User, changes: dict[str, str], problem: str
) -> None:
    form = http_form(**{"try_status": "200", "try_body": '{"data": [{"key": "k"}], "count": 1}', **changes})

    answer = browser(amy).post("/resolvers/new/http/expressions/", form, headers=HTMX)

    assert problem in words_of(answer.content.decode())
    assert "<html" not in answer.content.decode()


def test_other_kinds_have_no_expressions(memory: RecordWriter, amy: User) -> None:
    world.define(amy)

    assert browser(amy).post("/resolvers/sent-folder/expressions/", {}).status_code == 404
    assert "Try the expressions" not in browser(amy).get("/resolvers/sent-folder/").content.decode()


def test_the_button_that_enter_presses_by_itself_destroys_nothing_and_saves_no_version(
    memory: RecordWriter, amy: User, person: Cast
) -> None:
    both = person("eve", "admin", "operator")
    make(browser(amy))
    make_hook("provider", "generic", by=amy)
    memory.action("m-1", 1)
    paths = ["/tools/send_email/", "/simulator/", "/resolvers/provider/", "/actions/main/m-1/1/"]
    paths += [f"/resolvers/new/{kind}/" for kind in ("imap", "http", "stripe", "sql", "python")]

    first = {}
    for path in paths:
        for form in re.findall(r"<form.*?</form>", browser(both).get(path).content.decode(), re.DOTALL):
            buttons = [tag for tag in re.findall(r"<button[^>]*>", form) if 'type="button"' not in tag]
            if len(buttons) > 1 and 'name="theme"' not in buttons[0]:
                first[path, len(first)] = buttons[0]

    assert {path for path, _ in first} == {path for path in paths if "tools" not in path and "simulator" not in path}
    harmless = ('formaction="/resolvers/', 'value="secret"', 'name="review"')
    assert [where for where, tag in first.items() if not any(said in tag for said in harmless)] == []
    assert all("dry-run" in tag for tag in first.values() if "formaction" in tag)
