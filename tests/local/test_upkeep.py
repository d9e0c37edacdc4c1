"""Locks and vendored files: what their checks find. And what `./run test` says when it leaves something out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from local import lock, vendor

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the checks read, for a test to spoil."""
    for name in ("pyproject.toml", "package.json", "package-lock.json"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copytree(ROOT / vendor.VENDOR, tmp_path / vendor.VENDOR)
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(lock, "_uv", lambda: "/no/such/uv")  # as on a machine without a network
    return tmp_path


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_the_committed_locks_are_fresh_and_hold_no_addresses(checkout: Path) -> None:
    assert lock.main(["--check"]) == 0


def test_a_changed_dependency_makes_the_lock_stale(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(checkout / "pyproject.toml", "Django>=5.2.19,<5.3", "Django>=5.2.18,<5.3")

    assert lock.main(["--check"]) == 1
    assert "requirements/dev.txt is stale" in capsys.readouterr().err


def test_another_change_of_pyproject_does_not(checkout: Path) -> None:
    replace(checkout / "pyproject.toml", 'description = "', 'description = "The ')

    assert lock.main(["--check"]) == 0


def test_an_address_in_a_lock_is_found(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = checkout / lock.BASE
    file.write_text("--index-url https://mirror.example/simple\n" + file.read_text())

    assert lock.main(["--check"]) == 1
    assert "requirements/base.txt holds an address" in capsys.readouterr().err


def test_what_is_shipped_is_what_is_tested() -> None:
    """Every pin of the base lock is a pin of the dev lock; hashes do not count."""
    assert lock.pins(ROOT / lock.BASE) < lock.pins(ROOT / lock.DEV)
    assert any(pin.startswith("django==5.2.") for pin in lock.pins(ROOT / lock.BASE))


def test_the_committed_browser_code_is_what_was_fetched(checkout: Path) -> None:
    assert vendor.complaints(checkout) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda root: (root / vendor.VENDOR / "htmx.min.js").write_text("evil()"), "htmx.min.js is not what was fetched"),
        (lambda root: (root / vendor.VENDOR / "htmx.min.js").unlink(), "htmx.min.js is missing"),
        (lambda root: (root / vendor.VENDOR / "more.js").write_text(""), "more.js is not listed"),
        (lambda root: replace(root / "package.json", "2.0.11", "2.0.12"), "package.json asks for 2.0.12"),
        (lambda root: replace(root / "package-lock.json", '"0BSD"', '"https://mirror.example"'), "holds an address"),
    ],
)
def test_spoiled_browser_code_is_found(checkout: Path, spoil: object, complaint: str) -> None:
    spoil(checkout)  # type: ignore[operator]

    assert any(complaint in found for found in vendor.complaints(checkout))


@pytest.mark.parametrize(
    ("marker", "variable", "said"),
    [("browser", "CHROMIUM", "BROWSER TESTS LEFT OUT: "), ("dovecot", "DOVECOT", "DOVECOT TEST LEFT OUT: ")],
)
def test_tests_are_left_out_loudly_where_their_program_is_missing(tmp_path: Path, marker: str, variable: str, said: str) -> None:
    file = tmp_path / "test_two.py"
    file.write_text(f"import pytest\n\n@pytest.mark.{marker}\ndef test_a():\n    assert False\n\ndef test_b():\n    pass\n")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-c", "pyproject.toml", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {variable: "/no/such/program"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 deselected" in done.stdout
    lines = [number for number, line in enumerate(done.stdout.splitlines()) if line.startswith(said)]
    assert len(lines) == 2
    assert lines[0] < 6


def test_wrong_usage_of_the_tests_is_2() -> None:
    done = subprocess.run([sys.executable, "-m", "local.test", "--no-such-option"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 2


@pytest.mark.xdist_group("kept-together")
def test_a_group_of_tests_stays_in_one_worker(request: pytest.FixtureRequest) -> None:
    """Else each worker starts every server, and tests that share one take it from each other; said by the id, where there are workers."""
    assert request.node.nodeid.endswith("@kept-together" if "PYTEST_XDIST_WORKER" in os.environ else "stays_in_one_worker")
