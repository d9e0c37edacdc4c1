"""The real Recall on a real polign_db, both ways: we read what it wrote, its next process reads what we settled; and what nothing fences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from polign_recall import RecallError, ResumedAgent

from actions import queries
from actions.errors import LeaseLive, StoreUnavailable
from actions.records import CLOSED_STATUSES, OPEN_STATUSES, ActionRef, ActionState, ActionStatus, Output, Pointer, Turn
from actions.settle import preview_turn, settle
from actions.store import codec
from actions.store.polign import PolignStore
from local.polign import RunningPolign
from tests.http_gateway import LOST, Gateway
from tests.interop import expected
from tests.interop.decisions import OPERATOR, chain_of, decide, settled_entries
from tests.interop.driver import Recall, kill
from tests.interop.fixtures import load
from tests.interop.test_fixtures import AGENTS, DECODERS, by_id
from tests.interop.test_mongo_fixtures import timeless
from tests.interop.test_we_settle_it_resumes import ENDS
from tests.polign_writer import PolignWriter

pytestmark = pytest.mark.interop

AGENT = "support-7"


@dataclass(frozen=True)
class Place:
    """One collection of a polign_db: Recall's clients of it, our store, a writer who sees behind both."""

    recall: Recall
    store: PolignStore
    behind: PolignWriter
    entries_url: str

    def crash(self, agent: ResumedAgent) -> None:
        """The agent's machine went away, some time ago."""
        kill(agent)
        self.expire(agent.agent_id)

    def expire(self, agent: str) -> None:
        held = self.behind.lease_of(agent)
        assert held is not None
        self.behind.lease(agent, held[0], held[1], "expired")

    def crash_in_send_email(self, turns: int = 3) -> None:
        running = self.recall.resume(AGENT)
        for number in range(1, turns + 1):
            running.record_turn("user", f"turn {number}")
        running.begin_action("send_email", "external", {"to": "ann@example.com", "subject": "Refund <881> & more"})
        self.crash(running)


@pytest.fixture(scope="module")
def history_url(pg_server: Any) -> Iterator[str]:
    """A database for entries."""
    name = f"t_{uuid4().hex[:16]}"
    url: str = pg_server.create_database(name)
    with closing(PolignStore("polign+http://127.0.0.1:9/", entries_url=url)) as store:
        store.prepare()
    yield url
    pg_server.drop_database(name)


@pytest.fixture
def place(polign_server: RunningPolign, history_url: str) -> Iterator[Place]:
    collection = f"c{uuid4().hex[:12]}"
    recall = Recall(polign_server.url(collection), env={"RECALL_COLLECTION": collection})
    with (
        closing(recall),
        closing(PolignStore(polign_server.url(collection), entries_url=history_url)) as store,
        PolignWriter(polign_server, collection) as behind,
    ):
        yield Place(recall, store, behind, history_url)


# --- it writes, we read ----------------------------------------------------------------------------------------------------


def test_every_record_of_the_fixture_decodes_as_the_rows_of_postgresql_do(place: Place) -> None:
    """From the file, and out of a server that was given them."""
    records = {vector["id"]: vector["metadata"] for vector in load("polign_db")["vectors"]}
    place.behind.put_many(records)
    wanted = {key: timeless(record) for key, record in by_id().items()}

    assert {key: timeless(DECODERS[said["record"]](key, said)) for key, said in records.items()} == wanted
    store = place.store
    readings = [r for statuses in (OPEN_STATUSES, CLOSED_STATUSES) for r in store.read_actions(statuses, limit=100).readings]
    found = sorted((timeless(reading.action) for reading in readings), key=lambda action: (action.agent, action.seq))
    assert found == [timeless(action) for action in expected.ACTIONS]
    for agent in AGENTS:
        turns = [timeless(turn) for turn in expected.TURNS if turn.agent == agent]
        assert [timeless(turn) for turn in store.list_turns(agent, limit=50)] == turns[::-1]
        assert timeless(store.find_working_state(agent)) == timeless(expected.WORKING_STATES.get(codec.head_id(agent)))
        pointers = [timeless(pointer) for pointer in expected.POINTERS.values() if pointer and pointer.agent == agent]
        assert [timeless(pointer) for pointer in store.list_pointers(agent)] == pointers
    outputs = {(output.agent, output.ref): timeless(output) for output in expected.OUTPUTS}
    assert {key: timeless(output) for key, output in store.read_outputs(outputs).items()} == outputs


