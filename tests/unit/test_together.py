"""Reads that are shared by whoever asks at one moment: what each gets was read after it asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from actions.store.together import Together
from local.processes import wait_until

LONG_S = 60.0


class Server:
    """A counter that is read one at a time while the test holds it: each read tells which one it was."""

    def __init__(self) -> None:
        self.reads = 0
        self.asked = threading.Semaphore(0)  # released by each read as it begins
        self.answer = threading.Semaphore(0)  # each read takes one before it ends
        self._lock = threading.Lock()

    def read(self) -> int:
        with self._lock:
            self.reads += 1
            mine = self.reads
        self.asked.release()
        assert self.answer.acquire(timeout=LONG_S)
        return mine


@pytest.fixture
def server() -> Server:
    return Server()


def waiting(together: Together[int], key: str) -> bool:
    """Whether somebody waits for the next read of this key."""
    reads = together._by_process[os.getpid()]
    with reads.lock:
        return reads.by_key.get(key, (None, None))[1] is not None


def ask(pool: ThreadPoolExecutor, together: Together[int], work: Callable[[], int], *, within_s: float = LONG_S) -> Future[int]:
    return pool.submit(together.read, "open", work, within_s=within_s)


def test_whoever_asks_while_a_read_is_under_way_gets_what_is_read_after_they_asked(server: Server) -> None:
    together = Together[int]()
    with ThreadPoolExecutor(3) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        second = ask(pool, together, server.read)
        wait_until(lambda: waiting(together, "open"), what="somebody who waits")
        server.answer.release()
        assert first.result(LONG_S) == 1
        assert server.asked.acquire(timeout=LONG_S)
        third = ask(pool, together, server.read)  # the second read has begun: it is too old for this one
        wait_until(lambda: waiting(together, "open"), what="somebody who waits")
        server.answer.release()
        assert second.result(LONG_S) == 2
        server.answer.release()
        assert third.result(LONG_S) == 3
    assert server.reads == 3
    assert not together._by_process[os.getpid()].by_key  # nothing is kept of what is over


def test_all_who_wait_share_one_read(server: Server) -> None:
    together = Together[int]()
    others = 6
    with ThreadPoolExecutor(1 + others) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        waiters = threading.Barrier(others)

        def come() -> int:
            waiters.wait(LONG_S)
            return together.read("open", server.read, within_s=LONG_S)

        rest = [pool.submit(come) for _ in range(others)]
        wait_until(lambda: waiting(together, "open") and waiters.n_waiting == 0, what="somebody who waits")
        server.answer.release()
        assert first.result(LONG_S) == 1
        for _ in range(others):  # as many as could be needed if nobody shared
            server.answer.release()
        found = [one.result(LONG_S) for one in rest]
    assert 1 not in found
    # Whoever was late in coming may have begun another one; each of them was read once for all who had asked before.
    assert set(found) == set(range(2, server.reads + 1))


def test_the_error_of_another_is_nobodys_else(server: Server) -> None:
    together = Together[int]()

    def fail() -> int:
        server.read()
        raise ConnectionError("mine")

    with ThreadPoolExecutor(3) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        leader = ask(pool, together, fail)
        wait_until(lambda: waiting(together, "open"), what="somebody who waits")
        follower = ask(pool, together, server.read)
        for _ in range(3):
            server.answer.release()
        assert first.result(LONG_S) == 1
        with pytest.raises(ConnectionError, match="mine"):
            leader.result(LONG_S)
        assert follower.result(LONG_S) > 1


def test_nobody_waits_longer_than_they_may_for_the_read_of_others(server: Server) -> None:
    together = Together[int]()
    with ThreadPoolExecutor(2) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        assert together.read("open", lambda: 77, within_s=0) == 77
        assert not waiting(together, "open")
        server.answer.release()
        assert first.result(LONG_S) == 1
    assert server.reads == 1


def test_what_is_asked_otherwise_waits_for_nobody(server: Server) -> None:
    together = Together[int]()
    with ThreadPoolExecutor(1) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        assert together.read("closed", lambda: 77, within_s=LONG_S) == 77
        server.answer.release()
        assert first.result(LONG_S) == 1


def test_a_child_of_the_process_shares_nothing_with_a_read_of_its_parent(server: Server) -> None:
    together = Together[int]()
    with ThreadPoolExecutor(1) as pool:
        first = ask(pool, together, server.read)
        assert server.asked.acquire(timeout=LONG_S)
        child = os.fork()
        if child == 0:
            os._exit(together.read("open", lambda: 77, within_s=LONG_S))
        _, status = os.waitpid(child, 0)
        server.answer.release()
        assert first.result(LONG_S) == 1
    assert os.waitstatus_to_exitcode(status) == 77
