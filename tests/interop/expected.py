"""What the fixture's rows say, written down by hand: the codec has to come to the same, field by field."""

from __future__ import annotations

from actions.records import Action, ActionClass, ActionState, ActionStatus, Output, Pointer, Turn, WorkingState
from actions.times import parse_rfc3339

S7, S8, S9, BILLING, LIVE = "support-agent-7", "support-agent-8", "support-agent-9", "billing-agent-1", "live-agent-2"

# A value over 8000 bytes: its record keeps 400 bytes, its output the whole.
LONG_EMAIL = '{"body": "' + "long text " * 900 + '", "to": "bob@example.com"}'
LEDGER = "row;" * 2500
LINES = "line of output\n" * 700
PURE = "interrupted; pure, not run again"
NO_RESOLVER = "interrupted; no resolver to check whether it happened"
RE_RUN = "re-run with the same key after a crash"


def shortened(whole: str, ref: str) -> str:
    return f"{whole[:400]}...\n[... {(len(whole.encode()) + 3) // 4} more tokens stored as output {ref}]"


def _day(time: str) -> int:
    return parse_rfc3339(f"2026-11-29T{time}Z")


def _action(
    agent: str, seq: int, call: str, key: str, status: str, times: str, *, args: str = "", written: int = 1, **fields: str
) -> Action:
    action_class, tool = call.split()
    began, _, ended = times.partition(" ")
    return Action(
        agent=agent,
        seq=seq,
        tool=tool,
        action_class=ActionClass(action_class),
        key=key,
        args=args,
        status=ActionStatus(status),
        epoch=1,
        written_epoch=written,
        started_at=_day(began),
        ended_at=_day(ended) if ended else None,
        **fields,
    )


ACTIONS = (
    _action(
        BILLING, 1, "pure export_ledger", "cb0d8cf964b63fc672c0d21534d3419c", "done", "18:29:09.308630597 18:29:09.311322335",
        args='{"month": "2026-11"}', result=shortened(LEDGER, "act-1-result"), result_ref="act-1-result",
    ),
    _action(
        BILLING, 2, "external charge_card", "33bbf835db506f249fed7ff70e55e4af", "failed", "18:29:09.312367594 18:29:09.313841307",
        args='{"amount": 5}', error="CardDeclined: insufficient funds",
    ),
    _action(
        BILLING, 3, "external post_message", "adc16dac005898ba6a92ec54c7f39d4e", "unknown", "18:29:09.314941727",
        args='{"channel": "ops"}', resolution="could not tell whether it happened",
    ),
    _action(
        BILLING, 4, "idempotent draft_report", "b3b31eb5d861c548c03c13b296ebed82", "abandoned",
        "18:29:09.317356585 18:29:09.318602792", resolution="not needed any more",
    ),
    _action(
        LIVE, 1, "external deploy", "4cb30ad5b498faae7181ae5f2319bdb5", "started", "18:29:12.4355534", args='{"env": "staging"}',
    ),
    _action(
        S7, 1, "pure lookup_order", "40131bb73864ba535bd1b34f422bbf49", "done", "18:29:06.212958175 18:29:06.215964529",
        args='{"order": 881}', result='{"total": 42}',
    ),
    _action(
        S7, 2, "pure lookup_customer", "0a0ee82cae1f1e56658f4181c7e42d62", "started", "18:29:06.216980234",
        args='{"order": 881}',
    ),
    _action(
        S7, 3, "idempotent save_invoice", "4b884dd608a834ca239b45f8ae121edb", "started", "18:29:06.217968839",
        args='{"invoice": "inv-9", "total": 42}',
    ),
    _action(
        S7, 4, "external send_email", "214818cf26e0741859681c7b237f0bba", "started", "18:29:06.219072333",
        args='{"subject": "Refund <881> & more", "to": "ann@example.com"}',
    ),
    _action(
        S7, 5, "external send_email", "ccc74abc3e2d1bfa7d69bf457dda0cdb", "started", "18:29:06.220226103",
        args=shortened(LONG_EMAIL, "act-5-args"), args_ref="act-5-args",
    ),
    _action(
        S8, 1, "pure read_subscription", "c7bcc2a36d319642733ef1a8eef45cc0", "abandoned", "18:29:06.24858182 18:29:09.2758269",
        args='{"id": 12}', written=2, resolution=PURE,
    ),
    _action(
        S8, 2, "idempotent save_note", "f29303e5daa97cb1e6f670d18e57df61", "started", "18:29:06.249838416",
        args='{"id": 12}',
    ),
    _action(
        S8, 3, "external cancel_subscription", "cedb866fb2a2eb29da4b201355654c7e", "unknown", "18:29:06.251189994",
        args='{"id": 12}', written=2, resolution=NO_RESOLVER,
    ),
    _action(
        S9, 1, "external send_email", "0070fe14e8c4948f9725851b0e72a3ac", "done", "18:29:09.356562387 18:29:12.395551082",
        args='{"to": "cy@example.com"}', written=2, result="message-id 77", resolution="found in the sent folder",
    ),
    _action(
        S9, 2, "idempotent save_report", "e37a5df5316dc6d7099ecb53c2f6c5a2", "failed", "18:29:09.358158121 18:29:12.39888406",
        args='{"r": 1}', written=2, error="disk full", resolution=RE_RUN,
    ),
    _action(
        S9, 3, "external page_oncall", "6ebcc29fe4e3a3a55c16b8ea0113a4ee", "unknown", "18:29:09.359730311",
        args='{"who": "dee"}', written=2, resolution=NO_RESOLVER,
    ),
)  # fmt: skip


