"""The address of a polign_db server, and everything that it may answer: one line each, no key in any, and what became of the decision."""

from __future__ import annotations

import json
import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from actions.errors import StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable, WriteConflict
from actions.records import ActionRef, ActionStatus
from actions.store import open_store, steps
from actions.store.deadlines import Timeouts
from actions.store.polign import PolignStore
from actions.store.polign_http import parse_address
from local import polign as local_polign
from local.polign import RunningPolign
from tests.http_gateway import Gateway
from tests.polign_writer import PolignWriter
from tests.store.gestures import decide, look_at_world, until
from tests.store.test_postgres_deadlines import Proxy

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
SHORT = Timeouts(answer_s=0.5, read_s=1, write_s=1, pause_s=60)
KEY = "plgn_geheim_1234567"


# --- the address -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "base", "collection", "key"),
    [
        ("polign+http://h:23000", "http://h:23000", "recall_lexical_v1_agents", ""),
        ("polign+http://:k%20@h".replace("%20", "%21"), "http://h", "recall_lexical_v1_agents", "k!"),
        ("polign+https://key@h:1/?collection=team", "https://h:1", "team_agents", "key"),
        ("polign+http://user:key@h/gate/way/?collection=a%3Ab", "http://h/gate/way", "a:b_agents", "key"),
        ("polign+http://[::1]:23000/", "http://[::1]:23000", "recall_lexical_v1_agents", ""),
        ("POLIGN+HTTP://Host", "http://host", "recall_lexical_v1_agents", ""),
    ],
)
def test_an_address_names_server_collection_and_key(url: str, base: str, collection: str, key: str) -> None:
    address = parse_address("main", url)

    assert (address.base, address.collection, address.key) == (base, collection, key)
    assert key == "" or key not in repr(address)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("polign+http:///x", "malformed"),
        ("polign+http://:geheim-123@/x", "malformed"),
        ("polign+http://:geheim-123@h:x/", "malformed"),
        ("polign+http://:geheim-123@h:99999/", "malformed"),
        ("polign+http://:geheim-123@[h/", "malformed"),
        ("polign+http://:geheim-123@h\u0131/", "malformed"),
        ("polign+http://:geheim-123%0a@h/", "the key in its address"),
        ("polign+http://:geheim-123@h/?schema=x", "parameter 'schema'"),
        ("polign+http://:geheim-123@h/?collection=", "collection must be"),
        ("polign+http://:geheim-123@h/?collection=a%20b", "collection must be"),
        ("polign+http://:geheim-123@h/?collection=team_agents", "without _agents"),
    ],
)
def test_a_malformed_address_is_refused_without_repeating_its_key(url: str, words: str) -> None:
    with pytest.raises(StoreUnusable, match=words) as caught:
        open_store(url)

    assert "geheim" not in str(caught.value)


# --- a server that asks for a key ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningPolign]:
    with local_polign.start(asks_for_key=True) as server:
        yield server


def test_a_server_that_asks_for_a_key_is_read_and_settled_with_it(locked: RunningPolign, records_url: str) -> None:
    collection = f"c{uuid4().hex[:12]}"
    with (
        closing(open_store(locked.url(collection), entries_url=records_url)) as store,
        PolignWriter(locked, collection) as recall,
    ):
        ref = recall.action("a", 1)

        assert store.check().can_settle
        assert decide(store, ref).turn_seq == 1


@pytest.mark.parametrize("key", ["", f":{KEY}@", f"{KEY}@"])
def test_a_wrong_key_or_none_is_told_without_the_key(locked: RunningPolign, records_url: str, key: str) -> None:
    place = locked.base.partition("://")[2]
    with closing(open_store(f"polign+http://{key}{place}", entries_url=records_url)) as store:
        for ask in (
            lambda: store.read_actions(OPEN, limit=1),
            lambda: decide(store, ActionRef("main", "a", 1)),
            store.read_watch,
        ):
            with pytest.raises(StoreUnusable, match="it refuses the key in its address, or the lack of one") as caught:
                ask()
            assert KEY not in str(caught.value)
        check = store.check()

    assert (check.is_reachable, check.can_settle) == (True, False)
    assert "refuses the key" in check.why_not


# --- whatever may stand at an address --------------------------------------------------------------------------------------


