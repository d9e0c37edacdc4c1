"""Gates: which calls a person has to agree to, how a graph asks, and what an answer does. LangChain's shapes, so that its tools read them.

What an answer is bound to is the digest of what was shown: tool, whole arguments and rule. It is compared where the call is made, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command, Interrupt, interrupt
from pydantic import BaseModel, ValidationError

from actions.arguments import parse_arguments
from actions.errors import ActionsError, InvalidRecord
from actions.limits import value_text
from actions.resolvers.cel import EvaluationFailed, Expression, InvalidExpression
from agents.calls import KEY_ARGUMENT
from agents.runs import DECISIONS, Gate, RunType, call_digest

REJECTED_FOR = "User rejected the tool call for `{tool}` with reason: {reason}"
REJECTED = (
    "User rejected the tool call for `{tool}` with id {call_id}. The tool was not executed. Do not retry this tool call unless the user "
    "explicitly requests it."
)
"""LangChain's frames, which models are used to."""
EDITED = (
    "A person changed the arguments of this call before it was made: {tool} was called with {args}. That was meant; do not make the call "
    "as you wrote it."
)
NOT_CALLED = "not_called"
"""In the extra of the message that a person wrote in place of a call: for code that has to tell it from a result."""
_BATCH = "action_requests"
_PER_CALL = "tool_approval"


class OtherQuestion(ActionsError):
    """The graph stopped to ask something that is no call of a tool. Nothing can be answered; `.problem` is the sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall:
    """One call that waits for a person. `interrupt_id` and `position` name its place; the other fields are LangChain's request."""

    interrupt_id: str
    position: int
    call_id: str
    tool: str
    args: Mapping[str, Any]
    digest: str
    description: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person said of one asked call, in LangChain's words: `type` approve, edit, reject or respond."""

    type: str
    digest: str  # of what they saw
    args: Mapping[str, Any] | None = None  # of an edit
    message: str = ""  # of a rejection or a response


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One interrupt and its calls. `is_outdated`: it was asked by other code, under another rule or before the run was cancelled, so the graph
    has to ask anew. `shown`: the digests under which it was asked, where that is ours."""

    interrupt_id: str
    calls: tuple[AskedCall, ...]
    is_outdated: bool = False
    shown: tuple[str, ...] = ()
    is_one_decision: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedCall:
    """A call as its tool is about to make it, and the gate before it."""

    tool: str
    args: Mapping[str, Any]
    call_id: str
    gate: Gate
    type_version: int
    cancels: int = 0

    @property
    def digest(self) -> str:
        return call_digest(self.tool, self.args, self.gate, type_version=self.type_version, cancels=self.cancels)


def needs_approval(gate: Gate, args: Mapping[str, Any]) -> bool:
    """Whether a person has to agree. True too where the condition cannot be evaluated: nobody agreed to what could not be read."""
    if not gate.when:
        return True
    try:
        said = _condition(gate.when).evaluate({"args": parse_arguments(json.dumps(dict(args), default=str)).value})
    except (InvalidExpression, EvaluationFailed, ValueError, TypeError):
        return True
    return said is not False


def check_edit(kind: RunType, tool: str, args: Mapping[str, Any]) -> list[str]:
    """What is wrong with edited arguments by the tool's own schema, a line for each; empty where nothing is. Calls nothing.

    Read strictly, as JSON: a person who typed true or a text where an amount belongs did not mean a number, though pydantic would make one.
    """
    from agents.langgraph.originals import original_of  # whose package imports this module

    declared = kind.tool(tool)
    if declared is None:
        return [f"run type {kind.name} has no tool {tool}"]
    made = original_of(declared.tool)
    shown = {name for name in made.args if name != KEY_ARGUMENT}
    problems = [f"{name}: {tool} takes no such argument" for name in args if name not in shown]
    try:
        value_text("the arguments", dict(args))
    except InvalidRecord as exc:
        return [*problems, str(exc)]
    if _holds_a_longer_number(args):
        return [*problems, "a whole number has more than 64 bits, which no state of a graph keeps"]
    schema = made.args_schema
    if isinstance(schema, dict):
        required = [name for name in schema.get("required", ()) if name in shown]
        return [*problems, *(f"{name}: is missing" for name in required if name not in args)]
    if not isinstance(schema, type) or not issubclass(schema, BaseModel):
        return problems
    try:
        schema.model_validate_json(
            json.dumps({KEY_ARGUMENT: "", **args} if KEY_ARGUMENT in schema.model_fields else dict(args)), strict=True
        )
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_input=False, include_context=False):
            place = ".".join(map(str, error["loc"]))
            if error["type"] == "json_invalid":
                problems.append("the arguments hold half a character, or are no JSON")
            elif error["loc"] and error["loc"][0] in shown:
                problems.append(f"{place}: {error['msg']}")
            elif not error["loc"]:
                problems.append(str(error["msg"]))
    except Exception as exc:  # whatever a check of the tool's own raises
        problems.append(f"what {tool} checks about its arguments broke: {type(exc).__name__}")
    return problems


def _holds_a_longer_number(args: Mapping[str, Any]) -> bool:
    rest: list[Any] = [args]
    while rest:
        item = rest.pop()
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            return True
        rest += item.values() if isinstance(item, Mapping) else item if isinstance(item, list) else ()
    return False


def ask(calls: Sequence[GatedCall]) -> list[Mapping[str, Any]]:
    """Stop the graph until a person has answered for these calls; one decision for each, in their order.

    An answer to something else than what is about to be called counts for nothing: it is asked again.

    Raises:
        GraphInterrupt: nobody has answered yet. LangGraph runs the task again with the answer.
    """
    digests = [call.digest for call in calls]
    request: dict[str, Any] = {
        _BATCH: [{"name": call.tool, "args": dict(call.args), "description": call.gate.description} for call in calls],
        "review_configs": [{"action_name": call.tool, "allowed_decisions": list(call.gate.allowed)} for call in calls],
        "digests": digests,
        "tool_call_ids": [call.call_id for call in calls],
    }
    if len(calls) == 1:
        request |= {"digest": digests[0], "tool_call_id": calls[0].call_id}
    while True:
        said = interrupt(request)
        decisions = list(said.get("decisions", ())) if isinstance(said, Mapping) else []
        seen = said.get("digests", [said.get("digest")]) if isinstance(said, Mapping) else []
        if list(seen) == digests and len(decisions) == len(calls) and all(map(_is_allowed, calls, decisions)):
            return decisions


def refusal(call: GatedCall, decision: Mapping[str, Any]) -> ToolMessage | None:
    """What the model reads instead of a result; None where the call is to be made."""
    kind, message = decision["type"], str(decision.get("message") or "")
    if kind == "respond":
        return ToolMessage(content=message, name=call.tool, tool_call_id=call.call_id, additional_kwargs={NOT_CALLED: True})
    if kind == "reject":
        words = REJECTED_FOR.format(tool=call.tool, reason=message) if message else ""
        content = words or REJECTED.format(tool=call.tool, call_id=call.call_id)
        return ToolMessage(content=content, name=call.tool, tool_call_id=call.call_id, status="error")
    return None


def edited_args(decision: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments that a person put in the place of the model's; None where nobody did."""
    edited = decision.get("edited_action") if decision["type"] == "edit" else None
    return dict(edited["args"]) if isinstance(edited, Mapping) else None


