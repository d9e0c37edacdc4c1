"""One agent's trajectory as a file: who may take it out, that it is whole, and that it explains itself weeks later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from actions.records import NewEntry
from actions.replay import FORMAT
from actions.tool_rules import NO_RULES
from console.models import Decision, Inquiry, StoredVerdict
from console.services.correct import CorrectionRequest, correct_end
from console.services.decide import DecisionRequest, decide
from console.services.observe import Observer
from console.services.policies import save_policy
from console.services.replay import begin_replay
from console.stores import console_chain, get_store
from tests.console.conftest import Api, Cast
from tests.console.test_commands import run
from tests.console.test_services_observe import a_lease
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter, time_text

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators"),
]
PATH = "/agents/main/m-1/replay/"
API = "/api/v1/agents/main/m-1/replay"


@pytest.fixture
def aud(person: Cast) -> User:
    return person("aud", "auditor")


def taken_out(by: User, path: str = PATH) -> list[dict[str, Any]]:
    """The lines of the file as the button hands them out."""
    return [json.loads(line) for line in b"".join(browser(by).post(path)).decode().splitlines()]


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


@pytest.fixture
def story(records: RecordWriter, ana: User, bea: User) -> None:
    """A look-up that its process ended; a payment in doubt, asked about and decided wrongly, then corrected; a mail of the next process."""
    watcher = Observer("main")
    watcher.observe([a_lease("pod-a:1:aaaa", 3, agent="m-1")])
    watcher.observe([a_lease("pod-b:2:bbbb", 5, agent="m-1", at_s=90, ends_s=150)])
    records.turn("m-1", 1, "Pay ACME, and tell Anna", at=time_text(0))
    records.action("m-1", 1, tool="find_order", cls="pure", status="done", args={"order": 881}, result="120.00 EUR")
    ref = records.action("m-1", 2, tool="create_payment", args={"amount": 120.00, "to": "ACME"}, started_at=time_text(2))
    inquiry = Inquiry.objects.create(store="main", agent="m-1", seq=2, tool="create_payment")
    said = {"resolver": "payments", "version": 4, "policy_version": 1, "claim": "c", "asked_at": timezone.now()}
    verdict = StoredVerdict.objects.create(
        inquiry=inquiry,
        outcome="unknown",
        grade="weak",
        resolution="one of that amount",
        evidence='{"matched_ids": ["py_1"]}',
        **said,
    )
    why = {"evidence_id": verdict.evidence_id, "reason": "that payment is this one", "result": "py_1"}
    decide(ref, DecisionRequest(outcome="done", decision_id="story-decision", **why), by=ana)
    wrong = CorrectionRequest(outcome="failed", reason="py_1 was another order's", correction_id="story-correction")
    correct_end(ref, wrong, by=bea)
    records.working_state("m-1", version=1, goal="Pay ACME")
    records.action("m-1", 3, tool="send_email", started_at=time_text(9e6))


def test_the_file_alone_tells_weeks_later_what_was_called_what_became_of_it_and_who_said_so(story: None, aud: User) -> None:
    lines = taken_out(aud)

    header, *body, last = lines
    calls = {line["seq"]: line for line in of_kind(body, "call")}
    # what was called, in what order, with what key, and what happened to it
    assert [(seq, call["tool"], call["class"], call["outcome"]) for seq, call in calls.items()] == [
        (1, "find_order", "pure", "done"),
        (2, "create_payment", "external", "done"),
        (3, "send_email", "external", None),
    ]
    assert len({call["key"] for call in calls.values()}) == 3
    assert calls[2]["arguments"] == {"amount": 120.0, "to": "ACME"}
    assert (calls[1]["result"], calls[1]["latency_ms"], calls[1]["known_by"], calls[1]["cost"]) == (
        "120.00 EUR",
        500,
        "agent",
        None,
    )
    # whose word it is, and on what evidence
    assert (calls[2]["known_by"], calls[2]["latency_ms"]) == ("operator", None)
    assert calls[2]["settled_after_ms"] > 0
    entries = {line["number"]: line for line in of_kind(body, "entry")}
    told = entries[calls[2]["entry"]]
    assert (told["actor"], told["outcome"], told["reason"]) == ("operator ana", "done", "that payment is this one")
    evidence = next(line for line in of_kind(body, "verdict") if line["evidence_id"] == told["evidence_id"])
    assert (evidence["resolver"], evidence["outcome"], evidence["grade"]) == ("payments", "unknown", "weak")
    assert evidence["evidence"] == {"matched_ids": ["py_1"]}
    # that it was wrong, who found out, and which turns told the agent
    corrected = next(line for line in entries.values() if line["corrects"] == told["number"])
    assert (corrected["entry_kind"], corrected["actor"], corrected["outcome"]) == ("corrected", "operator bea", "failed")
    turns = {line["seq"]: line for line in of_kind(body, "turn")}
    assert [turn["entry"] for turn in turns.values()] == [None, told["number"], corrected["number"]]
    assert "correction" in turns[corrected["turn"]]["content"]
    # who had it, and why the first did not any more
    assert [(line["holder"], line["takes_over_from"], line["why"]) for line in of_kind(body, "holder")] == [
        ("pod-a:1:aaaa", None, "first"),
        ("pod-b:2:bbbb", "pod-a:1:aaaa", "expired"),
    ]
    # and that nothing is missing
    assert [line["n"] for line in body] == list(range(1, len(body) + 1))
    assert (header["format"], header["store"], header["agent"], header["by"]) == (FORMAT, "main", "m-1", "operator aud")
    assert (header["is_cut"], header["left_out"]) == (False, [])
    assert header["counts"] == {"holder": 2, "call": 3, "state": 1, "verdict": 1, "turn": 3, "entry": 3}
    assert header["counts"] == {kind: count for kind, count in last["counts"].items() if kind != "end"}
    assert (last["kind"], last["lines"]) == ("replay_end", len(body))
    order = [(line["kind"], line.get("seq")) for line in body]
    settled = order.index(("end", 2))
    assert order[settled : settled + 3] == [("end", 2), ("turn", 2), ("entry", 2)]  # of one moment, in this order
    assert order[-1] == ("call", 3)


def test_it_is_whole_however_much_there_is_and_what_comes_meanwhile_is_not_in_it(memory: RecordWriter) -> None:
    for seq in range(1, 451):
        memory.turn("m-1", seq, f"turn {seq}", at=time_text(seq))
        memory.action(
            "m-1", seq, status="done", args="z" * 9_000 if seq == 300 else {"to": str(seq)}, started_at=time_text(seq + 0.5)
        )
        memory.working_state("m-1", version=seq, goal=f"goal {seq}")
        get_store("main").append_entry(NewEntry(kind="refused", actor="operator ana", agent="m-1", seq=seq))
    get_store("main").append_entry(NewEntry(kind="refused", actor="operator ana", agent="m-2", seq=1))

    made = begin_replay(get_store("main"), "m-1", by="operator aud", rules=NO_RULES)
    memory.turn("m-1", 451, "meanwhile", at=time_text(451))
    memory.action("m-1", 451, started_at=time_text(451))
    lines = [json.loads(line) for line in made.pieces()]

    for kind, number in (("turn", "seq"), ("call", "seq"), ("end", "seq"), ("state", "version"), ("entry", "number")):
        assert [line[number] for line in of_kind(lines, kind)] == list(range(1, 451)), kind
    assert of_kind(lines, "call")[299]["arguments_text"] == "z" * 9_000  # whole, from its output
    assert [line["is_newest"] for line in of_kind(lines, "state")].count(True) == 1


def test_what_hides_on_the_screen_hides_in_the_file(memory: RecordWriter, aud: User, amy: User, ana: User) -> None:
    save_policy("pay", {"redacted": "iban"}, seen_version=0, by=amy)
    ref = memory.action("m-1", 1, tool="pay", args={"iban": "DE02120300000000202051", "password": "hunter22", "n": 1})
    memory.action("m-1", 2, tool="pay", status="done", result='{"iban": "DE02120300000000202051", "ok": true}')
    memory.turn("m-1", 1, '{"iban": "DE02120300000000202051"}', role="tool", name="pay")
    memory.action("m-1", 3, tool="other", args='{"a":1,"a":2}\x1b[2J')
    memory.put("m-1:turn:2", {"record": "turn", "recall_agent": "m-1", "body": "{"})
    decide(ref, DecisionRequest(outcome="done", reason="token=sk_live_abcdefgh12345678", decision_id="d-12345678"), by=ana)

    response = browser(aud).post(PATH)
    whole = b"".join(response).decode()

    assert "DE0212" not in whole
    assert "hunter22" not in whole
    assert "sk_live" not in whole
    assert whole.isascii()
    assert all(char >= " " or char == "\n" for char in whole)
    calls = of_kind([json.loads(line) for line in whole.splitlines()], "call")
    assert calls[0]["arguments"]["n"] == 1
    assert (calls[2]["arguments"], calls[2]["arguments_text"][:7]) == (None, '{"a":1,')
    assert '"unreadable": ' in whole
    assert response["Content-Disposition"].startswith('attachment; filename="settle-replay-m-1-')
    assert response["X-Content-Type-Options"] == "nosniff"


def test_a_decision_that_stands_in_no_entry_is_told_all_the_same(memory: RecordWriter, ana: User, aud: User) -> None:
    memory.lease("m-1", state="live")
    decide(memory.action("m-1", 1), DecisionRequest(outcome="failed", reason="not there", decision_id="d-12345678"), by=ana)
    Decision.objects.create(
        **{
            field: getattr(Decision.objects.get(), field)
            for field in (
                "store",
                "agent",
                "seq",
                "tool",
                "outcome",
                "reason",
                "by",
                "username",
                "actor",
                "claim",
                "content_digest",
            )
        },
        decision_id="d-lost",
        state="refused",
    )

    lines = taken_out(aud)

    assert [line["entry_kind"] for line in of_kind(lines, "entry")] == ["waiting"]
    assert [(line["decision_id"], line["state"], line["actor"]) for line in of_kind(lines, "decision")] == [
        ("d-lost", "refused", "operator ana")
    ]


# --- who may, and what it leaves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "status"),
    [
        (["viewer"], 403),
        (["operator"], 403),
        (["admin"], 403),
        ([("auditor", "main", "send_email")], 403),
        ([("auditor", "other", "")], 404),
        ([("auditor", "main", "")], 200),
    ],
)
def test_it_takes_a_right_on_every_tool_of_the_store(
    memory: RecordWriter, person: Cast, api: Callable[[User], Api], settings: Any, roles: list[Any], status: int
) -> None:
    memory.action("m-1", 1)
    who = person("eve", *roles)
    caller = api(who)
    answer = caller.client.get(API, headers=caller.headers)
    settings.ROOT_URLCONF = "console.urls"

    page = browser(who).get("/agents/main/m-1/").content.decode()
    assert (answer.status_code, browser(who).post(PATH).status_code) == (status, status)
    assert ("Take out its replay" in text_of(page)) is (status == 200)
    assert bool(console_chain().list_entries(limit=1, kinds={"exported"})) is (status == 200)


def test_the_api_hands_out_the_same_says_so_in_the_history_and_knows_no_other_agent(
    memory: RecordWriter, aud: User, api: Callable[[User], Api]
) -> None:
    memory.action("m-1", 1)
    caller = api(aud)

    response = caller.client.get(API, headers=caller.headers)
    lines = [json.loads(line) for line in b"".join(response).decode().splitlines()]

    assert response["Content-Type"] == "application/x-ndjson"
    assert [line["kind"] for line in lines] == ["replay", "call", "replay_end"]
    entry = console_chain().list_entries(limit=1, kinds={"exported"})[0]
    assert (entry.kind, entry.actor, entry.agent) == ("exported", "operator aud", "m-1")
    assert entry.detail["filter"] == {"store": "main", "agent": "m-1"}
    assert caller.get("agents/main/nobody/replay")[0] == 404
    assert caller.get("agents/nowhere/m-1/replay")[0] == 404
    assert caller.get("agents/main/m-1/replay", limit=1)[0] == 422
    assert len(console_chain().list_entries(limit=5, kinds={"exported"})) == 1


def test_a_get_of_the_pages_address_takes_nothing_out(memory: RecordWriter, aud: User) -> None:
    memory.action("m-1", 1)

    response = browser(aud).get(PATH)

    assert (response.status_code, response["Location"]) == (302, "/agents/main/m-1/")
    assert console_chain().list_entries(limit=1, kinds={"exported"}) == ()


def test_the_command_writes_the_same_file_and_never_over_another(story: None, aud: User, tmp_path: Path) -> None:
    path = tmp_path / "m-1.jsonl"

    said = run("export_replay", "main", "m-1", "--output", str(path), "--user", "aud")
    again = run("export_replay", "main", "m-1", "--output", str(path))

    lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert said.out.strip() == f"wrote {len(lines) - 2} lines about agent m-1 to {path}"
    assert lines[1:-1] == taken_out(aud)[1:-1]
    assert (again.code, again.err) == (1, f"{path} is there already; --force writes over it")
    assert run("export_replay", "main", "m-1", "--output", str(path), "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere", "m-1"], 2),
        (["main", "nobody"], 1),
        (["main", "m-1", "--user", "ben"], 1),
        (["main", "m-1", "--user", "nobody"], 2),
    ],
)
def test_a_command_that_cannot_leaves_no_file_and_no_entry(
    memory: RecordWriter, ben: User, tmp_path: Path, arguments: list[str], code: int
) -> None:
    memory.action("m-1", 1)

    said = run("export_replay", *arguments, "--output", str(tmp_path / "f"))

    assert (said.code, "\n" in said.err.strip()) == (code, False)
    assert list(tmp_path.iterdir()) == []
    assert console_chain().list_entries(limit=1, kinds={"exported"}) == ()
