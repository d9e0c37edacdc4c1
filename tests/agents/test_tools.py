"""Plain callables as durable tools: what is recorded of a call, what the model sees of a tool, and what a resume does about open calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actions.errors import InvalidRecord
from actions.keys import action_key
from actions.records import ActionStatus, NewTurn
from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from agents.calls import TOLD
from agents.harness import DurableAgent, End
from agents.ledger import FileLedger, Ledger, LedgerNote, OutputLedger
from agents.tools import EndUnrecorded, ToolsRefused, UnclassifiedTool, calls_of, durable, settle, still_open
from tests.agents.records import AGENT, actions_of, interrupted, turns_of
from tests.agents.values import nested


@pytest.fixture
def store() -> AgentStore:
    return MemoryStore("main")


@pytest.fixture
def agent(store: AgentStore) -> DurableAgent:
    return DurableAgent.resume(store, AGENT)


def look_up(order: str) -> dict[str, int]:
    return {"total": 4200, "items": 2}


def save_invoice(invoice: str, idempotency_key: str = "", total: int = 0) -> str:
    """Save an invoice.

    Args:
        invoice: Its number.
        idempotency_key: Given to the billing system,
            which drops repeats.
        total: In cents.
    """
    return f"saved {invoice} over {total} under {idempotency_key}"


def send_email(to: str) -> str:
    return f"sent to {to}"


CLASSES = {"look_up": "pure", "save_invoice": "idempotent", "send_email": "external"}


def one(agent: DurableAgent, tool: Callable[..., Any], action_class: str = "external", **options: Any) -> Callable[..., Any]:
    (made,) = durable([tool], classes={tool.__name__: action_class}, agent=agent, **options)
    return made


# --- the build ---


def test_a_tool_without_a_class_stops_the_build_and_every_one_is_named(agent: DurableAgent, store: AgentStore) -> None:
    with pytest.raises(UnclassifiedTool, match="save_invoice, send_email") as refused:
        durable([look_up, save_invoice, send_email], classes={"look_up": "pure"}, agent=agent)

    assert refused.value.tools == ("save_invoice", "send_email")
    assert isinstance(refused.value, ValueError)
    assert actions_of(store) == []


@pytest.mark.parametrize(
    ("tools", "classes", "options", "says"),
    [
        ([look_up], {"look_up": "pure", "lok_up": "pure"}, {}, "classes names lok_up, which is not among the tools"),
        ([look_up], {"look_up": "safe"}, {}, "look_up has class 'safe'; use one of pure, idempotent, external"),
        ([look_up, look_up], {"look_up": "pure"}, {}, "two tools are named look_up"),
        ([send_email], {"send_email": "idempotent"}, {}, "send_email is idempotent but takes no idempotency_key"),
        ([send_email], {"send_email": "external"}, {"compensate": {"send_email": "unsend"}}, "compensate names unsend"),
        ([send_email], {"send_email": "external"}, {"compensate": {"send_email": "send_email"}}, "send_email would undo itself"),
        (["send_email"], {"send_email": "external"}, {}, "'send_email' is no callable"),
        ([lambda: (yield 1)], {"<lambda>": "pure"}, {}, "<lambda> is a generator"),
    ],
)
def test_declarations_that_contradict_themselves_or_the_tools_are_refused(
    agent: DurableAgent, tools: Any, classes: dict[str, str], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ToolsRefused) as refused:
        durable(tools, classes=classes, agent=agent, **options)

    assert says in str(refused.value)


def test_a_callable_whose_parameters_cannot_be_told_stops_the_build(agent: DurableAgent) -> None:
    with pytest.raises(ToolsRefused, match="parameters of dict cannot be told"):
        durable([dict], classes={"dict": "pure"}, agent=agent)


def test_a_durable_tool_is_not_made_durable_twice(agent: DurableAgent) -> None:
    with pytest.raises(ToolsRefused, match="send_email is durable already"):
        one(agent, one(agent, send_email))


def test_all_problems_are_told_at_once_and_what_is_only_unwise_is_a_warning(
    agent: DurableAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ToolsRefused, match="classes names nobody.*look_up has class 'odd'"):
        durable([look_up], classes={"look_up": "odd", "nobody": "pure"}, agent=agent)

    with caplog.at_level(logging.WARNING, "agents.calls"):
        tools = durable(
            [look_up, save_invoice, send_email], classes=CLASSES, agent=agent, compensate={"send_email": "save_invoice"}
        )
    said = [record.getMessage().split(":")[0] for record in caplog.records if record.name == "agents.calls"]
    assert said == ["send_email takes no idempotency_key"]
    assert [calls_of(tool).compensate for tool in tools] == ["", "", "save_invoice"]


def test_the_model_sees_nothing_of_the_key_and_the_tool_gets_it(agent: DurableAgent, store: AgentStore) -> None:
    made = one(agent, save_invoice, "idempotent")

    assert str(inspect.signature(made)) == "(invoice: str, total: int = 0) -> str"
    assert made.__annotations__ == {"invoice": str, "total": int, "return": str}
    assert made.__doc__ == "Save an invoice.\n\nArgs:\n    invoice: Its number.\n    total: In cents."
    assert not hasattr(made, "__wrapped__")
    assert made("I-1", 4200) == f"saved I-1 over 4200 under {action_key(AGENT, 1)}"
    with pytest.raises(TypeError, match="idempotency_key"):
        made("I-1", idempotency_key="chosen by the model")
    (action,) = actions_of(store)
    assert action.args == '{"invoice": "I-1", "total": 4200}'


# --- a call ---


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ("sent", "sent"),
        ({"b": 1, "a": [1, None]}, '{"a": [1, null], "b": 1}'),
        (None, ""),
        ("half \ud800", "half \ufffd"),
        (
            {
                1,
            },
            '"{1}"',
        ),
    ],
)
def test_a_call_that_returns_is_done_with_its_result_and_its_turn(
    agent: DurableAgent, store: AgentStore, result: object, kept: str
) -> None:
    def send(to: str, *, copies: int = 1) -> object:
        return result

    assert one(agent, send)("ann@example.com", copies=2) == result

    (action,), (turn,) = actions_of(store), turns_of(store)
    assert (action.status, action.result, action.error) == (ActionStatus.DONE, kept, "")
    assert action.args == '{"copies": 2, "to": "ann@example.com"}'
    assert (turn.role, turn.name, turn.content, turn.brief) == ("tool", "send", kept or "done", "")


def test_a_result_over_the_limit_of_the_records_still_closes_its_call(agent: DurableAgent, store: AgentStore) -> None:
    def export() -> str:
        return "x" * 1_200_000

    assert len(one(agent, export)()) == 1_200_000

    (action,) = actions_of(store)
    assert action.status is ActionStatus.DONE
    assert agent.get_output(action.result_ref).content.endswith("[cut; 1200000 bytes in all]")


def test_an_exception_closes_the_call_as_failed_with_its_type_and_text(agent: DurableAgent, store: AgentStore) -> None:
    def send(to: str) -> None:
        raise LookupError(f"no mailbox {to}")

    with pytest.raises(LookupError):
        one(agent, send)("ann")

    (action,), (turn,) = actions_of(store), turns_of(store)
    assert (action.status, action.error, action.result) == (ActionStatus.FAILED, "LookupError: no mailbox ann", "")
    assert turn.content == "failed: LookupError: no mailbox ann"


@pytest.mark.parametrize(
    ("action_class", "status"),
    [("external", ActionStatus.UNKNOWN), ("idempotent", ActionStatus.UNKNOWN), ("pure", ActionStatus.FAILED)],
)
def test_a_time_out_of_what_changes_the_world_is_no_failure(
    agent: DurableAgent, store: AgentStore, action_class: str, status: ActionStatus
) -> None:
    def send(to: str, idempotency_key: str = "") -> None:
        raise TimeoutError("no answer in 5 s")

    with pytest.raises(TimeoutError):
        one(agent, send, action_class)("ann")

    (action,) = actions_of(store)
    assert action.status is status
    assert "TimeoutError: no answer in 5 s" in (action.resolution if status is ActionStatus.UNKNOWN else action.error)
    assert len(turns_of(store)) == (status is ActionStatus.FAILED)


def wrapped_by_a_library() -> None:
    raise OSError("request failed") from TimeoutError("read timed out")


def while_handling() -> None:
    try:
        raise ConnectionResetError("by peer")
    except OSError:
        raise RuntimeError("request failed")  # noqa: B904 - as many libraries do


def among_others() -> None:
    raise ExceptionGroup("two", [ValueError("x"), TimeoutError("y")])


def certain() -> None:
    try:
        raise TimeoutError("first try")
    except TimeoutError:
        raise LookupError("refused at the second") from None


@pytest.mark.parametrize(
    ("tool", "status"),
    [
        (wrapped_by_a_library, ActionStatus.UNKNOWN),
        (while_handling, ActionStatus.UNKNOWN),
        (among_others, ActionStatus.UNKNOWN),
        (certain, ActionStatus.FAILED),
    ],
)
def test_an_error_that_came_of_a_lost_answer_is_no_failure_either(
    agent: DurableAgent, store: AgentStore, tool: Callable[[], None], status: ActionStatus
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the tool's own, whichever it is
        one(agent, tool)()

    assert not isinstance(raised.value, EndUnrecorded)
    assert [action.status for action in actions_of(store)] == [status]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("hunter2")


@pytest.mark.parametrize("result", [Unprintable(), nested(100_000), {"n": 10**5_000}], ids=["no text", "deep", "long number"])
def test_a_result_that_cannot_be_written_still_closes_its_call(agent: DurableAgent, store: AgentStore, result: Any) -> None:
    def send() -> Any:
        return result

    assert one(agent, send)() is result

    (action,) = actions_of(store)
    assert action.status is ActionStatus.DONE
    assert action.result == f"<a {type(result).__name__} that cannot be written as text>"


@pytest.mark.parametrize("value", [Unprintable(), nested(100_000), {1: "a", "b": 2}], ids=["no text", "deep", "mixed keys"])
@pytest.mark.parametrize("action_class", ["external", "idempotent"])
def test_arguments_that_cannot_be_written_are_refused_in_one_line_and_nothing_runs(
    agent: DurableAgent, store: AgentStore, action_class: str, value: Any
) -> None:
    def send(what: Any, idempotency_key: str = "") -> None:
        raise AssertionError("it ran")

    with pytest.raises((InvalidRecord, TypeError), match="JSON") as refused:
        one(agent, send, action_class)(value)

    assert "\n" not in str(refused.value)
    assert actions_of(store) == []


def test_what_is_not_over_when_it_returns_is_never_done(agent: DurableAgent, store: AgentStore) -> None:
    def lazily() -> Any:
        return (part for part in "ab")

    with pytest.raises(TypeError, match="lazily returned a generator"):
        one(agent, lazily)()

    (action,) = actions_of(store)
    assert (action.status, action.result) == (ActionStatus.UNKNOWN, "")
    assert turns_of(store) == []


def test_an_async_tool_behind_a_decorator_is_recorded_once_it_was_awaited(agent: DurableAgent, store: AgentStore) -> None:
    async def send(to: str) -> str:
        if to == "slow":
            raise TimeoutError(to)
        return f"sent to {to}"

    @functools.wraps(send)
    def decorated(to: str) -> Any:
        return send(to)

    made = one(agent, decorated)
    waiting = made("ann")
    assert [action.status for action in actions_of(store)] == [ActionStatus.STARTED]
    assert asyncio.run(waiting) == "sent to ann"
    with pytest.raises(TimeoutError):
        asyncio.run(made("slow"))

    assert [(action.status, action.result) for action in actions_of(store)] == [
        (ActionStatus.DONE, "sent to ann"),
        (ActionStatus.UNKNOWN, ""),
    ]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_stops_a_process_leaves_the_call_open(agent: DurableAgent, store: AgentStore, stop: type[BaseException]) -> None:
    def send(to: str) -> None:
        raise stop

    with pytest.raises(stop):
        one(agent, send)("ann")

    (action,) = actions_of(store)
    assert action.status is ActionStatus.STARTED
    assert turns_of(store) == []


def test_a_cancelled_task_leaves_the_call_open_and_an_awaited_one_is_done(agent: DurableAgent, store: AgentStore) -> None:
    async def send(to: str) -> str:
        if to == "slow":
            begun.set()
            await asyncio.Event().wait()
        return "sent"

    async def both() -> None:
        made = one(agent, send)
        assert inspect.iscoroutinefunction(made)
        task = asyncio.create_task(made("slow"))
        await begun.wait()
        assert await made("ann") == "sent"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = asyncio.Event()
    asyncio.run(both())

    assert [action.status for action in actions_of(store)] == [ActionStatus.STARTED, ActionStatus.DONE]
    assert [turn.content for turn in turns_of(store)] == ["sent"]


def test_arguments_that_do_not_fit_run_and_record_nothing(agent: DurableAgent, store: AgentStore) -> None:
    with pytest.raises(TypeError):
        one(agent, send_email)(whom="ann")
    with pytest.raises(TypeError, match="must be JSON"):
        one(agent, save_invoice, "idempotent")(object())

    assert actions_of(store) == []


def test_an_end_that_cannot_be_recorded_is_said_and_the_call_is_settled_later(agent: DurableAgent, store: AgentStore) -> None:
    def send(to: str) -> str:
        agent.release()
        return "sent as message 204"

    with pytest.raises(EndUnrecorded, match="Do not call it again") as said:
        one(agent, send)("ann")

    assert said.value.result == "sent as message 204"
    (action,) = actions_of(store)
    assert (action.status, action.key) == (ActionStatus.STARTED, said.value.action.key)
    with DurableAgent.resume(store, AGENT) as successor:
        assert [left.seq for left in successor.pending_actions()] == [1]


def test_a_tools_own_error_is_raised_although_its_end_cannot_be_recorded(agent: DurableAgent, store: AgentStore) -> None:
    def send(to: str) -> str:
        agent.release()
        raise LookupError("no mailbox")

    with pytest.raises(LookupError) as said:
        one(agent, send)("ann")

    assert "could not be closed as failed" in said.value.__notes__[0]
    assert actions_of(store)[0].status is ActionStatus.STARTED


def test_calls_side_by_side_are_open_at_once_and_each_ends_by_itself(agent: DurableAgent, store: AgentStore) -> None:
    together = threading.Barrier(3, timeout=60)

    def send(to: str) -> str:
        together.wait()
        if to == "b":
            raise LookupError(to)
        return f"sent to {to}"

    made = one(agent, send)
    threads = [threading.Thread(target=made, args=(to,)) for to in "ac"]
    for thread in threads:
        thread.start()
    with pytest.raises(LookupError):
        made("b")
    for thread in threads:
        thread.join()

    ends = {json.loads(action.args)["to"]: action.result or action.error for action in actions_of(store)}
    assert ends == {"a": "sent to a", "b": "LookupError: b", "c": "sent to c"}
    assert sorted(turn.content for turn in turns_of(store)) == ["failed: LookupError: b", "sent to a", "sent to c"]


def test_methods_partials_and_objects_are_tools_as_well(agent: DurableAgent, store: AgentStore) -> None:
    class Mailbox:
        def send(self, to: str, idempotency_key: str) -> str:
            return f"{to} {idempotency_key[:4]}"

    class Archive:
        async def __call__(self, *names: str, **options: int) -> str:
            return f"{names} {options}"

    send, sign, archive = durable(
        [Mailbox().send, functools.partial(send_email, to="ann"), Archive()],
        classes={"send": "external", "send_email": "external", "Archive": "external"},
        agent=agent,
    )
    assert send("ann") == f"ann {action_key(AGENT, 1)[:4]}"
    assert sign() == "sent to ann"
    assert asyncio.run(archive("a", "b", depth=3)) == "('a', 'b') {'depth': 3}"
    assert [action.args for action in actions_of(store)] == [
        '{"to": "ann"}',
        "{}",
        '{"names": ["a", "b"], "options": {"depth": 3}}',
    ]


# --- resuming ---


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("size", [1, 9_000])
def test_an_interrupted_idempotent_call_is_made_again_with_its_arguments_and_key(
    store: AgentStore, is_async: bool, size: int
) -> None:
    made: list[tuple[str, str]] = []

    def save(invoice: str, idempotency_key: str) -> str:
        made.append((invoice, idempotency_key))
        agent.set_pointer("billing", "external", {"id": "7"})  # a tool may write by its agent meanwhile
        return "saved"

    async def save_async(invoice: str, idempotency_key: str) -> str:
        return await asyncio.to_thread(save, invoice, idempotency_key)

    invoice = "I" * size
    tool = save_async if is_async else save
    left = interrupted(store, tool.__name__, {"invoice": invoice}, "idempotent")
    agent = DurableAgent.resume(store, AGENT)

    (closed,) = settle([one(agent, tool, "idempotent")], agent=agent)

    assert made == [(invoice, left.key)]
    assert (closed.status, closed.result) == (ActionStatus.DONE, "saved")
    assert closed.resolution == "re-run with the same key after a crash"
    (turn,) = turns_of(store)
    assert turn.brief == "(settled after a crash: done; re-run with the same key after a crash) saved"
    assert turn.brief in agent.briefing.text
    assert "Unfinished" not in agent.briefing.text


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"invoice": "I-1"}, "ConnectionError: refused"),
        ({"invoice": "I-1", "vat": 7}, "takes no vat any more"),
        ({}, "missing a required argument: 'invoice'"),
        ("not JSON", "JSONDecodeError"),
        ([1], "name no parameters"),
    ],
)
def test_a_repeat_that_raises_says_neither_yes_nor_no(store: AgentStore, args: object, says: str) -> None:
    made: list[str] = []

    def save(invoice: str, idempotency_key: str) -> str:
        made.append(invoice)
        raise ConnectionError("refused")

    interrupted(store, "save", args, "idempotent")
    agent = DurableAgent.resume(store, AGENT)

    assert settle([one(agent, save, "idempotent")], agent=agent) == ()

    (action,) = actions_of(store)
    assert action.status is ActionStatus.UNKNOWN
    assert says in action.resolution
    assert len(made) == (1 if says.startswith("Connection") else 0)
    assert turns_of(store) == []
    assert "Unfinished actions" in agent.briefing.text


def test_a_repeat_is_made_only_of_what_is_still_declared_idempotent(store: AgentStore) -> None:
    made: list[str] = []

    def save(invoice: str, idempotency_key: str) -> None:
        made.append(invoice)

    interrupted(store, "save", {"invoice": "I-1"}, "idempotent")
    agent = DurableAgent.resume(store, AGENT)

    assert settle([one(agent, save, "external")], agent=agent) == ()
    assert made == []


def test_an_interrupted_external_call_is_never_made_again_and_its_resolver_decides(store: AgentStore) -> None:
    made: list[str] = []

    def send(to: str) -> None:
        made.append(to)

    interrupted(store, "send", {"to": "ann"}, "external")
    interrupted(store, "send", {"to": "bob"}, "external")
    agent = DurableAgent.resume(store, AGENT)

    closed = settle(
        [one(agent, send)],
        agent=agent,
        resolver=lambda action: End("done", "message 204", resolution="in the Sent folder") if "ann" in action.args else None,
    )

    assert [(action.seq, action.result) for action in closed] == [(1, "message 204")]
    assert made == []
    said = still_open(agent)
    assert said.splitlines()[1:] == [f"- action 2, send (external, unknown), key {action_key(AGENT, 2)}"]
    assert said.startswith("Not finished, whatever the agent says: 1 call is still open")


def test_settling_in_the_middle_of_a_run_leaves_alone_the_calls_that_are_being_made(store: AgentStore) -> None:
    asked: list[str] = []
    made: list[str] = []

    def save(invoice: str, idempotency_key: str) -> str:
        made.append(invoice)
        if invoice == "ours":
            assert send(to="ann") == "sent"
        return "saved"

    def send(to: str) -> str:
        (closed,) = settle(tools, agent=agent, resolver=lambda action: asked.append(action.tool))
        assert closed.tool == "save"
        assert [(action.tool, action.status) for action in agent.pending_actions()] == [
            ("send", ActionStatus.UNKNOWN),
            ("save", ActionStatus.STARTED),
            ("send", ActionStatus.STARTED),
        ]
        return "sent"

    interrupted(store, "save", {"invoice": "theirs"}, "idempotent")
    interrupted(store, "send", {"to": "bob"}, "external")
    agent = DurableAgent.resume(store, AGENT)
    tools = durable([save, send], classes={"save": "idempotent", "send": "external"}, agent=agent)
    save_durably, send = tools

    assert save_durably(invoice="ours") == "saved"

    assert made == ["ours", "theirs"]
    assert asked == ["send"]
    assert [action.status for action in actions_of(store)] == [
        ActionStatus.DONE,
        ActionStatus.UNKNOWN,
        ActionStatus.DONE,
        ActionStatus.DONE,
    ]


def test_nothing_is_said_to_be_open_when_nothing_is(agent: DurableAgent) -> None:
    one(agent, send_email)("ann")

    assert still_open(agent) == ""


# --- the ledger ---


@pytest.fixture(params=["file", "output"])
def ledger_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[DurableAgent], Ledger]:
    return OutputLedger if request.param == "output" else lambda _agent: FileLedger(tmp_path / "ledger")


def test_a_call_that_its_ledger_knows_is_settled_with_what_it_gave(
    store: AgentStore, ledger_of: Callable[[DurableAgent], Ledger]
) -> None:
    left = interrupted(store, "send_email", {"to": "ann"}, "external")
    agent = DurableAgent.resume(store, AGENT)
    ledger = ledger_of(agent)
    note = LedgerNote(key=left.key, agent=AGENT, seq=1, tool="send_email", args=left.args, status="done", result="message 204")
    ledger.note(note)

    (closed,) = settle([one(agent, send_email, ledger=ledger)], agent=agent, resolver=lambda _: End("failed", error="not there"))

    assert (closed.status, closed.result, closed.resolution) == (
        ActionStatus.DONE,
        "message 204",
        "found in the ledger under its key",
    )


def test_a_call_without_a_note_stays_open(store: AgentStore, ledger_of: Callable[[DurableAgent], Ledger]) -> None:
    interrupted(store, "send_email", {"to": "ann"}, "external")
    agent = DurableAgent.resume(store, AGENT)

    assert settle([one(agent, send_email, ledger=ledger_of(agent))], agent=agent) == ()

    assert actions_of(store)[0].status is ActionStatus.UNKNOWN


def test_a_note_outlives_a_lease_that_was_lost_during_the_call(store: AgentStore, tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    first = DurableAgent.resume(store, AGENT)

    def send(to: str) -> str:
        first.release()
        if to == "bob":
            raise LookupError("no mailbox")
        return "message 204"

    with pytest.raises(EndUnrecorded):
        one(first, send, ledger=ledger)("ann")
    first = DurableAgent.resume(store, AGENT)
    (closed,) = settle([one(first, send, ledger=ledger)], agent=first)
    assert closed.result == "message 204"

    with pytest.raises(LookupError):
        one(first, send, ledger=ledger)("bob")
    second = DurableAgent.resume(store, AGENT)
    (failed,) = settle([one(second, send, ledger=ledger)], agent=second)
    assert (failed.status, failed.error) == (ActionStatus.FAILED, "LookupError: no mailbox")


@pytest.mark.parametrize("text", ["", "[]", '{"key": "x"}', "\x00"])
def test_a_file_that_is_no_note_proves_nothing(
    store: AgentStore, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = interrupted(store, "send_email", {"to": "ann"}, "external")
    (tmp_path / f"{left.key}.json").write_text(text)
    agent = DurableAgent.resume(store, AGENT)

    assert settle([one(agent, send_email, ledger=FileLedger(tmp_path))], agent=agent) == ()
    assert "the ledger cannot say what became of action 1" in caplog.text


def test_a_ledger_that_cannot_be_written_does_not_undo_the_call(
    agent: DurableAgent, store: AgentStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = FileLedger(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert one(agent, send_email, ledger=ledger)("ann") == "sent to ann"

    assert actions_of(store)[0].status is ActionStatus.DONE
    assert "the ledger has no note of action 1" in caplog.text


# --- what recall-langgraph leaves: the turn before the end ---


def left_with_a_turn(store: AgentStore, *tools: str) -> None:
    """As recall-langgraph dies between a call's turn and its end."""
    with DurableAgent.resume(store, AGENT) as died:
        for tool in tools:
            died.begin_action(tool, {"to": "ann"}, "external")
        died.record_turn("tool", "message 204", name=tools[0], message_id="tool-call:c1")


def test_an_open_call_whose_result_is_a_turn_already_is_closed_with_it_and_told_once(store: AgentStore) -> None:
    left_with_a_turn(store, "send_email")
    agent = DurableAgent.resume(store, AGENT)

    (closed,) = settle([one(agent, send_email)], agent=agent)

    assert (closed.status, closed.result, closed.resolution) == (ActionStatus.DONE, "message 204", TOLD.format(1))
    assert len(turns_of(store)) == 1
    assert "Unfinished" not in agent.briefing.text


def test_a_turn_that_another_call_may_have_left_closes_nothing(store: AgentStore) -> None:
    left_with_a_turn(store, "send_email", "send_email")
    agent = DurableAgent.resume(store, AGENT)
    assert settle([one(agent, send_email)], agent=agent) == ()

    agent.end_action(2, "done", turn=NewTurn("tool", "message 205", name="send_email"))
    agent.release()
    successor = DurableAgent.resume(store, AGENT)
    assert settle([one(successor, send_email)], agent=successor) == ()

    assert [action.status for action in actions_of(store)] == [ActionStatus.UNKNOWN, ActionStatus.DONE]
