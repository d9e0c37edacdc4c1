"""Approvals on the screen: the section below the queue, the page of one, and the form that answers it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from console import run_types
from console.models import Approval, Run
from console.services.approvals import ProofNeeded
from console.services.approvals import answer as answer_it
from console.services.policies import save_policy
from tests.console.conftest import Cast
from tests.console.run_kinds import MODULE
from tests.console.runs import a_run, an_approval
from tests.console.view_helpers import HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("refunds", "quick_passwords")]
SECRET = "sk_live_" + "51H8abcdEFGHijklMNOP"


@pytest.fixture
def refunds(settings: Settings) -> Iterator[None]:
    settings.RUN_TYPES = (MODULE,)
    settings.RUN_STORE = "main"
    run_types._known = None
    yield
    run_types._known = None


@pytest.fixture
def run(memory: RecordWriter, ana: User) -> Run:
    return a_run("run-1", status="waiting_approval")


@pytest.fixture
def asked(run: Run) -> Approval:
    return an_approval(run)


def page_of(row: Approval) -> str:
    return f"/approvals/{row.approval_id}/"


def send(client: Client, row: Approval, decision: str, **said: str) -> Any:
    return client.post(page_of(row), {"decision": decision, "seen": row.digest, **said})


def now(row: Approval) -> Approval:
    row.refresh_from_db()
    return row


# --- the queue -------------------------------------------------------------------------------------------------------


def test_a_call_that_waits_stands_below_the_queue_and_never_in_it(asked: Approval, memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1)
    html = browser(ana).get("/").content.decode()

    doubt, _, section = html.partition('id="approvals"')
    said = text_of(section)
    assert "Payment of 1200.50 EUR to ACME" in said
    assert "started by ana" in said
    assert "yours to answer" in said
    assert "Payment of 1200.50 EUR" not in doubt
    assert page_of(asked) in section


@pytest.mark.parametrize("types", [(), (MODULE,)])
def test_nothing_that_waits_is_one_quiet_line_or_none_at_all(
    memory: RecordWriter, ana: User, settings: Settings, types: tuple[str, ...]
) -> None:
    settings.RUN_TYPES = types
    html = browser(ana).get("/").content.decode()

    start = html[html.index('<section class="proposals" id="approvals"') :].split(">", 1)[0]
    assert ("hidden" in start) is (not types)
    assert "No call waits for approval" in html


def test_who_may_see_nothing_of_a_tool_sees_no_approval_of_it(asked: Approval, dot: User, cyd: User) -> None:
    assert browser(dot).get(page_of(asked)).status_code == 404
    assert "Payment" not in browser(dot).get("/approvals/").content.decode()
    assert browser(cyd).get(page_of(asked)).status_code == 403


def test_the_section_costs_the_same_with_two_and_with_twenty(
    run: Run, ana: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    client = browser(ana)
    client.get("/approvals/")
    for count in (2, 18):
        for _ in range(count):
            an_approval(run)
        with django_assert_num_queries(5):
            client.get("/approvals/", headers=HTMX)


# --- one approval ----------------------------------------------------------------------------------------------------


def test_the_page_says_what_would_be_called_why_and_in_which_run(asked: Approval, memory: RecordWriter, ana: User) -> None:
    memory.working_state("run-1", goal="Refund order A-17", plan=["Pay"])
    memory.turn("run-1", 1, "The customer wrote twice")
    memory.action("run-1", 1, tool="look_up", cls="pure", status="done", args={"order": "A-17"}, result="ok")
    said = text_of(browser(ana).get(page_of(asked)).content.decode())

    for words in (
        "Payment of 1200.50 EUR to ACME",
        "args.amount &gt; 1000.0".replace("&gt;", ">"),
        "Large refunds are looked at",
    ):
        assert words in said
    for words in ("Refund order A-17", "The customer wrote twice", "Look up: order A-17", "silence is never consent"):
        assert words in said


def test_hidden_arguments_stay_hidden_everywhere(run: Run, ana: User, amy: User) -> None:
    save_policy("pay", {"redacted": "iban"}, seen_version=0, by=amy)
    row = an_approval(run, args={"order": "A-17", "amount": 1500, "iban": "DE4450", "api_key": SECRET})
    client = browser(ana)
    pages = [client.get(page_of(row)), client.get("/"), client.get("/runs/run-1/")]
    typed = {"order": "A-17", "amount": 900, "iban": "[redacted]", "api_key": "[redacted]"}
    pages.append(send(client, row, "edit", args=json.dumps(typed)))

    for page in pages:
        assert page.status_code == 200
        assert "DE4450" not in page.content.decode()
        assert SECRET not in page.content.decode()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("expired", "nobody agreed, and nobody refused"),
        ("void", "an answer would reach nobody"),
        ("approved", "called as it was asked"),
        ("rejected", "The customer was paid already"),
        ("responded", "The customer was paid already"),
    ],
)
def test_an_approval_that_is_over_is_drawn_and_offers_no_form(run: Run, ana: User, state: str, words: str) -> None:
    said = state in ("rejected", "responded")
    who = {"answered_by": "bea", "answered_at": timezone.now()} if state not in ("expired", "void") else {}
    row = an_approval(run, state=state, message="The customer was paid already" if said else "", **who)
    html = browser(ana).get(page_of(row)).content.decode()

    assert words in text_of(html)
    assert 'id="approval-form"' not in html


def test_its_piece_is_what_live_updates_fetch(asked: Approval, ana: User) -> None:
    client = browser(ana)
    piece = client.get(page_of(asked), headers=HTMX).content.decode()

    assert "<html" not in piece
    assert 'data-state="pending"' in piece
    assert client.get("/approvals/", headers=HTMX).content.decode().lstrip().startswith("<section")
    assert browser().get(page_of(asked)).status_code == 302


# --- answering -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "said", "state"),
    [
        ("approve", {}, "approved"),
        ("approve", {"message": "typed before I changed my mind"}, "approved"),
        ("reject", {"message": "Not this customer"}, "rejected"),
        ("reject", {}, "rejected"),
        ("respond", {"message": "Ask for the invoice first"}, "responded"),
    ],
)
def test_an_answer_is_kept_and_leads_to_the_page(
    asked: Approval, ana: User, decision: str, said: dict[str, str], state: str
) -> None:
    client = browser(ana)
    answer = send(client, asked, decision, **said)

    assert (answer.status_code, answer["Location"]) == (302, page_of(asked))
    assert (now(asked).state, asked.answered_by) == (state, "ana")
    assert asked.message == (said.get("message", "") if decision != "approve" else "")
    assert send(client, asked, decision, **said).status_code == 302  # the same button twice


def test_an_edit_is_shown_as_a_difference_before_anything_is_let_through(asked: Approval, ana: User) -> None:
    client = browser(ana)
    typed = json.dumps({"order": "A-17", "amount": 900.0, "to": "ACME"})
    shown = send(client, asked, "edit", args=typed)
    said = text_of(shown.content.decode())

    assert shown.status_code == 200
    assert now(asked).state == "pending"
    assert "1200.5" in said
    assert "900.0" in said
    assert "left out" in said
    again = send(client, asked, "edit", args=typed, change="1").content.decode()
    assert 'id="approval-form"' in again
    assert "&quot;amount&quot;: 900.0" in again
    assert now(asked).state == "pending"


def test_what_the_tool_does_not_take_is_said_before_anybody_looks_at_changes(asked: Approval, ana: User) -> None:
    typed = json.dumps({"amount": "lots", "reason": "half"})
    answer = send(browser(ana), asked, "edit", args=typed)
    said = text_of(answer.content.decode())

    assert answer.status_code == 422
    assert "amount: Input should be a valid number" in said
    assert "reason: pay takes no such argument" in said
    assert "order: Field required" in said
    assert 'id="approval-review"' not in answer.content.decode()
    assert "&quot;lots&quot;" in answer.content.decode()
    assert now(asked).state == "pending"


def test_a_second_step_that_is_bound_to_other_changes_shows_the_difference_again(asked: Approval, ana: User) -> None:
    answer = send(browser(ana), asked, "edit", args='{"order": "A-17", "amount": 1}', reviewed="0" * 64)

    assert answer.status_code == 200
    assert 'id="approval-review"' in answer.content.decode()
    assert now(asked).state == "pending"


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ('{"order": "A-17", ', "are not JSON"),
        ("[1]", "an object in braces"),
        ('{"order": "A", "order": "B"}', "order"),
        ('{"order": "A-17", "amount": 1200.5, "currency": "EUR", "to": "ACME"}', "nothing is changed"),
        ('{"order": "[redacted]", "amount": 3}', "stands for a hidden value"),
    ],
)
def test_what_is_no_edit_is_said_and_keeps_what_was_typed(asked: Approval, ana: User, typed: str, problem: str) -> None:
    answer = send(browser(ana), asked, "edit", args=typed)

    assert answer.status_code == 422
    assert problem in text_of(answer.content.decode())
    assert typed[:12].replace('"', "&quot;") in answer.content.decode()
    assert now(asked).state == "pending"


def test_the_second_person_learns_who_was_first_and_loses_nothing(asked: Approval, ana: User, bea: User) -> None:
    send(browser(bea), asked, "approve")
    answer = send(browser(ana), asked, "respond", message="Wait for the invoice")
    said = text_of(answer.content.decode())

    assert answer.status_code == 409
    assert "bea was first" in said
    assert "Wait for the invoice" in said
    assert (now(asked).state, asked.answered_by) == ("approved", "bea")


def test_the_same_answer_twice_is_one_and_another_one_of_the_same_person_is_told_that_it_was_not_taken(
    run: Run, ana: User
) -> None:
    rows = [an_approval(run, call_id=f"call-{number}") for number in range(3)]
    answer_it(rows[0].approval_id, decision="edit", seen=rows[0].digest, by=ana, args={"order": "A-17", "amount": 900})
    answer_it(rows[1].approval_id, decision="reject", seen=rows[1].digest, by=ana, message="not him")
    answer_it(rows[2].approval_id, decision="approve", seen=rows[2].digest, by=ana)
    client = browser(ana)

    for row, decision, said, status in (
        (rows[0], "edit", {"args": json.dumps({"order": "A-17", "amount": 900})}, 302),
        (rows[0], "edit", {"args": json.dumps({"order": "A-17", "amount": 500})}, 409),
        (rows[0], "edit", {"args": "{"}, 409),
        (rows[1], "reject", {"message": "not him"}, 302),
        (rows[1], "reject", {"message": "too much"}, 409),
        (rows[2], "approve", {}, 302),
    ):
        answer = send(client, row, decision, **said)
        assert answer.status_code == status, (decision, said)
        assert ("yours changed nothing" in text_of(answer.content.decode())) is (status == 409)

    assert json.loads(now(rows[0]).edited_args)["amount"] == 900
    assert now(rows[1]).message == "not him"


def test_what_has_changed_since_it_was_shown_is_not_answered(asked: Approval, ana: User) -> None:
    answer = browser(ana).post(page_of(asked), {"decision": "reject", "seen": "0" * 64, "message": "No"})

    assert answer.status_code == 412
    html = answer.content.decode()
    assert "it has changed since you looked" in html
    assert asked.digest in html
    assert ">\nNo</textarea>" in html
    assert now(asked).state == "pending"


@pytest.mark.parametrize("how", ["void", "expired"])
def test_an_answer_that_reaches_nobody_says_so(asked: Approval, ana: User, how: str) -> None:
    Approval.objects.filter(pk=asked.pk).update(state=how, expires_at=timezone.now() - timedelta(minutes=1))
    answer = send(browser(ana), asked, "approve")

    assert answer.status_code == 409
    assert "it reaches nobody any more" in text_of(answer.content.decode())
    assert now(asked).state == how


def test_four_eyes_keep_out_who_started_the_run_and_who_is_no_approver(run: Run, person: Cast, ana: User, bea: User) -> None:
    eve = person("eve", "approver")
    Run.objects.filter(pk=run.pk).update(started_by="eve")
    run.refresh_from_db()
    row = an_approval(run, needs_another=True)
    for who, words in ((eve, "you started this run"), (bea, "approve")):
        answer = send(browser(who), row, "approve", message="")
        assert answer.status_code == 403
        assert words in text_of(answer.content.decode()).replace("You", "you")
    assert now(row).state == "pending"
    fay = person("fay", "approver")
    assert send(browser(fay), row, "approve").status_code == 302
    assert (now(row).state, row.answered_by) == ("approved", "fay")


@pytest.mark.parametrize("role", ["viewer", "approver", "auditor", "admin"])
def test_who_may_not_settle_answers_nothing(asked: Approval, person: Cast, role: str) -> None:
    who = person("who", role)
    page = browser(who).get(page_of(asked))
    answer = send(browser(who), asked, "approve")

    assert 'id="approval-form"' not in page.content.decode()
    assert answer.status_code == 403
    assert now(asked).state == "pending"


def test_what_the_gate_does_not_allow_is_not_offered_and_not_taken(run: Run, ana: User) -> None:
    row = an_approval(run, allowed=["approve", "reject"])
    client = browser(ana)
    html = client.get(page_of(row)).content.decode()

    assert ('value="reject"' in html, 'value="edit"' in html, 'value="respond"' in html) == (True, False, False)
    for decision in ("edit", "respond", "", "drop"):
        assert send(client, row, decision, args="{}", message="x").status_code == 422
    assert now(row).state == "pending"


def test_a_tool_that_asks_who_one_is_lets_nothing_through_before(asked: Approval, ana: User, amy: User) -> None:
    save_policy("pay", {"step_up_when": "amount > 1000"}, seen_version=0, by=amy)
    client = browser(ana)
    answer = send(client, asked, "approve")

    assert answer.status_code == 403
    assert "confirm who you are first" in text_of(answer.content.decode())
    assert now(asked).state == "pending"
    with pytest.raises(ProofNeeded):
        answer_it(asked.approval_id, decision="approve", seen=asked.digest, by=ana)  # as the API does, which proves nothing
    assert now(asked).state == "pending"
    assert send(client, asked, "reject", message="No need to prove that").status_code == 302


def test_a_get_changes_nothing_and_an_odd_text_is_refused(asked: Approval, ana: User) -> None:
    client = browser(ana)
    assert client.get(page_of(asked) + f"?decision=approve&seen={asked.digest}&choose=approve").status_code == 200
    assert send(client, asked, "respond", message="half \x00 a text").status_code == 422
    assert client.post("/approvals/").status_code == 405
    assert now(asked).state == "pending"


def test_what_nobody_would_see_is_written_out_where_it_is_edited_and_comes_back_as_it_was(run: Run, ana: User) -> None:
    row = an_approval(run, args={"order": "A-17", "amount": 1500, "note": "a\u202eb", "to": "c \ud83d"})
    client = browser(ana)
    html = client.get(page_of(row) + "?choose=edit").content.decode()
    typed = unescape(html.split('id="args"')[1].split(">\n", 1)[1].split("</textarea>")[0])

    assert "\\u202e" in typed
    assert "\\ud83d" in typed
    half = send(client, row, "edit", args=typed.replace("1500", "900"))
    assert half.status_code == 422
    assert "to: holds a NUL or half a character" in text_of(half.content.decode())
    whole = typed.replace("1500", "900").replace(" \\ud83d", "")
    assert "2 values differ" in text_of(send(client, row, "edit", args=whole).content.decode())
