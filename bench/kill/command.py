"""`./run bench kill [--store URL] [--trials N] [--jobs N] [--json FILE]`: all trials, a few at once, gone on with where a file says so."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg

from actions.errors import ActionsError
from actions.store import open_agent_store
from actions.store.addresses import take_out
from bench.forks import Forks
from bench.kill.agent import POINTS, SETUPS, STORES, Records, preload
from bench.kill.operator import console
from bench.kill.rows import Cell, Tally, cells, render
from bench.kill.trial import NotKilled, Site, TrialFailed, run_trial
from local import postgres, processes
from local.processes import ServerError

COLLECTION = "settle_kill"
LEASE_S = 2.0
"""Recall takes one of a second too; on a busy machine its own client then loses it now and then."""
ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be run; `store` empty: a PostgreSQL of our own."""

    store: str
    trials: int
    jobs: int
    file: Path | None
    setups: tuple[str, ...] = SETUPS
    tools: tuple[str, ...] = ("lookup_order", "save_invoice", "send_email")
    points: tuple[str, ...] = POINTS
    lease_s: float = LEASE_S


def bench_kill(asked: Asked, tell: Callable[[str], None]) -> Tally:
    """Run what the file does not hold yet. The file is written after each trial, so whatever stops this, the next start goes on.

    Raises:
        ValueError: no such store, or a file that holds something else.
        ServerError: a server did not come up.
        TrialFailed: a trial ended otherwise than trials do; those that were counted stand in the file.
    """
    tally = Tally(store=kind_of(asked.store), file=asked.file, about={"trials": asked.trials})
    tally.read()
    todo = [
        (cell, number) for cell in cells(asked.setups, asked.tools, asked.points) for number in tally.left(cell, asked.trials)
    ]
    if not todo:
        return tally
    with laid(asked, {setup for (setup, _, _), _ in todo}) as (site, version):
        tally.about |= {"server": version, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        run_all(site, _mixed(todo), tally, jobs=asked.jobs, tell=tell)
    return tally


def kind_of(url: str) -> str:
    scheme = url.partition("://")[0].lower()
    kind = {"": "postgres", "postgresql": "postgres", "mongodb+srv": "mongodb"}.get(scheme, scheme)
    if kind not in STORES:
        raise ValueError("--store is postgres://... or mongodb://...: where agents keep records of their own")
    return kind


def _mixed(todo: Sequence[tuple[Cell, int]]) -> list[tuple[Cell, int]]:
    """Setups in turn, so that what is counted so far is of all of them."""
    return sorted(todo, key=lambda trial: (trial[1], trial[0][1:]))


def run_all(site: Site, todo: Sequence[tuple[Cell, int]], tally: Tally, *, jobs: int, tell: Callable[[str], None]) -> None:
    """So many at once. After one that failed no other is begun."""
    lock, done, began = threading.Lock(), itertools.count(1), time.monotonic()

    def run(cell: Cell, number: int) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                outcome = run_trial(site, cell, number)
                break
            except NotKilled as exc:
                tell(f"made again: {exc}")
                if attempt == ATTEMPTS:
                    raise
        with lock:
            tally.add(cell, outcome)
            if (count := next(done)) % 45 == 0 or count == len(todo):
                tell(f"{count} of {len(todo)} trials in {time.monotonic() - began:.0f} s")

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            running: list[Future[None]] = [pool.submit(run, cell, number) for cell, number in todo]
            finished, _ = wait_for(running, return_when="FIRST_EXCEPTION")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for each in finished:
            if not each.cancelled():
                each.result()


@contextmanager
def laid(asked: Asked, setups: set[str]) -> Iterator[tuple[Site, str]]:
    """What the trials need, started; everything but the records in a given store is gone afterwards, and the worlds of trials that failed."""
    with ExitStack() as stack:
        folder = processes.temporary_folder("kill", mode=0o711)
        home = folder / "server"
        stack.callback(_remove_unless_worlds, folder)
        forks = Forks(preload(kind_of(asked.store)))
        needs_console = "durable+operator" in setups
        if needs_console or not asked.store:
            stack.callback(postgres.remove_data, home)
            server = stack.enter_context(postgres.start(home))
        url, taken = take_out(asked.store or server.create_database("agents"), ["collection"])
        records = Records(kind=kind_of(asked.store), url=url, collection=taken.get("collection", COLLECTION))
        store = open_agent_store(records.ours, name="kill")
        stack.callback(store.close)
        store.create_records()
        site = Site(records=records, store=store, folder=folder, lease_s=asked.lease_s, forks=forks)
        if needs_console:
            operator = stack.enter_context(console(records, server.create_database("console"), folder))
            site = Site(records=records, store=store, folder=folder, lease_s=asked.lease_s, forks=forks, decide=operator.decide)
        yield site, store.check().server


def _remove_unless_worlds(folder: Path) -> None:
    if not any(folder.glob("kill-*")):
        shutil.rmtree(folder, ignore_errors=True)


def main(asked: Asked, tell: Callable[[str], None]) -> int:
    try:
        tally = bench_kill(asked, tell)
    except (ServerError, TrialFailed, ActionsError, psycopg.Error, httpx.HTTPError, ValueError, OSError) as exc:
        print(f"bench: {next(iter(str(exc).splitlines()), type(exc).__name__)}", file=sys.stderr)
        return 1
    print(f"{tally.about.get('date', '')}  {tally.about.get('server', tally.store)}\n\n{render(tally.in_order())}", flush=True)
    return 0
