"""The hash chain of audit entries: pure. Each store keeps the entries beside its records; here is what they look like and what binds them.

`hash` = SHA-256 of `prev`, a newline and `text`; `text` is canonical JSON (ASCII) of everything the entry says, its number and chain
included. Texts are stored as text, never as jsonb, so that NUL escapes and lone surrogates survive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from actions.digests import canonical_json
from actions.records import ChainHead, Entry, Link, NewEntry
from actions.times import Instant, format_rfc3339, parse_rfc3339

GENESIS = "0" * 64
"""The `prev` of the first entry of every chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """What a verification found. Integrity: every link holds. Completeness up to the head: the head's number and hash are reached."""

    chain: str
    entries: int
    first_bad: int | None  # number (or expected number) of the first entry that is wrong
    problem: str  # empty when intact

    @property
    def is_intact(self) -> bool:
        return not self.problem


def seal(new: NewEntry, head: ChainHead, at: Instant) -> Entry:
    """The next link after `head`: number, canonical text and hash. Pure; the store must append it while it holds the head."""
    number = head.number + 1
    text = canonical_json(
        {
            "chain": head.chain,
            "number": number,
            "at": format_rfc3339(at),
            "kind": new.kind,
            "actor": new.actor,
            "agent": new.agent,
            "seq": new.seq,
            "tool": new.tool,
            "decision_id": new.decision_id,
            "outcome": new.outcome,
            "reason": new.reason,
            "evidence_id": new.evidence_id,
            "content_digest": new.content_digest,
            "detail": new.detail,
        }
    )
    return read_entry(Link(number, text, head.hash, link_hash(head.hash, text)))


def link_hash(prev: str, text: str) -> str:
    return hashlib.sha256(f"{prev}\n{text}".encode("ascii", "backslashreplace")).hexdigest()


def read_entry(link: Link) -> Entry:
    """The entry of a stored row; its `text` alone is believed, because it alone is hashed.

    Raises:
        ValueError: the text is not one that `seal` wrote.
    """
    try:
        said = json.loads(link.text)
        return Entry(
            chain=said["chain"],
            number=said["number"],
            at=parse_rfc3339(said["at"]),
            kind=said["kind"],
            actor=said["actor"],
            agent=said["agent"],
            seq=said["seq"],
            tool=said["tool"],
            decision_id=said["decision_id"],
            outcome=said["outcome"],
            reason=said["reason"],
            evidence_id=said["evidence_id"],
            content_digest=said["content_digest"],
            detail=said["detail"],
            text=link.text,
            prev=link.prev,
            hash=link.hash,
        )
    except (KeyError, TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"not an audit entry: {type(exc).__name__}: {str(exc)[:120]}") from exc


def verify_chain(chain: str, links: Iterable[Link], head: ChainHead) -> ChainReport:
    """Walk a chain from its first link, oldest first, and compare with the head. Flat memory: one link at a time."""
    prev, expected = GENESIS, 1
    for link in links:
        problem = _link_problem(chain, expected, prev, link)
        if problem:
            return ChainReport(chain=chain, entries=expected - 1, first_bad=min(link.number, expected), problem=problem)
        prev, expected = link.hash, expected + 1
    count = expected - 1
    if (head.number, head.hash) != (count, prev):
        problem = f"the head says {head.number} entries, ending in {head.hash[:12]}; found {count}, ending in {prev[:12]}"
        return ChainReport(chain=chain, entries=count, first_bad=min(count, head.number) + 1, problem=problem)
    return ChainReport(chain=chain, entries=count, first_bad=None, problem="")


def show_entry(link: Link) -> Entry:
    """The entry for a list: a row that was tampered with is shown as kind `unreadable` with its text as the reason, never left out."""
    try:
        return read_entry(link)
    except ValueError as exc:
        return Entry(
            chain="",
            number=link.number,
            at=0,
            kind="unreadable",
            actor="",
            agent="",
            seq=None,
            tool="",
            decision_id="",
            outcome="",
            reason=str(exc),
            evidence_id="",
            content_digest="",
            detail={},
            text=link.text,
            prev=link.prev,
            hash=link.hash,
        )


def _link_problem(chain: str, expected: int, prev: str, link: Link) -> str:
    if link.number < 1:
        return f"a row of number {link.number} stands before the first entry"
    if link.number < expected:
        return f"number {link.number} stands twice"
    if link.number > expected:
        return f"entry {expected} is missing; the next one is {link.number}"
    if link.prev != prev:
        return f"entry {link.number} does not follow its predecessor"
    if link_hash(link.prev, link.text) != link.hash:
        return f"entry {link.number} was changed: its text does not match its hash"
    try:
        entry = read_entry(link)
    except ValueError as exc:
        return f"entry {link.number}: {exc}"
    if (entry.number, entry.chain) != (link.number, chain):
        return f"entry {link.number} says it is entry {entry.number} of chain {entry.chain}"
    if link.misfiled:
        return f"entry {link.number} is hidden from searches: its {link.misfiled} is not what its text says"
    return ""
