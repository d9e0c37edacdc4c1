"""An exported file verified with nothing but itself, its manifest and checkpoints: each attack is found and the first bad entry named."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actions.records import ChainHead, Entry, NewEntry
from actions.store import audit_file
from actions.store.audit import GENESIS, seal
from actions.store.audit_file import COLUMNS, FORMATS, BadFile, Tally, main, sign_manifest, verify_file, write_rows
from actions.store.checkpoints import Anchors, Checkpoint, public_key, read_anchors, sign_checkpoint, sign_tombstone
from tests.unit.strategies import wild_text
from tests.unit.test_checkpoints import CHAIN, OTHER, SEED

HOSTILE = '=1+1,"quoted"\nnext\x00\ud800 é'


def make_chain(count: int, chain: str = CHAIN) -> list[Entry]:
    entries, head = [], ChainHead(chain=chain, number=0, hash=GENESIS)
    for number in range(1, count + 1):
        new = NewEntry(
            kind="settled", actor="operator ana", agent="m-1", seq=number, tool="send_email", outcome="done", reason=HOSTILE
        )
        entry = seal(new, head, number)
        entries.append(entry)
        head = ChainHead(chain=chain, number=entry.number, hash=entry.hash)
    return entries


def head_of(entries: list[Entry]) -> ChainHead:
    return ChainHead(chain=entries[-1].chain, number=entries[-1].number, hash=entries[-1].hash)


def checkpoints_at(entries: list[Entry], *numbers: int) -> Anchors:
    made: list[Checkpoint] = []
    for number in numbers:
        head = head_of(entries[:number])
        made.append(sign_checkpoint("main", head, count=number, at=number, previous=made[-1] if made else None, seed=SEED))
    return read_anchors([checkpoint.line for checkpoint in made])


@dataclass
class Export:
    path: Path
    entries: list[Entry]

    @property
    def manifest(self) -> Path:
        return self.path.with_name(self.path.name + ".manifest.json")

    def rows(self) -> list[dict[str, object]]:
        text = self.path.read_bytes().decode()
        if self.path.suffix == ".csv":
            return [dict(zip(COLUMNS, cells, strict=True)) for cells in list(csv.reader(io.StringIO(text, newline="")))[1:]]
        return [json.loads(line) for line in text.splitlines()]

    def write(self, rows: list[dict[str, object]]) -> None:
        if self.path.suffix == ".csv":
            text = io.StringIO(newline="")
            csv.writer(text).writerows([COLUMNS, *([row[name] for name in COLUMNS] for row in rows)])
            self.path.write_bytes(text.getvalue().encode())
        else:
            self.path.write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())


def export(
    folder: Path,
    entries: list[Entry],
    format_: str = "jsonl",
    *,
    only: Callable[[Entry], bool] = lambda entry: True,
) -> Export:
    path = folder / f"history.{format_}"
    tally = Tally()
    shown = [entry for entry in entries if only(entry)]
    path.write_bytes("".join(write_rows((("main", entry) for entry in shown), format_, tally)).encode())
    manifest = sign_manifest(
        file=path.name,
        format_=format_,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        tally=tally,
        heads={"main": head_of(entries)},
        filters={} if len(shown) == len(entries) else {"seq": "odd"},
        by="operator eve",
        at=99,
        seed=SEED,
    )
    made = Export(path, entries)
    made.manifest.write_text(manifest)
    return made


@pytest.mark.parametrize("format_", FORMATS)
def test_an_untouched_file_is_intact_with_and_without_its_manifest(tmp_path: Path, format_: str) -> None:
    made = export(tmp_path, make_chain(5), format_)
    anchors = checkpoints_at(made.entries, 2, 4)

    with_it = verify_file(made.path, anchors=anchors)
    made.manifest.unlink()
    without = verify_file(made.path, anchors=anchors)

    assert with_it.verdict == without.verdict == "intact: 5 entries, anchored up to 4"
    assert "no manifest" in without.notes[0]
    assert "unfiltered" in with_it.notes[0]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_filtered_file_is_intact_though_it_has_gaps(tmp_path: Path, format_: str) -> None:
    made = export(tmp_path, make_chain(6), format_, only=lambda entry: entry.number % 2 == 1)

    assert verify_file(made.path, anchors=checkpoints_at(made.entries, 3, 6)).verdict == "intact: 3 entries, anchored up to 3"
    made.manifest.unlink()
    assert verify_file(made.path).verdict == "intact: 3 entries, anchored up to 0"


def test_what_a_spreadsheet_would_take_for_a_formula_stands_behind_an_apostrophe(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(1), "csv")

    (row,) = made.rows()

    assert str(row["reason"]).startswith("'=1+1")
    assert verify_file(made.path).is_intact


def test_a_file_of_several_chains_may_hold_them_one_after_the_other_or_mixed(tmp_path: Path) -> None:
    here, there = make_chain(3), make_chain(2, "console")
    made = export(tmp_path, here)
    made.manifest.unlink()
    mixed = [here[0], there[0], here[1], there[1], here[2]]
    made.path.write_text("".join(write_rows((("main", entry) for entry in mixed), "jsonl", Tally())))

    report = verify_file(made.path)

    assert report.verdict == "intact: 5 entries, anchored up to 0"
    assert {chain.chain: chain.entries for _, chain in report.chains} == {CHAIN: 3, "console": 2}


def edit(name: str, value: object) -> Callable[[list[dict[str, object]]], None]:
    def change(rows: list[dict[str, object]]) -> None:
        rows[2][name] = value

    return change


def edit_text(rows: list[dict[str, object]]) -> None:
    rows[2]["text"] = str(rows[2]["text"]).replace("operator ana", "operator bob")
    rows[2]["actor"] = "operator bob"


def rehash(rows: list[dict[str, object]]) -> None:
    from actions.store.audit import link_hash

    edit_text(rows)
    rows[2]["hash"] = link_hash(str(rows[2]["prev"]), str(rows[2]["text"]))


def rehash_all(rows: list[dict[str, object]]) -> None:
    from actions.store.audit import link_hash

    edit_text(rows)
    for before, row in zip([None, *rows], rows, strict=False):
        row["prev"] = before["hash"] if before else GENESIS
        row["hash"] = link_hash(str(row["prev"]), str(row["text"]))


ATTACKS: dict[str, tuple[Callable[[list[dict[str, object]]], None], bool, str]] = {
    # what is done; whether it is found without the manifest and without checkpoints; what the last line says
    "a text edited": (edit_text, True, "entry 3: entry 3 was changed"),
    "a text edited and hashed anew": (rehash, True, "entry 4: entry 4 does not follow"),
    "everything hashed anew": (rehash_all, False, "entry 5"),
    "only what people read edited": (edit("actor", "operator bob"), True, "row 3, entry 3: its actor"),
    "only the outcome edited": (edit("outcome", "failed"), True, "row 3, entry 3: its outcome"),
    "a row deleted": (lambda rows: rows.__delitem__(2), False, "entry 3: entry 3 is missing"),
    "the first row deleted": (lambda rows: rows.__delitem__(0), False, "entry 1: entry 1 is missing"),
    "the tail cut off": (lambda rows: rows.__delitem__(slice(3, None)), False, "entry 4"),
    "rows swapped": (lambda rows: rows.insert(1, rows.pop(2)), True, "entry 2"),
    "a row twice": (lambda rows: rows.insert(3, dict(rows[2])), True, "entry 3: number 3 stands twice"),
    "a row put before the first": (lambda rows: rows.insert(0, {**rows[0], "number": 0}), True, "entry 0"),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_on_a_whole_file_is_found_and_named(tmp_path: Path, attack: str, format_: str) -> None:
    made = export(tmp_path, make_chain(5), format_)
    anchors = checkpoints_at(made.entries, 5)
    change, found_alone, says = ATTACKS[attack]
    rows = made.rows()
    change(rows)
    made.write(rows)

    assert says in verify_file(made.path, anchors=anchors).verdict
    made.manifest.unlink()
    alone = verify_file(made.path)
    assert alone.is_intact is not found_alone


def test_a_cut_tail_is_found_by_a_checkpoint_alone(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(5))
    made.write(made.rows()[:3])
    made.manifest.unlink()

    assert "entry 4: the checkpoint of" in verify_file(made.path, anchors=checkpoints_at(made.entries, 5)).verdict


def test_an_emptied_file_is_found_by_its_manifest_or_by_a_checkpoint(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(5))
    made.path.write_bytes(b"")

    assert not verify_file(made.path).is_intact
    made.manifest.unlink()
    assert not verify_file(made.path, anchors=checkpoints_at(made.entries, 5)).is_intact


def test_a_manifest_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(5))
    made.manifest.write_text(made.manifest.read_text().replace('"filter":{}', '"filter":{"a":"b"}'))

    with pytest.raises(BadFile, match="changed or forged"):
        verify_file(made.path)


def test_a_file_that_was_formatted_anew_is_not_the_one_of_its_manifest(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(2))
    made.write(made.rows())

    assert "SHA-256 differ" in verify_file(made.path).verdict


def retained(entries: list[Entry], up_to: int, seed: str = SEED, store: str = "main") -> list[Entry]:
    """What is left after a retention: the rest, and the entry that says so."""
    tombstone = sign_tombstone(store, head_of(entries[:up_to]), count=up_to, at=7, seed=seed)
    new = NewEntry(kind="retained", actor="shell root", detail={"tombstone": tombstone.line})
    return [*entries[up_to:], seal(new, head_of(entries), 8)]


def test_what_a_retention_removed_is_not_missing(tmp_path: Path) -> None:
    entries = make_chain(6)

    made = export(tmp_path, retained(entries, 3))
    report = verify_file(made.path, anchors=checkpoints_at(entries, 2, 3, 6))

    assert report.verdict == "intact: 4 entries, anchored up to 6"
    assert report.chains[0][1].removed == 3


FALSE_RETENTIONS: dict[str, Callable[[list[Entry]], list[Entry]]] = {
    "more removed than was signed": lambda entries: retained(entries, 3)[1:],
    "nothing signed": lambda entries: retained(entries, 3)[:-1],
    "signed for another store": lambda entries: retained(entries, 3, store="other"),
    "signed with another key": lambda entries: retained(entries, 3, seed=OTHER),
}


@pytest.mark.parametrize("case", FALSE_RETENTIONS)
def test_first_entries_that_no_tombstone_stands_for_are_missing(tmp_path: Path, case: str) -> None:
    made = export(tmp_path, FALSE_RETENTIONS[case](make_chain(6)))

    report = verify_file(made.path, trusted=[public_key(SEED)])

    assert report.chains[0][1].first_bad == 1
    assert "no signed tombstone stands for what was before it" in report.verdict


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"{}\n",
        b'{"chain": 1}\n',
        b"[" * 9_000,
        b"{" * 9_000,
        b"\xff\xfe",
        b"store,chain\r\n",
        b'{"a":' + b"1" * 5_000 + b"}",
    ],
)
def test_what_is_no_export_is_said_in_one_line(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    assert main(["verify", str(path)]) == 1

    assert capsys.readouterr().out.startswith("broken: ")
    assert capsys.readouterr().err == ""


def test_the_command_works_with_no_database_and_no_django(tmp_path: Path) -> None:
    made = export(tmp_path, make_chain(4), "csv")
    anchor = tmp_path / "anchors"
    anchor.write_text("\n".join(c.line for c in checkpoints_at(made.entries, 3).checkpoints["main", CHAIN]))
    command = [sys.executable, "-m", "actions.store.audit", "verify", str(made.path), "--anchor", str(anchor)]

    good = subprocess.run(command, capture_output=True, text=True, env={}, timeout=60)
    rows = made.rows()
    rows[1]["outcome"] = "failed"
    made.write(rows)
    bad = subprocess.run(command, capture_output=True, text=True, env={}, timeout=60)

    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "intact: 4 entries, anchored up to 3")
    assert bad.returncode == 1
    assert "entry 2" in bad.stdout.splitlines()[-1]
    assert (good.stderr, bad.stderr) == ("", "")


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("key", [None, "ours", "another"])
def test_what_is_proved_and_what_is_not_is_said_before_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_signed: bool, key: str | None
) -> None:
    made = export(tmp_path, make_chain(2))
    if not is_signed:
        made.manifest.unlink()
    keys = {None: [], "ours": ["--key", public_key(SEED)], "another": ["--key", public_key(OTHER)]}[key]

    code = main(["verify", str(made.path), *keys])

    said = capsys.readouterr().out
    assert code == (1 if is_signed and key == "another" else 0)
    assert ("Nothing here is signed: anybody could have written the whole file" in said) is not is_signed
    assert ("Anybody could have made the signing key" in said) is (is_signed and key is None)
    assert ("signed with a key that you named" in said) is (is_signed and key == "ours")
    assert ("proved: its entries follow from one another" in said) is (code == 0)


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_an_anchor_file_without_a_checkpoint_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    made, anchor = export(tmp_path, make_chain(2)), tmp_path / "anchors"
    anchor.write_text(content)

    assert main(["verify", str(made.path), "--anchor", str(anchor)]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"--anchor: {anchor} holds no checkpoint; nothing was verified\n"


@example("'=")
@given(st.one_of(wild_text, st.from_regex(r"\A(\\u\{[0-9A-F]{1,6}\}?|'?[=+ @-]|\\|\n){0,6}\Z")))
def test_a_cell_shows_everything_reckons_with_nothing_and_is_read_back_as_it_was(text: str) -> None:
    cell = audit_file._cell(text)

    assert audit_file._uncell(cell) == text
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))
    assert all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in cell)
