"""The kill test: what it counts, how it goes on, and a small one with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actions.keys import action_key
from actions.records import Action, ActionClass, ActionStatus
from bench import __main__ as command
from bench.kill.agent import POINTS, SETUPS
from bench.kill.command import Asked, bench_kill
from bench.kill.rows import Outcome, Row, Tally, cells, judge, render

INVOICE, EMAIL = action_key("a", 2), action_key("a", 3)
BOTH = {"save_invoice": [INVOICE], "send_email": [EMAIL]}
CELL = ("durable", "send_email", "after-effect")


def an_action(seq: int, tool: str, status: ActionStatus) -> Action:
    kind = {"lookup_order": ActionClass.PURE, "save_invoice": ActionClass.IDEMPOTENT}.get(tool, ActionClass.EXTERNAL)
    what: dict[str, Any] = {
        "agent": "a",
        "seq": seq,
        "tool": tool,
        "action_class": kind,
        "args": "{}",
        "key": action_key("a", seq),
    }
    return Action(**what, status=status, epoch=1, written_epoch=1, started_at=1)


def records(email: ActionStatus = ActionStatus.DONE, lookup: ActionStatus = ActionStatus.DONE) -> list[Action]:
    done = an_action(2, "save_invoice", ActionStatus.DONE)
    return [an_action(1, "lookup_order", lookup), done, an_action(3, "send_email", email)]


FINE = {"twice": False, "never": False, "waiting": False, "wrong": False}


@pytest.mark.parametrize(
    ("effects", "actions", "is_finished", "found"),
    [
        pytest.param(BOTH, records(), True, {}, id="all done once"),
        pytest.param(BOTH, [], True, {}, id="ordinary, all done once"),
        pytest.param(
            BOTH, records(lookup=ActionStatus.ABANDONED), True, {}, id="a look-up given up says nothing about the world"
        ),
        pytest.param(BOTH | {"send_email": ["", ""]}, [], True, {"twice": True}, id="ordinary, sent twice"),
        pytest.param(BOTH | {"save_invoice": [INVOICE, "k"]}, records(), True, {"twice": True}, id="another tool's effect twice"),
        pytest.param(BOTH | {"send_email": []}, [], True, {"never": True}, id="reported as done and never sent"),
        pytest.param(BOTH | {"send_email": []}, records()[:2], False, {"never": True}, id="nothing open and never sent"),
        pytest.param(
            BOTH | {"send_email": []}, records(), False, {"never": True, "wrong": True}, id="recorded as done and never sent"
        ),
        pytest.param(
            BOTH | {"send_email": []}, records(ActionStatus.UNKNOWN), False, {"waiting": True}, id="in doubt, and not sent: waits"
        ),
        pytest.param(BOTH, records(ActionStatus.STARTED), False, {"waiting": True}, id="in doubt, and sent: waits"),
        pytest.param(
            BOTH | {"send_email": []},
            records(ActionStatus.UNKNOWN),
            True,
            {"waiting": True, "never": True},
            id="in doubt, said done",
        ),
        pytest.param(BOTH, records(ActionStatus.FAILED), True, {"wrong": True}, id="settled as failed and sent"),
        pytest.param(BOTH, records(ActionStatus.ABANDONED), True, {"wrong": True}, id="given up and sent"),
        pytest.param(BOTH | {"send_email": ["k"]}, records(), True, {"wrong": True}, id="done under another key"),
    ],
)
def test_a_trial_is_judged_by_the_world_and_not_by_what_is_said(
    effects: dict[str, list[str]], actions: list[Action], is_finished: bool, found: dict[str, bool]
) -> None:
    assert judge(effects, actions, is_finished=is_finished) == Outcome(**(FINE | found))


def test_a_second_start_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    file = tmp_path / "kill.json"
    first = Tally(store="postgres", file=file)
    first.add(CELL, Outcome(twice=False, never=False, waiting=True, wrong=False))
    second = Tally(store="postgres", file=file)

    second.read()
    second.add(CELL, Outcome(twice=True, never=False, waiting=False, wrong=False))

    assert list(second.left(CELL, 4)) == [2, 3]
    assert list(second.left(("ordinary", *CELL[1:]), 2)) == [0, 1]
    assert json.loads(file.read_text())["rows"] == [
        {"store": "postgres", "setup": "durable", "tool": "send_email", "point": "after-effect"}
        | {"trials": 2, "twice": 1, "never": 0, "waiting": 1, "wrong": 0}
    ]


@pytest.mark.parametrize("held", ["", "[]", '{"rows": [{"bench": "queue"}]}', '{"rows": [{"store": "mongodb"}]}', "\xff"])
def test_a_file_that_holds_something_else_is_refused_and_left_as_it_is(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text(held, encoding="latin-1")

    code = command.main(["kill", "--trials", "1", "--json", str(file)])

    assert code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert file.read_text(encoding="latin-1") == held


def test_rows_of_another_store_are_not_added_to(tmp_path: Path) -> None:
    file = tmp_path / "kill.json"
    Tally(store="mongodb", file=file).add(CELL, Outcome(**FINE))

    with pytest.raises(ValueError, match="holds rows of mongodb"):
        Tally(store="postgres", file=file).read()


@pytest.mark.parametrize("url", ["polign+http://localhost", "memory:", "sqlite://x"])
def test_a_store_that_agents_cannot_write_is_refused_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["kill", "--store", url]) == 1
    assert capsys.readouterr().err == (
        "bench: --store is postgres://... or mongodb://...: where agents keep records of their own\n"
    )


def test_a_store_that_is_away_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["kill", "--store", "postgres://agents:secret@127.0.0.1:1/agents", "--trials", "1", "--jobs", "1"]) == 1
    said = capsys.readouterr()
    assert "Connection refused" in said.err.splitlines()[-1]
    assert said.err.splitlines()[-1].startswith("bench: store kill: ")
    assert "secret" not in said.err
    assert "Traceback" not in said.err


def test_options_of_the_kill_test_are_wrong_usage_elsewhere() -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse(["queue", "--trials", "3"])

    assert ended.value.code == 2
    assert (command.parse(["kill"]).jobs, command.parse(["queue"]).jobs) == (4, 1)


def test_the_table_sums_the_points_of_each_tool_and_says_which_promise_was_broken() -> None:
    rows = [a_row(setup, tool, point) for setup, tool, point in cells()]
    kept = render(rows)
    broken = render([*rows, a_row("durable", "send_email", "before-effect", never=1)])

    assert "  ordinary               60       20        0        0        0" in kept
    assert kept.count("met  ") == 3
    assert "MISSED" not in kept
    assert "MISSED  durable tools: nothing twice, nothing lost, no wrong outcome" in broken


def a_row(setup: str, tool: str, point: str, **counts: Any) -> Row:
    is_doubled = setup == "ordinary" and tool != "lookup_order" and point == "after-effect"
    return Row(store="postgres", setup=setup, tool=tool, point=point, **({"trials": 20, "twice": 20 * is_doubled} | counts))


@pytest.mark.interop
def test_a_killed_agent_doubles_its_email_with_ordinary_tools_and_an_operator_keeps_it_from_doing_so(tmp_path: Path) -> None:
    setups = ("ordinary", "durable+operator")
    file = tmp_path / "kill.json"
    asked = Asked(store="", trials=1, jobs=4, file=file, setups=setups, tools=("send_email",), points=POINTS[:2], lease_s=1)
    told: list[str] = []

    tally = bench_kill(asked, told.append)
    again = bench_kill(asked, told.append)

    found = {(row.setup, row.point): (row.trials, row.twice, row.never, row.waiting, row.wrong) for row in tally.in_order()}
    assert found == {
        ("ordinary", "before-effect"): (1, 0, 0, 0, 0),
        ("ordinary", "after-effect"): (1, 1, 0, 0, 0),
        ("durable+operator", "before-effect"): (1, 0, 0, 0, 0),
        ("durable+operator", "after-effect"): (1, 0, 0, 0, 0),
    }
    assert again.in_order() == tally.in_order()
    assert [line.partition(" in ")[0] for line in told] == ["4 of 4 trials"]
    assert set(setups) < set(SETUPS)
