"""The console's own history: committed with what it tells of, and one chain, whoever writes at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from actions.store.audit import verify_chain
from console.services import journal
from console.stores import console_chain

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS, ROUNDS = 4, 6


class _TurnedBack(Exception):
    pass


def test_transactions_at_one_moment_leave_one_chain_and_one_that_is_rolled_back_no_gap() -> None:
    before = console_chain().read_head().number
    gate = threading.Barrier(WRITERS)

    def write(writer: int) -> None:
        gate.wait()
        try:
            for number in range(ROUNDS):
                try:
                    with transaction.atomic():
                        journal.record("exported", actor=f"operator {writer}", detail={"round": number})
                        if writer == 0 and number % 2:
                            raise _TurnedBack
                except _TurnedBack:
                    continue
        finally:
            connection.close()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))

    links = list(console_chain().iterate_links(after=before))
    written = WRITERS * ROUNDS - ROUNDS // 2
    assert [link.number for link in links] == list(range(before + 1, before + written + 1))
    head = console_chain().read_head()
    assert (head.number, head.hash) == (links[-1].number, links[-1].hash)
    assert verify_chain(head.chain, console_chain().iterate_links(), head).is_intact
    said = [(entry.actor, entry.detail["round"]) for entry in console_chain().list_entries(limit=written)]
    assert len(set(said)) == written
    assert ("operator 0", 1) not in said
