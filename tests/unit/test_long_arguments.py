"""What is kept of long arguments is what was redacted, for exactly these arguments and these hidden names, and bounded."""

from __future__ import annotations

import json

import pytest

from actions import long_arguments
from actions.arguments import parse_arguments
from actions.long_arguments import LONG_CHARS, kept_chars, redacted_arguments
from actions.redaction import redact_arguments

NOTHING: frozenset[str] = frozenset()


def call(note: str) -> str:
    return json.dumps({"body": "x" * LONG_CHARS, "password": "s3cr3tValue42", "iban": "DE02", "note": note})


def test_long_arguments_are_redacted_once_and_only_what_was_redacted_is_kept() -> None:
    first = redacted_arguments(call("a"), NOTHING)
    again = redacted_arguments(call("a"), NOTHING)

    assert again is first
    assert first == redact_arguments(parse_arguments(call("a")), NOTHING)
    assert "s3cr3tValue42" not in repr(list(long_arguments._kept.items()))


def test_what_is_kept_never_answers_for_other_arguments_or_other_hidden_names() -> None:
    seen = redacted_arguments(call("a"), NOTHING)
    hidden = redacted_arguments(call("a"), frozenset({"iban"}))

    assert '"DE02"' in seen.text
    assert "DE02" not in hidden.text
    assert hidden == redact_arguments(parse_arguments(call("a")), frozenset({"iban"}))
    assert redacted_arguments(call("b"), NOTHING).value["note"] == "b"


def test_no_more_is_kept_than_its_bound_and_what_was_looked_at_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arguments, "KEPT_CHARS", 3 * LONG_CHARS)

    calls = [redacted_arguments(call(str(number)), NOTHING) for number in range(5)]

    assert kept_chars() <= 3 * LONG_CHARS
    assert redacted_arguments(call("4"), NOTHING) is calls[4]
    assert redacted_arguments(call("0"), NOTHING) is not calls[0]
