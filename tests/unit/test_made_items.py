"""What is made of an action's texts stays for the next look: for exactly this action as it is now, read by exactly this rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actions import queries
from actions.kept import Kept
from actions.queries import ActionItem, make_item
from actions.records import Action, ActionClass, ActionStatus, Output, Reading
from actions.store.memory import MemoryStore
from actions.tool_rules import ToolRule, ToolRules

ACTION = Action(
    agent="m-1",
    seq=1,
    tool="send_email",
    action_class=ActionClass.EXTERNAL,
    key="k" * 32,
    args='{"to": "ann@example.com", "iban": "DE02", "body": "short"}',
    status=ActionStatus.STARTED,
    epoch=1,
    written_epoch=1,
    started_at=0,
)
STORE = MemoryStore(name="main")


def _item(action: Action, rule: ToolRule | None = None, whole: str = "") -> ActionItem:
    outputs = (
        {(action.agent, action.args_ref): Output(agent=action.agent, ref=action.args_ref, content=whole, at=0)} if whole else {}
    )
    rules = ToolRules(by_tool={action.tool: rule}) if rule else ToolRules()
    return make_item(STORE, Reading(action=action, lease=None, read_at=1), outputs, rules)


OTHERS: dict[str, tuple[Action, dict[str, Any]]] = {
    "tool": (replace(ACTION, tool="create_payment"), {}),
    "class": (replace(ACTION, action_class=ActionClass.IDEMPOTENT), {}),
    "key": (replace(ACTION, key="l" * 32), {}),
    "arguments": (replace(ACTION, args=ACTION.args.replace("short", "shorn")), {}),
    "status": (replace(ACTION, status=ActionStatus.UNKNOWN), {}),
    "epoch": (replace(ACTION, epoch=2), {}),
    "whole arguments": (replace(ACTION, args_ref="act-1-args"), {"whole": ACTION.args.replace("short", "long")}),
    "hidden names": (ACTION, {"rule": ToolRule(redacted=frozenset({"iban"}))}),
    "weight": (ACTION, {"rule": ToolRule(moves_money=True)}),
    "sentence": (ACTION, {"rule": ToolRule(summary="Mail for {recipient}")}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whoever_differs_in_anything_gets_their_own(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    action, said = OTHERS[what]
    monkeypatch.setattr(queries, "_kept", Kept[Any](1))
    alone = _item(action, **said)

    monkeypatch.setattr(queries, "_kept", Kept[Any](10))
    first = _item(ACTION)
    after_another = _item(action, **said)

    assert after_another == alone
    assert after_another != first
    assert _item(ACTION) == first
    assert ("DE02" in after_another.arguments.text) is (what != "hidden names")


def test_the_same_action_is_made_once_and_its_secrets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept[Any](10)
    monkeypatch.setattr(queries, "_kept", kept)
    secret = replace(ACTION, args='{"password": "hunter2hunter2"}')

    first, second = _item(secret), _item(replace(secret, resolution="looked again"))

    assert first.facts is second.facts
    assert second.action is not None
    assert second.action.resolution == "looked again"
    assert len(kept) == 1
    assert "hunter2" not in repr(vars(kept))


def test_long_arguments_are_not_kept_here(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept[Any](10)
    monkeypatch.setattr(queries, "_kept", kept)

    item = _item(replace(ACTION, args="x" * queries.MAX_KEPT_CHARS))

    assert item.arguments.text == "x" * queries.MAX_KEPT_CHARS
    assert len(kept) == 0
