"""The benchmark for the feel: one operator clears a hundred mixed items, each decided on evidence, without touching the mouse."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, Response, expect

from actions.records import ActionRef
from console.models import Decision, DecisionState, Note
from console.services.asking import request_asking
from console.services.policies import save_policy
from console.stores import get_store
from tests.browser.conftest import SignedIn
from tests.browser.live import open_live
from tests.browser.test_asking import work, world
from tests.recall_writer import RecallWriter

__all__ = ["world"]

MAX_FIRST_LOAD = 80_000
"""Bytes of scripts and styles together, compressed (issue, Done means)."""


@pytest.fixture
def hundred(world: RecallWriter, eve: User) -> RecallWriter:
    """Emails that the mailbox knows, payments of which the large ones need a second person, tickets, messages and deploys."""
    world.run("TRUNCATE {records}, {leases}")
    save_policy("create_payment", {"second_person_when": "amount > 1000"}, seen_version=0, by=eve)
    for number in range(100):
        agent, seq = f"agent-{number % 20}", number // 20 + 1
        kind = number % 5
        if kind == 0:
            world.action(agent, seq, args={"to": f"found-{number}@example.com", "subject": f"Invoice {number}"})
        elif kind == 1:
            amount = 2_000 if number % 4 == 1 else 120
            world.action(agent, seq, tool="create_payment", args={"amount": amount, "currency": "EUR", "to": f"ACME {number}"})
        elif kind == 2:
            world.action(agent, seq, tool="open_ticket", args={"title": f"Outage {number}"})
        elif kind == 3:
            world.action(agent, seq, tool="post_message", args={"channel": "ops", "text": f"Deploy {number} is done"})
        else:
            world.action(agent, seq, tool="deploy", args={"service": f"billing-{number}", "environment": "production"})
        if kind == 0:
            request_asking(ActionRef("main", agent, seq), by=eve)
    work()
    return world


def bodies(recall: RecallWriter, kind: str) -> list[dict[str, Any]]:
    """What every record of this kind says."""
    rows = recall.run("SELECT metadata->>'body' FROM {records} WHERE metadata->>'record' = %(kind)s", {"kind": kind})
    return [json.loads(body) for (body,) in rows]


def test_one_operator_clears_a_hundred_items_by_keyboard_and_none_is_lost_or_done_twice(
    hundred: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    store = get_store("main")
    before = store.read_head().number
    page = open_live(signed_in(ana), "/")
    press = page.keyboard.press

    press("j")
    press("Enter")
    answers = Counter(clear(page) for _ in range(100))

    expect(page.locator("#decision .steps")).to_contain_text("Nothing else to decide just now; 25 wait for somebody else")
    decisions = Decision.objects.all()
    assert answers == {"is-written": 75, "is-waiting": 5, "is-later": 20}  # for the second person
    assert Counter(decisions.values_list("state", flat=True)) == {DecisionState.WRITTEN: 75, DecisionState.PROPOSED: 5}
    assert Note.objects.count() == 20
    assert decisions.values("agent", "seq").distinct().count() == 80
    ends = Counter((body["tool"], body["status"]) for body in bodies(hundred, "action"))
    assert ends == {
        ("send_email", "done"): 20,
        ("create_payment", "done"): 15,
        ("create_payment", "started"): 5,
        ("open_ticket", "failed"): 20,
        ("post_message", "done"): 20,
        ("deploy", "started"): 20,
    }
    entries = [entry for entry in store.list_entries(limit=1_000) if entry.kind == "settled" and entry.number > before]
    assert len({(entry.agent, entry.seq) for entry in entries}) == len(entries) == 75
    assert len(bodies(hundred, "turn")) == 75


def clear(page: Page) -> str:
    """Read the opened action, decide it by what the world says of it, and go on to the next one; answers what became of it."""
    heading = page.locator("#action h1")
    expect(heading).to_be_visible()
    expect(page.locator("[data-live=on]")).to_be_visible()  # a page of its own shows its heading before its script hears any key
    said = heading.inner_text()
    press = page.keyboard.press
    if "Invoice" in said or "found-" in said:
        expect(page.locator("#world")).to_contain_text("found by our key")
        outcome, reason = "done", "Found in the Sent folder"
    elif said.startswith("Payment"):
        outcome, reason = "done", "On the bank's statement"
    elif "Outage" in said:
        outcome, reason = "failed", "No such ticket in the tracker"
    elif "Deploy of" in said or "billing-" in said:
        outcome, reason = "later", "The cluster does not answer"
    else:
        outcome, reason = "done", "Seen in the channel"
    press("f" if outcome == "failed" else "d")
    expect(page.locator("#reason")).to_be_focused()
    if outcome == "later":
        press("Shift+Tab")
        press("ArrowDown")
        press("ArrowDown")
        press("ArrowDown")
        expect(page.locator("#decision input[value=later]")).to_be_checked()
        press("Tab")
    page.keyboard.insert_text(reason)
    press("Control+Enter")
    expect(page.locator("#decision [data-once]")).to_be_focused()
    press("Enter")
    answer = page.locator("#decision .answer:not(.no-answer)")
    expect(answer).to_be_visible()
    became = next(name for name in (answer.get_attribute("class") or "").split() if name.startswith("is-"))
    if page.locator("[data-next]").count():
        press("n")
        expect(page.locator("#decision .answer:not(.no-answer)")).to_have_count(0)
    return became


def test_the_first_load_of_the_queue_is_small(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = signed_in(ana)
    came: list[Response] = []

    def note(response: Response) -> None:
        came.append(response)  # Playwright marks what it is given; a list's own method takes no mark

    page.on("response", note)
    open_live(page, "/")
    loaded = {
        urlsplit(one.url).path: len(gzip.compress(one.body()))
        for one in came
        if one.request.resource_type in ("script", "stylesheet")
    }
    html = page.content()

    assert len(loaded) >= 3
    assert sum(loaded.values()) <= MAX_FIRST_LOAD, loaded
    assert "<style" not in html
    assert ' style="' not in html
    assert page.locator("script:not([src])").count() == 0
