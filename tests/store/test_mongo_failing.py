"""What goes wrong in the middle: a settle that is cut off at any command leaves nothing, and every error says what became of the decision."""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pymongo.common
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pymongo import monitoring

from actions.errors import LeaseLive, StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable, WriteConflict
from actions.records import ActionRef, ActionStatus, NewEntry, NewTurn, Settled
from actions.store import mongo_connection, open_store
from actions.store.deadlines import Timeouts
from actions.store.mongo import MongoStore
from agents.harness import DurableAgent
from local import mongo, processes
from local.mongo import Mongo
from tests.mongo_writer import MongoWriter
from tests.recall_writer import turn_metadata
from tests.servers import MONGO_URL
from tests.store.conftest import with_collection, with_option
from tests.store.gestures import decide, look_at_world, until, verify

MongoPair = tuple[MongoStore, MongoWriter]
HASTY = Timeouts(write_s=0.5, commit_s=0.3, pause_s=0)
TWO_ATTEMPTS = Timeouts(write_s=2, commit_s=0.3, pause_s=0)
"""For what is only known once a whole attempt was made, however slowly."""
IMPATIENT = Timeouts(commit_s=0.3, pause_s=0)
OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
COMMANDS = ["aggregate", "find", "findAndModify", "insert", "update"]
NOTE = NewEntry(kind="withdrawn", actor="operator ana", agent="a", seq=1)


@pytest.fixture(scope="session")
def stand_in(request: pytest.FixtureRequest) -> Iterator[Mongo]:
    """A server that can be told to fail, which a real one cannot unless it was started for it."""
    if MONGO_URL not in os.environ:
        yield request.getfixturevalue("mongo_server")
        return
    with mongo.start() as running:
        yield running.server


@pytest.fixture(scope="session")
def stand_in_url(stand_in: Mongo) -> Iterator[str]:
    name = f"t_failing_{uuid4().hex[:12]}"
    with closing(MongoStore(stand_in.url(name))) as store:
        store.prepare()
    yield stand_in.url(name)
    stand_in.drop_database(name)


