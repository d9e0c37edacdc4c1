"""Takes the pictures of `docs/` from the running demo: `.venv/bin/python -m local.pictures`. Decides nothing there, and leaves no draft behind.

Best from a fresh one, so that what was tried before is not on them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from local import chromium

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / ".data" / "demo.json"
QUEUE: ViewportSize = {"width": 1440, "height": 900}
ACTION: ViewportSize = {"width": 1180, "height": 900}
MONEY = "create_payment"
"""The tool whose call is shown opened: the first of it in the queue that was found."""


def main() -> int:
    if not DEMO.exists():
        print("no demo runs; start one with ./run demo", file=sys.stderr)
        return 1
    running = json.loads(DEMO.read_text())
    browser_path = chromium.find()
    if browser_path is None:
        print("no Chromium was found; CHROMIUM may name one", file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=chromium.launch_arguments())
        page = browser.new_page(base_url=running["url"], viewport=QUEUE, color_scheme="light", reduced_motion="reduce")
        _sign_in(page, running["username"], running["password"])
        _take_queue(page)
        _take_action(page)
        browser.close()
    return 0


def _sign_in(page: Page, name: str, password: str) -> None:
    page.goto("/login/")
    page.fill("[name=username]", name)
    page.fill("[name=password]", password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("[data-live=on]")).to_be_visible()


def _take_queue(page: Page) -> None:
    page.goto("/")
    expect(page.locator("[data-live=on]")).to_be_visible()
    page.screenshot(path=ROOT / "docs" / "queue.png")


def _take_action(page: Page) -> None:
    """One call on a page of its own, with what the world says and the turn that a decision would become."""
    page.set_viewport_size(ACTION)
    page.goto(f"/?tool={MONEY}&verdict=done")
    page.locator("#queue .what a").first.click()
    page.get_by_role("radio", name="It happened").check()
    page.fill("#reason", "Seen in the provider's dashboard, with this key")
    expect(page.locator("#turn [data-once]")).to_be_visible()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.screenshot(path=ROOT / "docs" / "action.png", full_page=True)


if __name__ == "__main__":
    sys.exit(main())
