"""Taking the history out: exactly what is filtered, as a stream, with a signed manifest. Entries are stored redacted, so every export verifies."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from actions.records import ChainHead, Entry
from actions.store.audit import show_entry
from actions.store.audit_file import FORMATS, Tally, sign_manifest, write_rows
from actions.store.base import EntryChain
from console.history import HistoryFilter
from console.services import journal
from console.stores import list_chains

__all__ = ["FORMATS", "Export", "begin_export", "places_of", "write_export"]


@dataclass(slots=True, kw_only=True)
class Export:
    """One export from its heads, taken before the first row is read, to its manifest. `pieces` may be walked once."""

    format: str
    filters: HistoryFilter
    by: str  # as it stands in the manifest and in the entry that says so
    chains: Sequence[EntryChain]
    may_see: Callable[[str, str], bool]
    is_limited: bool = False  # to what `by` may see: then it is not whole, whatever the filter says
    heads: Mapping[str, ChainHead] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    left_out: int = 0  # of the rows that went by so far: unreadable ones, which may be of a tool that `by` may not see
    _digest: Any = field(default_factory=hashlib.sha256)

    def pieces(self) -> Iterator[bytes]:
        """The file, piece by piece: each chain from its first entry to its head as it was at the beginning. Flat memory.

        Raises:
            StoreError: a history cannot be read on; what came so far is not the whole, and there is no manifest for it.
        """
        for piece in write_rows(self._rows(), self.format, self.tally):
            data = piece.encode("utf-8")
            self._digest.update(data)
            yield data

    def manifest(self, file: str) -> str:
        """After the last piece."""
        limited = {"seen by": self.by} if self.is_limited else {}
        if self.left_out:
            limited["left out"] = self.says_left_out
        return sign_manifest(
            file=file,
            format_=self.format,
            sha256=self._digest.hexdigest(),
            tally=self.tally,
            heads=self.heads,
            filters={**self.filters.said, **limited},
            by=self.by,
            at=time.time_ns(),
            seed=settings.AUDIT_SIGNING_KEYS[0],
        )

    @property
    def says_left_out(self) -> str:
        """How many rows were kept back because nobody can say of which tool they are; empty where none was."""
        if not self.left_out:
            return ""
        return f"{self.left_out} unreadable {'entry' if self.left_out == 1 else 'entries'}, of whatever tool"

    def record(self) -> None:
        """Say in the console's own history what was taken out, and by whom."""
        said: dict[str, object] = {
            "filter": self.filters.said,
            "format": self.format,
            "rows": self.tally.rows,
            "sha256": self._digest.hexdigest(),
        }
        if self.left_out:
            said["left_out"] = self.left_out
        journal.record("exported", actor=self.by, detail=said)

    def _rows(self) -> Iterator[tuple[str, Entry]]:
        for chain in self.chains:
            name, head = chain.name, self.heads[chain.name]
            for link in chain.iterate_links():
                if link.number > head.number:
                    break
                entry = show_entry(link)
                if entry.kind != "unreadable":
                    if self.filters.matches(entry) and self.may_see(name, entry.tool):
                        yield name, entry
                elif self.may_see(name, ""):
                    # A row that was tampered with goes out whatever is filtered: the export is where it is found. It says no chain to
                    # belong to, and stands in this one.
                    yield name, replace(entry, chain=head.chain)
                else:
                    self.left_out += 1


def begin_export(
    format_: str,
    filters: HistoryFilter,
    *,
    by: str,
    chains: Sequence[EntryChain] | None = None,
    may_see: Callable[[str, str], bool] = lambda store, tool: True,
    is_limited: bool = False,
) -> Export:
    """Take the heads of every chain that the filter asks for; `chains`: of these, of all by default.

    Raises:
        StoreError: one of them cannot be read. Nothing is exported.
    """
    chains = [chain for chain in (list_chains() if chains is None else chains) if filters.store in ("", chain.name)]
    heads = {chain.name: chain.read_head() for chain in chains}
    return Export(format=format_, filters=filters, by=by, chains=chains, may_see=may_see, is_limited=is_limited, heads=heads)


def places_of(path: Path) -> tuple[Path, Path]:
    """Where an export stands: the file, and its manifest beside it."""
    return path, path.with_name(path.name + ".manifest.json")


def write_export(export: Export, path: Path, *, is_new: bool = False) -> Path:
    """The file and its manifest, `FILE.manifest.json`. Both are there whole, or neither: written beside and renamed. Answers the manifest's path.

    `is_new`: nothing that stands there is replaced, also what came meanwhile.

    Raises:
        FileExistsError: with `is_new`, something stands there. It was not touched.
        OSError: it cannot be written. Nothing stands there that was not there before.
        StoreError: as `Export.pieces`. The same.
    """
    _, manifest = places_of(path)
    parts = [place.with_name(f".{place.name}.{os.getpid()}.part") for place in (path, manifest)]
    try:
        with parts[0].open("xb") as file:
            for piece in export.pieces():
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        parts[1].write_text(export.manifest(path.name), "ascii")
        export.record()
        if is_new:
            manifest.hardlink_to(parts[1])
            _link_or_undo(path, parts[0], manifest)
        else:
            manifest.unlink(missing_ok=True)  # a new file never stands beside the manifest of the one before
            parts[0].replace(path)
            parts[1].replace(manifest)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return manifest


def _link_or_undo(path: Path, part: Path, manifest: Path) -> None:
    """A link is made only where nothing stands; what was made a moment ago for its sake goes where it is not."""
    try:
        path.hardlink_to(part)
    except OSError:
        manifest.unlink(missing_ok=True)
        raise
