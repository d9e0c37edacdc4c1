"""Eight operators who settle at once over HTTP, each call offered to two of them; and two hundred browsers that hear of one change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

import httpx
import psycopg
from psycopg import sql

from actions import queries
from actions.records import ActionRef
from bench.ground import TABLE, Ground
from bench.inside import Inside
from bench.pages import Console
from bench.report import Goal, Report, Row, make_row
from bench.settle import settle_through_us
from bench.shape import in_doubt
from local.processes import ServerError

OPERATORS = 8
HEAR_S = 30.0
BARRIER_S = 60.0


@dataclass(slots=True)
class Tally:
    """What eight operators were answered."""

    took: list[float] = field(default_factory=list)  # milliseconds of each written decision
    written: list[tuple[str, str]] = field(default_factory=list)  # agent and decision id of each answer "written"
    answers: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the store says of it: `lost` were answered as written and are not; `doubled` were written or told more than once."""

    settled: int
    lost: int
    doubled: int


def measure_crowd(ground: Ground, console: Console, inside: Inside, report: Report, *, calls: int, seconds: float) -> None:
    """Each pair of operators works through one list from its beginning, so that they meet at most calls. 409 is a loser's answer."""
    agents = in_doubt(calls, "crowd")
    ground.add(agents)
    tokens = inside.ask("make_operators", count=OPERATORS)
    with ground.store() as store:
        digests = {life.agent: queries.get_action(store, ActionRef("main", life.agent, 2)).digest for life in agents}
    lists = [agents[pair :: OPERATORS // 2] for pair in range(OPERATORS // 2)]
    tally, lock, begun = Tally(), threading.Lock(), time.perf_counter()
    until = begun + seconds

    def operate(number: int) -> None:
        with httpx.Client(base_url=console.url, timeout=60, headers={"Authorization": f"Bearer {tokens[number]}"}) as program:
            for life in lists[number % len(lists)]:
                if time.perf_counter() > until:
                    return
                began, decision_id = time.perf_counter(), uuid4().hex
                body = {
                    "outcome": "done",
                    "reason": f"found by {number}",
                    "decision_id": decision_id,
                    "seen": digests[life.agent],
                }
                answer = program.post(f"/api/v1/actions/main/{life.agent}/2/decision", json=body)
                took = (time.perf_counter() - began) * 1000
                with lock:
                    tally.answers[answer.status_code] += 1
                    if answer.status_code == 201:
                        tally.took.append(took)
                        tally.written.append((life.agent, decision_id))

    with ThreadPoolExecutor(OPERATORS) as pool:
        list(pool.map(operate, range(OPERATORS)))
    lasted = time.perf_counter() - begun
    truth = find_truth(ground, tally.written)
    if not tally.took:
        raise ServerError(f"crowd: nothing was settled; answers were {dict(tally.answers)}")
    others = ", ".join(f"{count} x {status}" for status, count in sorted(tally.answers.items()) if status != 201)
    rate = len(tally.took) / lasted
    note = f"{rate:.0f} settles/s in {lasted:.0f} s; {truth.lost} lost, {truth.doubled} doubled; also answered: {others or 'nothing'}"
    report.rows.append(
        make_row("crowd", f"{OPERATORS} operators at once over HTTP, each call offered to two", tally.took, note=note)
    )
    for name, found in (("lost", truth.lost), ("doubled", truth.doubled)):
        report.goals.append(Goal(name=f"crowd: settles {name}", wanted="0", found=f"{found}", is_met=found == 0))


def find_truth(ground: Ground, written: Sequence[tuple[str, str]]) -> Truth:
    """Compare what was answered with entries, turns and records; both ways: what stands there and nobody was told is a double's trace too."""
    with psycopg.connect(ground.url, autocommit=True) as connection:
        entries = connection.execute(
            "SELECT agent, decision_id FROM settle_audit.entries WHERE kind = 'settled' AND agent LIKE 'crowd-%'"
        ).fetchall()
        rows = connection.execute(
            sql.SQL(
                "SELECT metadata->>'recall_agent', metadata->>'record', count(*) FROM {} WHERE metadata->>'recall_agent' LIKE 'crowd-%'"
                " AND ((metadata->>'record' = 'action' AND metadata->>'seq' = '2' AND metadata->>'status' = 'done')"
                " OR (metadata->>'record' = 'turn' AND (metadata->>'seq')::int > 3)) GROUP BY 1, 2"
            ).format(TABLE)
        ).fetchall()
    found = {(agent, record): count for agent, record, count in rows}
    by_agent = Counter(agent for agent, _ in entries)
    known = set(entries)
    lost = sum(one not in known or found.get((one[0], "action"), 0) != 1 or not found.get((one[0], "turn")) for one in written)
    doubled = sum(count > 1 for count in by_agent.values())
    doubled += sum(count > 1 for (_, record), count in found.items() if record == "turn")
    doubled += sum(count > 1 for count in Counter(agent for agent, _ in written).values())
    return Truth(settled=len(entries), lost=lost, doubled=doubled)


def measure_fan_out(ground: Ground, console: Console, report: Report, *, browsers: int, fetchers: int, times: int) -> None:
    """From the commit of a settle to each browser's "changed"; then every one of them fetches the queue's rows, as the page does."""
    agents = in_doubt(times, "heard")
    ground.add(agents)
    with ground.store() as store:
        digests = {life.agent: queries.get_action(store, ActionRef("main", life.agent, 2)).digest for life in agents}

        def settle(number: int) -> float:
            agent = agents[number].agent
            settle_through_us(store, ActionRef("main", agent, 2), digests[agent])
            return time.perf_counter()

        try:
            heard, fetched = asyncio.run(_listen(console, settle, browsers=browsers, fetchers=fetchers, times=times))
        except TimeoutError as exc:
            raise ServerError(
                f"fan-out: not each of {browsers} browsers heard of a change in time; the machine is too busy"
            ) from exc
    report.rows.append(
        make_row(
            "fan-out", f"from a settle's commit to each of {browsers} browsers", heard, note="the watcher looks once a second"
        )
    )
    got = [took for took in fetched if took is not None]
    refused = len(fetched) - len(got)
    if not got:
        raise ServerError("fan-out: no browser got the queue's rows")
    report.rows.append(make_row("fan-out", f"until each of {fetchers} browsers that ask at once has the queue's rows anew", got))
    report.goals.append(
        Goal(
            name=f"fan-out: of {fetchers} browsers that ask at once, refused", wanted="0", found=f"{refused}", is_met=refused == 0
        )
    )


async def _listen(
    console: Console, settle: Callable[[int], float], *, browsers: int, fetchers: int, times: int
) -> tuple[list[float], list[float | None]]:
    cookies = dict(console.browser.cookies)
    limits = httpx.Limits(max_connections=2 * browsers + 10, max_keepalive_connections=browsers)
    async with httpx.AsyncClient(base_url=console.url, cookies=cookies, timeout=BARRIER_S, limits=limits) as client:
        inboxes: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in range(browsers)]
        streams = [asyncio.create_task(_hear(client, inbox)) for inbox in inboxes]
        try:
            await asyncio.wait_for(asyncio.gather(*(inbox.get() for inbox in inboxes)), BARRIER_S)
            await asyncio.sleep(2.5)  # the watcher has seen the store as it is
            for inbox in inboxes:
                while not inbox.empty():
                    inbox.get_nowait()
            heard: list[float] = []
            for number in range(times):
                committed = await asyncio.to_thread(settle, number)
                at = await asyncio.wait_for(asyncio.gather(*(inbox.get() for inbox in inboxes)), HEAR_S)
                heard += [max(0.001, (one - committed) * 1000) for one in at]
                await asyncio.sleep(1.2)
            began = time.perf_counter()
            fetched = await asyncio.gather(*(_fetch(client, began) for _ in range(fetchers)))
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return heard, fetched


async def _hear(client: httpx.AsyncClient, inbox: asyncio.Queue[float]) -> None:
    async with client.stream("GET", "/events/") as answer:
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"/events/ answered {answer.status_code}")
        async for line in answer.aiter_lines():
            if line == "event: changed":
                inbox.put_nowait(time.perf_counter())


async def _fetch(client: httpx.AsyncClient, began: float) -> float | None:
    """Milliseconds, or None where it was refused."""
    answer = await client.get("/", headers={"HX-Request": "true", "HX-Target": "queue", "X-Background": "1"})
    took = (time.perf_counter() - began) * 1000
    return took if answer.status_code == httpx.codes.OK else None


def row_of(name: str, value: float, *, unit: str, note: str = "", bench: str = "memory") -> Row:
    """One number that is no time."""
    return Row(bench=bench, name=name, n=1, p50=value, p95=value, max=value, unit=unit, note=note)
