"""The demo's store in MongoDB's place and who reaches it as whom: the agents write their records, the console settles and owns nothing.

The roles are those that a real MongoDB should have. SecantusDB, which stands in for it, looks at a privilege's database and
action only: what one collection is granted, it grants on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from demo.addresses import AGENTS, COLLECTION, CONSOLE, RECORDS, Passwords, Store
from local.mongo import Mongo

# All that the console's role may do in a store's database, by collection; the empty name stands for each of them.
# `listCollections` is for SecantusDB alone: MongoDB tells everybody the names of what they may read.
PRIVILEGES: Mapping[str, tuple[str, ...]] = {
    "": ("find", "listIndexes", "listCollections"),
    "recall_leases": ("insert", "update"),
    "recall_collections": ("update",),
    "rc_" + COLLECTION: ("insert", "update"),
    "settle_audit_entries": ("insert",),
    "settle_audit_head": ("insert", "update"),
}
_ROLE_EXISTS, _USER_EXISTS = 51002, 51003


def store(server: Mongo, name: str, passwords: Passwords) -> Store:
    """A store on `server`, given as its superuser."""
    return Store(
        name=name,
        console=as_user(server, CONSOLE, passwords.console).url(RECORDS),
        owner=server.url(RECORDS),
        agents=as_user(server, AGENTS, passwords.agents).url(RECORDS),
    )


def as_user(server: Mongo, user: str, password: str) -> Mongo:
    """The same server for somebody else; neither name nor password needs quoting."""
    scheme, _, place = server.base.partition("://")
    return replace(server, base=f"{scheme}://{user}:{password}@{place.rpartition('@')[2]}")


def create(server: Mongo, passwords: Passwords) -> None:
    """Make the console's role and the two users; harmless when all is there. The database comes into being with the first record."""
    privileges = [
        {"resource": {"db": RECORDS, "collection": collection}, "actions": list(actions)}
        for collection, actions in PRIVILEGES.items()
    ]
    users = {
        CONSOLE: (passwords.console, {"role": CONSOLE, "db": RECORDS}),
        AGENTS: (passwords.agents, {"role": "readWrite", "db": RECORDS}),
    }
    with server.client() as client:
        _create_or_update(client, RECORDS, "Role", CONSOLE, _ROLE_EXISTS, privileges=privileges, roles=[])
        for user, (password, role) in users.items():
            _create_or_update(client, "admin", "User", user, _USER_EXISTS, pwd=password, roles=[role])


def _create_or_update(
    client: MongoClient[dict[str, Any]], database: str, kind: str, name: str, exists: int, **fields: object
) -> None:
    try:
        client[database].command({f"create{kind}": name, **fields})
    except OperationFailure as exc:
        if exc.code != exists:
            raise
        client[database].command({f"update{kind}": name, **fields})


def is_there(owner: str) -> bool:
    """Whether Recall has made the collection that agents write to; the console's rights need no more than that."""
    client: MongoClient[dict[str, Any]] = MongoClient(owner, serverSelectionTimeoutMS=2000)
    with closing(client):
        return client[RECORDS].recall_collections.find_one({"_id": COLLECTION}) is not None
