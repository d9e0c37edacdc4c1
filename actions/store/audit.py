"""The hash chain of audit entries: pure. Each store keeps the entries beside its records; here is what they look like and what binds them.

`hash` = SHA-256 of `prev`, a newline and `text`; `text` is canonical JSON (ASCII) of everything the entry says, its number and chain
included. Texts are stored as text, never as jsonb, so that NUL escapes and lone surrogates survive.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from actions.digests import canonical_json
from actions.records import ChainHead, Entry, Link, NewEntry
from actions.times import Instant, format_rfc3339, parse_rfc3339

GENESIS = "0" * 64
"""The `prev` of the first entry of every chain."""
RETAINED = "retained"
"""The kind of the entry that says what a retention removed: its detail holds a signed tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong, and the number of the entry at which it was found."""

    number: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What a checkpoint that is kept elsewhere vouches for: that this entry stood at this number, and everything before it."""

    number: int
    hash: str
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """What a verification found. Integrity: what stands there is what was appended. Completeness: what was appended stands there.

    An entry that a retention removed whole, with everything before it, is not missing; `removed` says up to where.
    """

    chain: str
    entries: int  # that were walked before the first fault
    broken: Fault | None = None  # integrity
    missing: Fault | None = None  # completeness
    anchored: int = 0  # the highest number that a checkpoint vouches for
    removed: int = 0  # the highest number that a signed tombstone stands for

    @property
    def first_fault(self) -> Fault | None:
        faults = [fault for fault in (self.missing, self.broken) if fault is not None]
        return min(faults, key=lambda fault: fault.number, default=None)

    @property
    def first_bad(self) -> int | None:
        """The number of the first entry that is wrong or missing."""
        fault = self.first_fault
        return fault.number if fault else None

    @property
    def problem(self) -> str:
        """Empty when intact."""
        fault = self.first_fault
        return fault.says if fault else ""

    @property
    def is_intact(self) -> bool:
        return self.first_fault is None


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
        for name in _TEXTS:
            _require_type(said, name, str)
        _require_type(said, "number", int)
        _require_type(said, "seq", int, type(None))
        _require_type(said, "detail", dict)
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


# What a row says may be anything its database's owner wrote there, and every page reads these as what they are.
_TEXTS = (
    "chain",
    "at",
    "kind",
    "actor",
    "agent",
    "tool",
    "decision_id",
    "outcome",
    "reason",
    "evidence_id",
    "content_digest",
)


def _require_type(said: Mapping[str, object], name: str, *types: type) -> None:
    if type(said[name]) not in types:
        raise TypeError(f"{name} is of type {type(said[name]).__name__}")


RemovedBy = Callable[[Entry], ChainHead | None]
"""What an entry of kind `retained` proves: the last entry that a retention removed; None where it proves nothing."""


def verify_chain(
    chain: str,
    links: Iterable[Link],
    head: ChainHead,
    *,
    base: ChainHead | None = None,
    anchors: Iterable[Anchor] = (),
    removed_by: RemovedBy | None = None,
) -> ChainReport:
    """Walk a chain from its first link, oldest first, and compare with the head. Flat memory: one link at a time.

    `base`: where a walk begins that goes on from a place that was verified before. `anchors` of this chain, in any order; those within a
    removed range vouch for nothing any more. It walks to the end whatever it finds; of each sort the first fault is told.
    """
    walk = ChainWalk(chain, base=base, anchors=anchors, removed_by=removed_by)
    for link in links:
        walk.step(link)
    walk.end(head)
    return walk.report()


