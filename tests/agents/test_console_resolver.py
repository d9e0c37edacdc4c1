"""What the resolver makes of whatever a console, or something else at its address, answers: an end only where nothing is guessed."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actions.digests import claim_digest
from actions.keys import action_key
from actions.records import Action, ActionClass, ActionStatus
from agents.console_resolver import MAX_RESOLUTION_BYTES, Decided, console_resolver
from local.processes import wait_until
from tests.resolvers.certificates import make_certificate
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

TOKEN = "settle_" + "t0ken" * 8
AGENT = "billing-7"
OWNER = {"user": None, "store": "main", "agent": AGENT}


def an_action(**changes: Any) -> Action:
    fields: dict[str, Any] = {
        "agent": AGENT,
        "seq": 4,
        "tool": "send_email",
        "action_class": ActionClass.EXTERNAL,
        "key": action_key(AGENT, 4),
        "args": '{"to": "ann@example.com", "note": "\u00e9\ud800\\u0000"}',
        "status": ActionStatus.UNKNOWN,
        "epoch": 3,
        "written_epoch": 9,
        "started_at": 1,
    }
    return Action(**{**fields, **changes})


def recalls(action: Action) -> Any:
    """The same as recall-langgraph hands it to a resolver: it does not say whose it is."""
    names = ("seq", "tool", "key", "args", "args_ref", "epoch")
    return SimpleNamespace(**{name: getattr(action, name) for name in names}, class_=str(action.action_class), status="unknown")


def a_decision(**changes: Any) -> dict[str, Any]:
    action = an_action()
    return {
        "id": "decision-1",
        "state": "waiting",
        "outcome": "done",
        "reason": "found in the Sent folder",
        "result": "message-id 1204",
        "error": "",
        "resolution": "operator ana: found in the Sent folder",
        "by": "ana",
        "at": "2026-11-30T10:00:00Z",
        "tool": action.tool,
        "claim": claim_digest(action, action.args),
        **changes,
    }


class Console:
    """Something at the console's address. `says` is the answer about the decision, `owner` the one about the token."""

    def __init__(self) -> None:
        self.says: Any = a_decision()
        self.owner: Any = OWNER

    def __call__(self, asked: Asked, talk: Conversation) -> None:
        said = self.owner if asked.target.endswith("/token") else self.says
        if callable(said):
            said(talk)
        elif isinstance(said, int):
            talk.answer(said, b'{"error": "x", "detail": "y"}')
        elif isinstance(said, bytes):
            talk.answer(200, said)
        else:
            talk.answer(200, json.dumps(said).encode())


@pytest.fixture
def console() -> Console:
    return Console()


@pytest.fixture
def server(console: Console) -> Iterator[WebServer]:
    with serve(console) as running:
        yield running


def ask(server: WebServer, action: Any = None, **options: Any) -> Decided | None:
    return console_resolver(f"http://{server.host}", TOKEN, **options)(action or an_action())


@pytest.mark.parametrize("of", [lambda action: action, recalls], ids=["ours", "recall-langgraph"])
def test_a_decision_about_this_very_call_is_an_end(server: WebServer, of: Any) -> None:
    resolve = console_resolver(f"http://{server.host}/", TOKEN)

    found = [resolve(of(an_action())), resolve(of(an_action(status=ActionStatus.STARTED, written_epoch=1)))]

    assert found == [Decided("done", "message-id 1204", "", "operator ana: found in the Sent folder")] * 2
    assert [one.target for one in server.asked] == ["/api/v1/token", *["/api/v1/actions/main/billing-7/4/decision"] * 2]
    assert {(one.method, one.headers["authorization"]) for one in server.asked} == {("GET", f"Bearer {TOKEN}")}


def test_a_written_failure_is_an_end_with_its_error(console: Console, server: WebServer) -> None:
    console.says = a_decision(state="written", outcome="failed", result="", error="never sent")

    assert ask(server, store="main", agent=AGENT) == Decided("failed", "", "never sent", "operator ana: found in the Sent folder")


