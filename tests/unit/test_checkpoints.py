"""Checkpoints: forged, changed, replayed, left out or contradicting ones are named."""

from __future__ import annotations

import base64
import json

import pytest

from actions.digests import canonical_json
from actions.records import ChainHead
from actions.store.checkpoints import (
    Anchors,
    BadSignature,
    Checkpoint,
    public_key,
    read_anchors,
    read_checkpoint,
    read_tombstone,
    sign,
    sign_checkpoint,
    sign_tombstone,
)

SEED = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(range(1, 33))).decode()
CHAIN = "recall.recall_agents"


def head(number: int, chain: str = CHAIN) -> ChainHead:
    return ChainHead(chain=chain, number=number, hash=f"{number:064x}")


def some(*numbers: int, seed: str = SEED, chain: str = CHAIN) -> list[Checkpoint]:
    """Checkpoints that follow one another."""
    made: list[Checkpoint] = []
    for number in numbers:
        previous = made[-1] if made else None
        made.append(sign_checkpoint("main", head(number, chain), count=number, at=number, previous=previous, seed=seed))
    return made


def lines(*checkpoints: Checkpoint) -> list[str]:
    return [checkpoint.line for checkpoint in checkpoints]


def test_a_checkpoint_says_what_was_signed_and_who_signed_it() -> None:
    first, second = some(3, 7)

    assert read_checkpoint(second.line, [public_key(SEED)]) == second
    assert (second.chain, second.number, second.head, second.count, second.serial) == (CHAIN, 7, head(7).hash, 7, 2)
    assert second.prev == first.digest
    assert second.key == public_key(SEED)
    assert second.line.isascii()
    assert "\n" not in second.line


def test_anchors_are_those_of_each_chain_in_the_order_of_the_file() -> None:
    here, there = some(1, 4), some(2, chain="console")

    anchors = read_anchors([here[0].line, "", there[0].line + "\n", here[1].line], [public_key(SEED)])

    assert [anchor.number for anchor in anchors.of("main", CHAIN)] == [1, 4]
    assert [anchor.number for anchor in anchors.of("main", "console")] == [2]
    assert anchors.of("main", "another") == ()


def test_a_checkpoint_of_a_retired_key_still_counts_beside_the_new_one() -> None:
    old = some(1)
    new = sign_checkpoint("main", head(2), count=2, at=2, previous=old[0], seed=OTHER)

    assert len(read_anchors(lines(*old, new), [public_key(OTHER), public_key(SEED)]).of("main", CHAIN)) == 2
    with pytest.raises(BadSignature, match=r"line 1: it is signed with the key .* none of ours"):
        read_anchors(lines(*old, new), [public_key(OTHER)])


def changed(line: str, **values: object) -> str:
    return canonical_json({**json.loads(line), **values})


one, two, three = some(3, 7, 9)
cut = some(3, 2)
other_past = sign_checkpoint("main", ChainHead(chain=CHAIN, number=3, hash="f" * 64), count=3, at=1, previous=one, seed=SEED)
HOSTILE = {
    "a number raised": (lambda: [changed(one.line, number=4)], "changed or forged"),
    "a head replaced": (lambda: [changed(one.line, head="0" * 64)], "changed or forged"),
    "a time moved": (lambda: [changed(one.line, at="2026-01-01T00:00:00Z")], "changed or forged"),
    "another key named": (lambda: [changed(one.line, key=public_key(OTHER))], "none of ours"),
    "signed with another key": (lambda: lines(*some(3, seed=OTHER)), "none of ours"),
    "no signature": (
        lambda: [canonical_json({k: v for k, v in json.loads(one.line).items() if k != "signature"})],
        "not a signed",
    ),
    "an old one again": (lambda: lines(one, two, one), "an old checkpoint in the place of a newer one"),
    "one left out": (lambda: lines(one, three), "one is left out"),
    "another history": (lambda: lines(some(4)[0], two), "does not follow the one before it"),
    "a cut tail, signed anew": (lambda: lines(*cut), "the tail was cut off"),
    "another entry at the same number": (lambda: lines(one, other_past), "another entry 3"),
    "a tombstone": (lambda: [sign_tombstone("main", head(3), count=3, at=1, seed=SEED).line], "not a signed checkpoint"),
    "spaces put in": (lambda: [one.line.replace(",", ", ", 1)], "not a signed checkpoint"),
    "no JSON": (lambda: ["intact: yes"], "not a signed checkpoint"),
    "a list": (lambda: ["[]"], "not a signed checkpoint"),
    "very deep": (lambda: ["[" * 4_000], "not a signed checkpoint"),
    "very long": (lambda: ['"' + "x" * 5_000 + '"'], "too long"),
    "a number that is text": (lambda: [resigned(number="3")], "no whole checkpoint"),
    "a negative number": (lambda: [resigned(number=-3)], "no whole checkpoint"),
    "a truth for a number": (lambda: [resigned(number=True)], "no whole checkpoint"),
    "no chain": (lambda: [resigned(chain=None)], "no whole checkpoint"),
}


def resigned(**values: object) -> str:
    said = {k: v for k, v in json.loads(one.line).items() if k not in ("signature", "key")}
    return sign({**said, **values}, SEED)


@pytest.mark.parametrize("case", HOSTILE)
def test_what_nobody_of_ours_signed_in_this_order_is_named_with_its_line(case: str) -> None:
    make, says = HOSTILE[case]

    with pytest.raises(BadSignature, match=says) as refused:
        read_anchors(make(), [public_key(SEED)])

    assert f"line {len(make())}" in str(refused.value)


def test_a_checkpoint_that_was_delivered_twice_counts_once() -> None:
    assert [anchor.number for anchor in read_anchors(lines(one, one, two)).of("main", CHAIN)] == [3, 7]


def test_nothing_is_no_anchor() -> None:
    assert read_anchors([]) == Anchors()


def test_a_tombstone_comes_back_and_a_changed_one_does_not() -> None:
    tombstone = sign_tombstone("main", head(9), count=9, at=5, seed=SEED)

    assert read_tombstone(tombstone.line, [public_key(SEED)]) == tombstone
    assert tombstone.base == head(9)
    with pytest.raises(BadSignature):
        read_tombstone(changed(tombstone.line, number=10))
    with pytest.raises(BadSignature):
        read_tombstone(one.line)
