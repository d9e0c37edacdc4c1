"""The API itself: what goes for every address of it. Which addresses there are, the package says."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError
from ninja.operation import Operation

from console.api.bodies import StrictParser
from console.api.callers import Bearer


class Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The name of the function, whichever file it stands in: generated clients call their own functions by it."""
        return operation.view_func.__name__


def _for_those_inside(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The OpenAPI document is for whoever is signed in or has a token."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            if not (request.user.is_authenticated or Bearer()(request)):
                raise AuthenticationError
        except (AuthenticationError, PermissionDenied) as exc:
            return api.on_exception(request, exc)
        return view(request, *args, **kwargs)

    return guarded


api: NinjaAPI = Api(
    title="Settle",
    version="1",
    description="Open actions of durable agents, and what was decided about them.",
    urls_namespace="api",
    docs_url=None,
    openapi_url="/openapi.json",
    auth=Bearer(),
    parser=StrictParser(),
    docs_decorator=_for_those_inside,
)
