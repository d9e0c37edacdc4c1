"""The console for a WSGI server. Live updates are for ASGI; pages fall back to asking every 30 s."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
application = get_wsgi_application()
