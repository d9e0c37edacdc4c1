"""verify_audit, check_stores and open_actions where something is wrong: what is missing is never called empty, nor well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from actions.store.memory import MemoryStore
from actions.store.postgres import PostgresStore
from console import stores
from console.models import Decision
from local.postgres import Postgres
from tests.console.test_commands import Said, run
from tests.recall_writer import RecallWriter, RecordWriter
from tests.servers import VECTOR_TEMPLATE
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def own_url(pg_server: Postgres) -> Iterator[str]:
    """A database of the test's own, prepared, for changes that everybody would notice."""
    name = f"t_{uuid4().hex[:16]}"
    url = pg_server.create_database(name, template=VECTOR_TEMPLATE)
    with closing(PostgresStore(url)) as store:
        store.prepare()
    yield url
    stores.reset()
    pg_server.drop_database(name)


@pytest.fixture
def own(own_url: str, settings: Settings) -> Iterator[RecallWriter]:
    """Store `main` in it, as its owner, with three decisions."""
    settings.ACTION_STORES = {"main": own_url}
    stores.reset()
    with RecallWriter(own_url) as recall:
        yield recall.create()


@pytest.fixture
def decided(own: RecallWriter, ana: User) -> RecallWriter:
    settle_three(own)
    assert run("verify_audit", "--store", "main").out.splitlines()[-1] == "intact: 3 entries, anchored up to 0"
    own.run("ALTER TABLE settle_audit.entries DISABLE TRIGGER ALL")
    return own


def settle_three(records: RecordWriter) -> None:
    for seq in (1, 2, 3):
        records.action("billing-7", seq)
        said = run("settle", "main", "billing-7", str(seq), "done", "--reason", f"reason {seq}", "--user", "ana")
        assert said.code == 0