class Canned:
    """Answers every request with one text."""

    def __init__(self, status: int, text: str, *, kind: str = "application/json", headers: dict[str, str] | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"polign+http://:{KEY}@127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


HTML = "<html><body>Welcome\n to the\n proxy</body></html>"
ANSWERS: dict[str, tuple[Callable[[], Canned], type[StoreError], str]] = {
    "a web page": (
        lambda: Canned(200, HTML, kind="text/html"),
        StoreUnusable,
        "what answers there is not polign_db (200: text/html",
    ),
    "another page": (lambda: Canned(404, "404 page not found"), StoreUnusable, "what answers there is not polign_db (404"),
    "a redirect": (lambda: Canned(302, "", headers={"Location": "/login"}), StoreUnusable, "not polign_db (302"),
    "another service": (lambda: Canned(200, '{"ok": true}'), StoreUnusable, "not polign_db: it says no vectors"),
    "a list": (lambda: Canned(200, "[]"), StoreUnusable, "not polign_db"),
    "a nesting without end": (lambda: Canned(200, "[" * 100_000), StoreUnusable, "not polign_db"),
    "broken compression": (
        lambda: Canned(200, "this is no gzip", headers={"Content-Encoding": "gzip"}),
        StoreUnusable,
        "cannot be read",
    ),
    "vectors that are none": (lambda: Canned(200, '{"vectors": [7], "total": 1}'), StoreUnusable, "it says no id"),
    "a key that it repeats": (lambda: Canned(401, json.dumps({"error": f"bad {KEY}"})), StoreUnusable, "(401: bad ***)"),
    "a namespace that is not ours": (lambda: Canned(403, '{"error": "forbidden"}'), StoreUnusable, "refuses the key"),
    "too many": (lambda: Canned(429, '{"error": "rate limit exceeded"}'), StoreUnavailable, "too much to do"),
    "another node": (lambda: Canned(421, '{"error": "owned by node-2"}'), StoreUnusable, "another server of its fleet"),
    "what it does not offer": (lambda: Canned(501, '{"error": "not enabled"}'), StoreUnusable, "does not offer what we need"),
    "a failure": (lambda: Canned(500, '{"error": "write log append"}'), StoreUnavailable, "it failed (500: write log append)"),
    "a gateway's failure": (lambda: Canned(502, HTML, kind="text/html"), StoreUnavailable, "it failed (502: text/html"),
    "a refusal": (
        lambda: Canned(400, '{"error": "filter: unknown operator"}'),
        StoreUnusable,
        "refused the request (400: filter",
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_whatever_answers_is_told_in_one_line(what: str) -> None:
    serve, kind, words = ANSWERS[what]
    with closing(serve()) as server, closing(PolignStore(server.url)) as store, pytest.raises(kind) as caught:
        store.read_actions(OPEN, limit=5)

    assert type(caught.value) is kind
    assert words in caught.value.problem
    assert "\n" not in caught.value.problem
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("record", "status", "kind", "may_be_written"),
    [
        ("turn:1", 500, StoreUnavailable, True),
        ("turn:1", 200, StoreUnavailable, True),
        ("turn:1", 403, StoreReadOnly, False),
        ("turn:1", 429, StoreUnavailable, False),
        ("turn:1", 400, StoreUnusable, False),
        ("turn:1", 409, WriteConflict, False),
        ("act:1", 500, StoreUnavailable, True),
        ("act:1", 409, StoreUnavailable, True),
    ],
)
def test_a_write_that_the_server_answers_strangely(
    polign_server: RunningPolign, records_url: str, record: str, status: int, kind: type[StoreError], may_be_written: bool
) -> None:
    """What refuses the first of two writes wrote nothing; after that one, and where nobody knows, it may be half written."""
    collection = f"c{uuid4().hex[:12]}"
    with (
        Gateway(polign_server.base) as gateway,
        closing(PolignStore(f"polign+{gateway.base}?collection={collection}", entries_url=records_url)) as store,
        PolignWriter(polign_server, collection) as recall,
    ):
        ref = recall.action("a", 1)
        gateway.answers = lambda request: status if request.startswith("PUT") and request.endswith(record) else None

        with pytest.raises(StoreError) as caught:
            decide(store, ref, decision_id="decision-1")

        assert type(caught.value) is kind
        assert getattr(caught.value, "may_be_written", False) == may_be_written
        assert recall.body_of("a:act:1")["status"] == "started"
        lease = recall.lease_of("a")
        assert lease is not None
        assert lease[2] == "released"
        gateway.answers = lambda request: None
        assert decide(store, ref, decision_id="decision-1").turn_seq == 1
        assert len(store.list_turns("a", limit=5)) == 1


# --- a server that says nothing ----------------------------------------------------------------------------------------------

QUESTIONS: dict[str, Callable[[PolignStore], object]] = {
    "read_watch": lambda store: store.read_watch(),
    "read_actions": lambda store: store.read_actions(OPEN, limit=5),
    "read_outputs": lambda store: store.read_outputs([("a", "x")]),
    "get_action": lambda store: store.get_action("a", 1),
    "list_turns": lambda store: store.list_turns("a", limit=5),
    "list_agent_actions": lambda store: store.list_agent_actions("a", limit=5),
    "find_working_state": lambda store: store.find_working_state("a"),
    "list_pointers": lambda store: store.list_pointers("a"),
    "settle": lambda store: decide(store, ActionRef("main", "a", 1)),
}


@pytest.fixture
def stopped() -> Iterator[RunningPolign]:
    """A server that is stopped: the kernel accepts for it, and nobody answers."""
    with local_polign.start() as server:
        server.process.send_signal(signal.SIGSTOP)
        yield server
        server.process.send_signal(signal.SIGCONT)


def test_a_server_that_says_nothing_is_left_alone_after_one_answers_time(stopped: RunningPolign, records_url: str) -> None:
    port = urlsplit(stopped.base).port or 0
    with closing(Proxy("127.0.0.1", port)) as proxy:
        url = stopped.url().replace(f":{port}", f":{proxy.port}")
        with closing(PolignStore(url, entries_url=records_url, timeouts=SHORT)) as store:
            with pytest.raises(StoreUnavailable, match=r"did not answer within 0.5 s") as caught:
                store.read_watch()
            assert not caught.value.may_be_written
            until(lambda: proxy.accepted)
            asked = proxy.accepted

            for ask in QUESTIONS.values():
                with pytest.raises(StoreUnavailable, match="did not answer a moment ago") as caught:
                    ask(store)
                assert not caught.value.may_be_written
            assert not store.check().is_reachable
            assert proxy.accepted == asked == 1  # a connection that was given up is not used again
            assert store.list_entries(limit=5) == ()  # the history is elsewhere


def test_a_server_that_answers_again_is_asked_again(stopped: RunningPolign) -> None:
    timeouts = Timeouts(answer_s=0.3, read_s=1, write_s=1, pause_s=0)
    with closing(PolignStore(stopped.url(), timeouts=timeouts)) as store:
        with pytest.raises(StoreUnavailable):
            store.read_watch()
        stopped.process.send_signal(signal.SIGCONT)
        store._timeouts = store._server._timeouts = Timeouts(pause_s=0)  # it is not silent any more, however slow

        assert store.read_watch().entries == 0


def test_an_answer_that_trickles_for_ever_is_not_waited_for() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not ended.wait(0.05):
            try:
                connection.sendall(b" ")
            except OSError:
                return

    threading.Thread(target=trickle, daemon=True).start()
    url = f"polign+http://127.0.0.1:{listener.getsockname()[1]}"
    with (
        closing(listener),
        closing(PolignStore(url, timeouts=SHORT)) as store,
        pytest.raises(StoreUnavailable, match="within 0.5 s"),
    ):
        store.read_watch()
    ended.set()


def test_a_server_that_refuses_connections_answers_at_once_and_is_asked_every_time() -> None:
    with closing(PolignStore("polign+http://127.0.0.1:9/")) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="no connection: .*refused"):
                store.read_watch()


def test_a_connection_that_was_closed_while_it_was_idle_is_no_failure(polign: Any, polign_server: RunningPolign) -> None:
    _, recall = polign
    ref = recall.action("a", 1)
    collection = recall.collection.removesuffix("_agents")
    with Gateway(polign_server.base) as gateway, closing(PolignStore(f"polign+{gateway.base}?collection={collection}")) as store:
        store.get_action("a", 1)
        gateway.hang_up()

        assert store.get_action(ref.agent, 1).action.seq == 1


def ask_in_a_child(store: PolignStore, answers: Any) -> None:
    answers.put(len(store.read_actions(OPEN, limit=5).readings))
    store.close()


def test_a_child_opens_connections_of_its_own_and_leaves_its_parents_alone(polign: Any) -> None:
    store, recall = polign
    recall.action("a", 1)
    store.get_action("a", 1)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    child = context.Process(target=ask_in_a_child, args=(store, answers))
    child.start()
    assert answers.get(timeout=60) == 1
    child.join()

    assert store.get_action("a", 1).action.seq == 1


def test_no_proxy_of_the_environment_is_asked(polign: Any, polign_server: RunningPolign, monkeypatch: pytest.MonkeyPatch) -> None:
    _, recall = polign
    recall.action("a", 1)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    with closing(PolignStore(polign_server.url(recall.collection.removesuffix("_agents")))) as store:
        assert len(store.read_actions(OPEN, limit=5).readings) == 1


def test_a_lost_answer_to_the_lease_writes_nothing(
    polign_server: RunningPolign, records_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease that may be taken is nobody's any more, and runs out."""
    monkeypatch.setattr(steps, "WAIT_S", 0)
    collection = f"c{uuid4().hex[:12]}"
    with (
        Gateway(polign_server.base) as gateway,
        closing(PolignStore(f"polign+{gateway.base}?collection={collection}", entries_url=records_url)) as store,
        PolignWriter(polign_server, collection) as recall,
    ):
        ref = recall.action("a", 1)
        before = look_at_world(store, recall)
        gateway.fails = lambda _, request: "unanswered" if request.endswith("/acquire") else None

        with pytest.raises(StoreUnavailable) as caught:
            decide(store, ref)

        gateway.mend()
        assert not caught.value.may_be_written
        assert look_at_world(store, recall) == before
        assert (recall.lease_of("a") or ("", 0, ""))[2] == "live"
