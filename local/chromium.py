"""Finds the browser of the browser tests, or installs Debian's when we may. Playwright drives it; it brings none of its own.

Best is Debian's `chromium-headless-shell`: the same engine without a browser's windows, so that each test's own browser costs a quarter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

_SHELL = "chromium-headless-shell"
_NAMES = (_SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without these a browser in a closed network spends its start on looking up its vendor's hosts.
_QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--disable-gpu",
    "--no-first-run",
]


def find() -> str | None:
    """The path of the browser named by CHROMIUM, or of the best one on PATH; None when there is none."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


def find_or_install(*, best: bool) -> str | None:
    """As `find`; as root on Debian a missing browser is installed first, and with `best` the best one where there is another."""
    found = find()
    is_enough = found is not None and (not best or "CHROMIUM" in os.environ or shutil.which(_SHELL) is not None)
    return found if is_enough or not _installed_by_apt() else find()


def _installed_by_apt() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"{_SHELL} is missing: installing Debian's", file=sys.stderr, flush=True)
    quiet_debian = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    hasty = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", _SHELL]):
        done = subprocess.run(["apt-get", *hasty, *command], env=quiet_debian, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"apt-get {command[0]} failed: {done.stderr.strip()}", file=sys.stderr, flush=True)
            return False
    return True


def launch_arguments() -> list[str]:
    """Chromium's own sandbox refuses to run as root; everything it opens here is ours."""
    return [*_QUIET, "--no-sandbox"] if os.geteuid() == 0 else list(_QUIET)
