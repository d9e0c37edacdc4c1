"""Typed readers of settings. Each names the variable, what it found and what it allows; none shows a password. No Django settings here."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_POSTGRES_SCHEMES = ("postgres", "postgresql")
_STORE_SCHEMES = (*_POSTGRES_SCHEMES, "mongodb", "mongodb+srv", "polign+http", "polign+https", "memory")
_BROKER_SCHEMES = ("amqp", "amqps", "redis", "rediss", "redis+socket", "sentinel", "memory")
_ANCHOR_SCHEMES = ("file", "syslog", "https", "http", "mailto")
_EMAIL_BACKENDS = {"smtp": "smtp", "smtps": "smtp", "smtp+tls": "smtp", "console": "console", "memory": "locmem"}
# Of libpq's parameters those that say how to reach a server. Anything else in an address is more likely a mistake.
_LIBPQ_PARAMETERS = frozenset(
    [
        "host",
        "port",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "channel_binding",
        "connect_timeout",
        "application_name",
        "target_session_attrs",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "options",
        "passfile",
        "gssencmode",
    ]
)
# A server that vanished, or a network that swallows everything, is noticed within seconds and not after the kernel's quarter of an hour.
_NOTICED_SOON = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")
_STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Recall's own names for the backends whose records we can read, and ours. `local` is a polign_db that only Recall can find.
_RECALL_BACKENDS = {"pgvector": _POSTGRES_SCHEMES, "mongodb": ("mongodb", "mongodb+srv"), "polign": ("http", "https")}


def with_demo_settings(environment: Mapping[str, str], data: Path) -> Mapping[str, str]:
    """Without DATABASE_URL: the running demo's settings, under whatever the environment itself says.

    `demo.json` is for people and scripts; `demo.env.json` beside it is a flat mapping of variables, written by the demo.
    """
    if environment.get("DATABASE_URL"):
        return environment
    described = _json_object(data / "demo.json")
    if described is None:
        raise ImproperlyConfigured("DATABASE_URL is not set and no demo is running; set it, or start one with ./run demo")
    demo = {
        "DATABASE_URL": described.get("database_url"),
        "ACTION_STORES": described.get("stores"),
        "BASE_URL": described.get("url"),
    }
    demo |= _json_object(data / "demo.env.json") or {}
    return {name: str(value) for name, value in demo.items() if value} | {k: v for k, v in environment.items() if v}


def _json_object(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ImproperlyConfigured(f"DATABASE_URL is not set and {file} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise ImproperlyConfigured(f"DATABASE_URL is not set and {file} holds no JSON object; start the demo again")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSignOn:
    """The one OpenID Connect provider by which people may come in."""

    issuer: str  # exactly as the provider says it
    client_id: str
    client_secret: str = field(repr=False)
    domains: tuple[str, ...]  # whose verified addresses may become new people; empty: nobody new
    name: str  # on the button

    def app(self) -> dict[str, Any]:
        """As allauth wants it."""
        return {
            "provider_id": "sso",
            "name": self.name,
            "client_id": self.client_id,
            "secret": self.client_secret,
            "settings": {"server_url": self.issuer.rstrip("/") + "/.well-known/openid-configuration"},
        }


class Environment:
    """Variables by name. An empty value counts as unset, as compose files write it."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str) -> str:
        return self._values.get(name) or default

    def required(self, name: str, why: str) -> str:
        value = self._values.get(name)
        if not value:
            raise ImproperlyConfigured(f"{name} is not set; {why}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if not value:
            return default
        if value.lower() not in _BOOLEANS:
            raise ImproperlyConfigured(f"{name} is {value!r}; allowed: {', '.join(_BOOLEANS)}")
        return _BOOLEANS[value.lower()]

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise ImproperlyConfigured(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        return value

    def integer(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        value = self._values.get(name)
        if not value:
            return default
        if not re.fullmatch(r"[0-9]{1,12}", value) or not lowest <= int(value) <= highest:
            raise ImproperlyConfigured(f"{name} is {value!r}; allowed: whole numbers from {lowest} to {highest}")
        return int(value)

    def minutes(self, name: str, default: int, *, highest: int) -> timedelta:
        return timedelta(minutes=self.integer(name, default, lowest=1, highest=highest))

    def words(self, name: str) -> list[str]:
        """A list separated by spaces or commas."""
        return self._values.get(name, "").replace(",", " ").split()

    def hosts(self, name: str) -> list[str]:
        for host in (hosts := self.words(name)):
            if "/" in host:
                raise ImproperlyConfigured(f"{name} holds {host!r}; allowed: host names such as settle.example.com, no addresses")
        return hosts

    def origins(self, name: str) -> list[str]:
        return [self._address(name, origin, ("http", "https")).geturl() for origin in self.words(name)]

    def base_url(self, name: str, default: str) -> str:
        return self._address(name, self.text(name, default), ("http", "https")).geturl().rstrip("/")

    def optional_url(self, name: str) -> str:
        """An address over http; empty where there is none."""
        return self.base_url(name, "") if self._values.get(name) else ""

    def broker(self, name: str) -> str:
        url = self.text(name, "memory://")
        self._scheme(name, url, _BROKER_SCHEMES)
        return url

    def keys(self, name: str) -> tuple[str, ...]:
        """Keys of 32 bytes in base64, newest first: the first one encrypts or signs, all of them decrypt or verify."""
        keys = tuple(self.words(name))
        for number, key in enumerate(keys, start=1):
            if _decoded_length(key) != 32:
                raise ImproperlyConfigured(
                    f"{name} holds as key {number} {len(key)} characters that are not it; allowed: 32 bytes in base64, as "
                    "`openssl rand -base64 32` prints, several separated by spaces"
                )
        return keys

    def public_keys(self, name: str) -> tuple[str, ...]:
        """Public keys of 32 bytes in base64: what signing keys that were taken out have signed goes on counting."""
        return self.keys(name)

    def anchors(self, name: str) -> tuple[str, ...]:
        """Places outside of the databases: `file:/path`, `syslog:` or `syslog://host:514`, `https://...`, `mailto:somebody@example.com`."""
        places = tuple(dict.fromkeys(self.words(name)))
        for place in places:
            parts = self._scheme(name, place, _ANCHOR_SCHEMES)
            if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
                raise ImproperlyConfigured(f"{name} holds {shown(place)!r}; allowed: file:/absolute/path")
            if parts.scheme == "mailto" and "@" not in parts.path:
                raise ImproperlyConfigured(f"{name} holds {shown(place)!r}; allowed: mailto:somebody@example.com")
        return places

    def database(self, name: str) -> dict[str, Any]:
        """Django's description of a PostgreSQL database: by TCP, or `postgres://user@/db?host=/socket/folder`.

        Unless the address says otherwise, connecting takes 5 s at most and a server that is gone is noticed within some 10 s.
        """
        url = self.required(name, "it names the console's PostgreSQL database, postgres://user:password@host:5432/name")
        parts = self._scheme(name, url, _POSTGRES_SCHEMES)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(parameters.keys() - _LIBPQ_PARAMETERS):
            allowed = ", ".join(sorted(_LIBPQ_PARAMETERS))
            raise ImproperlyConfigured(f"{name} has the parameter {unknown[0]!r}; allowed: {allowed}")
        database = unquote(parts.path.removeprefix("/"))
        if not database:
            raise ImproperlyConfigured(f"{name} is {shown(url)!r}; it names no database: postgres://user:password@host:5432/name")
        return {
            "NAME": database,
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parameters.pop("host", unquote(parts.hostname or "")),
            "PORT": parameters.pop("port", str(self._port(name, url, parts) or "")),
            "OPTIONS": _NOTICED_SOON | parameters,
        }

    def stores(self, name: str) -> dict[str, str]:
        """Store names and addresses, in their order: `name=url name=url`, spaces inside a url as %20. Unset: Recall's own variables."""
        stores: dict[str, str] = {}
        for word in self._values.get(name, "").split():
            store, equals, url = word.partition("=")
            if not equals or not _STORE_NAME.fullmatch(store):
                raise ImproperlyConfigured(
                    f"{name} holds {shown(word)!r}; allowed: name=url, separated by spaces, with names of a-z, 0-9, _ and -"
                )
            if store == "console":
                raise ImproperlyConfigured(f"{name} calls a store console; that is the name of the console's own history")
            if store in stores:
                raise ImproperlyConfigured(f"{name} names the store {store!r} twice")
            self._scheme(f"{name} ({store})", url, _STORE_SCHEMES)
            stores[store] = url
        return stores or self._recall_store()

    def _recall_store(self) -> dict[str, str]:
        backend, url = self._values.get("RECALL_BACKEND"), self._values.get("RECALL_BACKEND_URL")
        if not backend and not url:
            return {}
        if backend not in _RECALL_BACKENDS:
            raise ImproperlyConfigured(
                f"RECALL_BACKEND is {backend!r}; allowed here: {', '.join(_RECALL_BACKENDS)}; or set ACTION_STORES"
            )
        if not url:
            raise ImproperlyConfigured(f"RECALL_BACKEND_URL is not set; RECALL_BACKEND is {backend!r} and needs it")
        parts = self._scheme("RECALL_BACKEND_URL", url, _RECALL_BACKENDS[backend])
        parts = _with_password(parts, self._values.get("RECALL_BACKEND_KEY", ""))
        if collection := self._values.get("RECALL_COLLECTION"):
            query = "&".join(filter(None, [parts.query, f"collection={quote(collection, safe='')}"]))
            parts = parts._replace(query=query)
        return {"main": ("polign+" if backend == "polign" else "") + parts.geturl()}

    def single_sign_on(self, *, production: bool) -> SingleSignOn | None:
        """OIDC_ISSUER, OIDC_CLIENT_ID and OIDC_CLIENT_SECRET, all or none; OIDC_ALLOWED_DOMAINS and OIDC_NAME beside them."""
        needed = ("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET")
        found = [self._values.get(name, "") for name in needed]
        domains = tuple(domain.lower().lstrip("@") for domain in self.words("OIDC_ALLOWED_DOMAINS"))
        if not any(found):
            if domains:
                raise ImproperlyConfigured("OIDC_ALLOWED_DOMAINS is set and OIDC_ISSUER is not; set both, or neither")
            return None
        if missing := [name for name, value in zip(needed, found, strict=True) if not value]:
            raise ImproperlyConfigured(f"{missing[0]} is not set; single sign-on needs {', '.join(needed)}, or none of them")
        self._address("OIDC_ISSUER", found[0], ("https",) if production else ("https", "http"))
        if bad := next((domain for domain in domains if not _DOMAIN.fullmatch(domain)), None):
            raise ImproperlyConfigured(
                f"OIDC_ALLOWED_DOMAINS holds {bad[:80]!r}; allowed: domains such as example.com, no wildcards"
            )
        return SingleSignOn(
            issuer=found[0],
            client_id=found[1],
            client_secret=found[2],
            domains=domains,
            name=self.text("OIDC_NAME", "single sign-on")[:40],
        )

    def email(self, name: str) -> dict[str, Any]:
        """Django's mail settings: smtp://, smtp+tls:// (STARTTLS), smtps://, console: or memory:. Unset: console."""
        url = self.text(name, "console:")
        parts = self._scheme(name, url, tuple(_EMAIL_BACKENDS))
        backend = f"django.core.mail.backends.{_EMAIL_BACKENDS[parts.scheme]}.EmailBackend"
        return {
            "EMAIL_BACKEND": backend,
            "EMAIL_HOST": parts.hostname or "localhost",
            "EMAIL_PORT": self._port(name, url, parts) or {"smtps": 465, "smtp+tls": 587}.get(parts.scheme, 25),
            "EMAIL_HOST_USER": unquote(parts.username or ""),
            "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
            "EMAIL_USE_TLS": parts.scheme == "smtp+tls",
            "EMAIL_USE_SSL": parts.scheme == "smtps",
            "EMAIL_TIMEOUT": 10,
        }

    def _address(self, name: str, url: str, schemes: Sequence[str]) -> SplitResult:
        parts = self._scheme(name, url, schemes)
        if not parts.hostname:
            raise ImproperlyConfigured(f"{name} is {shown(url)!r}; it names no host")
        return parts

    def _scheme(self, name: str, url: str, schemes: Sequence[str]) -> SplitResult:
        try:
            parts = urlsplit(url)
        except ValueError as exc:
            raise ImproperlyConfigured(f"{name} is {shown(url)!r}; that is no address: {exc}") from exc
        if ":" not in url or parts.scheme not in schemes:
            raise ImproperlyConfigured(f"{name} is {shown(url)!r}; allowed: addresses that begin with {', '.join(schemes)}")
        return parts

    def _port(self, name: str, url: str, parts: SplitResult) -> int | None:
        try:
            return parts.port
        except ValueError as exc:
            raise ImproperlyConfigured(f"{name} is {shown(url)!r}; its port is not a number from 0 to 65535") from exc


def shown(url: str) -> str:
    """An address as it may stand in a message: without password, and without what follows `?`, where keys hide too."""
    return re.sub(r"(://[^/@]*:)[^@]*(@)", r"\1***\2", url.split("?", 1)[0])


def _with_password(parts: SplitResult, password: str) -> SplitResult:
    """Recall's separate credential, put where an address has it; one in the address wins, as in Recall."""
    if not password or parts.password:
        return parts
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{host}")


def _decoded_length(key: str) -> int | None:
    try:
        return len(base64.b64decode(key.replace("-", "+").replace("_", "/") + "=" * (-len(key) % 4), validate=True))
    except binascii.Error:
        return None
