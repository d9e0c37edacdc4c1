"""Approvals by keyboard, by two people at once, and a run's page that tells of what happened elsewhere without taking anything away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from playwright.sync_api import Locator, Page, expect
from pytest_django import Settings

from console import run_types, stores
from console.models import Approval, Run
from console.services.changes import bump
from console.services.run_rows import RUNS
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live, quiet
from tests.browser.test_every_page import troubles
from tests.console import run_kinds
from tests.console.runs import PAY_MUCH, a_run, an_approval, an_event, drive, start
from tests.console.workers import wait_for
from tests.recall_writer import RecallWriter


@pytest.fixture
def gated(
    records: RecallWriter, ana: User, settings: Settings, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """A real run that has come to its gate with a payment of 5000; this process is its worker."""
    settings.ACTION_STORES = {"main": store_url}
    settings.RUN_TYPES, settings.RUN_STORE = (run_kinds.MODULE,), "main"
    monkeypatch.setenv(run_kinds.EFFECTS, str(tmp_path))
    stores.reset()
    run_types.forget()
    yield drive(start(ana, PAY_MUCH))
    stores.reset()
    run_types.forget()


@pytest.fixture
def run(records: RecallWriter, ana: User) -> Run:
    records.working_state("run-1", goal="Refund order A-17", plan=["Pay"])
    records.turn("run-1", 1, "The customer wrote twice")
    records.action("run-1", 1, tool="look_up", cls="pure", status="done", args={"order": "A-17"}, result="ok")
    run = a_run("run-1", status="waiting_approval", steps=2)
    an_event(run, "started", by="ana")
    an_event(run, "step", nodes=["agent"], calls=[{"seq": 1}])
    return run


def state_of(row: Approval) -> Any:
    row.refresh_from_db()
    return row.state


def test_a_call_is_approved_from_the_queue_by_keys_and_no_key_commits(run: Run, bea: User, signed_in: SignedIn) -> None:
    row, after = an_approval(run), an_approval(run, args={"order": "B-2", "amount": 2000, "to": "Jon"})
    page = open_live(signed_in(bea), "/")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="Payment of 1200.50 EUR to ACME")).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="Payment of 2000.00 to Jon")).to_be_focused()
    page.keyboard.press("k")

    page.keyboard.press("a")

    expect(page.locator("#approval-form input[value=approve]")).to_be_checked()
    assert state_of(row) == "pending"
    quiet(page)  # another page: a key is nobody's before its script has run
    page.keyboard.press("x")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    expect(page.locator("#args")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    assert state_of(row) == "pending"
    page.get_by_role("button", name="Approve: let it be called").click()
    expect(page.locator("#approval-status .answer")).to_contain_text("bea: approved")
    assert state_of(row) == "approved"
    quiet(page)
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_contain_text("2000.00 to Jon")
    assert state_of(after) == "pending"


def test_what_waits_appears_and_goes_within_seconds_and_the_next_line_has_the_focus(
    run: Run, bea: User, signed_in: SignedIn
) -> None:
    page = open_live(signed_in(bea), "/approvals/")
    expect(page.locator("#approvals .strip")).to_have_count(0)
    rows = [an_approval(run, args={"order": f"A-{number}", "amount": 2000, "to": "ACME"}) for number in (1, 2, 3)]
    bump("main")
    expect(page.locator("#approvals .strip")).to_have_count(3)
    page.locator(f"#approval-{rows[1].approval_id} a").focus()

    Approval.objects.filter(pk=rows[1].pk).update(state="approved", answered_by="ana")
    bump("main")

    expect(page.locator("#approvals .strip")).to_have_count(2)
    expect(page.locator(f"#approval-{rows[2].approval_id} a")).to_be_focused()


def test_two_people_at_one_call_and_the_second_loses_nothing(run: Run, ana: User, bea: User, signed_in: SignedIn) -> None:
    row = an_approval(run)
    first, second = (
        open_live(signed_in(ana), f"/approvals/{row.approval_id}/"),
        open_live(signed_in(bea), f"/approvals/{row.approval_id}/"),
    )
    second.check("input[value=respond]")
    second.fill("#message", "Wait for the invoice")
    first.check("input[value=approve]")
    first.get_by_role("button", name="Approve: let it be called").click()
    expect(first.locator("#approval-status .answer")).to_contain_text("ana: approved")
    bump("main")

    expect(second.locator("#approval-status .answer")).to_contain_text("ana: approved")
    expect(second.locator("#message")).to_have_value("Wait for the invoice")
    second.get_by_role("button", name="Respond in its place").click()

    expect(second.get_by_role("alert")).to_contain_text("ana was first")
    expect(second.locator(".kept")).to_contain_text("Wait for the invoice")
    assert state_of(row) == "approved"
    second.go_back()
    expect(second.locator("#approval-status .answer")).to_contain_text("ana: approved")


def test_what_is_typed_about_a_call_outlives_a_way_round_and_an_edit_is_looked_at_first(
    run: Run, bea: User, signed_in: SignedIn
) -> None:
    row = an_approval(run)
    page = open_live(signed_in(bea), f"/approvals/{row.approval_id}/")
    page.check("input[value=edit]")
    page.fill("#args", json.dumps({"order": "A-17", "amount": 900, "currency": "EUR", "to": "ACME"}))
    open_live(page, "/runs/run-1/")
    page.get_by_role("link", name="Payment of 1200.50 EUR to ACME").click()
    expect(page.locator("#args")).to_have_value(json.dumps({"order": "A-17", "amount": 900, "currency": "EUR", "to": "ACME"}))

    page.get_by_role("button", name="Look at the changes").click()

    expect(page.locator(".edits tbody tr")).to_have_count(1)
    expect(page.locator(".edits")).to_contain_text("1200.5")
    assert state_of(row) == "pending"
    assert troubles(quiet(page)) == []
    page.get_by_role("button", name="Change something").click()
    expect(page.locator("#args")).to_contain_text("900")
    assert state_of(row) == "pending"


def two_desks(run: Run, editor: Page, approver: Page) -> tuple[Locator, Locator]:
    """One person has changed the amount and looked at the difference, another one is about to approve it as it is: the buttons of both."""
    path = f"/approvals/{run.approvals.get().approval_id}/"
    open_live(editor, path).check("input[value=edit]")
    editor.fill("#args", json.dumps({"amount": 900.0, "to": "ACME"}))
    editor.get_by_role("button", name="Look at the changes").click()
    expect(editor.locator("#approval-review .edits tbody tr")).to_have_count(1)
    open_live(approver, path).check("input[value=approve]")
    return editor.get_by_role("button", name="Approve with these changes"), approver.get_by_role("button", name="Approve: let it")


@pytest.mark.parametrize("first", ["edit", "approval"])
def test_of_an_edit_and_an_approval_the_first_is_taken_and_the_payment_is_made_once(
    gated: Run, ana: User, bea: User, signed_in: SignedIn, first: str
) -> None:
    editor, approver = signed_in(ana), signed_in(bea)
    edit, approve = two_desks(gated, editor, approver)
    winner, loser = (editor, approver) if first == "edit" else (approver, editor)
    taken, late = (edit, approve) if first == "edit" else (approve, edit)

    taken.click()
    expect(winner.locator("#approval-status .answer")).to_contain_text(
        {"edit": "ana: approved with changes", "approval": "bea: approved"}[first]
    )
    late.click()

    expect(loser.get_by_role("alert")).to_contain_text(f"{'ana' if first == 'edit' else 'bea'} was first")
    if first == "approval":
        expect(loser.locator(".kept")).to_contain_text("900")
    assert state_of(gated.approvals.get()) == {"edit": "edited", "approval": "approved"}[first]
    assert drive(gated).status == "done"
    assert [one["amount"] for one in run_kinds.effects("pay")] == [900.0 if first == "edit" else 5000.0]


def test_of_an_edit_and_an_approval_at_the_same_moment_one_is_taken_and_the_other_is_told(
    gated: Run, records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    editor, approver = signed_in(ana), signed_in(bea)
    buttons = two_desks(gated, editor, approver)

    with transaction.atomic():
        Run.objects.select_for_update().get(pk=gated.pk)
        for button in buttons:
            button.evaluate("(button) => button.click()")  # does not wait for the answer, which has to wait for us
        wait_for(lambda: waiting_for_locks(records) == 2, "both answers are at the run's lock")

    told = [page.get_by_role("alert").filter(has_text="was first") for page in (editor, approver)]
    for page in (editor, approver):
        expect(page.locator("#answer-title")).to_have_text("Answered")  # no live update draws that
    assert sum(one.count() for one in told) == 1
    state = state_of(gated.approvals.get())
    assert told[0].count() == (state == "approved")
    assert drive(gated).status == "done"
    assert [one["amount"] for one in run_kinds.effects("pay")] == [{"edited": 900.0, "approved": 5000.0}[state]]


def waiting_for_locks(records: RecallWriter) -> int:
    """How many statements in the console's database wait for somebody. Asked on a connection of its own: in a transaction the answer is kept."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    return int(records.run(waiting, [connection.settings_dict["NAME"]])[0][0])