def tell_of_edit(output: Any, tool: str, args: Mapping[str, Any], call_id: str) -> Any:
    """What a tool gave, with a word to the model that it was called otherwise than it wrote."""
    notice = EDITED.format(tool=tool, args=json.dumps(dict(args), ensure_ascii=False, default=str))
    if isinstance(output, ToolMessage) and output.tool_call_id == call_id:
        if isinstance(output.content, str):
            return output.model_copy(update={"content": f"{notice}\n\n{output.content}"})
        is_text = all(isinstance(block, str) for block in output.content)
        return output.model_copy(update={"content": [notice if is_text else {"type": "text", "text": notice}, *output.content]})
    if isinstance(output, list):
        return [tell_of_edit(one, tool, args, call_id) for one in output]
    if isinstance(output, Command) and isinstance(output.update, Mapping) and isinstance(output.update.get("messages"), list):
        messages = [tell_of_edit(one, tool, args, call_id) for one in output.update["messages"]]
        return Command(graph=output.graph, update={**output.update, "messages": messages}, resume=output.resume, goto=output.goto)
    return output


def read_question(kind: RunType, asked: Interrupt[Any], *, cancels: int = 0) -> Question:
    """What an interrupt of a graph asks: one of our gates, or LangChain's own middleware, which asks for a turn or for each call.

    `cancels`: as `call_digest`.

    Raises:
        OtherQuestion: it is neither.
    """
    value = asked.value
    if not isinstance(value, Mapping):
        raise OtherQuestion(_other())
    if value.get("type") == _PER_CALL and isinstance(value.get("args"), Mapping):
        allowed = _allowed_by(asked.response_schema)
        call = _foreign(kind, asked.id, 0, value, allowed, str(value.get("tool_call_id") or ""), cancels)
        return Question(interrupt_id=asked.id, calls=(call,), is_one_decision=True)
    requests = value.get(_BATCH)
    if not isinstance(requests, Sequence) or not requests or not all(_is_request(request) for request in requests):
        raise OtherQuestion(_other())
    digests, call_ids = value.get("digests"), value.get("tool_call_ids")
    if isinstance(digests, Sequence) and isinstance(call_ids, Sequence) and len(digests) == len(call_ids) == len(requests):
        calls = tuple(
            _own(kind, asked.id, position, request, str(call_id), cancels)
            for position, (request, call_id) in enumerate(zip(requests, call_ids, strict=True))
        )
        is_outdated = [call.digest for call in calls] != list(digests)
        return Question(interrupt_id=asked.id, calls=calls, is_outdated=is_outdated, shown=tuple(map(str, digests)))
    configs = [config for config in value.get("review_configs", ()) if isinstance(config, Mapping)]
    calls = tuple(
        _foreign(
            kind, asked.id, position, request, _allowed_of(configs, position, str(request["name"]), len(requests)), "", cancels
        )
        for position, request in enumerate(requests)
    )
    return Question(interrupt_id=asked.id, calls=calls)


