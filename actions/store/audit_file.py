"""An exported history as a file that proves itself: written as a stream, and verified offline with no database.

`python -m actions.store.audit verify FILE [--anchor FILE] [--key PUBLIC]`. Each row carries the canonical text of its entry with `prev` and
`hash`; whatever else stands in the row must say what the text says, because that is what people read.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from actions.records import ChainHead, Entry, Link
from actions.store.audit import ChainReport, ChainWalk, read_entry
from actions.store.checkpoints import MANIFEST, Anchors, BadSignature, History, proven_by, read_anchors, read_signed, sign
from actions.times import Instant, format_rfc3339

FORMATS = ("csv", "jsonl")
MAX_ROW = 8 * 2**20
"""Characters of one row; an entry is far smaller."""

_FROM_ENTRY: tuple[tuple[str, Callable[[Entry], Any]], ...] = (
    ("chain", lambda entry: entry.chain),
    ("number", lambda entry: entry.number),
    ("at", lambda entry: format_rfc3339(entry.at)),
    ("kind", lambda entry: entry.kind),
    ("actor", lambda entry: entry.actor),
    ("agent", lambda entry: entry.agent),
    ("seq", lambda entry: entry.seq),
    ("tool", lambda entry: entry.tool),
    ("outcome", lambda entry: entry.outcome),
    ("reason", lambda entry: entry.reason),
    ("decision_id", lambda entry: entry.decision_id),
    ("evidence_id", lambda entry: entry.evidence_id),
)
COLUMNS = ("store", *(name for name, _ in _FROM_ENTRY), "text", "prev", "hash")
_RISKY = ("=", "+", "-", "@", "\t", "\r")


class BadFile(ValueError):
    """The file is not an export, or not a whole one; the message names the row."""


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What has been written so far; the manifest is made of it."""

    rows: int = 0
    chains: dict[History, dict[str, Any]] = field(default_factory=dict)

    def add(self, store: str, entry: Entry) -> None:
        self.rows += 1
        chain = self.chains.setdefault((store, entry.chain), {"count": 0, "first": entry.number})
        chain["count"] += 1
        chain["last"] = entry.number


def write_rows(rows: Iterable[tuple[str, Entry]], format_: str, tally: Tally) -> Iterator[str]:
    """The file piece by piece: (store, entry) pairs in the order in which they come, each chain's by number. Nothing is kept but the tally."""
    if format_ == "csv":
        yield _csv_line(COLUMNS)
    for store, entry in rows:
        tally.add(store, entry)
        yield row_of(store, entry, format_)


def row_of(store: str, entry: Entry, format_: str) -> str:
    """One line. In CSV what a spreadsheet would take for a formula stands behind an apostrophe, and what nobody
    sees as `\\u{202E}`; read back, it is what it was."""
    said = _said(store, entry)
    if format_ == "csv":
        return _csv_line([_cell(said[name]) for name in COLUMNS])
    return json.dumps(said, ensure_ascii=True, separators=(",", ":")) + "\n"


def sign_manifest(
    *,
    file: str,
    format_: str,
    sha256: str,
    tally: Tally,
    heads: Mapping[str, ChainHead],
    filters: Mapping[str, str],
    by: str,
    at: Instant,
    seed: str,
) -> str:
    """What the file holds, signed: filter, rows, the first and last number and the head of each chain. One line of JSON.

    `heads` are the stores' heads as they were when the export began; with an empty filter every entry up to them must be in the file.
    """
    chains = [
        {
            "store": store,
            "chain": head.chain,
            "count": 0,
            **tally.chains.get((store, head.chain), {}),
            "head": {"number": head.number, "hash": head.hash},
        }
        for store, head in sorted(heads.items())
    ]
    said = {
        "settle": MANIFEST,
        "file": file,
        "format": format_,
        "sha256": sha256,
        "rows": tally.rows,
        "chains": chains,
        "filter": dict(filters),
        "by": by,
        "at": format_rfc3339(at),
    }
    return sign(said, seed) + "\n"


