"""What the log holds, as it would be written: by the formatter of the settings, into a list."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.stdlib import ProcessorFormatter


class Lines:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        """Every line, each one a JSON object of its own."""
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.all() if line["event"] == event]


@contextmanager
def captured() -> Iterator[Lines]:
    root, lines = logging.getLogger(), Lines()
    own = next(handler for handler in root.handlers if isinstance(handler.formatter, ProcessorFormatter))
    handler = logging.StreamHandler(lines.stream)
    handler.setFormatter(own.formatter)
    for one in own.filters:
        handler.addFilter(one)
    handler.addFilter(
        lambda record: not (record.threadName or "").startswith("lease of ")
    )  # of an agent that an earlier test has left behind
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