def test_a_runs_page_tells_of_each_step_and_leaves_the_reason_and_the_focus(run: Run, bea: User, signed_in: SignedIn) -> None:
    page = open_live(signed_in(bea), "/runs/run-1/")
    page.fill("#reason", "the customer has called")
    page.locator("#reason").focus()

    an_event(run, "step", nodes=["tools"])
    Run.objects.filter(pk=run.pk).update(steps=3, status="running")
    bump(RUNS)

    expect(page.locator("#run .story")).to_contain_text("Step 2")
    expect(page.locator("#reason")).to_be_focused()
    expect(page.locator("#reason")).to_have_value("the customer has called")
    Run.objects.filter(pk=run.pk).update(status="failed")
    bump(RUNS)
    expect(page.get_by_role("link", name="Take back what happened")).to_be_visible()
    expect(page.locator("#reason")).to_have_value("the customer has called")


def test_axe_finds_nothing_on_pages_of_runs_and_none_scrolls_sideways(run: Run, bea: User, signed_in: SignedIn) -> None:
    over = an_approval(run, state="edited", answered_by="bea", edited_args='{"order": "A-17", "amount": "9"}')
    row = an_approval(run, args={"to": "x" * 300, "amount": 5000, "y" * 200: 1}, needs_another=True)
    mine = an_approval(run)
    a_run("run-2", status="failed", problem="the graph raised " + "x" * 200, result="y" * 300, steps=3)
    page = signed_in(bea, reduced_motion="reduce")
    found = {}
    paths = [f"/approvals/{one.approval_id}/" for one in (over, row)] + [f"/approvals/{mine.approval_id}/?choose=edit"]
    for path in [
        *paths,
        "/",
        "/approvals/",
        "/runs/",
        "/runs/?text=none",
        "/runs/run-1/",
        "/runs/run-2/",
        "/actions/main/run-1/1/",
    ]:
        found[path] = troubles(open_live(page, path))

    assert {path: lines for path, lines in found.items() if lines} == {}


def test_once_a_run_is_taken_back_its_open_page_offers_what_can_be_done_then(
    run: Run, records: RecallWriter, bea: User, signed_in: SignedIn
) -> None:
    """With a field for the reason, which was not needed before; and without a warning that no longer holds."""
    records.action("run-1", 2, tool="pay", status="done", args={"order": "A-17", "amount": 5}, result="ok")
    Run.objects.filter(pk=run.pk).update(type="errand", status="failed", undoing="running")
    page = open_live(signed_in(bea), "/runs/run-1/")
    expect(page.locator("#run-buttons")).to_contain_text("What it did is being taken back")
    expect(page.locator("#reason")).to_be_hidden()

    with transaction.atomic():
        Run.objects.filter(pk=run.pk).update(undoing="done")
        bump(RUNS)

    expect(page.get_by_role("button", name="Restart as a new run")).to_be_visible()
    expect(page.locator("#reason")).to_be_visible()
    expect(page.locator("#run-buttons")).not_to_contain_text("not all taken back")