# --- verifying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What was found in a file: how each chain stands, and what is wrong with the file as a whole."""

    rows: int
    chains: tuple[tuple[str, ChainReport], ...]  # with the store's name
    problem: str = ""  # of the file or its manifest: the first one
    notes: tuple[str, ...] = ()  # what a reader should know: no manifest, filtered, signed with which key
    is_signed: bool = False  # a manifest stands beside it, and its signature is that of the key it names, or of one that counts

    @property
    def is_intact(self) -> bool:
        return not self.problem and all(report.is_intact for _, report in self.chains)

    @property
    def anchored(self) -> int:
        return sum(report.anchored for _, report in self.chains)

    @property
    def verdict(self) -> str:
        """The last line: `intact: N entries, anchored up to M`, or the first bad entry."""
        for store, report in self.chains:
            if fault := report.first_fault:
                return f"broken: store {store}, entry {fault.number}: {fault.says}"
        if self.problem:
            return f"broken: {self.problem}"
        return f"intact: {self.rows} entries, anchored up to {self.anchored}"


def verify_file(
    path: Path,
    *,
    anchors: Anchors | None = None,
    trusted: Collection[str] | None = None,
    told: Callable[[int], None] | None = None,
) -> FileReport:
    """Walk every row of an export. Flat memory: one row at a time, and one walk for each chain. `told` hears how many rows are done.

    The manifest beside it (`FILE.manifest.json`) is believed where its signature holds; without one, gaps are no fault.

    Raises:
        BadFile: it cannot be read as an export at all.
    """
    manifest, notes = _read_manifest(path, trusted)
    is_whole = manifest is not None and not manifest["filter"]
    said_of: dict[History, dict[str, Any]] = {(said["store"], said["chain"]): said for said in (manifest or {}).get("chains", [])}
    walks: dict[History, ChainWalk] = {}
    known = anchors or Anchors()
    problem = ""
    rows = 0
    digest = hashlib.sha256()
    is_csv = _is_csv(path)

    def walk_of(history: History) -> ChainWalk:
        if history not in walks:
            store, chain = history
            walks[history] = ChainWalk(
                chain, anchors=known.of(store, chain), removed_by=proven_by(store, trusted), has_gaps=not is_whole
            )
        return walks[history]

    for place, said in _read_rows(path, digest, is_csv=is_csv):
        rows += 1
        if told is not None and rows % 10_000 == 0:
            told(rows)
        link, wrong = _link_of(said, place)
        walk_of((said["store"], said["chain"])).step(link)
        problem = problem or wrong
    for history in said_of if is_whole else ():
        walk_of(history)
    reports = []
    for history, walk in walks.items():
        # Where the file says that it is whole, the chain must reach its head; a part of a chain may end anywhere. Without a manifest nobody
        # knows which of the two it is: an unbroken run from the first entry is taken for the whole.
        head = said_of[history]["head"] if history in said_of else None
        if is_whole and head is not None:
            # A checkpoint made after the export vouches for entries that it cannot hold.
            walk.end(ChainHead(chain=walk.chain, number=head["number"], hash=head["hash"]), up_to=head["number"])
        elif manifest is None and walk.is_unbroken:
            walk.end(None)
        reports.append((history[0], walk.report()))
    if manifest is None and not rows and known.checkpoints and not problem:
        problem = "the file holds no entry, and checkpoints vouch for some"
    if manifest is not None and not problem:
        problem = _against_manifest(manifest, said_of, rows, digest.hexdigest(), walks)
    return FileReport(rows=rows, chains=tuple(reports), problem=problem, notes=tuple(notes), is_signed=manifest is not None)


def _against_manifest(
    manifest: Mapping[str, Any],
    said_of: Mapping[History, Mapping[str, Any]],
    rows: int,
    sha256: str,
    walks: Mapping[History, ChainWalk],
) -> str:
    if unknown := walks.keys() - said_of.keys():
        return f"the manifest knows no history of store {min(unknown)[0]}, of which the file holds entries"
    if manifest["rows"] != rows:
        return f"the manifest says {manifest['rows']} rows; the file holds {rows}"
    for history, said in said_of.items():
        held = walks[history].steps if history in walks else 0
        if said["count"] != held:
            return f"the manifest says {said['count']} entries of store {history[0]}; the file holds {held}"
    if manifest["sha256"] != sha256:
        return "the file is not the one that its manifest was made for: their SHA-256 differ"
    return ""


