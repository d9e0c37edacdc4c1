"""The whole way of a decision to an agent that lives: people decide in the running console, the agent asks, and the console sees what it did."""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from pytest_django import Settings

from actions.queries import get_action
from actions.records import Action, ActionRef, ActionStatus
from actions.store import open_store
from console import stores
from console.models import Decision, Grant
from console.services.deliver import deliver
from console.services.policies import save_policy
from console.services.tokens import create_agent_token, create_user_token
from local.mongo import Mongo
from local.postgres import Postgres
from tests.interop.driver import expire_lease
from tests.running_console import running_console
from tests.servers import VECTOR_TEMPLATE

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
KINDS = [("recall", "main"), ("ours", "main"), ("ours", "mongo")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The running console, and where its stores are."""

    address: str
    urls: dict[str, str]


@pytest.fixture(scope="module")
def site(django_db_setup: None, pg_server: Postgres, mongo_server: Mongo) -> Iterator[Site]:
    name = f"t_{uuid4().hex[:16]}"
    urls = {"main": pg_server.create_database(name, template=VECTOR_TEMPLATE), "mongo": mongo_server.url(name)}
    for store, url in urls.items():
        opened = open_store(url, name=store)
        opened.prepare()
        opened.close()
    database_url = pg_server.url(django_settings.DATABASES["default"]["NAME"])
    with running_console(database_url=database_url, stores=" ".join(f"{store}={url}" for store, url in urls.items())) as address:
        yield Site(address=address, urls=urls)
    pg_server.drop_database(name)
    mongo_server.drop_database(name)


@pytest.fixture
def operator(transactional_db: None, site: Site, settings: Settings) -> Iterator[str]:
    """A token of Ana's, who settles; payments are held for an hour."""
    settings.ACTION_STORES = site.urls
    stores.reset()
    ana, amy = User.objects.create(username="ana"), User.objects.create(username="amy")
    Grant.objects.create(user=ana, role="operator")
    Grant.objects.create(user=amy, role="admin")
    save_policy("create_payment", {"hold_s": 3_600}, seen_version=0, by=amy)
    yield create_user_token(ana)
    stores.reset()


class Talk:
    """One process of an agent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the agent has died"
        return dict(json.loads(line))

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()


@contextmanager
def living(kind: str, *, site: Site, store: str, agent: str) -> Iterator[Talk]:
    token = create_agent_token(store, agent)
    line = [sys.executable, "-m", "tests.agents.live_agent", "--kind", kind, "--url", site.urls[store], "--agent", agent]
    line += ["--console", site.address, "--token", token]
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Talk(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


def send(site: Site, token: str, ref: ActionRef, outcome: str, reason: str, **more: str) -> tuple[int, dict[str, Any]]:
    body = {"outcome": outcome, "reason": reason, "decision_id": f"test-{uuid4()}", **more}
    request = Request(
        f"{site.address}/api/v1/actions/{ref.store}/{ref.agent}/{ref.seq}/decision",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urlopen(request) as answer:
        return answer.status, json.loads(answer.read())


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server that takes every mail, and lets the process that sends the first die before it hears so."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Delivery)
        self.mails: list[str] = []
        self.sender: subprocess.Popen[str] | None = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server_address)


class Delivery(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().upper():
            if line.startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append("".join(text.decode() for text in iter(self.rfile.readline, b".\r\n")))
                if self.server.sender is not None:
                    self.server.sender.kill()
                    return
            self.wfile.write(b"250 ok\r\n")


def test_the_agent_of_the_readme_is_killed_and_goes_on_with_what_was_decided(site: Site, operator: str, tmp_path: Path) -> None:
    """What a reader copies, but for the model: a scripted one that sends the mail unless it reads that it was sent, or may have been."""
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "init_chat_model(" in block
    )
    for line in ("from langchain.chat_models import init_chat_model", 'model = init_chat_model(os.environ["MODEL"])'):
        assert script.count(line) == 1
    script = script.replace('init_chat_model(os.environ["MODEL"])', "CarefulModel()")
    script = script.replace(
        "from langchain.chat_models import init_chat_model", "from tests.interop.killable_agent import CarefulModel"
    )
    (tmp_path / "support.py").write_text(script)
    settings = {
        "AGENT_STORE": site.urls["main"],
        "CONSOLE_URL": site.address,
        "LANGSMITH_TRACING": "false",
        "PYTHONPATH": str(ROOT),
    }
    mail = ActionRef("main", "support-7", 1)

    def start(mailbox: Mailbox) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **settings,
            "CONSOLE_TOKEN": create_agent_token("main", "support-7"),
            "SMTP": mailbox.address,
        }
        line = [sys.executable, "support.py", "Tell Ann about her refund."]
        return subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with Mailbox() as mailbox:
        mailbox.sender = start(mailbox)
        _, errors = mailbox.sender.communicate(timeout=180)
        assert mailbox.sender.returncode == -signal.SIGKILL, errors
        status, told = send(site, operator, mail, "done", "found in the Sent folder", result="message-id 1204")
        assert (status, told["state"]) == (202, "waiting")  # its lease still lives
        expire_lease(site.urls["main"], "support-7")
        mailbox.sender = None

        said, errors = start(mailbox).communicate(timeout=180)

        assert said.strip() == "Nothing left to do.", errors
        (sent,) = mailbox.mails
        mailbox.shutdown()
    action = get_action(stores.get_store("main"), mail).action
    assert isinstance(action, Action)
    assert (action.status, action.result) == (ActionStatus.DONE, "message-id 1204")
    assert f"Message-Id: <{action.key}@example.com>" in sent
    assert action.resolution == "operator ana: found in the Sent folder"


@pytest.mark.parametrize(("kind", "store"), KINDS, ids=lambda value: value)
def test_a_living_agent_picks_up_what_waits_and_nothing_else(site: Site, operator: str, kind: str, store: str) -> None:
    agent = f"live-{kind}"
    mail, payment, ticket = (ActionRef(store, agent, seq) for seq in (1, 2, 3))
    with living(kind, site=site, store=store, agent=agent) as process:
        assert process.hear() == {"open": [1, 2, 3]}
        told = send(site, operator, mail, "done", "found in the Sent folder", result="message-id 1204")
        held = send(site, operator, payment, "failed", "not in the dashboard")
        other = send(site, operator, ticket, "done", "I saw it")
        assert [(status, answer["state"]) for status, answer in (told, held, other)] == [
            (202, "waiting"),
            (202, "held"),
            (202, "waiting"),
        ]
        process.tell("reconcile")

        did = process.hear()

        assert did["closed"] == [[1, "done", "message-id 1204", "operator ana: found in the Sent folder"]]
        assert did["open"] == [2]
        assert did["turns"] == [
            [
                "send_email",
                "message-id 1204",
                "(settled after a crash: done; operator ana: found in the Sent folder) message-id 1204",
            ]
        ]
        seen = {row.seq: deliver(row.pk) for row in Decision.objects.filter(store=store, agent=agent, seq__in=(1, 3))}
        rows = {row.seq: row for row in Decision.objects.filter(store=store, agent=agent)}
        assert set(seen) == {1, 3}
        assert (rows[1].state, rows[1].written_by, rows[1].entry_number) == ("written", "agent", None)
        assert (rows[2].state, rows[2].why) == ("held", "it can be undone")
        assert (rows[3].state, rows[3].why) == ("refused", "its agent ended it first: failed, the tracker says no")
        process.tell("end")
    opened = stores.get_store(store)
    assert [get_action(opened, ref).action.status for ref in (mail, payment, ticket)] == [  # type: ignore[union-attr]
        ActionStatus.DONE,
        ActionStatus.UNKNOWN,
        ActionStatus.FAILED,
    ]
    assert [entry.kind for entry in opened.list_entries(limit=10, agent=agent, seq=1)] == ["waiting"]
