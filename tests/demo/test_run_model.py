"""The demo's refund says and does only what became of its payment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage

from agents.gates import GatedCall, check_edit, refusal, tell_of_edit
from agents.runs import Gate
from demo.run_model import next_message
from demo.runs import REFUND

ASKED = {"amount": 1480.0, "currency": "EUR", "payee": "Jonas Weber", "reference": "Refund A-0997"}
LOOKED_UP = ToolMessage(
    content=json.dumps({"customer": "Jonas Weber", "email": "j@example.org"}), name="lookup_order", tool_call_id="a"
)
MAILED = ToolMessage(content="sent", name="send_email", tool_call_id="c")


def after(payment: ToolMessage, *more: ToolMessage) -> Any:
    given = HumanMessage(content="refund", additional_kwargs={"refund": {"order": "A-0997", "amount": 1480.0}})
    return next_message([given, LOOKED_UP, payment, *more])


@pytest.mark.parametrize("decision", ["reject", "respond"])
def test_nobody_is_told_of_a_payment_that_a_person_answered_in_place_of(decision: str) -> None:
    call = GatedCall(tool="create_payment", args=ASKED, call_id="b", gate=Gate(), type_version=1)
    said = refusal(call, {"type": decision, "message": "paid, pay_0123"})
    assert said is not None

    answer = after(said)

    assert (answer.tool_calls, "was not refunded" in answer.content) == ([], True)


@pytest.mark.parametrize("receipt", ["paid, pay_0123", "seen at the provider", ""])
def test_the_ticket_names_the_amount_that_was_paid_and_not_the_one_that_was_asked_for(receipt: str) -> None:
    paid = ToolMessage(content=receipt, name="create_payment", tool_call_id="b")
    changed = tell_of_edit(paid, "create_payment", ASKED | {"amount": 900}, "b")

    (as_asked,), (as_changed,) = after(paid, MAILED).tool_calls, after(changed, MAILED).tool_calls

    assert as_asked["args"]["body"] == f"1480.00 EUR, Jonas Weber: {receipt}"
    assert as_changed["args"]["body"] == f"900.00 EUR, Jonas Weber: {receipt}"


@pytest.mark.parametrize("amount", [-5, 0, 1e308, 0.001, True, "1480"])
def test_no_person_lets_a_payment_through_that_could_not_have_been_asked_for(amount: Any) -> None:
    assert check_edit(REFUND, "create_payment", ASKED) == []
    assert check_edit(REFUND, "create_payment", ASKED | {"amount": amount})[0].startswith("amount: ")


@pytest.mark.parametrize("result", ["", "done", "I saw it in the dashboard", "either pay_01 or pay_02"])
def test_what_a_person_wrote_of_a_settled_call_is_never_taken_for_the_number_of_what_to_take_back(result: str) -> None:
    pay, ticket = REFUND.tool("create_payment"), REFUND.tool("open_ticket")
    assert pay is not None
    assert pay.compensate is not None
    assert ticket is not None
    assert ticket.compensate is not None

    for undo in (pay.compensate, ticket.compensate):
        with pytest.raises(ValueError, match="does not name one"):
            undo.arguments(ASKED, result)
    assert pay.compensate.arguments(ASKED, "seen there: pay_0af, booked")["payment"] == "pay_0af"  # type: ignore[index]
    assert ticket.compensate.arguments({}, "opened T-0AF3B2") == {"ticket": "T-0AF3B2"}
