"""Fetch the browser code of package.json into console/static/vendor, or with --check say whether it is what was fetched.

Only fetching needs npm and a network; its lock file holds checksums and no addresses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = Path("console/static/vendor")
MANIFEST = VENDOR / "vendored.json"

# What is kept of each package, and under which name.
FILES: dict[str, dict[str, str]] = {
    "htmx.org": {"dist/htmx.min.js": "htmx.min.js", "LICENSE": "htmx.LICENSE.txt"},
    "idiomorph": {"dist/idiomorph-ext.min.js": "idiomorph-ext.min.js", "LICENSE": "idiomorph.LICENSE.txt"},
}
_SOURCE_MAP = re.compile(rb"^\s*//[#@]\s*sourceMappingURL=.*$", re.MULTILINE)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.vendor", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is not the vendored one")
    if not parser.parse_args(argv).check:
        _fetch()
    found = complaints(ROOT)
    for complaint in found:
        print(f"{complaint}; run python -m local.vendor and commit the result", file=sys.stderr)
    return 1 if found else 0


def complaints(root: Path) -> list[str]:
    """What differs between the vendored files, their manifest and package.json; needs no network."""
    manifest = json.loads((root / MANIFEST).read_text())
    wanted = json.loads((root / "package.json").read_text())["dependencies"]
    present = {file.name for file in (root / VENDOR).iterdir()} - {MANIFEST.name}
    found = [f"{VENDOR / name} is not listed in {MANIFEST.name}" for name in sorted(present - manifest.keys())]
    found += [f"{VENDOR / name} is missing" for name in sorted(manifest.keys() - present)]
    for name in sorted(manifest.keys() & present):
        found += _complaints_of(root / VENDOR / name, manifest[name], wanted)
    missing = sorted(wanted.keys() - {entry["package"] for entry in manifest.values()})
    found += [f"nothing of {package} is vendored" for package in missing]
    if "://" in re.sub(r'"(url|funding)": "[^"]*"', "", (root / "package-lock.json").read_text()):
        found.append("package-lock.json holds an address")
    return found


def _complaints_of(file: Path, entry: dict[str, str], wanted: dict[str, str]) -> list[str]:
    content = file.read_bytes()
    found = []
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        found.append(f"{VENDOR / file.name} is not what was fetched: its checksum differs")
    if wanted.get(entry["package"]) != entry["version"]:
        found.append(
            f"{VENDOR / file.name} is {entry['package']} {entry['version']}, package.json asks for {wanted.get(entry['package'])}"
        )
    if _SOURCE_MAP.search(content):
        found.append(f"{VENDOR / file.name} names a source map that is not there")
    return found


def _fetch() -> None:
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("package.json", "package-lock.json"):
            if (ROOT / name).exists():
                shutil.copy(ROOT / name, folder / name)
        subprocess.run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--omit-lockfile-registry-resolved"],
            cwd=folder, check=True,
        )  # fmt: skip
        shutil.copy(folder / "package-lock.json", ROOT / "package-lock.json")
        shutil.rmtree(ROOT / VENDOR, ignore_errors=True)
        (ROOT / VENDOR).mkdir(parents=True)
        manifest = {
            name: {
                "package": package,
                "version": wanted[package],
                "sha256": _copy(folder / "node_modules" / package / source, name),
            }
            for package, files in FILES.items()
            for source, name in files.items()
        }
    (ROOT / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def _copy(source: Path, name: str) -> str:
    """Copy one file without its source map's address, which whitenoise would look for; answers the checksum."""
    content = _SOURCE_MAP.sub(b"", source.read_bytes()).rstrip() + b"\n"
    (ROOT / VENDOR / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