@pytest.fixture
def address(stand_in_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its clients ask after the server's health more often than the driver allows, since none of these failures is its real state."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.02)
    return with_option(with_collection(stand_in_url), "serverMonitoringMode=poll&heartbeatFrequencyMS=500")


@pytest.fixture
def pair(address: str) -> Iterator[MongoPair]:
    with closing(MongoStore(address)) as store, MongoWriter(address) as recall:
        # A transaction that an earlier test cut off holds up everybody's inserts until its minute is over.
        recall.client.admin.command("killAllSessions", [])
        yield store, recall.create()


@pytest.fixture
def hasty(pair: MongoPair, address: str) -> Iterator[MongoStore]:
    """The same store, which can be told to give a settle up soon (`hurried`)."""
    with closing(MongoStore(address, timeouts=Timeouts(pause_s=0))) as store:
        store.read_watch()
        yield store


@contextmanager
def hurried(store: MongoStore, timeouts: Timeouts = HASTY) -> Iterator[None]:
    """While inside it has no more time than that; before and afterwards a slow machine is no failure."""
    before, store._database._timeouts = store._database._timeouts, timeouts
    try:
        yield
    finally:
        store._database._timeouts = before


@pytest.fixture
def impatient(pair: MongoPair, address: str) -> Iterator[MongoStore]:
    """The same store, which asks for the answer to a commit not for long."""
    with closing(MongoStore(address, timeouts=IMPATIENT)) as store:
        store.read_watch()
        yield store


@contextmanager
def failing(recall: MongoWriter, *commands: str, times: int | None = None, skip: int = 0, **how: object) -> Iterator[None]:
    """While inside, the server fails these commands of ours, after `skip` of them and so often; for ever without `times`."""
    mode: object = {"times": times, "skip": skip} if times else "alwaysOn"
    data = {"failCommands": list(commands), "appName": "settle", **how}
    recall.client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield
    finally:
        recall.client.admin.command("configureFailPoint", "failCommand", mode="off")


def begun(recall: MongoWriter) -> Any:
    ref = recall.action("a", 1)
    recall.turns("a", 2)
    recall.lease("a", epoch=4, state="expired")
    return ref


# --- cut off ---------------------------------------------------------------------------------------------------------------


class Commands(monitoring.CommandListener):
    """The names of the commands that our clients send."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name not in ("saslStart", "saslContinue", "endSessions"):
            self.names.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What every client that is opened from now on sends."""
    listener = Commands()
    monkeypatch.setitem(mongo_connection._DEFAULTS, "event_listeners", [listener])
    return listener


SETTLE = [
    "listIndexes",  # whether it is prepared, before the transaction
    "find",  # what this decision id wrote before
    "find",  # the registry: where the records are; only the first time
    "aggregate",  # the action, its lease, its agent's head, its whole arguments
    "findAndModify",  # the chain's head
    "aggregate",  # the newest turn
    "findAndModify",  # the lease
    "update",  # the action
    "insert",  # the turn
    "insert",  # the entry
    "update",  # the head
    "update",  # the revision
    "update",  # the lease
    "commitTransaction",
]


def test_a_settle_sends_these_commands(pair: MongoPair, address: str, commands: Commands) -> None:
    ref = begun(pair[1])

    with closing(MongoStore(address)) as store:
        decide(store, ref)

    assert commands.names == SETTLE


LOST = [1, 3, 7, 9, 12]
"""Where a connection is lost for good, which the driver takes the same way wherever it is: before the transaction wrote, in it, at its end."""


@pytest.mark.parametrize(
    ("place", "how"),
    [pytest.param(n, {"errorCode": 8000}, id=f"{n}-{SETTLE[n]}-an error") for n in range(1, len(SETTLE) - 1)]
    + [pytest.param(n, {"closeConnection": True}, id=f"{n}-{SETTLE[n]}-a lost connection") for n in LOST],
)
def test_nothing_is_half_written(pair: MongoPair, hasty: MongoStore, place: int, how: dict[str, object]) -> None:
    store, recall = pair
    ref = begun(recall)
    before = look_at_world(store, recall, "a")
    skip = SETTLE[1:place].count(SETTLE[place])

    with failing(recall, SETTLE[place], skip=skip, times=1000, **how), hurried(hasty), pytest.raises(StoreError) as caught:
        decide(hasty, ref, decision_id="decision-1")

    assert not getattr(caught.value, "may_be_written", False)
    assert look_at_world(hasty, recall, "a") == before
    assert not decide(store, ref, decision_id="decision-1").is_repeat
    assert verify(store).is_intact


@pytest.mark.parametrize("how", [{"errorCode": 112}, {"errorCode": 10107}, {"closeConnection": True}], ids=str)
@pytest.mark.parametrize("command", [*COMMANDS, "commitTransaction"])
def test_what_passes_is_tried_again_and_written_once(pair: MongoPair, command: str, how: dict[str, object]) -> None:
    """Another writer was first; the primary stepped down; the connection broke. The driver labels each as worth another attempt."""
    store, recall = pair
    ref = begun(recall)
    labels = {"errorLabels": ["TransientTransactionError"]} if how == {"errorCode": 112} else {}

    with failing(recall, command, times=1, **how, **labels):
        settled = decide(store, ref)

    assert (settled.is_repeat, settled.turn_seq, settled.entry.number) == (False, 3, 1)
    assert [turn.seq for turn in store.list_turns("a", limit=5)] == [3, 2, 1]
    assert recall.lease_of("a") == ((recall.lease_of("a") or ("",))[0], 6, "released")
    assert recall.revision() == 5
    assert verify(store).is_intact


def test_a_writer_who_always_comes_first_is_told_of_in_the_end(pair: MongoPair, hasty: MongoStore) -> None:
    store, recall = pair
    ref = begun(recall)
    before = look_at_world(store, recall, "a")

    with (
        failing(recall, "update", errorCode=112, errorLabels=["TransientTransactionError"]),
        hurried(hasty, TWO_ATTEMPTS),
        pytest.raises(StoreUnavailable, match="other writers came first, again and again; try again") as caught,
    ):
        decide(hasty, ref)

    assert not caught.value.may_be_written
    assert look_at_world(store, recall, "a") == before


def test_a_primary_that_steps_down_for_long_is_told_of(pair: MongoPair, hasty: MongoStore) -> None:
    recall = pair[1]
    ref = begun(recall)

    with (
        failing(recall, "update", errorCode=10107),
        hurried(hasty, TWO_ATTEMPTS),
        pytest.raises(StoreUnavailable, match="primary is stepping down") as caught,
    ):
        decide(hasty, ref)

    assert not caught.value.may_be_written
    assert recall.body_of("a:act:1")["status"] == "started"


# --- the commit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"closeConnection": True},
        {"errorCode": 91},
        {"errorCode": 50},
        {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
    ],
    ids=["a lost connection", "a shutdown", "its time was over", "no majority heard of it"],
)
def test_an_unanswered_commit_leaves_it_open_and_asking_again_tells(
    pair: MongoPair, impatient: MongoStore, how: dict[str, object]
) -> None:
    store, recall = impatient, pair[1]
    ref = begun(recall)

    with failing(recall, "commitTransaction", **how), pytest.raises(StoreUnavailable, match="answer to the commit") as caught:
        decide(store, ref, decision_id="decision-1")

    assert caught.value.may_be_written
    was_written = recall.body_of("a:act:1")["status"] == "done"
    assert was_written == ("writeConcernError" in how)
    again = decide(store, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq) == (was_written, 3)
    assert store.read_head().number == 1
    assert verify(store).is_intact


