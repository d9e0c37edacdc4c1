"""Seeded audit entries, correctly chained, and a way to put very many of them into a PostgreSQL store at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from actions.digests import sha256_text
from actions.records import ChainHead, Entry, NewEntry
from actions.store.audit import seal
from actions.store.postgres_rows import entry_columns
from actions.times import SECOND, Instant
from bench.shape import NEWEST

AGENTS = 2_000
PEOPLE = ("operator ana", "operator ben", "operator cyd", "resolver sent-folder", "resolver payments")
TOOLS = ("send_email", "create_payment", "open_ticket", "post_message")
OUTCOMES = ("done", "done", "done", "failed", "abandoned")
RARE_EVERY = 50_000
"""One entry in so many is of an agent, a person and a kind that no other has, so that a filter has something rare to look for."""
PAUSE = 7 * SECOND  # between two entries: a million are some eighty days
_COLUMNS = "chain number at kind actor agent seq tool decision_id outcome text prev hash".split()


def entries(count: int, head: ChainHead, *, seed: int = 20261129) -> Iterator[Entry]:
    """So many links after `head`, one at a time: settles mostly, as long as real ones are, and what was seen and waited between them."""
    rng = random.Random(seed)
    newest: Instant = NEWEST
    for place in range(count):
        sealed = seal(_new(rng, place), head, newest - (count - place) * PAUSE)
        head = ChainHead(chain=head.chain, number=sealed.number, hash=sealed.hash)
        yield sealed


def fill(url: str, head: ChainHead, count: int) -> ChainHead:
    """Append them by COPY in one transaction, with the chain's head; the head then. Nobody else may write meanwhile."""
    last = head
    statement = sql.SQL("COPY settle_audit.entries ({}) FROM STDIN").format(sql.SQL(", ").join(map(sql.Identifier, _COLUMNS)))
    with psycopg.connect(url) as connection:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for entry in entries(count, head):
                columns = entry_columns(entry)
                copy.write_row([columns[name] for name in _COLUMNS])
                last = ChainHead(chain=entry.chain, number=entry.number, hash=entry.hash)
        connection.execute(
            """INSERT INTO settle_audit.heads (chain, number, hash) VALUES (%s, %s, %s)
            ON CONFLICT (chain) DO UPDATE SET number = excluded.number, hash = excluded.hash""",
            [last.chain, last.number, last.hash],
        )
        connection.commit()
        connection.execute("ANALYZE settle_audit.entries")
    return last


def _new(rng: random.Random, place: int) -> NewEntry:
    is_rare = place % RARE_EVERY == RARE_EVERY // 2
    kind = "evicted" if is_rare else rng.choices(("settled", "observed", "waiting", "withdrawn"), (6, 3, 1, 0.2))[0]
    agent = "agent-rare" if is_rare else f"agent-{rng.randrange(AGENTS)}"
    outcome = rng.choice(OUTCOMES)
    return NewEntry(
        kind=kind,
        actor="operator rare" if is_rare else "system watcher" if kind == "observed" else rng.choice(PEOPLE),
        agent=agent,
        seq=rng.randrange(1, 5_000),
        tool=rng.choice(TOOLS),
        decision_id=f"decision-{place:010d}",
        outcome=outcome,
        reason=f"found in the Sent folder, message id {rng.getrandbits(64):016x}",
        content_digest=sha256_text(f"{place}"),
        detail=_detail(rng, place, outcome),
    )


def _detail(rng: random.Random, place: int, outcome: str) -> dict[str, Any]:
    args = f'{{"to":"customer-{rng.randrange(10**6)}@example.com","subject":"Your refund","amount":{rng.randrange(5_000)}}}'
    return {
        "before": {"status": "started", "epoch": 3, "args": args, "args_digest": sha256_text(args)},
        "after": {"status": outcome, "resolution": "operator ana: found in the Sent folder", "epoch": 5},
        "turn": place % 900 + 1,
    }
