"""A resolver that asks the console what an operator decided. Works in our harness, and as it is in recall-langgraph's `RecallResume`.

It only reads, and only decides what nobody has to guess: whatever is not a decision about exactly this call is "cannot tell".
"""

from __future__ import annotations

import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol
from urllib.parse import quote

from actions.digests import canonical_json, sha256_text
from actions.keys import action_key, is_agent_id
from actions.resolvers.web import AddressRefused, Response, WebAddress, WebError, WebLimits, fetch, parse_address
from actions.rules import MAX_VALUE_BYTES, is_utf8
from actions.turns import cut_bytes

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 12 * MAX_VALUE_BYTES
"""A result of 1 MiB whose every character is escaped, and room for the rest."""
MAX_RESOLUTION_BYTES = 2_700
"""Recall's reconcile cuts the turn's brief at 4000 characters and refuses it above 4096 bytes, after it has closed the action: what is
longer would stop an agent in the middle. The whole reason stands in the console."""

_TOKEN = re.compile(r"[\x21-\x7e]{1,500}", re.ASCII)
_TOLD_STATES = ("waiting", "written")
_TOLD_OUTCOMES = ("done", "failed")


class OpenAction(Protocol):
    """What is read of an action: ours, and Recall's own, which does not say whose it is. Recall calls the class `class_`."""

    @property
    def seq(self) -> int: ...
    @property
    def tool(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def args(self) -> str: ...
    @property
    def args_ref(self) -> str: ...
    @property
    def epoch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Decided:
    """An end as a reconcile takes it: with these four names, whoever's class it is."""

    status: str  # done or failed
    result: str = ""
    error: str = ""
    resolution: str = ""  # "operator ana: found in the Sent folder"


class _CannotTell(Exception):
    """Why there is no end, in words for the agent's log."""


class _NothingYet(_CannotTell):
    """Nobody has decided: nothing is wrong."""


def console_resolver(
    url: str, token: str, *, store: str = "", agent: str = "", timeout_s: float = 5.0, tls: ssl.SSLContext | None = None
) -> Callable[[OpenAction], Decided | None]:
    """A resolver that answers what was decided about an open action in the console at `url` (`https://settle.example.com`).

    `token` is that agent's own, from `create_token --agent STORE AGENT`; the console says whose it is, and `store` and `agent`, where given,
    have to be that. A decision is told where it is waiting or written, is `done` or `failed`, and is about exactly this call: its key, tool,
    class, arguments and epoch (with arguments of more than 8000 bytes, which stand in an output, key and tool). `abandoned` is not told:
    Recall writes no turn for it, and its model would be left blind; the console writes it, with its turn, once the agent is free.

    Everything else is None, "cannot tell", and a line in the log: nothing decided, proposed, held, no right, a redirect, no answer within
    `timeout_s` seconds from the look-up of the name to the last byte, an answer that is no decision. The token is never logged. It never
    raises, and asks at most twice: whose token it is (once for all), and the decision. No proxy of the environment's is asked.

    `tls` replaces the authorities of the system. Plain http sends the token readable: for a laptop, or a network that you trust.

    Raises:
        ValueError: the URL, token, store, agent or time cannot be used. Nothing was sent.
    """
    for what, given in (("the console's address", url), ("the token", token)):
        if not isinstance(given, str):
            raise ValueError(f"{what} is {type(given).__name__}, not a text; is its variable set?")
    base = _base(url)
    if not _TOKEN.fullmatch(token):
        raise ValueError("the token is empty, or holds a space or a character that no token has")
    if bool(store) != bool(agent):
        raise ValueError("give store and agent, or neither: the console knows whose token it is")
    if agent and not is_agent_id(agent):
        raise ValueError("the agent's id is 1 to 128 letters, digits, '.', '_' or '-'")
    if not 0 < timeout_s < float("inf"):
        raise ValueError("timeout_s has to be a positive number of seconds")
    console = _Console(base=base, token=token, tls=tls, timeout_s=timeout_s)
    owners: list[tuple[str, str]] = []

    def resolve(action: OpenAction) -> Decided | None:
        which = "an action"
        try:
            which = f"action {action.seq} ({action.tool[:100]!r})"
            ends = monotonic() + timeout_s
            if not owners:
                owners.append(console.owner(ends, wanted=(store, agent)))
            return console.decision(*owners[0], action, ends)
        except _NothingYet as exc:
            log.info("%s stays open: %s", which, exc)
        except (_CannotTell, WebError) as exc:
            log.warning("%s stays open: %s", which, exc)
        except Exception as exc:
            # A resolver that raises would stop an agent's start; what it does not understand it cannot tell. Its words may quote anything.
            log.warning("%s stays open: asking the console broke with %s", which, type(exc).__name__)
        return None

    return resolve


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Console:
    """Where it is and who asks. No repr: it holds a token."""

    base: WebAddress
    token: str
    tls: ssl.SSLContext | None
    timeout_s: float

    def owner(self, ends: float, *, wanted: tuple[str, str]) -> tuple[str, str]:
        """Store and agent of the token."""
        said = self._get("token", ends)
        store, agent = said.get("store"), said.get("agent")
        if not (isinstance(store, str) and store and isinstance(agent, str) and is_agent_id(agent)):
            raise _CannotTell("the token is not an agent's own; make one with create_token --agent STORE AGENT")
        if wanted != ("", "") and wanted != (store, agent):
            raise _CannotTell(f"the token belongs to agent {agent} of store {store}, not to the one named")
        return store, agent

    def decision(self, store: str, agent: str, action: OpenAction, ends: float) -> Decided:
        if action.key != action_key(agent, action.seq):
            raise _CannotTell(f"the token belongs to agent {agent} of store {store}, and this is not an action of that agent")
        said = self._get(f"actions/{quote(store, safe='')}/{agent}/{action.seq}/decision", ends)
        state, outcome = said.get("state"), said.get("outcome")
        if state not in _TOLD_STATES:
            known = state if state in ("proposed", "held", "withdrawn", "refused") else "in no state that is known here"
            raise _NothingYet(f"what was decided about it is {known}")
        if outcome not in _TOLD_OUTCOMES:
            raise _NothingYet("it was decided as abandoned, which the console writes itself once the agent is free")
        if said.get("tool") != action.tool if action.args_ref else said.get("claim") != _claim_of(action):
            raise _CannotTell("what was decided is about another call that had its number")
        result, error, resolution = (_text(said, name) for name in ("result", "error", "resolution"))
        if (result and outcome != "done") or (error and outcome != "failed"):
            raise _CannotTell("the console's answer contradicts itself")
        return Decided(str(outcome), result, error, _shortened(resolution))

    def _get(self, path: str, ends: float) -> Mapping[str, Any]:
        answer = fetch(
            f"{self.base.scheme}://{self.base.authority}{self.base.target}api/v1/{path}",
            headers={"Authorization": f"Bearer {self.token}", "User-Agent": "settle-agent"},
            allowed_hosts=[self.base.authority, self.base.host],  # whoever starts the agent names it
            limits=WebLimits(seconds=max(ends - monotonic(), 0.001), body_bytes=MAX_ANSWER_BYTES),
            tls=self.tls,
        )
        return _object(answer)


def _base(url: str) -> WebAddress:
    try:
        host = re.match(r"[a-z]+://(\[[^\]]*\]|[^/?#:@]*)", url, re.IGNORECASE)
        base = parse_address(url.rstrip("/") + "/", [host[1]] if host else [])
    except AddressRefused as exc:
        raise ValueError(f"the console's address: {exc}") from None
    if "?" in base.target:
        raise ValueError("the console's address: it holds a query (?); give https://host, and a path where there is one")
    return base


def _object(answer: Response) -> Mapping[str, Any]:
    if answer.status == 404:
        raise _NothingYet("nothing was decided about it")
    if answer.status != 200:
        raise _CannotTell(f"the console answered {answer.status}" + _WHY.get(answer.status, ""))
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise _CannotTell("the console's answer is not JSON as it writes it; is that its address?")
    return said


_WHY = {401: ": the token is not valid there", 403: ": the token may not read this"}


def _text(said: Mapping[str, Any], name: str) -> str:
    text = said.get(name)
    if not isinstance(text, str):
        raise _CannotTell("the console's answer is not a decision as it writes it")
    if not is_utf8(text) or len(text.encode()) > MAX_VALUE_BYTES:
        raise _CannotTell("the console's answer holds what no record can keep")
    return text


def _claim_of(action: OpenAction) -> str:
    """`actions.digests.claim_digest` of an action of either kind, whose arguments are whole."""
    of_class = getattr(action, "action_class", None) or getattr(action, "class_", "")
    said = {"tool": action.tool, "args": action.args, "class": str(of_class), "key": action.key, "epoch": action.epoch}
    return sha256_text(canonical_json(said))


def _shortened(resolution: str) -> str:
    kept = cut_bytes(resolution, MAX_RESOLUTION_BYTES)
    return kept if kept == resolution else f"{kept}..."
