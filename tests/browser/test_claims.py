"""Two people at one queue: who is at what is seen by the other at once, and what is handed over arrives with its note."""

from __future__ import annotations

from django.contrib.auth.models import User
from playwright.sync_api import expect

from console.models import Claim, Correction, Decision
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live, quiet
from tests.browser.test_deciding import decide
from tests.recall_writer import RecallWriter


def test_a_key_claims_what_the_other_sees_and_the_other_takes_it_over(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    ref = records.action("billing-7", 1, args={"to": "ann@example.com", "subject": "Refund"})
    mine, theirs = signed_in(ana), signed_in(bea)
    for page in (mine, theirs):
        open_live(page, "/")
    row = mine.locator(".strip .what a")
    row.focus()

    mine.keyboard.press("c")

    expect(mine.locator(".strip .claimed-by")).to_contain_text("claimed by you")
    expect(row).to_be_focused()
    expect(theirs.locator(".strip .claimed-by")).to_contain_text("claimed by ana")
    theirs.locator(".strip .what a").focus()
    theirs.keyboard.press("c")  # never takes anything away
    expect(theirs.locator("#claim-said")).to_contain_text("ana has claimed it")
    theirs.keyboard.press("Enter")
    theirs.get_by_role("button", name="Take it over").click()
    expect(theirs.locator("#claimed")).to_contain_text("claimed by you")
    expect(mine.locator(".strip .claimed-by")).to_contain_text("claimed by bea")

    theirs.locator("h1").last.click()
    theirs.keyboard.press("c")  # the opened action's own button gives it back
    expect(theirs.locator("#claimed")).to_contain_text("Nobody has claimed it")
    expect(mine.locator(".strip .claimed-by")).to_have_count(0)
    row.focus()
    mine.keyboard.press("c")
    expect(mine.locator(".strip .claimed-by")).to_contain_text("claimed by you")
    mine.keyboard.press("c")
    expect(mine.locator(".strip .claimed-by")).to_have_count(0)
    assert not Claim.objects.filter(ended_at=None).exists()
    assert not Decision.objects.exists()  # no key decided anything
    assert records.body_of(f"{ref.agent}:act:1")["status"] == "started"


def test_what_is_selected_is_claimed_handed_over_and_seen_until_dismissed(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    for seq in (1, 2, 3):
        records.action("billing-7", seq)
    quick = open_live(signed_in(ana), "/")
    quick.locator(".strip .what a").first.focus()
    for key in "cjcjc":  # three rows in one breath
        quick.keyboard.press(key)
    expect(quick.locator(".strip .claimed-by")).to_have_count(3)
    for box in (0, 1, 2):
        quick.locator(".strip .what a").nth(box).focus()
        quick.keyboard.press("c")
    expect(quick.locator(".strip .claimed-by")).to_have_count(0)
    mine, theirs = signed_in(ana), signed_in(bea)
    open_live(theirs, "/")
    open_live(mine, "/")
    for number in (0, 1):
        mine.locator(".pick input").nth(number).check()
    mine.get_by_role("button", name="Claim them").click()
    expect(mine.locator("#selection-answer")).to_contain_text("2 of 2 are done")
    mine.goto("/handover/")
    expect(mine.locator(".handlist").first.locator("li")).to_have_count(2)
    mine.get_by_label("To", exact=True).fill("bea")
    mine.get_by_label("What they should know").fill("the bank calls back at four")

    mine.get_by_role("button", name="Hand over the ticked ones").click()

    expect(mine.locator("#handover")).to_contain_text("bea has them now")
    expect(theirs.locator("#handed")).to_contain_text("ana handed you 2 calls: the bank calls back at four")
    theirs.get_by_role("link", name="See mine").click()
    expect(theirs.locator(".strip")).to_have_count(2)
    quiet(theirs)
    theirs.get_by_role("button", name="Dismiss").click()
    expect(theirs.locator("#handed")).not_to_contain_text("handed you")
    theirs.reload()
    expect(theirs.locator("#handed")).not_to_contain_text("handed you")


def test_who_was_wrong_says_so_beside_the_queue(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("billing-7", 1, tool="create_payment")
    page = open_live(signed_in(ana), "/")
    page.locator(".strip .what a").click()
    decide(page, "done", "seen in the dashboard")
    expect(page.locator("#decision")).to_contain_text("Written: done")
    page.goto("/?state=done&class=any&open=main/billing-7/1")
    page.get_by_role("link", name="I was wrong").click()
    expect(page.locator("#correction")).to_contain_text("It has not read that yet")
    page.locator("#correction input[value=failed]").check()
    page.get_by_label("How do you know?").fill("that was another customer")
    expect(page.locator("#correction-turn")).to_contain_text("in truth it did not happen: that was another customer")
    assert not Correction.objects.exists()

    page.get_by_role("button", name="Write the correction").click()

    expect(page.locator("#correction")).to_contain_text("the correction stands")
    expect(page.locator("#status")).to_contain_text("Corrected: it did not happen")
    expect(page.locator("#incidents")).to_contain_text("One incident is open")
    assert Correction.objects.get().state == "written"
    assert records.body_of("billing-7:act:1")["status"] == "done"
