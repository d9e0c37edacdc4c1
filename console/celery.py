"""The Celery application: `celery -A console worker`, `celery -A console beat`. Tasks live in tasks.py, settings in settings.py."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = {
    # A sweep that no worker took in time is worth nothing any more: the next one sees the same.
    "sweep": {"task": "console.tasks.sweep", "schedule": 2.0, "options": {"expires": 10}},
    "ask": {"task": "console.tasks.sweep_inquiries", "schedule": 2.0, "options": {"expires": 10}},
    "recheck": {"task": "console.tasks.recheck_failed", "schedule": 300.0, "options": {"expires": 240}},
}
