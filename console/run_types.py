"""The run types of this installation: RUN_TYPES names modules, each with a `RUN_TYPES` sequence. Imported at first use, checked once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from importlib import import_module

from django.conf import settings

from actions.errors import ActionsError
from agents.runs import RunType, RunTypeRefused, check_run_type
from console.trouble import log_unexpected

log = logging.getLogger(__name__)

_lock = threading.Lock()
_known: dict[str, RunType] | RunTypeRefused | None = None


class UnknownRunType(ActionsError):
    """No run type of that name is registered. Nothing was started."""


def run_types() -> dict[str, RunType]:
    """Every registered type by name, in the order of the settings.

    Raises:
        RunTypeRefused: a module cannot be loaded, a declaration cannot work, or two have one name. No type is known then.
    """
    global _known
    with _lock:
        if _known is None:
            try:
                _known = _registered()
            except RunTypeRefused as exc:
                _known = exc  # said once; what mends it is other code, and another process
        if isinstance(_known, RunTypeRefused):
            raise RunTypeRefused(str(_known))
        return _known


def _registered() -> dict[str, RunType]:
    known: dict[str, RunType] = {}
    for module in settings.RUN_TYPES:
        for kind in _declared_in(module):
            check_run_type(kind, is_strict=settings.RUN_TYPES_STRICT)
            if kind.name in known:
                raise RunTypeRefused(f"two run types are called {kind.name}")
            known[kind.name] = kind
    return known


def _declared_in(module: str) -> Iterable[RunType]:
    try:
        return tuple(import_module(module).RUN_TYPES)
    except Exception as exc:  # whatever somebody's module raises: it takes no page and no worker away
        log_unexpected(log, f"loading {module}, which RUN_TYPES names", exc)
        raise RunTypeRefused(f"module {module} of RUN_TYPES cannot be loaded ({type(exc).__name__})") from exc


def is_any() -> bool:
    """Whether the settings name any; imports nothing."""
    return bool(settings.RUN_TYPES)


def find_run_type(name: str) -> RunType:
    """Raises UnknownRunType."""
    kind = run_types().get(name)
    if kind is None:
        raise UnknownRunType(f"no run type is called {name[:63]!r}; known: {', '.join(run_types()) or 'none'}")
    return kind


def forget() -> None:
    """Import them anew at the next use. For tests, whose settings change."""
    global _known
    with _lock:
        _known = None
