"""The stand-in for MongoDB: gone with whoever started it, and mended where Recall needs it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from local import mongo, processes
from local.mongo import Mongo, RunningMongo
from tests.local.test_servers import ROOT, is_running, wait_for_the_end_of

HOLDER = """
import sys
from collections.abc import Iterator
from pathlib import Path
from local import mongo
with mongo.start(Path(sys.argv[1])) as server:
    print(server.process.pid, flush=True)
    sys.stdin.read()
"""


def test_it_dies_with_a_parent_that_is_killed_and_its_data_are_there_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    with mongo.start(folder) as first, first.server.client() as client:
        client.kept.things.insert_one({"_id": 1})
        url = first.url("kept")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    assert is_running(pid)

    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    wait_for_the_end_of([pid])
    with mongo.start(folder) as again, again.server.client() as client:
        assert client.kept.things.find_one() == {"_id": 1}
        assert again.url("kept") == url
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600


@pytest.fixture(scope="module")
def running() -> Iterator[RunningMongo]:
    with mongo.start() as server:
        yield server


def test_data_without_a_folder_are_gone_afterwards() -> None:
    with mongo.start() as running:
        home = running._home
        assert home.exists()
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert not home.exists()
    assert running.process.returncode is not None


def test_a_taken_port_is_exchanged_for_another(tmp_path: Path, running: RunningMongo) -> None:
    taken = running.url().rpartition("@")[2].partition("/")[0].partition(":")[2]
    (tmp_path / "port").write_text(taken)

    with mongo.start(tmp_path) as second:
        assert f":{taken}/" not in second.url()


def test_it_asks_for_a_password(running: RunningMongo) -> None:
    for url in (
        running.url().replace("//settle:", "//settle:wrong"),
        f"mongodb://{running.url().partition('@')[2].replace('&authSource=admin', '')}",
    ):
        client: MongoClient[dict[str, object]] = MongoClient(url)
        with client, pytest.raises(OperationFailure, match="(?i)auth"):
            client.somewhere.things.find_one()


def test_dates_are_compared_with_now_and_text_indexes_do_no_harm(running: RunningMongo) -> None:
    """Without the first, every lease would be free; without the second, Recall could not begin."""
    with running.server.client() as client:
        things = client.mended.things
        things.insert_one({"_id": "past"})
        things.update_one({"_id": "past"}, [{"$set": {"at": {"$subtract": ["$$NOW", 60_000]}}}])
        things.update_one({"_id": "future"}, [{"$set": {"at": {"$add": ["$$NOW", 60_000]}}}], upsert=True)

        free = things.find({"$expr": {"$lte": ["$at", "$$NOW"]}})

        assert [thing["_id"] for thing in free] == ["past"]
        things.create_index([("text", "text")])


@pytest.mark.parametrize(
    ("given", "database", "wanted"),
    [
        ("mongodb://h:1/", "db", "mongodb://h:1/db"),
        ("mongodb://h:1", "db", "mongodb://h:1/db"),
        ("mongodb://u:p@h:1,i:2/?replicaSet=rs", "db", "mongodb://u:p@h:1,i:2/db?replicaSet=rs&authSource=admin"),
        ("mongodb://u:p@h/own", "db", "mongodb://u:p@h/db?authSource=own"),
        ("mongodb://u:p@h/own?authSource=x", "a b", "mongodb://u:p@h/a%20b?authSource=x"),
    ],
)
def test_a_database_of_the_same_server_has_the_same_user(given: str, database: str, wanted: str) -> None:
    assert Mongo.from_url(given).url(database) == wanted


def test_a_server_that_does_not_come_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    before = set(os.listdir(tmp_path))

    with pytest.raises(processes.ServerError, match="SecantusDB ended with exit code 1 while starting"):
        mongo.start(tmp_path)

    assert set(os.listdir(tmp_path)) - before == {"password", "mongo.log"}
