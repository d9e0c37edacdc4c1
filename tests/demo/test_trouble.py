"""What may go wrong in the demo: a process that ends, records that cannot be read, errors nobody foresaw. One line, and all is stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from demo import __main__ as demo
from demo import records
from demo.console import Console
from demo.home import Home, Refused
from local import processes
from local.processes import ProcessGroup
from tests.recall_writer import RecallWriter

GOOD = {"tool": "send_email", "class": "external", "status": "started", "key": "k"}


@pytest.mark.parametrize("name", ["web", "worker", "beat", "prepare"])
def test_whatever_of_the_console_ends_is_noticed_and_named(tmp_path: Path, name: str) -> None:
    with ProcessGroup() as servers:
        face = Console(home=Home(tmp_path), servers=servers, environment={}, port=1)
        servers.spawn("other", [sys.executable, "-c", "import time; time.sleep(60)"])
        face.require_alive()
        ending = servers.spawn(name, [sys.executable, "-c", "raise SystemExit(3)"])
        ending.wait(20)
        with pytest.raises(Refused, match=rf"'{name}' ended with exit code 3; see .*{name}\.log"):
            face.require_alive()


def test_a_database_or_broker_that_ends_is_noticed() -> None:
    living = processes.spawn([sys.executable, "-c", "import time; time.sleep(60)"])
    ended = processes.spawn([sys.executable, "-c", "pass"])
    ended.wait(20)
    try:
        demo.require_running(PostgreSQL=living)
        with pytest.raises(Refused, match="Valkey ended"):
            demo.require_running(PostgreSQL=living, Valkey=ended)
    finally:
        processes.stop(living)


@pytest.mark.parametrize(
    ("agent", "body"),
    [
        (None, json.dumps(GOOD)),
        ("a", None),
        ("a", "{"),
        ("a", "[]"),
        ("a", "null"),
        ("a", "[" * 100_000),
        ("a", json.dumps(GOOD | {"tool": None})),
        ("a", json.dumps(GOOD | {"status": ["started"]})),
        ("a", json.dumps({"tool": "x"})),
        (7, json.dumps(GOOD)),
    ],
    ids=range(10),
)
def test_a_record_that_cannot_be_read_is_not_the_demos_business(agent: object, body: object) -> None:
    assert records._call(agent, body) is None


def test_a_record_without_its_agent_stops_no_start(pg_url: str) -> None:
    with RecallWriter(pg_url, collection=records.COLLECTION.removesuffix("_agents")) as writer:
        writer.create()
        writer.action("support-agent-7", 1)
        writer.action("support-agent-8", 1, drop=("recall_agent",))
        writer.action("support-agent-9", 1, meta={"recall_agent": None})
        writer.action("support-agent-10", 1, drop=("body",))
    try:
        assert [call.agent for call in records.calls(pg_url)] == ["support-agent-7"]
        assert demo.who_plays(pg_url)
    except psycopg.Error as exc:
        pytest.fail(str(exc))


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
