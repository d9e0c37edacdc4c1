"""Seeded data in Recall's shape: agents with turns, closed and open actions, working states and leases in every state. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from actions.keys import action_key
from actions.times import SECOND, Instant, format_rfc3339, parse_rfc3339
from actions.turns import store_value

PAGE_SIZE = 64
DAYS = 30
NEWEST: Instant = parse_rfc3339("2026-11-29T18:00:00Z")
TOOLS = {
    "external": ("send_email", "create_payment", "open_ticket", "post_message"),
    "idempotent": ("save_invoice", "update_customer"),
    "pure": ("lookup_order", "search_orders"),
}
CLASS_WEIGHTS = {"external": 5, "idempotent": 2, "pure": 3}
WORDS = "invoice order refund customer Köln shipping address total paid late <urgent> & again 日本 thanks regards".split()
LONG_ARGS_EVERY = 200  # one call in so many has arguments that move to an output


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much of everything; totals are met exactly."""

    agents: int = 10_000
    actions: int = 200_000
    open_actions: int = 2_000
    turns: int = 120_000
    seed: int = 20261129
    prefix: str = "agent"  # of every agent's id: shapes with prefixes of their own lie side by side in one store


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is decided about one agent before its records are written."""

    agent: str
    actions: int
    open_actions: int
    turns: int
    lease: str  # live, expired, released

    @property
    def open_status(self) -> str:
        """A live or dead process leaves calls started; a resume that gave the agent back has marked them."""
        return "unknown" if self.lease == "released" else "started"


Row = tuple[str, dict[str, Any]]
TALKER = Life(agent="talker", actions=400, open_actions=1, turns=5_000, lease="expired")
"""An agent with a very long history."""


def in_doubt(count: int, prefix: str) -> list[Life]:
    """So many agents that nobody holds, each with one external call that its resume has left unknown: each can be decided at once."""
    return [Life(agent=f"{prefix}-{n:05}", actions=2, open_actions=1, turns=3, lease="released") for n in range(count)]


def lives(shape: Shape) -> list[Life]:
    """Every agent: one in five of those with open calls has one more of them, half of those are dead."""
    rng = random.Random(shape.seed)
    open_calls = _open_calls(shape, rng)
    actions = _spread(shape.actions, shape.agents, rng)
    turns = _spread(shape.turns, shape.agents, rng)
    return [
        Life(
            agent=f"{shape.prefix}-{number:05}",
            actions=max(actions[number], open_calls[number]),
            open_actions=open_calls[number],
            turns=turns[number],
            lease=_lease(rng, is_open=open_calls[number] > 0),
        )
        for number in range(shape.agents)
    ]


def records(life: Life, seed: int) -> Iterator[Row]:
    """An agent's records, in the order of their kinds: turns, actions with their outputs, working state."""
    rng = random.Random(f"{seed}/{life.agent}")
    for seq in range(1, life.turns + 1):
        yield _turn(life, seq, rng)
    for seq in range(1, life.actions + 1):
        yield from _action(life, seq, rng)
    yield from _working_state(life, rng)


