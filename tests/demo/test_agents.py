"""Real agents, real SIGKILL, a store on each kind of database: what they leave in records and world, and how they carry on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from actions.records import Action, ActionRef, ActionStatus
from actions.settle import make_end, settle
from actions.store import open_store
from actions.store.base import ActionStore
from demo import records
from demo.cast import LIVE, Part, called, cast_of, part_of
from demo.kinds import MAIN, OPS
from demo.stage import RECORDS_URL, ROOT, Stage, inherited, resuming
from demo.world import INVOICES, MAIL, PAYMENTS, TICKETS, World
from local import processes
from local.mongo import Mongo
from local.postgres import Postgres, connect
from tests.servers import VECTOR_TEMPLATE

pytestmark = pytest.mark.xdist_group("demo")  # one play for all of them

EVERYBODY = cast_of([MAIN, OPS])
EFFECTS = {"send_email": MAIL, "send_receipt": MAIL, "create_payment": PAYMENTS, "open_ticket": TICKETS, "save_invoice": INVOICES}


@dataclass
class Play:
    """Agents that have played their parts on databases of their own. An agent is AGENT, of `main`, or STORE/AGENT."""

    urls: Mapping[str, str]
    folder: Path
    world: World = field(init=False)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.folder / "world")

    def stage(self) -> Stage:
        return Stage(urls=self.urls, world=self.world.folder, logs=self.folder, tell=self.lines.append)

    def calls(self, who: str) -> list[Action]:
        part = self.part(who)
        return [call for call in records.calls(self.urls[part.store]) if call.agent == part.agent]

    def last_call(self, who: str) -> Action:
        return self.calls(who)[-1]

    def part(self, who: str) -> Part:
        store, _, agent = who.rpartition("/")
        part = part_of(cast_of(self.urls), store or MAIN, agent)
        assert part is not None
        return part

    def effects_of(self, call: Action) -> list[dict[str, object]]:
        return [effect for effect in self.world.effects(EFFECTS[call.tool]) if effect["key"] == call.key]

    @contextmanager
    def store(self, part: Part) -> Iterator[ActionStore]:
        with closing(open_store(self.urls[part.store], name=part.store)) as opened:
            yield opened

    def is_held(self, who: str) -> bool:
        part = self.part(who)
        with self.store(part) as store:
            lease = store.find_lease(part.agent)
            return lease is not None and lease.is_live

    def resuming(self, who: str) -> subprocess.CompletedProcess[str]:
        part = self.part(who)
        line = resuming(part, world=self.world.folder)
        env = inherited() | {RECORDS_URL: self.urls[part.store]}
        return subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)

    def resume(self, who: str) -> str:
        """Let the agent carry on; answers what it prints."""
        processes.wait_until(lambda: not self.is_held(who), what=f"the end of {who}'s lease")
        resumed = self.resuming(who)
        assert resumed.returncode == 0, resumed.stderr
        return resumed.stdout

    def settle(self, who: str, status: ActionStatus, reason: str, *, result: str = "") -> None:
        """Say what became of the agent's last call, as the console does."""
        processes.wait_until(lambda: not self.is_held(who), what=f"the end of {who}'s lease")
        part = self.part(who)
        ref = ActionRef(store=part.store, agent=part.agent, seq=len(self.calls(who)))
        with self.store(part) as store:
            store.prepare()
            end = make_end(status, reason, actor="operator ana", result=result)
            settle(store, ref, end, actor="operator ana", decision_id=f"d-{uuid4()}")


