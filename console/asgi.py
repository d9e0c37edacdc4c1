"""The console for an ASGI server: `uvicorn console.asgi:application`. Live updates need it."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django_application = get_asgi_application()

from console.in_line import in_line  # noqa: E402 - only now there are settings

application = in_line(django_application)  # type: ignore[arg-type]  # a dict is a mutable mapping
