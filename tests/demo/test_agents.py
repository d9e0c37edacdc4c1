"""Real agents, real SIGKILL, real PostgreSQL: what they leave in the records and in the world, and how they carry on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from actions.records import ActionRef, ActionStatus
from actions.settle import make_end, settle
from actions.store import open_store
from demo import records
from demo.cast import CAST, LIVE, Part
from demo.records import Call
from demo.stage import RECORDS_URL, ROOT, Stage, inherited, resuming
from demo.world import INVOICES, MAIL, PAYMENTS, TICKETS, World
from local import processes
from local.postgres import Postgres, connect
from tests.servers import VECTOR_TEMPLATE

pytestmark = pytest.mark.xdist_group("demo")  # one play for all of them

EFFECTS = {"send_email": MAIL, "create_payment": PAYMENTS, "open_ticket": TICKETS, "save_invoice": INVOICES}


@dataclass
class Play:
    """Agents that have played their parts on a database of their own."""

    url: str
    folder: Path
    world: World = field(init=False)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.folder / "world")

    @property
    def environment(self) -> dict[str, str]:
        return inherited() | {RECORDS_URL: self.url}

    def stage(self) -> Stage:
        return Stage(url=self.url, world=self.world.folder, logs=self.folder, tell=self.lines.append)

    def calls(self, agent: str) -> list[Call]:
        return [call for call in records.calls(self.url) if call.agent == agent]

    def last_call(self, agent: str) -> Call:
        return self.calls(agent)[-1]

    def effects_of(self, call: Call) -> list[dict[str, object]]:
        return [effect for effect in self.world.effects(EFFECTS[call.tool]) if effect["key"] == call.key]

    def is_held(self, agent: str) -> bool:
        with connect(self.url) as connection:
            query = "SELECT expires_at > clock_timestamp() FROM recall.recall_leases WHERE name = %s"
            return connection.execute(query, [agent]).fetchone() == (True,)

    def resume(self, agent: str) -> str:
        """Let the agent carry on; answers what it prints."""
        part = next(part for part in CAST if part.agent == agent)
        processes.wait_until(lambda: not self.is_held(agent), what=f"the end of {agent}'s lease")
        line = resuming(part, world=self.world.folder)
        return subprocess.run(line, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=True, timeout=20).stdout

    def settle(self, agent: str, status: ActionStatus, reason: str, *, result: str = "") -> None:
        """Say what became of the agent's last call, as the console does."""
        processes.wait_until(lambda: not self.is_held(agent), what=f"the end of {agent}'s lease")
        store = open_store(self.url)
        store.prepare()
        ref = ActionRef(store="main", agent=agent, seq=len(self.calls(agent)))
        end = make_end(status, reason, actor="operator ana", result=result)
        settle(store, ref, end, actor="operator ana", decision_id=f"d-{uuid4()}")
        store.close()


