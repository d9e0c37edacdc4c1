"""An agent driven through the real client; every field of what it wrote, read by our store."""

from __future__ import annotations

import json

import pytest
from polign_recall import Action as RecallAction
from polign_recall import ResumedAgent

from actions import queries
from actions.keys import action_key
from actions.records import Action, ActionState, ActionStatus, Output, Pointer, Turn, WorkingState
from actions.store.base import ActionStore
from actions.times import format_rfc3339, parse_rfc3339
from tests.interop.driver import Recall, crash, lease_of, revision

pytestmark = pytest.mark.interop

AGENT = "billing-7"
HOSTILE = 'Grüße & <b>"quotes"</b> \\ NUL:\x00 BEL:\x07 line\u2028para\u2029 \U0001f4b8 한국어'
LONG = json.dumps({"body": "Grüße, " * 1500, "to": "ann@example.com"}, ensure_ascii=False)


def read(store: ActionStore, agent: str, seq: int) -> Action:
    action = store.get_action(agent, seq).action
    assert isinstance(action, Action)
    return action


def as_ours(action: RecallAction, agent: str) -> dict[str, object]:
    """The client's record under our names."""
    return {
        "agent": agent,
        "seq": action.seq,
        "tool": action.tool,
        "action_class": action.class_,
        "key": action.key,
        "args": action.args,
        "args_ref": action.args_ref,
        "status": action.status,
        "result": action.result,
        "result_ref": action.result_ref,
        "error": action.error,
        "resolution": action.resolution,
        "epoch": action.epoch,
        "started_at": parse_rfc3339(action.started_at),
        "ended_at": parse_rfc3339(action.ended_at) if action.ended_at else None,
    }


def as_read(action: Action) -> dict[str, object]:
    return {
        name: getattr(action, name) for name in as_ours(RecallAction(0, "", "", "", "", started_at="2026-11-29T00:00:00Z"), "")
    }


@pytest.fixture
def agent(recall: Recall) -> ResumedAgent:
    return recall.resume(AGENT)


@pytest.mark.parametrize("action_class", ["pure", "idempotent", "external"])
@pytest.mark.parametrize(
    "args",
    [
        None,
        "",
        "plain text, no JSON",
        {"to": "ann@example.com", "amount": 12.5, "tags": ["a", None, True]},
        HOSTILE,
        {"text": HOSTILE},
        '{"amount": 1000000000000000000000000.10, "amount": 1}',
    ],
    ids=["none", "empty", "text", "json", "hostile-text", "hostile-json", "numbers-and-twins"],
)
def test_a_begun_action_reads_as_its_client_saw_it(
    agent: ResumedAgent, store: ActionStore, action_class: str, args: object
) -> None:
    begun = agent.begin_action("  send_email ", action_class, args)
    action = read(store, AGENT, begun.seq)

    assert as_read(action) == as_ours(begun, AGENT)
    assert action.tool == "send_email"
    assert action.args == (args if isinstance(args, str) else "" if args is None else json.dumps(args, sort_keys=True))
    assert action.key == action_key(AGENT, begun.seq)
    assert format_rfc3339(action.started_at) == begun.started_at
    assert action.written_epoch == begun.epoch
    assert action.is_open


def test_arguments_over_8000_bytes_are_read_whole(agent: ResumedAgent, store: ActionStore) -> None:
    begun = agent.begin_action("send_email", "external", LONG)
    item = queries.list_actions([store], queries.ActionFilter(), limit=10).items[0]

    assert item.action is not None
    assert as_read(item.action) == as_ours(begun, AGENT)
    assert item.action.args_ref == "act-1-args"
    assert len(item.action.args.encode()) < 500
    assert item.arguments.text == LONG == agent.fetch_output("act-1-args").content
    assert not item.is_args_missing


@pytest.mark.parametrize("size", [7999, 8000, 8001])
def test_the_threshold_is_where_the_binary_has_it(agent: ResumedAgent, store: ActionStore, size: int) -> None:
    begun = agent.begin_action("send_email", "external", "x" * size)

    assert read(store, AGENT, 1).args_ref == begun.args_ref == ("act-1-args" if size > 8000 else "")


