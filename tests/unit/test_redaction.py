"""Secrets leave by no exit; everything else stays as it was."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actions.arguments import Arguments, parse_arguments
from actions.facts import facts_of, risk_of
from actions.records import ActionClass
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
PLAIN_NAMES = ["key", "author", "amount", "passenger", "tokenizer", "to", "secretary", "cardinality", "number", ""]
SHAPES = [
    "Bearer abcdefghijklmnop123",
    "Bearer abcdefghijklmnop",
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


SIZE = 131_072
ENOUGH_CPU_S = 10
PREFIXES = [
    *["eyJ", "eyJ-", "eyJ.", "eyJaaaaaaaa.", "=eyJaaaaaaaa", "-eyJaaaaaaaa", ".eyJaaaaaaaa.a"],
    *[
        "sk_",
        "sk_live_",
        "sk-",
        "sk-a-",
        "pk_test_",
        "whsec_a",
        "ghp_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "AKIA",
        "AIza",
        "npm_",
        "pypi-",
    ],
    *[
        "SG.",
        "SG.aaaaaaaaaaaaaaaa",
        "-SG.aaaaaaaaaaaaaaaa.",
        "ya29.",
        "Bearer ",
        "Bearer  ",
        "Basic\n",
        "Bearer Bearer",
        "Bearer a",
    ],
    *["://", "://a:", "://:", "://a@", "://a:b@", ":a@", "a:b@", "redis://:"],
    *[
        "1",
        "1 ",
        "4 ",
        "41 ",
        "4123 ",
        "5123-",
        "1.",
        "1 1.",
        "4111111111111111 ",
        "4111 1111 1111 1112 ",
        "DE89 ",
        "DE89",
        "AB12CD34",
    ],
    *["-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A PRIVATE KEY", "-----END ", "-----", "-----BEGIN RSA "],
    *[
        "password=",
        "password:",
        "password=a ",
        "password: ",
        'password="',
        "password='",
        "password=[",
        "password={",
        'password=["',
    ],
    *[
        'password=\\"',
        "password\\",
        'password=\\\\"a',
        "password => ",
        "password\n",
        "password: |\n ",
        "password: - ",
        "password: >",
    ],
    *[
        "password:\n - a",
        "password bearer ",
        "password=bearer ",
        "--password ",
        "--password",
        "-a ",
        "api ",
        "api key ",
        "api key: ",
        "a_",
    ],
    *["'cookie: x", '"cookie: x', "cookie: ", 'cookie: \\"', "cookie:'", "Cookie: a\n", "set-cookie:", "'cookie:", "cookie: \\"],
    *[
        '{"name":"password",',
        '{"name":"password","value":',
        '{"password":',
        '[["password",',
        '["--password",',
        "name: password, value: ",
    ],
    *[
        "name: ",
        'name="',
        "name=password, ",
        "key:token,value:",
        '[{"a":"',
        '{"a',
        '["',
        "[[",
        "[ ",
        "{",
        "}",
        "]",
        '"',
        "\\",
        "'",
        '\\"',
    ],
    *[
        "\\\\ ",
        "a",
        "a.",
        "a=",
        "a: ",
        "k: v, ",
        "_",
        "-",
        ".",
        " ",
        "\n",
        "\t=",
        "é",
        "\ud800",
        "\x00",
        "A",
        "aA",
        "Aa",
        "passWord",
    ],
]
"""What a pattern may take for the beginning of a secret, again and again. A mebibyte of some of these once took hours."""


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_text_of_almost_secrets_is_got_through(prefix: str) -> None:
    text = prefix * (SIZE // len(prefix))

    # The first of them is `redact_text` of the whole text.
    assert redact_arguments(Arguments(text=text, value=None), frozenset({"iban"})).text
    assert redact_arguments(Arguments(text="", value={"body": text}), frozenset({"iban"})).value


@pytest.mark.parametrize(
    "begin", ["password=", 'password="', "password: [", "Cookie: ", "Bearer ", "eyJ", "://a:", "-----BEGIN ", "4", "["]
)
@pytest.mark.parametrize("run", ["a", "a-", " ", "\\", ".", "[", "'", '\\"', "1", "1 ", "{ "])
def test_a_long_run_after_a_beginning_is_got_through(begin: str, run: str) -> None:
    assert redact_text(begin + run * (SIZE // 4 // len(run)))
    assert redact_text((begin + run * 1000) * (SIZE // 4000 // len(run)))


@pytest.fixture(autouse=True)
def _nothing_takes_for_ever() -> Iterator[None]:
    """Work that grows with the square of a text would take hours; here it ends after more than this process ever needs for a test."""

    def end(*_: object) -> None:
        raise AssertionError(f"still at it after {ENOUGH_CPU_S} s of this process's own time")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, ENOUGH_CPU_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("prefix", ["A", "a", "aA", "Aa", "1", "_", "A1", "password", "pass_", "é"])
def test_a_long_name_is_got_through(prefix: str) -> None:
    name = prefix * (SIZE // len(prefix))

    is_secret_name(name)
    assert redact_value({name: "x"})
    assert facts_of(name, ActionClass.EXTERNAL, parse_arguments(json.dumps({name: 1}))).sentence
    assert risk_of(name, '{"currency": 1}') in (0, 1, 2)


# --- both sides ------------------------------------------------------------------------------------------------------

HIDES = [
    *('{"passWord": "LEAK"}', '{"passwords": ["LEAK"]}', '{"secrets": {"a": "LEAK"}}', '{"client-secrets": "LEAK"}'),
    *('{"user_pass": "LEAK"}', '{"privatekey": "LEAK"}', '{"apikeys": ["LEAK"]}', '{"accesskey": "LEAK"}', '{"APIkey": "LEAK"}'),
    *('{"PHPSESSID": "LEAK"}', '{"dbPassword2": "LEAK"}', '{"accesstoken": "LEAK"}', '{"tokens": ["LEAK"]}', '{"pass": "LEAK"}'),
    *('{"max_tokens": "LEAK"}', '{"token_count": {"a": "LEAK"}}', '{"API Key": "LEAK"}', '{"p\\u0061ssword": "LEAK"}'),
    *("redis://:LEAK@host/0", "postgres://ana:LEAK@db/x", "amqp://ana:a@LEAK@host", "https://x.test/ http://a:LEAK@b"),
    *("run --password LEAK now", "run --token=LEAK", "-password LEAK", "--api-key 'LEAK'", '--client-secret "LEAK"'),
    *(
        '{"name":"Authorization","value":"LEAK"}',
        '{"key":"password","value":"LEAK"}',
        '[{"value":["LEAK"],"header":"X-Api-Key"}]',
    ),
    *(
        "{'name': 'Cookie', 'value': 'LEAK'}",
        '{"headers": [["Authorization", "LEAK"], ["Accept", "x"]]}',
        "name=token; value=LEAK",
    ),
    *('{"argv": ["curl", "--password", "LEAK"]}', '{\\"name\\":\\"token\\",\\"value\\":\\"LEAK\\"}'),
    *('api_key: ["LEAK"]', 'log: {"password":["a", "LEAK"]} end', "password: {'a': ['b]', 'LEAK']}", "password=[x]LEAK"),
    *('{"body": "{\\"password\\":[\\"LEAK\\"]}"}', '{"body": "{\\"a\\":\\"{\\\\\\"token\\\\\\":[\\\\\\"LEAK\\\\\\"]}\\"}"}'),
    *('{"password": ["a", {"b": "LEAK', '{"a": 1, "password": "LEAK', '{"a": [{"name": "token", "value": {"x": "LEAK'),
    *(
        '"Cookie: a=1; b=LEAK"',
        "GET /\nCookie: a=1; b=LEAK\nHost: x",
        "Set-Cookie: a=1; b=LEAK",
        "Authorization: Digest a=1, b=LEAK",
    ),
    *("curl -H 'Authorization: Token LEAK' x", '{"raw": "Cookie: a=1; b=LEAK"}', "Proxy-Authorization: LEAK LEAK"),
    *(
        '"password" => "LEAK"',
        'config["password"] = "LEAK"',
        "form[password]=LEAK",
        "api key: LEAK",
        "password%3DLEAK",
        "password := LEAK",
        "password = LEAK",
        "the password : LEAK",
    ),
    *(
        "passwords:\n  - a\n  - LEAK\n",
        "password: |\n  a\n  LEAK\n",
        "password: true-LEAK",
        "token: null-LEAK",
        "max_tokens: 5LEAK",
    ),
    *("key: sk_live_LEAKabcdefgh1234", '{"key": "sk_live_LEAKabcdefgh1234"}', '{"id": ["x", "ghp_LEAKabcdefghijklmnop1234"]}'),
    *(
        "x-eyJLEAKabcde.eyJzdWIiOiIxIn0.c2ln",
        "eyJLEAKabcde..iv.LEAK.LEAK",
        "my_sk_live_LEAKabcdefgh1234",
        "Bearer LEAKabcdefgh1234",
    ),
]
SHOWS = [
    *("order 20240101123456", "order_id: 4111111111111112", "PO-2024-0001-4477", "invoice 1234567890123456", "+49 170 1234567"),
    *("DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "FR14 2004 1010 0505 0001 3M02 606", "NL91ABNA0417164300"),
    *("2024-05-06T07:08:09.123456Z", "2024-05-06 2024-05-07", "1714979289123", "4111111111111111.50", "12.345678901234567"),
    *(
        "123e4567-e89b-12d3-a456-426614174000",
        "214818cf26e0741859681c7b237f0bba",
        "idempotency_key=214818cf26e0741859681c7b237f0bba",
    ),
    *("tokenization: on", "tokenizer=bpe", "secretary: Ann", "passenger: Bob", "compass: north", "bypass: none", "passport: x"),
    *("boarding_pass: LH 400", "author: Ann", "key: value", '{"key": "order-7"}', "keys: a, b", "monkey: x", "the secret is out"),
    *(
        "max_tokens: 5",
        "token_count=7",
        "tokens: 12.",
        '{"max_tokens": 5, "tokens": 1000, "token_count": 3}',
        '{"pass": 3, "fail": 1}',
    ),
    *(
        '{"usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}',
        '{"token": null, "password": ""}',
        "password: true",
    ),
    *(
        "Basic authentication is off",
        "Bearer Authentication",
        "sk-learn-contrib-something",
        "https://example.com/a:b@c",
        "git@github.com:a/b",
    ),
    *("https://ana@example.com/x", "http://host:8080/x", "--verbose x", "a -- password reset", "scp host:/a b", "3 of 4 [see x]"),
    *(
        '{"name": "Ann", "value": "x"}',
        '{"key": "color", "value": ["red"]}',
        '{"headers": [["Accept", "text/html"]]}',
        '["password", "x"]',
    ),
    *(
        '{"name": "Reset the password", "value": "today"}',
        "Reset your password today",
        '{"amount": 10.50, "currency": "EUR"}',
        "SG.short",
    ),
]


@pytest.mark.parametrize("text", HIDES)
def test_a_secret_comes_out_in_no_form(text: str) -> None:
    for form in in_every_form(text):
        for found in (redact_text(form), redact_arguments(parse_arguments(form)).text):
            assert "LEAK" not in found
            assert HIDDEN in found


@pytest.mark.parametrize("text", SHOWS)
def test_what_looks_a_little_like_a_secret_is_shown(text: str) -> None:
    for form in (text, json.dumps({"note": text}), json.dumps({"note": text}, indent=1), f"{text}\n"):
        assert redact_text(form) == form
        assert redact_arguments(parse_arguments(form)).text == form


@example("password=LEAK", "password=LEAK", " ")
@example("form[password]=LEAK", "password%3DLEAK", " ")
@given(st.sampled_from(HIDES + SHOWS), st.sampled_from(HIDES + SHOWS), st.sampled_from([" ", "\n", "; ", '", "', "}", "'"]))
def test_redacting_twice_changes_nothing(one: str, other: str, between: str) -> None:
    once = redact_text(one + between + other)

    assert redact_text(once) == once


# A shape that is cut has none, and a name that was cut off names nothing.
BY_NAME = [text for text in HIDES if not re.search(r"_LEAK|eyJ|://|Bearer|\"value\":\[", text)]


@given(st.sampled_from(BY_NAME), st.integers(0, 80))
def test_arguments_cut_anywhere_hide_as_much(text: str, cut: int) -> None:
    whole = json.dumps({"first": 1, "in": text})

    assert "LEAK" not in redact_arguments(parse_arguments(whole[: len(whole) - cut])).text


@given(st.sampled_from(NAMES), json_values, st.integers(1, 200), st.booleans())
def test_too_wide_or_too_deep_hides_as_much_as_fields_do(name: str, extra: Any, depth: int, is_cut: bool) -> None:
    value: Any = {"x": extra, name: ["LEAK", {"a": "LEAK"}], "headers": [{"value": "LEAK", "name": name}], "plain": "kept"}
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    text = json.dumps({"wide": list(range(2500)), "value": value})

    found = redact_arguments(parse_arguments(text))
    cut = redact_arguments(parse_arguments(text[: text.rindex("LEAK") + 4] if is_cut else f"see {text}"))

    assert found.value is None
    assert "LEAK" not in found.text
    assert "kept" in found.text
    assert is_cut or json.loads(found.text)
    assert '"name"' in text[: text.rindex("LEAK")] or is_cut or "LEAK" not in cut.text


def in_every_form(text: str) -> list[str]:
    """As it is, in prose, in a text of JSON, twice so, and beside too much to be shown as fields."""
    wide = list(range(2500))
    return [
        text,
        f"see: {text}",
        json.dumps({"note": text}),
        json.dumps({"note": json.dumps([{"a": text}])}),
        json.dumps({"wide": wide, "note": text}),
        json.dumps({"wide": wide, "note": json.dumps({"a": text})}),
        json.dumps({"wide": wide, "note": text})[:-1],
        "[" * 70 + json.dumps(text) + "]" * 70,
    ]


@pytest.mark.parametrize("name", ["max_tokens", "tokens", "token_count", "totalTokens", "prompt_tokens"])
@pytest.mark.parametrize("value", [0, 5, 128_000, "5"])
def test_a_number_of_tokens_is_shown_and_anything_else_is_not(name: str, value: object) -> None:
    assert redact_value({name: value}) == {name: value}
    assert redact_value({name: "x"}) == {name: HIDDEN}
    assert redact_value({"password": value, "token": value}) == {"password": HIDDEN, "token": HIDDEN}


def test_a_card_number_that_is_a_number_is_hidden() -> None:
    assert redact_value({"card": 4111111111111111, "ok": True, "n": 5}) == {"card": HIDDEN, "ok": True, "n": 5}
