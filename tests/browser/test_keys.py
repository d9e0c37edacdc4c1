"""Single keys: what each one does, where none does anything, and that none of them ever decides."""

from __future__ import annotations

import re
import string

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect

from console.models import Decision
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live, quiet
from tests.recall_writer import RecallWriter

KEYS = ("j", "k", "o", "x", "c", "n", "r", "d", "f", "/", "?")
OF_APPROVALS = ("a", "e", "x")  # tests/browser/test_approvals.py
SEEN = """() => JSON.stringify([
    location.href, document.activeElement.id || document.activeElement.tagName,
    [...document.querySelectorAll("dialog[open]")].map((dialog) => dialog.id),
    [...document.querySelectorAll("input:checked")].map((box) => box.value)])"""
"""What a key could have changed, but for what is typed into a field."""
FIELDS = {
    "a search field": '<input type="search" id="probe">',
    "a text field": '<input type="text" id="probe">',
    "a date field": '<input type="date" id="probe">',
    "a moment": '<input type="datetime-local" id="probe">',
    "a number": '<input type="number" id="probe">',
    "a choice": '<select id="probe"><option>done</option><option>failed</option></select>',
    "a text": '<textarea id="probe"></textarea>',
    "an editable": '<div id="probe" contenteditable tabindex="0">x</div>',
}


@pytest.fixture
def queue(records: RecallWriter, ana: User, signed_in: SignedIn) -> Page:
    """Two calls in doubt, the second one opened beside the list."""
    records.action("m-1", 1, args={"to": "first@example.com"}, started_at="2026-11-29T10:00:01Z")
    records.action("m-2", 1, args={"to": "second@example.com"}, started_at="2026-11-29T10:00:02Z")
    return open_live(signed_in(ana), "/?open=main/m-2/1")


def link(page: Page, name: str) -> Locator:
    return page.locator(f"#queue a[data-pane='main/{name}/1']")


def test_each_key_does_what_the_help_says(queue: Page) -> None:
    press = queue.keyboard.press
    queue.evaluate("document.activeElement.blur()")

    press("k")
    expect(link(queue, "m-1")).to_be_focused()
    press("j")
    expect(link(queue, "m-2")).to_be_focused()
    press("x")
    expect(queue.locator(".pick input:checked")).to_have_count(1)
    press("x")
    expect(queue.locator(".pick input:checked")).to_have_count(0)
    press("k")
    press("o")
    expect(queue.locator("#action h1")).to_contain_text("first@example.com")
    for key, outcome in (("d", "done"), ("f", "failed")):
        press(key)
        expect(queue.locator(f"#decision input[value={outcome}]")).to_be_checked()
        expect(queue.locator("#reason")).to_be_focused()
        press("Escape")
        expect(queue.locator("#reason")).not_to_be_focused()
    press("/")
    expect(queue.locator("#f-text")).to_be_focused()
    press("Escape")
    press("?")
    expect(queue.locator("#help")).to_be_visible()
    assert set(queue.locator("#help kbd").all_inner_texts()) == {*KEYS, *OF_APPROVALS, "Ctrl", "Enter", "Esc"}
    press("Escape")
    expect(queue.locator("#help")).to_be_hidden()
    press("Escape")
    expect(queue.locator("#action")).to_have_count(0)
    assert not Decision.objects.exists()


def test_no_key_does_anything_where_somebody_types_or_means_something_else(queue: Page) -> None:
    found: dict[str, list[str]] = {}

    def nothing_by(where: str, *keys: str) -> None:
        for key in keys:
            before = queue.evaluate(SEEN)
            queue.keyboard.press(key)
            if queue.evaluate(SEEN) != before:
                found.setdefault(where, []).append(key)

    for where, field in FIELDS.items():
        queue.evaluate("html => document.querySelector('#main').insertAdjacentHTML('beforeend', html)", field)
        queue.focus("#probe")
        nothing_by(where, *KEYS)
        queue.evaluate("document.querySelector('#probe').remove()")
    link(queue, "m-1").focus()
    for modifier in ("Control", "Alt", "Meta"):
        # A browser's own Control+o, +d and the like are none of ours: only whether the page takes them is asked.
        sent = "([name, key]) => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, [name]: true, bubbles: true}))"
        for key in KEYS:
            before = queue.evaluate(SEEN)
            queue.evaluate(sent, [{"Control": "ctrlKey", "Alt": "altKey", "Meta": "metaKey"}[modifier], key])
            if queue.evaluate(SEEN) != before:
                found.setdefault(modifier, []).append(key)
    for how in ("isComposing: true", "keyCode: 229"):
        for key in KEYS:
            before = queue.evaluate(SEEN)
            queue.evaluate(
                f"key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key, {how}, bubbles: true}}))", key
            )
            if queue.evaluate(SEEN) != before:
                found.setdefault(how, []).append(key)
    queue.keyboard.press("?")
    expect(queue.locator("#help")).to_be_visible()
    nothing_by("a dialog", *KEYS)
    with queue.expect_response("**/settings/keys/"):
        queue.locator("#help [data-keys]").uncheck()
    queue.keyboard.press("Escape")
    expect(queue.locator("#help")).to_be_hidden()
    link(queue, "m-1").focus()
    nothing_by("switched off", *KEYS)

    assert found == {}
    queue.reload()
    quiet(queue)
    queue.locator("body").press("j")
    expect(queue.locator("#queue a:focus")).to_have_count(0)  # off stays off
    queue.keyboard.press("Escape")
    expect(queue.locator("#action")).to_have_count(0)  # Esc is no single key


def test_no_single_key_ever_writes_a_decision_that_is_filled_in(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    page.check("#decision input[value=done]")
    page.fill("#reason", "Found it")
    expect(page.locator(".slip dd").last).to_contain_text("Found it")
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.url.endswith("/decision/") else None)

    for key in [*string.ascii_letters, *string.digits, *"/?.,;:!-+*#", "Enter", "Space", "Delete", "Home", "F2"]:
        page.evaluate("document.activeElement.blur(); document.querySelector('#help').close()")
        page.keyboard.press(key)
    page.focus("#reason")
    page.keyboard.press("Enter")

    expect(page.locator("#decision-form")).to_be_visible()
    assert posted == []
    assert not Decision.objects.exists()
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_the_list_of_agents_refreshes_itself_and_is_walked_by_keys(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    records.action("m-2", 1)
    page = open_live(signed_in(ana), "/agents/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator(".agent-line a", has_text="m-2")
    expect(second).to_be_focused()

    records.action("a-0", 1)

    expect(page.locator(".agent-line a")).to_have_text(["a-0", "m-1", "m-2"])
    expect(second).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("o")
    expect(page).to_have_url(re.compile(r"/agents/main/m-1/$"))