def test_a_commit_that_the_server_undid_is_not_told_as_open(pair: MongoPair, hasty: MongoStore) -> None:
    store, recall = hasty, pair[1]
    ref = begun(recall)

    with (
        failing(recall, "commitTransaction", errorCode=251, errorLabels=["TransientTransactionError"]),
        hurried(hasty),
        pytest.raises(StoreUnavailable) as caught,
    ):
        decide(store, ref)

    assert not caught.value.may_be_written
    assert recall.body_of("a:act:1")["status"] == "started"


class Wire:
    """Stands between a client and the server; once armed, it delivers the client's commit and swallows the answer."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_armed = False
        self._lost: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.is_armed and b"commitTransaction" in data:
                    self._lost.add(server)  # the next that comes back is its answer
                server.sendall(data)
        server.close()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and server not in self._lost:
                client.sendall(data)
        client.close()


# --- who may, and where ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standalone() -> Iterator[str]:
    with mongo.start(standalone=True) as running:
        yield running.url("alone")


def test_without_a_replica_set_reads_work_and_settling_says_what_to_do(standalone: str) -> None:
    with closing(MongoStore(standalone)) as store, MongoWriter(standalone) as recall:
        recall.create()
        store.prepare()
        ref = begun(recall)

        for write in (lambda: decide(store, ref), lambda: store.append_entry(NOTE)):
            with pytest.raises(StoreReadOnly, match="not a replica set.*--replSet.*rs.initiate"):
                write()

        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        assert store.read_watch().entries == 0
        assert recall.body_of("a:act:1")["status"] == "started"
        check = store.check()
        assert (check.is_reachable, check.has_records, check.can_settle) == (True, True, False)
        assert "not a replica set" in check.why_not


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port where somebody else listens: each connection is given to `answer`, and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client, suppress(OSError):
                        answer(client)

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def hang_up_on_noise(client: socket.socket) -> None:
    """As a mongod without TLS does, when it is greeted in TLS."""
    client.recv(4096)


@pytest.fixture(scope="module")
def speak_tls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[socket.socket], object]:
    """A server whose certificate nobody signed."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    unsigned = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    certificate = unsigned.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return lambda client: context.wrap_socket(client, server_side=True)


def assert_it_says_why(url: str, ref: ActionRef, said: str) -> None:
    """Whoever asks is told, and asked again it says the same: nobody who was refused has waited."""
    with closing(MongoStore(url)) as store:
        for act in (store.read_watch, lambda: decide(store, ref), lambda: store.append_entry(NOTE)):
            with pytest.raises(StoreUnavailable, match=said) as caught:
                act()
            assert not caught.value.may_be_written
            assert_is_one_line_without_the_password(caught.value.problem, url)
        check = store.check()
        assert not check.is_reachable
        assert_is_one_line_without_the_password(check.why_not, url)