@pytest.fixture(scope="module")
def play(pg_server: Postgres, mongo_server: Mongo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """The whole cast of two stores, and the agent that stays alive. Tests change only what their own agent left."""
    name = f"t_{uuid4().hex[:16]}"
    urls = {MAIN: pg_server.create_database(name, template=VECTOR_TEMPLATE), OPS: mongo_server.url(name)}
    played = Play(urls, tmp_path_factory.mktemp("a play"))
    with played.stage() as stage:
        stage.enter([*EVERYBODY, LIVE])
        processes.wait_until(_pumped(stage), what="the play", timeout=timedelta(seconds=180))
        yield played
    pg_server.drop_database(name)
    mongo_server.drop_database(name)


def _pumped(stage: Stage) -> Callable[[], bool]:
    def is_over() -> bool:
        stage.pump()
        return stage.is_over

    return is_over


@pytest.mark.parametrize("part", [part for part in EVERYBODY if part.kill_in], ids=lambda part: called(part, [MAIN, OPS]))
def test_a_kill_leaves_the_call_open_and_its_effect_only_when_it_came_after(play: Play, part: Part) -> None:
    who = called(part, play.urls)
    call = play.last_call(who)

    assert call.tool == part.kill_in
    assert call.status == ("unknown" if part.is_resumed else "started")
    assert len(play.effects_of(call)) == int(part.after)
    assert all(not earlier.is_open for earlier in play.calls(who)[:-1])


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
    paid = play.world.effects(PAYMENTS)

    told = play.resume("billing-agent-2")

    assert "## Unfinished actions" in told
    assert "create_payment: it may have happened; nobody has said yet" in told
    assert [call.tool for call in play.calls("billing-agent-2")] == ["lookup_order", "create_payment"]
    assert play.last_call("billing-agent-2").status == "unknown"
    assert len(play.effects_of(play.last_call("billing-agent-2"))) == 1
    assert play.world.effects(PAYMENTS) == paid


def test_what_was_settled_as_done_is_read_and_not_repeated(play: Play) -> None:
    play.settle("support-agent-7", ActionStatus.DONE, "found in the Sent folder", result="sent")

    told = play.resume("support-agent-7")

    assert "(settled after a crash: done; operator ana: found in the Sent folder) sent" in told
    assert "send_email: settled as done: operator ana: found in the Sent folder" in told
    assert [call.tool for call in play.calls("support-agent-7")].count("send_email") == 1
    assert "Marta Nowak has been told" in told


def test_what_was_settled_as_failed_is_done_again_under_a_new_key(play: Play) -> None:
    first = play.last_call("ops/ops-agent-1")
    play.settle("ops/ops-agent-1", ActionStatus.FAILED, "not in the tracker")

    told = play.resume("ops/ops-agent-1")

    second = play.last_call("ops/ops-agent-1")
    assert "open_ticket: settled as failed: operator ana: not in the tracker" in told
    assert 'open_ticket(title="Cold store 3 reports 9.4 °C"' in told
    assert (second.tool, second.status) == ("open_ticket", "done")
    assert second.key != first.key
    assert len(play.effects_of(second)) == 1


def test_of_two_agents_with_one_id_each_has_its_own_calls(play: Play) -> None:
    mine, theirs = play.calls("support-agent-7"), play.calls("ops/support-agent-7")

    assert [call.tool for call in mine][:2] == ["lookup_order", "send_email"]
    assert [call.tool for call in theirs] == ["open_ticket"]
    assert (
        mine[0].key == theirs[0].key
    )  # Recall makes it of id and number, so that a mail server or tracker must not take it for proof alone


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
    refused = play.resuming(LIVE.agent)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{LIVE.agent} is at work")
    assert refused.stderr.count("\n") == 1
    assert play.last_call(LIVE.agent).status == "started"


def test_live_agents_die_with_their_stage(pg_url: str, tmp_path: Path) -> None:
    play = Play({MAIN: pg_url}, tmp_path)
    with play.stage() as stage:
        stage.enter([LIVE])
        processes.wait_until(_pumped(stage), what="the live agent")
        assert play.is_held(LIVE.agent)

    # Neither the agent nor Recall's process beside it is connected any more, so the lease runs out.
    processes.wait_until(lambda: connected(pg_url) == 0, what="the end of the live agent", timeout=timedelta(seconds=60))
    assert play.last_call(LIVE.agent).status == "started"


def connected(url: str) -> int:
    """How many others are connected to a database."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with connect(url) as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
    return int(count)
