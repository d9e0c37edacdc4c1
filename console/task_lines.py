"""One line for each task of a worker, with the id of the request that sent it. Imported by celery.py, so it asks for nothing of Django's."""

from __future__ import annotations

import time
from typing import Any

import structlog
from celery.signals import before_task_publish, setup_logging, task_postrun, task_prerun
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from console.trouble import name_of, way_of

log = structlog.get_logger("console.task")

_HEADER = "settle_request_id"
_began: dict[str, float] = {}


@setup_logging.connect
def leave_logging_alone(**_: Any) -> None:
    """Celery makes handlers of its own where nobody listens here; settings.py has made ours."""


@before_task_publish.connect
def hand_on_request(headers: dict[str, Any] | None = None, **_: Any) -> None:
    found = get_contextvars().get("request_id")
    if headers is not None and found:
        headers[_HEADER] = found


@task_prerun.connect
def begin_line(task_id: str = "", task: Any = None, **_: Any) -> None:
    """A task that beat sent has no request: its own id stands in its place, so that what it sends can be followed too."""
    clear_contextvars()
    headers = getattr(task.request, "headers", None) or {}
    said = getattr(task.request, _HEADER, None) or headers.get(_HEADER)
    bind_contextvars(request_id=said or task_id, task_id=task_id)
    _began[task_id] = time.perf_counter()


@task_postrun.connect
def end_line(task_id: str = "", task: Any = None, state: str = "", retval: Any = None, **_: Any) -> None:
    """Its arguments are numbers of rows or, of one task, what somebody typed: they are left out. Of an error its kind and way."""
    from console.services.tallies import flush  # Django is set up by now

    took = time.perf_counter() - _began.pop(task_id, time.perf_counter())
    problem = {"error": name_of(retval), "way": way_of(retval)} if isinstance(retval, BaseException) else {}
    say = log.error if problem else log.info
    say("task", task=task.name.rpartition(".")[2], state=state.lower(), ms=round(took * 1000, 1), **problem)
    flush()
    clear_contextvars()