@pytest.fixture(scope="module")
def play(pg_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """The whole cast, and the agent that stays alive. Tests change only what their own agent left."""
    name = f"t_{uuid4().hex[:16]}"
    played = Play(pg_server.create_database(name, template=VECTOR_TEMPLATE), tmp_path_factory.mktemp("a play"))
    with played.stage() as stage:
        stage.enter([*CAST, LIVE])
        processes.wait_until(_pumped(stage), what="the play", timeout=timedelta(seconds=40))
        yield played
    pg_server.drop_database(name)


def _pumped(stage: Stage) -> Callable[[], bool]:
    def is_over() -> bool:
        stage.pump()
        return stage.is_over

    return is_over


@pytest.mark.parametrize("part", [part for part in CAST if part.kill_in], ids=lambda part: f"{part.kill_in}-{part.after}")
def test_a_kill_leaves_the_call_open_and_its_effect_only_when_it_came_after(play: Play, part: Part) -> None:
    call = play.last_call(part.agent)

    assert call.tool == part.kill_in
    assert call.status == ("unknown" if part.is_resumed else "started")
    assert len(play.effects_of(call)) == int(part.after)
    assert all(not earlier.is_open for earlier in play.calls(part.agent)[:-1])


def test_the_live_agent_holds_its_lease_inside_its_call(play: Play) -> None:
    call = play.last_call(LIVE.agent)

    assert (call.tool, call.status) == ("send_email", "started")
    assert play.is_held(LIVE.agent)
    assert play.effects_of(call) == []


def test_the_clean_agent_has_closed_everything(play: Play) -> None:
    calls = play.calls("support-agent-9")

    assert [call.tool for call in calls] == ["lookup_order", "save_invoice", "send_email"]
    assert {call.status for call in calls} == {"done"}
    assert len(play.effects_of(calls[-1])) == 1


def test_what_nobody_settled_is_not_repeated(play: Play) -> None:
    told = play.resume("billing-agent-2")

    assert "## Unfinished actions" in told
    assert "create_payment: it may have happened; nobody has said yet" in told
    assert [call.tool for call in play.calls("billing-agent-2")] == ["lookup_order", "create_payment"]
    assert play.last_call("billing-agent-2").status == "unknown"
    assert len(play.world.effects(PAYMENTS)) == 1


def test_what_was_settled_as_done_is_read_and_not_repeated(play: Play) -> None:
    play.settle("support-agent-7", ActionStatus.DONE, "found in the Sent folder", result="sent")

    told = play.resume("support-agent-7")

    assert "(settled after a crash: done; operator ana: found in the Sent folder) sent" in told
    assert "send_email: settled as done: operator ana: found in the Sent folder" in told
    assert [call.tool for call in play.calls("support-agent-7")].count("send_email") == 1
    assert "Marta Nowak has been told" in told


def test_what_was_settled_as_failed_is_done_again_under_a_new_key(play: Play) -> None:
    first = play.last_call("ops-agent-1")
    play.settle("ops-agent-1", ActionStatus.FAILED, "not in the tracker")

    told = play.resume("ops-agent-1")

    second = play.last_call("ops-agent-1")
    assert "open_ticket: settled as failed: operator ana: not in the tracker" in told
    assert 'open_ticket(title="Cold store 3 reports 9.4 °C"' in told
    assert (second.tool, second.status) == ("open_ticket", "done")
    assert second.key != first.key
    assert len(play.effects_of(second)) == 1


def test_what_was_abandoned_is_neither_repeated_nor_built_upon(play: Play) -> None:
    play.settle("billing-agent-5", ActionStatus.ABANDONED, "the invoice is disputed")

    told = play.resume("billing-agent-5")

    assert "create_payment: settled as abandoned: operator ana: the invoice is disputed" in told
    assert "Given up, so I did not do it again: create_payment. Left out, because it needs it: send_email." in told
    assert [call.tool for call in play.calls("billing-agent-5")] == ["save_invoice", "create_payment"]


def test_an_idempotent_call_is_run_again_with_its_key_and_files_nothing_more(play: Play) -> None:
    told = play.resume("invoice-agent-6")

    call = play.last_call("invoice-agent-6")
    assert "save_invoice: settled as done: re-run with the same key after a crash" in told
    assert call.status == "done"
    assert len(play.effects_of(call)) == 1


def test_hostile_text_is_printed_as_escapes(play: Play) -> None:
    told = play.resume("support-agent-3")

    assert "\u202e" not in told
    assert r"\u202e" in told


def test_an_agent_at_work_is_not_resumed(play: Play) -> None:
    line = resuming(LIVE, world=play.world.folder)

    refused = subprocess.run(line, cwd=ROOT, env=play.environment, capture_output=True, text=True, timeout=20)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{LIVE.agent} is at work")
    assert refused.stderr.count("\n") == 1
    assert play.last_call(LIVE.agent).status == "started"


def test_live_agents_die_with_their_stage(pg_url: str, tmp_path: Path) -> None:
    play = Play(pg_url, tmp_path)
    with play.stage() as stage:
        stage.enter([LIVE])
        processes.wait_until(_pumped(stage), what="the live agent")
        assert play.is_held(LIVE.agent)

    # Neither the agent nor Recall's process beside it is connected any more, so the lease runs out.
    processes.wait_until(lambda: connected(pg_url) == 0, what="the end of the live agent", timeout=timedelta(seconds=5))
    assert play.last_call(LIVE.agent).status == "started"


def connected(url: str) -> int:
    """How many others are connected to a database."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with connect(url) as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)
