"""`./run demo`: everything on one machine, from nothing to agents whose calls wait for somebody to settle them.

Starts PostgreSQL and Valkey, prepares the console, plays the cast of agents, starts web server and worker, prints the address,
and stays until it is told to stop. `--resume AGENT` lets a killed agent of the running demo carry on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

import psycopg

from demo import cast, console, databases, records
from demo.cast import Part
from demo.console import HOST, Console
from demo.databases import Addresses
from demo.home import Home, Refused, Secrets
from demo.prepare import USERNAME
from demo.stage import RECORDS_URL, ROOT, Stage, inherited, resuming
from local import postgres, processes, valkey
from local.postgres import Postgres
from local.processes import ProcessGroup, ServerError

WANTED_DOUBTS = 3
READY_WITHIN = timedelta(seconds=90)
STAY_POLL_S = 0.3
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody asked the demo to stop."""


def main(argv: list[str]) -> int:
    args = parse(argv)
    home = Home(ROOT / ".data")
    try:
        if args.store != "postgres":
            raise Refused(f"the demo keeps its agents' records on postgres; {args.store} is not there yet")
        return resume(home, args.resume) if args.resume else start(home, port=args.port, fresh=args.fresh)
    except Refused as exc:
        problem = str(exc)
    except ServerError as exc:
        problem = f"{str(exc).splitlines()[0].rstrip(':')}; logs are in {home.folder}"
    except PermissionError as exc:
        problem = f"this user may not write {exc.filename}; give it to them, or run the demo as its owner"
    except (OSError, psycopg.Error) as exc:
        problem = " ".join(str(exc).split())
    except Exception as exc:
        problem = unexpected(home, exc)
    print(f"demo: {problem}", file=sys.stderr)
    return 1


def unexpected(home: Home, exc: Exception) -> str:
    """One line about what nobody foresaw; the rest goes into a log. Everything that was started has been stopped by now."""
    log = home.logs / "demo.log"
    with contextlib.suppress(OSError), log.open("a") as out:
        traceback.print_exception(exc, file=out)
    said = f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:200]
    return f"something unexpected went wrong ({said}); see {log}, or begin anew with ./run demo --fresh"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run demo", description="The console with real, killed agents, on this machine.")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier demos left and begin anew")
    parser.add_argument("--store", choices=("postgres", "mongo", "both"), default="postgres", help="where the records are kept")
    parser.add_argument("--resume", metavar="AGENT", help="resume a killed agent of the running demo; see what it reads and does")
    args = parser.parse_args(argv)
    if args.resume and args.fresh:
        parser.error("--resume needs the running demo's data; --fresh forgets them")
    port = os.environ.get("DEMO_PORT") or "8000"
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        parser.error(f"DEMO_PORT is {port!r}; it must be a number from 1 to 65535")
    args.port = int(port)
    return args


# --- start ------------------------------------------------------------------------------------------------------------


def start(home: Home, *, port: int, fresh: bool) -> int:
    """Run the demo until somebody stops it, which is no failure, also when it was still starting."""
    for number in ENDING:
        signal.signal(number, _stop)
    try:
        with home.held():
            require_free(port)
            if fresh:
                home.forget_everything()
            home.make_private_folders()
            run(home, port=port)
    except Stopped:
        print("stopped", flush=True)
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    for again in ENDING:
        signal.signal(again, signal.SIG_IGN)  # once is enough: whatever we started has limited time to end
    raise Stopped


def require_free(port: int, *, patience: timedelta = timedelta(seconds=2)) -> None:
    """Refuse a port that somebody uses. One left by a demo that was killed a moment ago becomes free by itself."""

    def is_free() -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except PermissionError:
                raise Refused(f"this user may not use port {port}; set DEMO_PORT to another") from None
            except OSError:
                return False
        return True

    try:
        processes.wait_until(is_free, what=f"port {port}", timeout=patience)
    except ServerError:
        raise Refused(f"port {port} is taken; set DEMO_PORT to another") from None