def test_what_a_real_agent_writes_is_read(place: Place) -> None:
    long = {"body": "long text " * 900, "to": "bob@example.com"}
    running = place.recall.resume(AGENT)
    running.record_turn("user", "Refund <881> & more")
    running.begin_action("send_email", "external", long)
    running.begin_action("save_invoice", "idempotent", {"invoice": 9})
    running.update_working_state(goal="Refund order 881")
    running.set_pointer("repo", "git_ref", {"sha": "abc"})

    page = queries.list_actions([place.store], queries.ActionFilter(), limit=10)

    assert [(item.seq, item.state, item.lease) for item in page.items] == [
        (1, ActionState.UNCLEAR, None),
        (2, ActionState.UNCLEAR, None),
    ]
    action = page.items[0].action
    assert action is not None
    output = place.store.read_outputs([(AGENT, action.args_ref)])[AGENT, action.args_ref]
    assert isinstance(output, Output)
    assert json.loads(output.content) == long
    (turn,) = place.store.list_turns(AGENT, limit=5)
    assert isinstance(turn, Turn)
    assert (turn.role, turn.content) == ("user", "Refund <881> & more")
    (pointer,) = place.store.list_pointers(AGENT)
    assert isinstance(pointer, Pointer)
    assert dict(pointer.fields) == {"sha": "abc"}


# --- we settle, it resumes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["done-hostile", "done-long", "failed", "abandoned"])
def test_the_next_process_reads_the_outcome_as_previewed(place: Place, name: str) -> None:
    end = ENDS[name]
    place.crash_in_send_email()
    shown = queries.get_action(place.store, ActionRef("main", AGENT, 1)).action
    assert shown is not None
    preview = preview_turn(shown, end)

    settled = decide(place.store, AGENT, 1, end)

    resumed = place.recall.resume(AGENT)
    turn = resumed.context.recent_turns[-1]
    assert resumed.context.pending_actions == ()
    assert (turn.seq, turn.role, turn.name, turn.content, turn.brief, turn.output_ref) == (
        4, "tool", "send_email", preview.content, preview.brief, "",
    )  # fmt: skip
    assert turn.message_id.startswith("settle:1:")
    assert f"[tool send_email #4] {preview.brief}" in resumed.context.briefing
    assert settled.turn_seq == resumed.context.turn_seq == 4
    with pytest.raises(RecallError, match=rf"action 1 \(send_email\) already ended {end.status}"):
        resumed.end_action(1, "done", "sent twice")
    if name == "done-long":
        assert resumed.fetch_output("act-1-result").content == end.result
    assert resumed.record_turn("user", "go on").seq == 5
    assert resumed.begin_action("send_email", "external").seq == 2
    assert settled_entries(place.store, AGENT, 1) == 1
    assert chain_of(place.store).is_intact


@pytest.mark.parametrize("turns", [0, 63, 64, 65])
def test_the_turns_number_is_right_around_recalls_page_boundary(place: Place, turns: int) -> None:
    place.crash_in_send_email(turns)

    settled = decide(place.store, AGENT, 1, ENDS["done"])

    resumed = place.recall.resume(AGENT)
    assert settled.turn_seq == resumed.context.turn_seq == turns + 1
    assert resumed.record_turn("user", "go on").seq == turns + 2


