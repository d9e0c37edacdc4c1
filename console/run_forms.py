"""What people fill in about runs: the list's filters, and the input of a new one, as its type's schema has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from django import forms
from django.http import QueryDict

from actions.resolvers.base import FieldType
from actions.resolvers.texts import YES
from agents.runs import RunType
from console.models import RunStatus
from console.policy_form import FormField
from console.words import RUN_STATUSES

_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?", re.ASCII)
_LONG = 200
PREFIX = "in-"
"""Before a field's name in the form, so that no input is taken for something of ours."""


class RunFilters(forms.Form):
    """The filters of the list, as they stand in its address."""

    status = forms.ChoiceField(
        required=False, choices=[("", "any status"), *((s.value, RUN_STATUSES[s].word) for s in RunStatus)]
    )
    type = forms.CharField(required=False, max_length=63)
    text = forms.CharField(required=False, max_length=200)

    @property
    def is_narrowed(self) -> bool:
        return any(self.cleaned_data.values())

    @property
    def query(self) -> dict[str, str]:
        return {name: value for name, value in self.cleaned_data.items() if value}


def input_fields(
    kind: RunType, typed: Mapping[str, str] | None = None, problems: Mapping[str, str] | None = None
) -> tuple[FormField, ...]:
    """The fields of a type's input with what was typed, or with its defaults. A problem of something inside a field stands at the field."""
    fields = _fields(kind)
    if typed is not None:
        fields = tuple(replace(one, value=typed.get(one.name, "")) for one in fields)
    at: dict[str, str] = {}
    for path, problem in (problems or {}).items():
        name = path.split(".")[0]
        at.setdefault(PREFIX + name, problem if path == name else f"{path}: {problem}")
    return tuple(replace(one, problem=at.get(one.name, "")) for one in fields)


def other_problems(kind: RunType, problems: Mapping[str, str]) -> tuple[str, ...]:
    """Problems that belong to no field."""
    names = {one.name.removeprefix(PREFIX) for one in _fields(kind)}
    return tuple(problem for path, problem in problems.items() if path.split(".")[0] not in names)


def read_input(kind: RunType, said: QueryDict) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """What was typed as values, as it was typed, and what is wrong with it already. What was left empty is left out: its default counts."""
    given: dict[str, Any] = {}
    typed: dict[str, str] = {}
    problems: dict[str, str] = {}
    for one in _fields(kind):
        name, text = one.name.removeprefix(PREFIX), said.get(one.name, "")
        typed[one.name] = text
        if one.type == FieldType.FLAG:
            given[name] = text == YES
        elif text.strip() == "":
            continue
        elif one.type == FieldType.NUMBER:
            given[name] = json.loads(text.strip()) if _NUMBER.fullmatch(text.strip()) else text
        elif one.type == FieldType.CODE:
            try:
                given[name] = json.loads(text)
            except (ValueError, RecursionError):
                problems[name] = "this is no JSON"
        elif one.type == FieldType.CHOICE:
            given[name] = next((value for value in _choices(kind, name) if str(value) == text), text)
        else:
            given[name] = text
    return given, typed, problems


def _fields(kind: RunType) -> tuple[FormField, ...]:
    schema = kind.input.model_json_schema()
    required = schema.get("required", [])
    return tuple(
        _field(name, _plain(part, schema), part, is_required=name in required)
        for name, part in schema.get("properties", {}).items()
    )


def _field(name: str, part: Mapping[str, Any], outer: Mapping[str, Any], *, is_required: bool) -> FormField:
    default = outer.get("default", part.get("default"))
    kind = _type_of(part)
    choices = tuple((str(value), str(value)) for value in part.get("enum", ()))
    return FormField(
        name=PREFIX + name,
        label=str(outer.get("title") or part.get("title") or name),
        help=" ".join(filter(None, [_closed(str(outer.get("description") or part.get("description") or "")), _bounds(part)])),
        type=kind,
        value=_default(default, kind),
        choices=choices if is_required else (("", ""), *choices),
        is_required=is_required and kind != FieldType.FLAG,
    )


def _type_of(part: Mapping[str, Any]) -> str:
    said = part.get("type")
    if "enum" in part:
        return FieldType.CHOICE.value
    if said == "boolean":
        return FieldType.FLAG.value
    if said in ("integer", "number"):
        return FieldType.NUMBER.value
    if said == "string":
        return FieldType.LINES.value if int(part.get("maxLength", 0) or 0) > _LONG else FieldType.TEXT.value
    return FieldType.CODE.value


def _default(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == FieldType.FLAG:
        return YES if value else ""
    return json.dumps(value, ensure_ascii=False) if kind == FieldType.CODE else str(value)


def _closed(text: str) -> str:
    return text if not text or text[-1] in ".!?" else f"{text}."


def _bounds(part: Mapping[str, Any]) -> str:
    words = {
        "exclusiveMinimum": "more than {}",
        "minimum": "at least {}",
        "exclusiveMaximum": "less than {}",
        "maximum": "at most {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
    }
    said = ", ".join(
        words[name].format(_number(part[name])) for name in words if name in part and (name, part[name]) != ("minLength", 1)
    )
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def _number(bound: float) -> str:
    """As people write it: 1000000, never 1e+06."""
    return str(int(bound)) if bound == int(bound) else format(Decimal(str(bound)), "f")


def _choices(kind: RunType, name: str) -> list[Any]:
    schema = kind.input.model_json_schema()
    return list(_plain(schema["properties"][name], schema).get("enum", []))


def _plain(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a field is where it is named elsewhere, may be left out, or is a number that may be written as a text."""
    if "$ref" in part:
        return schema.get("$defs", {}).get(str(part["$ref"]).rpartition("/")[2], {})
    if "const" in part:
        return {"enum": [part["const"]], **part}
    ways = [_plain(way, schema) for way in part.get("anyOf", part.get("allOf", ())) if way.get("type") != "null"]
    if not ways:
        return part
    numbers = [way for way in ways if way.get("type") in ("number", "integer")]
    if len(ways) == 1 or (numbers and all(way.get("type") in ("number", "integer", "string") for way in ways)):
        return (numbers or ways)[0]
    return {}