class ChainWalk:
    """One chain, link by link, in the order in which they come; for callers who walk several chains at once.

    A chain whose first entries are gone is whole only where a later entry of kind `retained` proves that a retention removed them.
    """

    def __init__(
        self,
        chain: str,
        *,
        base: ChainHead | None = None,
        anchors: Iterable[Anchor] = (),
        removed_by: RemovedBy | None = None,
        has_gaps: bool = False,
    ) -> None:
        self.chain = chain
        self.steps = 0
        self.last = base or ChainHead(chain=chain, number=0, hash=GENESIS)
        self._begins_anywhere = base is None and not has_gaps
        self._removed: ChainHead | None = None  # by what the first link says of its predecessor
        self._is_proven = False
        self._removed_by = removed_by
        self._has_gaps = has_gaps  # a part of a chain: what lies between is not missing
        self._anchors = sorted((a for a in anchors if a.number >= self.last.number), key=lambda a: a.number)
        self._next_anchor = 0
        self._anchored = 0
        self._good = 0
        self._broken: Fault | None = None
        self._missing: Fault | None = None
        self._vouch(self.last.number, self.last.hash)

    def step(self, link: Link) -> None:
        """The next link as it stands."""
        self.steps += 1
        if self.steps == 1 and self._begins_anywhere and link.number > 1:
            self._removed = self.last = ChainHead(chain=self.chain, number=link.number - 1, hash=link.prev)
            self._vouch(self.last.number, self.last.hash)
        expected = self.last.number + 1
        if link.number < expected:
            is_first = link.number < 1
            self._break(
                link.number,
                f"a row of number {link.number} stands before the first entry"
                if is_first
                else f"number {link.number} stands twice",
            )
            return
        follows = link.number == expected
        if not follows and not self._has_gaps:
            self._miss(expected, f"entry {expected} is missing; the next one is {link.number}")
        entry, problem = _read_link(self.chain, self.last.hash if follows else link.prev, link)
        if problem:
            self._break(link.number, problem)
        elif entry is not None and entry.kind == RETAINED and self._removed is not None and self._removed_by is not None:
            self._is_proven = self._is_proven or self._removed_by(entry) == self._removed
        self.last = ChainHead(chain=self.chain, number=link.number, hash=link.hash)
        self._vouch(link.number, link.hash)
        if self._broken is None and self._missing is None:
            self._good += 1

    @property
    def is_unbroken(self) -> bool:
        """Whether what came so far is the chain from its beginning, with nothing left out."""
        return self.last.number == self.steps

    def end(self, head: ChainHead | None, *, up_to: int | None = None) -> None:
        """No link follows. `head`: what is kept beside the chain as its newest number and hash; None where nobody knows.

        `up_to`: checkpoints beyond this number were made later and ask for nothing.
        """
        if self._removed is not None and not self._is_proven:
            first = self._removed.number + 1
            gone = f"entries 1 to {self._removed.number} are missing" if first > 2 else "entry 1 is missing"
            self._missing = Fault(
                number=1, says=f"{gone}: the first one is {first}, and no signed tombstone stands for what was before it"
            )
        last = self.last
        if head is not None and (head.number, head.hash) != (last.number, last.hash):
            said = f"the head says {head.number} entries, ending in {head.hash[:12]}; found {last.number}, ending in {last.hash[:12]}"
            if head.number > last.number:
                self._miss(last.number + 1, said)
            else:
                self._break(max(1, min(last.number, head.number + 1)), said)
        for anchor in self._anchors[self._next_anchor :]:
            if anchor.number > last.number and (up_to is None or anchor.number <= up_to):
                when = format_rfc3339(anchor.at)
                self._miss(
                    last.number + 1,
                    f"the checkpoint of {when} vouches for {anchor.number} entries; the history ends at {last.number}",
                )

    def report(self) -> ChainReport:
        return ChainReport(
            chain=self.chain,
            entries=self._good,
            broken=self._broken,
            missing=self._missing,
            anchored=self._anchored,
            removed=self._removed.number if self._removed is not None and self._is_proven else 0,
        )

    def _vouch(self, number: int, hash_: str) -> None:
        """Compare with every checkpoint up to this number; one between two entries of a part of a chain can say nothing."""
        while self._next_anchor < len(self._anchors) and self._anchors[self._next_anchor].number <= number:
            anchor = self._anchors[self._next_anchor]
            self._next_anchor += 1
            if anchor.number != number:
                continue
            if anchor.hash == hash_:
                self._anchored = number
            else:
                when = format_rfc3339(anchor.at)
                self._break(number, f"entry {number} is not the one that the checkpoint of {when} vouches for")

    def _break(self, number: int, says: str) -> None:
        if self._broken is None:
            self._broken = Fault(number=number, says=says)

    def _miss(self, number: int, says: str) -> None:
        if self._missing is None:
            self._missing = Fault(number=number, says=says)


def show_entry(link: Link) -> Entry:
    """The entry for a list: a row that was tampered with is shown as kind `unreadable` with what is wrong as the reason, never left out.

    It keeps the number under which it stands, so that it is found there whatever its text says.
    """
    try:
        entry = read_entry(link)
        if entry.number != link.number:
            raise ValueError(f"it stands as entry {link.number} and says it is entry {entry.number}")
        return entry
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


def _read_link(chain: str, prev: str, link: Link) -> tuple[Entry | None, str]:
    """The entry of a link where it can be read, and what is wrong with it where something is."""
    if link.prev != prev:
        return None, f"entry {link.number} does not follow its predecessor"
    if link_hash(link.prev, link.text) != link.hash:
        return None, f"entry {link.number} was changed: its text does not match its hash"
    try:
        entry = read_entry(link)
    except ValueError as exc:
        return None, f"entry {link.number}: {exc}"
    if (entry.number, entry.chain) != (link.number, chain):
        return entry, f"entry {link.number} says it is entry {entry.number} of chain {entry.chain}"
    if link.misfiled:
        return entry, f"entry {link.number} is hidden from searches: its {link.misfiled} is not what its text says"
    return entry, ""


if __name__ == "__main__":
    from actions.store.audit_file import main

    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
