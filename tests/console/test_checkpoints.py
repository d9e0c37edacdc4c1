"""Checkpoints and exports through the console's own commands: signed, taken out, compared, and refused where the history does not hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from actions.store.audit_file import verify_file
from actions.store.checkpoints import Checkpoint, read_anchors
from console.models import CheckpointDelivery, StoredCheckpoint, Sweep
from console.services import anchoring, exports
from console.services.checkpoints import ChainBroken, sign_all, sign_next
from console.stores import CONSOLE_CHAIN, console_chain, get_store
from console.tasks import sign_checkpoints
from tests.console.test_commands import Said, run
from tests.console.test_commands_audit import settle_three
from tests.recall_writer import RecallWriter, RecordWriter
from tests.resolvers.web_server import serve
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def decided(memory: RecordWriter, ana: User) -> MemoryWriter:
    assert isinstance(memory, MemoryWriter)
    settle_three(memory)
    return memory


def last_line(*arguments: str) -> tuple[int, str]:
    said = run("verify_audit", "--store", "main", *arguments)
    return said.code, said.out.splitlines()[-1]


# --- signing ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_vouches_for_what_stands_there_and_only_what_is_new_is_signed_again(decided: MemoryWriter) -> None:
    signed = sign_next(get_store("main"))

    assert signed is not None
    assert (signed.number, signed.count, signed.serial) == (3, 3, 1)
    assert sign_next(get_store("main")) is None
    assert last_line() == (0, "intact: 3 entries, anchored up to 3")
    decided.action("billing-7", 4)
    run("settle", "main", "billing-7", "4", "done", "--reason", "seen", "--user", "ana")
    assert last_line() == (0, "intact: 4 entries, anchored up to 3")
    following = sign_next(get_store("main"))
    assert following is not None
    assert (following.number, following.count, following.serial) == (4, 4, 2)


def test_what_does_not_follow_from_the_last_checkpoint_is_not_signed(decided: MemoryWriter) -> None:
    sign_next(get_store("main"))
    del decided.kept.links[2:]

    with pytest.raises(ChainBroken, match="entry"):
        sign_next(get_store("main"), even_unchanged=True)

    assert StoredCheckpoint.objects.filter(name="main").count() == 1
    assert last_line()[0] == 1
    said = run("sign_checkpoints")
    assert (said.code, said.err.startswith("not signed: main: entry")) == (1, True)


def test_a_checkpoint_of_this_database_that_was_changed_is_named(decided: MemoryWriter) -> None:
    sign_next(get_store("main"))
    row = StoredCheckpoint.objects.get(name="main")
    StoredCheckpoint.objects.update(line=row.line.replace('"number":3', '"number":2'))

    code, last = last_line()

    assert code == 1
    assert "the console's own checkpoints: checkpoint in line 1: its signature" in last


def test_one_store_that_does_not_hold_stops_no_other(decided: MemoryWriter) -> None:
    decided.kept.links[1] = decided.kept.links[1]._replace(text="x")

    signed = list(sign_all(even_unchanged=True))

    assert [type(one) for one in signed] == [ChainBroken, Checkpoint]
    assert isinstance(signed[1], Checkpoint)
    assert signed[1].store == CONSOLE_CHAIN


def test_two_who_sign_at_one_moment_make_one_checkpoint(decided: MemoryWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    from console.services import checkpoints

    real = checkpoints.sign_checkpoint

    def beaten(*args: object, **kwargs: object) -> object:
        monkeypatch.setattr(checkpoints, "sign_checkpoint", real)
        assert sign_next(get_store("main")) is not None  # the other one, a moment earlier
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints, "sign_checkpoint", beaten)

    assert sign_next(get_store("main")) is None
    assert StoredCheckpoint.objects.filter(name="main").count() == 1


# --- anchors kept elsewhere ------------------------------------------------------------------------------------------


def test_a_tail_that_was_cut_off_with_its_checkpoints_is_found_by_a_file_kept_elsewhere(
    decided: MemoryWriter, tmp_path: Path
) -> None:
    kept = tmp_path / "anchors"
    assert run("sign_checkpoints", "--output", str(kept)).code == 0
    assert last_line("--anchor", str(kept)) == (0, "intact: 3 entries, anchored up to 3")
    CheckpointDelivery.objects.all().delete()
    StoredCheckpoint.objects.all().delete()
    from console.models import Decision

    Decision.objects.all().delete()
    del decided.kept.links[2:]

    assert last_line() == (0, "intact: 2 entries, anchored up to 0")  # nobody could know
    code, last = last_line("--anchor", str(kept))

    assert code == 1
    assert last.startswith("broken: store main, entry 3: the checkpoint of")


def test_a_forged_or_replayed_anchor_is_refused_and_nothing_is_verified(decided: MemoryWriter, tmp_path: Path) -> None:
    kept = tmp_path / "anchors"
    run("sign_checkpoints", "--output", str(kept))
    decided.action("billing-7", 4)
    run("settle", "main", "billing-7", "4", "done", "--reason", "seen", "--user", "ana")
    run("sign_checkpoints", "--output", str(kept))
    lines = kept.read_text().splitlines()
    first = next(line for line in lines if json.loads(line)["store"] == "main")

    kept.write_text("\n".join([*lines, first]))
    replayed = run("verify_audit", "--anchor", str(kept))
    kept.write_text(kept.read_text().replace('"number":3', '"number":2'))
    forged = run("verify_audit", "--anchor", str(kept))

    for said, what in ((replayed, "an old checkpoint in the place of a newer one"), (forged, "was changed or forged")):
        assert said.code == 1
        assert what in said.err
        assert "nothing was verified" in said.err
        assert "intact" not in said.out


def test_checkpoints_of_a_history_that_is_gone_are_said(decided: MemoryWriter, tmp_path: Path, settings: Settings) -> None:
    kept = tmp_path / "anchors"
    run("sign_checkpoints", "--output", str(kept))
    settings.ACTION_STORES = {"other": "memory:"}

    said = run("verify_audit", "--anchor", str(kept))

    assert said.code == 1
    assert "no store has such a history" in said.err


# --- places outside --------------------------------------------------------------------------------------------------


def test_checkpoints_reach_a_file_a_mailbox_and_a_webhook_once_each(
    decided: MemoryWriter, settings: Settings, tmp_path: Path
) -> None:
    with serve(lambda asked, talk: talk.answer(200)) as server:
        kept = tmp_path / "anchors"
        settings.AUDIT_ANCHORS = (f"file:{kept}", "mailto:auditor@example.com", f"http://{server.host}/anchors")

        sign_checkpoints()
        sign_checkpoints()

        lines = kept.read_text().splitlines()
        assert len(read_anchors(lines).checkpoints) == len(lines) >= 1
        assert [message.to for message in mail.outbox] == [["auditor@example.com"]] * len(lines)
        assert mail.outbox[0].body.startswith(lines[0])
        assert [asked.method for asked in server.asked] == ["POST"] * len(lines)
        assert not CheckpointDelivery.objects.filter(sent_at__isnull=True).exists()


def test_a_place_that_fails_stops_no_other_and_gets_everything_later_in_order(
    decided: MemoryWriter, settings: Settings, tmp_path: Path
) -> None:
    gone = tmp_path / "not there" / "anchors"
    kept = tmp_path / "anchors"
    settings.AUDIT_ANCHORS = (f"file:{gone}".replace(" ", "%20"), f"file:{kept}")

    sign_checkpoints()
    waiting = CheckpointDelivery.objects.filter(sent_at__isnull=True).order_by("id")

    assert kept.exists()
    assert waiting.count() >= 1
    first = waiting[0]
    assert (first.attempts, "FileNotFoundError" in first.problem) == (1, True)
    gone.parent.mkdir()
    assert anchoring.deliver_due() == 0  # it is left alone for a while
    waiting.update(next_try_at=first.checkpoint.created_at)
    anchoring.deliver_due()
    assert gone.read_text() == kept.read_text()


def test_a_line_that_a_crash_cut_off_swallows_none(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    path.write_text("half a li")

    anchoring.append_checkpoint(path, "one")
    anchoring.append_checkpoint(path, "one")
    anchoring.append_checkpoint(path, "two")

    assert path.read_text() == "half a li\none\ntwo\n"


def settle_one_more(decided: MemoryWriter, seq: int) -> None:
    decided.action("billing-7", seq)
    assert run("settle", "main", "billing-7", str(seq), "done", "--reason", "seen", "--user", "ana").code == 0


def serials_of(text: str) -> list[int]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [one["serial"] for one in found if one["store"] == "main"]


def test_a_file_gets_what_was_signed_by_others_since_and_can_always_be_verified(decided: MemoryWriter, tmp_path: Path) -> None:
    kept = tmp_path / "anchors"
    assert run("sign_checkpoints", "--output", str(kept)).code == 0
    for seq in (4, 5):
        settle_one_more(decided, seq)
        sign_next(get_store("main"))  # as beat does, every hour
    settle_one_more(decided, 6)

    assert run("sign_checkpoints", "--output", str(kept)).code == 0

    assert serials_of(kept.read_text()) == [1, 2, 3, 4]
    assert last_line("--anchor", str(kept)) == (0, "intact: 6 entries, anchored up to 6")


def test_a_file_with_later_checkpoints_than_a_restored_console_has_is_left_as_it_is(
    decided: MemoryWriter, tmp_path: Path, settings: Settings
) -> None:
    kept = tmp_path / "anchors"
    run("sign_checkpoints", "--output", str(kept))
    settle_one_more(decided, 4)
    run("sign_checkpoints", "--output", str(kept))
    before = kept.read_text()
    StoredCheckpoint.objects.filter(name="main", serial=2).delete()  # the backup is from before it

    said = run("sign_checkpoints", "--output", str(kept))

    assert said.code == 1
    assert "was not touched: it holds checkpoint 2 of main" in said.err
    assert "restored from a backup; keep that file and name a new one" in said.err
    assert kept.read_text() == before
    settings.AUDIT_ANCHORS = (f"file:{kept}",)
    settle_one_more(decided, 5)
    StoredCheckpoint.objects.filter(name="main", serial=2).delete()
    sign_checkpoints()
    assert "it holds checkpoint 2 of main" in CheckpointDelivery.objects.get(checkpoint__name="main").problem
    assert kept.read_text() == before


def test_a_place_that_is_named_again_gets_what_was_signed_meanwhile(
    decided: MemoryWriter, settings: Settings, tmp_path: Path
) -> None:
    kept, mailbox = tmp_path / "anchors", "mailto:auditor@example.com"
    for seq, places in ((4, (mailbox,)), (5, (f"file:{kept}",)), (6, (f"file:{kept}",)), (7, (mailbox, f"file:{kept}"))):
        settings.AUDIT_ANCHORS = places
        settle_one_more(decided, seq)
        sign_next(get_store("main"))
        anchoring.deliver_due()

    assert serials_of("\n".join(message.body.splitlines()[0] for message in mail.outbox)) == [1, 2, 3, 4]
    assert serials_of(kept.read_text()) == [2, 3, 4]  # from when it was first named
    assert read_anchors(kept.read_text().splitlines())


def test_what_did_not_arrive_is_sent_again_before_the_hour_is_over_and_nothing_is_signed_for_it(
    decided: MemoryWriter, settings: Settings, tmp_path: Path
) -> None:
    gone = tmp_path / "not-there" / "anchors"
    settings.AUDIT_ANCHORS = (f"file:{gone}",)
    sign_checkpoints()
    settle_one_more(decided, 4)
    gone.parent.mkdir()
    CheckpointDelivery.objects.update(next_try_at=timezone.now())

    sign_checkpoints()

    assert serials_of(gone.read_text()) == [1]
    assert not CheckpointDelivery.objects.filter(sent_at__isnull=True).exists()
    assert StoredCheckpoint.objects.filter(name="main").count() == 1
    Sweep.objects.filter(name="checkpoints").update(ran_at=timezone.now() - timedelta(hours=1))
    sign_checkpoints()
    assert serials_of(gone.read_text()) == [1, 2]


# --- exports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_an_export_is_verified_offline_and_a_changed_one_is_not(decided: MemoryWriter, tmp_path: Path, format_: str) -> None:
    path, kept = tmp_path / f"history.{format_}", tmp_path / "anchors"
    run("sign_checkpoints", "--output", str(kept))

    said = run("export_audit", "--format", format_, "--output", str(path), "--store", "main")

    assert said.out.splitlines()[-1] == f"exported 3 entries to {path}"
    command = [sys.executable, "-m", "actions.store.audit", "verify", str(path), "--anchor", str(kept)]
    good = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "intact: 3 entries, anchored up to 3")
    path.write_bytes(path.read_bytes().replace(b"reason 2", b"reason X"))
    bad = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert bad.returncode == 1
    assert "entry 2" in bad.stdout.splitlines()[-1]


def test_an_export_holds_exactly_what_is_filtered_and_says_what_that_was(decided: MemoryWriter, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"

    run("export_audit", "--format", "jsonl", "--output", str(path), "--store", "main", "--text", "Reason 2", "--actor", "ana")

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    manifest = json.loads((tmp_path / "history.jsonl.manifest.json").read_text())
    assert [(row["seq"], row["reason"]) for row in rows] == [(2, "reason 2")]
    assert manifest["filter"] == {"store": "main", "text": "Reason 2", "actor": "ana"}
    assert manifest["rows"] == 1
    assert verify_file(path).is_intact


def test_whoever_has_no_name_on_this_machine_exports_as_a_number(
    decided: MemoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)  # as a container that runs as any number
    commands = (
        ("export_audit", "--format", "csv", "--output", str(tmp_path / "h.csv")),
        ("export_replay", "main", "billing-7", "--output", str(tmp_path / "r.jsonl")),
    )

    assert [(said.code, said.err) for said in (run(*line) for line in commands)] == [(0, ""), (0, "")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM settle_audit.entries WHERE chain = 'console'")
        said = [json.loads(text) for (text,) in cursor.fetchall()]
    assert [one["actor"] for one in said if one["kind"] == "exported"] == ["shell uid 3999999"] * 2


def test_an_export_is_itself_in_the_history(decided: MemoryWriter, tmp_path: Path) -> None:
    run("export_audit", "--format", "csv", "--output", str(tmp_path / "h.csv"), "--store", "main")

    kinds = newest_of_console()

    assert kinds == ("exported", {"store": "main"})


def newest_of_console() -> tuple[str, object]:
    """As this test's own transaction sees it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM settle_audit.entries WHERE chain = 'console' ORDER BY number DESC LIMIT 1")
        said = json.loads(cursor.fetchone()[0])
    return said["kind"], said["detail"]["filter"]


