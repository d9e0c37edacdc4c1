"""Two people in two browsers: one proposes, the other approves; and one alone undoes what is held."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from console.services.policies import policy_of, save_policy
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live, quiet
from tests.browser.test_deciding import decide
from tests.recall_writer import RecallWriter

PAY = "create_payment"


def gates(by: User, **values: object) -> None:
    save_policy(PAY, values, seen_version=policy_of(PAY).version, by=by)


def test_one_proposes_and_the_other_approves_what_both_see(
    records: RecallWriter, ana: User, cleo: User, eve: User, signed_in: SignedIn
) -> None:
    gates(eve, second_person_when="amount > 1000", hold_s=0)
    records.action("m-1", 1, tool=PAY, args={"amount": 4200, "currency": "EUR", "to": "ACME"})
    first, second = open_live(signed_in(ana), "/"), open_live(signed_in(cleo), "/")
    expect(second.locator("#proposals")).to_contain_text("Nothing waits for you.")

    first.locator("#queue").get_by_role("link", name="Payment of 4200.00 EUR to ACME").click()
    decide(first, "done", "Seen in the dashboard")
    expect(first.locator("#decision")).to_contain_text("Proposed: done, waiting for a second person")
    assert records.body_of("m-1:act:1")["status"] == "started"

    second.locator("#proposals").get_by_role("link", name="Payment of 4200.00 EUR to ACME").click()
    expect(second.locator("#decision .slip")).to_contain_text("operator ana: Seen in the dashboard")
    quiet(second)
    second.fill("#second-reason", "I see it as well")
    second.get_by_role("button", name="Approve: done").click()

    expect(second.locator(".answer.is-written")).to_be_visible()
    expect(first.locator("#decision")).to_contain_text("Delivered: done")
    expect(second.locator("#proposals .strip")).to_have_count(0)
    assert records.body_of("m-1:act:1")["status"] == "done"


@pytest.mark.parametrize("field", ["#second-reason", "#glass-reason"])
def test_what_somebody_types_about_a_proposal_stays_when_it_is_withdrawn_meanwhile(
    records: RecallWriter, ana: User, cleo: User, eve: User, signed_in: SignedIn, field: str
) -> None:
    gates(eve, second_person_when="amount > 1000", hold_s=0)
    records.action("m-1", 1, tool=PAY, args={"amount": 4200, "currency": "EUR", "to": "ACME"})
    first = signed_in(ana)
    first.goto("/actions/main/m-1/1/")
    decide(first, "done", "Seen in the dashboard")
    expect(first.locator("#decision")).to_contain_text("Proposed: done")
    second = open_live(signed_in(cleo if field == "#second-reason" else eve), "/actions/main/m-1/1/")
    if field == "#glass-reason":
        second.get_by_text("No second person can be waited for").click()
    second.fill(field, "the invoice <is> paid twice")

    first.locator("#decision").get_by_role("button", name="Withdraw it").click()

    expect(second.locator("#decision")).to_contain_text("Withdrawn; it will not be written")
    expect(second.locator("#decision .kept")).to_contain_text("the invoice <is> paid twice")
    expect(second.locator("#decision")).to_be_focused()
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_what_is_held_counts_down_and_is_undone(records: RecallWriter, ana: User, eve: User, signed_in: SignedIn) -> None:
    gates(eve, second_person_when="", hold_s=600)
    records.action("m-1", 1, tool=PAY, args={"amount": 5, "currency": "EUR", "to": "ACME"})
    page = signed_in(ana)
    page.goto("/actions/main/m-1/1/")
    decide(page, "done", "Seen in the dashboard")
    expect(page.locator(".held-left")).to_contain_text("s left")

    page.locator("#decision").get_by_role("button", name="Undo").click()

    expect(page.locator("#decision")).to_contain_text("Withdrawn; it will not be written")
    assert records.body_of("m-1:act:1")["status"] == "started"
