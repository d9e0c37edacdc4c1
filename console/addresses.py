"""Addresses of pages, or none: stores and histories may hold ids and numbers that no address can express."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from urllib.parse import parse_qs, urlsplit

from django.urls import NoReverseMatch, get_script_prefix, reverse

from actions.records import ActionRef

_AGENT = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,128}", re.ASCII)  # a browser would resolve the dots away
_NUMBER = re.compile(r"[1-9]\d{0,17}", re.ASCII)
_PLAIN_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_REF = re.compile(r"([^/]+)/([^/]+)/([^/]+)")


def action_address(store: str, agent: str, seq: int | None, *, view: str = "action") -> str:
    """The address of an action's page, or of a piece of it; empty where there is none."""
    return _reverse(view, store, agent, seq) if _is_agent(agent) and is_number(seq) else ""


def agent_address(store: str, agent: str, *, view: str = "agent") -> str:
    """The address of an agent's page, or of a piece of it; empty where there is none."""
    return _reverse(view, store, agent) if _is_agent(agent) else ""


def entry_address(store: str, number: int | None) -> str:
    """The address of one entry of a store's history; empty where there is none."""
    return _reverse("entry", store, number) if is_number(number) else ""


def tool_address(tool: str, *, view: str = "tool") -> str:
    """The address of a tool's page; empty where the name is empty. Names that an address cannot hold are written in base64url after a `~`."""
    return _reverse(view, tool_slug(tool)) if tool else ""


def tool_slug(tool: str) -> str:
    """A tool's name as its address holds it; the same name has one address."""
    if _PLAIN_TOOL.fullmatch(tool):
        return tool
    return "~" + base64.urlsafe_b64encode(tool.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def parse_tool(slug: str) -> str:
    """The name in a tool's address; empty where it holds none, or not as `tool_slug` writes it."""
    if not slug.startswith("~"):
        return slug
    try:
        tool = base64.b64decode(slug[1:] + "=" * (-len(slug[1:]) % 4), altchars=b"-_", validate=True).decode(
            "utf-8", "surrogatepass"
        )
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return tool if tool_slug(tool) == slug else ""


def parse_ref(text: str) -> ActionRef | None:
    """The action named in an address (`store/agent/number`); None where it names none that has a page."""
    found = _REF.fullmatch(text)
    if found is None or not _NUMBER.fullmatch(found[3]):
        return None
    ref = ActionRef(found[1], found[2], int(found[3]))
    return ref if action_address(ref.store, ref.agent, ref.seq) else None


def read_ref(text: str) -> ActionRef | None:
    """The action that a program names as `store/agent/number`, whether or not a page can show it; None where it names none."""
    store, _, rest = text.partition("/")
    agent, _, number = rest.rpartition("/")
    return ActionRef(store, agent, int(number)) if store and agent and _NUMBER.fullmatch(number) else None


def parse_typed_ref(text: str, *hosts: str) -> ActionRef | None:
    """The action that a person names: `store/agent/number`, or the address of its page, with or without one of our own `hosts`.

    The queue's address with an action opened beside it names that one. None where it names none.
    """
    try:
        parts = urlsplit(text.strip())
    except ValueError:
        return None
    if (parts.scheme or parts.netloc) and (parts.scheme not in ("http", "https") or parts.netloc not in hosts):
        return None
    opened = parse_qs(parts.query).get("open", [""])[0] if parts.path in ("", "/") else ""
    return parse_ref(opened or parts.path.removeprefix("/actions/").removesuffix("/"))


def is_number(number: object) -> bool:
    """Whether an address can express it; longer numbers are not even turned into text."""
    return isinstance(number, int) and 0 < number < 10**18


def _is_agent(agent: str) -> bool:
    return _AGENT.fullmatch(agent) is not None


def _reverse(view: str, *args: object) -> str:
    return _reversed(get_script_prefix(), view, *args)


@lru_cache(maxsize=4_096)
def _reversed(prefix: str, view: str, *args: object) -> str:
    """Every strip has several addresses, and finding one goes through all patterns; `prefix` is part of each."""
    try:
        return reverse(view, args=args)
    except NoReverseMatch:
        return ""
