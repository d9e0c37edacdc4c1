"""Beat alone: `celery -A console.beat beat` sends what schedule.py names when it is due, and loads nothing of what the tasks do.

`celery -A console beat` does the same with all of the console in memory.
"""

from __future__ import annotations

import os

from celery import Celery
from django.conf import settings
from django.utils.log import configure_logging

from console.schedule import SCHEDULE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)  # nobody sets Django up here
app = Celery("console", fixups=[])  # Celery's own for Django would import every task
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = SCHEDULE
