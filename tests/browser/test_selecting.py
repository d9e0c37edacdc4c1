"""Selecting in the queue in a real browser: by keyboard, through live updates, on a phone, without JavaScript."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect
from pytest_django import Settings

from actions.records import ActionRef
from console import stores
from console.models import Inquiry
from console.services.definitions import save_definition
from console.services.policies import save_policy
from tests.browser import ledger
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live, quiet
from tests.browser.test_every_page import violations
from tests.recall_writer import RecallWriter


@pytest.fixture
def mails(records: RecallWriter, eve: User, store_url: str, settings: Settings) -> RecallWriter:
    """Three emails and a payment in doubt; for the emails somebody can be asked."""
    settings.ACTION_STORES = {"main": store_url}
    settings.RESOLVER_CALLABLES = (ledger.PATH,)
    stores.reset()
    save_definition("sent-folder", "python", {"callable": ledger.PATH}, {}, seen_version=0, by=eve)
    save_policy("send_email", {"resolver": "sent-folder"}, seen_version=0, by=eve)
    records.lease("m-1", epoch=3)
    for seq, name in enumerate(("ann", "bob", "cat"), start=1):
        records.action("m-1", seq, args={"to": f"{name}@example.com", "subject": "Refund"})
    records.action("m-2", 1, tool="create_payment", args={"amount": 120, "currency": "EUR", "to": "ACME"})
    return records


def box(page: Page, name: str) -> Locator:
    return page.get_by_role("checkbox", name=f"Select Email to {name}@example.com")


def ticked(page: Page) -> list[str]:
    return [str(value) for value in page.eval_on_selector_all(".pick input:checked", "boxes => boxes.map((one) => one.value)")]


def asked() -> set[ActionRef]:
    return {row.ref for row in Inquiry.objects.all()}


def test_a_selection_made_by_keys_survives_live_updates_back_and_a_refused_submit(
    mails: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    page = open_live(signed_in(ana, reduced_motion="reduce"), "/")
    expect(page.locator("#selection")).to_be_hidden()

    for key in ("j", "x", "j", "x", "j", "x"):  # the payment stands first
        page.keyboard.press(key)
    assert ticked(page) == ["main/m-2/1", "main/m-1/1", "main/m-1/2"]
    box(page, "cat").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Space")

    mails.action("m-3", 1, args={"to": "new@example.com", "subject": "Refund"})
    expect(page.locator(".strip", has_text="new@example.com")).to_be_visible()
    assert ticked(page) == ["main/m-2/1", "main/m-1/1", "main/m-1/2"]
    expect(box(page, "cat")).to_be_focused()
    expect(page.get_by_role("button", name="Ask about the selected (3)")).to_be_visible()
    mails.action("m-1", 1, status="done")
    expect(page.locator(".strip", has_text="ann@example.com")).to_have_count(0)
    assert ticked(page) == ["main/m-2/1", "main/m-1/2"]

    page.goto("/history/")
    page.go_back()
    quiet(page)
    expect(page.get_by_role("button", name="Ask about the selected (2)")).to_be_visible()
    token = page.locator("#selection [name=csrfmiddlewaretoken]")
    right = token.input_value()
    token.evaluate("(input) => { input.value = 'x'.repeat(64); }")
    page.get_by_role("button", name="Ask about the selected (2)").press("Enter")
    expect(page.locator("#selection-answer")).to_contain_text("Nothing was written")
    assert ticked(page) == ["main/m-2/1", "main/m-1/2"]
    assert asked() == set()

    page.route("**/asking/", lambda route: route.abort())
    page.get_by_role("button", name="Ask about the selected (2)").press("Enter")
    expect(page.locator("#selection .no-answer")).to_be_visible()
    assert ticked(page) == ["main/m-2/1", "main/m-1/2"]
    page.unroute("**/asking/")
    token.evaluate("(input, right) => { input.value = right; }", right)
    page.get_by_role("button", name="Ask about the selected (2)").press("Enter")
    expect(page.locator("#selection-answer")).to_contain_text("1 of the selected calls is being asked about, 1 is not.")
    expect(page.locator("#selection-answer")).to_contain_text("no resolver is configured for create_payment")
    expect(page.locator("#selection-answer")).to_be_focused()
    expect(page.locator("#selection .no-answer")).to_be_hidden()
    assert ticked(page) == ["main/m-2/1"]
    assert asked() == {ActionRef("main", "m-1", 2)}
    expect(page.locator(".strip", has_text="bob@example.com")).to_contain_text("asking sent-folder")
    assert violations(page) == []


@pytest.mark.parametrize("light", ["light", "dark"])
def test_on_a_phone_all_that_is_shown_is_selected_in_one_touch(
    mails: RecallWriter, ana: User, signed_in: SignedIn, light: str
) -> None:
    page = signed_in(ana, color_scheme=light, viewport={"width": 390, "height": 800}, has_touch=True)
    open_live(page, "/")

    tick, words = (page.locator(f".pick-all {one}").bounding_box() for one in ("input", ".words"))
    page.get_by_label("Select all shown").tap()

    assert tick is not None
    assert words is not None
    assert words["x"] >= tick["x"] + tick["width"]  # beside the box, not below it
    expect(page.get_by_role("button", name="Ask about the selected (4)")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    size = page.locator(".pick").first.bounding_box()
    assert size is not None
    assert min(size["width"], size["height"]) >= 44
    assert violations(page) == []
    page.get_by_role("button", name="Clear").tap()
    expect(page.locator("#selection")).to_be_hidden()
    assert ticked(page) == []


def test_without_javascript_boxes_and_button_are_a_plain_form(mails: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    page = signed_in(ana, java_script_enabled=False)
    page.goto("/")

    page.get_by_role("button", name="Ask about the selected").click()
    expect(page.get_by_text("Select at least one action.")).to_be_visible()
    page.goto("/")
    page.get_by_role("link", name="Select all shown").click()
    page.get_by_role("button", name="Ask about the selected").click()

    expect(page.get_by_text("3 of the selected calls are being asked about, 1 is not.")).to_be_visible()
    assert asked() == {ActionRef("main", "m-1", seq) for seq in (1, 2, 3)}


@pytest.mark.parametrize("width", [1440, 390])
def test_the_bar_of_the_selection_stands_at_the_lower_edge(
    records: RecallWriter, ana: User, signed_in: SignedIn, width: int
) -> None:
    for seq in range(1, 31):
        records.action("m-1", seq)
    page = open_live(signed_in(ana, viewport={"width": width, "height": 800}), "/")
    page.locator(".pick input").first.check()

    for place in (0, 100_000):
        page.evaluate("(place) => { scrollTo(0, place); document.querySelector('.list').scrollTop = place; }", place)
        box = page.locator("#selection").bounding_box()
        assert box is not None
        assert round(box["y"] + box["height"]) == 800
