"""What may go wrong in the demo: a process that ends, records that cannot be read, errors nobody foresaw. One line, and all is stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest
from pymongo.errors import ConnectionFailure

from actions.errors import StoreUnusable
from demo import __main__ as demo
from demo import records
from demo.console import Console
from demo.home import Home, Refused
from local import processes
from local.processes import ProcessGroup
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter


@pytest.mark.parametrize("name", ["web", "worker", "beat", "prepare"])
def test_whatever_of_the_console_ends_is_noticed_and_named(tmp_path: Path, name: str) -> None:
    with ProcessGroup() as servers:
        face = Console(home=Home(tmp_path), servers=servers, environment={}, port=1)
        servers.spawn("other", [sys.executable, "-c", "import time; time.sleep(600)"])
        face.require_alive()
        ending = servers.spawn(name, [sys.executable, "-c", "raise SystemExit(3)"])
        ending.wait(60)
        with pytest.raises(Refused, match=rf"'{name}' ended with exit code 3; see .*{name}\.log"):
            face.require_alive()


def test_a_database_or_broker_that_ends_is_noticed() -> None:
    living = processes.spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    ended = processes.spawn([sys.executable, "-c", "pass"])
    ended.wait(60)
    try:
        demo.require_running(PostgreSQL=living)
        with pytest.raises(Refused, match="Valkey ended"):
            demo.require_running(PostgreSQL=living, Valkey=ended)
    finally:
        processes.stop(living)


@pytest.mark.parametrize("kind", ["pg", "mongo"])
def test_a_record_that_cannot_be_read_is_not_the_demos_business(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with (RecallWriter if kind == "pg" else MongoWriter)(url) as writer:
        assert (records.calls(url), records.agents(url)) == ([], frozenset())
        writer.create()
        writer.action("support-agent-7", 1)
        writer.action("support-agent-8", 1, drop=("recall_agent",))
        writer.action("support-agent-9", 1, meta={"recall_agent": None})
        writer.action("support-agent-10", 1, drop=("body",))
        writer.action("support-agent-11", 1, meta={"body": "["})

    assert [(call.agent, call.tool, call.is_open) for call in records.calls(url)] == [("support-agent-7", "send_email", True)]
    assert records.agents(url) == {"support-agent-7"}
    assert demo.who_plays({"main": url})


@pytest.mark.parametrize("problem", [StoreUnusable("main", "no schema recall"), ConnectionFailure("refused\nby somebody")])
def test_a_store_that_fails_is_one_line(
    problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "start", broken)

    assert demo.main(["--store", "mongo"]) == 1

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "unexpected" not in said


def test_an_unforeseen_error_is_one_line_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> NoReturn:
        raise TypeError("expected string\nor bytes-like object, got NoneType")

    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(demo, "run", broken)
    monkeypatch.setattr(demo.signal, "signal", lambda *args: None)
    monkeypatch.setenv("DEMO_PORT", str(processes.free_port()))

    assert demo.main([]) == 1

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--fresh" in said
    log = tmp_path / ".data/logs/demo.log"
    assert str(log) in said
    assert "Traceback" in log.read_text()
    assert not (tmp_path / ".data/demo.json").exists()


def test_the_agents_need_their_address_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from demo import agents

    monkeypatch.delenv("DEMO_RECORDS_URL", raising=False)
    with pytest.raises(SystemExit):
        agents.parse(["run", "--agent", "a", "--world", "/tmp", "--script", "refund"])
    assert "DEMO_RECORDS_URL is not set" in capsys.readouterr().err