@pytest.mark.parametrize(
    ("status", "result", "error", "resolution"),
    [
        ("done", "message-id 77", None, None),
        ("done", HOSTILE, None, f"  {HOSTILE}  "),
        ("done", LONG, None, "found in the sent folder"),
        ("done", None, None, None),
        ("failed", None, "CardDeclined: insufficient funds", None),
        ("failed", "a result too", HOSTILE, "looked at the statement"),
        ("abandoned", None, None, "not needed any more"),
        ("unknown", None, None, "could not tell whether it happened"),
    ],
)
def test_an_ended_action_reads_as_its_client_saw_it(
    agent: ResumedAgent, store: ActionStore, status: str, result: str | None, error: str | None, resolution: str | None
) -> None:
    agent.begin_action("send_email", "external", {"to": "ann@example.com"})
    ended = agent.end_action(1, status, result, error, resolution)
    action = read(store, AGENT, 1)

    assert as_read(action) == as_ours(ended, AGENT)
    assert action.status is ActionStatus(status)
    assert (action.ended_at is None) == (status == "unknown")
    assert action.is_open == (status == "unknown")
    if result:
        assert queries.read_result(store, action) == result


def test_turns_read_as_their_client_saw_them(agent: ResumedAgent, store: ActionStore) -> None:
    recorded = [
        agent.record_turn("system", "You are a billing agent."),
        agent.record_turn("user", HOSTILE, message_id="m-1"),
        agent.record_turn("assistant", "I will pay.\npay(order=881)", brief="pay(order=881)", message_id="m-2"),
        agent.record_turn("tool", LONG, "  pay ", "tool-call:c1", "paid"),
        agent.record_turn("assistant", ""),
    ]
    turns = store.list_turns(AGENT, limit=10)

    assert list(reversed(turns)) == [
        Turn(
            agent=AGENT,
            seq=turn.seq,
            role=turn.role,
            content=turn.content,
            name=turn.name,
            brief=turn.brief,
            output_ref=turn.output_ref,
            message_id=turn.message_id,
            at=parse_rfc3339(turn.at),
        )
        for turn in recorded
    ]
    assert [turn.seq for turn in recorded] == [1, 2, 3, 4, 5]
    ref = recorded[3].output_ref
    output = store.read_outputs([(AGENT, ref)])[(AGENT, ref)]
    assert isinstance(output, Output)
    assert output.content == LONG


def test_turns_are_paged_backwards_over_recalls_pages(agent: ResumedAgent, store: ActionStore) -> None:
    for number in range(1, 131):
        agent.record_turn("user", f"turn {number}")

    newest = store.list_turns(AGENT, limit=100)
    rest = store.list_turns(AGENT, limit=100, before=newest[-1].seq)

    assert [turn.seq for turn in (*newest, *rest)] == list(range(130, 0, -1))
    assert {turn.content for turn in (*newest, *rest) if isinstance(turn, Turn)} == {f"turn {n}" for n in range(1, 131)}


def test_working_state_and_milestone_read_as_their_client_saw_them(agent: ResumedAgent, store: ActionStore) -> None:
    agent.record_turn("user", "Reconcile November")
    agent.begin_action("export_ledger", "pure")
    agent.update_working_state(
        goal=HOSTILE, plan=["export", HOSTILE], focus="ledger", decisions=["EU"], open_questions=["which?"], notes="n", step=3
    )
    state = agent.milestone("export done", "exported")

    assert store.find_working_state(AGENT) == WorkingState(
        agent=AGENT,
        version=state.version,
        goal=HOSTILE,
        plan=("export", HOSTILE),
        progress="exported",
        focus="ledger",
        decisions=("EU",),
        open_questions=("which?",),
        notes="n",
        step=3,
        last_milestone="export done",
        turn_seq=1,
        action_seq=1,
        updated_at=parse_rfc3339(state.updated_at),
    )
    assert state.version == 2


def test_pointers_read_as_their_client_saw_them_and_removed_ones_are_gone(agent: ResumedAgent, store: ActionStore) -> None:
    agent.set_pointer("ticket", "external", {"id": "T-1"})
    set_ones = [
        agent.set_pointer("wip", "git_ref", {"branch": "agent/wip", "repo": HOSTILE, "sha": "  "}, "work branch"),
        agent.set_pointer("artifact", "object", {"uri": "s3://bucket/key"}),
    ]
    agent.remove_pointer("ticket")

    assert store.list_pointers(AGENT) == tuple(
        Pointer(agent=AGENT, name=p.name, type=p.type, fields=p.fields, note=p.note, at=parse_rfc3339(p.at))
        for p in sorted(set_ones, key=lambda pointer: pointer.name)
    )
    assert set_ones[0].fields == {"branch": "agent/wip", "repo": HOSTILE}


