"""The console for an ASGI server: `uvicorn console.asgi:application`. Live updates need it."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
application = get_asgi_application()