def assert_is_one_line_without_the_password(text: str, url: str) -> None:
    assert "\n" not in text
    assert len(text) < 400
    assert (urlsplit(url).password or "") not in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("settle:", "settle:wrong"), "refuses the user or the password"),
        (lambda url: url.replace("//settle:", "//nobody:"), "refuses the user or the password"),
        (lambda url: url.replace("authSource=admin", "authSource=elsewhere"), "authSource in the address names"),
        (lambda url: f"mongodb://settle:secret-pw@127.0.0.1:{processes.free_port()}/x", "does not answer: .* Connection refused"),
        (lambda url: "mongodb://settle:secret-pw@nobody.invalid/x", "does not answer: nobody.invalid:27017: "),
    ],
    ids=["password", "user", "database of the user", "nobody there", "no such name"],
)
def test_a_store_that_cannot_be_reached_says_why_in_one_line_without_the_password(
    pair: MongoPair, address: str, change: Callable[[str], str], said: str
) -> None:
    assert_it_says_why(change(address), begun(pair[1]), said)


def test_the_password_is_what_is_wrong_also_before_the_driver_asks_again(pair: MongoPair, stand_in: Mongo) -> None:
    """It tries a password again at its next heartbeat, in ten seconds, and knows of no server until then."""
    assert_it_says_why(stand_in.url("x").replace("settle:", "settle:wrong"), begun(pair[1]), "refuses the user or the password")


def test_a_server_that_hangs_up_on_tls_is_told_of(pair: MongoPair) -> None:
    with listening(hang_up_on_noise) as port:
        url = f"mongodb://settle:secret-pw@127.0.0.1:{port}/x?tls=true"
        assert_it_says_why(url, begun(pair[1]), "does not answer: SSL handshake failed: ")


def test_a_certificate_that_nobody_signed_is_told_of(pair: MongoPair, speak_tls: Callable[[socket.socket], object]) -> None:
    with listening(speak_tls) as port:
        url = f"mongodb://settle:secret-pw@127.0.0.1:{port}/x?tls=true"
        assert_it_says_why(url, begun(pair[1]), "does not answer: 127.0.0.1:[0-9]+: .*certificate verify failed")


def test_another_name_of_the_replica_set_is_told_of(pair: MongoPair, stand_in: Mongo) -> None:
    url = stand_in.url("x").replace("directConnection=true", "replicaSet=another&serverSelectionTimeoutMS=2000")
    with closing(MongoStore(url)) as store, pytest.raises(StoreUnavailable, match='replica set name "another"'):
        store.read_watch()


def test_another_database_of_the_same_server_is_empty_and_check_names_it(pair: MongoPair, stand_in: Mongo) -> None:
    with closing(MongoStore(stand_in.url("a_slip_of_the_pen"))) as store:
        assert store.read_actions(OPEN, limit=5).readings == ()
        assert not store.check().has_records
        with pytest.raises(StoreReadOnly, match="not prepared: run `prepare_store main`"):
            decide(store, begun(pair[1]))


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://",
        "mongodb://:pass-word@/x",
        "mongodb://ana:pass-word@host:port/x",
        "mongodb://ana:pass/word@host/x",
        "mongodb://host/a b",
        "mongodb://host/db?collection=",
        "mongodb://host/db?collection=recall_lexical_v1_agents",
        "mongodb://host/db?collection=a%20b",
        "mongodb://host/db?maxPoolSize=many&password=pass-word",
    ],
)
def test_a_malformed_address_is_refused_at_once_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreUnusable) as caught:
        open_store(url)

    assert "pass-word" not in str(caught.value)
    assert "pass/word" not in str(caught.value)


@pytest.mark.parametrize("row", [{"coll": 7}, {"dim": "256"}, {"dim": 0}, {"coll": None}], ids=str)
def test_a_registry_that_is_not_recalls_is_named(pair: MongoPair, row: dict[str, object]) -> None:
    store, recall = pair
    recall.registry.update_one({"_id": recall.collection}, {"$set": row})

    with pytest.raises(StoreUnusable, match="the registry's document of .* is not Recall's"):
        store.list_turns("a", limit=1)


# --- records that moved ------------------------------------------------------------------------------------------------------


