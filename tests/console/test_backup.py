"""Backup and restore as docs/operations.md says: with the commands that stand there, against a real PostgreSQL."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import Settings

from actions.queries import get_action
from actions.records import ActionRef
from actions.store import open_store
from console import stores, tasks
from console.models import Decision
from console.services.audit import check_history
from console.services.checkpoints import ChainBroken, sign_next
from console.services.decide import DecisionRequest, decide
from local.postgres import Postgres, find_install
from tests.recall_writer import RecallWriter

pytestmark = pytest.mark.django_db(transaction=True)

BIN = find_install() / "bin"
OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"

OPTIONS = ["--no-owner", "--no-comments", "--exit-on-error"]

Restored = Callable[[str], str]
"""Dumps the database at this address and restores it beside it; the address of the copy."""


@pytest.fixture
def restored(pg_server: Postgres, tmp_path: Path) -> Iterator[Restored]:
    names, roles = list[str](), list[str]()

    def make(url: str) -> str:
        name, file = f"restored_{uuid4().hex[:12]}", tmp_path / f"{uuid4().hex}.dump"
        subprocess.run([BIN / "pg_dump", "--format=custom", "--no-owner", f"--file={file}", url], check=True, timeout=120)
        names.append(name)
        copy = pg_server.create_database(name, template="template0")
        # As the page says: the extension by a superuser, everything else by an owner who is none.
        owner = f"owner_{name}"
        with psycopg.connect(copy, autocommit=True) as superuser:
            superuser.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'restoring'".encode())
            superuser.execute(f"ALTER DATABASE {name} OWNER TO {owner}".encode())
            superuser.execute("CREATE EXTENSION IF NOT EXISTS vector")
        roles.append(owner)
        line = [BIN / "pg_restore", *OPTIONS, f"--dbname={replace(pg_server, user=owner, password='restoring').url(name)}", file]
        subprocess.run(line, check=True, timeout=120)
        return copy

    yield make
    stores.reset()
    for name in names:
        pg_server.drop_database(name)
    with psycopg.connect(pg_server.url(), autocommit=True) as superuser:
        for role in roles:
            superuser.execute(f"DROP ROLE {role}".encode())


def settled(ref: ActionRef, by: User) -> str:
    decision_id = f"d-{uuid4().hex}"
    answer = decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id=decision_id), by=by)
    assert answer.decision is not None
    assert answer.decision.state == "written"
    return decision_id


def use(settings: Settings, url: str, before: str) -> None:
    """Point the console at the copy of its store."""
    settings.ACTION_STORES = {"main": before.replace(before.partition("?")[0], url)}
    stores.reset()


def plain(url: str) -> str:
    """Without what is ours: no client of PostgreSQL knows it."""
    return url.partition("?")[0]


def test_the_commands_are_those_that_the_page_of_operations_says() -> None:
    said = OPERATIONS.read_text()
    assert re.search(r"pg_dump --format=custom --no-owner --file=\S+ ", said)
    assert re.search(rf"pg_restore {' '.join(OPTIONS)} --dbname=\S+ ", said)
    assert "`CREATE EXTENSION vector`" in said


def test_both_databases_come_back_whole(
    postgres: RecallWriter, ana: User, pg_server: Postgres, restored: Restored, settings: Settings
) -> None:
    ref = postgres.action("billing-7", 1)
    decision_id = settled(ref, ana)
    sign_next(stores.get_store("main"))

    console_copy = restored(pg_server.url(django_settings.DATABASES["default"]["NAME"]))
    store_copy = restored(plain(postgres.url))

    with psycopg.connect(console_copy) as console:
        assert console.execute("SELECT state FROM console_decision WHERE decision_id = %s", [decision_id]).fetchone() == (
            "written",
        )
        assert console.execute("SELECT count(*) FROM console_checkpoint").fetchone() == (1,)
        with pytest.raises(psycopg.errors.Error, match="final|not|never"):
            console.execute("DELETE FROM settle_audit.entries")
    use(settings, store_copy, settings.ACTION_STORES["main"])
    store = stores.get_store("main")
    assert not get_action(store, ref).action.is_open  # type: ignore[union-attr]
    assert check_history(store).first_bad == ""
    with psycopg.connect(store_copy) as copy, pytest.raises(psycopg.errors.Error):
        copy.execute("DELETE FROM settle_audit.entries")
    assert store.check().can_settle


def test_a_console_from_before_a_decision_was_written_finds_it_in_the_store(postgres: RecallWriter, ana: User) -> None:
    ref = postgres.action("billing-7", 1)
    settled(ref, ana)
    # As the older backup has it: on its way, and tried before.
    Decision.objects.update(
        state="waiting", entry_number=None, turn_seq=None, written_by="", next_try_at=timezone.now(), attempts=1
    )

    tasks.deliver(Decision.objects.get().pk)

    row = Decision.objects.get()
    assert (row.state, row.written_by) == ("written", "us")
    entries = stores.get_store("main").list_entries(limit=50, agent="billing-7")
    assert sum(entry.kind == "settled" for entry in entries) == 1
    assert len(stores.get_store("main").list_turns("billing-7", limit=10)) == 1


def test_a_store_from_before_is_open_again_and_its_history_says_that_it_was_longer(
    postgres: RecallWriter, ana: User, restored: Restored, settings: Settings
) -> None:
    first, second = postgres.action("billing-7", 1), postgres.action("billing-7", 2)
    settled(first, ana)
    before = restored(plain(postgres.url))
    settled(second, ana)
    sign_next(stores.get_store("main"))

    use(settings, before, settings.ACTION_STORES["main"])
    store = stores.get_store("main")

    check = check_history(store)
    assert check.first_bad
    with pytest.raises(ChainBroken):
        sign_next(store)
    item = get_action(store, second)
    assert item.action is not None
    assert item.action.is_open
    assert Decision.objects.get(seq=2).state == "written"  # the console goes on saying what it did
    again = settled(second, ana)
    assert store.find_settled_entry(again) is not None


def test_a_copy_opens_without_the_console(postgres: RecallWriter, ana: User, restored: Restored) -> None:
    settled(postgres.action("billing-7", 1), ana)
    copy = restored(plain(postgres.url))
    parameters = django_settings.ACTION_STORES["main"].partition("?")[2]
    store = open_store(f"{copy}?{parameters}")
    try:
        assert len(store.list_turns("billing-7", limit=10)) == 1
    finally:
        store.close()
