"""PostgreSQL restarts in the middle of an agent's call: for real, the whole server. Nothing is run twice, and nothing is said that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql

from actions.errors import StoreUnavailable
from actions.records import Action, ActionStatus
from actions.store import open_agent_store
from actions.store.base import AgentStore
from agents.ends import NO_RESOLVER
from agents.harness import DurableAgent, End
from agents.tools import EndUnrecorded, durable, settle
from local import postgres
from local.processes import wait_until
from tests.agents.records import actions_of, turns_of

LONG = timedelta(minutes=30)
"""A lease that nobody renews while a server goes down and up."""


class Server:
    """A PostgreSQL that keeps its data and its port over a restart, and what a prepared transaction has locked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = postgres.start(folder)
        self.url = self._running.ensure_database("agents")
        with postgres.connect(self.url) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 2")
        self.stop()
        self.start()

    def stop(self) -> None:
        self._running.stop()

    def start(self) -> None:
        self._running = postgres.start(self._folder)

    def let_go(self) -> None:
        """Whatever a prepared transaction holds is free."""
        with postgres.connect(self.url) as connection:
            for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("restarts")
    started = Server(folder)
    yield started
    started.stop()
    postgres.remove_data(folder)


@pytest.fixture
def store(server: Server) -> Iterator[AgentStore]:
    with closing(open_agent_store(f"{server.url}?collection=c{uuid4().hex[:12]}")) as opened:
        yield opened
    server.let_go()


Hold = Callable[[Server], Callable[[], None]]
"""Makes the next write wait; answers what waits until it does."""


def before_its_commit(server: Server) -> Callable[[], None]:
    """Somebody holds the lease's row until the server is up again. No session can: each is ended as the writer's is, and where it goes first
    the writer is let in a moment before it is told to stop."""
    with postgres.connect(server.url) as holding:
        holding.execute("BEGIN; SELECT 1 FROM recall.recall_leases FOR UPDATE; PREPARE TRANSACTION 'held'")
    return lambda: wait_for(server, "wait_event_type = 'Lock'")


def after_its_commit(server: Server) -> Callable[[], None]:
    """It is committed on the disk, and its answer waits for a standby that never comes."""
    with postgres.connect(server.url) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: _setting(server) == "nobody", what="the setting")
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")  # from the restart on
    return lambda: wait_for(server, "wait_event = 'SyncRep'")


def _setting(server: Server) -> str:
    with postgres.connect(server.url) as connection:
        row = connection.execute("SHOW synchronous_standby_names").fetchone()
    return str(row[0]) if row else ""


def wait_for(server: Server, event: str) -> None:
    def is_waiting() -> bool:
        with postgres.connect(server.url) as connection:
            asked = "SELECT 1 FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE 'WITH %fence AS %' AND "
            return connection.execute(f"{asked}{event}").fetchone() is not None  # an agent's write, and not its lease's renewal

    wait_until(is_waiting, what="the write that waits")


def restarted_during(server: Server, call: Callable[[], object], is_waiting: Callable[[], None]) -> BaseException | None:
    """What a call raised in the middle of which the server stopped; it is up again afterwards."""
    with ThreadPoolExecutor(1) as pool:
        raised = pool.submit(call)
        is_waiting()
        server.stop()
        failure = raised.exception(timeout=60)
    server.start()
    server.let_go()
    return failure


@pytest.mark.parametrize(("hold", "is_written"), [(before_its_commit, False), (after_its_commit, True)])
def test_a_restart_in_the_middle_of_begin_runs_nothing_and_asking_again_is_the_same_call(
    server: Server, store: AgentStore, hold: Hold, is_written: bool
) -> None:
    ran: list[str] = []

    def send(to: str, idempotency_key: str) -> str:
        ran.append(idempotency_key)
        return "sent"

    with DurableAgent.resume(store, "begins", lease_ttl=LONG) as agent:
        (call,) = durable([send], classes={"send": "external"}, agent=agent)
        waiting = hold(server)

        failure = restarted_during(server, lambda: call("ann"), waiting)

        assert isinstance(failure, StoreUnavailable)
        assert failure.may_be_written
        assert ran == []
        stored = actions_of(store, "begins")
        assert [action.status for action in stored] == [ActionStatus.STARTED] * is_written
        briefing = DurableAgent.resume(store, "begins", defer_lease=True).briefing.text
        assert ("Check before repeating it" in briefing) is is_written

        assert call("ann") == "sent"
    (action,) = actions_of(store, "begins")
    assert (action.seq, action.status, [action.key]) == (1, ActionStatus.DONE, ran)
    assert len(turns_of(store, "begins")) == 1


@pytest.mark.parametrize(("hold", "is_written"), [(before_its_commit, False), (after_its_commit, True)])
def test_a_restart_in_the_middle_of_end_is_said_and_the_next_resume_settles_it(
    server: Server, store: AgentStore, hold: Hold, is_written: bool
) -> None:
    ran: list[str] = []
    asked: list[int] = []

    def send(to: str) -> str:
        ran.append(to)
        held.append(hold(server))
        returning.set_result(None)
        return "sent"

    def look(action: Action) -> End:
        asked.append(action.seq)
        return End("done", "sent", resolution="found in the Sent folder")

    held: list[Callable[[], None]] = []
    agent = DurableAgent.resume(store, "ends", lease_ttl=LONG)
    (call,) = durable([send], classes={"send": "external"}, agent=agent)
    returning: Future[None] = Future()

    def is_waiting() -> None:
        returning.result(timeout=60)
        held[0]()

    failure = restarted_during(server, lambda: call("ann"), is_waiting)

    assert isinstance(failure, EndUnrecorded)
    assert (failure.result, failure.action.seq) == ("sent", 1)
    assert "Do not call it again" in str(failure)
    agent.release()
    with DurableAgent.resume(store, "ends") as successor:
        left = [(action.status, action.resolution) for action in successor.pending_actions()]
        assert left == ([] if is_written else [(ActionStatus.UNKNOWN, NO_RESOLVER)])
        (call,) = durable([send], classes={"send": "external"}, agent=successor)
        settle([call], agent=successor, resolver=look)
        assert "Unfinished" not in successor.briefing.text

    (action,) = actions_of(store, "ends")
    assert (action.status, action.result) == (ActionStatus.DONE, "sent")
    assert (ran, asked) == (["ann"], [] if is_written else [1])
    assert len(turns_of(store, "ends")) == 1


def test_a_restart_in_the_middle_of_a_tool_is_not_noticed(server: Server, store: AgentStore) -> None:
    def send(to: str) -> str:
        server.stop()
        server.start()
        return "sent"

    with DurableAgent.resume(store, "runs") as agent:
        (call,) = durable([send], classes={"send": "external"}, agent=agent)
        assert call("ann") == "sent"
        assert not agent.is_lost

    assert [action.status for action in actions_of(store, "runs")] == [ActionStatus.DONE]