def response_to(kind: RunType, question: Question, answers: Sequence[Answer]) -> tuple[Any, str]:
    """What the graph is resumed with, once every call of the question is answered; else None and why, empty where an answer is missing."""
    if not answers or len(answers) != len(question.calls):
        return None, ""
    for call, answer in zip(question.calls, answers, strict=True):
        if answer.digest != call.digest:
            return None, f"{call.tool} is not what was shown when it was answered; it is asked again"
        if answer.type not in call.allowed:
            return None, f"{answer.type!r} is no answer to {call.tool}; it is asked again"
        if answer.type == "edit" and (problems := check_edit(kind, call.tool, answer.args or {})):
            return None, f"the edited arguments do not fit {call.tool}: {'; '.join(problems)}; it is asked again"
    decisions = [_decision(call, answer) for call, answer in zip(question.calls, answers, strict=True)]
    if question.is_one_decision:
        return decisions[0], ""
    digests = [call.digest for call in question.calls]
    return {"decisions": decisions, "digests": digests, **({"digest": digests[0]} if len(digests) == 1 else {})}, ""


def answered_before(question: Question, answers: Sequence[Answer]) -> list[tuple[AskedCall, Mapping[str, Any]]]:
    """What people said of the calls of an outdated question as it was shown to them: for calls that no rule asks about any more."""
    if not question.is_outdated or len(answers) != len(question.shown):
        return []
    rows = zip(question.calls, question.shown, answers, strict=True)
    return [(call, _decision(call, one)) for call, digest, one in rows if one.digest == digest and one.type in DECISIONS]


def _decision(call: AskedCall, answer: Answer) -> dict[str, Any]:
    decision: dict[str, Any] = {"type": answer.type}
    if answer.type == "edit":
        decision["edited_action"] = {"name": call.tool, "args": dict(answer.args or {})}
    elif answer.type == "respond" or (answer.type == "reject" and answer.message):
        decision["message"] = answer.message
    return decision


def _own(kind: RunType, interrupt_id: str, position: int, request: Mapping[str, Any], call_id: str, cancels: int) -> AskedCall:
    """By the gate as it is declared now: what was asked under another one has another digest."""
    name, args = str(request["name"]), request["args"]
    tool = kind.tool(name)
    gate = tool.gate if tool else None
    return AskedCall(
        interrupt_id=interrupt_id,
        position=position,
        call_id=call_id,
        tool=name,
        args=args,
        digest=call_digest(name, args, gate, type_version=kind.version, cancels=cancels) if gate else "",
        description=gate.description if gate else "",
        allowed=gate.allowed if gate else (),
    )


def _foreign(
    kind: RunType,
    interrupt_id: str,
    position: int,
    request: Mapping[str, Any],
    allowed: tuple[str, ...],
    call_id: str,
    cancels: int,
) -> AskedCall:
    tool = str(request["name"])
    return AskedCall(
        interrupt_id=interrupt_id,
        position=position,
        call_id=call_id,
        tool=tool,
        args=request["args"],
        digest=call_digest(tool, request["args"], Gate(allowed=allowed), type_version=kind.version, cancels=cancels),
        description=str(request.get("description") or ""),
        allowed=allowed,
    )


def _is_request(request: Any) -> bool:
    return isinstance(request, Mapping) and isinstance(request.get("name"), str) and isinstance(request.get("args"), Mapping)


def _is_allowed(call: GatedCall, decision: Any) -> bool:
    return isinstance(decision, Mapping) and decision.get("type") in call.gate.allowed


def _allowed_of(configs: Sequence[Mapping[str, Any]], position: int, name: str, count: int) -> tuple[str, ...]:
    """LangChain writes one configuration for each request, in order; where there are others, by name."""
    own = configs[position] if len(configs) == count else next((one for one in configs if one.get("action_name") == name), {})
    return tuple(word for word in own.get("allowed_decisions", ()) if word in DECISIONS) or DECISIONS


def _allowed_by(schema: Any) -> tuple[str, ...]:
    """The decisions that a response schema takes: each is an object whose `type` is one word."""
    found = set(_types_in(schema, schema if isinstance(schema, Mapping) else {}))
    return tuple(word for word in DECISIONS if word in found) or DECISIONS


def _types_in(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    if isinstance(ref := schema.get("$ref"), str):
        yield from _types_in(root.get("$defs", {}).get(ref.rpartition("/")[2]), root)
    for word in ("oneOf", "anyOf"):
        for member in schema.get(word, ()):
            yield from _types_in(member, root)
    named = schema.get("properties", {}).get("type", {})
    if isinstance(const := named.get("const"), str):
        yield const


def _other() -> str:
    return "the graph stopped to ask something that is no call of a tool; a run can only ask whether a call may be made"


@lru_cache(maxsize=256)
def _condition(text: str) -> Expression:
    return Expression(text, names=["args"])
