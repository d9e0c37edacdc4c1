"""`sign_checkpoints [--output FILE]`: sign how far every history has come, and keep the lines outside of the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from actions.store.checkpoints import Checkpoint
from console.management.base import Command as Base
from console.management.base import printable, refuse
from console.services.anchoring import OutOfStep, append_checkpoint, deliver_due
from console.services.checkpoints import ChainBroken, sign_all


class Command(Base):
    help = (
        "Walk what came into each history since its last checkpoint, sign how far it has come, and send the checkpoints to the places of "
        "AUDIT_ANCHORS. Prints them, a line each; with --output they are also appended to FILE, behind those that were signed since its newest: "
        "`verify_audit --anchor` and the offline check read it. A worker's beat does the same every hour."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--output", type=Path, help="append them to this file; keep it where the databases' admins cannot write"
        )

    def run(self, **options: Any) -> None:
        problems = []
        for signed in sign_all(even_unchanged=options["output"] is not None):
            if isinstance(signed, Checkpoint):
                if options["output"] is not None:
                    _append(options["output"], signed.line)
                self.stdout.write(signed.line)
            else:
                problems.append(str(signed) if isinstance(signed, ChainBroken) else f"{signed[0]}: {signed[1]}")
        deliver_due()
        if problems:
            refuse(printable("not signed: " + "; ".join(problems)))


def _append(path: Path, line: str) -> None:
    try:
        append_checkpoint(path, line)
    except OutOfStep as exc:
        refuse(f"{path} was not touched: {exc}")
    except OSError as exc:
        refuse(f"{path} cannot be written: {exc.strerror}")
