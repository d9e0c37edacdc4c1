"""CEL expressions: what is refused when one is saved, what its values become, and that no expression and no answer can make it work for long."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actions.resolvers.cel import EvaluationFailed, Expression, InvalidExpression

NAMES = {"status", "body", "action", "amount"}


def evaluate(text: str, **values: Any) -> Any:
    return Expression(text, names=values).evaluate(values)


# --- when it is saved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "body.id == action.key",
        "status == 200 && !body.has_more",
        "amount > 1000",
        'has(body.metadata) && has(body.metadata.key) ? body.metadata.key : ""',
        "body.data.filter(one, one.key == action.key)",
        "body.edges.map(edge, edge.node)",
        "body.data.exists(one, one.tags.exists(tag, tag == action.key))",
        "body['a-b'].size() in [1, 2]",
        "'nope.foo(x)' == body.a // nope.foo(",
        r"body.a.matches('^re_[0-9]{3}$')",
        "status in [200, 404] ? [body] : []",
    ],
)
def test_usual_expressions_are_taken(text: str) -> None:
    assert Expression(text, names=NAMES).text == text


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("nope", 1, 1, "there is no 'nope'; there are action, amount, body, status"),
        ("body.x ==\n   nope.id", 2, 4, "there is no 'nope'"),
        ("body.exists(one, other == 1)", 1, 18, "there is no 'other'"),
        ("body.exists(one, true) && one", 1, 27, "there is no 'one'"),
        ("{nope: 1}", 1, 2, "there is no 'nope'"),
        ("status +", 1, 9, "mismatched input the end"),
        ("", 1, 1, "mismatched input the end"),
        ("status = 200", 1, 8, "token recognition error"),
        ("getenv('HOME')", 1, 1, "there is no function 'getenv'"),
        ("body.lower()", 1, 6, "there is no function .lower()"),
        ("body.map(body, body)", 1, 10, "is a name already"),
        ("body.exists(one)", 1, 6, "begins with a name for the element"),
        ("Message{a: 1}", 1, 1, "there is no 'Message'"),
        (".status", 1, 1, "a name cannot begin with a dot"),
        ("9" * 30, 1, 1, "invalid int literal"),
        ("1" + " + 1" * 600, 1, 2001, "longer than 2,000 characters"),
        ("(" * 33 + "1" + ")" * 33, 1, 33, "nested more than 32 deep"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        Expression(text, names=NAMES)

    assert says in refused.value.problem
    assert (refused.value.line, refused.value.column) == (line, column)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("body.exists(a, a.exists(b, b.exists(c, c)))", "at most 2 inside of each other"),
        (" && ".join(["body.exists(a, a)"] * 7), "at most 6 of all, exists"),
        ("body.map(x, body)", "parts of its element"),
        ("body.map(x, [1, 1])", "no new lists"),
        ("body.map(x, x.map(y, x))", "parts of its element"),
        ("[[body].map(a, a)[0]].map(b, b)", "no names in lists"),
        ("[body].map(a, a + a)", "builds no values"),
        ("body + [body, body] + [body].filter(a, true)", "builds no values"),
        ("amount" + " + amount" * 17, "more than 16 uses of +"),
        ("[" + ", ".join(["body"] * 17) + "]", "more than 16 uses of +"),
        ("body.a.matches(body.b)", "a fixed text"),
        ("body.exists(a, a.matches('x'))", "outside of macros"),
        ("body.a.matches('" + "x" * 200 + "')", "at most 200 characters"),
    ],
)
def test_what_multiplies_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidExpression, match=says.replace("+", r"\+")):
        Expression(text, names=NAMES)


# --- when it is evaluated --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ("a", Decimal("120.10"), Decimal("120.1")),
        ("a", Decimal("999999999999.99"), Decimal("999999999999.99")),
        ("a", Decimal("12345678901234567.89"), "12345678901234567.89"),  # no double says these digits
        ("a", Decimal("1e400"), "1E+400"),
        ("a", 2**63 - 1, 2**63 - 1),
        ("a", 2**63, "9223372036854775808"),
        ("a > 1000", Decimal("1000.01"), True),
        ("a > 1000", 1000, False),
        ("a == 1", Decimal("1.0"), True),
        ("a == 'x'", None, False),
        ("a", None, None),
        ("a.map(x, x.b)", [{"b": Decimal("1.10")}, {"b": None}], [Decimal("1.1"), None]),
        ("timestamp(a)", "2026-11-29T12:00:00Z", datetime(2026, 11, 29, 12, tzinfo=UTC)),
        ("a < timestamp('2027-01-01T00:00:00Z')", datetime(2026, 11, 29, tzinfo=UTC), True),
        ("a", "\x00ſ\U0001f4b8", "\x00ſ\U0001f4b8"),
        ("a.b", {"b": ({"c": True},)}, [{"c": True}]),
    ],
    ids=str,
)
def test_values_go_in_and_come_out_without_losing_a_digit(text: str, value: Any, result: Any) -> None:
    found = evaluate(text, a=value)

    assert (found, type(found)) == (result, type(result))


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("a.b", {}, "there is no field 'b'"),
        ("a.b.c", {"b": None}, "types do not fit"),
        ("a.exists(x, x.k == 'b')", [{"k": "a"}, {}], "there is no field 'k'"),
        ("a[0]", [], "no element of that number"),
        ("a + 1", Decimal("1.5"), "types do not fit"),
        ("a > 1000", 2**63, "types do not fit"),
        ("a > 1000", "1001", "types do not fit"),
        ("a ? 1 : 2", 1, "types do not fit"),
        ("1 / a", 0, "division by zero"),
        ("a + 1", 2**63 - 1, "larger than 64 bits"),
        ("int(a)", "x", "int() cannot read what it is given"),
        ("double(a) / 0.0", 1, "the result is no number"),
        ("b'x'", 1, "not supported (bytes)"),
        ("a", "\ud800", "half of a character"),
        ("a", Ellipsis, "holds a ellipsis"),
    ],
    ids=str,
)
def test_what_cannot_be_evaluated_says_why(text: str, value: Any, says: str) -> None:
    with pytest.raises(EvaluationFailed) as failed:
        evaluate(text, a=value)

    assert says in str(failed.value)


def test_an_error_does_not_quote_what_the_values_hold() -> None:
    with pytest.raises(EvaluationFailed) as failed:
        evaluate("a[b]", a={}, b="hunter2")

    assert "hunter2" not in str(failed.value)


def test_only_the_names_that_are_used_have_to_be_there() -> None:
    expression = Expression("status == 200", names=NAMES)

    assert expression.evaluate({"status": 200}) is True
    with pytest.raises(EvaluationFailed, match="no value for 'status'"):
        expression.evaluate({"body": 1})


def _deep() -> Any:
    value: Any = 0
    for _ in range(65):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("a.all(x, a.all(y, x == y))", list(range(2_000)), "'a' is large and stands inside of a macro"),
        ("a.data.all(x, a.data.size() > 0)", {"data": list(range(5_000))}, "'a' is large"),
        ("a.filter(x, true)", list(range(5_000)), "too much to look at: 5,001 values, up to 5,000 in one list"),
        ("a.map(x, x)", [{"b": [0] * 100}] * 300, "too much to look at"),
        ("a.all(x, x.all(y, y == 0))", [[0] * 1_500, [[0] * 10] * 1_500], "too much to look at"),
        ("[" + ",".join(["1"] * 900) + "].all(x, a.size() > x)", list(range(5_000)), "too much to look at"),
        ("a.all(x, x in [" + ",".join(["1"] * 900) + "])", list(range(10_000)), "too much to look at"),
        (" && ".join(["a == a"] * 100), [0] * 50_000, "too much to look at"),
        ("a.all(x, x.b.all(y, x.c.size() > y))", [{"b": [0] * 100, "c": [[0] * 100] * 4}] * 100, "too much to look at"),
        ("a", [0] * 200_001, "more than 200,000 values"),
        ("a", ["x" * 300_000] * 200, "more than 200,000 values"),
        ("a", _deep(), "nested more than 64 deep"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "",
)
def test_too_much_work_is_refused_before_it_begins(text: str, value: Any, says: str) -> None:
    with pytest.raises(EvaluationFailed) as refused:
        evaluate(text, a=value)

    assert says in str(refused.value)


def test_a_usual_page_of_objects_is_within_the_bounds() -> None:
    page = {"data": [{**{f"field_{number}": number for number in range(40)}, "key": f"k{index}"} for index in range(100)]}

    assert len(evaluate("body.data.filter(x, has(x.key))", body=page)) == 100
    assert evaluate("body.data.exists(x, x.key == action.key)", body=page, action={"key": "k99"}) is True


SCRAPS = """
a b x . .map(x, .filter(x, .exists(x, .all( has( size( ( ) [ ] { } , : ? + - ! == < in && || 1 -9223372036854775808 1.5 2u 's' ' \"\"\" r' b'
true null duration('1h') timestamp('2026-01-01T00:00:00Z') .getHours('x') .matches('(') // ` \\ 0x \u2028
""".split()
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), st.lists, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=14), value=VALUES)
def test_any_text_is_an_expression_or_refused_and_any_value_is_evaluated_or_refused(scraps: list[str], value: Any) -> None:
    try:
        expression = Expression(" ".join(scraps), names={"a", "b"})
    except InvalidExpression as refused:
        said = refused.line, refused.column
    else:
        said = 1, 1
        with contextlib.suppress(EvaluationFailed):
            expression.evaluate({"a": value, "b": {"x": value}})
    assert min(said) >= 1
