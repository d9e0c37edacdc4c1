"""The cast and the stores of the console's tests."""

from __future__ import annotations

from tests.console.conftest import ana, memory, person, quick_passwords

__all__ = ["ana", "memory", "person", "quick_passwords"]
