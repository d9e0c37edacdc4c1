"""Ids, numbers and names that no address can express, in stores and in histories: every page shows them, those without a link."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from actions.records import ActionRef, NewEntry
from console import stores
from console.addresses import action_address, agent_address, entry_address, parse_ref
from console.models import Decision
from console.services.decide import DecisionRequest, decide
from tests.console.view_helpers import BACK, HTMX, browser, filled, path_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)

ODD_AGENTS = [
    "sp ace",
    "ä",
    "q'uote",
    'q"uote',
    "a%2Fb",
    "a/b",
    ".",
    "..",
    "x" * 129,
    "<b>",
    "a\u202eb",
    "a\nb",
    "?",
    "#",
    "a\\b",
    "{% url %}",
]
ODD_NUMBERS = [10**18, 2**63 - 1]
BEGAN = "2026-11-29T18:29:06Z"
TOOLS = ["send_email", "", " ", "\u200b", "<i>"]


def everywhere(client: Client) -> list[str]:
    """Every page and piece that lists actions or entries, and each page that they link to."""
    shown = []
    queues = ["/", "/?state=any&class=any", "/?state=any&class=any&agent=sp+ace"]
    for path in [*queues, "/history/", "/stores/"]:
        for headers in ({}, HTMX, BACK):
            response = client.get(path, headers=headers)
            assert response.status_code == 200, path
            shown.append(response.content.decode())
    for href in sorted({href for html in shown for href in re.findall(r'href="(/(?:actions|history|agents)/[^"]+)"', html)}):
        for headers in ({}, HTMX):
            response = client.get(href, headers=headers)
            assert response.status_code == 200, href
            shown.append(response.content.decode())
    return shown


@pytest.mark.parametrize("agent", ODD_AGENTS)
def test_an_agent_that_no_address_names_is_shown_everywhere(memory: RecordWriter, ana: User, agent: str) -> None:
    ref = memory.action(agent, 1)
    memory.action("plain", 1)
    decide(ref, DecisionRequest(outcome="done", reason="seen at the bank", decision_id=f"d-{uuid4()}"), by=ana)
    memory.action(agent, 2)
    assert Decision.objects.get().state == "written"

    pages = everywhere(browser(ana))

    assert any("seen at the bank" in html for html in pages)
    assert not any(f'href="/actions/main/{agent}/' in html for html in pages)


@pytest.mark.parametrize("seq", ODD_NUMBERS)
def test_a_number_that_no_address_names_is_shown_everywhere(memory: RecordWriter, ana: User, seq: int) -> None:
    decide(
        memory.action("m-1", seq, started_at=BEGAN),
        DecisionRequest(outcome="failed", reason="no trace", decision_id=f"d-{uuid4()}"),
        by=ana,
    )
    memory.action("m-1", seq - 1, started_at=BEGAN)
    memory.turn("m-1", seq, at=BEGAN)
    client = browser(ana)

    everywhere(client)

    for headers in ({}, HTMX):
        page = client.get("/agents/main/m-1/", headers=headers)
        assert page.status_code == 200
        assert str(seq) in page.content.decode()


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_whatever_its_name_is_shown_everywhere(memory: RecordWriter, ana: User, tool: str) -> None:
    ref = memory.action("m-1", 1, tool=tool)
    decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id=f"d-{uuid4()}"), by=ana)
    memory.action("m-1", 2, tool=tool)
    client = browser(ana)
    everywhere(client)
    for path in ("/agents/main/m-1/", path_of(ref), path_of(ref, "status/"), path_of(ref, "arguments/"), path_of(ref, "result/")):
        for headers in ({}, HTMX):
            assert client.get(path, headers=headers).status_code == 200, path


@pytest.mark.parametrize(
    "entry",
    [
        NewEntry(kind="observed", actor="", agent="", seq=None, tool=""),
        NewEntry(kind="", actor="x" * 500, agent="a\x00b", seq=0),
        NewEntry(kind="odd", actor="a\ud800", agent="m-1", seq=-5, outcome="odd outcome"),
        NewEntry(kind="settled", actor="a", agent="m-1", seq=10**30, decision_id="\u202e"),
    ],
    ids=["empty", "nul", "half a pair", "huge"],
)
def test_an_entry_whatever_it_says_is_shown(memory: RecordWriter, ana: User, entry: NewEntry) -> None:
    stores.get_store("main").append_entry(entry)
    everywhere(browser(ana))
    assert browser(ana).get("/history/main/1/").status_code == 200


@pytest.mark.parametrize("headers", [{}, HTMX], ids=["page", "piece"])
def test_an_answer_whose_next_action_has_no_page_is_drawn(memory: RecordWriter, ana: User, headers: dict[str, str]) -> None:
    ref = memory.action("m-1", 1)
    memory.action("sp ace", 1)
    client = browser(ana)
    answer = client.post(path_of(ref, "decision/"), filled(client, ref), headers=headers)
    assert answer.status_code == 201
    assert 'href=""' not in answer.content.decode()


def test_a_withdrawal_is_answered_though_its_store_is_gone(memory: RecordWriter, ana: User, settings: object) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id=f"d-{uuid4()}"), by=ana)
    settings.ACTION_STORES = {"elsewhere": "memory:"}  # type: ignore[attr-defined]
    answer = browser(ana).post(path_of(ref, "decision/withdraw/"))
    assert (answer.status_code, Decision.objects.get().state) == (200, "withdrawn")
    assert "withdrawn" in answer.content.decode()


@pytest.mark.parametrize("agent", ODD_AGENTS)
def test_there_is_no_address_where_none_would_lead_back(agent: str) -> None:
    assert action_address("main", agent, 1) == agent_address("main", agent) == ""
    assert parse_ref(f"main/{agent}/1") is None


@pytest.mark.parametrize("number", [None, 0, -1, 10**18, 10**5000], ids=["none", "zero", "below", "19 digits", "5001 digits"])
def test_there_is_no_address_of_such_a_number(number: int | None) -> None:
    assert action_address("main", "m-1", number) == entry_address("main", number) == ""


def test_what_has_an_address_is_found_by_it() -> None:
    assert action_address("main", "m-1.a_b", 10**18 - 1) == "/actions/main/m-1.a_b/999999999999999999/"
    assert action_address("main", "m-1", 1, view="decision") == "/actions/main/m-1/1/decision/"
    assert parse_ref("main/m-1/7") == ActionRef("main", "m-1", 7)
    assert agent_address("main", "...") == "/agents/main/.../"
    assert [parse_ref(text) for text in ("", "main/m-1", "main/m-1/0", "main/m-1/x", "MAIN/m-1/1", "main/m-1/1/")] == [None] * 6