@pytest.fixture
def as_role(own: RecallWriter, own_url: str, settings: Settings) -> Iterator[str]:
    """Store `main` through a role that may read everything, until the test takes something away."""
    role = f"r_{uuid4().hex[:12]}"
    own.run(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    for schema in ("recall", "settle_audit"):
        own.run(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        own.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    parts = urlsplit(own_url)
    settings.ACTION_STORES = {"main": f"postgres://{role}:{role}@{parts.hostname}:{parts.port}{parts.path}"}
    stores.reset()
    yield role
    stores.reset()
    own.run(f"DROP OWNED BY {role}")
    own.run(f"DROP ROLE {role}")


def is_refused(said: Said) -> bool:
    """Exit code 1, one line, and nowhere the word for a history that is whole."""
    assert "intact" not in said.out + said.err
    assert (said.code, bool(said.err), "\n" in said.err) == (1, True, False), said
    return True


# --- verify_audit: a history that is gone or cannot be read -------------------------------------------------------------

GONE: dict[str, tuple[str, str]] = {
    "its schema was renamed": ("ALTER SCHEMA settle_audit RENAME TO elsewhere", "its history is gone"),
    "its schema was dropped": ("DROP SCHEMA settle_audit CASCADE", "its history is gone"),
    "its entries were dropped": ("DROP TABLE settle_audit.entries", "settle_audit.entries is not there"),
    "its head was dropped": ("DROP TABLE settle_audit.heads", "settle_audit.heads is not there"),
    "everything was deleted": ("DELETE FROM settle_audit.entries; DELETE FROM settle_audit.heads", "the history ends before it"),
    "another collection": (
        "UPDATE settle_audit.entries SET chain = 'x'; UPDATE settle_audit.heads SET chain = 'x'",
        "ends before",
    ),
    "a column was dropped": ("ALTER TABLE settle_audit.entries DROP COLUMN seq", "not Recall's schema"),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["a new process", "a running one"])
@pytest.mark.parametrize("what", GONE)
def test_a_history_that_is_gone_is_not_intact(decided: RecallWriter, what: str, is_open: bool) -> None:
    statements, words = GONE[what]
    for statement in statements.split("; "):
        decided.run(statement)
    if not is_open:
        stores.reset()

    said = run("verify_audit")

    assert is_refused(said)
    assert words in said.err


@pytest.mark.parametrize(
    "revoked",
    ["SELECT ON settle_audit.entries", "SELECT ON settle_audit.heads", "USAGE ON SCHEMA settle_audit"],
)
@pytest.mark.parametrize("has_decisions", [False, True])
def test_a_history_that_may_not_be_read_is_not_intact(
    own: RecallWriter, ana: User, as_role: str, settings: Settings, own_url: str, revoked: str, has_decisions: bool
) -> None:
    role_url = settings.ACTION_STORES["main"]
    if has_decisions:
        settings.ACTION_STORES = {"main": own_url}
        stores.reset()
        settle_three(own)
        settings.ACTION_STORES = {"main": role_url}
        stores.reset()
    own.run(f"REVOKE {revoked} FROM {as_role}")

    said = run("verify_audit")

    assert is_refused(said)
    assert "may not read" in said.err


def test_a_cut_tail_whose_head_was_set_back_is_found_by_the_consoles_decisions(decided: RecallWriter) -> None:
    decided.run("DELETE FROM settle_audit.entries WHERE number = 3")
    decided.run("UPDATE settle_audit.heads SET number = 2, hash = (SELECT hash FROM settle_audit.entries WHERE number = 2)")

    said = run("verify_audit")

    assert is_refused(said)
    assert said.out.splitlines()[-1].startswith("broken: store main, entry 3: decision ")
    assert "the history ends before it" in said.err


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_history_that_was_written_anew_is_found_by_the_consoles_decisions(memory: RecordWriter, ana: User, seq: int) -> None:
    settle_three(memory)
    Decision.objects.filter(seq=seq).update(decision_id=f"another-decision-{seq}")

    said = run("verify_audit")

    assert is_refused(said)
    assert f"entry {seq}: decision another-decision-{seq} was written there, and another entry stands in its place" in said.err


def test_decisions_of_other_stores_and_without_an_entry_are_nobodys(memory: RecordWriter, ana: User) -> None:
    settle_three(memory)
    Decision.objects.filter(seq=1).update(entry_number=None)
    Decision.objects.filter(seq=2).update(store="elsewhere", entry_number=99)

    assert run("verify_audit", "--store", "main").out.splitlines()[-1] == "intact: 3 entries, anchored up to 0"


def test_a_store_that_was_never_prepared_is_said_to_be_so(flaky: MemoryWriter) -> None:
    flaky.kept._is_prepared = False

    said = run("verify_audit", "--store", "main")

    assert (said.code, said.out.splitlines()) == (
        0,
        ["main: 0 entries, not prepared, anchored up to 0", "intact: 0 entries, anchored up to 0"],
    )


# --- verify_audit: the columns that searches go by ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "at - interval '1 day'"),
        ("kind", "'observed'"),
        ("actor", "'operator eve'"),
        ("agent", "'billing-8'"),
        ("seq", "99"),
        ("tool", "'other'"),
        ("decision_id", "'another-decision'"),
        ("outcome", "'failed'"),
    ],
)
def test_a_column_that_was_changed_is_named(decided: RecallWriter, column: str, value: str) -> None:
    decided.run(f"UPDATE settle_audit.entries SET {column} = {value} WHERE number = 2")

    said = run("verify_audit")

    assert is_refused(said)
    assert said.out.splitlines()[-1].startswith("broken: store main, entry 2: ")
    assert f"its {column} is not what its text says" in said.err


# --- verify_audit: several stores, and anchors --------------------------------------------------------------------------


def test_the_other_stores_are_verified_when_one_is_down(records: RecordWriter, ana: User, down: str, settings: Settings) -> None:
    settle_three(records)
    settings.ACTION_STORES = {"down": settings.ACTION_STORES["down"], "main": settings.ACTION_STORES["main"]}

    said = run("verify_audit")

    assert is_refused(said)
    assert said.out.splitlines()[0].startswith("down: not verified: ")
    assert said.out.splitlines()[1] == "main: 3 entries, anchored up to 0"
    assert said.err.startswith("not verified: store down: ")
    assert "secret-pw" not in said.out + said.err


