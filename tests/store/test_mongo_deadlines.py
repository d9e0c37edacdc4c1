"""A MongoDB server that is there and answers nothing. Nobody waits for it for ever, and nobody asks it again at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

import pytest

from actions.errors import StoreUnavailable
from actions.store.deadlines import Timeouts
from actions.store.mongo import MongoStore
from tests.mongo_writer import MongoWriter
from tests.store.conftest import with_collection, with_option
from tests.store.gestures import decide, look_at_world, race, verify
from tests.store.test_postgres_deadlines import PATIENT, QUESTIONS, Proxy, fail, sooner_or_later

SHORT = Timeouts(answer_s=0.5, write_s=0.5, commit_s=0.3, pause_s=60)


@dataclass(frozen=True)
class Far:
    """A store of which everything goes through a proxy, the same store without one, and who writes its records."""

    proxy: Proxy
    url: str
    near: MongoStore
    recall: MongoWriter
    opened: list[tuple[MongoStore, Timeouts]] = field(default_factory=list)

    def store(self, timeouts: Timeouts = SHORT) -> MongoStore:
        """It waits no longer than these only from when the server falls silent."""
        store = MongoStore(self.url, name="far", timeouts=replace(timeouts, **PATIENT))
        self.opened.append((store, timeouts))
        return store

    def connected(self, timeouts: Timeouts = SHORT) -> MongoStore:
        """One that has been answered; a server may take longer to be found than it is waited for later."""
        for _ in range(30):
            store = self.store(timeouts)
            with suppress(StoreUnavailable):
                store.read_watch()
                return store
        raise AssertionError("nobody answered")

    def falls_silent(self, *, after: bytes | None = None) -> None:
        """Now, or once these bytes have been sent."""
        for store, timeouts in self.opened:
            store._database._timeouts = timeouts
        self.proxy.swallow_after = after
        if after is None:
            self.proxy.swallows.set()

    def answers_again(self) -> None:
        for store, timeouts in self.opened:
            store._database._timeouts = replace(timeouts, **PATIENT)
        self.proxy.hang_up()
        self.proxy.swallows.clear()


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
        for store, _ in there.opened:
            store.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_method_gives_up_a_server_that_stopped_answering(far: Far, question: str) -> None:
    far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.connected()
    far.falls_silent()

    error = fail(lambda: QUESTIONS[question](store))

    assert (error.store, error.problem) == ("far", "did not answer within 0.5 s")
    assert not error.may_be_written
    assert look_at_world(far.near, far.recall, "a") == before


def test_check_is_bounded_too_and_says_so(far: Far) -> None:
    store = far.connected()
    assert store.check().is_prepared
    far.falls_silent()

    check = store.check()

    assert (check.is_reachable, check.can_settle, check.why_not) == (False, False, "did not answer within 0.5 s")
    assert store.check().why_not.startswith("did not answer a moment ago; asked again in ")


@pytest.mark.parametrize("command", ["findAndModify", "insert", "update"])
def test_a_settle_that_is_cut_off_before_its_commit_wrote_nothing(far: Far, command: str) -> None:
    ref = far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.connected()
    far.falls_silent(after=command.encode())

    error = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert not error.may_be_written
    far.proxy.hang_up()
    assert look_at_world(far.near, far.recall, "a") == before


def test_a_commit_that_was_sent_may_be_written_and_asking_again_finds_out(far: Far) -> None:
    ref = far.recall.action("a", 1)
    store = far.connected(replace(SHORT, answer_s=60, write_s=60))  # all before the commit is answered
    far.falls_silent(after=b"commitTransaction")

    error = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert error.may_be_written
    assert error.problem == "the answer to the commit was lost (did not answer within 0.3 s)"
    again = decide(far.near, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq) == (True, 1)
    assert verify(far.near).is_intact


@pytest.fixture
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> Callable[[MongoStore], None]:
    """From now on no client of this store is looked for: whatever is asked of it is refused before."""

    def forbid(store: MongoStore) -> None:
        monkeypatch.setattr(store._database._clients, "get", lambda: pytest.fail("its server was asked"))

    return forbid


def test_a_store_that_did_not_answer_is_left_alone_for_a_while(far: Far, nobody_asks: Callable[[MongoStore], None]) -> None:
    store = far.connected()
    far.falls_silent()
    fail(store.read_watch)
    nobody_asks(store)

    for question in QUESTIONS.values():
        error = fail(partial(question, store))
        assert re.fullmatch(r"did not answer a moment ago; asked again in \d+ s", error.problem)
        assert not error.may_be_written


def test_a_server_that_accepts_connections_and_says_nothing_is_left_alone_too(
    far: Far, nobody_asks: Callable[[MongoStore], None]
) -> None:
    store = far.store()
    far.falls_silent()
    fail(store.read_watch)
    nobody_asks(store)

    assert "did not answer a moment ago" in fail(store.read_watch).problem


def test_it_is_asked_again_after_the_pause_and_found_well(far: Far) -> None:
    """The driver's own look at the server may have been hung up on a moment ago, and that is then said once more."""
    ref = far.recall.action("a", 1)
    store = far.connected(Timeouts(answer_s=1, read_s=2, write_s=5, commit_s=5, pause_s=0))
    far.falls_silent()
    fail(store.read_watch)
    far.answers_again()

    assert sooner_or_later(lambda: decide(store, ref, decision_id="decision-1")).turn_seq == 1


def test_requests_beyond_the_first_ones_take_no_time(far: Far, nobody_asks: Callable[[MongoStore], None]) -> None:
    store = far.connected()
    race(*[store.read_watch] * 8)
    far.falls_silent()

    first = race(*[store.read_watch] * 8)
    nobody_asks(store)
    others = race(*[store.read_watch] * 30)

    assert all(isinstance(answer, StoreUnavailable) for answer in (*first, *others)), (first, others)


def test_connections_that_a_network_dropped_are_replaced(far: Far) -> None:
    store = far.connected()
    far.proxy.hang_up()

    assert store.read_watch().entries == 0
