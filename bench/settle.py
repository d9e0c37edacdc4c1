"""`settle`: an operator's decision through us, beside the real client's resume, end, turn and release, on agents of one making."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

from polign_recall import Client

from actions import queries
from actions.records import ActionRef, ActionStatus
from actions.settle import make_end, settle
from actions.store.base import ActionStore
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, clock, make_row

GOAL = 0.33
REASON = "found in the Sent folder"
RESULT = "message-id 1204"
WARM_UP = 12
"""The driver prepares a statement at its sixth use, and the server plans it once for all after five more."""


def bench_settle(ground: Ground, plan: Plan, report: Report) -> None:
    """The same decision on the same sort of agent, in turn: ours, theirs, ours, theirs. With jobs, so many of each at once."""
    agents = _leave_open(ground, (plan.settles + WARM_UP) * 2)
    with ExitStack() as stack:
        store = stack.enter_context(ground.store())
        clients = [stack.enter_context(ground.client()) for _ in range(plan.jobs)]
        refs = {agent: (ref := ActionRef("main", agent, seq), queries.get_action(store, ref).digest) for agent, seq in agents}
        mine, theirs = agents[::2], agents[1::2]
        for (ours, _), (other, seq) in zip(mine[:WARM_UP], theirs[:WARM_UP], strict=True):
            settle_through_us(store, *refs[ours])
            settle_through_client(clients[0], other, seq)
        ours_ms: list[float] = []
        theirs_ms: list[float] = []
        with ThreadPoolExecutor(max_workers=plan.jobs) as pool:
            for start in range(WARM_UP, len(mine), plan.jobs):
                batch = range(start, min(start + plan.jobs, len(mine)))
                ours_ms += pool.map(lambda i: clock(lambda: settle_through_us(store, *refs[mine[i][0]])), batch)
                theirs_ms += pool.map(lambda i: clock(lambda: settle_through_client(clients[i % plan.jobs], *theirs[i])), batch)
    at_once = f", {plan.jobs} at once" if plan.jobs > 1 else ""
    witnessed = ground.witness(_one_more(ground))
    ours_row = make_row("settle", f"Settle: one decision{at_once}", ours_ms, round_trips=len(witnessed.statements))
    ratio = ours_row.p50 / sorted(theirs_ms)[(len(theirs_ms) - 1) // 2]
    note = f"ours is {ratio:.2f} of it"
    theirs_row = make_row("settle", f"Recall: resume, end_action, record_turn, release{at_once}", theirs_ms, note=note)
    report.rows += [ours_row, theirs_row]
    report.goals.append(
        Goal(name="settle: p50 in parts of the client's", wanted=f"<= {GOAL}", found=f"{ratio:.2f}", is_met=ratio <= GOAL)
    )


def settle_through_us(store: ActionStore, ref: ActionRef, seen: str) -> None:
    end = make_end(ActionStatus.DONE, REASON, actor="operator ana", result=RESULT)
    settle(store, ref, end, actor="operator ana", decision_id=uuid4().hex, seen=seen)


def settle_through_client(client: Client, agent: str, seq: int) -> None:
    """What Recall's own reconcile does, and giving the agent back."""
    resumed = client.resume(agent)
    ended = resumed.end_action(seq, "done", RESULT, resolution=f"operator ana: {REASON}")
    resumed.record_turn(
        "tool", ended.result, ended.tool, brief=f"(settled after a crash: done; {ended.resolution}) {ended.result}"
    )
    resumed.release()


def _leave_open(ground: Ground, count: int) -> list[tuple[str, int]]:
    """Agents with a history that have just left one external call open, each with its number; begun by the real client.

    Their records have the vectors that Recall makes, so that both sides pay for its index.
    """
    idle = [life.agent for life in ground.lives if life.lease == "released" and not life.open_actions]
    chosen = random.Random(ground.shape.seed).sample(idle, count)
    begun = []
    with ground.client() as client:
        for agent in chosen:
            resumed = client.resume(agent)
            action = resumed.begin_action("send_email", "external", {"to": "ann@example.com", "subject": f"Refund {agent}"})
            resumed.release()
            begun.append((agent, action.seq))
    return begun


def _one_more(ground: Ground) -> Callable[[ActionStore], None]:
    agent, seq = _leave_open(ground, 1)[0]
    with ground.store() as store:
        seen = queries.get_action(store, ActionRef("main", agent, seq)).digest
    return lambda store: settle_through_us(store, ActionRef("main", agent, seq), seen)
