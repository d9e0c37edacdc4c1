"""How anything is answered: JSON that nobody may keep, errors with a code and a sentence, and what a gesture came to."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, JsonResponse
from ninja import Schema

from console import shapes
from console.services.answers import STATUS, Answer


class ErrorOut(Schema):
    error: str
    detail: str


ERRORS: dict[Any, Any] = {401: ErrorOut, 403: ErrorOut, 404: ErrorOut, 422: ErrorOut}


def json_answer(body: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """ASCII JSON, so that NUL and lone surrogates of an agent's text arrive as they are; nobody may keep it. 503 says when to ask again."""
    response = JsonResponse(body, status=status)
    response["Cache-Control"] = "no-store"
    if status == 503:
        response["Retry-After"] = "5"
    return response


def error_answer(status: int, code: str, detail: str, **more: Any) -> HttpResponse:
    return json_answer({"error": code, "detail": detail, **more}, status=status)


def gesture_answer(answer: Answer, *, sees: bool = True) -> HttpResponse:
    """A gesture's answer: the decision or note itself, or an error with whatever stands in the way."""
    status = STATUS[answer.kind]
    shown: dict[str, Any] = {}
    if answer.decision is not None:
        shown = shapes.decision_json(answer.decision, sees_problems=sees)  # whoever decides or withdraws may settle there
    elif answer.note is not None:
        shown = shapes.note_json(answer.note)
    if status < 400:
        return json_answer({**shown, "detail": answer.detail, "warnings": list(answer.warnings)}, status=status)
    return error_answer(
        status,
        answer.kind.value,
        answer.detail,
        decision=shown or None,
        item=shapes.item_json(answer.item) if answer.item else None,
        entry=shapes.entry_json(answer.item.store, answer.entry) if answer.entry and answer.item else None,
    )