def test_outputs_read_as_their_client_saw_them(agent: ResumedAgent, store: ActionStore) -> None:
    kept = agent.store_output(HOSTILE, "export_ledger", "a summary", "raw-1")
    plain = agent.store_output("x" * 9000)
    found = store.read_outputs([(AGENT, kept.ref), (AGENT, plain.ref), (AGENT, "none"), ("nobody", kept.ref)])

    assert set(found) == {(AGENT, "raw-1"), (AGENT, plain.ref)}
    for ref in (kept, plain):
        output = found[AGENT, ref.ref]
        assert isinstance(output, Output)
        whole = agent.fetch_output(ref.ref)
        assert (output.ref, output.tool, output.summary, output.content) == (ref.ref, ref.tool, ref.summary, whole.content)
        assert (output.tokens, output.at) == (ref.tokens, parse_rfc3339(ref.at))


def test_the_lease_reads_as_the_binary_holds_it(agent: ResumedAgent, store: ActionStore, recall: Recall) -> None:
    held = store.find_lease(AGENT)
    agent.release()
    released = store.find_lease(AGENT)

    assert held is not None
    assert released is not None
    assert (held.epoch, held.is_live, held.is_released) == (agent.context.epoch, True, False)
    assert (held.holder, held.epoch) == ((lease := lease_of(recall.url, AGENT))[0], lease[1] - 1)
    assert (released.epoch, released.holder, released.is_live, released.is_released) == (held.epoch + 1, held.holder, False, True)
    assert store.find_lease("never-seen") is None


def test_the_digest_survives_whatever_does_not_change_the_call(agent: ResumedAgent, recall: Recall, store: ActionStore) -> None:
    agent.begin_action("send_email", "external", LONG)
    ref = queries.list_actions([store], queries.ActionFilter(), limit=1).items[0].ref
    begun = queries.get_action(store, ref)
    agent.record_turn("user", "more work")
    agent.update_working_state(goal="something else")
    crash(agent, recall.url)
    crashed = queries.get_action(store, ref)
    recall.resume(AGENT)
    marked = queries.get_action(store, ref)

    assert (begun.state, crashed.state, marked.state) == (ActionState.IN_FLIGHT, ActionState.INTERRUPTED, ActionState.UNKNOWN)
    assert begun.digest == crashed.digest
    assert marked.digest != begun.digest
    assert begun.claim == crashed.claim == marked.claim
    assert marked.action is not None
    assert marked.action.written_epoch > marked.action.epoch


@pytest.mark.parametrize("with_pure", [False, True], ids=["external-only", "pure-too"])
def test_a_resume_has_marked_the_call_whatever_its_own_context_still_says(
    agent: ResumedAgent, recall: Recall, store: ActionStore, with_pure: bool
) -> None:
    """The binary reads its context again only when it closed something; a call that it merely marked stands there as `started`."""
    agent.begin_action("send_email", "external", "{}")
    if with_pure:
        agent.begin_action("lookup", "pure", "{}")
    crash(agent, recall.url)

    resumed = recall.resume(AGENT)

    assert [a.status for a in resumed.context.pending_actions] == ["unknown" if with_pure else "started"]
    assert [a.status for a in resumed.pending_actions()] == ["unknown"]
    assert read(store, AGENT, 1).status is ActionStatus.UNKNOWN


def test_the_revision_to_watch_moves_with_every_record(agent: ResumedAgent, recall: Recall, store: ActionStore) -> None:
    assert store.read_watch().revision == 0
    agent.begin_action("send_email", "external", "{}")
    first = store.read_watch()
    agent.record_turn("user", "hello")
    second = store.read_watch()

    assert (first.revision, second.revision) == (1, 2)
    assert second.revision == revision(recall.url)
    assert second.next_expiry is not None
    assert second.next_expiry > second.read_at


def test_more_open_calls_than_recall_itself_lists_are_all_listed(agent: ResumedAgent, recall: Recall, store: ActionStore) -> None:
    for number in range(205):
        agent.begin_action("send_email", "external", {"n": number})
    crash(agent, recall.url)

    page = queries.list_actions([store], queries.ActionFilter(), limit=200)
    rest = queries.list_actions([store], queries.ActionFilter(), limit=200, cursor=page.next)

    assert page.total == 205
    assert [item.seq for item in (*page.items, *rest.items)] == list(range(1, 206))
    assert rest.next is None
    assert len(recall.open().resume(AGENT, defer_lease=True).context.pending_actions) == 200
