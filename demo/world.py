"""The world the demo's agents act on: one JSON Lines file for each kind of effect.

An effect is on disk before the call that caused it goes on, so that killing the agent right after it loses nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

MAIL = "mail.jsonl"
PAYMENTS = "payments.jsonl"
TICKETS = "tickets.jsonl"
INVOICES = "invoices.jsonl"


class World:
    """The effects in one folder. Every effect carries the key of the action that caused it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # names and addresses, if only invented ones

    def append(self, file: str, key: str, effect: Mapping[str, object]) -> None:
        """Write one effect and wait until it is on disk."""
        line = json.dumps({**effect, "key": key, "at": datetime.now(UTC).isoformat(timespec="seconds")}, ensure_ascii=True)
        with (self.folder / file).open("a", encoding="ascii") as out:
            out.write(line + "\n")
            out.flush()
            os.fsync(out.fileno())

    def effects(self, file: str) -> list[dict[str, object]]:
        """Every effect in the file, oldest first; none when nothing of the kind ever happened."""
        path = self.folder / file
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]

    def has(self, file: str, key: str) -> bool:
        """Whether an effect with this key took place."""
        return any(effect["key"] == key for effect in self.effects(file))