def test_a_living_agent_is_left_alone(place: Place) -> None:
    running = place.recall.resume(AGENT)
    running.begin_action("send_email", "external")
    held = place.behind.lease_of(AGENT)
    assert held is not None

    with pytest.raises(LeaseLive) as refused:
        decide(place.store, AGENT, 1, ENDS["done"])

    assert (refused.value.lease.holder, refused.value.lease.epoch) == held[:2]
    assert place.behind.lease_of(AGENT) == held
    running.end_action(1, "done", "message-id 7")
    assert place.store.read_head().number == 0


def test_the_epoch_only_rises_and_a_process_that_was_taken_over_is_told_at_its_next_renewal(place: Place) -> None:
    place.crash_in_send_email()
    before = place.behind.lease_of(AGENT)

    decide(place.store, AGENT, 1, ENDS["done"])

    after = place.behind.lease_of(AGENT)
    assert before is not None
    assert after is not None
    assert (after[1], after[2]) == (before[1] + 2, "released")
    assert place.recall.resume(AGENT).context.epoch == after[1] + 1


def test_a_process_that_resumes_in_the_middle_of_a_settle_reads_the_turn_and_may_go_on(
    place: Place, polign_server: RunningPolign
) -> None:
    """The turn was written, the close was not: the call is still pending for it, and closed once we ask again."""
    place.crash_in_send_email()
    ref, collection = ActionRef("main", AGENT, 1), place.behind.collection.removesuffix("_agents")
    digest = queries.get_action(place.store, ref).digest

    def ask(store: PolignStore) -> int:
        return settle(store, ref, ENDS["done"], actor=OPERATOR, decision_id="decision-1", seen=digest).turn_seq

    with Gateway(polign_server.base) as gateway:
        url = f"polign+{gateway.base}?collection={collection}"
        with closing(PolignStore(url, entries_url=place.entries_url)) as far:
            gateway.fails = lambda _, request: LOST if request.startswith("PUT") and request.endswith(":act:1") else None
            with pytest.raises(StoreUnavailable) as caught:
                ask(far)
            assert caught.value.may_be_written
    place.expire(AGENT)

    resumed = place.recall.resume(AGENT)
    assert [action.status for action in resumed.pending_actions()] == ["unknown"]
    assert resumed.context.recent_turns[-1].content == "message-id 1204"
    assert resumed.record_turn("user", "what is going on?").seq == 5
    with pytest.raises(StoreUnavailable, match="an earlier attempt"):
        ask(place.store)
    resumed.release()

    assert ask(place.store) == 4

    again = place.recall.resume(AGENT)
    assert again.context.pending_actions == ()
    assert [turn.seq for turn in again.context.recent_turns] == [1, 2, 3, 4, 5]
    assert [turn.content for turn in again.context.recent_turns].count("message-id 1204") == 1
    assert settled_entries(place.store, AGENT, 1) == 1


# --- what is not fenced ----------------------------------------------------------------------------------------------------


def test_a_process_that_believes_in_its_lease_overwrites_what_we_settled(place: Place) -> None:
    """On PostgreSQL and MongoDB it is told `lease_lost`. This is why every screen of such a store carries its cautions."""
    running = place.recall.resume(AGENT)
    running.record_turn("user", "turn 1")
    running.begin_action("send_email", "external")
    place.expire(AGENT)  # its time is over by the server's clock, and it has not noticed
    decide(place.store, AGENT, 1, ENDS["done"])
    assert place.store.list_turns(AGENT, limit=1)[0].seq == 2

    assert running.record_turn("user", "I am still here").seq == 2

    (newest, *_) = place.store.list_turns(AGENT, limit=5)
    assert isinstance(newest, Turn)
    assert (newest.seq, newest.content) == (2, "I am still here")
    action = place.store.get_action(AGENT, 1).action
    assert action.status is ActionStatus.DONE  # type: ignore[union-attr]
    assert "does not fence writes" in place.store.check().cautions[0]
