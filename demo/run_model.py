"""The scripted model of the demo's refund: the next of four calls, by what stands in the conversation. No network, no chance."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from agents.gates import NOT_CALLED

WORDS_PER_TOKEN = 4
_CHANGED = re.compile(r".* create_payment was called with (\{.*\})\. That was meant; .*\n\n")
"""What stands before the tool's own words where a person let the call through with other arguments."""


class RefundModel(BaseChatModel):
    """Looks the order up, pays, writes to the customer, opens a ticket; stops where a call of it was refused or did not happen."""

    @property
    def _llm_type(self) -> str:
        return "scripted-refund"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> RefundModel:
        """It knows its tools already."""
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        answer = next_message(messages)
        read = sum(len(str(message.content)) for message in messages) // WORDS_PER_TOKEN
        said = (len(str(answer.content)) + len(json.dumps(answer.tool_calls, default=str))) // WORDS_PER_TOKEN
        answer.usage_metadata = UsageMetadata(input_tokens=read, output_tokens=said, total_tokens=read + said)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def next_message(messages: Sequence[BaseMessage]) -> AIMessage:
    """What it says to this conversation. A tool that answered is not called again, whatever it answered."""
    given = next(
        m.additional_kwargs["refund"] for m in messages if isinstance(m, HumanMessage) and "refund" in m.additional_kwargs
    )
    answers: Mapping[str, ToolMessage] = {m.name: m for m in messages if isinstance(m, ToolMessage) and m.name}
    order, amount = given["order"], given["amount"]
    if (found := answers.get("lookup_order")) is None:
        return _call("Let me see who ordered it.", "lookup_order", order=order)
    customer = json.loads(str(found.content))
    paid = answers.get("create_payment")
    if paid is None:
        words = f"Paying {amount:.2f} EUR back to {customer['customer']}."
        return _call(
            words, "create_payment", amount=amount, currency="EUR", payee=customer["customer"], reference=f"Refund {order}"
        )
    if paid.status == "error" or paid.additional_kwargs.get(NOT_CALLED):
        return AIMessage(content=f"Order {order} was not refunded: {paid.content}")
    receipt = str(paid.content)
    if changed := _CHANGED.match(receipt):
        amount, receipt = float(json.loads(changed[1])["amount"]), receipt[changed.end() :]
    if "send_email" not in answers:
        body = (
            f"Hello {customer['customer']},\n\nwe have paid your refund. It usually arrives within three working days.\n\nBilling"
        )
        return _call(
            "The money is on its way; now the customer.",
            "send_email",
            to=customer["email"],
            subject=f"Your refund for order {order}",
            body=body,
        )
    if "open_ticket" not in answers:
        title, body = f"Refund of order {order}", f"{amount:.2f} EUR, {customer['customer']}: {receipt}"
        return _call("And a ticket for accounting.", "open_ticket", title=title, body=body, priority="normal")
    unsure = [name for name, answer in answers.items() if answer.status == "error"]
    left = f" Not certain: {', '.join(unsure)}." if unsure else ""
    return AIMessage(content=f"Order {order} is refunded, {amount:.2f} EUR: {receipt}.{left}")


def _call(words: str, tool: str, **args: Any) -> AIMessage:
    return AIMessage(content=words, tool_calls=[{"name": tool, "args": args, "id": f"call_{uuid.uuid4().hex[:12]}"}])