def test_long_arguments_are_known_by_key_and_tool(server: WebServer) -> None:
    overflowed = an_action(args="{...\n[... 3000 more tokens stored as output act-4-args]", args_ref="act-4-args")

    assert ask(server, overflowed) is not None
    assert ask(server, an_action(args_ref="act-4-args", tool="send_sms")) is None


def test_a_reason_that_recall_could_not_put_into_a_turn_is_shortened(console: Console, server: WebServer) -> None:
    console.says = a_decision(resolution="operator ana: " + "\U0001f600" * 2_000)

    found = ask(server)

    assert found is not None
    assert found.resolution.endswith("\U0001f600...")
    brief = f"(settled after a crash: done; {found.resolution}) {chr(0x1F600) * 300}"[:4000]
    assert len(brief.encode()) <= 4_096
    assert len(found.resolution.encode()) <= MAX_RESOLUTION_BYTES + 3


# --- cannot tell -----------------------------------------------------------------------------------------------------


def hang(talk: Conversation) -> None:
    talk.hang()


def drip(talk: Conversation) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not talk.over.wait(0.05):
        talk.send(b" ")


def redirect(talk: Conversation) -> None:
    talk.answer(302, b"", Location=f"http://127.0.0.1:1/{TOKEN}")


def endless(talk: Conversation) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while not talk.over.is_set():
        talk.send(b"[" * 1_000_000)


