"""The demo's database servers, whichever kinds it needs, and what is made on them. PostgreSQL is always there: the console's own tables."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from demo import on_postgres
from demo.addresses import AGENTS, RECORDS, Addresses, Passwords, Store, is_mongo
from demo.home import Home
from demo.kinds import MONGO, POSTGRES, STORES
from local import postgres
from local.postgres import Postgres, RunningPostgres

if TYPE_CHECKING:
    from local.mongo import RunningMongo


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Running, and ours until the block is left."""

    postgres: RunningPostgres
    mongo: RunningMongo | None

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """By the names that people know."""
        found = {"PostgreSQL": self.postgres.process}
        return found | ({"SecantusDB": self.mongo.process} if self.mongo else {})


@contextmanager
def started(home: Home) -> Iterator[Servers]:
    """The servers that a demo of this kind needs, with the data of the last one."""
    with ExitStack() as stack:
        database = stack.enter_context(postgres.start(home.postgres))
        documents = None
        if MONGO in STORES[home.kind].values():
            from local import mongo  # a driver that is asked for nothing elsewhere

            documents = stack.enter_context(mongo.start(home.mongo))
        yield Servers(postgres=database, mongo=documents)


def create(servers: Servers, stores: Mapping[str, str], passwords: Passwords) -> Addresses:
    """Make roles, users and databases; harmless when all is there."""
    relational = servers.postgres.server
    on_postgres.create(relational, passwords, with_records=POSTGRES in stores.values())
    made = []
    for name, kind in stores.items():
        if kind == MONGO and servers.mongo:
            from demo import on_mongo  # as in `started`

            on_mongo.create(servers.mongo.server, passwords)
            made.append(on_mongo.store(servers.mongo.server, name, passwords))
        else:
            made.append(on_postgres.store(relational, name, passwords))
    return Addresses(console=on_postgres.console_address(relational, passwords), stores=tuple(made))


def let_console_in(store: Store) -> bool:
    """Give the console's role all that it needs in a prepared store and nothing more; False while Recall has not made its tables."""
    if not is_mongo(store.owner):
        return on_postgres.let_console_in(store.owner)
    from demo import on_mongo  # as in `started`

    return on_mongo.is_there(store.owner)


def agents_address(address: str, password: str) -> str:
    """The agents' address of a store, from anybody else's."""
    if is_mongo(address):
        from demo import on_mongo  # as in `started`
        from local.mongo import Mongo

        return on_mongo.as_user(Mongo.from_url(address), AGENTS, password).url(RECORDS)
    return replace(Postgres.from_url(address), user=AGENTS, password=password).url(RECORDS)


def kind_of(addresses: Mapping[str, str]) -> str:
    """The `--store` of a demo with these stores."""
    stores = {name: MONGO if is_mongo(address) else POSTGRES for name, address in addresses.items()}
    return next(kind for kind, known in STORES.items() if known == stores)


def is_of_a_driver(exc: BaseException) -> bool:
    """Whether a database or its driver says so, whichever was asked; neither has to be imported to be recognised."""
    return any(kind.__module__.partition(".")[0] in ("psycopg", "pymongo") for kind in type(exc).__mro__)
