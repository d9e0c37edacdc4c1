"""Every command as a shell sees it: what it prints, its exit code, and one line on stderr when it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, get_commands

import manage
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus
from console.access import Right, may
from console.models import Decision, Grant, Token
from console.services.policies import save_policy
from console.services.tokens import find_caller
from console.stores import get_store
from local.postgres import Postgres
from tests.console.conftest import PASSWORD, Cast, MemoryWriter
from tests.recall_writer import RecallWriter, RecordWriter
from tests.servers import POSTGRES_URL

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def run(name: str, *arguments: str) -> Said:
    """A command in this process, as `manage.py` would run it."""
    out, err = StringIO(), StringIO()
    try:
        call_command(name, *arguments, stdout=out, stderr=err)
    except CommandError as exc:
        return Said(exc.returncode, out.getvalue(), f"{err.getvalue()}{exc}")
    return Said(0, out.getvalue(), err.getvalue())


def status_of(ref: ActionRef) -> ActionStatus:
    action = get_action(get_store(ref.store), ref).action
    assert action is not None
    return action.status


# --- open_actions ----------------------------------------------------------------------------------------------------


def test_open_actions_prints_json_lines(records: RecordWriter) -> None:
    records.action("billing-7", 1, args={"to": "ann@example.com"})
    records.action("billing-7", 2, tool="create_payment", args={"amount": 120, "currency": "EUR"})
    records.action("billing-7", 3, status="done")
    said = run("open_actions", "--json")
    items = [json.loads(line) for line in said.out.splitlines()]
    assert (said.code, said.err) == (0, "")
    assert [item["seq"] for item in items] == [2, 1]
    assert items[0]["state"] == "interrupted"
    assert {
        "store",
        "agent",
        "seq",
        "tool",
        "class",
        "key",
        "status",
        "state",
        "args",
        "args_truncated",
        "digest",
        "lease",
    } <= set(items[0])


def test_open_actions_prints_a_table(records: RecordWriter) -> None:
    records.action("billing-7", 1, args={"to": "ann@example.com", "subject": "Refund"})
    records.action("billing-8", 1, body="{")
    lines = run("open_actions").out.splitlines()
    assert lines[0].split() == ["STATE", "AGE", "TOOL", "ACTION", "WHAT"]
    assert "Email to ann@example.com, 'Refund'" in lines[1]
    assert "main/billing-7/1" in lines[1]
    assert "unreadable" in lines[2]


def test_open_actions_says_when_there_are_none(records: RecordWriter) -> None:
    assert run("open_actions") == Said(0, "no open actions\n", "")
    assert run("open_actions", "--json") == Said(0, "", "")


def test_open_actions_lists_the_rest_when_a_store_is_down(records: RecordWriter, down: str) -> None:
    records.action("billing-7", 1)
    said = run("open_actions", "--json")
    assert said.code == 1
    assert len(said.out.splitlines()) == 1
    assert said.err.startswith("store down: ")
    assert "secret-pw" not in said.err
    assert "\n" not in said.err


def test_open_actions_shows_no_control_character(records: RecordWriter) -> None:
    records.action("billing-7", 1, tool="evil\x1b[2Jtool\u202e", args={"to": "a\x1b]0;x\x07"})
    assert "\x1b" not in run("open_actions").out
    assert "\u202e" not in run("open_actions").out


def test_open_actions_shows_no_secret(records: RecordWriter) -> None:
    records.action("billing-7", 1, args={"password": "hunter2-hunter2"})
    assert "hunter2" not in run("open_actions", "--json").out + run("open_actions").out


# --- settle ----------------------------------------------------------------------------------------------------------


def test_settle_writes_a_decision(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    said = run(
        "settle", "main", "billing-7", "1", "done", "--reason", "in the Sent folder", "--user", "ana", "--result", "message 1204"
    )
    assert (said.code, said.out.split()[0], said.err) == (0, "written", "")
    assert status_of(ref) is ActionStatus.DONE
    assert Decision.objects.get().username == "ana"


def test_settle_waits_while_the_agent_lives(records: RecordWriter, ana: User) -> None:
    records.lease("billing-7", state="live")
    records.action("billing-7", 1)
    said = run("settle", "main", "billing-7", "1", "failed", "--reason", "not in the ledger", "--user", "ana")
    assert (said.code, said.out.split()[0]) == (0, "waiting")


def test_settle_warns_about_idempotent_actions(records: RecordWriter, ana: User) -> None:
    records.action("billing-7", 1, cls="idempotent")
    said = run("settle", "main", "billing-7", "1", "done", "--reason", "seen", "--user", "ana")
    assert (said.code, said.out.split()[0]) == (0, "written")
    assert said.err.startswith("warning: ")


def test_settle_with_the_same_id_again_is_the_same_decision(records: RecordWriter, ana: User) -> None:
    records.action("billing-7", 1)
    arguments = ("settle", "main", "billing-7", "1", "done", "--reason", "seen", "--user", "ana", "--decision-id", "my-decision")
    assert run(*arguments).out.split()[0] == "written"
    assert run(*arguments).out.split()[0] == "written"
    assert Decision.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("main", "billing-7", "1", "failed", "--reason", "x", "--user", "ana", "--result", "sent"), 2),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "ana", "--error", "boom"), 2),
        (("main", "billing-7", "1", "done", "--reason", " ", "--user", "ana"), 2),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "nobody"), 2),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "a\x00"), 2),
        (("nowhere", "billing-7", "1", "done", "--reason", "x", "--user", "ana"), 2),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "ana", "--decision-id", "short"), 2),
        (("main", "nobody", "1", "done", "--reason", "x", "--user", "ana"), 1),
        (("main", "billing-7", "99", "done", "--reason", "x", "--user", "ana"), 1),
        (("main", "billing-7", "99999999999999999999", "done", "--reason", "x", "--user", "ana"), 1),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "ben"), 1),
        (("main", "billing-7", "1", "done", "--reason", "x", "--user", "cyd"), 1),
        (("main", "billing-7", "2", "done", "--reason", "x", "--user", "ana"), 1),
        (("main", "billing-7", "3", "done", "--reason", "x", "--user", "ana"), 1),
    ],
)
def test_settle_refuses_in_one_line(
    records: RecordWriter, ana: User, ben: User, cyd: User, arguments: tuple[str, ...], code: int
) -> None:
    ref = records.action("billing-7", 1)
    records.action("billing-7", 2, status="failed", error="x")
    records.action("billing-7", 3, cls="pure")
    said = run("settle", *arguments)
    assert (said.code, said.out) == (code, "")
    assert said.err
    assert "\n" not in said.err
    assert status_of(ref) is ActionStatus.STARTED


def test_settle_says_what_is_unknown_and_how_to_ask_again(flaky: MemoryWriter, ana: User) -> None:
    flaky.action("billing-7", 1)
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    said = run("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "ana")
    assert said.code == 1
    assert "not known" in said.err
    decision_id = said.err.rsplit("decision id ", 1)[1].rstrip(")")
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    again = run("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "ana", "--decision-id", decision_id)
    assert (again.code, again.out.split()[0]) == (0, "written")


# --- stores ----------------------------------------------------------------------------------------------------------


def test_prepare_store_can_be_run_again(records: RecordWriter) -> None:
    first, second = run("prepare_store", "main", "--index"), run("prepare_store", "main", "--index")
    assert (first.code, second.code) == (0, 0)
    assert second.out
    assert run("prepare_store", "nowhere").code == 2


def test_prepare_store_makes_a_store_ready(flaky: MemoryWriter, ana: User) -> None:
    flaky.action("billing-7", 1)
    flaky.kept._is_prepared = False
    arguments = ("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "ana")
    refused = run(*arguments)
    assert refused.code == 1
    assert "prepare_store main" in refused.err
    run("prepare_store", "main")
    assert run(*arguments).code == 0


def test_check_stores_says_what_each_can_be_used_for(records: RecordWriter) -> None:
    said = run("check_stores")
    assert said.code == 0
    assert said.out.startswith("main: ")
    assert "can be settled" in said.out


def test_check_stores_names_the_one_that_is_down(records: RecordWriter, down: str) -> None:
    said = run("check_stores")
    assert said.code == 1
    assert "down: not reachable" in said.out
    assert "secret-pw" not in said.out + said.err


def test_a_store_that_can_only_be_read_is_no_failure(flaky: MemoryWriter) -> None:
    flaky.kept._is_prepared = False
    said = run("check_stores")
    assert said.code == 0
    assert "can only be read: not prepared" in said.out


# --- the history -----------------------------------------------------------------------------------------------------


@pytest.fixture
def three_entries(records: RecordWriter, ana: User) -> RecordWriter:
    for seq in (1, 2, 3):
        records.action("billing-7", seq)
        run("settle", "main", "billing-7", str(seq), "done", "--reason", f"reason {seq}", "--user", "ana")
    return records


def test_an_untouched_history_is_intact(three_entries: RecordWriter) -> None:
    said = run("verify_audit")
    assert (said.code, said.out.splitlines()[-1], said.err) == (0, "intact: 3 entries, anchored up to 0", "")
    assert run("verify_audit", "--store", "main").out.splitlines()[-1] == "intact: 3 entries, anchored up to 0"


def test_an_empty_history_is_intact(records: RecordWriter) -> None:
    assert run("verify_audit").out.splitlines()[-1] == "intact: 0 entries, anchored up to 0"


def test_a_changed_entry_is_found(memory: RecordWriter, ana: User) -> None:
    assert isinstance(memory, MemoryWriter)
    for seq in (1, 2, 3):
        memory.action("billing-7", seq)
        run("settle", "main", "billing-7", str(seq), "done", "--reason", f"reason {seq}", "--user", "ana")
    links = memory.kept.links
    links[1] = links[1]._replace(text=links[1].text.replace("reason 2", "reason 9"))
    said = run("verify_audit")
    assert said.code == 1
    assert said.out.splitlines()[-1].startswith("broken: store main, entry 2: ")
    assert "\n" not in said.err


def test_an_entry_beyond_the_head_is_found(memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(memory, MemoryWriter)
    memory.action("billing-7", 1)
    run("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "ana")
    head = memory.kept.read_head()
    memory.kept.links.append(memory.kept.links[0]._replace(number=2))
    monkeypatch.setattr(memory.kept, "read_head", lambda: head)
    assert "entry 2" in run("verify_audit").out.splitlines()[-1]


def test_verify_audit_needs_what_it_is_given(three_entries: RecordWriter, tmp_path: Path) -> None:
    assert run("verify_audit", "--store", "nowhere").code == 2
    assert run("verify_audit", "--anchor", str(tmp_path / "missing")).code == 1


def test_a_history_that_cannot_be_read_is_not_called_intact(records: RecordWriter, down: str) -> None:
    said = run("verify_audit")
    assert said.code == 1
    assert not said.out.splitlines()[-1].startswith("intact")


# --- people and tokens -----------------------------------------------------------------------------------------------


def test_create_token_prints_the_token_alone(memory: RecordWriter, ana: User) -> None:
    (token,) = run("create_token", "ana").out.splitlines()
    caller = find_caller(token)
    assert caller is not None
    assert caller.user == ana
    (token,) = run("create_token", "--agent", "main", "billing-7").out.splitlines()
    caller = find_caller(token)
    assert caller is not None
    assert (caller.user, caller.store, caller.agent) == (None, "main", "billing-7")


@pytest.mark.parametrize(
    "arguments", [(), ("nobody",), ("ana", "--agent", "main", "a"), ("--agent", "nowhere", "a"), ("--agent", "main", "")]
)
def test_create_token_refuses_what_it_does_not_know(memory: RecordWriter, ana: User, arguments: tuple[str, ...]) -> None:
    said = run("create_token", *arguments)
    assert (said.code, said.out) == (2, "")
    assert not Token.objects.exists()


def test_set_role_gives_and_takes_a_role(memory: RecordWriter, cyd: User) -> None:
    assert run("set_role", "cyd", "operator", "--store", "main", "--tool", "send_email").code == 0
    assert run("set_role", "cyd", "operator", "--store", "main", "--tool", "send_email").out.startswith("cyd is already operator")
    assert Grant.objects.count() == 1
    assert may(cyd, Right.SETTLE, store="main", tool="send_email")
    assert run("set_role", "cyd", "operator").code == 0
    assert run("set_role", "cyd", "operator", "--remove").code == 0
    assert run("set_role", "cyd", "operator", "--remove").code == 1


@pytest.mark.parametrize(
    "arguments", [("nobody", "viewer"), ("cyd", "viewer", "--store", "nowhere"), ("cyd", "viewer", "--tool", "a\x00")]
)
def test_set_role_refuses_what_it_does_not_know(memory: RecordWriter, cyd: User, arguments: tuple[str, ...]) -> None:
    assert run("set_role", *arguments).code == 2
    assert not Grant.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("set_role", "cyd", "operator", "--tool", ""),
        ("set_role", "cyd", "operator", "--store", ""),
        ("set_role", "cyd", "operator", "--store=", "--tool=send_email"),
        ("set_role", "cyd", "operator", "--remove", "--store", ""),
        ("set_role", "", "operator"),
        ("create_token", ""),
        ("create_token", "--agent", "main", ""),
        ("create_token", "--agent", "", "billing-7"),
        ("create_token", "", "--agent", "main", "billing-7"),
        ("revoke_token", ""),
        ("revoke_token", "--user", ""),
        ("revoke_token", "--agent", "main", ""),
        ("verify_audit", "--store", ""),
        ("verify_audit", "--store="),
        ("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", ""),
        ("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "cyd", "--decision-id", ""),
        ("prepare_store", ""),
        ("create_user", ""),
    ],
    ids=" ".join,
)
def test_what_is_given_empty_never_means_every(memory: RecordWriter, cyd: User, arguments: tuple[str, ...]) -> None:
    said = run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert "given empty" in said.err
    assert not Grant.objects.exists()
    assert not Token.objects.exists()


def test_an_empty_result_is_no_result(memory: RecordWriter, ana: User) -> None:
    memory.action("billing-7", 1)
    settle = ("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user", "ana", "--result", "")
    assert run(*settle).code == 0


@pytest.mark.parametrize("place", range(1, 5))
def test_text_that_is_not_utf_8_is_refused_by_every_command(memory: RecordWriter, ana: User, place: int) -> None:
    arguments = ["set_role", "ana", "operator", "--tool", "x"]
    arguments[place] = "--tool=\udcff" if place == 3 else "\udcff"
    assert run(*arguments) == Said(2, "", "an argument is not UTF-8")


def test_an_unforeseen_error_is_one_line_without_its_text(memory: RecordWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret-argument")

    monkeypatch.setattr("console.management.commands.open_actions.list_actions", broken)
    said = run("open_actions")
    assert (said.code, said.out, "secret-argument" in said.err, "\n" in said.err) == (1, "", False, False)
    assert "RuntimeError" in said.err
    with pytest.raises(RuntimeError):
        run("open_actions", "--traceback")


def test_settle_says_that_somebody_has_no_role_there(records: RecordWriter, cyd: User, person: Cast) -> None:
    records.action("billing-7", 1)
    person("eve", ("operator", "elsewhere", ""))
    arguments = ("settle", "main", "billing-7", "1", "done", "--reason", "x", "--user")
    assert run(*arguments, "cyd").err == "user cyd has no role here; set_role cyd operator gives one"
    assert run(*arguments, "eve").err == "user eve has no role in store main; their roles are limited to others"


def test_a_token_is_revoked(memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (run("create_token", "ana").out.strip() for _ in range(2))
    assert run("revoke_token", first) == Said(0, "revoked 1 token\n", "")
    assert (find_caller(first), find_caller(second) is None) == (None, False)
    assert run("revoke_token", first).code == 1
    monkeypatch.setattr("sys.stdin", StringIO(f"{second}\n"))
    assert run("revoke_token", "-").code == 0
    assert find_caller(second) is None


def test_every_token_of_a_user_or_an_agent_is_revoked(memory: RecordWriter, ana: User, ben: User) -> None:
    tokens = [run("create_token", "ana").out.strip() for _ in range(2)]
    others = [run("create_token", "ben").out.strip(), run("create_token", "--agent", "main", "billing-8").out.strip()]
    agents = [run("create_token", "--agent", "main", "billing-7").out.strip() for _ in range(2)]
    User.objects.filter(username="ana").update(is_active=False)

    assert run("revoke_token", "--user", "ana") == Said(0, "revoked 2 tokens\n", "")
    assert run("revoke_token", "--agent", "main", "billing-7") == Said(0, "revoked 2 tokens\n", "")

    assert [find_caller(token) for token in tokens + agents] == [None] * 4
    assert all(find_caller(token) for token in others)
    assert run("revoke_token", "--user", "ana").code == 1
    assert run("revoke_token", "--agent", "gone", "billing-7").code == 1


@pytest.mark.parametrize(
    "arguments", [(), ("--user", "nobody"), ("t", "--user", "ana"), ("--user", "ana", "--agent", "main", "a")]
)
def test_revoke_token_takes_exactly_one_of_three(memory: RecordWriter, ana: User, arguments: tuple[str, ...]) -> None:
    run("create_token", "ana")
    assert run("revoke_token", *arguments).code == 2
    assert Token.objects.count() == 1


@pytest.mark.parametrize("name", ["ana", "ANA", "Ana", "ａna"])
def test_names_that_differ_only_in_case_are_one(ana: User, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(f"{PASSWORD}\n"))
    assert run("create_user", name).code == 1
    assert User.objects.count() == 1


@pytest.mark.parametrize("password", ["correct horse\udcff battery", "correct horse\x00 battery"])
def test_a_password_that_no_keyboard_makes_is_refused(db: None, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(f"{password}\n"))
    assert run("create_user", "eve").code == 2
    assert not User.objects.exists()


def test_create_user_reads_the_password_from_stdin(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*arguments: str, password: str = PASSWORD) -> int:
        monkeypatch.setattr("sys.stdin", StringIO(f"{password}\n"))
        return run("create_user", *arguments).code

    assert create("eve", "--superuser") == 0
    assert create("eve") == 1
    assert create("e v e") == 2
    assert create("eve2", password="") == 2
    assert create("eve2", password="short") == 2
    user = User.objects.get()
    assert user.is_superuser
    assert user.check_password(PASSWORD)


def test_every_command_says_what_it_is_for() -> None:
    folder = ROOT / "console" / "management" / "commands"
    for file in sorted(folder.glob("[a-z]*.py")):
        out = StringIO()
        with pytest.raises(SystemExit):
            call_command(file.stem, "--help", stdout=out)


# --- as a shell sees them --------------------------------------------------------------------------------------------

Shell = Callable[..., Said]
Terminal = Callable[..., tuple[subprocess.Popen[bytes], int]]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A command on a terminal of its own, once it asks something there: its process, and our end of the terminal."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
            ours, theirs = pty.openpty()
            stack.callback(os.close, ours)
            process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            os.close(theirs)
            assert process.stderr is not None
            asked = b""
            while not asked.endswith(b": "):
                more = os.read(process.stderr.fileno(), 1)
                assert more, asked
                asked += more
            return process, ours

        yield start


@pytest.fixture
def shell(transactional_db: None, postgres: RecallWriter) -> Shell:
    """manage.py in a process of its own, with this test's database and store."""
    database = django_settings.DATABASES["default"]
    url = os.environ[POSTGRES_URL].rsplit("/", 1)[0] + f"/{database['NAME']}"
    stores = " ".join(f"{name}={address}" for name, address in django_settings.ACTION_STORES.items())
    environment = {**os.environ, "DATABASE_URL": url, "ACTION_STORES": stores, "CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}

    def call(*arguments: str, **changes: str) -> Said:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return call


def test_a_shell_sees_states_codes_and_single_lines(shell: Shell, postgres: RecallWriter, ana: User) -> None:
    postgres.action("billing-7", 1)
    settle = ("settle", "main", "billing-7", "1", "done", "--reason", "seen", "--user")

    listed = shell("open_actions", "--json")
    assert (listed.code, len(listed.out.splitlines()), listed.err) == (0, 1, "")
    unknown = shell(*settle, "nobody")
    assert (unknown.code, unknown.out, unknown.err) == (2, "", "there is no user 'nobody'\n")
    written = shell(*settle, "ana")  # without a broker
    assert (written.code, written.out.split()[0], written.err) == (0, "written", "")
    again = shell(*settle, "ana")
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("closed: it already ended done, by operator ana: seen")
    assert len(again.err.splitlines()) == 1
    assert shell("verify_audit").out.splitlines()[-1] == "intact: 1 entries, anchored up to 0"


def test_a_shell_sees_wrong_usage_in_one_line(shell: Shell) -> None:
    for arguments in (
        ("settle",),
        ("settle", "main", "a", "one", "done", "--reason", "x", "--user", "u"),
        ("open_actions", "--nope"),
        ("set_role", "ana", "king"),
    ):
        said = shell(*arguments)
        assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)


