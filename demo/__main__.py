"""`./run demo`: everything on one machine, from nothing to agents whose calls wait for somebody to settle them.

Starts the databases and Valkey, prepares the console, plays the cast of agents, starts web server and worker, prints the address,
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import FrameType

from actions.errors import StoreError
from actions.records import Action, ActionClass, ActionStatus
from demo import cast, console, databases, records
from demo.addresses import Addresses, Passwords, stores_in
from demo.cast import Part
from demo.console import Console
from demo.home import Home, Refused, Secrets
from demo.kinds import MONGO, STORES
from demo.outside import HOST, Outside, kept_outside
from demo.prepare import SECOND, USERNAME
from demo.runs import arrange
from demo.stage import RECORDS_URL, ROOT, Stage, inherited, resuming
from demo.world import World
from local import processes, valkey
from local.processes import ProcessGroup, ServerError

WANTED_DOUBTS = 3
READY_WITHIN = timedelta(seconds=90)
RECEIPT_WITHIN = timedelta(seconds=10)
STAY_POLL_S = 0.3
REFUNDS: tuple[tuple[str, float, tuple[str, str] | None], ...] = (
    ("A-0993", 120.00, None),
    ("A-1042", 1480.00, None),
    ("B-2207", 86.40, ("send_email", "die")),
    ("B-2210", 59.90, ("open_ticket", "refuse")),
)
"""Order, EUR, and what befalls which call of it."""
ARRANGED = "arranged.jsonl"
TWO_STORES = """\
  One queue over two stores: customer care and billing keep their agents' records on PostgreSQL (main), operations on MongoDB (ops).
  support-agent-7 is in both: one id, two agents.
"""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody asked the demo to stop."""


def main(argv: list[str]) -> int:
    args = parse(argv)
    home = Home(ROOT / ".data", args.store or "postgres")
    try:
        if args.resume:
            return resume(home, args.resume, store=args.store)
        return start(home, port=args.port, fresh=args.fresh)
    except Refused as exc:
        problem = str(exc)
    except ServerError as exc:
        problem = f"{str(exc).splitlines()[0].rstrip(':')}; logs are in {home.folder}"
    except PermissionError as exc:
        problem = f"this user may not write {exc.filename}; give it to them, or run the demo as its owner"
    except (OSError, StoreError) as exc:
        problem = " ".join(str(exc).split())
    except Exception as exc:
        problem = " ".join(str(exc).split()) if databases.is_of_a_driver(exc) else unexpected(home, exc)
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
    parser.add_argument("--fresh", action="store_true", help="forget what earlier demos on this --store left and begin anew")
    parser.add_argument(
        "--store", choices=tuple(STORES), help="where agents keep their records (postgres); each has data of its own"
    )
    said = "resume a killed agent of the running demo, AGENT or STORE/AGENT; see what it reads and does"
    parser.add_argument("--resume", metavar="AGENT", help=said)
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
    stores = STORES[home.kind]
    if others := home.others():
        tell(f"on --store {home.kind}, with its own data; what is kept on {' and '.join(others)} stays as it is")
    documents = ", SecantusDB in MongoDB's place" if MONGO in stores.values() else ""
    tell(f"starting PostgreSQL{documents} and Valkey")
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(databases.started(home))
        broker = stack.enter_context(valkey.start(home.valkey))
        kept = home.secrets()
        addresses = databases.create(servers, stores, Passwords(console=kept.console_password, agents=kept.agents_password))
        outside = kept_outside(home.outside)
        environment = console.environment(addresses, kept, outside, broker=broker.url(), port=port, world=home.world)
        stage = stack.enter_context(Stage(urls=addresses.agents, world=home.world, logs=home.logs, tell=tell))
        group = stack.enter_context(ProcessGroup())
        face = Console(home=home, servers=group, environment=environment, port=port)

        tell("preparing the console; meanwhile the agents go to work")
        parts = who_plays(addresses.agents)
        stage.enter(parts)
        face.start_providers()
        prepare(face, addresses, kept, stage)
        wait_for_providers(face, outside)
        tell("starting web server and worker")
        face.start()
        token = home.token.read_text()
        wait_until_ready(face, token, stage, stores, parts)
        is_first = start_refunds(face, token, World(home.world))

        home.tell_environment(environment)
        home.tell(
            url=face.url,
            username=USERNAME,
            second=SECOND,
            password=kept.password,
            token=token,
            database_url=environment["DATABASE_URL"],
            stores=environment["ACTION_STORES"],
        )
        tell("ready")
        print(welcome(face.url, kept.password, home, doubtful_agent(addresses.agents), is_first=is_first), flush=True)
        while True:
            face.require_alive()
            stage.require_alive()
            require_running(**servers.processes, Valkey=broker.process)
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


