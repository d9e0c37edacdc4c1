"""The next briefing on a page: the words are proved in tests/interop/test_briefing.py; here, who reads it, and what is hidden."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from console.services.decide import DecisionRequest, decide
from console.services.policies import save_policy
from tests.console.view_helpers import BACK, HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PATH = "/agents/main/m-1/briefing/"
SECRET = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"


def test_it_is_what_the_agent_reads_and_a_decision_of_ours_is_in_it(records: RecordWriter, ana: User) -> None:
    ref = records.action("m-1", 1)
    records.action("m-1", 2, tool="open_ticket", args={"title": "Safari"})
    records.working_state("m-1", goal="Tell Anna")
    decide(ref, DecisionRequest(outcome="done", reason="found it there", decision_id="test-12345678"), by=ana)

    said = text_of(browser(ana).get(PATH).content.decode())

    for words in (
        "You are agent m-1, resuming after your previous process stopped.",
        "Goal: Tell Anna",
        '1. open_ticket({"title": "Safari"}) [external, key ',
        "[tool send_email #1] (settled after a crash: done; operator ana: found it there) done",
    ):
        assert words in said
    assert "send_email({" not in said
    assert "Secrets are hidden here" not in said


def test_secrets_are_hidden_and_that_is_said(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1, f"my key is {SECRET}")
    memory.action("m-1", 1, args={"to": "a@example.com", "password": "hunter2hunter2"})
    memory.working_state("m-1", goal="Go", notes=f"use {SECRET}")
    memory.pointer("m-1", "p", fields={"url": f"https://x/?api_key={SECRET}", "password": "hunter2hunter2"}, note=SECRET)
    memory.output("m-1", "r-1", f"{SECRET} and more")

    html = browser(ana).get(PATH).content.decode()

    assert SECRET not in html
    assert "hunter2" not in html
    assert "Secrets are hidden here" in html


def test_what_a_tools_policy_hides_is_hidden_here_too(memory: RecordWriter, ana: User, amy: User) -> None:
    args = {"who": {"iban": "DE02-1203-0000", "name": "ACME"}, "iban": "DE03-4405-0000"}
    memory.action("m-1", 1, tool="sync", args=args)
    memory.action("m-1", 2, tool="open_ticket", args={"title": "about DE02"})
    save_policy("sync", {"redacted": "IBAN"}, seen_version=0, by=amy)

    html = browser(ana).get(PATH).content.decode()

    assert "DE02-" not in html
    assert "DE03-" not in html
    assert '"name":"ACME"' in text_of(html).replace(": ", ":")
    assert "about DE02" in html
    assert "Secrets are hidden here" in html


def test_hidden_characters_are_named_and_markup_is_text(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1, "<img src=x onerror=alert(1)>\u202egnp")

    html = browser(ana).get(PATH).content.decode()

    assert "<img" not in html
    assert "\u202e" not in html
    assert "U+202E" in html


def test_a_record_that_cannot_be_decoded_is_told_and_takes_nothing_down(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1, "still there")
    memory.turn("m-1", 2, body="{")

    said = text_of(browser(ana).get(PATH).content.decode())

    assert "Recall will probably refuse to start this agent." in said
    assert "m-1:turn:2" in said
    assert "still there" in said


def test_under_a_live_lease_it_says_whose_briefing_it_would_be(memory: RecordWriter, ana: User) -> None:
    memory.turn("m-1", 1)
    memory.lease("m-1", state="live")

    assert "A process has this agent now" in text_of(browser(ana).get(PATH).content.decode())


def test_only_those_who_may_see_every_tool_of_its_store_read_it(
    memory: RecordWriter, ana: User, ben: User, dot: User, cyd: User
) -> None:
    memory.turn("m-1", 1)
    client = browser(ana)

    assert browser(ben).get(PATH).status_code == 200
    assert browser(dot).get(PATH).status_code == 403
    assert browser(cyd).get(PATH).status_code == 403
    assert client.get("/agents/main/nobody/briefing/").status_code == 404
    assert client.get("/agents/elsewhere/m-1/briefing/").status_code == 404
    assert client.post(PATH).status_code == 405
    assert "<html" not in client.get(PATH, headers=HTMX).content.decode()
    assert "<html" in client.get(PATH, headers=BACK).content.decode()