def test_a_shell_sees_bytes_that_are_no_text_and_unknown_commands_in_one_line(shell: Shell) -> None:
    bad = b"\xff".decode("utf-8", "surrogateescape")
    for arguments in (
        ("create_token", bad),
        ("set_role", "ana", "viewer", "--tool", bad),
        ("migrate", bad),
        (bad,),
        ("nonsense",),
    ):
        for database in ({}, {"DATABASE_URL": ""}):
            said = shell(*arguments, **database)
            assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1), said
    with_bad_password = subprocess.run(
        [sys.executable, "manage.py", "create_user", "eve"],
        cwd=ROOT,
        input=b"a long \xff password\n",
        capture_output=True,
        timeout=60,
    )
    assert with_bad_password.returncode == 2
    assert with_bad_password.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [(("create_user", "eve"), 2), (("revoke_token", "-"), 1)],  # too short a password; no such token
)
def test_a_secret_typed_on_a_terminal_is_asked_for_and_not_shown(command: tuple[str, ...], code: int, terminal: Terminal) -> None:
    process, ours = terminal(*command)
    os.write(ours, b"sesame\n")
    _, err = process.communicate(timeout=60)

    assert process.returncode == code
    assert err.startswith(b"\n")  # what follows the question, which nobody's return key ended on the screen
    os.set_blocking(ours, False)
    with contextlib.suppress(OSError):  # nothing stands on it, and nobody is at its other end
        assert b"sesame" not in os.read(ours, 10_000)
    assert b"sesame" not in err


