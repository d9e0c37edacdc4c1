"""CEL, the Common Expression Language, for declarations in forms: read and checked once, evaluated within bounds, errors in words.

The library (Rust) holds the interpreter's lock and cannot be interrupted, and it copies a value whole wherever its name stands: inside of
`exists` once per element. So the work of an expression is reckoned beforehand, from how often and how deep inside of macros a name stands
and from the size of the values, and refused beyond a limit that was measured at about a second. An expression with a macro builds no values
(`+`, lists of names), because those could double at every step.

Numbers: an int is CEL's int where 64 bits hold it, a Decimal is a double where the double says the same digits (all amounts of up to 15
digits do), anything else is its text, which is unequal to every number and refused by `<`, `>` and arithmetic. A double comes back as the
Decimal of its shortest text, so 120.10 stays 120.1. NaN and infinity are no results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from actions.errors import ActionsError

if TYPE_CHECKING:
    from cel import Program

T = TypeVar("T")

MAX_CHARS = 2_000
MAX_BRACKETS = 32
MAX_MACROS = 6
MAX_MACROS_NESTED = 2
MAX_BUILDERS = 16  # `+`, and names in lists: each can copy its operand once
MAX_MATCHES = 2
MAX_PATTERN_CHARS = 200
MAX_DEPTH = 64
MAX_VALUES = 200_000
MAX_WORK = 3_000_000
"""Copied values in one evaluation; 0.3 microseconds each as measured (200 objects of 60 fields in a `filter` that keeps all: 0.4 s)."""

MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})
_COLLECTING = frozenset({"map", "filter"})
_DATES = (
    "getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds getMilliseconds".split()
)
FUNCTIONS = frozenset("has size int uint double string timestamp duration type dyn".split())
METHODS = frozenset(["size", "contains", "startsWith", "endsWith", "matches", *_DATES])

_WORDS = frozenset({"true", "false", "null", "in"})
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<string>[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<number>(?:0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[uU]?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>&&|\|\||[=!<>]=|.)""",
    re.VERBOSE | re.DOTALL,
)
_PARSER_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)")
_INTS = range(-(2**63), 2**63)
_TEXT_WEIGHT = 256


class InvalidExpression(ActionsError):
    """The expression cannot be used. Nothing was evaluated; `.line` and `.column` count from 1 and say where."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(f"line {line}, column {column}: {problem}")


class EvaluationFailed(ActionsError):
    """The expression is fine and these values are not: a field is missing, types do not fit, there is too much of them. No result."""


@dataclass(frozen=True, slots=True)
class _Name:
    """Where a name is used: inside of how many macros, and whether a macro brought it."""

    name: str
    depth: int
    is_bound: bool


@dataclass(slots=True)
class _Shape:
    """What is known of an expression without any values."""

    names: list[_Name] = field(default_factory=list)
    collecting: list[int] = field(default_factory=list)  # depth of each map and filter
    macros: int = 0
    steps: list[int] = field(default_factory=list)  # how many tokens stand at each depth
    longest_list: int = 1  # of those that the expression itself holds


class Expression:
    """One checked expression. Immutable, safe to share between threads."""

    def __init__(self, text: str, *, names: Iterable[str] | None) -> None:
        """Read and check; `names` are the variables that its values will have. None: any name may be one, and `used` says which are.

        Raises:
            InvalidExpression: not CEL, a name or function that does not exist, or something whose work cannot be bounded.
        """
        self.text = text
        self.names = frozenset(names) if names is not None else None
        if len(text) > MAX_CHARS:
            raise InvalidExpression(f"longer than {MAX_CHARS:,} characters", 1, MAX_CHARS + 1)
        tokens = _tokens(text)
        self._program = _compiled(text)
        self._shape = _Reader(text, tokens, self.names).read()
        self.used = frozenset(one.name for one in self._shape.names if not one.is_bound)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value: None, bool, int, Decimal, str, datetime, timedelta, and lists and dicts of them. Only names that are used are looked at.

        Raises:
            EvaluationFailed: says what is missing or does not fit, never what the values hold.
        """
        given: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        longest = self._shape.longest_list
        for name in sorted(self.used):
            if name not in values:
                raise EvaluationFailed(f"there is no value for {name!r}")
            sizes[name], length = _measure(values[name], name)
            longest = max(longest, length)
        if _work(self._shape, sizes, longest) > MAX_WORK:
            raise EvaluationFailed(_too_much(self._shape, sizes, longest))
        for name in self.used:
            given[name] = _to_cel(values[name], name)
        return _from_cel(self._run(given))

    def _run(self, given: dict[str, Any]) -> Any:
        """The library's exceptions in words; its own would quote values."""
        try:
            return _guarded(lambda: self._program.execute(given))
        except KeyError as exc:
            name = str(exc.args[0] if exc.args else "").strip("'\"")
            named = f"no field {name!r}" if name and name in self.text else "no field of that name"
            raise EvaluationFailed(f"there is {named}") from None
        except IndexError:
            raise EvaluationFailed("a list has no element of that number") from None
        except ZeroDivisionError:
            raise EvaluationFailed("a division by zero") from None
        except OverflowError:
            raise EvaluationFailed("a number larger than 64 bits") from None
        except TypeError:
            raise EvaluationFailed(
                "types do not fit: a field is null, or a text or a list where a number is meant, or an int meets a double "
                "(write 2.0, or double(x))"
            ) from None
        except (RuntimeError, ValueError) as exc:
            function = re.match(r"Function '(\w+)'", str(exc))
            what = f"{function[1]}() cannot read what it is given" if function else "the values do not fit the expression"
            raise EvaluationFailed(what) from None


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(slots=True)
class _Bracket:
    """An open bracket: what stands before it, and the name that it binds."""

    sign: str
    macro: str = ""
    bound: str = ""
    free_of: int = 0  # of a map: names that were bound outside of it must not be used inside