def test_what_cannot_be_written_leaves_nothing_half_done(decided: MemoryWriter, tmp_path: Path) -> None:
    path = tmp_path / "not there" / "h.csv"
    before = console_chain().read_head()

    said = run("export_audit", "--format", "csv", "--output", str(path))

    assert (said.code, "nothing was exported" in said.err) == (1, True)
    assert list(tmp_path.iterdir()) == []
    assert console_chain().read_head() == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--kind", "nonsense"), 2),
        (("--since", "yesterday"), 2),
        (("--since", "2026-11-01T00:00:00"), 2),
        (("--store", "nowhere"), 2),
        (("--user", "ben"), 1),
    ],
)
def test_a_filter_that_can_match_nothing_or_nobody_exports_nothing(
    decided: MemoryWriter, ben: User, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    path = tmp_path / "h.csv"

    assert run("export_audit", "--format", "csv", "--output", str(path), *arguments).code == code

    assert not path.exists()


# --- retention ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def owned(postgres: RecallWriter, ana: User, settings: Settings) -> RecallWriter:
    settle_three(postgres)
    settings.OWNER_URL = settings.ACTION_STORES["main"]
    return postgres


def retain(path: Path, *more: str, before: str = "2100-01-01T00:00:00Z") -> Said:
    arguments = ("main", "--before", before, "--export", str(path), "--reason", "kept for three years", *more)
    return run("retain_audit", *arguments)


def test_the_oldest_entries_are_exported_verified_and_only_then_removed(owned: RecallWriter, tmp_path: Path) -> None:
    path, kept = tmp_path / "old.jsonl", tmp_path / "anchors"
    run("sign_checkpoints", "--output", str(kept))

    asked = retain(path)
    assert asked.out == "would remove 2 entries up to number 2 of main; --yes does it\n"
    assert not path.exists()
    done = retain(path, "--yes")

    assert done.out.splitlines()[-1] == f"removed 2 entries; they stand in {path}"
    assert last_line("--anchor", str(kept)) == (0, "intact: 2 entries, anchored up to 3")
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2]
    assert verify_file(path).is_intact
    newest = get_store("main").list_entries(limit=1)[0]
    assert (newest.kind, newest.reason, newest.detail["removed"]) == ("retained", "kept for three years", [1, 2])


