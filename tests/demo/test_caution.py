"""What the scripted model reads out of a briefing, and what it then calls. Texts as Recall and the console write them."""

from __future__ import annotations

import json

import pytest

from demo.caution import Seen, Sight, last_words, look, next_step, results_in, unfinished_in
from demo.scripts import SCRIPTS, Step

PAY = Step(tool="create_payment", args={"amount": 120.0, "payee": "Jonas Weber"})
TELL = Step(tool="send_email", args={"to": "jonas@example.org"}, needs="create_payment")
NOTE = Step(tool="milestone", args={"name": "refunded"})
FAILED = "[tool create_payment #7] (settled after a crash: failed; operator ana: no trace) failed: no trace"
PLAN = (PAY, TELL, NOTE)


def seen(briefing: str, plan: tuple[Step, ...] = PLAN) -> list[Seen]:
    return look(plan, results_in(briefing), unfinished_in(briefing))


def unfinished(step: Step, *, cut_to: int = 10_000) -> str:
    args = json.dumps(dict(step.args), sort_keys=True)
    shown = args if len(args) <= cut_to else args[:cut_to] + "..."
    return f"1. {step.tool}({shown}) [external, key 820ea046218d] started 2026-11-29T19:38:59Z\n   Interrupted."


def test_nothing_seen_everything_to_do() -> None:
    assert next_step(seen("[user #1] Refund it")) is PAY


def test_a_result_is_not_asked_for_again() -> None:
    assert next_step(seen("[tool create_payment #2] paid, pay_1")) is TELL


def test_behind_a_call_in_doubt_nothing_goes_on() -> None:
    known = seen(unfinished(PAY))
    assert known[0].sight is Sight.OPEN
    assert next_step(known) is None
    assert "820ea046218d" in last_words(known, "Done.")


def test_a_call_in_doubt_is_known_by_the_beginning_of_its_arguments() -> None:
    assert seen(unfinished(PAY, cut_to=20))[0].sight is Sight.OPEN


def test_of_two_calls_of_one_tool_the_right_one_is_in_doubt() -> None:
    first, second = (Step(tool="send_email", args={"to": to}) for to in ("ann@example.com", "ben@example.com"))
    known = seen(unfinished(second) + "\n[tool send_email #4] sent", (first, second))
    assert [step.sight for step in known] == [Sight.DONE, Sight.OPEN]


def test_a_call_in_doubt_that_fits_no_step_stops_its_tool_all_the_same() -> None:
    assert next_step(seen(unfinished(Step(tool="create_payment", args={"amount": 1})))) is None


def test_settled_as_done_is_not_repeated() -> None:
    known = seen("[tool create_payment #7] (settled after a crash: done; operator ana: in the ledger) pay_1")
    assert known[0].why == "settled as done: operator ana: in the ledger"
    assert next_step(known) is TELL


def test_settled_as_failed_is_done_again() -> None:
    assert (
        next_step(seen("[tool create_payment #7] (settled after a crash: failed; operator ana: no trace) failed: no trace"))
        is PAY
    )


def test_done_at_the_second_attempt_is_done() -> None:
    briefing = (
        "[tool create_payment #7] (settled after a crash: failed; -) failed: no trace\n[tool create_payment #9] paid, pay_2"
    )
    assert next_step(seen(briefing)) is TELL


def test_given_up_is_neither_repeated_nor_built_upon() -> None:
    known = seen("[tool create_payment #7] (settled after a crash: abandoned; operator ana: order was withdrawn) abandoned")
    assert next_step(known) is NOTE
    known = seen("[tool create_payment #7] (settled after a crash: abandoned; operator ana: x) abandoned\n[tool milestone #8] ok")
    assert next_step(known) is None
    assert last_words(known, "Done.") == (
        "Given up, so I did not do it again: create_payment. Left out, because it needs it: send_email."
    )


def test_a_correction_is_no_further_result() -> None:
    known = seen("[tool create_payment #7] paid, pay_1\n[tool create_payment #8] correction: it was paid twice")
    assert next_step(known) is TELL


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_one_payment_in_the_demo_needs_a_second_person_and_no_other_does(name: str) -> None:
    payments = [step.args for step in SCRIPTS[name].steps if step.tool == "create_payment"]
    assert any(float(str(args["amount"])) > 1000 for args in payments) == (name == "machine")
    assert all(args["currency"] == "EUR" for args in payments)
