"""The benchmark's history: a real chain, the same each time, and walked by bounded reads."""

from __future__ import annotations

from itertools import islice

import pytest

from actions.records import ChainHead, Link
from actions.store.audit import GENESIS, verify_chain
from actions.store.postgres import PostgresStore
from actions.store.postgres_entries import LINKS_PER_BATCH, PostgresEntries
from bench.chain import RARE_EVERY, entries, fill
from console.services.audit import verify_history
from tests.recall_writer import RecallWriter
from tests.store.conftest import alone, alone_url, prepared_template, records_url  # noqa: F401 - fixtures

EMPTY = ChainHead(chain="c", number=0, hash=GENESIS)


def test_it_is_one_chain_and_the_same_each_time() -> None:
    made = list(entries(300, EMPTY))
    last = made[-1]

    report = verify_chain(
        "c", (Link(e.number, e.text, e.prev, e.hash) for e in made), ChainHead(chain="c", number=300, hash=last.hash)
    )

    assert (report.is_intact, report.entries) == (True, 300)
    assert list(entries(300, EMPTY)) == made
    assert {e.kind for e in made} == {"settled", "observed", "waiting", "withdrawn"}
    assert len({e.decision_id for e in made}) == 300


def test_it_holds_something_rare_to_look_for() -> None:
    middle = RARE_EVERY // 2
    (entry,) = islice(entries(RARE_EVERY, EMPTY), middle, middle + 1)

    assert (entry.kind, entry.agent, entry.actor) == ("evicted", "agent-rare", "operator rare")


@pytest.mark.django_db
def test_it_is_walked_in_batches_and_never_held_whole(
    alone: tuple[PostgresStore, RecallWriter],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, recall = alone
    head = fill(recall.url, store.read_head(), 2 * LINKS_PER_BATCH + 5)
    batches: list[int] = []
    read = PostgresEntries._read_links

    def noted(self: PostgresEntries, after: int) -> list[Link]:
        links = read(self, after)
        batches.append(len(links))
        return links

    monkeypatch.setattr(PostgresEntries, "_read_links", noted)

    report = verify_history(store)

    assert (report.is_intact, report.entries, store.read_head()) == (True, head.number, head)
    assert batches == [LINKS_PER_BATCH, LINKS_PER_BATCH, 5, 0, 0]  # the last one looks for what stands beyond the head