def run(home: Home, *, port: int) -> None:
    tell = teller()
    tell("starting PostgreSQL and Valkey")
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres.start(home.postgres))
        server = database.server
        broker = stack.enter_context(valkey.start(home.valkey))
        kept = home.secrets()
        addresses = databases.create(server, console_password=kept.console_password, agents_password=kept.agents_password)
        environment = console.environment(addresses, kept, broker=broker.url(), port=port)
        stage = stack.enter_context(Stage(url=addresses.agents, world=home.world, logs=home.logs, tell=tell))
        servers = stack.enter_context(ProcessGroup())
        face = Console(home=home, servers=servers, environment=environment, port=port)

        tell("preparing the console; meanwhile the agents go to work")
        stage.enter(who_plays(addresses.agents))
        prepare(face, addresses, kept, stage)
        tell("starting web server and worker")
        face.start()
        token = home.token.read_text()
        wait_until_ready(face, token, stage)

        home.tell_environment(environment)
        home.tell(
            url=face.url,
            username=USERNAME,
            password=kept.password,
            token=token,
            database_url=environment["DATABASE_URL"],
            stores=environment["ACTION_STORES"],
        )
        tell("ready")
        print(welcome(face.url, kept.password, doubtful_agent(addresses.agents)), flush=True)
        while True:
            face.require_alive()
            stage.require_alive()
            require_running(PostgreSQL=database.process, Valkey=broker.process)
            time.sleep(STAY_POLL_S)


def require_running(**servers: subprocess.Popen[bytes]) -> None:
    """Notice a server that ended by itself.

    Raises:
        Refused: one has.
    """
    for name, process in servers.items():
        if process.poll() is not None:
            raise Refused(f"{name} ended with exit code {process.returncode}; start the demo again, the data are kept")


def teller() -> Callable[[str], None]:
    """Prints lines of progress, each with the seconds since now."""
    began = time.monotonic()
    return lambda line: print(f"[{time.monotonic() - began:5.1f} s] {line}", flush=True)


def who_plays(url: str) -> list[Part]:
    """Those whose calls are not in the records yet, and a new agent that stays alive."""
    recorded = records.calls(url)
    doubts = sum(call.is_open and call.action_class == "external" and cast.part_of(call.agent) is not None for call in recorded)
    made = {(call.agent, call.tool) for call in recorded}
    untouched = {call.agent for call in recorded if call.status == "started"}
    return [
        *(part.as_resumed for part in cast.CAST if part.is_resumed and part.agent in untouched),  # an earlier start was cut short
        *cast.still_to_play(made, doubts, wanted=WANTED_DOUBTS),
        cast.next_live(records.agents(url)),
    ]


def prepare(face: Console, addresses: Addresses, kept: Secrets, stage: Stage) -> None:
    """Prepare the console in a process of its own while agents play; let it in as soon as there are records."""
    process = face.prepare(addresses, kept)

    def is_over() -> bool:
        stage.pump()
        face.require_alive()
        return process.poll() == 0 and records.is_there(addresses.agents)

    processes.wait_until(is_over, what="the console's preparation", timeout=READY_WITHIN)
    databases.let_console_in(addresses.store_owner)


def wait_until_ready(face: Console, token: str, stage: Stage) -> None:
    """Wait until every agent has played its part, the address answers, and the API tells of enough calls in doubt."""

    def is_ready() -> bool:
        stage.pump()
        face.require_alive()
        return stage.is_over and face.answers() and face.doubts(token) >= WANTED_DOUBTS

    processes.wait_until(is_ready, what=f"the console at {face.url}", timeout=READY_WITHIN)


def doubtful_agent(url: str) -> str:
    """An agent to try `--resume` with: one whose call nobody has settled yet."""
    doubtful = {call.agent for call in records.calls(url) if call.is_open and call.action_class == "external"}
    return next((part.agent for part in cast.CAST if part.agent in doubtful), cast.CAST[0].agent)


def welcome(url: str, password: str, agent: str) -> str:
    return f"""
  Settle runs at   {url}/
  Log in as        {USERNAME}
  with password    {password}

  Agents were killed inside their calls; each call in the queue may or may not have happened.
  Say what did, then let its agent carry on, and see what it reads and does:

      ./run demo --resume {agent}

  Ctrl-C stops everything. What was recorded stays in .data/ for the next start.
"""


# --- resume -----------------------------------------------------------------------------------------------------------


def resume(home: Home, agent: str) -> int:
    """Become the agent's next process. It refuses by itself, in one line, when another one is at work."""
    told = home.running()
    kept = home.secrets()
    server = Postgres.from_url(told["database_url"])
    url = Addresses.on(server, console_password=kept.console_password, agents_password=kept.agents_password).agents
    known = records.agents(url)
    part = cast.part_of(agent)
    if part is None or agent not in known:
        raise Refused(f"there is no agent {agent!r} here; there are {', '.join(sorted(known))}")
    line = resuming(part, world=home.world)
    os.chdir(ROOT)
    os.execve(line[0], line, inherited() | {RECORDS_URL: url})  # noqa: S606 - no shell, on purpose


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
