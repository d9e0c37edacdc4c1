"""Which gates stand before a decision: what a rule reads, and that whatever it cannot read for certain closes the gate."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actions.keys import action_key
from actions.records import Action, ActionClass, ActionStatus
from actions.resolvers.claim import Roles
from console.models import Policy
from console.services.gates import Gates, InvalidRule, arguments_in, check_rule, gates_of, is_confirmed

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def gates(rule: str, args: Any, *, roles: Roles | None = None, outcome: str = "done", **policy: Any) -> Gates:
    """The gates that this rule for a second person puts before a payment with these arguments."""
    text = args if isinstance(args, str) else json.dumps(args)
    action = Action(
        agent="m-1",
        seq=1,
        tool="create_payment",
        action_class=ActionClass.EXTERNAL,
        key=action_key("m-1", 1),
        args=text,
        status=ActionStatus.STARTED,
        epoch=1,
        written_epoch=1,
        started_at=0,
    )
    kept = Policy(tool="create_payment", version=3, second_person_when=rule, **policy)
    return gates_of(kept, action, text, store="main", outcome=outcome, roles=roles or Roles())


@pytest.mark.parametrize(
    ("rule", "args"),
    [
        ("amount > 1000", {"amount": 1000}),
        ("amount > 1000", {"amount": 999.99}),
        ("amount > 1000", {"amount": "1000.00"}),
        ("amount > 1000", {"amount_cents": 100_000, "currency": "EUR"}),
        ("amount > 1000", {"amount": 10, "limit": 5000}),
        ("limit > 5000", {"amount": 10, "limit": 5000}),
        ("recipient != 'acme@example.com'", {"to": "ACME <acme@example.com>"}),
        ("currency != 'EUR'", {"currency": "eur"}),
        ("outcome == 'failed'", {}),
        ("tool != 'create_payment' || agent != 'm-1' || store != 'main' || action_class != 'external'", {}),
        ("has(args.urgent) && args.urgent", {}),
        ("args.lines.exists(line, line.price > 100)", {"lines": [{"price": 99.5}]}),
        ("false", "no JSON at all"),
        ("", "no JSON at all"),
    ],
)
def test_a_rule_that_says_no_leaves_the_gate_open(rule: str, args: Any) -> None:
    assert gates(rule, args) == Gates()


@pytest.mark.parametrize(
    ("rule", "args"),
    [
        ("amount > 1000", {"amount": 1000.01}),
        ("amount > 1000", {"amount": "1000.01"}),
        ("amount > 1000", {"amount": 10**19}),
        ("amount > 1000", {"amount_cents": 100_001, "currency": "EUR"}),
        ("amount > 1000", {"total": {"value": 1}, "amount": 1001}),
        ("args.amount > 1000", {"amount": 1001}),
        ("true", "no JSON at all"),
        ("args.lines.exists(line, line.price > 100)", {"lines": [{"price": 99.5}, {"price": 100.5}]}),
    ],
)
def test_a_rule_that_says_yes_closes_it_and_its_own_words_are_kept(rule: str, args: Any) -> None:
    found = gates(rule, args)

    assert found.needs_second
    assert rule in found.rule
    assert "policy 3" in found.rule
    assert not found.needs_step_up


@pytest.mark.parametrize(
    ("rule", "args", "why"),
    [
        ("amount > 1000", {"amount": "1,200.00"}, "not written as a plain number"),
        ("amount > 1000", {"amount": "1.200,00"}, "not written as a plain number"),
        ("amount > 1000", {"amount": "12e9"}, "not written as a plain number"),
        ("amount > 1000", {"amount": [1, 5000]}, "not written as a plain number"),
        ("amount > 1000", {"amount": -5000}, "negative"),
        ("amount > 1000", {}, "names no amount"),
        ("amount > 1000", "no JSON", "not JSON"),
        ("amount > 1000", "", "no arguments"),
        ("amount > 1000", '{"amount": 1, "amount": 5000}', "stands twice"),
        ("amount > 1000", {"amount": 1, "Amount": 5000}, "several spellings"),
        ("amount > 1000", {"amount": 1, "total": 5000}, "several arguments may be the amount"),
        ("amount > 1000", '{"amount": 1234567890123456.78}', "types do not fit"),
        ("amount > 1000", '{"amount": NaN}', "no number"),
        ("recipient == 'evil@example.com'", {"to": ["a@example.com", "evil@example.com"]}, "more than one recipient"),
        ("recipient == 'evil@example.com'", {}, "no recipient"),
        ("currency == 'USD'", {"amount": 1}, "no currency"),
        ("limit > 5", {"amount": 1}, "no argument 'limit'"),
        ("limit > 5", {"limit": "six"}, "types do not fit"),
        ("args.limit > 5", {"amount": 1}, "no field 'limit'"),
        ("args.all(x, x > 5)", [[1] * 10], "types do not fit"),
        ("amount", {"amount": 1}, "neither yes nor no"),
        ("amount / 0 > 1", {"amount": 1}, "cannot be worked out"),
        ("this is no rule", {"amount": 1}, "line 1"),
    ],
)
def test_what_cannot_be_worked_out_closes_the_gate_and_says_why(rule: str, args: Any, why: str) -> None:
    found = gates(rule, args)

    assert found.needs_second
    assert "it holds because it cannot be worked out" in found.rule
    assert why in found.rule
    assert "5000" not in found.rule.replace(rule, "")


def test_the_policy_says_which_argument_is_the_amount_and_in_which_unit() -> None:
    args = {"amount": 5000, "order": {"total": 99_999}}

    assert not gates("amount > 1000", args, roles=Roles(amount="order.total", is_minor=True)).needs_second
    assert gates("amount > 999", args, roles=Roles(amount="order.total", is_minor=True)).needs_second


def test_each_gate_has_a_rule_of_its_own() -> None:
    found = gates("amount > 1000", {"amount": 500}, step_up_when="amount > 100", hold_s=30)

    assert found == Gates(
        needs_step_up=True, hold_s=30, rule="a fresh proof of identity when amount > 100 (policy 3); held for 30 s (policy 3)"
    )
    assert not gates("", {"amount": 500}, step_up_when="amount > 1000").needs_step_up


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("amount >", "the end"),
        ("known(amount)", "no function 'known'"),
        ("'yes'", "neither yes nor no"),
        ("1 + 1", "neither yes nor no"),
        ("1 / 0 > 1", "division by zero"),
        ("a" * 2_001, "longer than 2,000"),
    ],
)
def test_what_can_be_no_rule_is_refused_in_words(rule: str, named: str) -> None:
    with pytest.raises(InvalidRule, match=named):
        check_rule(rule)


def test_names_that_are_none_of_ours_are_arguments_and_are_listed() -> None:
    assert arguments_in("amuont > 1000 && args.items.all(x, x.price < limit) && tool == 'pay'") == ("amuont", "limit")
    assert arguments_in("") == ()


@pytest.mark.parametrize(
    ("ago", "counts"), [(timedelta(0), True), (timedelta(minutes=10), True), (timedelta(minutes=10, seconds=1), False)]
)
def test_a_proof_of_identity_counts_for_ten_minutes(ago: timedelta, counts: bool) -> None:
    assert is_confirmed(NOW - ago, NOW) is counts
    assert not is_confirmed(None, NOW)
    assert not is_confirmed(NOW + timedelta(seconds=1), NOW)
