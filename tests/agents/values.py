"""Values that an agent may give and that are hard to write down."""

from __future__ import annotations

from typing import Any


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value
