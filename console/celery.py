"""The Celery application: `celery -A console worker`; beat.py is the same without tasks. Tasks live in tasks.py, settings in settings.py."""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Any

from celery import Celery
from celery.signals import worker_before_create_process, worker_process_shutdown

from console import task_lines  # noqa: F401 - listens from now on
from console.schedule import SCHEDULE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
# Django's checks look at every page, which no worker draws: `migrate` and the web processes have made them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")
app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.conf.beat_schedule = SCHEDULE


@worker_before_create_process.connect
def load_kinds(**_: Any) -> None:
    """Import what tasks need before the worker forks, else the first question in each of its processes waits for that, and each has its own
    copy of it. What is there by now is left alone by the garbage collector, so that the processes go on sharing it."""
    from console.services.definitions import list_kinds  # Django is set up by now, and was not when this module was imported

    list_kinds()
    from console import run_types, spans

    spans.load()
    if run_types.is_any():
        import_module("console.services.advancing")
        import_module("console.run_checkpoints")
        import_module("agents.langchain_middleware")
    gc.collect()
    gc.freeze()


@worker_process_shutdown.connect
def send_spans(**_: Any) -> None:
    """A worker's process ends without its exit handlers."""
    from console import spans

    spans.flush()