def test_a_turn_that_stands_in_the_way_is_not_overwritten(pair: MongoPair) -> None:
    """It cannot be: the lease is ours. If it is, the agent's turn counts more than our decision."""
    store, recall = pair
    ref = begun(recall)
    recall.put("a:turn:3", {**turn_metadata("a", 3, "mine"), "record": "something else"})
    before = look_at_world(store, recall, "a")

    with pytest.raises(WriteConflict, match="turn 3 of agent a exists although we hold its lease"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


def test_a_chain_whose_head_was_set_back_is_not_forked(pair: MongoPair) -> None:
    store, recall = pair
    for number in (1, 2):
        decide(store, recall.action("a", number))
    recall.db.settle_audit_head.update_one({"_id": store.chain}, {"$inc": {"number": -1}})
    before = look_at_world(store, recall, "a")

    with pytest.raises(StoreUnusable, match="head does not fit its entries; run verify_audit$"):
        decide(store, recall.action("b", 1))

    assert store.read_head() == before.head
    assert recall.body_of("b:act:1")["status"] == "started"


def test_a_registry_row_that_is_gone_wrote_nothing(pair: MongoPair) -> None:
    store, recall = pair
    ref = begun(recall)
    store.read_actions(OPEN, limit=5)
    recall.registry.delete_one({"_id": recall.collection})

    with pytest.raises(WriteConflict):
        decide(store, ref)

    assert recall.body_of("a:act:1")["status"] == "started"
    assert store.read_head().number == 0


def test_a_write_that_waits_in_an_open_transaction_of_the_agent_comes_first_or_not_at_all(pair: MongoPair) -> None:
    """The old holder's last fenced write, not committed yet: we cannot pass it, and count its turn once it is there."""
    store, recall = pair
    ref = begun(recall)
    with recall.client.start_session() as session:
        session.start_transaction()
        recall.leases.update_one({"_id": recall.lease_id("a")}, {"$inc": {"fenced_writes": 1}}, session=session)
        recall._write("a:turn:3", turn_metadata("a", 3, "my last words"), session)
        answers: list[object] = []
        settling = threading.Thread(target=lambda: answers.append(decide(store, ref)))
        settling.start()
        session.commit_transaction()
        settling.join()

    (answer,) = answers
    assert isinstance(answer, Settled)
    assert answer.turn_seq == 4
    assert [getattr(turn, "content", "") for turn in store.list_turns("a", limit=2)] == ["done", "my last words"]


def test_an_agent_that_resumed_before_our_commit_is_respected(pair: MongoPair) -> None:
    store, recall = pair
    ref = begun(recall)
    with recall.client.start_session() as session:
        session.start_transaction()
        taken = [{"$set": {"holder": "pod-b", "epoch": 5, "expires_at": {"$add": ["$$NOW", 60_000]}}}]
        recall.leases.update_one({"_id": recall.lease_id("a")}, taken, session=session)
        answers: list[object] = []

        def try_to_settle() -> None:
            try:
                answers.append(decide(store, ref))
            except LeaseLive as exc:
                answers.append(exc)

        settling = threading.Thread(target=try_to_settle)
        settling.start()
        session.commit_transaction()
        settling.join()

    (answer,) = answers
    assert isinstance(answer, LeaseLive | Settled)
    if isinstance(answer, LeaseLive):
        assert (answer.lease.holder, answer.lease.epoch) == ("pod-b", 5)
        assert recall.body_of("a:act:1")["status"] == "started"


# --- processes ---------------------------------------------------------------------------------------------------------------


def _settle_in_child(store: MongoStore, ref: Any, answers: Any) -> None:
    answers.put(decide(store, ref).entry.number)


def test_a_child_opens_a_client_of_its_own(pair: MongoPair) -> None:
    store, recall = pair
    first, second = recall.action("a", 1), recall.action("b", 1)
    decide(store, first)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_settle_in_child, args=(store, second, answers))

    child.start()
    assert answers.get(timeout=60) == 2
    child.join()

    assert store.read_head().number == 2
    assert store.get_action("b", 1).action.agent == "b"


def test_a_closed_store_opens_again(pair: MongoPair) -> None:
    store, recall = pair
    recall.action("a", 1)
    store.read_watch()

    store.close()

    assert store.read_watch().revision == 1


