"""A settle in steps looks at the clock before each write: none begins that may still be on its way when the lease runs out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

import pytest

from actions.errors import StoreUnavailable
from actions.records import Action, ActionClass, ActionRef, ActionStatus, ChainHead, Entry, NewEntry
from actions.settle import make_end
from actions.store import steps
from actions.store.audit import GENESIS, seal
from actions.store.closing import Closing
from actions.store.steps import Found, Held, marker, settle_in_steps

REF = ActionRef("main", "a", 1)
ACTION = Action(
    agent="a",
    seq=1,
    tool="send_email",
    action_class=ActionClass.EXTERNAL,
    key="k",
    args="{}",
    status=ActionStatus.STARTED,
    epoch=1,
    written_epoch=1,
    started_at=0,
)
END = make_end(ActionStatus.DONE, "in the Sent folder", actor="operator ana")
NEW = NewEntry(kind="settled", actor="operator ana", agent="a", seq=1, decision_id="decision-1", content_digest="d")


@dataclass
class Table:
    """The least that a server can be: one open action. Each step takes as long as the test says, by a clock that only moves so."""

    takes: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    done: list[str] = field(default_factory=list)

    def _do(self, step: str) -> None:
        self.done.append(step)
        self.now += self.takes.get(step, 0)

    def read(self, ref: ActionRef, turns: Collection[int]) -> Found:
        return Found(action=ACTION, metadata={"body": "{}"}, args="{}", turns=(), largest_turn=0, head=None)

    def hold(self, agent: str, holder: str) -> Held:
        return Held(epoch=2, at=0, until=self.now + 10)

    def write_turn(self, closing: Closing, held: Held) -> int:
        assert closing.turn.message_id == marker(1, "decision-1") == "settle:1:decision-1"
        self._do("turn")
        return closing.turn_seq

    def may_be_ours(self, intended: object, found: int) -> bool:
        return intended == found

    def write_end(self, closing: Closing, held: Held) -> None:
        self._do("close")

    def let_go(self, agent: str, held: Held) -> None:
        self._do("release")

    # --- and the history beside it ---

    def find_settled(self, decision_id: str) -> Entry | None:
        return None

    def find_of_action(self, agent: str, seq: int) -> Entry | None:
        return None

    def list_settling(self, agent: str, seq: int, *, limit: int) -> tuple[Entry, ...]:
        return ()

    def append_settling(self, new: NewEntry) -> Entry:
        return self.append_settled(new)

    def append_settled(self, new: NewEntry) -> Entry:
        self._do(new.kind)
        return seal(new, ChainHead(chain="c", number=0, hash=GENESIS), 0)


@pytest.mark.parametrize(
    ("slow", "done"),
    [
        ("", ["settling", "turn", "close", "settled", "release"]),
        ("settling", ["settling", "release"]),
        ("turn", ["settling", "turn", "release"]),
        ("close", ["settling", "turn", "close", "settled", "release"]),
    ],
)
def test_no_write_begins_when_the_lease_may_run_out(slow: str, done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(takes={slow: 11})
    monkeypatch.setattr(steps, "monotonic", lambda: table.now)

    if done[-2] == "settled":
        assert settle_in_steps(table, table, REF, END, entry=NEW, holder="console:ana:1").turn_seq == 1
    else:
        with pytest.raises(StoreUnavailable, match="lease was about to run out") as caught:
            settle_in_steps(table, table, REF, END, entry=NEW, holder="console:ana:1")
        assert caught.value.may_be_written == (slow == "turn")

    assert table.done == done


def test_a_lease_that_is_too_old_when_it_comes_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    monkeypatch.setattr(steps, "monotonic", lambda: inf)

    with pytest.raises(StoreUnavailable) as caught:
        settle_in_steps(table, table, REF, END, entry=NEW, holder="console:ana:1")

    assert not caught.value.may_be_written
    assert table.done == ["release"]