def who_plays(urls: Mapping[str, str]) -> list[Part]:
    """Those of every store whose calls are not in its records yet, and a new agent that stays alive."""
    parts = [part for store, url in urls.items() for part in who_plays_in(store, url, cast.cast_of(urls))]
    parts.sort(key=lambda part: (not part.is_resumed, not part.kill_in))  # whose leases have to run out, they begin
    return [*parts, cast.next_live(records.agents(urls[cast.LIVE.store]))]


def who_plays_in(store: str, url: str, everybody: Sequence[Part]) -> list[Part]:
    """Those of one store."""
    parts = [part for part in everybody if part.store == store]
    recorded = records.calls(url)
    made = {(call.agent, call.tool) for call in recorded}
    untouched = {call.agent for call in recorded if call.status is ActionStatus.STARTED}
    doubts = sum(is_doubt(call) and cast.part_of(everybody, store, call.agent) is not None for call in recorded)
    return [
        *(part.as_resumed for part in parts if part.is_resumed and part.agent in untouched),  # an earlier start was cut short
        *cast.still_to_play(parts, made, doubts, wanted=WANTED_DOUBTS),
    ]


def is_doubt(call: Action) -> bool:
    return call.is_open and call.action_class is ActionClass.EXTERNAL and call.tool in cast.DOUBTED


def prepare(face: Console, addresses: Addresses, kept: Secrets, stage: Stage) -> None:
    """Prepare the console in a process of its own while agents play; let it into each store as soon as there are records."""
    process = face.prepare(addresses, kept)
    closed = list(addresses.stores)

    def is_over() -> bool:
        stage.pump()
        face.require_alive()
        if process.poll() == 0:
            closed[:] = [store for store in closed if not databases.let_console_in(store)]
        return process.poll() == 0 and not closed

    processes.wait_until(is_over, what="the console's preparation", timeout=READY_WITHIN)


def wait_for_providers(face: Console, outside: Outside) -> None:
    """Wait until they answer: a resolver that is refused once waits a minute before it asks again."""

    def are_there() -> bool:
        face.require_alive()
        return all(map(answers, outside.ports))

    processes.wait_until(are_there, what="mailbox, payment provider and tracker", timeout=READY_WITHIN)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def wait_until_ready(face: Console, token: str, stage: Stage, stores: Iterable[str], parts: Sequence[Part]) -> None:
    """Wait until every agent has played its part, the address answers, and each store has enough calls in doubt, by the API, and nobody
    in flight who was killed: for a few seconds a lease outlives its process."""

    began = time.monotonic()

    def is_ready() -> bool:
        stage.pump()
        face.require_alive()
        return stage.is_over and face.answers() and all(map(is_quiet, stores)) and face.works(token, since=began)

    def is_quiet(store: str) -> bool:
        killed = {part.agent for part in parts if part.store == store and part.kill_in}
        in_flight = {call["agent"] for call in face.calls(token, state="in_flight", store=store)}
        doubts = face.calls(token, state="interrupted,unknown", store=store, tool=",".join(cast.DOUBTED), **{"class": "external"})
        return len(doubts) >= WANTED_DOUBTS and not killed & in_flight

    def is_receipt_settled() -> bool:
        face.require_alive()
        return not any(face.calls(token, state="interrupted,unknown", store=store, tool="send_receipt") for store in stores)

    processes.wait_until(is_ready, what=f"the console at {face.url}", timeout=READY_WITHIN)
    # Whoever looks first sees it. Not for long: somebody may have changed what is done about receipts.
    with contextlib.suppress(ServerError):
        processes.wait_until(is_receipt_settled, what="the receipt's end", timeout=RECEIPT_WITHIN)


