"""Checkpoints and tombstones: what an auditor keeps outside of the database, so that a cut tail is noticed. Pure; Ed25519.

A checkpoint vouches for a chain up to a number: who signed it had seen that entry, and with it everything before. Checkpoints of one chain
follow each other by serial number and by the digest of the one before, so that an old one put in the place of a newer one is noticed. A
tombstone stands for a range that a retention removed, oldest first and whole.

As text: one line of canonical JSON, ASCII. The signature is over the line without its `signature`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from actions.digests import canonical_json, sha256_text
from actions.records import ChainHead, Entry
from actions.store.audit import GENESIS, Anchor
from actions.times import Instant, format_rfc3339, parse_rfc3339

CHECKPOINT, TOMBSTONE, MANIFEST = "checkpoint", "tombstone", "export"
MAX_LINE = 4_096

History = tuple[str, str]
"""Which one: the store's name and its chain. Two stores may well call their chains the same."""


class BadSignature(ValueError):
    """A line that is not what somebody with one of our keys signed; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was signed at one moment about one history."""

    store: str  # its name, or `console`
    chain: str
    number: int  # of the newest entry; 0 while the chain is empty
    head: str  # its hash
    count: int  # entries that stood there; less than `number` after a retention
    at: Instant
    serial: int  # of this chain's checkpoints, from 1, without gaps
    prev: str  # the digest of the checkpoint before it; 64 zeros for the first
    key: str  # public, base64
    line: str  # as it was signed, with the signature

    @property
    def history(self) -> History:
        return (self.store, self.chain)

    @property
    def digest(self) -> str:
        return sha256_text(self.line)

    @property
    def anchor(self) -> Anchor:
        return Anchor(number=self.number, hash=self.head, at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What a retention left of the entries up to `number`, which it removed."""

    store: str
    chain: str
    number: int
    head: str  # the hash of the last removed entry: the `prev` of the first that is left
    count: int  # how many were removed by all retentions together
    at: Instant
    key: str
    line: str

    @property
    def history(self) -> History:
        return (self.store, self.chain)

    @property
    def base(self) -> ChainHead:
        return ChainHead(chain=self.chain, number=self.number, hash=self.head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The checkpoints of a file, by history, oldest first."""

    checkpoints: Mapping[History, tuple[Checkpoint, ...]] = field(default_factory=dict)

    def of(self, store: str, chain: str) -> tuple[Anchor, ...]:
        return tuple(checkpoint.anchor for checkpoint in self.checkpoints.get((store, chain), ()))


def public_key(seed: str) -> str:
    """The public half of a signing key, both as base64 of 32 bytes."""
    return base64.b64encode(_private(seed).public_key().public_bytes_raw()).decode()


def sign(said: Mapping[str, object], seed: str) -> str:
    """One line: what is said, with the key's public half and the signature. `said` must hold JSON values only."""
    private = _private(seed)
    signed = {**said, "key": base64.b64encode(private.public_key().public_bytes_raw()).decode()}
    signature = base64.b64encode(private.sign(canonical_json(signed).encode())).decode()
    return canonical_json({**signed, "signature": signature})


def read_signed(line: str, what: str, trusted: Collection[str] | None) -> dict[str, object]:
    """What a signed line says. `trusted`: the public keys that count; None: whichever key it names, for those who keep the file safe.

    Raises:
        BadSignature: it is not canonical JSON, says to be something else, is signed by nobody we know, or not by its key.
    """
    try:
        said = json.loads(line)
        if not isinstance(said, dict) or said.get("settle") != what or canonical_json(said) != line:
            raise BadSignature(f"it is not a signed {what}")
        signature = base64.b64decode(_text(said, "signature"), validate=True)
        key = _text(said, "key")
        if trusted is not None and key not in trusted:
            raise BadSignature(f"it is signed with the key {key[:12]}..., which is none of ours")
        unsigned = {name: value for name, value in said.items() if name != "signature"}
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        public.verify(signature, canonical_json(unsigned).encode())
    except InvalidSignature:
        raise BadSignature("its signature is not that of its key: it was changed or forged") from None
    except BadSignature:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as exc:
        raise BadSignature(f"it is not a signed {what}: {type(exc).__name__}") from exc
    return unsigned


def sign_checkpoint(
    store: str, head: ChainHead, *, count: int, at: Instant, previous: Checkpoint | None, seed: str
) -> Checkpoint:
    """The next checkpoint of a chain, behind `previous`."""
    line = sign(
        {
            "settle": CHECKPOINT,
            "store": store,
            "chain": head.chain,
            "number": head.number,
            "head": head.hash,
            "count": count,
            "at": format_rfc3339(at),
            "serial": previous.serial + 1 if previous else 1,
            "prev": previous.digest if previous else GENESIS,
        },
        seed,
    )
    return read_checkpoint(line)


def read_checkpoint(line: str, trusted: Collection[str] | None = None) -> Checkpoint:
    """Raises BadSignature as `read_signed`."""
    said = read_signed(line, CHECKPOINT, trusted)
    try:
        return Checkpoint(
            store=_text(said, "store"),
            chain=_text(said, "chain"),
            number=_number(said, "number"),
            head=_text(said, "head"),
            count=_number(said, "count"),
            at=parse_rfc3339(_text(said, "at")),
            serial=_number(said, "serial"),
            prev=_text(said, "prev"),
            key=_text(said, "key"),
            line=line,
        )
    except (KeyError, ValueError) as exc:
        raise BadSignature(f"it is no whole checkpoint: {type(exc).__name__} {str(exc)[:60]}") from exc


def sign_tombstone(store: str, last: ChainHead, *, count: int, at: Instant, seed: str) -> Tombstone:
    """What stands for everything up to `last`, which a retention is about to remove."""
    said = {
        "settle": TOMBSTONE,
        "store": store,
        "chain": last.chain,
        "number": last.number,
        "head": last.hash,
        "count": count,
        "at": format_rfc3339(at),
    }
    return read_tombstone(sign(said, seed))


def read_tombstone(line: str, trusted: Collection[str] | None = None) -> Tombstone:
    """Raises BadSignature as `read_signed`."""
    said = read_signed(line, TOMBSTONE, trusted)
    try:
        return Tombstone(
            store=_text(said, "store"),
            chain=_text(said, "chain"),
            number=_number(said, "number"),
            head=_text(said, "head"),
            count=_number(said, "count"),
            at=parse_rfc3339(_text(said, "at")),
            key=_text(said, "key"),
            line=line,
        )
    except (KeyError, ValueError) as exc:
        raise BadSignature(f"it is no whole tombstone: {type(exc).__name__} {str(exc)[:60]}") from exc


def proven_by(store: str, trusted: Collection[str] | None) -> Callable[[Entry], ChainHead | None]:
    """What an entry of kind `retained` in this store's history proves to have been removed; None where its tombstone is not one of ours."""

    def read(entry: Entry) -> ChainHead | None:
        try:
            tombstone = read_tombstone(str(entry.detail.get("tombstone", "")), trusted)
        except BadSignature:
            return None
        return tombstone.base if tombstone.history == (store, entry.chain) else None

    return read


def read_anchors(lines: Iterable[str], trusted: Collection[str] | None = None) -> Anchors:
    """A file of checkpoints, a line each; empty lines count for nothing. Each history's must follow one another; the first may have any serial.

    Raises:
        BadSignature: names the line: forged, signed by nobody of ours, an older one again, one left out, or one that contradicts another.
    """
    found: dict[History, list[Checkpoint]] = {}
    for place, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line:
            continue
        try:
            if len(line) > MAX_LINE:
                raise BadSignature("it is too long to be a checkpoint")
            checkpoint = read_checkpoint(line, trusted)
            before = found.setdefault(checkpoint.history, [])
            if before and before[-1].line == line:
                continue  # delivered twice; it stands where it belongs
            _check_follows(before[-1] if before else None, checkpoint)
        except BadSignature as exc:
            raise BadSignature(f"checkpoint in line {place}: {exc}") from exc
        before.append(checkpoint)
    return Anchors(checkpoints={history: tuple(checkpoints) for history, checkpoints in found.items()})


def _check_follows(before: Checkpoint | None, checkpoint: Checkpoint) -> None:
    if before is None:
        return
    name = f"serial {checkpoint.serial} of store {checkpoint.store}"
    if checkpoint.serial <= before.serial:
        raise BadSignature(f"{name} stands after serial {before.serial}: an old checkpoint in the place of a newer one")
    if checkpoint.serial > before.serial + 1:
        raise BadSignature(f"{name} stands after serial {before.serial}: one is left out")
    if checkpoint.prev != before.digest:
        raise BadSignature(f"{name} does not follow the one before it")
    if checkpoint.number < before.number:
        raise BadSignature(
            f"{name} vouches for {checkpoint.number} entries, the one before it for {before.number}: the tail was cut off"
        )
    if checkpoint.number == before.number and checkpoint.head != before.head:
        raise BadSignature(f"{name} vouches for another entry {checkpoint.number} than the one before it")


def _private(seed: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(seed, validate=True))


def _text(said: Mapping[str, object], name: str) -> str:
    value = said[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def _number(said: Mapping[str, object], name: str) -> int:
    value = said[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is no number")
    return value
