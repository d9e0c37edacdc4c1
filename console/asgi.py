"""The console for an ASGI server: `uvicorn console.asgi:application`. Live updates need it."""

from __future__ import annotations

import os

import django
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup(set_prefix=False)


class Handler(ASGIHandler):
    """Django's own, with one step into a thread for each request and one back, instead of two for each middleware: none of ours waits for
    anything but the database, which is asked in that thread anyway."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await sync_to_async(self.get_response, thread_sensitive=True)(request)
        return response


django_application = Handler()

from console.in_line import in_line  # noqa: E402 - only now there are settings

application = in_line(django_application)  # type: ignore[arg-type]  # a dict is a mutable mapping