ODD_ANSWERS: dict[str, Any] = {
    **{str(status): status for status in (204, 301, 400, 401, 403, 404, 409, 429, 500, 502, 503)},
    "a redirect": redirect,
    "a page of HTML": b"<html>done</html>",
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{",
    "a bomb": b"[" * 200_000,
    "a number": b"9" * 10_000,
    "null": b"null",
    "a list": [a_decision()],
    "half an answer": json.dumps(a_decision()).encode()[:-20],
    "no fields": {},
    "no HTTP": lambda talk: talk.send(b"done\r\n\r\n"),
    "closed": lambda talk: None,
    "proposed": a_decision(state="proposed"),
    "held": a_decision(state="held"),
    "withdrawn": a_decision(state="withdrawn"),
    "refused": a_decision(state="refused"),
    "an unknown state": a_decision(state=["written"]),
    "hidden": a_decision(state="held", outcome=None, result=None, error=None, resolution=None, claim=None, tool=None),
    "abandoned": a_decision(outcome="abandoned", result=""),
    "unknown": a_decision(outcome="unknown"),
    "an outcome that is a list": a_decision(outcome=["done"]),
    "a result that is no text": a_decision(result={"a": 1}),
    "no resolution": {name: value for name, value in a_decision().items() if name != "resolution"},
    "half a surrogate pair": a_decision(result="\ud800"),
    "a result and a failure": a_decision(outcome="failed", result="sent"),
    "an error and a success": a_decision(error="no"),
    "too large a result": a_decision(result="x" * 1_048_577),
    "other arguments": a_decision(claim=claim_digest(an_action(), "{}")),
    "another epoch": a_decision(claim=claim_digest(an_action(epoch=4), an_action().args)),
    "no claim": a_decision(claim=None),
}


@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_whatever_is_no_decision_about_this_call_leaves_it_open(
    console: Console, server: WebServer, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    caplog.set_level(logging.INFO, "agents.console_resolver")
    console.says = answer

    assert ask(server) is None

    (said,) = [record.getMessage() for record in caplog.records if record.name == "agents.console_resolver"]
    assert said.startswith("action 4 ('send_email') stays open: ")
    assert TOKEN not in caplog.text
    assert "asking the console broke" not in said
    assert len(said) < 300


@pytest.mark.parametrize("slow", [hang, drip, endless], ids=["silent", "a byte at a time", "without end"])
def test_a_console_that_does_not_come_to_an_end_is_left(console: Console, server: WebServer, slow: Any) -> None:
    console.says = slow

    assert ask(server, timeout_s=0.4) is None


def test_the_time_is_for_both_questions(console: Console, server: WebServer) -> None:
    """Whose token it is took all of it: then the decision is not asked for."""
    console.owner = hang

    assert ask(server, timeout_s=0.5) is None
    wait_until(lambda: bool(server.asked), what="the question, which may lie there for a while")
    assert [one.target for one in server.asked] == ["/api/v1/token"]


@pytest.mark.parametrize(
    "owner",
    [{"user": "ana", "store": None, "agent": None}, {**OWNER, "agent": "billing-8"}, {**OWNER, "agent": "../x"}, {}, 401, 404],
    ids=["a person's", "another agent's", "no agent's id", "empty", "not valid", "an older console"],
)
def test_a_token_of_somebody_else_decides_nothing(
    console: Console, server: WebServer, owner: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Recall's action does not say whose it is: its key does."""
    console.owner = owner

    assert ask(server, recalls(an_action())) is None
    assert not [one for one in server.asked if "decision" in one.target]
    assert TOKEN not in caplog.text


def test_a_token_that_is_not_the_named_agents_decides_nothing(server: WebServer) -> None:
    assert ask(server, store="other", agent=AGENT) is None
    assert ask(server, store="main", agent="billing-8") is None
    assert {one.target for one in server.asked} == {"/api/v1/token"}


def test_who_could_not_be_told_is_asked_again(console: Console, server: WebServer) -> None:
    resolve = console_resolver(f"http://{server.host}", TOKEN)
    console.owner = 503
    assert resolve(an_action()) is None
    console.owner = OWNER
    assert resolve(an_action()) is not None


def test_what_is_no_action_leaves_it_open_and_quotes_nothing(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(server, SimpleNamespace(args="hunter2")) is None
    assert "AttributeError" in caplog.text
    assert "hunter2" not in caplog.text


def test_only_a_certificate_for_its_name_is_trusted(console: Console, tmp_path: Path) -> None:
    right, wrong = (make_certificate(folder(tmp_path, host), host=host) for host in ("localhost", "elsewhere.example"))
    trusting = ssl.create_default_context(cadata=right.pem + wrong.pem)
    found = {}
    for name, certificate in (("right", right), ("wrong", wrong)):
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        theirs.load_cert_chain(certificate.file, certificate.key)
        with serve(console, tls=theirs) as server:
            url = f"https://localhost:{server.port}"
            found[name] = (console_resolver(url, TOKEN, tls=trusting)(an_action()), len(server.asked))
            if name == "right":
                assert console_resolver(url, TOKEN)(an_action()) is None  # nobody vouches for it

    assert found["right"] == (Decided("done", "message-id 1204", "", "operator ana: found in the Sent folder"), 2)
    assert found["wrong"] == (None, 0)


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def test_nobody_there_leaves_it_open() -> None:
    with serve(Console()) as server:
        address = f"http://{server.host}"
    assert console_resolver(address, TOKEN)(an_action()) is None
    assert console_resolver("https://console.invalid", TOKEN, timeout_s=2)(an_action()) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"url": ""}, "the console's address"),
        ({"url": "settle.example.com"}, "begins with https://"),
        ({"url": "ftp://settle.example.com"}, "not supported"),
        ({"url": "https://ana:hunter2@settle.example.com"}, "user name or password"),
        ({"url": "https://settle.example.com/?token=hunter2"}, "query"),
        ({"url": "https://settle.example.com/#x"}, "fragment"),
        ({"url": None}, "the console's address is NoneType, not a text; is its variable set"),
        ({"token": None}, "the token is NoneType"),
        ({"token": ""}, "token"),
        ({"token": "hunter2 hunter2"}, "token"),
        ({"token": "hunter2\r\nX: y"}, "token"),
        ({"token": "hunter2\u00e9"}, "token"),
        ({"store": "main"}, "store and agent"),
        ({"store": "main", "agent": "a:b"}, "agent's id"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
    ],
)
def test_what_cannot_be_used_is_said_when_it_is_built(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        console_resolver(**{"url": "https://settle.example.com", "token": TOKEN, **changes})

    assert "hunter2" not in str(refused.value)