def _turn(agent: str, seq: int, role: str, content: str, at: str, **fields: str) -> Turn:
    return Turn(agent=agent, seq=seq, role=role, content=content, at=_day(at), **fields)


TURNS = (
    _turn(BILLING, 1, "system", "You are a billing agent.", "18:29:09.319665486"),
    _turn(
        BILLING, 2, "tool", shortened(LINES, "out-2-1"), "18:29:09.321195763",
        name="export_ledger", output_ref="out-2-1", message_id="tool-call:c2", brief="exported 700 lines",
    ),
    _turn(LIVE, 1, "user", "Deploy", "18:29:12.431659781"),
    _turn(S7, 1, "user", "Please refund order 881", "18:29:06.210698797", message_id="m1"),
    _turn(
        S7, 2, "assistant", "I will look it up.\nlookup_order(order=881)", "18:29:06.211870033",
        message_id="m2", brief="lookup_order(order=881)",
    ),
    _turn(S7, 3, "tool", '{"total": 42}', "18:29:06.214013058", name="lookup_order", message_id="tool-call:c1"),
    _turn(S8, 1, "user", "Cancel subscription 12", "18:29:06.24658374"),
    _turn(S9, 1, "user", "Email the report", "18:29:09.354102508"),
    _turn(
        S9, 2, "tool", "message-id 77", "18:29:12.396848024",
        name="send_email", brief="(settled after a crash: done; found in the sent folder) message-id 77",
    ),
    _turn(
        S9, 3, "tool", "failed: disk full", "18:29:12.400198688",
        name="save_report", brief=f"(settled after a crash: failed; {RE_RUN}) failed: disk full",
    ),
)  # fmt: skip

OUTPUTS = (
    Output(
        agent=BILLING, ref="act-1-result", tool="export_ledger", content=LEDGER, summary=LEDGER[:200] + "...", tokens=2500,
        at=_day("18:29:09.310177769"),
    ),
    Output(
        agent=BILLING, ref="out-2-1", tool="export_ledger", content=LINES, summary=LINES[:200] + "...", tokens=2625,
        at=_day("18:29:09.32120027"),
    ),
    Output(
        agent=BILLING, ref="raw-1", tool="export_ledger", content="raw data", summary="a stored output", tokens=2,
        at=_day("18:29:09.324171196"),
    ),
    Output(
        agent=S7, ref="act-5-args", tool="send_email", content=LONG_EMAIL, summary=LONG_EMAIL[:200] + "...", tokens=2260,
        at=_day("18:29:06.220232913"),
    ),
)  # fmt: skip

_FIRST = WorkingState(
    agent=BILLING,
    version=1,
    goal="Reconcile November",
    plan=("export", "compare"),
    decisions=("use the EU ledger",),
    open_questions=("which ledger?",),
    notes="n",
    step=3,
    updated_at=_day("18:29:09.303602187"),
)
_SECOND = WorkingState(
    agent=BILLING,
    version=2,
    goal="Reconcile November",
    plan=("export", "compare"),
    progress="exported",
    decisions=("use the EU ledger",),
    open_questions=("which ledger?",),
    notes="n",
    step=3,
    last_milestone="export done",
    updated_at=_day("18:29:09.306611545"),
)
_REFUND = WorkingState(
    agent=S7,
    version=1,
    goal="Refund order 881",
    plan=("look up the order", "refund it", "tell the customer"),
    focus="refund",
    updated_at=_day("18:29:06.203921756"),
)
WORKING_STATES = {
    f"{BILLING}:ws:1": _FIRST,
    f"{BILLING}:ws:2": _SECOND,
    f"{BILLING}:ws:head": _SECOND,
    f"{S7}:ws:1": _REFUND,
    f"{S7}:ws:head": _REFUND,
}

POINTERS = {
    f"{BILLING}:ptr:ticket": None,  # removed
    f"{BILLING}:ptr:wip": Pointer(
        agent=BILLING,
        name="wip",
        type="git_ref",
        fields={"branch": "agent/wip", "repo": "github.com/example/billing"},
        note="work branch",
        at=_day("18:29:09.325474778"),
    ),
}

OPEN_STATES = {
    (BILLING, 3): ActionState.UNKNOWN,
    (LIVE, 1): ActionState.IN_FLIGHT,
    (S7, 2): ActionState.INTERRUPTED,
    (S7, 3): ActionState.INTERRUPTED,
    (S7, 4): ActionState.INTERRUPTED,
    (S7, 5): ActionState.INTERRUPTED,
    (S8, 2): ActionState.INTERRUPTED,
    (S8, 3): ActionState.UNKNOWN,
    (S9, 3): ActionState.UNKNOWN,
}