@pytest.mark.parametrize("rows", [2, 200])
def test_a_list_is_one_command_however_long(pair: MongoPair, address: str, commands: Commands, rows: int) -> None:
    recall = pair[1]
    document = recall.records.find_one({"_id": recall.action("a", 1) and "a:act:1"})
    assert document is not None
    text = document["m"]
    recall.records.insert_many(
        [
            {
                "_id": f"b{n}:act:1",
                "md": [{"k": e["k"], "v": f"b{n}" if e["k"] == "recall_agent" else e["v"]} for e in document["md"]],
                "m": text.replace('"recall_agent":"a"', f'"recall_agent":"b{n}"'),
            }
            for n in range(1, rows)
        ]
    )
    with closing(MongoStore(address)) as fresh:
        fresh.read_watch()
        fresh.read_actions(OPEN, limit=20_000)
        commands.names.clear()

        read = fresh.read_actions(OPEN, limit=20_000)

        assert len(read.readings) == rows
        assert commands.names == ["aggregate"]


def test_a_lost_answer_leaves_it_open_and_asking_again_finds_what_was_written(pair: MongoPair, address: str) -> None:
    store, recall = pair
    ref = begun(recall)
    server = urlsplit(address)
    with closing(Wire(server.hostname or "", server.port or 0)) as wire:
        through = address.replace(f":{server.port}/", f":{wire.port}/")
        with closing(MongoStore(through, timeouts=IMPATIENT)) as behind:
            behind.read_watch()
            wire.is_armed = True

            with pytest.raises(StoreUnavailable) as caught:
                decide(behind, ref, decision_id="decision-1")

            assert caught.value.may_be_written
    until(lambda: recall.body_of("a:act:1")["status"] == "done")  # it has arrived; nobody heard when it was done
    again = decide(store, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq, store.read_head().number) == (True, 3, 1)


# --- an agent's own process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"errorCode": 8000}, {"closeConnection": True}], ids=["an error", "a lost connection"])
@pytest.mark.parametrize(
    ("command", "skip"), [("update", 0), ("update", 1), ("insert", 0), ("update", 3), ("commitTransaction", 0)]
)
def test_an_agents_write_is_never_half_written_and_is_asked_for_again(
    pair: MongoPair, hasty: MongoStore, command: str, skip: int, how: dict[str, object]
) -> None:
    recall = pair[1]
    with DurableAgent.resume(hasty, "a") as agent:
        action = agent.begin_action("send_email", {}, "external")
        before = look_at_world(hasty, recall, "a")
        end = partial(agent.end_action, action, "done", result="x" * 9000, turn=NewTurn("tool", "sent"))

        with failing(recall, command, skip=skip, times=1000, **how), hurried(hasty), pytest.raises(StoreError) as caught:
            end()

        assert getattr(caught.value, "may_be_written", False) == (command == "commitTransaction")
        assert look_at_world(hasty, recall, "a") == before
        assert end().status == "done"
        assert [turn.content for turn in agent.recent_turns()] == ["sent"]
        assert recall.revision() == before.revision + 3


def _has_moved(recall: MongoWriter, before: int) -> bool:
    return recall.revision() > before


def test_an_agents_gesture_whose_answer_was_lost_is_found_written(pair: MongoPair, address: str) -> None:
    recall = pair[1]
    server = urlsplit(address)
    with closing(Wire(server.hostname or "", server.port or 0)) as wire:
        through = address.replace(f":{server.port}/", f":{wire.port}/")
        with closing(MongoStore(through, timeouts=IMPATIENT)) as behind, DurableAgent.resume(behind, "a") as agent:
            begin = partial(agent.begin_action, "send_email", {}, "external")
            end = partial(agent.end_action, 1, "done", turn=NewTurn("tool", "sent"))
            for gesture in (begin, end):
                before = recall.revision()
                wire.is_armed = True
                with pytest.raises(StoreUnavailable) as caught:
                    gesture()
                wire.is_armed = False
                assert caught.value.may_be_written
                until(partial(_has_moved, recall, before))
                revision = recall.revision()

                assert gesture().seq == 1

                assert recall.revision() == revision
    assert recall.record_ids() == ["a:act:1", "a:turn:1"]
