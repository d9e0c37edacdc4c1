"""A store's address as text: what is ours in it is taken out before a driver sees it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import unquote


def take_out(url: str, names: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """The address without these parameters, and their values, decoded; of one that stands twice the last."""
    base, question, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    taken = {name: unquote(value) for name, _, value in pairs if name in names}
    kept = "&".join("".join(pair) for pair in pairs if pair[0] not in names)
    return (f"{base}?{kept}" if kept else base) if question else url, taken
