"""A program of its own: SecantusDB, made fit for Recall. `local/mongo.py` starts it, nobody imports it: it is GPL, and stays in its process.

Two things of 0.7.0b3 are mended here. It refuses text indexes, which Recall makes and its agents never use: they become a no-op. And it
compares a stored date with $$NOW as equal, so that Recall would find every lease free.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import errno
import os
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import secantus.expressions
import secantus.storage
from secantus import SecantusDBServer
from secantus.auth import derive_credentials

_FEWEST_ROUNDS = 4096
"""With which drivers let themselves in: each client of each test hashes so often, for a password that is drawn anew at every start."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="local/mongo_server.py", description=__doc__)
    parser.add_argument("folder", type=Path, help="for its data, and the file `port` once it listens")
    parser.add_argument("--port", type=int, default=0, help="wished for; another one where it is taken")
    parser.add_argument("--standalone", action="store_true", help="no replica set: no transactions")
    parser.add_argument("--forgetful", action="store_true", help="nothing has to be on disk: its data will not be opened again")
    asked = parser.parse_args()
    accept_text_indexes()
    compare_dates_as_utc()
    server = listening(asked.folder / "data", asked.port, standalone=asked.standalone, durable=not asked.forgetful)
    rounds = _FEWEST_ROUNDS if asked.forgetful else None
    let_in(server, user=os.environ["SETTLE_MONGO_USER"], password=os.environ["SETTLE_MONGO_PASSWORD"], rounds=rounds)
    half = asked.folder / "port.new"
    half.write_text(str(server.port))
    half.replace(asked.folder / "port")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    with contextlib.suppress(OSError, AttributeError):
        server._socket.shutdown(socket.SHUT_RDWR)  # its thread that accepts would not notice for two seconds
    server.stop()


def listening(data: Path, port: int, *, standalone: bool, durable: bool) -> SecantusDBServer:
    data.mkdir(exist_ok=True)
    server = SecantusDBServer(
        port=port,
        storage_path=str(data),
        require_auth=True,
        replica_set_name=None if standalone else "settle",
        cache_size="256M",
        durable=durable,
        sync_on_commit=durable,  # before it is answered, as PostgreSQL has it
    )
    try:
        server.start()
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        server.port = 0
        server.start()
    return server


def let_in(server: SecantusDBServer, *, user: str, password: str, rounds: int | None) -> None:
    """Everybody needs a password, and this user may do everything. `rounds` of hashing, else as many as MongoDB does."""
    record = {
        "_id": f"admin.{user}",
        "user": user,
        "db": "admin",
        "credentials": derive_credentials(password, iterations=rounds).to_doc(),
        "roles": [{"role": "root", "db": "admin"}],
        "mechanisms": ["SCRAM-SHA-256"],
    }
    server.storage.add_user("admin", user, record, replace=True)


def accept_text_indexes() -> None:
    create_index = secantus.storage.Storage.create_index

    def create_index_unless_text(
        self: Any, db: str, coll: str, name: str, key_spec: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> bool:
        if "text" in dict(key_spec).values():
            return False
        return bool(create_index(self, db, coll, name, key_spec, options))

    secantus.storage.Storage.create_index = create_index_unless_text


def compare_dates_as_utc() -> None:
    cmp_pair = secantus.expressions._cmp_pair
    secantus.expressions._cmp_pair = lambda arg, ctx: tuple(map(without_zone, cmp_pair(arg, ctx)))


def without_zone(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


if __name__ == "__main__":
    main()
