"""What is read of a request's body, before anything is known about what it asks."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.parser import Parser

MAX_BODY_BYTES = 2_621_440  # a result of 1 MiB, escaped; the same as settings.DATA_UPLOAD_MAX_MEMORY_SIZE


class BadBody(Exception):
    """The body cannot be read; the message says why."""


class StrictParser(Parser):
    """One JSON object in UTF-8, of bounded size; names standing twice and numbers that JSON does not have are refused."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if request.content_type != "application/json":
            raise HttpError(415, "send the body as application/json")
        if len(request.body) > MAX_BODY_BYTES:
            raise RequestDataTooBig
        try:
            found = json.loads(request.body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        except RecursionError as exc:
            raise BadBody("the body is nested too deeply") from exc
        except UnicodeDecodeError as exc:
            raise BadBody("the body is not UTF-8") from exc
        except ValueError as exc:
            raise BadBody(f"the body is not JSON: {str(exc)[:120]}") from exc
        if not isinstance(found, dict):
            raise BadBody("the body is not a JSON object")
        return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