def _read_manifest(path: Path, trusted: Collection[str] | None) -> tuple[dict[str, Any] | None, list[str]]:
    place = path.with_name(path.name + ".manifest.json")
    if not place.exists():
        return None, ["no manifest: whether entries were left out between those of the file cannot be told"]
    try:
        said: dict[str, Any] = read_signed(place.read_text("ascii").strip(), MANIFEST, trusted)
        for chain in said["chains"]:
            if [type(chain[name]) for name in ("store", "chain", "count")] != [str, str, int]:
                raise TypeError
            if [type(chain["head"][name]) for name in ("number", "hash")] != [int, str]:
                raise TypeError
        if type(said["rows"]) is not int or not isinstance(said["filter"], dict):
            raise TypeError
    except BadSignature as exc:
        raise BadFile(f"its manifest does not hold: {exc}") from exc
    except (OSError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as exc:
        raise BadFile(f"its manifest cannot be read: {type(exc).__name__}") from exc
    filters = ", ".join(f"{name} {value}" for name, value in said["filter"].items())
    notes = [f"filtered by {filters}: gaps are no fault" if filters else "unfiltered: every entry up to the head must be there"]
    return said, [*notes, f"signed at {said['at']} with the key {said['key']}"]


def _link_of(said: Mapping[str, Any], place: int) -> tuple[Link, str]:
    """The link of a row, and what in the row does not say what its text says."""
    link = Link(said["number"], said["text"], said["prev"], said["hash"])
    try:
        entry = read_entry(link)
    except ValueError:
        return link, ""  # the walk names it
    for name, read in _FROM_ENTRY:
        if said[name] != read(entry):
            return link, f"row {place}, entry {link.number}: its {name} is not what its text says"
    return link, ""


def _said(store: str, entry: Entry) -> dict[str, Any]:
    return {
        "store": store,
        **{name: read(entry) for name, read in _FROM_ENTRY},
        "text": entry.text,
        "prev": entry.prev,
        "hash": entry.hash,
    }


# --- the two formats -------------------------------------------------------------------------------------------------


def _is_csv(path: Path) -> bool:
    """By what stands in it: files are renamed."""
    try:
        with path.open("rb") as raw:
            return raw.read(1) not in (b"{", b"")
    except OSError as exc:
        raise BadFile(f"it cannot be read: {exc.strerror}") from exc


def _read_rows(path: Path, digest: Any, *, is_csv: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their place from 1. Raises BadFile naming the row that is none."""
    try:
        with path.open("rb") as raw:
            lines = _lines(raw, digest)
            yield from _read_csv(lines) if is_csv else _read_jsonl(lines)
    except UnicodeDecodeError as exc:
        raise BadFile("it is not UTF-8 text") from exc
    except OSError as exc:
        raise BadFile(f"it cannot be read: {exc.strerror}") from exc


def _lines(raw: IO[bytes], digest: Any) -> Iterator[str]:
    while line := raw.readline(MAX_ROW):
        digest.update(line)
        if len(line) == MAX_ROW:
            raise BadFile(f"a line of more than {MAX_ROW} bytes is none of ours")
        yield line.decode()


def _read_jsonl(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise BadFile(f"row {place} is not JSON") from exc
        yield place, _checked(said, place)


def _read_csv(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(MAX_ROW)
    reader = csv.reader(lines, strict=True)
    try:
        if tuple(next(reader, ())) != COLUMNS:
            raise BadFile("its first line does not name the columns of an export")
        for place, cells in enumerate(reader, start=1):
            if len(cells) != len(COLUMNS):
                raise BadFile(f"row {place} has {len(cells)} cells; an export has {len(COLUMNS)}")
            said: dict[str, Any] = {name: _uncell(cell) for name, cell in zip(COLUMNS, cells, strict=True)}
            said["number"] = int(said["number"])
            said["seq"] = int(said["seq"]) if said["seq"] else None
            yield place, _checked(said, place)
    except (csv.Error, ValueError) as exc:
        if isinstance(exc, BadFile):
            raise
        raise BadFile(f"it is not the CSV of an export: {str(exc)[:100]}") from exc


def _checked(said: object, place: int) -> dict[str, Any]:
    if not isinstance(said, dict) or said.keys() != set(COLUMNS):
        raise BadFile(f"row {place} has other parts than an exported entry")
    if type(said["number"]) is not int or not all(type(said[name]) is str for name in ("store", "chain", "text", "prev", "hash")):
        raise BadFile(f"row {place} is not an entry")
    return said


def _cell(value: object) -> str:
    """A cell that no spreadsheet takes for a formula, and in which nothing is unseen or turns the rest around. `_uncell` takes it back."""
    text = "" if value is None else str(value)
    shown = text if text.isascii() and text.isprintable() and "\\u{" not in text else _escaped(text)
    return f"'{shown}" if _takes_mark(text) else shown


def _uncell(cell: str) -> str:
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), cell)
    return text[1:] if text.startswith("'") and _takes_mark(text[1:]) else text


def _takes_mark(text: str) -> bool:
    """Also what already has such marks of its own gets one more: else it would lose its own when read back."""
    return text.lstrip("'").lstrip(" ").startswith(_RISKY)


_ESCAPE = re.compile(r"\\u\{([0-9A-F]{1,5}|10[0-9A-F]{4})\}")


class _Escapes(dict[int, str]):
    """How a character stands in a cell; found out once for each."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        is_seen = char == "\n" or (unicodedata.category(char) not in _UNSEEN and not _SELECTORS.match(char))
        self[code] = char if is_seen else f"\\u{{{code:X}}}"
        return self[code]


_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SELECTORS = re.compile("[\u034f\u115f\u1160\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_escapes = _Escapes()


def _escaped(text: str) -> str:
    """`\\u{202E}` for what nobody sees; a backslash that looks like the beginning of one is one itself."""
    return text.replace("\\u{", "\\u{5C}u{").translate(_escapes)


def _csv_line(cells: Sequence[str]) -> str:
    buffer = _Buffer()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.text


class _Buffer:
    text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


# --- from the command line -------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """`verify FILE [--anchor FILE] [--key PUBLIC]`. 0: intact. 1: the first bad entry is named, or it cannot be read. 2: wrong usage, also
    an anchor file that holds no checkpoint: nothing would be compared with it."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m actions.store.audit", description="Verify an exported history without any database."
    )
    verify = parser.add_subparsers(dest="what", required=True).add_parser(
        "verify", help="walk every row; the last line says what was found"
    )
    verify.add_argument("file", type=Path)
    verify.add_argument("--anchor", type=Path, help="checkpoints that were kept elsewhere, a line each")
    verify.add_argument("--key", action="append", help="a public key that counts; without any, the one that a line itself names")
    given = parser.parse_args(argv)
    try:
        anchors = read_anchors(given.anchor.read_text("ascii").splitlines(), given.key) if given.anchor else Anchors()
        if given.anchor and not anchors.checkpoints:
            print(
                f"--anchor: {given.anchor} holds no checkpoint; nothing was verified".encode(
                    "ascii", "backslashreplace"
                ).decode(),
                file=sys.stderr,
            )
            return 2
        report = verify_file(given.file, anchors=anchors, trusted=given.key, told=_progress)
    except (BadFile, BadSignature) as exc:
        print(f"broken: {exc}")
        return 1
    except (OSError, UnicodeDecodeError) as exc:
        print(f"cannot read: {exc}", file=sys.stderr)
        return 1
    for note in (*report.notes, *_worth(report, anchors, given.key)):
        print(note)
    for store, chain in report.chains:
        for what, fault in (("integrity", chain.broken), ("completeness", chain.missing)):
            print(f"{store}: {what}: {fault.says if fault else 'holds'}".encode("ascii", "backslashreplace").decode())
    print(report.verdict.encode("ascii", "backslashreplace").decode())
    return 0 if report.is_intact else 1


def _worth(report: FileReport, anchors: Anchors, keys: Sequence[str] | None) -> tuple[str, ...]:
    """What being intact proves of this file, and what it does not: a file that fits together may have been made up as a whole."""
    if not report.is_intact:
        return ()
    fits = "proved: its entries follow from one another as they stand"
    if not report.is_signed and not anchors.checkpoints:
        return (
            fits,
            "not proved: that the console wrote them. Nothing here is signed: anybody could have written the whole file",
        )
    signed = (
        "manifest and checkpoints"
        if report.is_signed and anchors.checkpoints
        else "manifest"
        if report.is_signed
        else "checkpoints"
    )
    if keys is None:
        return (
            f"{fits}, and its {signed} with them",
            "not proved: that the console wrote them. Anybody could have made the signing key, and the whole file with it",
            "name the console's public key with --key, as you know it from elsewhere than from this file",
        )
    return (f"{fits}, and its {signed} with them, signed with a key that you named",)


def _progress(rows: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{rows:,} rows", end="", file=sys.stderr, flush=True)
