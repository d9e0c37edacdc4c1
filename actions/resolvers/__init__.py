"""Resolvers: asking the outside world whether a call happened. `build_resolver` picks the kind; its protocol library is imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import cast

from actions.resolvers.base import NOTHING_ALLOWED, Allowed, Build, InvalidDefinition, Kind, Resolver

KINDS = ("imap", "http", "stripe", "sql", "python")
"""Each is a module of this package with a `KIND` and a `build`. A new kind is one module, one test file and its name here."""


def get_kind(name: str) -> Kind:
    """Raises InvalidDefinition where there is no such kind."""
    return cast("Kind", _module(name).KIND)


def build_resolver(
    kind: str,
    name: str,
    settings: Mapping[str, str],
    secrets: Mapping[str, str] | None = None,
    *,
    allowed: Allowed = NOTHING_ALLOWED,
) -> Resolver:
    """A resolver of that kind from the texts of its form; connects to nothing.

    Raises:
        InvalidDefinition: no such kind, or a setting that cannot be used; it never repeats a secret.
    """
    build = cast("Build", _module(kind).build)
    return build(name, settings, secrets or {}, allowed)


def _module(name: str) -> ModuleType:
    if name not in KINDS:
        raise InvalidDefinition("kind", f"no kind of resolver is called {name[:40]!r}; there are {', '.join(KINDS)}")
    return import_module(f"actions.resolvers.{name}")
