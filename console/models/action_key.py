"""An action's key as the database computes it, so that rows which name agent and number are found by it."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Func, TextField
from django.db.models.functions import Cast


class ActionKey(Func):
    """The key of an action from its agent and number, as actions/keys.py makes it; of fields, so that an index can hold it.

    Doubling the backslashes lets any agent's id pass as bytes, and keeps the expression immutable.
    """

    template = r"left(encode(sha256(decode(replace(%(expressions)s, '\', '\\'), 'escape')), 'hex'), 32)"
    arg_joiner = " || ':' || "
    output_field = TextField()

    def __init__(self, **extra: Any) -> None:
        super().__init__(F("agent"), Cast(F("seq"), TextField()), **extra)

    def deconstruct(self) -> tuple[str, tuple[object, ...], dict[str, object]]:
        return "console.models.action_key.ActionKey", (), {}