_END = _Token("end", "", 0)


def _tokens(text: str) -> list[_Token]:
    return [
        _Token(match.lastgroup or "", match.group(), match.start())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "space"
    ]


def _compiled(text: str) -> Program:
    import cel

    try:
        return _guarded(lambda: cel.compile(text))
    except (ValueError, RuntimeError) as exc:
        found = _PARSER_ERROR.search(str(exc))
        if found is None:
            raise InvalidExpression("is not an expression that can be read", 1, 1) from None
        problem = re.sub(r" expecting \{.*", "", found[3]).replace("'<EOF>'", "the end")
        raise InvalidExpression(problem, max(int(found[1]), 1), max(int(found[2]), 1)) from None


def _guarded(call: Callable[[], T]) -> T:
    """A panic of the Rust library is no Exception; it must not end a worker."""
    try:
        return call()
    except BaseException as exc:
        if type(exc).__name__ == "PanicException":
            raise RuntimeError("the library gave up") from None
        raise


class _Reader:
    """Walks the tokens of an expression that the library has parsed already: names, functions, macros and what they multiply."""

    def __init__(self, text: str, tokens: list[_Token], names: frozenset[str] | None) -> None:
        self._text, self._tokens, self._names = text, tokens, names
        self._open: list[_Bracket] = []
        self._shape = _Shape()
        self._builders: list[_Token] = []
        self._matches = 0

    def read(self) -> _Shape:
        self._shape.steps = [0] * (MAX_MACROS_NESTED + 1)
        for index, token in enumerate(self._tokens):
            self._shape.steps[self._depth()] += 1
            if token.kind == "name":
                self._read_name(index, token)
            elif token.kind == "sign":
                self._read_sign(index, token)
        self._shape.longest_list += sum(token.text == "," for token in self._tokens)
        if self._shape.macros and self._builders:
            raise self._refused(
                "an expression with all, exists, map or filter builds no values: no +, no names in lists", self._builders[0]
            )
        if len(self._builders) > MAX_BUILDERS:
            raise self._refused(f"more than {MAX_BUILDERS} uses of + and of names in lists", self._builders[MAX_BUILDERS])
        return self._shape

    def _read_sign(self, index: int, token: _Token) -> None:
        if token.text in "([{":
            if token.text == "{" and self._at(index - 1).kind == "name":
                raise self._refused("messages are not supported", token)
            # The bracket of a macro was opened with its name.
            if not (token.text == "(" and self._is_macro(index - 1)):
                is_index = token.text == "[" and self._is_operand(index - 1)
                if token.text != "(" and not is_index and any(bracket.macro == "map" for bracket in self._open):
                    raise self._refused("map() makes a list of parts of its element; no new lists in it", token)
                self._open.append(_Bracket("index" if is_index else token.text))
            if len(self._open) > MAX_BRACKETS:
                raise self._refused(f"brackets are nested more than {MAX_BRACKETS} deep", token)
        elif token.text in ")]}":
            self._open.pop()
        elif token.text == "+":
            self._builders.append(token)
        elif token.text == "." and not self._is_operand(index - 1):
            raise self._refused("a name cannot begin with a dot", token)

    def _read_name(self, index: int, token: _Token) -> None:
        is_member, is_called = self._at(index - 1).text == ".", self._at(index + 1).text == "("
        if is_member and is_called:
            self._read_method(index, token)
        elif is_called:
            if token.text not in FUNCTIONS:
                raise self._refused(f"there is no function {token.text!r}; there are {', '.join(sorted(FUNCTIONS))}", token)
        elif not is_member and token.text not in _WORDS and not self._is_binding(index):
            self._read_variable(token)

    def _read_method(self, index: int, token: _Token) -> None:
        if token.text in MACROS:
            self._open_macro(index, token)
        elif token.text not in METHODS:
            raise self._refused(f"there is no function .{token.text}(); there are {', '.join(sorted(METHODS | MACROS))}", token)
        elif token.text == "matches":
            self._matches += 1
            pattern, end = self._at(index + 2), self._at(index + 3)
            if pattern.kind != "string" or end.text != ")" or len(pattern.text) > MAX_PATTERN_CHARS:
                raise self._refused(
                    f"the pattern of matches() is a fixed text of at most {MAX_PATTERN_CHARS} characters", pattern
                )
            if self._depth() or self._matches > MAX_MATCHES:
                raise self._refused(f"matches() stands outside of macros and at most {MAX_MATCHES} times", token)

    def _open_macro(self, index: int, token: _Token) -> None:
        bound = self._at(index + 2)
        if bound.kind != "name" or self._at(index + 3).text != ",":
            raise self._refused(f"{token.text}() begins with a name for the element and a comma", token)
        if bound.text in (self._names or ()) or bound.text in self._bound():
            raise self._refused(f"{bound.text!r} is a name already; call the element something else", bound)
        self._shape.macros += 1
        if token.text in _COLLECTING:
            self._shape.collecting.append(self._depth())
        self._open.append(_Bracket("(", macro=token.text, bound=bound.text, free_of=len(self._open)))
        if self._depth() > MAX_MACROS_NESTED or self._shape.macros > MAX_MACROS:
            raise self._refused(
                f"at most {MAX_MACROS} of all, exists, map and filter, and at most {MAX_MACROS_NESTED} inside of each other",
                token,
            )

    def _read_variable(self, token: _Token) -> None:
        bound = self._bound()
        if self._names is not None and token.text not in self._names and token.text not in bound:
            raise self._refused(f"there is no {token.text!r}; there are {', '.join(sorted(self._names))}", token)
        is_bound = token.text in bound
        for bracket in self._open:
            if bracket.macro == "map" and not (is_bound and bound[token.text] >= bracket.free_of):
                raise self._refused(f"map() makes a list of parts of its element {bracket.bound!r} alone", token)
        if any(bracket.sign in ("[", "{") for bracket in self._open):
            self._builders.append(token)
        self._shape.names.append(_Name(token.text, self._depth(), is_bound))

    def _is_macro(self, index: int) -> bool:
        return self._at(index).text in MACROS and self._at(index - 1).text == "."

    def _is_binding(self, index: int) -> bool:
        return self._at(index - 1).text == "(" and self._is_macro(index - 2)

    def _is_operand(self, index: int) -> bool:
        """Whether something ends here that can be indexed."""
        token = self._at(index)
        return (
            token.kind in ("string", "number") or (token.kind == "name" and token.text != "in") or token.text in (")", "]", "}")
        )

    def _bound(self) -> dict[str, int]:
        return {bracket.bound: index for index, bracket in enumerate(self._open) if bracket.bound}

    def _depth(self) -> int:
        return sum(bool(bracket.macro) for bracket in self._open)

    def _at(self, index: int) -> _Token:
        return self._tokens[index] if 0 <= index < len(self._tokens) else _END

    def _refused(self, problem: str, token: _Token) -> InvalidExpression:
        before = self._text[: token.at]
        return InvalidExpression(problem, before.count("\n") + 1, token.at - (before.rfind("\n") + 1) + 1)


