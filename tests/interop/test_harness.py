"""An agent that our harness ran is resumed by the real Recall, and the reverse: the same records, the same briefing, the next number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymongo
import pytest
from polign_recall import RecallError, ResumedAgent

from actions.errors import InvalidRecord, LeaseLost, LeaseNotHeld
from actions.keys import action_key
from actions.records import ActionStatus
from actions.store import open_agent_store
from actions.store.base import AgentStore
from agents.harness import DurableAgent, End
from tests.interop.driver import Recall, crash, expire_lease, lease_of, records_of, revision

pytestmark = pytest.mark.interop

ODD = 'Grüße\u00a0 & <b>"q"</b>\n\n  \u2003two\x1clines\x00\u200b \U0001f4b8 '
TIMES = ("at", "started_at", "ended_at", "updated_at")


@pytest.fixture
def agents(url: str) -> Iterator[AgentStore]:
    """Our store on an empty database: nobody prepared it, and no Recall ran there."""
    with closing(open_agent_store(url)) as store:
        yield store


class Theirs:
    """Recall's client under the names of ours."""

    def __init__(self, agent: ResumedAgent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def begin_action(self, tool: str, args: Any, action_class: str) -> Any:
        return self._agent.begin_action(tool, action_class, args)

    def end_action(self, seq: int, status: str, **said: Any) -> Any:
        return self._agent.end_action(seq, status, **said)


def live(agent: Any) -> None:
    """One life of an agent, with all that a record may hold."""
    agent.begin_action("  send_email ", {"to": "ann@example.com", "n": None, "a": [1, 2.5, True]}, "external")
    agent.end_action(1, "done", result={"id": 7, "ä": ODD}, resolution="  known\x1c\u3000")
    agent.begin_action("look", ODD, "pure")
    agent.begin_action("save", None, "idempotent")
    agent.begin_action("charge", "é" * 4500, "external")
    agent.end_action(4, "unknown", error=ODD, resolution="asked nobody")
    agent.end_action(4, "failed", error="no")
    agent.begin_action("big", "x" * 8000, "external")
    agent.end_action(5, "done", result="y" * 8001)
    agent.begin_action("given_up", "", "external")
    agent.end_action(6, "abandoned", resolution="too old")
    agent.begin_action("in doubt", "{}", "external")
    agent.end_action(7, "unknown", error="timeout")
    agent.begin_action("interrupted", {"q": ODD}, "external")
    agent.record_turn("user", ODD, name="  ann ", message_id=" m1 ")
    agent.record_turn("tool", "z" * 9000, name="big", brief=f" {ODD}")
    agent.record_turn("system", "")
    agent.update_working_state(goal=f" {ODD}", plan=["", " a ", "b\nc"], decisions=["d"], open_questions=["q"], step=3)
    agent.milestone(" half \n way ", progress="p")
    agent.update_working_state(plan=[], notes="n", progress="")
    agent.store_output(ODD * 90, ref="ref1", tool="t")
    agent.store_output("short", ref="ref2", summary="s")
    agent.set_pointer("z-repo", "git_ref", {"sha": "abc", "repo": "r", "zeta": "1", "blank": " "}, note=" the fix ")
    agent.set_pointer("a-ext", "external", {"url": "http://x/?a=1&b=2"})
    agent.remove_pointer("a-ext")


def told(url: str, agent: str) -> dict[str, Any]:
    """Every record of an agent without what differs from run to run: its id, keys that follow from it, and times."""
    found: dict[str, Any] = {}
    for record_id, metadata in records_of(url, agent).items():
        body = json.loads(metadata["body"])
        for name in TIMES:
            if name in body:
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z", body[name])
                body[name] = "then"
        if "key" in body:
            assert body["key"] == action_key(agent, body["seq"])
            del body["key"]
        found[record_id.removeprefix(f"{agent}:")] = {**metadata, "recall_agent": "it", "body": body}
    return found


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Which records are not the same, and in what."""
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(name, {}), theirs.get(name, {})
        flat_one = one | {f"body.{key}": value for key, value in one.get("body", {}).items()}
        flat_two = two | {f"body.{key}": value for key, value in two.get("body", {}).items()}
        found += [
            f"{name} {key}: ours {flat_one.get(key)!r}, theirs {flat_two.get(key)!r}"
            for key in sorted((flat_one.keys() | flat_two.keys()) - {"body"})
            if flat_one.get(key) != flat_two.get(key)
        ]
    return found


def undated(briefing: str) -> str:
    return re.sub(r"[0-9a-f]{32}|\d{4}-\d\d-\d\dT[\d:]+Z", "-", briefing)


def test_both_keep_the_same_records_of_the_same_life(recall: Recall, agents: AgentStore) -> None:
    with DurableAgent.resume(agents, "ours") as ours:
        live(ours)
    before = revision(recall.url)

    theirs = recall.resume("they")
    live(Theirs(theirs))
    theirs.release()

    assert differences(told(recall.url, "ours"), told(recall.url, "they")) == []
    assert revision(recall.url) == 2 * before


def test_recall_resumes_what_ours_left_and_goes_on_at_the_next_number(recall: Recall, agents: AgentStore) -> None:
    ours = DurableAgent.resume(agents, "agent")
    live(ours)
    with pytest.raises(RecallError) as caught:
        recall.resume("agent")
    assert caught.value.code == "lease_held"
    ours.release()
    again = DurableAgent.resume(agents, "agent", defer_lease=True)

    resumed = recall.resume("agent")

    assert undated(resumed.context.briefing).count("send_email") == undated(again.briefing.text).count("send_email")
    assert [(action.seq, action.status) for action in resumed.pending_actions()] == [
        (3, "started"),
        (7, "unknown"),
        (8, "unknown"),
    ]
    assert [turn.seq for turn in resumed.recent_turns()] == [1, 2, 3]
    assert [pointer.name for pointer in resumed.pointers()] == ["z-repo"]
    assert resumed.fetch_output("act-4-args").content == "é" * 4500
    assert [state.version for state in resumed.working_state_history()] == [3, 2, 1]
    assert resumed.begin_action("next", "pure").seq == 9
    assert resumed.record_turn("user", "next").seq == 4
    assert resumed.update_working_state(focus="f").version == 4
    with pytest.raises(LeaseNotHeld):
        ours.record_turn("user", "late")


def test_ours_resumes_what_recall_left_with_its_very_briefing(recall: Recall, agents: AgentStore) -> None:
    for name in ("one", "two"):
        running = recall.resume(name)
        live(Theirs(running))
        crash(running, recall.url)

    with DurableAgent.resume(agents, "one") as ours:
        theirs = recall.resume("two").context
        assert undated(ours.briefing.text).replace("agent one", "agent two") == undated(theirs.briefing)
        assert ours.briefing.tokens == theirs.tokens
        assert differences(told(recall.url, "one"), told(recall.url, "two")) == []
        assert ours.begin_action("next", None, "pure").seq == 9
        assert ours.record_turn("user", "next").seq == 4
        assert ours.update_working_state(focus="f").version == 4
        assert ours.store_output("more").ref not in {output.ref for output in theirs.outputs}


def test_whoever_waits_for_the_lease_reads_recalls_very_briefing(recall: Recall, agents: AgentStore) -> None:
    running = recall.resume("one")
    live(Theirs(running))

    ours = DurableAgent.resume(agents, "one", defer_lease=True)
    theirs = recall.resume("one", defer_lease=True)
    assert ours.briefing.text == theirs.context.briefing
    assert ours.briefing.tokens == theirs.context.tokens
    running.record_turn("user", "one more")
    running.begin_action("look", "pure", {"q": 2})
    assert ours.refresh().text == theirs.refresh().briefing
    crash(running, recall.url)

    for _ in range(2):  # the lease has expired, and what its process left is as it was: whoever waits has changed nothing
        late = DurableAgent.resume(agents, "one", defer_lease=True)
        assert late.briefing.text == recall.resume("one", defer_lease=True).context.briefing == theirs.refresh().briefing
        assert late.lease is None


def test_whoever_waited_and_takes_the_lease_then_reads_recalls_very_briefing(recall: Recall, agents: AgentStore) -> None:
    running = {name: recall.resume(name) for name in ("one", "two")}
    waiting = DurableAgent.resume(agents, "one", defer_lease=True)
    theirs = recall.resume("two", defer_lease=True)
    for agent in running.values():
        live(Theirs(agent))
        agent.begin_action("look", "pure", {"q": 2})
        crash(agent, recall.url)

    taken, by_recall = waiting.acquire(), theirs._call("agent_acquire")

    def named(briefing: str) -> str:
        return undated(briefing).replace("agent one", "agent two")

    assert named(taken.text) == undated(by_recall["briefing"])
    assert named(waiting.refresh().text) == undated(theirs.refresh().briefing)
    assert differences(told(recall.url, "one"), told(recall.url, "two")) == []
    waiting.release()


def test_what_is_settled_at_a_resume_and_reconciled_is_the_same_in_both(recall: Recall, agents: AgentStore) -> None:
    for name in ("one", "two"):
        running = recall.resume(name)
        for tool, kind in (
            ("look", "pure"),
            ("save", "idempotent"),
            ("sent", "external"),
            ("not_sent", "external"),
            ("who", "external"),
        ):
            running.begin_action(tool, kind, {"a": 1})
        running.begin_action("peek", "pure")
        running.end_action(6, "unknown", error="e", result="r", resolution="said so")
        crash(running, recall.url)
    ends = {
        "save": End("done", "s" * 9000, resolution="re-run"),
        "sent": End("done", resolution=" found "),
        "not_sent": End("failed", error=" 550 "),
    }

    theirs = recall.resume("two")
    theirs.reconcile(lambda action: ends.get(action.tool))
    with DurableAgent.resume(agents, "one") as ours:
        closed = ours.reconcile(lambda action: ends.get(action.tool))

    assert [action.seq for action in closed] == [2, 3, 4]
    assert differences(told(recall.url, "one"), told(recall.url, "two")) == []


def test_an_agent_of_ours_that_was_taken_over_by_recall_writes_nothing_more(recall: Recall, agents: AgentStore) -> None:
    ours = DurableAgent.resume(agents, "agent")
    action = ours.begin_action("send_email", {}, "external")
    expire_lease(recall.url, "agent")
    theirs = recall.resume("agent")
    theirs.record_turn("user", "theirs")
    before = records_of(recall.url, "agent")

    with pytest.raises(LeaseLost):
        ours.end_action(action, ActionStatus.DONE)

    assert records_of(recall.url, "agent") == before
    ours.release()
    assert lease_of(recall.url, "agent")[2:] == (True, False)
    with pytest.raises(InvalidRecord):
        DurableAgent.resume(agents, "a:b")


def test_our_tables_are_those_that_recall_makes(pg_url: str) -> None:
    def shape(collection: str) -> list[Any]:
        with psycopg.connect(pg_url) as connection:
            (table,) = connection.execute(
                "SELECT tbl FROM recall.recall_collections WHERE name = %s AND dim = 256", [f"{collection}_agents"]
            ).fetchall()[0]
            columns = connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
                "WHERE attrelid = ('recall.' || quote_ident(%s))::regclass AND attnum > 0 ORDER BY attnum",
                [table],
            ).fetchall()
            indexes = connection.execute("SELECT indexdef FROM pg_indexes WHERE tablename = %s ORDER BY 1", [table]).fetchall()
        return [table.replace(collection, "it"), columns, [text.replace(table, "it") for (text,) in indexes]]

    for name in ("theirs", "Ours-and.9", "o" * 45):
        with closing(open_agent_store(f"{pg_url}?collection={name}")) as store:
            assert len(store.create_records()) == 1
            assert store.create_records() == ()
        made = shape(name)
        with psycopg.connect(pg_url, autocommit=True) as connection:
            (table,) = connection.execute("SELECT tbl FROM recall.recall_collections").fetchall()[0]
            connection.execute("DROP SCHEMA recall CASCADE")
        recall = Recall(pg_url, env={"RECALL_COLLECTION": name})
        with closing(recall):
            recall.resume("agent").record_turn("user", "first")
            assert shape(name) == made
        with psycopg.connect(pg_url, autocommit=True) as connection:
            assert connection.execute("SELECT tbl FROM recall.recall_collections WHERE tbl = %s", [table]).fetchall()
            connection.execute("DROP SCHEMA recall CASCADE")


def test_our_collections_are_those_that_recall_makes(mongo_url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](mongo_url) as client:
        db = client.get_default_database()

        def shape() -> list[Any]:
            (row,) = db.recall_collections.find({"_id": {"$regex": "agents$"}}, {"nonce": 0, "revision": 0})
            return [row, db[row["coll"]].index_information(), db.recall_collections.index_information()]

        for name in ("recall_lexical_v1", "Ours-and.9"):
            with closing(open_agent_store(f"{mongo_url}{'&' if '?' in mongo_url else '?'}collection={name}")) as store:
                assert len(store.create_records()) == 1
                assert store.create_records() == ()
            made = shape()
            client.drop_database(db.name)
            with closing(Recall(mongo_url, env={"RECALL_COLLECTION": name})) as recall:
                recall.resume("agent").record_turn("user", "first")
                assert shape() == made
            client.drop_database(db.name)