def test_a_history_that_does_not_hold_loses_nothing(memory: RecordWriter, ana: User, tmp_path: Path, settings: Settings) -> None:
    assert isinstance(memory, MemoryWriter)
    settle_three(memory)
    memory.kept.links[1] = memory.kept.links[1]._replace(text=memory.kept.links[1].text.replace("ana", "eve"))
    settings.OWNER_URL = "memory:"

    said = retain(tmp_path / "old.jsonl", "--yes")

    assert (said.code, "nothing was removed" in said.err) == (1, True)
    assert [link.number for link in memory.kept.links] == [1, 2, 3]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["no owner", "not let in", "file there", "nothing older", "no zone"])
def test_a_retention_that_cannot_be_done_whole_does_nothing(
    owned: RecallWriter, tmp_path: Path, case: str, settings: Settings
) -> None:
    path = tmp_path / "old.jsonl"
    if case == "no owner":
        settings.OWNER_URL = ""
    if case == "not let in":
        settings.OWNER_URL = re.sub("//[^@]*@", "//nobody:wrong@", settings.OWNER_URL)
    if case == "file there":
        path.write_text("mine")
    before = {"nothing older": "2001-01-01T00:00:00Z", "no zone": "2100-01-01"}.get(case, "2100-01-01T00:00:00Z")

    said = retain(path, "--yes", before=before)

    assert said.code == {"nothing older": 0, "no zone": 2}.get(case, 1)
    assert [link.number for link in get_store("main").iterate_links()] == [1, 2, 3]
    assert [one.name for one in tmp_path.iterdir()] == (["old.jsonl"] if case == "file there" else [])


