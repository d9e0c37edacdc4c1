"""A store's address as text: what is ours in it is taken out before a driver sees it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from actions.errors import StoreUnusable

PARAMETERS = ("serve", "serve_key")


def check_login(name: str, url: str) -> None:
    """Refuse a user or password with a bare `@` or `/`: what follows would be taken for a host or a database, and be told in errors.

    Raises:
        StoreUnusable: the sentence repeats nothing of the address.
    """
    place, _, path = url.partition("://")[2].partition("?")[0].partition("/")
    if place.count("@") > 1 or "@" in path:
        raise StoreUnusable(
            name, "its address has an @ too many; write special characters of user and password as %XX (@ is %40, / is %2F)"
        )


def take_out(url: str, names: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """The address without these parameters, and their values, decoded; of one that stands twice the last."""
    base, question, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    taken = {name: unquote(value) for name, _, value in pairs if name in names}
    kept = "&".join("".join(pair) for pair in pairs if pair[0] not in names)
    return (f"{base}?{kept}" if kept else base) if question else url, taken


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TenantAddress:
    """Where a tenant's server is. No repr: it holds a key."""

    url: str
    key: str


def split_address(name: str, url: str) -> tuple[str, TenantAddress | None]:
    """A store's address without `serve` and `serve_key`, and what they say; None where they are not there.

    Raises:
        StoreUnusable: one without the other, or not the address of a server. Nothing was connected to; the sentence repeats neither.
    """
    rest, said = take_out(url, PARAMETERS)
    if not said:
        return rest, None
    address, key = said.get("serve", ""), said.get("serve_key", "")
    if not address or not key:
        raise StoreUnusable(
            name, "serve and serve_key go together: the address of the tenant's server, and a key of its namespace"
        )
    try:
        parts = urlsplit(address)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not (key.isascii() and key.isprintable() and " " not in key):
        raise StoreUnusable(
            name, "serve is an address such as https://host/mcp with special characters as %XX, serve_key what `recall key` made"
        )
    return rest, TenantAddress(url=address, key=key)
