"""Secrets leave by no exit; everything else stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.arguments import parse_arguments
from actions.redaction import HIDDEN, is_secret_name, redact_arguments, redact_text, redact_value
from tests.unit.strategies import json_values, wild_text

SECRET = "s3cr3tValue42"
NAMES = [
    "password",
    "api_key",
    "apiKey",
    "API-KEY",
    "client_secret",
    "X-Auth-Token",
    "authorization",
    "cvv",
    "privateKey",
    "db.password",
    "sessionId",
]
PLAIN_NAMES = ["key", "max_tokens", "author", "amount", "passenger", "tokenizer", "to", "secretary", "cardinality", "number", ""]
SHAPES = [
    "Bearer abcdefghijklmnop123",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "sk_live_abcdefgh12345678",
    "sk-proj-abcdefghijklmnop1234",
    "ghp_abcdefghijklmnopqrst1234",
    "github_pat_abcdefghijklmnopqrst1234",
    "glpat-abcdefghijklmnop1234",
    "xoxb-1234567890-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaabcdefghijklmnopqrstuvwxyz123456789",
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "5555555555554444",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_says_so_is_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_that_only_looks_like_it_is_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "form",
    [
        "{name}={secret}",
        "{name}: {secret}",
        '"{name}": "{secret}"',
        "'{name}' : '{secret}'",
        '{{"{name}": "{secret}", "x": 1}}',
        '{{\\"{name}\\": \\"{secret}\\"}}',
        'note: "{name}={secret}"',
        "ana: {name}={secret}",
        "{name}=Basic {secret}",
        "{name}: Bearer {secret}",
        '"{name}": "{secret}',
        '"{name}": "with \\" quote {secret}"',
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_{name}={secret}",
        "1{name}={secret}",
        "?{name}={secret}&x=1",
        "{name}\n=\n{secret}",
    ],
)
def test_a_named_secret_in_a_text_is_hidden(name: str, form: str) -> None:
    if form.startswith(("1", "x")) and name[0].isupper():
        name = name.lower()
    text = f"before {form.format(name=name, secret=SECRET)} after"

    redacted = redact_text(text)

    assert SECRET not in redacted
    assert HIDDEN in redacted
    assert redacted.startswith("before ")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_is_known_by_its_shape(shape: str) -> None:
    assert redact_text(f"see {shape} there") == f"see {HIDDEN} there"
    assert redact_value({"note": [shape]}) == {"note": [HIDDEN]}
    assert shape not in json.dumps(redact_value({shape: 1}))


def test_a_password_in_an_address_is_hidden() -> None:
    assert redact_text("postgres://ana:geheim@db/x") == f"postgres://{HIDDEN}@db/x"


@pytest.mark.parametrize(
    "text",
    [
        "order 881",
        "4111 1111 1111 1112",
        "1111111111111111",
        "12.345678901234567",
        "to: ann@example.com",
        "https://example.com/a:b",
        "",
        "basic",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


@given(json_values)
def test_a_value_without_secrets_is_the_same_value(value: Any) -> None:
    redacted = redact_value(value)

    assert type(redacted) is type(value)
    if HIDDEN not in json.dumps(redacted):
        assert redacted == value


@given(st.sampled_from(NAMES), json_values.filter(lambda value: value not in (None, "", True, False)), st.integers(0, 5))
def test_a_named_secret_is_hidden_at_every_depth(name: str, secret: Any, depth: int) -> None:
    value: Any = {name: secret, "plain": 1}
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}

    found = redact_value(value)

    for level in reversed(range(depth)):
        found = found[0] if level % 2 else found["in"]
    assert found == {name: HIDDEN, "plain": 1}


@given(wild_text)
def test_redacting_a_text_never_fails_and_doing_it_twice_changes_nothing(text: str) -> None:
    once = redact_text(text)

    assert redact_text(once) == once


@given(json_values)
def test_arguments_without_secrets_keep_every_character(value: Any) -> None:
    text = json.dumps(value, indent=1)
    redacted = redact_arguments(parse_arguments(text))

    assert redacted.text == text or HIDDEN in redacted.text


def test_arguments_keep_their_digits_when_something_else_is_hidden() -> None:
    text = '{"amount": 12345678901234567890.10, "password": "x"}'

    assert redact_arguments(parse_arguments(text)).text == f'{{"amount": 12345678901234567890.10, "password": "{HIDDEN}"}}'


@pytest.mark.parametrize("name", ["password", "token"])
@pytest.mark.parametrize("value", ["null", '""', "true", "false"])
def test_a_secret_that_is_empty_or_a_switch_says_so(name: str, value: str) -> None:
    text = f'{{"{name}": {value}}}'

    assert redact_arguments(parse_arguments(text)).text == text


@pytest.mark.parametrize(
    "text", ["a" * 2**20, "eyJ" * 300_000, 'a="' * 200_000, "k: v, " * 150_000, "1 " * 300_000, "://a:" * 200_000, "[" * 2**20]
)
def test_a_mebibyte_of_almost_secrets_is_got_through(text: str) -> None:
    """Each of these once took time in the square of its length."""
    assert len(redact_text(text)) > 0


def test_a_card_number_that_is_a_number_is_hidden() -> None:
    assert redact_value({"card": 4111111111111111, "ok": True, "n": 5}) == {"card": HIDDEN, "ok": True, "n": 5}
