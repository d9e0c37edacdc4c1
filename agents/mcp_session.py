"""The agents that one client of the MCP server holds, and the tools by which it writes their records. Knows no protocol."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from actions.errors import ActionsError, LeaseLive, LeaseLost, LeaseNotHeld, StoreUnavailable
from actions.keys import is_agent_id
from actions.records import Unreadable
from actions.store.base import AgentStore
from actions.times import SECOND, format_rfc3339
from actions.turns import OVERFLOW_BYTES
from agents.briefing import TOKEN_BUDGET, Briefing
from agents.harness import DurableAgent
from agents.mcp_arguments import (
    BOOLEAN,
    INTEGER,
    STRING,
    STRING_MAP,
    STRINGS,
    Schema,
    ToolRefused,
    one_of,
    read_arguments,
    schema,
)
from agents.mcp_shapes import (
    Json,
    action_json,
    output_json,
    pointer_json,
    turn_json,
    whole_output_json,
    working_state_json,
)

log = logging.getLogger(__name__)

MAX_AGENTS = 64
"""How many agents one client holds at a time: each keeps its lease alive in a thread of its own."""
DEFAULT_TURNS, MAX_TURNS = 20, 200
MAX_STATES = 200
DEFAULT_TTL_S, MAX_TTL_S = 60, 30 * 86_400
DEFAULT_THRESHOLD = OVERFLOW_BYTES // 4


@dataclass(slots=True, kw_only=True)
class _Held:
    """One agent of this client. Its calls come one after the other, however many the client makes at once."""

    agent: DurableAgent
    token_budget: int
    lock: threading.Lock
    is_acquired: bool


class Session:
    """What one client holds. Every method may be called from any thread; `close` gives back what is held."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._held: dict[str, _Held] = {}
        self._coming: set[str] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self, name: str, given: Mapping[str, Any] | None) -> Any:
        """Carry out one tool; the answer is JSON.

        Raises:
            ToolRefused: why not. Nothing was written, unless its text says that nobody knows.
        """
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolRefused(f"there is no tool {name[:60]!r} here; there are {', '.join(TOOLS)}")
        arguments = read_arguments(name, tool.schema, given)
        try:
            return tool.run(self, arguments)
        except LeaseLive as exc:
            lease = exc.lease
            until = format_rfc3339(lease.expires_at // SECOND * SECOND)
            raise ToolRefused(
                f'agent lease is held by another process: held by "{lease.holder}" until {until}; wait, or try again then'
            ) from exc
        except LeaseLost as exc:
            agent = arguments["agent_id"]
            raise ToolRefused(
                f"agent lease was lost to another process: nothing was written, and nothing will be; stop working as {agent}, "
                "or call agent_release and agent_resume to begin again from what the other one left"
            ) from exc
        except StoreUnavailable as exc:
            again = "; call it again with the same arguments: what was written is found, and not written twice"
            raise ToolRefused(f"{exc}{again if exc.may_be_written else ''}") from exc
        except LeaseNotHeld as exc:
            raise ToolRefused("agent lease not acquired yet; call agent_acquire before writing") from exc
        except (ActionsError, ValueError) as exc:
            raise ToolRefused(str(exc)) from exc

    def close(self) -> None:
        """Release every agent, also one that is being resumed just now. What cannot be released expires by itself."""
        with self._lock:
            self._is_closed = True
            held = list(self._held.values())
            self._held.clear()
        for one in held:
            with one.lock:
                _release(one.agent)

    # --- which agents ---

    def resume(self, agent_id: str, arguments: Mapping[str, Any]) -> Json:
        if not is_agent_id(agent_id):
            raise ToolRefused(f"agent id must be 1-128 letters, digits, '.', '_' or '-', got {agent_id[:40]!a}")
        ttl_s, budget = arguments.get("lease_ttl_seconds", 0), arguments.get("token_budget", 0)
        if ttl_s < 0 or budget < 0:
            raise ToolRefused("token_budget and lease_ttl_seconds must not be negative")
        if ttl_s > MAX_TTL_S:
            raise ToolRefused(f"lease_ttl_seconds is {ttl_s}; at most {MAX_TTL_S}, 30 days")
        self._reserve(agent_id)
        try:
            agent = DurableAgent.resume(
                self._store,
                agent_id,
                holder=arguments.get("holder") or None,
                lease_ttl=timedelta(seconds=ttl_s or DEFAULT_TTL_S),
                defer_lease=arguments.get("defer_lease", False),
                token_budget=budget or TOKEN_BUDGET,
                output_threshold=arguments.get("output_threshold") or DEFAULT_THRESHOLD,
            )
            held = _Held(
                agent=agent,
                token_budget=budget or TOKEN_BUDGET,
                lock=threading.Lock(),
                is_acquired=not arguments.get("defer_lease", False),
            )
            with held.lock:
                self._keep(agent_id, held)
                return self._context(held, agent.briefing)
        finally:
            with self._lock:
                self._coming.discard(agent_id)

    def _reserve(self, agent_id: str) -> None:
        with self._lock:
            if agent_id in self._held or agent_id in self._coming:
                raise ToolRefused(
                    f'agent "{agent_id}" is already resumed in this session; call agent_release first to resume it again'
                )
            if len(self._held) + len(self._coming) >= MAX_AGENTS:
                raise ToolRefused(f"this session holds {MAX_AGENTS} agents, as many as it may; release one first")
            self._coming.add(agent_id)

    def _keep(self, agent_id: str, held: _Held) -> None:
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._held[agent_id] = held
        if is_late:
            _release(held.agent)
            raise ToolRefused("this session has ended; the agent was released again")

    def acquire(self, agent_id: str) -> Json:
        def acquired(held: _Held) -> Json:
            if not held.is_acquired:
                held.agent.acquire()
                held.is_acquired = True
            said = self._context(held, held.agent.briefing)
            return {
                "acquired": True,
                "briefing": said["briefing"],
                "epoch": said["epoch"],
                "pending_actions": said.get("pending_actions", []),
            }

        taken: Json = self.use(agent_id, acquired, writes=False)
        return taken

    def release(self, agent_id: str) -> Json:
        with self._lock:
            held = self._held.pop(agent_id, None)
        if held is None:
            return {"released": False}
        with held.lock:
            held.agent.release()
        return {"released": True}

    def use(self, agent_id: str, work: Callable[[_Held], Any], *, writes: bool) -> Any:
        """Work with an agent that this client holds, alone."""
        with self._lock:
            held = self._held.get(agent_id)
        if held is None:
            raise ToolRefused(f'agent "{agent_id[:128]}" is not resumed in this session; call agent_resume first')
        with held.lock:
            if writes and not held.is_acquired:
                raise ToolRefused("agent lease not acquired yet; call agent_acquire before writing")
            return work(held)

    # --- what is told ---

    def _context(self, held: _Held, briefing: Briefing) -> Json:
        """What an agent starts from: its briefing, and the records as they stand."""
        agent, name = held.agent, held.agent.agent
        records = self._store.load_agent(name)
        outputs = sorted(records.outputs, key=lambda output: output.at, reverse=True)
        kept_outputs = outputs[: max(len(outputs) - briefing.outputs_left_out, 0)]
        kept_turns = records.turns[: max(len(records.turns) - briefing.turns_left_out, 0)]
        omitted = {"turns": briefing.turns_left_out, "outputs": briefing.outputs_left_out}
        lists = {
            "pending_actions": [action_json(action) for action in records.open_actions],
            "working_state": working_state_json(records.working_state) if records.working_state else None,
            "pointers": [pointer_json(pointer) for pointer in records.pointers],
            "outputs": [output_json(output) for output in kept_outputs],
            "recent_turns": [turn_json(turn) for turn in reversed(kept_turns)],
        }
        return {
            "agent_id": name,
            "fresh": records.working_state is None and records.newest_turn == 0,
            "epoch": agent.lease.epoch if held.is_acquired and agent.lease else 0,
            "lease_held": held.is_acquired,
            **{kind: said for kind, said in lists.items() if said},
            "omitted": {kind: count for kind, count in omitted.items() if count},
            "turn_seq": records.newest_turn,
            "token_budget": held.token_budget,
            "tokens": briefing.tokens,
            "briefing": briefing.text,
        }

    def context(self, agent_id: str) -> Json:
        said: Json = self.use(agent_id, lambda held: self._context(held, held.agent.refresh()), writes=False)
        return said

    def _turns(self, agent_id: str, limit: int) -> list[Any]:
        return [_readable(turn) for turn in reversed(self._store.list_turns(agent_id, limit=limit))]

    def recent_turns(self, agent_id: str, limit: int) -> list[Json]:
        return [turn_json(turn) for turn in self._turns(agent_id, min(limit, MAX_TURNS) if limit > 0 else DEFAULT_TURNS)]

    def pointers(self, agent_id: str) -> list[Json]:
        return [pointer_json(_readable(pointer)) for pointer in self._store.list_pointers(agent_id)]

    def states(self, agent_id: str, limit: int) -> list[Json]:
        found = self._store.list_working_states(agent_id, limit=min(limit, MAX_STATES) if limit > 0 else DEFAULT_TURNS)
        return [working_state_json(_readable(state)) for state in found]

    def output(self, agent_id: str, ref: str) -> Json:
        found = self._store.read_outputs({(agent_id, ref)}).get((agent_id, ref))
        if found is None:
            raise ToolRefused(f'agent "{agent_id}" has no output {ref[:128]!a}')
        return whole_output_json(_readable(found))


def _readable(record: Any) -> Any:
    if isinstance(record, Unreadable):
        raise ToolRefused(f"record {record.record_id} is unreadable: {record.problem}")
    return record


def _release(agent: DurableAgent) -> None:
    try:
        agent.release()
    except Exception as exc:
        log.warning("the lease of agent %s was not given back and will expire: %s", agent.agent, exc)


# --- the tools -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool as clients see it. Names, schemas and hints are Recall's, so that a client of one works with the other."""

    says: str
    schema: Schema
    run: Callable[[Session, dict[str, Any]], Any]
    is_read_only: bool = False


def _writing(work: Callable[[DurableAgent, dict[str, Any]], Any]) -> Callable[[Session, dict[str, Any]], Any]:
    return lambda session, given: session.use(given["agent_id"], lambda held: work(held.agent, given), writes=True)


def _reading(work: Callable[[Session, DurableAgent, dict[str, Any]], Any]) -> Callable[[Session, dict[str, Any]], Any]:
    return lambda session, given: session.use(given["agent_id"], lambda held: work(session, held.agent, given), writes=False)


def _texts(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _remove_pointer(agent: DurableAgent, given: Mapping[str, Any]) -> Json:
    agent.remove_pointer(given["name"])
    return {"removed": given["name"]}


_STATE = ("goal", "plan", "progress", "focus", "decisions", "open_questions", "notes", "step")

TOOLS: dict[str, Tool] = {
    "agent_resume": Tool(
        says="Begin as an agent, or go on as one whose process stopped. Takes its lease, settles what a crash left open where that can be "
        "told, and returns its records within token_budget, with a briefing for the model. Refused while another process holds the agent.",
        schema=schema(
            defer_lease=BOOLEAN,
            holder=STRING,
            lease_ttl_seconds=INTEGER,
            output_threshold=INTEGER,
            token_budget=INTEGER,
        ),
        run=lambda session, given: session.resume(given["agent_id"], given),
    ),
    "agent_acquire": Tool(
        says="Take the lease of an agent that was resumed with defer_lease: one try. Refused while another process holds it; call it again.",
        schema=schema(),
        run=lambda session, given: session.acquire(given["agent_id"]),
    ),
    "agent_release": Tool(
        says="Give the agent's lease back, so that its next process need not wait until it expires. What is open stays open.",
        schema=schema(),
        run=lambda session, given: session.release(given["agent_id"]),
    ),
    "agent_context": Tool(
        says="What agent_resume returned, from the records as they stand now: after settling open actions, a briefing without them.",
        schema=schema(),
        run=lambda session, given: session.context(given["agent_id"]),
        is_read_only=True,
    ),
    "begin_action": Tool(
        says="Record a tool call before you make it, and make it only if this succeeds. class says what making it twice would do: pure "
        "(it only reads), idempotent (with the returned key a second one changes nothing), external (it would happen twice: an email, a "
        "payment). Returns its number seq and its key. If you stop before end_action, the next process finds it open and does not guess.",
        schema=schema(("tool", "class"), args=STRING, tool=STRING, **{"class": one_of("pure", "idempotent", "external")}),
        run=_writing(lambda agent, given: action_json(agent.begin_action(given["tool"], given.get("args", ""), given["class"]))),
    ),
    "end_action": Tool(
        says="Say how a call ended: done or failed, with its result or error; for one that a crash left open also abandoned (it changed "
        "nothing and is not made again) or unknown (you looked and cannot tell). What has ended cannot be ended again.",
        schema=schema(
            ("seq", "status"),
            error=STRING,
            resolution=STRING,
            result=STRING,
            seq=INTEGER,
            status=one_of("done", "failed", "abandoned", "unknown"),
        ),
        run=_writing(
            lambda agent, given: action_json(
                agent.end_action(given["seq"], given["status"], **_texts(given, "result", "error", "resolution"))
            )
        ),
    ),
    "pending_actions": Tool(
        says="The calls that are open: begun and never ended, or ended as unknown. In the order of their numbers. Settle them first.",
        schema=schema(),
        run=_reading(lambda session, agent, given: [action_json(action) for action in agent.pending_actions()]),
        is_read_only=True,
    ),
    "record_turn": Tool(
        says="Append one message to the agent's history, word for word. brief is shown in its place in a briefing; message_id is your own.",
        schema=schema(
            ("role", "content"),
            brief=STRING,
            content=STRING,
            message_id=STRING,
            name=STRING,
            role=one_of("system", "user", "assistant", "tool"),
        ),
        run=_writing(
            lambda agent, given: turn_json(
                agent.record_turn(given["role"], given["content"], **_texts(given, "name", "brief", "message_id"))
            )
        ),
    ),
    "recent_turns": Tool(
        says="The newest messages of the agent's history, oldest first: 20, or limit, at most 200.",
        schema=schema(limit=INTEGER),
        run=_reading(lambda session, agent, given: session.recent_turns(given["agent_id"], given.get("limit", 0))),
        is_read_only=True,
    ),
    "update_working_state": Tool(
        says="Replace the note from which your next process goes on: what you give replaces, what you leave out stays.",
        schema=schema(
            decisions=STRINGS,
            focus=STRING,
            goal=STRING,
            notes=STRING,
            open_questions=STRINGS,
            plan=STRINGS,
            progress=STRING,
            step=INTEGER,
        ),
        run=_writing(lambda agent, given: working_state_json(agent.update_working_state(**_texts(given, *_STATE)))),
    ),
    "agent_milestone": Tool(
        says="Record that something worth keeping is reached, in the working state.",
        schema=schema(("name",), name=STRING, progress=STRING),
        run=_writing(lambda agent, given: working_state_json(agent.milestone(given["name"], **_texts(given, "progress")))),
    ),
    "working_state_history": Tool(
        says="The versions of the working state, newest first.",
        schema=schema(limit=INTEGER),
        run=_reading(lambda session, agent, given: session.states(given["agent_id"], given.get("limit", 0))),
        is_read_only=True,
    ),
    "store_output": Tool(
        says="Keep a large result whole, to be fetched by its ref when the detail is needed.",
        schema=schema(("content",), content=STRING, ref=STRING, summary=STRING, tool=STRING),
        run=_writing(
            lambda agent, given: output_json(agent.store_output(given["content"], **_texts(given, "ref", "tool", "summary")))
        ),
    ),
    "fetch_output": Tool(
        says="A stored output by its ref, whole.",
        schema=schema(("ref",), ref=STRING),
        run=_reading(lambda session, agent, given: session.output(given["agent_id"], given["ref"])),
        is_read_only=True,
    ),
    "set_pointer": Tool(
        says="Record where a piece of the work lies; a pointer of the same name is replaced. Types and their fields: git_ref (repo, branch, "
        "sha), object (uri), env (image, lockfile_hash, setup), external (kind, id, url), process (command, port).",
        schema=schema(
            ("name", "type", "fields"),
            fields=STRING_MAP,
            name=STRING,
            note=STRING,
            type=one_of("git_ref", "object", "env", "external", "process"),
        ),
        run=_writing(
            lambda agent, given: pointer_json(
                agent.set_pointer(given["name"], given["type"], given["fields"], **_texts(given, "note"))
            )
        ),
    ),
    "remove_pointer": Tool(
        says="Take a pointer back that is no longer true.",
        schema=schema(("name",), name=STRING),
        run=_writing(_remove_pointer),
    ),
    "list_pointers": Tool(
        says="Where the agent's work lies: every pointer that was not removed, by name.",
        schema=schema(),
        run=_reading(lambda session, agent, given: session.pointers(given["agent_id"])),
        is_read_only=True,
    ),
}
"""By name. Memories (remember, recall ...) are Recall's own and not here."""
