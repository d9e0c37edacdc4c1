"""`./run test`: the whole suite on every core, or exactly what the arguments ask of pytest. Servers are tests/servers.py's."""

from __future__ import annotations

import os
import sys

import pytest

from local import chromium, dovecot

_WRONG_USAGE = 2


def main(arguments: list[str]) -> int:
    chromium.find_or_install(best=not arguments)
    dovecot.find_or_install()
    code = pytest.main(arguments or _whole_suite())
    if code == pytest.ExitCode.USAGE_ERROR:
        return _WRONG_USAGE
    return 0 if code == pytest.ExitCode.OK else 1


def _whole_suite() -> list[str]:
    workers = min(
        5, (os.cpu_count() or 2) + 1
    )  # a third of the tests' time is waiting for servers: one more keeps the cores busy
    return ["-n", str(workers), "--dist", "loadgroup"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
