"""The log: one line for each request, task and settle, with ids that can be followed, and nothing of what was said in them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.contrib.auth.models import User
from django.test import AsyncClient
from structlog.contextvars import bound_contextvars

from console import logs, tasks
from console.celery import app
from console.models import Decision
from console.services import tallies
from tests.console.conftest import Api
from tests.console.log_lines import captured
from tests.console.view_helpers import browser
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
REASON = "Found in the Sent folder, to ben@example.com"


def test_a_request_is_one_line_with_its_pattern_and_without_its_address(memory: RecordWriter, ana: User) -> None:
    memory.action("billing-7", 1)
    with captured() as lines:
        answer = browser(ana).get("/actions/main/billing-7/1/?q=needle", headers={"X-Request-ID": "proxy-0123456789"})

    (line,) = lines.of("request")
    assert line["route"] == "/actions/<store:store>/<agent:agent>/<number:seq>/"
    assert (line["method"], line["status"], line["user"]) == ("GET", 200, "ana")
    assert line["request_id"] == answer["X-Request-ID"] == "proxy-0123456789"
    assert isinstance(line["ms"], float)
    assert "billing-7" not in lines.text
    assert "needle" not in lines.text


@pytest.mark.parametrize("said", ["", "short", "x" * 65, "a b c d e f g h", 'quote"quote', "<script>alert(1)</script>"])
def test_an_id_that_is_none_is_replaced(said: str) -> None:
    answer = browser().get("/healthz", headers={"X-Request-ID": said})

    assert len(answer["X-Request-ID"]) == 32
    assert answer["X-Request-ID"] != said


def test_who_is_refused_or_not_found_is_one_line_too(memory: RecordWriter, ben: User) -> None:
    with captured() as lines:
        browser(ben).get("/nowhere/secret-name/")
        browser(ben).get("/actions/main/secret-name/1/")
        browser(ben).post("/people/", {"username": "secret-name"})

    assert [(line["route"], line["status"]) for line in lines.of("request")] == [
        ("none", 404),
        ("/actions/<store:store>/<agent:agent>/<number:seq>/", 404),
        ("/people/", 403),
    ]
    assert "secret-name" not in lines.text


def test_under_asgi_each_of_many_requests_keeps_its_own_id(memory: RecordWriter) -> None:
    ids = [f"request-{number:04}" for number in range(20)]

    async def ask_all() -> list[Any]:
        client = AsyncClient()
        return await asyncio.gather(*(client.get("/healthz", headers={"X-Request-ID": one}) for one in ids))

    with captured() as lines:
        answers = asyncio.run(ask_all())

    assert [answer["X-Request-ID"] for answer in answers] == ids
    assert sorted(line["request_id"] for line in lines.of("request")) == ids


def test_a_settle_is_one_line_without_reason_or_arguments(memory: RecordWriter, ana: User, api: Any) -> None:
    ref = memory.action("billing-7", 1, tool="send_email", args={"to": "ben@example.com", "body": "needle"})
    caller: Api = api(ana)
    with captured() as lines:
        status, _ = caller.post(
            "actions/main/billing-7/1/decision",
            {"outcome": "done", "reason": REASON, "result": "sent needle", "decision_id": "d-12345678"},
        )

    assert status == 201
    (line,) = lines.of("settle")
    said = {name: line[name] for name in ("decision", "store", "agent", "seq", "outcome", "state")}
    assert said == {
        "decision": "d-12345678",
        "store": "main",
        "agent": ref.agent,
        "seq": 1,
        "outcome": "done",
        "state": "written",
    }
    assert line["request_id"] == lines.of("request")[0]["request_id"]
    for word in (REASON, "ben@example.com", "needle"):
        assert word not in lines.text


def test_a_withdrawn_decision_is_a_line_and_a_count(memory: RecordWriter, ana: User, api: Any) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    caller: Api = api(ana)
    caller.post("actions/main/billing-7/1/decision", {"outcome": "done", "reason": REASON, "decision_id": "d-12345678"})
    with captured() as lines:
        status, _ = caller.delete("actions/main/billing-7/1/decision")

    assert status == 200
    assert [line["state"] for line in lines.of("settle")] == ["withdrawn"]
    tallies.flush()
    assert tallies.read_tallies()["settle_decisions_total"] == {("withdrawn", "done"): 1.0}


def test_a_hostile_agent_id_breaks_no_line(memory: RecordWriter, ana: User, api: Any) -> None:
    agent = 'x\n{"event": "settle"}\r\x1b[2K\u202e\u2028y'
    memory.action(agent, 1)
    with captured() as lines:
        logging.getLogger("console.any").warning("about %s", agent)
        logging.getLogger("console.any").error("a lone %s", "\ud83d")

    first, second = lines.all()
    assert first["event"] == 'about x\\n{"event": "settle"}\\r\\x1b[2K\\u202e\\u2028y'
    assert second["event"] == "a lone \\ud83d"
    assert lines.text.isascii()


def test_of_an_error_there_is_the_kind_and_the_way_and_never_the_text() -> None:
    with captured() as lines:
        try:
            raise ValueError("to=ben@example.com\nneedle")
        except ValueError:
            logging.getLogger("console.any").exception("it broke")

    (line,) = lines.all()
    assert line["error"].startswith("ValueError in test_logs.py, line ")
    assert "test_logs.py:" in line["way"]
    assert "needle" not in lines.text


def test_secrets_are_hidden_and_long_values_cut() -> None:
    with captured() as lines:
        logging.getLogger("console.any").warning("token sk_live_%s and %s", "4eC39HqLyjWDarjtT1zdp7dc", "x" * 50_000)

    assert "4eC39HqLyjWDarjtT1zdp7dc" not in lines.text
    assert len(lines.text) < logs.MAX_VALUE_CHARS + 500


def test_a_task_carries_the_id_of_the_request_that_sent_it_and_is_one_line(memory: RecordWriter, ana: User, api: Any) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    caller: Api = api(ana)
    caller.post("actions/main/billing-7/1/decision", {"outcome": "done", "reason": REASON, "decision_id": "d-12345678"})
    pk = Decision.objects.get().pk
    headers: dict[str, Any] = {}
    with captured() as lines:
        # What a publisher and a worker do, without a broker between: the signal of one, its headers handed to the other.
        with bound_contextvars(request_id="request-0042"):
            before_task_publish.send(sender="console.tasks.deliver", headers=headers)
        tasks.deliver.apply(args=[pk], headers=headers)

    (line,) = lines.of("task")
    assert (line["task"], line["state"], line["request_id"]) == ("deliver", "success", "request-0042")
    assert "args" not in line


def test_a_task_that_breaks_says_its_kind_and_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(said: str) -> None:
        raise RuntimeError(f"nobody is called {said}")

    monkeypatch.setattr(tasks.passwords, "mail_link", broken)
    with captured() as lines:
        tasks.send_password_link.apply(args=["needle@example.com"])

    (line,) = lines.of("task")
    assert (line["state"], line["level"]) == ("failure", "error")
    assert line["error"].startswith("RuntimeError in test_logs.py")
    assert "needle" not in lines.text


def test_celery_leaves_the_log_as_it_is() -> None:
    before = logging.getLogger().handlers[:]

    app.log.setup(loglevel=logging.DEBUG, redirect_stdouts=False)

    assert logging.getLogger().handlers == before


@pytest.mark.parametrize(("given", "is_json"), [({}, True), ({"LOG_FORMAT": "console"}, False), ({"DEBUG": "1"}, False)])
def test_the_form_of_the_log_is_a_setting(given: dict[str, str], is_json: bool) -> None:
    code = "import django; django.setup(); import logging; logging.getLogger('any').warning('two\\nlines')"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "console.settings"} | given
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)

    (line,) = done.stderr.splitlines()
    assert "two" in line
    assert "lines" in line
    assert line.startswith("{") is is_json
    assert not is_json or json.loads(line)["event"] == "two\\nlines"


def test_what_a_library_warns_of_in_production_is_a_line_like_any_other() -> None:
    code = "import django; django.setup(); import warnings; warnings.warn('two\\nlines', UserWarning)"
    production = {"DEBUG": "0", "DEMO": "0", "LOG_FORMAT": "json", "DJANGO_SETTINGS_MODULE": "console.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | production, capture_output=True, text=True, check=True
    )

    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"]) == ("warning", "py.warnings")
    assert "UserWarning: two" in said["event"]


def test_a_form_that_there_is_not_is_named() -> None:
    environment = {**os.environ, "LOG_FORMAT": "xml"}
    done = subprocess.run(
        [sys.executable, "-c", "import console.settings"], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "LOG_FORMAT is 'xml'; allowed: json, console" in done.stderr
