"""Pages that refresh by themselves, waited for so that no test depends on which of two things comes first."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

HEARD = "addEventListener('changed', () => document.documentElement.setAttribute('data-heard', ''), true)"
"""Run in every page before its own scripts: the document says that it was told of a change."""
PATIENCE_S = 20.0
_ASK = """([part, patience]) => new Promise((done, fail) => {
    let mine = null;
    document.body.addEventListener("htmx:beforeSend", ({ detail }) => { if (detail.elt.id === part) mine ??= detail.xhr; });
    document.body.addEventListener("htmx:afterRequest", ({ detail }) => { if (detail.xhr === mine) done(mine.status); });
    setTimeout(() => fail(new Error(`#${part} has no answer`)), patience);
    document.body.dispatchEvent(new Event("changed"));
})"""


def open_live(page: Page, path: str) -> Page:
    """Open a page and wait until it is quiet: only what changes from now on makes it ask."""
    page.goto(path)
    return quiet(page)


def quiet(page: Page) -> Page:
    """Wait until a page that was just arrived at has heard the first word of its stream, which makes every part ask once, and was answered."""
    expect(page.locator("html[data-heard]")).to_be_attached()
    expect(page.locator("[data-live-part].htmx-request")).to_have_count(0)
    return page


def tell(page: Page) -> None:
    """What the stream does when something changed elsewhere."""
    page.evaluate("document.body.dispatchEvent(new Event('changed'))")


def ask_again(page: Page, part: str) -> int:
    """Let the part of this id ask as after a change: how a request that was sent after this call was answered, once the page has taken it in."""
    return int(page.evaluate(_ASK, [part, PATIENCE_S * 1000]))


def hold(page: Page, url: str) -> list[Route]:
    """Keep back what is asked there from now on; what is under way already is not kept, and a part asks nothing more while it is."""
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)  # Playwright marks what it is given; a list's own method takes no mark

    page.route(url, keep)
    return held


def until(page: Page, is_so: Callable[[], object]) -> None:
    """Let the page's events in until something is so in this process."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to that"
        page.wait_for_timeout(20)


def hide(page: Page) -> None:
    """As when the tab is no longer looked at: its stream is closed."""
    with page.expect_event("requestfailed", lambda request: "/events/" in request.url):
        set_hidden(page, True)


def set_hidden(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }""",
        is_hidden,
    )