def _open_calls(shape: Shape, rng: random.Random) -> list[int]:
    counts = [0] * shape.agents
    ones = rng.sample(range(shape.agents), min(shape.agents, shape.open_actions * 4 // 5))
    for number in ones:
        counts[number] = 1
    for index in range(shape.open_actions - len(ones)):
        counts[ones[index % len(ones)]] += 1
    return counts


def _spread(total: int, parts: int, rng: random.Random) -> list[int]:
    """A total in uneven parts."""
    weights = [rng.uniform(0.25, 1.75) for _ in range(parts)]
    scale = total / sum(weights)
    counts = [int(weight * scale) for weight in weights]
    for index in range(total - sum(counts)):
        counts[index % parts] += 1
    return counts


def _lease(rng: random.Random, *, is_open: bool) -> str:
    weights = (20, 50, 30) if is_open else (4, 6, 90)
    return rng.choices(("live", "expired", "released"), weights)[0]


def _action(life: Life, seq: int, rng: random.Random) -> Iterator[Row]:
    is_open = seq > life.actions - life.open_actions
    action_class = rng.choices(tuple(CLASS_WEIGHTS), tuple(CLASS_WEIGHTS.values()))[0]
    status = life.open_status if is_open else rng.choices(("done", "failed", "abandoned"), (92, 6, 2))[0]
    if is_open and status == "unknown":
        action_class = "external"
    began = NEWEST - rng.randrange(DAYS * 86_400 * SECOND)
    tool = rng.choice(TOOLS[action_class])
    args = store_value(_arguments(tool, seq, rng), f"act-{seq}-args")
    body = {
        "seq": seq,
        "tool": tool,
        "class": action_class,
        "args": args.text,
        "key": action_key(life.agent, seq),
        "status": status,
        "result": json.dumps({"id": f"r-{rng.randrange(10**9)}", "ok": True}) if status == "done" else "",
        "error": "Timeout: the server did not answer" if status == "failed" else "",
        "resolution": "interrupted; no resolver to check whether it happened" if status == "unknown" else "",
        "args_ref": args.ref,
        "epoch": 1,
        "started_at": format_rfc3339(began),
        "ended_at": "" if is_open else format_rfc3339(began + rng.randrange(5 * SECOND)),
    }
    if args.ref:
        output = {
            "ref": args.ref,
            "tool": tool,
            "summary": args.whole[:200] + "...",
            "content": args.whole,
            "at": format_rfc3339(began),
        }
        tokens = (len(args.whole.encode()) + 3) // 4
        yield _record(life.agent, f"out:{args.ref}", output, record="output", ref=args.ref, tokens=tokens)
    meta = {"act": str(seq), "seq": seq, "page": _page(seq), "class": action_class, "status": status}
    yield _record(life.agent, f"act:{seq}", body, record="action", **meta)


def _arguments(tool: str, seq: int, rng: random.Random) -> str:
    words = 1_500 if rng.randrange(LONG_ARGS_EVERY) == 0 else rng.randrange(5, 40)
    prose = " ".join(rng.choices(WORDS, k=words))
    address = f"{rng.choice(WORDS)}.{rng.randrange(10_000)}@example.com"
    amount = rng.randrange(100_000) / 100
    args: dict[str, dict[str, object]] = {
        "send_email": {"to": address, "subject": f"Your order A-{seq:04}", "body": prose},
        "create_payment": {"amount": amount, "currency": "EUR", "payee": address, "reference": f"INV-{seq:04}", "note": prose},
        "open_ticket": {"title": f"Order A-{seq:04}", "body": prose, "priority": "high"},
        "post_message": {"channel": "#orders", "text": prose},
        "save_invoice": {"invoice": f"INV-{seq:04}", "total": amount, "currency": "EUR", "text": prose},
        "update_customer": {"customer": address, "note": prose},
        "lookup_order": {"order": f"A-{seq:04}"},
        "search_orders": {"query": prose[:60], "limit": 20},
    }
    return json.dumps(args[tool], sort_keys=True)


def _turn(life: Life, seq: int, rng: random.Random) -> Row:
    role = ("user", "assistant", "tool")[seq % 3]
    body = {
        "seq": seq,
        "role": role,
        "name": "send_email" if role == "tool" else "",
        "content": " ".join(rng.choices(WORDS, k=rng.randrange(5, 60))),
        "message_id": f"m-{life.agent}-{seq}",
        "at": format_rfc3339(NEWEST - rng.randrange(DAYS * 86_400 * SECOND)),
    }
    return _record(life.agent, f"turn:{seq}", body, record="turn", seq=seq, page=_page(seq))


def _working_state(life: Life, rng: random.Random) -> Iterator[Row]:
    body = {
        "goal": " ".join(rng.choices(WORDS, k=6)),
        "plan": [" ".join(rng.choices(WORDS, k=4)) for _ in range(3)],
        "version": 1,
        "turn_seq": life.turns,
        "action_seq": life.actions,
        "updated_at": format_rfc3339(NEWEST),
    }
    yield _record(life.agent, "ws:1", body, record="working_state", version=1)
    yield _record(life.agent, "ws:head", body, record="working_state_head")


def _record(agent: str, tail: str, body: dict[str, Any], **meta: object) -> Row:
    kept = {name: value for name, value in body.items() if value or name == "content"}
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    return f"{agent}:{tail}", {"recall_agent": agent, "epoch": 1, "body": text, **meta}


def _page(seq: int) -> str:
    return str((seq - 1) // PAGE_SIZE)
