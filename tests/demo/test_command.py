"""`./run demo` where it cannot start: one clear line, and the exit code of the contract."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

import pytest

from demo.__main__ import require_free
from demo.home import Refused
from demo.stage import ROOT, inherited


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "demo", *arguments]
    return subprocess.run(line, cwd=ROOT, env=inherited() | environment, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["--store", "oracle"], ["--resume"], ["--fresh", "--resume", "ops-agent-1"]]
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    refused = demo(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_port_that_is_no_number_is_wrong_usage_and_named() -> None:
    refused = demo(DEMO_PORT="http")
    assert refused.returncode == 2
    assert "DEMO_PORT is 'http'" in refused.stderr


def test_a_store_that_is_not_there_yet_is_refused_in_one_line() -> None:
    refused = demo("--store", "mongo")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Refused, match="taken; set DEMO_PORT"):
        require_free(taken.getsockname()[1], patience=timedelta(0))
