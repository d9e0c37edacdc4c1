"""A MongoDB server that is there and answers nothing. Nobody waits for it for ever, and nobody asks it again at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from actions.errors import StoreUnavailable
from actions.store.deadlines import Timeouts
from actions.store.mongo import MongoStore
from tests.mongo_writer import MongoWriter
from tests.store.conftest import with_collection, with_option
from tests.store.gestures import decide, look_at_world, race, verify
from tests.store.test_postgres_deadlines import QUESTIONS, Proxy, fail

T = TypeVar("T")

SHORT = Timeouts(answer_s=0.5, write_s=0.5, commit_s=0.3, pause_s=60)
LONG_ENOUGH = 7


@dataclass(frozen=True)
class Far:
    """A store of which everything goes through a proxy, the same store without one, and who writes its records."""

    proxy: Proxy
    url: str
    near: MongoStore
    recall: MongoWriter
    opened: list[MongoStore] = field(default_factory=list)

    def store(self, timeouts: Timeouts = SHORT) -> MongoStore:
        store = MongoStore(self.url, name="far", timeouts=timeouts)
        self.opened.append(store)
        return store


@pytest.fixture
def far(mongo_url: str) -> Iterator[Far]:
    """In a database of its own: the stand-in locks more than a transaction wrote, and one that is cut off lasts until its minute is over."""
    url = with_collection(mongo_url)
    server = urlsplit(url)
    with (
        closing(MongoStore(url)) as near,
        MongoWriter(url) as recall,
        closing(Proxy(server.hostname or "", server.port or 0)) as proxy,
    ):
        near.prepare()
        through = url.replace(f":{server.port}/", f":{proxy.port}/")
        there = Far(proxy, with_option(through, "serverSelectionTimeoutMS=500"), near, recall.create())
        yield there
        for store in there.opened:
            store.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_method_gives_up_a_server_that_stopped_answering(far: Far, question: str) -> None:
    far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.store()
    store.read_watch()
    far.proxy.swallows.set()

    error, after_s = fail(lambda: QUESTIONS[question](store))

    assert (error.store, error.problem) == ("far", "did not answer within 0.5 s")
    assert not error.may_be_written
    assert after_s < LONG_ENOUGH
    assert look_at_world(far.near, far.recall, "a") == before


def test_check_is_bounded_too_and_says_so(far: Far) -> None:
    store = far.store()
    assert store.check().is_prepared
    far.proxy.swallows.set()

    check = store.check()

    assert (check.is_reachable, check.can_settle, check.why_not) == (False, False, "did not answer within 0.5 s")
    assert store.check().why_not.startswith("did not answer a moment ago; asked again in ")


@pytest.mark.parametrize("command", ["findAndModify", "insert", "update"])
def test_a_settle_that_is_cut_off_before_its_commit_wrote_nothing(far: Far, command: str) -> None:
    ref = far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.store()
    store.read_watch()
    far.proxy.swallow_after = command.encode()

    error, after_s = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert not error.may_be_written
    assert after_s < LONG_ENOUGH
    far.proxy.hang_up()
    assert look_at_world(far.near, far.recall, "a") == before


def test_a_commit_that_was_sent_may_be_written_and_asking_again_finds_out(far: Far) -> None:
    ref = far.recall.action("a", 1)
    store = far.store()
    store.read_watch()
    far.proxy.swallow_after = b"commitTransaction"

    error, after_s = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert error.may_be_written
    assert error.problem == "the answer to the commit was lost (did not answer within 0.3 s)"
    assert after_s < LONG_ENOUGH
    again = decide(far.near, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq) == (True, 1)
    assert verify(far.near).is_intact


def test_a_store_that_did_not_answer_is_left_alone_for_a_while(far: Far) -> None:
    store = far.store()
    store.read_watch()
    far.proxy.swallows.set()
    fail(store.read_watch)

    for question in QUESTIONS.values():
        error, after_s = fail(partial(question, store))
        assert re.fullmatch(r"did not answer a moment ago; asked again in \d+ s", error.problem)
        assert not error.may_be_written
        assert after_s < SHORT.answer_s


def test_a_server_that_accepts_connections_and_says_nothing_is_left_alone_too(far: Far) -> None:
    far.proxy.swallows.set()
    store = far.store()

    _, first_s = fail(store.read_watch)
    error, after_s = fail(store.read_watch)

    assert first_s < LONG_ENOUGH
    assert "did not answer a moment ago" in error.problem
    assert after_s < SHORT.answer_s


def test_it_is_asked_again_after_the_pause_and_found_well(far: Far) -> None:
    ref = far.recall.action("a", 1)
    store = far.store(Timeouts(answer_s=1, read_s=2, write_s=5, commit_s=5, pause_s=0))
    store.read_watch()
    far.proxy.swallows.set()
    fail(store.read_watch)
    far.proxy.hang_up()
    far.proxy.swallows.clear()

    assert _sooner_or_later(lambda: decide(store, ref)).turn_seq == 1


def _sooner_or_later(ask: Callable[[], T]) -> T:
    """The driver's own look at the server may have been hung up on a moment ago, and that is then said once more."""
    for _ in range(20):
        with suppress(StoreUnavailable):
            return ask()
    return ask()


def test_requests_beyond_the_first_ones_take_no_time(far: Far) -> None:
    store = far.store()
    race(*[store.read_watch] * 8)
    far.proxy.swallows.set()
    began = time.monotonic()

    answers = race(*[store.read_watch] * 8) + race(*[store.read_watch] * 30)

    assert all(isinstance(answer, StoreUnavailable) for answer in answers), answers
    assert time.monotonic() - began < LONG_ENOUGH


def test_connections_that_a_network_dropped_are_replaced(far: Far) -> None:
    store = far.store()
    store.read_watch()
    far.proxy.hang_up()

    assert store.read_watch().entries == 0