def test_a_broken_store_is_found_beside_one_that_is_down(memory: RecordWriter, ana: User, down: str) -> None:
    assert isinstance(memory, MemoryWriter)
    settle_three(memory)
    memory.kept.links[1] = memory.kept.links[1]._replace(text="x")

    said = run("verify_audit")

    assert is_refused(said)
    assert said.out.splitlines()[-1].startswith("broken: store main, entry 2: ")
    assert "not verified: store down" in said.err


def test_the_stores_after_a_broken_one_are_verified(memory: RecordWriter, ana: User, settings: Settings) -> None:
    assert isinstance(memory, MemoryWriter)
    settings.ACTION_STORES = {**settings.ACTION_STORES, "other": "memory:"}
    settle_three(memory)
    memory.kept.links.pop()
    other = stores.get_store("other")
    assert isinstance(other, MemoryStore)
    writer = MemoryWriter(other)
    writer.action("a", 1)

    said = run("verify_audit")

    assert is_refused(said)
    assert "other: 0 entries" in said.out


@pytest.mark.parametrize(("content", "code"), [("anything", 1), (None, 1), ("", 2), (" \n\n", 2)])
def test_an_anchor_file_that_vouches_for_nothing_is_refused(
    memory: RecordWriter, tmp_path: Path, content: str | None, code: int
) -> None:
    file = tmp_path / "anchors"
    if content is not None:
        file.write_text(content)

    said = run("verify_audit", "--anchor", str(file))

    assert (said.code, said.out) == (code, "")
    assert "nothing was verified" in said.err


# --- check_stores and open_actions: one verdict -------------------------------------------------------------------------

UNREADABLE: dict[str, Callable[[RecallWriter, str], object]] = {
    "the records": lambda own, role: own.run(f"REVOKE SELECT ON {{records}} FROM {role}"),
    "the leases": lambda own, role: own.run(f"REVOKE SELECT ON {{leases}} FROM {role}"),
    "the registry": lambda own, role: own.run(f"REVOKE SELECT ON {{collections}} FROM {role}"),
    "the schema": lambda own, role: own.run(f"REVOKE USAGE ON SCHEMA {{schema}} FROM {role}"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_store_that_may_not_be_read_is_unusable(own: RecallWriter, as_role: str, what: str) -> None:
    own.action("billing-7", 1)
    UNREADABLE[what](own, as_role)

    checked, listed = run("check_stores"), run("open_actions")

    assert (checked.code, listed.code) == (1, 1)
    assert "main: PostgreSQL" in checked.out
    assert "cannot be used: this connection's role may not read it" in checked.out
    assert f"TO {as_role}" in checked.out  # the grant that helps
    assert checked.err == listed.err
    assert "\n" not in checked.err
    assert listed.out == ""


def test_a_schema_that_does_not_exist_is_unusable(own_url: str, settings: Settings) -> None:
    settings.ACTION_STORES = {"main": f"{own_url}?schema=recal"}
    stores.reset()

    checked, listed = run("check_stores"), run("open_actions")

    assert (checked.code, listed.code, listed.out) == (1, 1, "")
    assert "there is no schema recal" in checked.out
    assert checked.err == listed.err


def test_a_store_before_its_first_agent_is_well(own_url: str, settings: Settings) -> None:
    settings.ACTION_STORES = {"main": own_url}
    stores.reset()

    assert run("check_stores").code == 0
    assert run("open_actions") == Said(0, "no open actions\n", "")


def test_no_open_actions_is_said_only_where_every_store_answered(memory: RecordWriter, down: str, settings: Settings) -> None:
    assert run("open_actions").out == ""
    settings.ACTION_STORES = {"down": settings.ACTION_STORES["down"]}

    said = run("open_actions")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("store down: ")
