"""What an HTTP interface answered, as values for expressions: refusals, JSON, what is known of the call. No request is made here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from actions.resolvers.base import Claim, Reply
from actions.resolvers.cel import EvaluationFailed, Expression
from actions.resolvers.web import Response
from actions.times import to_datetime


class NoAnswer(Exception):
    """The answer cannot be used; says nothing about the world."""

    def __init__(self, problem: str, *, reply: Reply = Reply.NO_ANSWER, retry_after_s: int = 0) -> None:
        self.problem, self.reply, self.retry_after_s = problem, reply, retry_after_s
        super().__init__(problem)


def refusal_of(response: Response) -> NoAnswer:
    """What a status that brings no answer means, and whether asking again may help."""
    status = response.status
    if status in (401, 403):
        return NoAnswer(f"the credentials are refused ({status})", reply=Reply.UNUSABLE)
    if status == 429:
        return NoAnswer("too many questions (429)", retry_after_s=response.retry_after_s)
    if status in (404, 410):
        return NoAnswer(f"not found ({status}), which may also mean: hidden from these credentials")
    if status >= 500 or status in (408, 425) or status < 200:
        return NoAnswer(f"the server fails ({status})", retry_after_s=response.retry_after_s)
    return NoAnswer(f"the server does not take this question ({status})", reply=Reply.UNUSABLE)


def parse_json(response: Response) -> Any:
    """The body as values of Python; numbers with a point as decimals.

    Raises:
        NoAnswer: HTML, no JSON, or JSON that can be read in two ways.
    """
    if "html" in response.content_type:
        raise NoAnswer("the answer is HTML where JSON was expected")

    def refuse_twice(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise NoAnswer("the answer is JSON in which a name stands twice in one object")
        return found

    def refuse_constant(text: str) -> None:
        raise NoAnswer(f"the answer is no JSON: it holds {text}")

    try:
        return json.loads(
            response.body.decode("utf-8"), parse_float=Decimal, object_pairs_hook=refuse_twice, parse_constant=refuse_constant
        )
    except (ValueError, RecursionError, ArithmeticError):
        raise NoAnswer("the answer is no JSON that can be read") from None


def evaluate(name: str, expression: Expression, values: Mapping[str, Any]) -> Any:
    """One expression on these values. Raises NoAnswer, with the name of its field."""
    try:
        return expression.evaluate(values)
    except EvaluationFailed as exc:
        raise NoAnswer(f"{name}: {exc}") from None


def action_values(claim: Claim) -> dict[str, Any]:
    """What an expression finds under `action`."""
    action = claim.action
    return {
        "key": action.key,
        "agent": action.agent,
        "seq": action.seq,
        "tool": action.tool,
        "started_at": to_datetime(action.started_at),
        "args": claim.arguments.value,
        "recipient": claim.recipients[0] if claim.recipients else "",
        "recipients": list(claim.recipients),
        "amount": claim.amount,
        "currency": claim.currency,
        "reference": claim.reference,
    }
