"""Saving what is there already: no version is made of it; one with a new secret is, and the list says which was set."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.models import Definition, Policy, Secret
from console.services.definitions import build, find_definition
from tests.console import own_resolver as world
from tests.console.test_odd_texts import forms_of
from tests.console.view_helpers import browser, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

SECRET = "token-xyzzy-0123456789"


def save(client: Client, **changes: str) -> str:
    own = {"url": "https://api.example.com/v1", "auth": "bearer", "objects": "body.data", "key": "object.key"}
    form = {"name": "provider", "seen_version": "1", "per_minute": "60", "at_once": "4", "is_enabled": "yes"}
    fields = {f"set-{name}": text for name, text in own.items()} | {"set-secret": ""}
    answer = client.post(
        "/resolvers/new/http/" if changes.get("seen_version") == "0" else "/resolvers/provider/", form | fields | changes
    )
    assert answer.status_code == 302
    return words_of(client.get(answer["Location"]).content.decode())


def test_an_unchanged_resolver_keeps_its_version_and_says_so(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    save(client, **{"seen_version": "0", "set-secret": SECRET})
    sealed = bytes(Secret.objects.get().ciphertext)

    said = save(client)

    assert "Nothing changed. Version 1 stays as it is" in said
    assert "Saved as version" not in said
    assert Definition.objects.count() == 1
    assert bytes(Secret.objects.get().ciphertext) == sealed


def test_a_new_secret_is_a_change_and_the_versions_name_it_without_showing_it(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    save(client, **{"seen_version": "0", "set-secret": SECRET})
    first = build(Definition.objects.get())

    said = save(client, **{"set-secret": "another-0123456789"})

    assert "Saved as version 2" in said
    assert "Secret Secret set anew." in said
    assert "a secret may have been set anew" not in said
    assert "another-0123456789" not in said
    assert [one.secrets_set for one in Definition.objects.order_by("version")] == ["secret", "secret"]
    newest = find_definition("provider")
    assert newest is not None
    assert build(newest) is not first


def test_every_other_change_of_a_resolver_is_a_version(memory: RecordWriter, amy: User) -> None:
    client = browser(amy)
    save(client, **{"seen_version": "0", "set-secret": SECRET})

    changes: dict[str, str] = {}
    for version, (field, text) in enumerate(
        (("set-key", "object.id"), ("per_minute", "61"), ("at_once", "5"), ("is_enabled", "")), start=1
    ):
        changes |= {field: text, "seen_version": str(version)}
        said = save(client, **changes)
        assert f"Saved as version {version + 1}" in said
        assert "may have been set anew" not in said


def test_an_unchanged_policy_keeps_its_version_and_says_so(memory: RecordWriter, amy: User) -> None:
    world.define(amy)
    world.name_it(amy)
    client = browser(amy)
    form = {**form_of_policy(client), "seen_version": "1"}

    answer = client.post("/tools/send_email/", form)
    said = words_of(client.get(answer["Location"]).content.decode())

    assert "Nothing changed. Version 1 stays as it is" in said
    assert Policy.objects.count() == 1

    changed = client.post("/tools/send_email/", {**form, "retention_s": "29 d"})
    assert changed["Location"].endswith("?saved=2")
    assert Policy.objects.count() == 2


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("retention_s", "1 min", "from 1 h to 366 d"),
        ("settle_window_s", "367 d", "from 1 min to 366 d"),
        ("tool_timeout_s", "0 s", "from 1 s to 366 d"),
        ("give_up_after_s", "59 s", "from 1 min to 366 d"),
        ("retention_s", "1.5 d", "has a fraction"),
        ("retention_s", "3 d 3 d", "says d twice"),
    ],
)
def test_bounds_of_lengths_of_time_are_said_as_they_are_written(
    memory: RecordWriter, amy: User, field: str, text: str, problem: str
) -> None:
    client = browser(amy)
    form = form_of_policy(client)

    answer = client.post("/tools/send_email/", {**form, field: text})

    assert answer.status_code == 422
    at_field = words_of(answer.content.decode().split(f'id="field-{field}"')[1].split('<div class="setting')[0])
    assert problem in at_field
    assert "31622400" not in at_field
    assert not Policy.objects.exists()


def form_of_policy(client: Client) -> dict[str, str]:
    """The policy's form as a browser would send it back untouched."""
    fields = dict(forms_of(client, "/tools/send_email/")[0][1])
    policy = Policy.objects.filter(tool="send_email").first() or Policy(tool="send_email")
    chosen = {name: getattr(policy, name) for name in ("resolver", "mode", "moves_money", "is_irreversible", "compensation")}
    off = {name for name in ("accepts_strong", "is_minor") if not getattr(policy, name)}
    return {name: text for name, text in {**fields, **chosen}.items() if name not in off}
