"""The queue while others change it, in a real browser: nothing that is read moves, nothing in hand is lost."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from tests.browser.conftest import SignedIn
from tests.browser.live import ask_again, open_live, until
from tests.recall_writer import RecallWriter

COUNT = 45
WIDE = {"viewport": {"width": 1440, "height": 700}}
PHONE = {"viewport": {"width": 390, "height": 700}, "reduced_motion": "reduce"}
NOTE_TINTS = """() => {
    window.tints = [];  // by which animation each strip is tinted; the tint itself is gone soon, and with the next answer
    new MutationObserver((all) => {
        for (const { target } of all) if (target.matches(".strip.changed")) window.tints.push(getComputedStyle(target).animationName);
    }).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["class"] });
}"""


@pytest.fixture
def many(records: RecallWriter) -> RecallWriter:
    """A long list of emails in doubt, oldest first by number."""
    for seq in range(1, COUNT + 1):
        records.action(f"m-{seq}", 1, args={"to": f"c{seq}@example.com"}, started_at=f"2026-11-29T10:00:{seq:02}Z")
    return records


def strip(page: Page, number: int) -> Any:
    return page.locator(".strip", has=page.locator(f'[data-pane="main/m-{number}/1"]'))


def top_of(page: Page, number: int) -> float:
    box = strip(page, number).bounding_box()
    assert box is not None
    return float(box["y"])


def change_around(records: RecallWriter, page: Page, *, ended: tuple[int, ...]) -> None:
    """A payment comes at the very top, others end above and below, all at one moment; wait until the page shows it."""
    with records.connection.transaction():
        for number in ended:
            records.action(f"m-{number}", 1, status="done")
        records.action(f"p-{ended[0]}", 1, tool="create_payment", args={"amount": ended[0], "currency": "EUR"})
    expect(page.locator(".strip", has_text=f"Payment of {ended[0]}.00 EUR")).to_be_attached()
    for number in ended:
        expect(strip(page, number)).to_have_count(0)


def test_what_is_in_hand_survives_changes_above_and_below(many: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    page = open_live(signed_in(ana, **WIDE), "/?text=example&open=main/m-22/1")
    many.lease("m-22", epoch=3)
    page.fill("#f-tool", "send_")
    with page.expect_response("**/m-22/1/turn/"):  # with the turn the pane grows
        page.fill("#reason", "I am still looking")
    expect(page.locator("#turn.htmx-request")).to_have_count(0)
    page.locator("#pane").evaluate("(pane) => { pane.scrollTop = 120; }")
    many.action("quiet", 1, args={"to": "quiet@example.com"}, started_at="2026-11-29T09:00:00Z")
    expect(page.locator(".strip", has_text="quiet@")).to_be_attached()
    strip(page, 20).locator(".what a").focus()
    page.keyboard.press("x")
    place, pane = top_of(page, 20), page.locator("#pane").evaluate("(pane) => pane.scrollTop")

    for number in (3, 30):
        many.action(f"m-{number}", 1, status="done")
    for number in (1, 2):
        many.action(f"above-{number}", 1, args={"to": f"above{number}@example.com"}, started_at=f"2026-11-29T09:00:0{number}Z")
    expect(page.locator(".strip", has_text="above2@")).to_be_attached()
    expect(strip(page, 30)).to_have_count(0)

    assert top_of(page, 20) == pytest.approx(place, abs=1)
    expect(strip(page, 20).locator(".what a")).to_be_focused()
    expect(strip(page, 20).locator("input")).to_be_checked()
    assert page.locator(".filter-box").get_attribute("open") is not None
    assert page.input_value("#f-tool") == "send_"
    assert page.input_value("#reason") == "I am still looking"
    assert page.locator("#pane").evaluate("(pane) => pane.scrollTop") == pane
    expect(strip(page, 22)).to_have_attribute("aria-current", "true")
    expect(page.locator("#pane h1")).to_contain_text("c22@example.com")


def test_a_strip_that_goes_hands_the_focus_to_its_neighbour(many: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    page = open_live(signed_in(ana, **WIDE), "/")
    strip(page, 20).locator(".what a").focus()

    change_around(many, page, ended=(20, 21))
    expect(strip(page, 22).locator(".what a")).to_be_focused()
    page.keyboard.press("j")
    expect(strip(page, 23).locator(".what a")).to_be_focused()

    strip(page, COUNT).locator(".pick input").focus()
    change_around(many, page, ended=(COUNT,))
    expect(strip(page, COUNT - 1).locator(".pick input")).to_be_focused()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_who_only_reads_keeps_their_place_and_at_the_top_sees_what_comes_first(
    many: RecallWriter, ana: User, signed_in: SignedIn, size: dict[str, Any]
) -> None:
    page = open_live(signed_in(ana, **size), "/")
    change_around(many, page, ended=(7,))
    expect(page.locator(".strip").first).to_contain_text("Payment of 7.00 EUR")
    expect(page.locator(".strip").first).to_be_in_viewport()

    strip(page, 15).evaluate("(strip) => strip.scrollIntoView({ block: 'start' })")
    edge = 44  # the bar
    first = next(number for number in range(8, COUNT) if top_of(page, number) >= edge)
    stays, place = first + 2, top_of(page, first + 2)
    page.evaluate(NOTE_TINTS)
    # The two that are read first end, and some above and below.
    change_around(many, page, ended=(2, 3, first - 1, first, first + 1, 40))

    assert top_of(page, stays) == pytest.approx(place, abs=1)
    assert page.evaluate("document.activeElement === document.body")
    until(page, lambda: page.evaluate("window.tints.length"))
    assert set(page.evaluate("window.tints")) == {"none" if size is PHONE else "changed"}
    if size is PHONE:
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_the_calls_of_a_crash_are_ticked_together_and_unticked_together(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.lease("m-1", holder="pod-a:1:aaaa")
    records.lease("m-2", holder="pod-b:2:bbbb")
    for agent, seq in (("m-1", 1), ("m-1", 2), ("m-2", 1)):
        records.action(agent, seq)
    page = open_live(signed_in(ana), "/?group=crash")
    select = page.locator(".group.crash", has_text="pod-a").get_by_role("button", name="Select these")

    select.press("Enter")
    expect(page.get_by_role("button", name="Ask about the selected (2)")).to_be_visible()
    assert page.eval_on_selector_all(".pick input:checked", "boxes => boxes.map((one) => one.value)") == [
        "main/m-1/1",
        "main/m-1/2",
    ]

    select.press("Enter")
    expect(page.locator("#selection")).to_be_hidden()


def test_what_has_not_changed_is_not_sent_again_and_what_has_is_shown(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1, args={"to": "c1@example.com"}, started_at="2026-11-29T10:00:01Z")
    page = open_live(signed_in(ana, **WIDE), "/")

    assert 304 in {ask_again(page, "queue") for _ in range(3)}  # an age may tick in between
    expect(strip(page, 1)).to_be_visible()
    expect(page.locator("[data-live=on]")).to_be_visible()
    records.action("m-2", 1, args={"to": "c2@example.com"}, started_at="2026-11-29T10:00:02Z")
    expect(strip(page, 2)).to_be_visible()
    expect(strip(page, 1)).to_be_visible()
