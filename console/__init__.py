"""The console: HTTP, operators, policies and the queue. The Django project and its one app."""

from __future__ import annotations

# Imported here so that shared tasks belong to our application in every process, as Celery's manual asks.
from console.celery import app as celery_app

__all__ = ["celery_app"]
