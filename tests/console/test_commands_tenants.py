"""`discover_stores` and `evict` as a shell sees them."""

from __future__ import annotations

import json

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.management import CommandError

from console.management.base import misused
from tests.console.test_commands import run
from tests.console.test_services_evict import HOLDER, begun, decided, kinds
from tests.recall_writer import RecallWriter, RecordWriter

pytestmark = pytest.mark.django_db


def test_discover_stores_offers_each_collection_without_its_password(postgres: RecallWriter) -> None:
    postgres.action("billing-7", 1)
    url = django_settings.ACTION_STORES["main"].partition("?")[0]
    password = url.partition("://")[2].partition("@")[0].partition(":")[2]

    listed, lines = run("discover_stores", url), run("discover_stores", url, "--json")

    memory = postgres.collection.removesuffix("_agents")
    offered = next(one for one in map(json.loads, lines.out.splitlines()) if one["collection"] == memory)
    assert (listed.code, lines.code) == (0, 0)
    assert f"collection {memory}, 0 agents, 1 open actions" in listed.out
    assert offered["action_store"] in listed.out
    assert offered["action_store"].endswith(f"?schema=recall&collection={memory}")
    assert (offered["agents"], offered["open_actions"], offered["namespace"], offered["problem"]) == (0, 1, None, None)
    assert "*** stands for a password" in listed.err
    assert password not in listed.out + listed.err + lines.out + lines.err


def test_discover_stores_says_in_one_line_what_is_wrong() -> None:
    wrong = run("discover_stores", "memory:")
    down = run("discover_stores", "postgres://ann:hunter2hunter2@127.0.0.1:1/db?connect_timeout=1")
    named = run("discover_stores", "postgres://h/db", "--namespace", "a b")

    assert [said.code for said in (wrong, down, named)] == [2, 1, 2]
    for said in (wrong, down, named):
        assert said.out == ""
        assert "\n" not in said.err
        assert "hunter2" not in said.err


def test_no_line_of_a_command_repeats_a_password_that_stands_in_an_argument() -> None:
    """argparse names what it does not understand, and that may be an address."""
    with pytest.raises(CommandError) as caught:
        misused("unrecognized arguments: postgres://ann:hunter2hunter2@h/db mongodb://ben:p@ss@h/db")

    assert str(caught.value) == "unrecognized arguments: postgres://ann:***@h/db mongodb://ben:***@h/db"


def test_evict_takes_the_lease_and_says_what_was_written(records: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(records), ana)

    said = run("evict", "main", "billing-7", "--holder", HOLDER, "--reason", "its pod is gone", "--user", "amy")

    assert said.code == 0
    assert said.out.split()[0] == "evicted"
    assert "written main/billing-7/1 done" in said.out
    assert said.err.startswith("warning: the old process may still be running")
    assert kinds() == ["waiting", "evicted", "settled"]


def test_evict_refuses_in_one_line(memory: RecordWriter, ana: User, amy: User, cyd: User) -> None:
    decided(begun(memory), ana)

    def evict(**changed: str) -> tuple[int, str]:
        said = {"store": "main", "holder": HOLDER, "reason": "its pod is gone", "user": "amy", **changed}
        done = run(
            "evict", said["store"], "billing-7", "--holder", said["holder"], "--reason", said["reason"], "--user", said["user"]
        )
        assert done.out == ""
        assert "\n" not in done.err
        return done.code, done.err

    assert evict(holder="vm:8:bbbb")[0] == 1
    assert evict(user="ana") == (1, "you need a role that may evict in all of store main")
    assert evict(user="cyd")[0] == 1
    assert evict(user="nobody")[0] == 2
    assert evict(store="nowhere")[0] == 2
    assert evict(reason=" ")[0] == 2
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert kinds() == ["waiting"]
