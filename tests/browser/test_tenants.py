"""Taking a lease away, in a browser: readable in either light, wide or narrow, and complete without JavaScript."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from console.models import Grant
from tests.browser.conftest import ALIVE, SignedIn
from tests.browser.test_every_page import violations
from tests.recall_writer import RecallWriter

ACTION, PATH = "/actions/main/live-7/1/", "/agents/main/live-7/eviction/"


@pytest.fixture
def waiting(records: RecallWriter, ana: User, signed_in: SignedIn) -> RecallWriter:
    """A decision that waits for a lease that its server keeps alive; Ana is an admin too."""
    Grant.objects.create(user=ana, role="admin")
    records.turn("live-7", 1, "Tell Ann about the delay")
    records.action("live-7", 1, args={"to": "ann@example.com", "subject": "Delay"})
    records.lease("live-7", holder="recall-serve-0:7:6ab7b8ff", epoch=4711, state="live", ttl=ALIVE)
    page = signed_in(ana, java_script_enabled=False)
    page.goto(ACTION)
    page.check("input[value=done]")
    page.fill("#reason", "Found in the Sent folder")
    page.locator("[name=review]").evaluate("button => button.click()")
    expect(page.get_by_text("Not written yet.")).to_be_visible()
    page.locator("#decision [data-once]").click()
    expect(page.locator(".answer.is-waiting")).to_be_visible()
    return records


def test_the_page_is_readable_in_either_light_and_at_320_px(waiting: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    for light in ("light", "dark"):
        page = signed_in(ana, color_scheme=light, viewport={"width": 320, "height": 700})
        page.goto(PATH)
        page.get_by_role("button", name="Take the lease away").click()

        expect(page.locator("#reason-error")).to_be_visible()
        assert violations(page) == [], light
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_without_javascript_a_lease_is_taken_and_the_decision_is_written(
    waiting: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    page = signed_in(ana, java_script_enabled=False)
    page.goto(ACTION)
    page.get_by_role("link", name="Its process is gone?").first.click()
    page.get_by_label("How do you know that its process is gone?").fill("its pod was deleted at 18:02")
    page.get_by_label("Type the agent's id to confirm").fill("live-7")

    page.get_by_role("button", name="Take the lease away").click()

    expect(page.get_by_role("heading", name="The lease was taken away")).to_be_visible()
    expect(page.locator("#eviction")).to_contain_text("written")
    assert waiting.body_of("live-7:act:1")["status"] == "done"
    assert not waiting.write_fenced("live-7", "recall-serve-0:7:6ab7b8ff", 4711, "live-7:turn:9", {})
