"""What Recall refuses to keep (recall-records 3.8), and how a value becomes the text that it keeps. Pure; checked before anything is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

from actions.errors import InvalidRecord
from actions.keys import AGENT_ID, is_agent_id
from actions.records import ActionClass, ActionStatus, NewTurn
from actions.turns import BRIEF_BYTES

MAX_VALUE_BYTES = 1_048_576
MAX_TOOL_BYTES = 128
MAX_MESSAGE_ID_BYTES = 256
DEFAULT_TTL = timedelta(seconds=60)
"""What a ttl of 0 means."""

SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
"""What Recall trims; Python's own strip would also take the four separators of ASCII."""

ROLES = ("system", "user", "assistant", "tool")
POINTER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "git_ref": ("sha", "branch"),
    "object": ("uri",),
    "env": ("image", "lockfile_hash", "setup"),
    "external": ("id", "url"),
    "process": ("command",),
}
"""The types of pointers, and of which fields each needs one."""


def check_agent_id(agent: object) -> str:
    if isinstance(agent, str) and is_agent_id(agent):
        return agent
    raise InvalidRecord(f"agent id must be 1-128 letters, digits, '.', '_' or '-', got {_said(agent)}")


def check_name(what: str, name: object) -> str:
    """The ref of an output or the name of a pointer."""
    if isinstance(name, str) and AGENT_ID.fullmatch(name):
        return name
    raise InvalidRecord(f"{what} must be 1-128 letters, digits, '.', '_' or '-', got {_said(name)}")


def check_tool(tool: object) -> str:
    trimmed = clean_text("tool name", tool).strip(SPACES)
    if not 1 <= len(trimmed.encode()) <= MAX_TOOL_BYTES:
        raise InvalidRecord(f"action needs a tool name of at most {MAX_TOOL_BYTES} bytes, got {_said(tool)}")
    return trimmed


def check_class(given: object) -> ActionClass:
    if given in tuple(ActionClass):
        return ActionClass(str(given))
    raise InvalidRecord(f'action class must be "pure", "idempotent" or "external", got {_said(given)}')


def check_end_status(given: object) -> ActionStatus:
    if given in tuple(ActionStatus) and given != ActionStatus.STARTED:
        return ActionStatus(str(given))
    raise InvalidRecord(f'an action ends "done", "failed", "abandoned" or "unknown", got {_said(given)}')


def check_holder(holder: object) -> str:
    """A text that every store can keep in a column of its own."""
    if clean_text("holder", holder) != holder or "\x00" in str(holder):
        raise InvalidRecord(f"holder must be a text without NUL and without halves of surrogate pairs, got {_said(holder)}")
    return str(holder)


def check_ttl(ttl: timedelta) -> timedelta:
    if ttl < timedelta(0):
        raise InvalidRecord(f"lease ttl must not be negative, got {ttl}")
    return ttl or DEFAULT_TTL


def check_turn(turn: NewTurn) -> NewTurn:
    """The turn as it is kept: name and message id trimmed, half surrogate pairs replaced."""
    if turn.role not in ROLES:
        raise InvalidRecord(f'turn role must be "system", "user", "assistant" or "tool", got {_said(turn.role)}')
    brief, message_id = clean_text("turn brief", turn.brief), clean_text("turn message id", turn.message_id).strip(SPACES)
    if len(brief.encode()) > BRIEF_BYTES:
        raise InvalidRecord(f"turn brief must be at most {BRIEF_BYTES} bytes, got {len(brief.encode())}")
    if len(message_id.encode()) > MAX_MESSAGE_ID_BYTES:
        raise InvalidRecord(f"turn message id must be at most {MAX_MESSAGE_ID_BYTES} bytes, got {len(message_id.encode())}")
    return NewTurn(
        role=turn.role,
        content=check_size("turn content", clean_text("turn content", turn.content)),
        name=clean_text("turn name", turn.name).strip(SPACES),
        brief=brief,
        message_id=message_id,
    )


def check_pointer(type_: object, fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields that are kept: blank ones are dropped."""
    needed = POINTER_FIELDS.get(type_) if isinstance(type_, str) else None
    if needed is None:
        raise InvalidRecord(f"pointer type must be one of {', '.join(POINTER_FIELDS)}, got {_said(type_)}")
    texts = {clean_text("pointer field", name): clean_text(f"pointer field {name}", value) for name, value in fields.items()}
    kept = {name: value for name, value in texts.items() if value.strip(SPACES)}
    if not any(name in kept for name in needed):
        raise InvalidRecord(f"a {type_} pointer needs one of: {', '.join(needed)}")
    return kept


def check_size(what: str, text: str) -> str:
    size = len(text.encode())
    if size > MAX_VALUE_BYTES:
        raise InvalidRecord(
            f"{what} is {size} bytes; the limit is {MAX_VALUE_BYTES}, store larger artifacts as objects and set a pointer"
        )
    return text


def clean_text(what: str, text: object) -> str:
    """A text as UTF-8 can hold it: two halves of a surrogate pair joined, a lone half replaced by U+FFFD, as Recall's client ends up with."""
    if not isinstance(text, str):
        raise InvalidRecord(f"{what} is {type(text).__name__}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)


def value_text(what: str, value: object) -> str:
    """Arguments or a result as they are kept: a text as it is, None as the empty one, anything else as JSON with sorted keys.

    What JSON does not know is kept as Python prints it, as Recall's client does.

    Raises:
        InvalidRecord: it refers to itself, is nested too deeply, its keys are not of one kind, or it is over 1,048,576 bytes.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, sort_keys=True, default=str)
        except Exception as exc:  # a value's own way of printing itself may raise anything
            raise InvalidRecord(f"{what} cannot be written as JSON: {type(exc).__name__}: {str(exc)[:200]}") from None
    return check_size(what, clean_text(what, value))


def _said(value: object) -> str:
    said = ascii(value)
    return said if len(said) <= 80 else f"{said[:77]}..."
