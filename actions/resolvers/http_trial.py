"""Trying out the expressions of a form on an answer that somebody pasted. Asks nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from actions.redaction import redact_text
from actions.resolvers.base import Claim
from actions.resolvers.cel import EvaluationFailed, Expression, InvalidExpression
from actions.resolvers.http_answer import NoAnswer, action_values, parse_json
from actions.resolvers.http_definition import ANSWER_NAMES, OBJECT_NAMES, PARTS
from actions.resolvers.web import Response

MAX_TRIED_OBJECTS = 5
MAX_TRIED_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one expression gives. `value` is JSON, cut and redacted; `problem` says where it is wrong or what it lacks."""

    field: str
    number: int = 0  # of the object; 0 where it is about the whole answer
    value: str = ""
    problem: str = ""


def try_expressions(settings: Mapping[str, str], status: int, body: str, claim: Claim) -> tuple[Tried, ...]:
    """Every expression of a form on an answer that somebody pasted; the first few objects of it. Asks nobody and never raises."""
    action = action_values(claim)
    try:
        parsed = parse_json(
            Response(status=status, content_type="application/json", body=body.encode("utf-8", "replace"), retry_after_s=0)
        )
    except NoAnswer as exc:
        return (Tried(field="body", problem=exc.problem),)
    values = {"status": status, "body": parsed, "action": action}
    found, objects = [_try("complete", settings.get("complete", "") or "status == 200", ANSWER_NAMES, values)[0]], parsed
    if settings.get("objects", "").strip():
        tried, objects = _try("objects", settings["objects"], ANSWER_NAMES, values)
        found.append(tried)
    elif not isinstance(parsed, list):
        objects = [parsed]
    if isinstance(objects, list):
        for number, one in enumerate(objects[:MAX_TRIED_OBJECTS], start=1):
            of_object = {"object": one, "action": action}
            found += [
                _try(part, settings[part], OBJECT_NAMES, of_object, number)[0] for part in PARTS if settings.get(part, "").strip()
            ]
    elif not found[-1].problem:
        found[-1] = replace(found[-1], problem="is no list")
    return tuple(found)


def _try(name: str, text: str, names: frozenset[str], values: Mapping[str, Any], number: int = 0) -> tuple[Tried, Any]:
    try:
        value = Expression(text.strip(), names=names).evaluate(values)
    except (InvalidExpression, EvaluationFailed) as exc:
        return Tried(field=name, number=number, problem=redact_text(str(exc))), None
    shown = redact_text(json.dumps(value, ensure_ascii=False, default=str))
    cut = shown if len(shown) <= MAX_TRIED_CHARS else f"{shown[:MAX_TRIED_CHARS]} …"
    return Tried(field=name, number=number, value=cut), value