def start_refunds(face: Console, token: str, world: World) -> bool:
    """Four durable runs, one of each fate: done, waiting for approval, killed inside a call, failed on its last one. Those of the first start,
    whose keys a later one finds again. Whether this is the first."""
    is_first = not world.effects(ARRANGED)
    for order, _, accident in REFUNDS:
        if accident is not None and is_first:
            arrange(world, order, *accident)
    for order, amount, _ in REFUNDS:
        face.start_run(token, order=order, amount=amount)
    if is_first:
        world.append(ARRANGED, "refunds", {})
    return is_first


def doubtful_agent(urls: Mapping[str, str]) -> str:
    """An agent to try `--resume` with: one of any shift whose call nobody has settled yet."""
    everybody = cast.cast_of(urls)
    doubts = [(store, call.agent) for store, url in urls.items() for call in records.calls(url) if is_doubt(call)]
    playing = [part for store, agent in doubts if (part := cast.part_of(everybody, store, agent))]
    doubtful = {(part.store, part.script): part for part in playing}
    scripts = ((part.store, part.script) for part in everybody)  # without the live agent's: it is at work
    return cast.called(next((doubtful[script] for script in scripts if script in doubtful), everybody[0]), urls)


FIRST_RUNS = """\
  Four refunds run in workers ({url}/runs/): one is done, one of 1,480 EUR waits for your approval, one was killed after its email, one
  failed on its last call and can be walked backward.
"""
LATER_RUNS = "  The refunds of the first start ({url}/runs/) are as they were left.\n"


def welcome(url: str, password: str, home: Home, agent: str, *, is_first: bool) -> str:
    return f"""
  Settle runs at   {url}/
  Log in as        {USERNAME}
  with password    {password}
  In another browser, {SECOND} (the same password) is the second person for payments above 1000.

  Agents were killed inside their calls; each call in the queue may or may not have happened.
{TWO_STORES if len(STORES[home.kind]) > 1 else ""}\
  Evidence is being asked for: of the Sent folder, the payment provider, the ticket tracker. One receipt is settled by that alone.
{(FIRST_RUNS if is_first else LATER_RUNS).format(url=url)}\
  Say what became of the calls, then let an agent carry on, and see what it reads and does:

      ./run demo --resume {agent}

  Ctrl-C stops everything. What was recorded stays in .data/ for the next start.
"""


# --- resume -----------------------------------------------------------------------------------------------------------


def resume(home: Home, wanted: str, *, store: str | None) -> int:
    """Become the agent's next process. It refuses by itself, in one line, when another one is at work."""
    running = stores_in(home.running()["stores"])
    kind = databases.kind_of(running)
    if store not in (None, kind):
        raise Refused(f"the running demo is of --store {kind}, not {store}")
    home = Home(home.folder, kind)
    password = home.secrets().agents_password
    urls = {name: databases.agents_address(address, password) for name, address in running.items()}
    part = the_agent(wanted, {name: records.agents(url) for name, url in urls.items()})
    line = resuming(part, world=home.world)
    os.chdir(ROOT)
    os.execve(line[0], line, inherited() | {RECORDS_URL: urls[part.store]})  # noqa: S606 - no shell, on purpose


def the_agent(wanted: str, known: Mapping[str, Collection[str]]) -> Part:
    """The one agent of these stores that AGENT or STORE/AGENT means.

    Raises:
        Refused: there is none, or more than one.
    """
    everybody = cast.cast_of(known)
    parts = [
        part for store, agents in known.items() for agent in sorted(agents) if (part := cast.part_of(everybody, store, agent))
    ]
    meant = [part for part in parts if wanted in (part.agent, f"{part.store}/{part.agent}")]
    if not meant:
        raise Refused(f"there is no agent {wanted!r} here; there are {', '.join(cast.called(part, known) for part in parts)}")
    if len(meant) > 1:
        raise Refused(f"{wanted} is the id of {len(meant)} agents; say {' or '.join(cast.called(part, known) for part in meant)}")
    return meant[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
