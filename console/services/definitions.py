"""Resolvers as admins define them: versions, credentials, and building one that can be asked."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.utils import timezone

from actions.resolvers import KINDS, build_resolver, get_kind
from actions.resolvers.base import Allowed, InvalidDefinition, Kind, Resolver
from actions.resolvers.python import load_callables
from console.access import Right, may
from console.models import Definition, Inquiry, Secret
from console.services import journal
from console.services.policies import ChangedMeanwhile
from console.services.sealing import CannotUnseal, seal, unseal

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
MOST_PER_MINUTE, MOST_AT_ONCE = 6_000, 32


def list_kinds() -> list[Kind]:
    """Every kind of which a resolver can be made here."""
    return [kind for name in KINDS if (kind := find_kind(name)) is not None]


def find_kind(name: str) -> Kind | None:
    """None where there is none of that name, or its protocol library is not installed."""
    try:
        return get_kind(name)
    except (InvalidDefinition, ImportError):
        return None


def list_definitions() -> list[Definition]:
    """The newest version of each, by name."""
    return list(Definition.objects.order_by("name", "-version").distinct("name"))


def find_definition(name: str) -> Definition | None:
    """The newest version; None where there is none of that name."""
    return Definition.objects.filter(name=name).order_by("-version").first()


def list_versions(name: str, *, limit: int = 50) -> list[Definition]:
    """Who changed what when, newest first."""
    return list(Definition.objects.filter(name=name).order_by("-version")[:limit])


def secrets_set(name: str) -> dict[str, Secret]:
    """Which credentials are set, by field: who and when, never what."""
    return {secret.field: secret for secret in Secret.objects.filter(name=name).defer("ciphertext")}


def options_of(definition: Definition) -> dict[str, str]:
    return cast("dict[str, str]", json.loads(definition.options))


def save_definition(
    name: str,
    kind: str,
    values: Mapping[str, str],
    secrets: Mapping[str, str],
    *,
    seen_version: int,
    by: User,
    per_minute: int = 60,
    at_once: int = 4,
    is_enabled: bool = True,
) -> Definition:
    """Store a new version, after building it once. An empty secret keeps the one that is set, one that is typed is a change.

    Where nothing differs it is the version in force, and nothing is stored: a new one would throw away negatives. Either way what got
    no answer is asked again now: whoever mended something wants to see that it answers. What differs enters the console's history with
    it; of credentials only which were set, replaced or removed.

    Raises:
        PermissionDenied: not an admin of everything. Nothing was stored.
        InvalidDefinition, ChangedMeanwhile: nothing was stored.
    """
    require_admin(by)
    if not _NAME.fullmatch(name):
        raise InvalidDefinition("name", "1 to 63 small letters, digits and '-', as in sent-folder")
    if not 1 <= per_minute <= MOST_PER_MINUTE:
        raise InvalidDefinition("per_minute", f"from 1 to {MOST_PER_MINUTE}")
    if not 1 <= at_once <= MOST_AT_ONCE:
        raise InvalidDefinition("at_once", f"from 1 to {MOST_AT_ONCE}")
    current = find_definition(name)
    if (current.version if current else 0) != seen_version:
        raise ChangedMeanwhile(f"resolver {name}", current.version if current else 0, current.username if current else "nobody")
    kept = _reusable_secrets(current, kind, values)
    known = {field.name for field in get_kind(kind).fields}
    given = {field: text for field, text in secrets.items() if text}
    if unknown := sorted({*values, *given} - known):
        raise InvalidDefinition(unknown[0][:63], f"is no setting of {kind}")
    build_resolver(kind, name, values, kept | given, allowed=allowed())
    new = (kind, _said(values), per_minute, at_once, is_enabled)
    if current is not None and not given and new == _content(current):
        with transaction.atomic(durable=True):
            _ask_stuck(name)
        return current
    try:
        with transaction.atomic(durable=True):
            row = Definition.objects.create(
                name=name,
                version=seen_version + 1,
                kind=kind,
                options=json.dumps(dict(values), sort_keys=True),
                per_minute=per_minute,
                at_once=at_once,
                is_enabled=is_enabled,
                secrets_set=",".join(sorted(given)),
                by=by,
                username=by.get_username(),
            )
            before = set(Secret.objects.filter(name=name).values_list("field", flat=True))
            Secret.objects.filter(name=name).exclude(field__in=kept).delete()
            for field, text in given.items():
                Secret.objects.update_or_create(
                    name=name, field=field, defaults={"ciphertext": seal(text), "username": by.get_username()}
                )
            _ask_stuck(name)
            changed = journal.changes(_in_entry(current), _in_entry(row))
            if given or not before <= kept.keys():
                now = [_sealed(field, before, given, kept) for field in sorted(before | given.keys())]
                changed["sealed"] = [[f"{field} set" for field in sorted(before)], now]
            journal.record("resolver_changed", actor=journal.admin(by), detail={"about": name, "changed": changed})
    except IntegrityError as exc:
        newest = find_definition(name)
        raise ChangedMeanwhile(f"resolver {name}", newest.version if newest else 0, newest.username if newest else "") from exc
    return row


def _content(definition: Definition) -> tuple[Any, ...]:
    rates = definition.per_minute, definition.at_once, definition.is_enabled
    return definition.kind, _said(options_of(definition)), *rates


def _in_entry(definition: Definition | None) -> dict[str, object]:
    if definition is None:
        return {}
    fields = {field: getattr(definition, field) for field in ("version", "kind", "per_minute", "at_once", "is_enabled")}
    return fields | _said(options_of(definition))


def _sealed(field: str, before: Collection[str], given: Collection[str], kept: Collection[str]) -> str:
    """What became of one credential, in words; never what it is."""
    if field not in given:
        return f"{field} set" if field in kept else f"{field} removed"
    return f"{field} replaced" if field in before else f"{field} set"


def _said(values: Mapping[str, str]) -> dict[str, str]:
    """A field that is empty says nothing, whether it was saved or not."""
    return {name: text for name, text in values.items() if text}


def _ask_stuck(name: str) -> None:
    stuck = Inquiry.objects.filter(resolver=name, misses__gt=0, due_at__isnull=False)
    stuck.update(due_at=timezone.now(), queued_until=None, misses=0, problem="")


def build(definition: Definition) -> Resolver:
    """A resolver that can be asked. The same object for the same version: a change of credentials is a version too.

    Raises:
        InvalidDefinition: it is switched off, a secret is missing or cannot be opened, or a setting cannot be used any more.
    """
    if not definition.is_enabled:
        raise InvalidDefinition("is_enabled", f"resolver {definition.name} is switched off")
    return _build(definition.pk)


@lru_cache(maxsize=256)
def _build(pk: int) -> Resolver:
    definition = Definition.objects.get(pk=pk)
    return build_resolver(
        definition.kind, definition.name, options_of(definition), _kept_secrets(definition.name), allowed=allowed()
    )


def build_draft(name: str, kind: str, values: Mapping[str, str], secrets: Mapping[str, str]) -> Resolver:
    """A resolver from a form that was not saved: empty secrets are the ones that are set. For a dry run. Raises InvalidDefinition."""
    kept = _reusable_secrets(find_definition(name), kind, values)
    return build_resolver(kind, name, values, kept | {field: text for field, text in secrets.items() if text}, allowed=allowed())


def allowed() -> Allowed:
    """What this deployment's settings allow resolvers. A callable that cannot be imported is left out: whoever names it is told so."""
    found: dict[str, Callable[..., Any]] = {}
    for path in settings.RESOLVER_CALLABLES:
        try:
            found |= load_callables([path])
        except InvalidDefinition as exc:
            log.error("RESOLVER_CALLABLES: %s", exc.problem)
    return Allowed(hosts=frozenset(host.lower() for host in settings.RESOLVER_ALLOWED_HOSTS), callables=found)


def require_admin(by: User) -> None:
    """A resolver's address gets credentials and arguments of every tool that names it: only who may administer everything writes it."""
    if not may(by, Right.ADMIN):
        raise PermissionDenied("you need the role admin, in every store and for every tool")


def _reusable_secrets(current: Definition | None, kind: str, values: Mapping[str, str]) -> dict[str, str]:
    """What is set may be used again only where it goes to the same place: else whoever edits an address could read a secret there."""
    if current is None or current.kind != kind:
        return {}
    before = options_of(current)
    if any(before.get(field.name, "") != values.get(field.name, "") for field in get_kind(kind).fields if field.is_address):
        return {}
    return _kept_secrets(current.name)


def _kept_secrets(name: str) -> dict[str, str]:
    try:
        return {secret.field: unseal(secret.ciphertext) for secret in Secret.objects.filter(name=name)}
    except CannotUnseal as exc:
        raise InvalidDefinition("secrets", str(exc)) from exc