def test_ctrl_c_ends_a_command_without_a_trace() -> None:
    """Where a secret is asked for. Raised there, as Python does: when a signal reaches a process that is about to wait is the kernel's matter."""
    program = (
        "import getpass, runpy, sys\n"
        "def pressed(*args, **kwargs): raise KeyboardInterrupt\n"
        "getpass.getpass = pressed\n"
        "sys.argv = ['manage.py', 'create_user', 'eve']\n"
        "runpy.run_path('manage.py', run_name='__main__')\n"
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdin=theirs, capture_output=True, timeout=60, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_shell_sees_the_failure_of_djangos_own_commands_in_one_line(shell: Shell) -> None:
    away = "postgres://nobody:secret-pw@127.0.0.1:1/nothing?connect_timeout=1"
    said = shell("migrate", DATABASE_URL=away)
    assert (said.code, len(said.err.splitlines())) == (1, 1), said.err
    assert "secret-pw" not in said.err
    assert "Traceback" in shell("migrate", "--traceback", DATABASE_URL=away).err


def test_every_installed_command_is_known_without_settings() -> None:
    assert set(get_commands()) <= set(manage.commands())


def test_a_shell_sees_a_missing_database_in_one_line(shell: Shell) -> None:
    said = shell("create_token", "ana", DATABASE_URL="postgres://nobody:secret-pw@127.0.0.1:1/nothing")
    assert (said.code, said.out, len(said.err.splitlines())) == (1, "", 1)
    assert "secret-pw" not in said.err


def test_a_reader_that_leaves_early_is_no_failure(postgres: RecallWriter, pg_server: Postgres) -> None:
    for seq in range(1, 200):
        postgres.action("billing-7", seq, args={"text": "x" * 3000})
    stores = f"main={django_settings.ACTION_STORES['main']}"
    # The policies say what is hidden, so it reads the console's database too.
    database = f"{os.environ['DATABASE_URL'].rsplit('/', 1)[0]}/{django_settings.DATABASES['default']['NAME']}"
    with subprocess.Popen(
        [sys.executable, "manage.py", "open_actions", "--json"],
        cwd=ROOT,
        env={**os.environ, "ACTION_STORES": stores, "DATABASE_URL": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["agent"] == "billing-7"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


# --- approve ---------------------------------------------------------------------------------------------------------


def test_settle_proposes_and_approve_is_somebody_elses(memory: MemoryWriter, ana: User, amy: User, person: Cast) -> None:
    save_policy("create_payment", {"second_person_when": "true"}, seen_version=0, by=amy)
    person("cleo", "approver")
    refs = [memory.action("m-1", seq, tool="create_payment") for seq in (1, 2)]
    settled = [run("settle", "main", "m-1", str(ref.seq), "done", "--reason", "seen", "--user", "ana") for ref in refs]

    refused = [run("approve", "main", "m-1", "1", "--user", name) for name in ("ana", "amy")]
    nothing = run("approve", "main", "m-1", "1", "--user", "cleo", "--turn-down")
    assert [status_of(ref) for ref in refs] == [ActionStatus.STARTED] * 2
    approved = run("approve", "main", "m-1", "1", "--user", "cleo")
    down = run("approve", "main", "m-1", "2", "--user", "cleo", "--turn-down", "--reason", "another one")

    assert [said.out.split()[0] for said in settled] == ["proposed", "proposed"]
    assert [said.code for said in (*refused, nothing, approved, down)] == [1, 1, 2, 0, 0]
    assert (approved.out.split()[0], down.out.split()[0]) == ("written", "refused")
    assert [status_of(ref) for ref in refs] == [ActionStatus.DONE, ActionStatus.STARTED]
    assert "no decision is proposed" in run("approve", "main", "m-1", "2", "--user", "cleo").err
