"""Processes of one agent, one after the other, ours or recall-langgraph's, and what they did to the world."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interop.driver import expire_lease

ROOT = Path(__file__).parents[2]
OURS = "tests.agents.killable"
RECALLS = "tests.interop.killable_agent"


class Life:
    """One agent by one name, whoever runs it."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.url = url
        self.name = name
        self.effects = folder / f"{name}.jsonl"

    def die(self, module: str, *options: str) -> None:
        """SIGKILL in the middle of a tool; then its lease is let expire."""
        ended = self._run(module, *options)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        expire_lease(self.url, self.name)

    def carry_on(self, module: str, *options: str) -> dict[str, Any]:
        """The next process, to its end: what it printed."""
        ended = self._run(module, *options)
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout.splitlines()[-1]))

    def keys(self, tool: str = "send_email") -> list[str]:
        """The keys under which a tool had its effect."""
        made = [json.loads(line) for line in self.effects.read_text().splitlines()]
        return [effect["key"] for effect in made if effect.get("tool", "send_email") == tool]

    def _run(self, module: str, *options: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", module, "--url", self.url, "--agent", self.name, "--effects", str(self.effects), *options]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=180)
