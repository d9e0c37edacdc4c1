"""The cast, the stores and the callers of the console's tests.

Ana is an operator, Ben a viewer, Cyd has no role, Dot may settle `open_ticket` in store `main` only, Amy is an admin and nothing else.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from actions.errors import StoreReadOnly, StoreUnavailable
from actions.store.memory import MemoryStore
from console import run_types, stores
from console.models import Grant
from console.services import known_counts, looks, tallies
from console.services.tokens import create_user_token
from tests.console import own_resolver as own_resolver_module
from tests.console import run_kinds
from tests.console.workers import worker as worker
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.memory_writer import MemoryWriter

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _nothing_is_remembered(settings: Settings) -> None:
    """Each test is a fresh process to the counts that are kept at most so often. None is written now and then: statements are counted."""
    settings.TALLY_EVERY_S = math.inf
    known_counts.forget()
    looks.forget()
    tallies.forget()


@pytest.fixture(params=["memory", "postgres"])
def records(request: pytest.FixtureRequest, settings: Settings) -> Iterator[RecordWriter]:
    """The empty store `main`, prepared for decisions, as a writer of records sees it."""
    yield from _open_main(settings, request.param)


@pytest.fixture
def memory(settings: Settings) -> Iterator[RecordWriter]:
    """The same in memory only, for what no database can make different."""
    yield from _open_main(settings, "memory")


@pytest.fixture
def postgres(settings: Settings) -> Iterator[RecallWriter]:
    """The same on PostgreSQL only, for other processes and for rights."""
    for writer in _open_main(settings, "postgres"):
        assert isinstance(writer, RecallWriter)
        yield writer


def _open_main(settings: Settings, kind: str) -> Iterator[RecordWriter]:
    url = settings.ACTION_STORES["main"]
    collection = f"t{secrets.token_hex(8)}"
    settings.ACTION_STORES = {"main": "memory:" if kind == "memory" else f"{url}?collection={collection}"}
    stores.reset()
    store = stores.get_store("main")
    if isinstance(store, MemoryStore):
        yield MemoryWriter(store)
    else:
        with RecallWriter(url, collection=collection) as writer:
            writer.create()
            store.prepare()
            yield writer
    stores.reset()


@pytest.fixture
def other_store(settings: Settings, records: RecordWriter) -> MemoryWriter:
    """A second store, `other`, in memory."""
    settings.ACTION_STORES = {**settings.ACTION_STORES, "other": "memory:"}
    store = stores.get_store("other")
    assert isinstance(store, MemoryStore)
    return MemoryWriter(store)


@pytest.fixture
def down(settings: Settings) -> str:
    """The name of a store whose database nobody can reach."""
    settings.ACTION_STORES = {
        **settings.ACTION_STORES,
        "down": "postgres://nobody:secret-pw@127.0.0.1:1/nothing?connect_timeout=1",
    }
    return "down"


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    """Django's hashers are slow by design, half a second each time: here who signs in or confirms, or is refused, is hashed quickly."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *settings.PASSWORD_HASHERS]


Cast = Callable[..., User]


@cache
def _hash_of_password(hasher: str) -> str:
    """Slow by design, so once for the whole run. By the hasher of this test: with another one's, who signs in or confirms is hashed anew, and
    every session of theirs ends."""
    return make_password(PASSWORD)


@pytest.fixture
def person(db: None, settings: Settings) -> Cast:
    """Make a user with roles: `person("eve", "viewer", ("operator", "main", "send_email"))`."""

    def make(name: str, *roles: str | tuple[str, str, str], **fields: Any) -> User:
        user = User.objects.create(username=name, password=_hash_of_password(settings.PASSWORD_HASHERS[0]), **fields)
        for role in roles:
            kind, store, tool = (role, "", "") if isinstance(role, str) else role
            Grant.objects.create(user=user, role=kind, store=store, tool=tool)
        return user

    return make


@pytest.fixture
def ana(person: Cast) -> User:
    return person("ana", "operator")


@pytest.fixture
def bea(person: Cast) -> User:
    """A second operator."""
    return person("bea", "operator")


@pytest.fixture
def ben(person: Cast) -> User:
    return person("ben", "viewer")


@pytest.fixture
def cyd(person: Cast) -> User:
    return person("cyd")


@pytest.fixture
def dot(person: Cast) -> User:
    return person("dot", ("operator", "main", "open_ticket"))


@pytest.fixture
def amy(person: Cast) -> User:
    return person("amy", "admin")


@pytest.fixture
def own_addresses(settings: Settings) -> None:
    """The API and the health checks alone."""
    settings.ROOT_URLCONF = "tests.console.addresses"


@pytest.fixture
def own_resolver(settings: Settings) -> None:
    """The deployment lists the tests' own resolver; it brings nothing until a test says what."""
    settings.RESOLVER_CALLABLES = (own_resolver_module.PATH,)
    own_resolver_module.brings.clear()
    own_resolver_module.asked.clear()


@pytest.fixture
def errands(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run types of the tests; the folder where their tools leave effects."""
    settings.RUN_TYPES, settings.RUN_STORE = (run_kinds.MODULE,), "main"
    (folder := tmp_path / "effects").mkdir()
    monkeypatch.setenv(run_kinds.EFFECTS, str(folder))
    run_types.forget()
    yield folder
    run_types.forget()


class Api:
    """A caller of the API with a token; answers are (status, body)."""

    def __init__(self, token: str | None) -> None:
        self.client = Client(raise_request_exception=True)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        return self._read(self.client.get(f"/api/v1/{path}", {k.rstrip("_"): v for k, v in query.items()}, headers=self.headers))

    def post(self, path: str, body: Any, content_type: str = "application/json") -> tuple[int, Any]:
        return self._read(self.client.post(f"/api/v1/{path}", body, content_type=content_type, headers=self.headers))

    def delete(self, path: str) -> tuple[int, Any]:
        return self._read(self.client.delete(f"/api/v1/{path}", headers=self.headers))

    @staticmethod
    def _read(response: Any) -> tuple[int, Any]:
        assert response["Content-Type"].startswith("application/json"), response.content[:200]
        return response.status_code, response.json()


@pytest.fixture
def api(own_addresses: None) -> Callable[[User], Api]:
    return lambda user: Api(create_user_token(user))


class DownStore(MemoryStore):
    """A store that can be switched off before a read, before a write, or in the middle of one."""

    fails: str = ""  # "", "read", "before_write", "after_write", "entry"

    def get_action(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails == "read":
            raise StoreUnavailable(self.name, "connection refused")
        return super().get_action(*args, **kwargs)

    def append_entry(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails == "entry":
            raise StoreReadOnly(self.name, "no right to insert")
        return super().append_entry(*args, **kwargs)

    def settle(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails == "before_write":
            raise StoreUnavailable(self.name, "connection refused")
        written = super().settle(*args, **kwargs)
        if self.fails == "after_write":
            raise StoreUnavailable(self.name, "the connection broke while it was committing", may_be_written=True)
        return written


@pytest.fixture
def flaky(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryWriter]:
    """Store `main`, which fails as its `.kept.fails` says: the only way to lose an answer at an exact moment."""
    settings.ACTION_STORES = {"main": "memory:"}
    monkeypatch.setattr(stores, "open_store", lambda url, name, entries_url: DownStore(name))
    stores.reset()
    store = stores.get_store("main")
    assert isinstance(store, DownStore)
    yield MemoryWriter(store)
    stores.reset()