@pytest.mark.parametrize("there", ["history.csv", "history.csv.manifest.json"])
def test_an_export_replaces_nothing_unless_it_is_told_to(decided: MemoryWriter, tmp_path: Path, there: str) -> None:
    path, old = tmp_path / "history.csv", tmp_path / there
    old.write_text("precious")
    line = ("export_audit", "--format", "csv", "--output", str(path), "--store", "main")

    said = run(*line)

    assert (said.code, said.out) == (1, "")
    assert f"{there} is there already; --force replaces it; nothing was exported" in said.err
    assert old.read_text() == "precious"
    assert [one.name for one in tmp_path.iterdir()] == [there]
    assert run(*line, "--force").code == 0
    assert verify_file(path).verdict == "intact: 3 entries, anchored up to 0"


def test_an_export_replaces_nothing_that_came_while_it_was_written(
    decided: MemoryWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.csv"
    record = exports.Export.record

    def meanwhile(export: exports.Export) -> None:
        path.write_text("precious")
        record(export)

    monkeypatch.setattr(exports.Export, "record", meanwhile)

    said = run("export_audit", "--format", "csv", "--output", str(path), "--store", "main")

    assert said.code == 1
    assert path.read_text() == "precious"
    assert [one.name for one in tmp_path.iterdir()] == ["history.csv"]


def test_an_export_of_which_nothing_matches_says_so_and_is_one(decided: MemoryWriter, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"

    said = run("export_audit", "--format", "jsonl", "--output", str(path), "--store", "main", "--agent", "nobody")

    assert (said.code, said.err.strip()) == (0, "0 entries match")
    assert said.out.splitlines()[-1] == f"exported 0 entries to {path}"
    assert verify_file(path).is_intact


@pytest.mark.parametrize("odd", [("--store", "elsewhere"), ("--kind", "setled"), ("--since", "yesterday")])
def test_a_name_that_no_entry_can_have_is_wrong_usage(decided: MemoryWriter, tmp_path: Path, odd: tuple[str, str]) -> None:
    said = run("export_audit", "--format", "csv", "--output", str(tmp_path / "history.csv"), *odd)

    assert (said.code, said.out) == (2, "")
    assert len(said.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
