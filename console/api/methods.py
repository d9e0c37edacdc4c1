"""Every other method, and every other address: answered in JSON, and only to those who may call at all."""

from __future__ import annotations

import re
from collections.abc import Collection
from inspect import Parameter, Signature
from typing import Annotated, Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import Path, Router

from console.api.answers import error_answer

_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_PART = re.compile(r"{(?:\w+:)?(\w+)}")


def refuse_others(router: Router) -> None:
    """Let each address of these answer 405 to the methods that it does not take. Called once they are all there."""
    for path, view in list(router.path_operations.items()):
        taken = {method for operation in view.operations for method in operation.methods}
        others = [method for method in _ALL_METHODS if method not in taken]
        router.api_operation(others, path, include_in_schema=False)(_refusing(path, taken))


def refuse_unknown_method(request: HttpRequest) -> HttpResponse | None:
    """JSON for TRACE and for methods nobody has heard of, which no address here takes; None for the others, which each address answers."""
    return None if request.method in _ALL_METHODS else _refuse(request, ("GET", "POST", "DELETE"))


def _refusing(path: str, taken: Collection[str]) -> Any:
    def refuse(request: HttpRequest, **parts: Any) -> HttpResponse:
        return _refuse(request, taken)

    # ninja reads from the signature what an address consists of.
    about = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Path()]) for name in _PART.findall(path)]
    first = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=HttpRequest)
    refuse.__signature__ = Signature([first, *about])  # type: ignore[attr-defined]
    return refuse


def _refuse(request: HttpRequest, taken: Collection[str]) -> HttpResponse:
    allowed = ", ".join(method for method in _ALL_METHODS if method in taken)
    detail = f"{str(request.method)[:20]} is not for this address; it takes {allowed}"
    response = error_answer(405, "method_not_allowed", detail)
    response["Allow"] = allowed
    return response


nothing_here = Router()


@nothing_here.api_operation(_ALL_METHODS, "/", include_in_schema=False)
def nothing_at_the_root(request: HttpRequest) -> HttpResponse:
    return nothing_at(request, "")


@nothing_here.api_operation(_ALL_METHODS, "/{path:rest}", include_in_schema=False)
def nothing_at(request: HttpRequest, rest: str) -> HttpResponse:
    raise Http404("there is no such address in this API")
