"""A note of an external call and its result, under the call's key, for tools whose provider takes no idempotency key.

What a note proves: the tool had returned, or reported an error, before the process died; it is made between the two and the action's end. What
it cannot prove: a process killed after the effect and before the note leaves none, so a missing note says nothing and the call stays in doubt.
Keys do not name a store or tenant (recall-records 12): a ledger belongs to one store.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from actions.errors import OutputNotFound
from agents.harness import DurableAgent

_KEY = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerNote:
    """What one call came to."""

    key: str
    agent: str
    seq: int
    tool: str
    args: str  # as the action has them: shortened where they overflowed
    status: str  # done or failed
    result: str = ""
    error: str = ""


class Ledger(Protocol):
    """Where notes are kept. Both may raise whatever the place raises; a note that cannot be made never undoes the call it is about."""

    def note(self, note: LedgerNote) -> None:
        """Keep a note for good before returning. The same key again replaces it."""
        ...

    def find(self, key: str) -> LedgerNote | None:
        """The note under a key; None: there is none, which proves nothing."""
        ...


class FileLedger:
    """One file for each key in a folder that outlives the process: written beside, flushed to the disk, then renamed, so never half a note."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def note(self, note: LedgerNote) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".note-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(note), file, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._file(note.key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._flush_folder()

    def find(self, key: str) -> LedgerNote | None:
        """Raises ValueError where the file is no note: somebody else wrote it."""
        try:
            text = self._file(key).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return _read(text, key)

    def _file(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"a key has 32 hexadecimal digits, not {key!r}")
        return self._folder / f"{key}.json"

    def _flush_folder(self) -> None:
        """A rename is on the disk only when its folder is."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class OutputLedger:
    """Notes as outputs of the agent itself, `ledger-<key>`: nothing more to keep or back up, one write more for each external call.

    It is written under the lease in the same database as the end, so it helps where that write went through and the end did not; not
    where the database was away, nor after the lease was lost. A file says more.
    """

    def __init__(self, agent: DurableAgent) -> None:
        self._agent = agent

    def note(self, note: LedgerNote) -> None:
        text = json.dumps(asdict(note), sort_keys=True)
        self._agent.store_output(text, ref=f"ledger-{note.key}", tool=note.tool, summary=f"{note.tool}: {note.status}")

    def find(self, key: str) -> LedgerNote | None:
        try:
            return _read(self._agent.get_output(f"ledger-{key}").content, key)
        except OutputNotFound:
            return None


def _read(text: str, key: str) -> LedgerNote:
    try:
        note = LedgerNote(**json.loads(text))
    except TypeError as exc:
        raise ValueError(f"what stands under key {key} is no note of a call") from exc
    if note.key != key or note.status not in ("done", "failed"):
        raise ValueError(f"what stands under key {key} is no note of that call")
    return note
