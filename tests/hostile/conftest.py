"""The cast and the stores of the console's tests."""

from __future__ import annotations

from tests.console.conftest import ana, memory, person

__all__ = ["ana", "memory", "person"]
