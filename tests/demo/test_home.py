"""The demo's folder: one demo at a time, and what others may read about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.home import Home, Refused
from demo.stage import ROOT
from local import processes

TOLD = {
    "url": "http://127.0.0.1:8000",
    "username": "demo",
    "password": "p",
    "token": "t",
    "database_url": "postgres://c@127.0.0.1/settle",
    "stores": "main=postgres://c@127.0.0.1/records",
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "with a space" / ".data")


def test_a_second_demo_is_refused_and_told_of_the_first(home: Home) -> None:
    with home.held():
        home.tell(**TOLD)
        with pytest.raises(Refused, match=r"already running \(process \d+, http://127.0.0.1:8000\)"), Home(home.folder).held():
            pytest.fail("two demos at once")


def test_the_next_demo_may_start_when_the_first_is_gone(home: Home) -> None:
    with home.held():
        pass
    with home.held():
        pass


def test_others_read_the_address_while_the_demo_runs_and_not_afterwards(home: Home) -> None:
    with home.held():
        home.tell(**TOLD)
        home.tell_environment({"DATABASE_URL": "x"})
        assert Home(home.folder).running() == TOLD == json.loads(home.demo.read_text())
        assert home.demo.stat().st_mode & 0o777 == home.environment.stat().st_mode & 0o777 == 0o600
    assert not home.demo.exists()
    assert not home.environment.exists()
    with pytest.raises(Refused, match="no demo is running"):
        home.running()


def test_a_demo_that_is_still_starting_says_so(home: Home) -> None:
    with home.held(), pytest.raises(Refused, match="still starting"):
        Home(home.folder).running()


def test_a_demo_that_is_killed_leaves_no_address(home: Home) -> None:
    script = "import os, sys; from pathlib import Path; from demo.home import Home\n"
    script += "home = Home(Path(sys.argv[1]))\n"
    script += "with home.held(): home.demo.touch(); home.environment.touch(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(home.folder)], cwd=ROOT, timeout=60)

    processes.wait_until(lambda: not home.demo.exists() and not home.environment.exists(), what="the removal of the address")


def test_what_a_killed_demo_left_is_not_taken_for_a_running_one(home: Home) -> None:
    home.folder.mkdir(parents=True)
    home.tell(**TOLD)
    with pytest.raises(Refused, match="no demo is running"):
        home.running()


def test_secrets_are_drawn_once_and_anew_when_everything_is_forgotten(home: Home) -> None:
    with home.held():
        first = home.secrets()
        assert home.secrets() == first
        home.world.mkdir()
        home.forget_everything()
        assert home.secrets() != first
        assert not home.world.exists()


def test_each_store_keeps_its_own_and_beginning_anew_with_one_leaves_the_others(home: Home) -> None:
    homes = {kind: Home(home.folder, kind) for kind in ("postgres", "mongo", "both")}
    drawn = {}
    for kind, one in homes.items():
        with one.held():
            one.make_private_folders()
            (one.world / "mail.jsonl").write_text(kind)
            one.mongo.mkdir()
            drawn[kind] = one.secrets()

    with homes["postgres"].held():
        homes["postgres"].forget_everything()

    assert not homes["postgres"].world.exists()
    assert homes["postgres"].others() == ["mongo", "both"]
    assert homes["mongo"].others() == ["both"]
    for kind in ("mongo", "both"):
        assert (homes[kind].world / "mail.jsonl").read_text() == kind
        assert homes[kind].mongo.exists()
        assert homes[kind].secrets() == drawn[kind]
        assert homes[kind].kept.stat().st_mode & 0o066 == 0


def test_of_two_demos_on_different_stores_only_one_runs_in_a_folder(home: Home) -> None:
    with home.held(), pytest.raises(Refused, match="already running"), Home(home.folder, "mongo").held():
        pytest.fail("two demos at once")


def test_the_folders_are_their_owners_alone_also_those_of_an_older_demo(home: Home) -> None:
    home.logs.mkdir(parents=True, mode=0o755)
    home.folder.chmod(0o755)
    with home.held():
        home.make_private_folders()
        assert home.folder.stat().st_mode & 0o066 == 0
        for folder in (home.logs, home.world):
            assert folder.stat().st_mode & 0o777 == 0o700
