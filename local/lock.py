"""Rewrite requirements/*.txt from pyproject.toml, or with --check say whether they are stale. Locks hold hashes, no addresses."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = Path("requirements/base.txt")
DEV = Path("requirements/dev.txt")

# The base lock is constrained by the dev lock, so what is tested is what is shipped.
COMPILED: dict[Path, list[str]] = {
    DEV: ["--group", "dev", "--group", "demo", "--group", "agents"],
    BASE: ["--constraint", str(DEV)],
}
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*==\S+(?: ; [^\\]+)?)", re.MULTILINE)
_DIGEST = re.compile(r"^# inputs: sha256:([0-9a-f]{64})$", re.MULTILINE)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.lock", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a lock is stale")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions instead of the locked ones")
    asked = parser.parse_args(argv)
    if asked.check:
        return _check()
    _compile_into(ROOT, upgrade=asked.upgrade)
    return 0


def _check() -> int:
    complaints = [complaint for lock in COMPILED if (complaint := _complaint_without_network(ROOT / lock))]
    if not complaints:
        complaints = _complaints_of_a_new_resolution()
    for complaint in complaints:
        print(f"{complaint}; run python -m local.lock and commit the result", file=sys.stderr)
    return 1 if complaints else 0


def _complaint_without_network(lock: Path) -> str | None:
    name = lock.relative_to(ROOT)
    if not lock.exists():
        return f"{name} is missing"
    text = lock.read_text()
    found = _DIGEST.search(text)
    if found is None or found[1] != inputs_digest(ROOT / "pyproject.toml"):
        return f"{name} is stale: the dependencies in pyproject.toml are not those it was made from"
    if "://" in text:
        return f"{name} holds an address; locks must work with any mirror"
    return None


def _complaints_of_a_new_resolution() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        (copy / "requirements").mkdir()
        for name in ("pyproject.toml", str(DEV), str(BASE)):
            shutil.copy(ROOT / name, copy / name)
        try:
            _compile_into(copy, upgrade=False)
        except (FileNotFoundError, subprocess.SubprocessError) as exc:
            # Without an index the recorded digest, already compared, is all that can be said.
            print(f"locks: not resolved anew ({_first_line(exc)}); their recorded inputs match", file=sys.stderr)
            return []
        return [
            f"{lock} is stale: {_difference(ROOT / lock, copy / lock)}"
            for lock in COMPILED
            if pins(ROOT / lock) != pins(copy / lock)
        ]


def _difference(old: Path, new: Path) -> str:
    changed = pins(old) ^ pins(new)
    return ", ".join(sorted(changed)[:4]) + (" ..." if len(changed) > 4 else "")


def pins(lock: Path) -> frozenset[str]:
    """What a lock pins, without hashes: a wheel uploaded later to the same version makes no lock stale."""
    return frozenset(pin.strip() for pin in _PIN.findall(lock.read_text()))


def inputs_digest(pyproject: Path) -> str:
    """SHA-256 over exactly the parts of pyproject.toml from which the locks follow."""
    tables = tomllib.loads(pyproject.read_text())
    inputs = {
        "requires-python": tables["project"]["requires-python"],
        "dependencies": tables["project"]["dependencies"],
        "groups": tables["dependency-groups"],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _compile_into(folder: Path, *, upgrade: bool) -> None:
    digest = inputs_digest(folder / "pyproject.toml")
    for lock, groups in COMPILED.items():
        command = [_uv(), "pip", "compile", "-q", "--python", sys.executable, "--no-python-downloads", "--universal"]
        command += ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate"]
        command += ["--upgrade"] if upgrade else []
        subprocess.run(
            [*command, *groups, "pyproject.toml", "--output-file", str(lock)],
            cwd=folder, check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        header = f"# Written by local/lock.py from pyproject.toml; do not edit.\n# inputs: sha256:{digest}\n"
        (folder / lock).write_text(header + (folder / lock).read_text())


def _uv() -> str:
    return shutil.which("uv") or str(ROOT / ".tools/bin/uv")


def _first_line(exc: Exception) -> str:
    stderr = getattr(exc, "stderr", None) or str(exc)
    return stderr.strip().splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
