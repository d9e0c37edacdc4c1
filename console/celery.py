"""The Celery application: `celery -A console worker`, `celery -A console beat`. Tasks live in tasks.py, settings in settings.py."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_before_create_process, worker_process_shutdown

from console import task_lines  # noqa: F401 - listens from now on

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = {
    # A sweep that no worker took in time is worth nothing any more: the next one sees the same.
    "sweep": {"task": "console.tasks.sweep", "schedule": 2.0, "options": {"expires": 10}},
    "ask": {"task": "console.tasks.sweep_inquiries", "schedule": 2.0, "options": {"expires": 10}},
    "runs": {"task": "console.tasks.sweep_runs", "schedule": 2.0, "options": {"expires": 10}},
    "ends": {"task": "console.tasks.sweep_ends", "schedule": 30.0, "options": {"expires": 25}},
    "notify": {"task": "console.tasks.sweep_notices", "schedule": 5.0, "options": {"expires": 10}},
    "checkpoints": {"task": "console.tasks.sign_checkpoints", "schedule": 3600.0, "options": {"expires": 1800}},
    "verify": {"task": "console.tasks.verify_all", "schedule": 86_400.0, "options": {"expires": 3600}},
    "recheck": {"task": "console.tasks.recheck_failed", "schedule": 300.0, "options": {"expires": 240}},
}


@worker_before_create_process.connect
def load_kinds(**_: Any) -> None:
    """Import what resolvers speak by before the worker forks, else the first question in each of its processes waits for that."""
    from console.services.definitions import list_kinds  # Django is set up by now, and was not when this module was imported

    list_kinds()
    from console import spans

    spans.load()


@worker_process_shutdown.connect
def send_spans(**_: Any) -> None:
    """A worker's process ends without its exit handlers."""
    from console import spans

    spans.flush()
