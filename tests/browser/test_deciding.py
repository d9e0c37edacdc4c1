"""A person decides in a real browser, and other browsers learn of it."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, Route, expect
from pytest_django import Settings

from console import stores
from console.models import Decision
from console.services.withdraw import withdraw
from tests.browser.conftest import ALIVE, PASSWORD, SignedIn
from tests.browser.live import hide, hold, open_live, quiet, tell, until
from tests.recall_writer import RecallWriter


def fill_in(page: Page, outcome: str, reason: str) -> None:
    """Fill in the form, and wait for the turn that is shown for exactly that."""
    page.check(f"#decision input[value={outcome}]")
    page.fill("#reason", reason)
    expect(page.locator(".slip dd").last).to_contain_text(reason)


def decide(page: Page, outcome: str, reason: str) -> None:
    """Fill in the form and commit the turn that is shown for exactly that."""
    fill_in(page, outcome, reason)
    page.locator("#decision [data-once]").click()


def test_somebody_signs_in_opens_an_action_decides_and_it_leaves_the_other_browser_within_3_s(
    records: RecallWriter, ana: User, bea: User, stranger: Page, signed_in: SignedIn
) -> None:
    records.lease("m-1")
    records.action("m-1", 1, args={"to": "b@example.com", "subject": "Refund"})
    other = open_live(signed_in(bea), "/")
    expect(other.locator(".strip")).to_have_count(1)

    stranger.goto("/")
    stranger.fill("[name=username]", "ana")
    stranger.fill("[name=password]", PASSWORD)
    stranger.get_by_role("button", name="Sign in").click()
    quiet(stranger)  # before its script has run, a link leads to a page
    stranger.get_by_role("link", name="Email to b@example.com").click()
    expect(stranger).to_have_url(re.compile(r"/\?open=main/m-1/1$"))
    decide(stranger, "done", "Found in the Sent folder")

    expect(stranger.locator(".answer.is-written")).to_be_visible()
    expect(other.locator(".strip")).to_have_count(0)
    expect(other.get_by_text("Nothing is in doubt.")).to_be_visible()
    assert records.body_of("m-1:act:1")["status"] == "done"
    assert records.body_of("m-1:turn:1")["content"] == "done"


def test_everything_works_without_javascript(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1, args={"to": "b@example.com"})
    page = signed_in(ana, java_script_enabled=False)

    page.goto("/")
    page.get_by_role("link", name="Email to b@example.com").click()
    page.check("input[value=failed]")
    page.get_by_role("button", name="Not in the Sent folder").click()
    expect(page.locator("#reason")).to_have_value("Not in the Sent folder")
    expect(page.locator(".slip")).to_contain_text("failed: Not in the Sent folder")
    page.fill("#reason", "Not in the Sent folder, nor in Drafts")
    page.locator("#turn button").click()
    expect(page.get_by_text("Not written yet.")).to_be_visible()
    expect(page.locator(".slip")).to_contain_text("failed: Not in the Sent folder, nor in Drafts")
    assert records.body_of("m-1:act:1")["status"] == "started"
    page.locator("#turn button").click()

    expect(page.locator(".answer.is-written")).to_be_visible()
    assert records.body_of("m-1:act:1")["status"] == "failed"


def test_it_can_be_done_with_the_keyboard_alone(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1, args={"to": "first@example.com"}, started_at="2026-11-29T10:00:01Z")
    records.action("m-2", 1, args={"to": "second@example.com"}, started_at="2026-11-29T10:00:02Z")
    page = signed_in(ana)
    page.goto("/")

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#action h1")).to_contain_text("second@example.com")
    page.keyboard.press("f")
    expect(page.locator("#reason")).to_be_focused()
    page.keyboard.type("Not in the log")
    expect(page.locator(".slip")).to_contain_text("failed: Not in the log")
    page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("document.activeElement.hasAttribute('data-once')"):
            break
        page.keyboard.press("Tab")
    expect(page.locator("#decision [data-once]")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".answer.is-written")).to_be_visible()
    page.keyboard.press("Escape")

    expect(page.locator("#action")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/$"))
    assert records.body_of("m-2:act:1")["status"] == "failed"
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_on_paper_an_action_stands_alone_with_nothing_to_press(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1, args={"to": "b@example.com", "subject": "Refund"})
    page = signed_in(ana)
    page.goto("/?open=main/m-1/1")
    expect(page.locator("#decision-form")).to_be_visible()

    page.emulate_media(media="print")

    expect(page.locator("#claim")).to_contain_text("b@example.com")
    expect(page.locator("#claim")).to_be_visible()
    expect(page.locator("#record")).to_be_visible()
    for pressed in ("button", "form", ".topbar", ".split > .list"):
        expect(page.locator(f"{pressed}:visible")).to_have_count(0)


def test_no_key_decides_anything_by_itself(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.url.endswith("/decision/") else None)

    for key in ("d", "Enter", "f", "Enter", "Escape", "d"):
        page.keyboard.press(key)

    expect(page.locator("#decision input[value=done]")).to_be_checked()
    expect(page.locator(".answer:visible")).to_have_count(0)
    assert posted == []
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_back_after_deciding_shows_what_is_true_now(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1, args={"to": "b@example.com"})
    page = signed_in(ana, viewport={"width": 390, "height": 800})
    page.goto("/")
    page.get_by_role("link", name="Email to b@example.com").click()
    decide(page, "done", "Found it")
    expect(page.locator(".answer.is-written")).to_be_visible()

    page.go_back()

    expect(page.locator("html")).to_have_count(1)
    expect(page.locator(".topbar")).to_have_count(1)
    expect(page.locator(".strip")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#decision-form")).to_have_count(0)
    expect(page.get_by_role("heading", name="How it ended")).to_be_visible()


def test_back_from_the_pane_is_the_queue_as_it_was(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1, args={"to": "b@example.com"})
    page = signed_in(ana)
    page.goto("/?tool=send_email")
    page.get_by_role("link", name="Email to b@example.com").click()
    expect(page).to_have_url(re.compile(r"tool=send_email&open=main/m-1/1$"))

    # Nothing is kept for Back: the page is asked for anew, and only then can one go forward from it.
    with page.expect_event("load"):
        page.go_back()

    expect(page).to_have_url(re.compile(r"/\?tool=send_email$"))
    expect(page.locator(".topbar")).to_have_count(1)
    expect(page.locator("#action")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#decision-form")).to_be_visible()


def test_of_two_tabs_the_second_is_told_and_loses_nothing(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    one = signed_in(ana)
    two = one.context.new_page()
    for page in (one, two):
        page.goto("/actions/main/m-1/1/")
    two.check("input[value=failed]")
    two.fill("#reason", "Typed in the second tab")
    expect(two.locator(".slip dd").last).to_contain_text("Typed in the second tab")
    decide(one, "done", "Found it")
    expect(one.locator(".answer.is-written")).to_be_visible()
    expect(two.locator("#status")).to_contain_text("done")
    expect(two.locator("#reason")).to_have_value("Typed in the second tab")
    expect(two.locator("#foot-news")).to_contain_text("It ended meanwhile")
    expect(two.locator("#decision [data-once]")).to_be_disabled()

    two.locator("[data-look]").click()
    two.locator("#decision [data-once]").click()

    expect(two.locator(".answer")).to_contain_text("it was decided before you")
    expect(two.locator(".answer .kept")).to_contain_text("Typed in the second tab")
    assert records.body_of("m-1:act:1")["status"] == "done"


def test_a_double_click_writes_once(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = signed_in(ana)
    page.goto("/actions/main/m-1/1/")
    page.check("input[value=done]")
    page.fill("#reason", "Found it")
    expect(page.locator(".slip dd").last).to_contain_text("Found it")

    page.locator("#decision [data-once]").dblclick()

    expect(page.locator(".answer.is-written")).to_be_visible()
    expect(page.locator(".htmx-request")).to_have_count(0)
    assert "m-1:turn:2" not in records.record_ids()


def test_an_ended_session_sends_the_whole_page_to_the_login_and_keeps_what_was_typed(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    page.check("input[value=done]")
    page.fill("#reason", "Typed before the session ended")
    expect(page.locator(".slip dd").last).to_contain_text("Typed before the session ended")
    page.context.clear_cookies(name="sessionid")
    page.context.add_cookies([{"name": "sessionid", "value": "ended", "url": page.url}])

    page.locator("#decision [data-once]").click()

    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    expect(page.locator(".topbar")).to_have_count(0)
    expect(page.get_by_text("nothing was written")).to_be_visible()
    page.fill("[name=username]", "ana")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#reason")).to_have_value("Typed before the session ended")
    expect(page.locator("input[value=done]")).to_be_checked()
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_what_is_typed_before_the_script_has_come_is_shown_as_the_turn(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page = signed_in(ana)
    scripts = hold(page, "**/settle*.js")
    page.goto("/actions/main/m-1/1/", wait_until="commit")
    page.check("#decision input[value=done]")
    page.fill("#reason", "Typed early")
    until(page, lambda: scripts)

    scripts[0].continue_()

    expect(page.locator(".slip dd").last).to_contain_text("Typed early")
    assert "Typed early" in page.evaluate("JSON.stringify(sessionStorage)")  # kept as any draft is
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_what_happens_to_a_decision_while_its_answer_is_on_its_way_is_learned_of(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn, store_url: str, settings: Settings
) -> None:
    settings.ACTION_STORES = {"main": store_url}
    stores.reset()
    records.lease("m-1", state="live", ttl=ALIVE)
    ref = records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    hide(page)  # no stream any more: what is told is told here, once

    def withdraw_first(route: Route) -> None:
        answer = route.fetch()
        withdraw(ref, by=bea, decision_id=Decision.objects.get().decision_id)
        tell(page)
        route.fulfill(response=answer)

    page.route("**/m-1/1/decision/", withdraw_first)
    decide(page, "done", "Found it")

    expect(page.locator("#decision .answer.is-withdrawn")).to_be_visible()


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_next_goes_on_within_the_filter_and_says_when_nothing_of_it_is_left(
    records: RecallWriter, ana: User, signed_in: SignedIn, size: str
) -> None:
    records.action("a-1", 1, tool="create_payment", args={"amount": 7, "currency": "EUR", "to": "ACME"})
    for number in (1, 2):
        records.action(f"m-{number}", 1, args={"to": f"c{number}@example.com"}, started_at=f"2026-11-29T10:00:0{number}Z")
    page = signed_in(ana, **({"viewport": {"width": 390, "height": 800}} if size == "phone" else {}))
    page.goto("/?tool=send_email")
    page.get_by_role("link", name="Email to c1@example.com").click()
    decide(page, "done", "Seen in the Sent folder")
    expect(page.locator(".answer.is-written")).to_contain_text("Next: Email to c2@example.com")

    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1).last).to_contain_text("Email to c2@example.com")
    expect(page).to_have_url(re.compile(r"tool(=|%3D)send_email"))
    decide(page, "done", "Seen in the Sent folder")

    expect(page.locator(".answer.is-written")).to_contain_text(
        "Nothing else of this filter is in doubt. Next of the whole queue: Payment of 7.00 EUR"
    )
    if size == "phone":
        expect(page.get_by_role("link", name="← Queue")).to_have_attribute("href", "/?tool=send_email")
    page.locator("#decision [data-next]").click()
    expect(page.get_by_role("heading", level=1).last).to_contain_text("Payment of 7.00 EUR to ACME")
    expect(page).to_have_url(re.compile(r"/\?open=main/a-1/1$"))
