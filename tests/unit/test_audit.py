"""The chain: every change, gap, swap and cut is found, whatever the entries say."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from hypothesis import assume, given
from hypothesis import strategies as st

from actions.digests import canonical_json
from actions.records import ChainHead, Entry, Link, NewEntry
from actions.store.audit import GENESIS, link_hash, read_entry, seal, show_entry, verify_chain
from tests.unit.strategies import entries, instants, wild_text

EMPTY = ChainHead(chain="recall.x_agents", number=0, hash=GENESIS)


def chain_of(news: list[NewEntry], at: int = 0) -> tuple[list[Link], ChainHead]:
    links, head = [], EMPTY
    for new in news:
        entry = seal(new, head, at)
        links.append(Link(entry.number, entry.text, entry.prev, entry.hash))
        head = ChainHead(chain=head.chain, number=entry.number, hash=entry.hash)
    return links, head


some_entries = st.lists(entries, min_size=1, max_size=5)


@given(entries, instants)
def test_an_entry_comes_back_from_its_link(new: NewEntry, at: int) -> None:
    entry = seal(new, EMPTY, at)

    assert read_entry(Link(entry.number, entry.text, entry.prev, entry.hash)) == entry
    assert entry.at == at
    kept = {**asdict(new), "detail": dict(new.detail)}
    del kept["redacted"]  # what was to be hidden is hidden by then
    assert {name: getattr(entry, name) for name in kept} == kept


@given(entries, instants)
def test_an_entrys_text_is_ascii_and_canonical(new: NewEntry, at: int) -> None:
    entry = seal(new, EMPTY, at)

    assert entry.text.isascii()
    assert canonical_json(json.loads(entry.text)) == entry.text
    assert "\x00" not in entry.text


@given(some_entries)
def test_an_untouched_chain_is_intact(news: list[NewEntry]) -> None:
    links, head = chain_of(news)

    report = verify_chain(head.chain, links, head)

    assert (report.is_intact, report.entries, report.first_bad) == (True, len(news), None)


@given(some_entries, st.data())
def test_a_changed_text_is_found(news: list[NewEntry], data: st.DataObject) -> None:
    links, head = chain_of(news)
    place = data.draw(st.integers(0, len(links) - 1))
    text = data.draw(wild_text | st.just(links[place].text.replace('"kind"', '"kind" ')))
    assume(text != links[place].text)
    links[place] = links[place]._replace(text=text)

    report = verify_chain(head.chain, links, head)

    assert report.first_bad == place + 1
    assert report.problem


@given(some_entries, st.data())
def test_a_text_changed_with_a_new_hash_is_found_by_the_next_or_by_the_head(news: list[NewEntry], data: st.DataObject) -> None:
    links, head = chain_of(news)
    place = data.draw(st.integers(0, len(links) - 1))
    said = json.loads(links[place].text) | {"actor": "eve was here"}
    text = canonical_json(said)
    links[place] = links[place]._replace(text=text, hash=link_hash(links[place].prev, text))

    assert not verify_chain(head.chain, links, head).is_intact


@given(some_entries, st.data())
def test_a_missing_entry_is_found(news: list[NewEntry], data: st.DataObject) -> None:
    links, head = chain_of(news)
    place = data.draw(st.integers(0, len(links) - 1))
    del links[place]

    assert verify_chain(head.chain, links, head).first_bad == place + 1


@given(st.lists(entries, min_size=2, max_size=5), st.data())
def test_swapped_entries_are_found(news: list[NewEntry], data: st.DataObject) -> None:
    links, head = chain_of(news)
    place = data.draw(st.integers(0, len(links) - 2))
    links[place], links[place + 1] = links[place + 1], links[place]

    assert not verify_chain(head.chain, links, head).is_intact


@given(some_entries)
def test_an_entry_twice_is_found(news: list[NewEntry]) -> None:
    links, head = chain_of(news)

    assert not verify_chain(head.chain, [*links, links[-1]], head).is_intact


@given(some_entries)
def test_a_cut_tail_is_found_by_the_head_alone(news: list[NewEntry]) -> None:
    links, head = chain_of(news)

    report = verify_chain(head.chain, links[:-1], head)

    assert (report.first_bad, report.entries) == (len(news), len(news) - 1)


@given(some_entries)
def test_a_chain_of_another_store_is_not_this_one(news: list[NewEntry]) -> None:
    links, head = chain_of(news)

    assert verify_chain("recall.other_agents", links, head).first_bad == 1


def test_an_empty_chain_is_intact_and_a_head_without_entries_is_not() -> None:
    assert verify_chain(EMPTY.chain, [], EMPTY).is_intact
    assert not verify_chain(EMPTY.chain, [], ChainHead(chain=EMPTY.chain, number=1, hash="x")).is_intact


@given(st.integers(0, 2**62), wild_text, wild_text, wild_text)
def test_any_row_can_be_shown(number: int, text: str, prev: str, hash_: str) -> None:
    entry = show_entry(Link(number, text, prev, hash_))

    assert isinstance(entry, Entry)
    assert (entry.kind, entry.number, entry.text) == ("unreadable", number, text)


@given(st.sampled_from(["chain", "number", "at", "kind", "actor", "detail", "seq", "hash"]))
def test_a_row_that_lacks_a_part_is_shown_as_unreadable(name: str) -> None:
    (link,), _ = chain_of([NewEntry(kind="refused", actor="operator ana")])
    said = json.loads(link.text)
    is_part = said.pop(name, None) is not None or name == "seq"

    entry = show_entry(link._replace(text=canonical_json(said)))

    assert (entry.kind == "unreadable") == is_part


@given(st.sampled_from([field.name for field in fields(Entry) if field.name not in ("text", "prev", "hash")]), st.data())
def test_a_row_whose_part_is_of_another_kind_is_shown_as_unreadable_where_it_stands(name: str, data: st.DataObject) -> None:
    (link,), _ = chain_of([NewEntry(kind="refused", actor="operator ana", seq=3)])
    said = json.loads(link.text)
    others = [None, True, 1.5, "1", [], {}, 2]
    fitting = {"seq": (type(None), int), "number": (), "detail": (dict,)}.get(name, (str,) if name != "at" else ())
    said[name] = data.draw(st.sampled_from([other for other in others if type(other) not in fitting]))

    entry = show_entry(link._replace(text=canonical_json(said)))

    assert (entry.kind, entry.number, entry.detail) == ("unreadable", link.number, {})
