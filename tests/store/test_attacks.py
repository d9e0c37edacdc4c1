"""What somebody who may do everything in a store's database can do to its history, and that it is found and named; on every store."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest
from bson import Int64

from actions.digests import canonical_json
from actions.records import ChainHead, Link, NewEntry
from actions.store.audit import GENESIS, Anchor, link_hash, read_entry, verify_chain
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from actions.store.mongo import MongoStore
from actions.store.mongo_entries import fields_of
from actions.store.postgres_rows import entry_columns

Links = list[Link]


def say(link: Link, prev: str | None = None, **changed: object) -> Link:
    """Another text with a hash that fits it."""
    text = canonical_json({**json.loads(link.text), **changed})
    prev = link.prev if prev is None else prev
    return link._replace(text=text, prev=prev, hash=link_hash(prev, text))


def forge_all(links: Links) -> Links:
    """The whole chain anew, with another story in the third entry."""
    forged: Links = []
    for link in links:
        story = {"actor": "operator eve"} if link.number == 3 else {}
        forged.append(say(link, forged[-1].hash if forged else GENESIS, **story))
    return forged


def renumber(links: Links) -> Links:
    """Without the third entry, and as if there had never been one."""
    left: Links = []
    for number, link in enumerate([link for link in links if link.number != 3], start=1):
        left.append(say(link._replace(number=number), left[-1].hash if left else GENESIS, number=number))
    return left


def swap(links: Links) -> Links:
    two, three = links[1], links[2]
    return [links[0], three._replace(number=2), two._replace(number=3), *links[3:]]


ATTACKS: dict[str, tuple[Callable[[Links], Links], bool, int]] = {
    # what is done; whether it is found without any checkpoint; the first bad entry
    "a text edited": (
        lambda links: [*links[:2], links[2]._replace(text=links[2].text.replace("ana", "eve")), *links[3:]],
        True,
        3,
    ),
    "a text edited and hashed anew": (lambda links: [*links[:2], say(links[2], actor="operator eve"), *links[3:]], True, 4),
    "the last text edited and hashed anew": (lambda links: [*links[:4], say(links[4], actor="operator eve")], False, 5),
    "everything hashed anew": (forge_all, False, 5),
    "an entry deleted": (lambda links: [*links[:2], *links[3:]], True, 3),
    "the first entry deleted": (lambda links: links[1:], True, 1),
    "an entry deleted and everything numbered anew": (renumber, False, 5),
    "the tail cut off": (lambda links: links[:3], False, 4),
    "everything deleted": (lambda links: [], False, 1),
    "entries swapped": (swap, True, 2),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_found_with_a_checkpoint_that_was_kept_elsewhere(store: ActionStore, attack: str) -> None:
    do, found_alone, first_bad = ATTACKS[attack]
    for seq in range(1, 6):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=seq, reason="why"))
    links = list(store.iterate_links())
    anchor = Anchor(number=5, hash=links[-1].hash, at=0)
    assert verify(store, anchor).anchored == 5

    attacked = do(links)
    overwrite(store, links, attacked)

    with_anchor = verify(store, anchor)
    assert not with_anchor.is_intact
    assert with_anchor.first_bad == first_bad
    assert verify(store).is_intact is not found_alone


def test_entries_that_are_appended_after_a_cut_do_not_hide_it(store: ActionStore) -> None:
    for seq in range(1, 6):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=seq))
    links = list(store.iterate_links())
    anchor = Anchor(number=4, hash=links[3].hash, at=0)
    overwrite(store, links, links[:3])
    for seq in range(6, 9):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=seq))

    report = verify(store, anchor)

    assert verify(store).is_intact
    assert report.first_bad == 4
    assert "is not the one that the checkpoint of" in report.problem
    assert report.missing is None


def test_integrity_and_completeness_are_told_apart(store: ActionStore) -> None:
    for seq in range(1, 6):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=seq))
    links = list(store.iterate_links())

    overwrite(store, links, [*links[:1], *links[2:]])
    gap = verify(store)
    overwrite(
        store, [*links[:1], *links[2:]], [*links[:3], links[3]._replace(text=links[3].text.replace("ana", "eve")), links[4]]
    )
    edited = verify(store)

    assert (gap.broken, gap.missing and gap.missing.number) == (None, 2)
    assert (edited.missing, edited.broken and edited.broken.number) == (None, 4)


def verify(store: ActionStore, *anchors: Anchor):  # type: ignore[no-untyped-def]
    head = store.read_head()
    return verify_chain(head.chain, store.iterate_links(), head, anchors=anchors)


def overwrite(store: ActionStore, before: Links, after: Links) -> None:
    """Do what no trigger and no right stops any more: other rows, and a head that fits them."""
    chain = read_entry(before[0]).chain
    last = after[-1] if after else Link(0, "", "", GENESIS)
    head = ChainHead(chain=chain, number=last.number, hash=last.hash)
    if isinstance(store, MemoryStore):
        store.links[:] = after
    elif isinstance(store, MongoStore):
        _overwrite_documents(store, after, head)
    else:
        _overwrite_rows(store, after, head)


def _columns(link: Link) -> dict[str, object]:
    """As if the store itself had written this text, whatever hash stands beside it."""
    return {**entry_columns(read_entry(link)), "number": link.number, "text": link.text, "prev": link.prev, "hash": link.hash}


def _overwrite_rows(store: ActionStore, links: Links, head: ChainHead) -> None:
    entries = getattr(store, "_entries")  # noqa: B009
    triggers = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'settle_audit.entries'::regclass AND NOT tgisinternal"
    with psycopg.connect(entries._database.address.conninfo) as connection:
        names = [name for (name,) in connection.execute(triggers)]
        for name in names:  # as the owner; other tests of this database see them in place, before and after the commit
            connection.execute(f"ALTER TABLE settle_audit.entries DISABLE TRIGGER {name}")
        connection.execute("DELETE FROM settle_audit.entries WHERE chain = %s", [head.chain])
        for link in links:
            row = _columns(link)
            values = ", ".join(f"%({name})s" for name in row)
            connection.execute(f"INSERT INTO settle_audit.entries ({', '.join(row)}) VALUES ({values})", row)
        connection.execute(
            "UPDATE settle_audit.heads SET number = %s, hash = %s WHERE chain = %s", [head.number, head.hash, head.chain]
        )
        for name in names:
            connection.execute(f"ALTER TABLE settle_audit.entries ENABLE ALWAYS TRIGGER {name}")


def _overwrite_documents(store: MongoStore, links: Links, head: ChainHead) -> None:
    with store._database.connect() as db:
        db["settle_audit_entries"].delete_many({"chain": head.chain})
        for link in links:
            fields = {**fields_of(read_entry(link)), "number": Int64(link.number), "text": link.text}
            db["settle_audit_entries"].insert_one({**fields, "prev": link.prev, "hash": link.hash})
        db["settle_audit_head"].update_one({"_id": head.chain}, {"$set": {"number": Int64(head.number), "hash": head.hash}})