# --- work ------------------------------------------------------------------------------------------------------------


def _work(shape: _Shape, sizes: Mapping[str, int], longest: int) -> int:
    """How many values are copied at most (measured: every use of a name copies its value, map and filter their list at each step)."""
    total = sum(sizes.values())
    work = total + sum(steps * _times(longest, depth) for depth, steps in enumerate(shape.steps))
    for used in shape.names:
        copies = total * _times(longest, used.depth - 1) if used.is_bound else sizes[used.name] * _times(longest, used.depth)
        work += copies
    return work + sum(total * _times(longest, depth + 1) // 2 for depth in shape.collecting)


def _times(longest: int, depth: int) -> int:
    """How often at most something is evaluated that stands inside of so many macros."""
    return int(longest**depth)


def _too_much(shape: _Shape, sizes: Mapping[str, int], longest: int) -> str:
    inside = [
        used.name for used in shape.names if used.depth and not used.is_bound and sizes[used.name] * longest > MAX_WORK // 4
    ]
    hint = f"; {inside[0]!r} is large and stands inside of a macro" if inside else ""
    return f"there is too much to look at: {sum(sizes.values()):,} values, up to {longest:,} in one list{hint}"


def _measure(value: Any, name: str) -> tuple[int, int]:
    """How many values, a long text counting as several, and the length of the longest list or map. Without recursion."""
    size, longest = 0, 0
    rest: list[tuple[Any, int]] = [(value, 1)]
    while rest:
        item, depth = rest.pop()
        if depth > MAX_DEPTH:
            raise EvaluationFailed(f"{name} is nested more than {MAX_DEPTH} deep")
        size += 1
        if isinstance(item, str):
            size += len(item) // _TEXT_WEIGHT
        elif isinstance(item, list | tuple | Mapping):
            longest = max(longest, len(item))
            size += len(item) if isinstance(item, Mapping) else 0
            rest.extend((child, depth + 1) for child in (item.values() if isinstance(item, Mapping) else item))
        if size > MAX_VALUES:
            raise EvaluationFailed(f"{name} holds more than {MAX_VALUES:,} values, a long text counting as several")
    return size, longest


# --- values ----------------------------------------------------------------------------------------------------------


def _to_cel(value: Any, name: str) -> Any:
    if value is None or isinstance(value, bool | datetime):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EvaluationFailed(f"{name} holds half of a character, which no text can") from None
        return value
    if isinstance(value, int):
        return value if value in _INTS else str(Decimal(value))
    if isinstance(value, Decimal):
        return _double(value)
    if isinstance(value, float):
        return value
    if isinstance(value, Mapping):
        return {_to_cel(str(key), name): _to_cel(child, name) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_to_cel(child, name) for child in value]
    raise EvaluationFailed(f"{name} holds a {type(value).__name__}, which CEL does not know")


def _double(value: Decimal) -> float | str:
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return str(value)
    return number if math.isfinite(number) and Decimal(repr(number)) == value else str(value)


def _from_cel(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise EvaluationFailed("the result is no number")
        return Decimal(repr(value))
    if isinstance(value, list):
        return [_from_cel(child) for child in value]
    if isinstance(value, dict):
        return {key: _from_cel(child) for key, child in value.items()}
    if value is None or isinstance(value, bool | int | str | datetime | timedelta):
        return value
    raise EvaluationFailed(f"the result is of a sort that is not supported ({type(value).__name__})")
