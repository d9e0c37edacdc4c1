"""What nobody foresaw, said without repeating what was sent: an error's own text may hold an action's arguments."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path


def name_of(exc: BaseException) -> str:
    """The kind of an error and the place in the code where it was raised: `ValueError in arguments.py, line 41`."""
    frames = traceback.extract_tb(exc.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(exc).__name__}{where}"


def way_of(exc: BaseException) -> str:
    """Its way through the code, the place where it was raised first."""
    frames = reversed(traceback.extract_tb(exc.__traceback__))
    return " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames)


def log_unexpected(log: logging.Logger, doing: str, exc: BaseException) -> None:
    """An error with its way through the code, and without its text."""
    log.error("unexpected while %s: %s; %s", doing, name_of(exc), way_of(exc))
