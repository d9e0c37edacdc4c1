"""Deciding about several in a real browser: select, look, write, and what failed stays selected. This process is the worker."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django import Settings

from actions.records import ActionRef
from console import stores
from console.models import Batch, Decision
from console.services import batches
from console.services.bulk import commit, draft_selected
from console.services.decide import DecisionRequest, decide
from tests.browser.conftest import ALIVE, SignedIn
from tests.browser.live import open_live, quiet
from tests.browser.test_every_page import violations
from tests.browser.test_selecting import ticked
from tests.recall_writer import RecallWriter


@pytest.fixture
def mails(records: RecallWriter, store_url: str, settings: Settings) -> RecallWriter:
    """Three emails in doubt of three agents; the second one is alive."""
    settings.ACTION_STORES = {"main": store_url}
    stores.reset()
    for seq, name in enumerate(("ann", "bob", "cat"), start=1):
        records.lease(f"m-{seq}", state="live" if name == "bob" else "expired", ttl=ALIVE)
        records.action(f"m-{seq}", 1, status="unknown", args={"to": f"{name}@example.com", "subject": "Refund"})
    return records


def work() -> None:
    """What workers do until nothing is left."""
    pk = Batch.objects.latest("pk").pk
    while batches.advance(pk):
        pass


@pytest.mark.parametrize("has_scripts", [True, False])
def test_three_are_selected_and_decided_and_the_one_that_failed_stays_selected(
    mails: RecallWriter, ana: User, bea: User, signed_in: SignedIn, has_scripts: bool
) -> None:
    page = signed_in(ana, java_script_enabled=has_scripts)
    page.goto("/?state=unknown,in_flight")
    for box in page.locator(".pick input").all():
        box.check()
    page.get_by_role("button", name="Decide the selected").click()
    expect(page.get_by_role("heading", name="Decide 3 calls")).to_be_visible()

    page.locator("#decide input[value=done]").check()
    page.fill("#reason", "Found in the Sent folder")
    page.locator("#decide .commit button").click()
    expect(page.locator(".slip dd").last).to_have_text(
        "(settled after a crash: done; operator ana: Found in the Sent folder) done"
    )
    assert not Decision.objects.exists()
    decide(ActionRef("main", "m-2", 1), DecisionRequest(outcome="failed", reason="Bounced", decision_id=str(uuid4())), by=bea)
    page.get_by_role("button", name="Write: it happened · 3 calls").click()
    expect(page.locator("#how-far")).to_have_text("0 of 3")
    work()

    if not has_scripts:
        page.reload()
    expect(page.locator("#how-far")).to_have_text("3 of 3, 1 failed")
    expect(page.locator(".batch-items")).to_contain_text("operator bea has decided it failed; that decision is waiting")
    page.get_by_role("link", name="Open this 1 in the queue").click()

    expect(page.locator(".strip")).to_have_count(1)
    if has_scripts:
        quiet(page)
    assert ticked(page) == ["main/m-2/1"]
    assert [mails.body_of(f"m-{n}:act:1")["status"] for n in (1, 2, 3)] == ["done", "unknown", "done"]
    assert Batch.objects.count() == 1


@pytest.mark.parametrize(("light", "width"), [("light", 1440), ("dark", 320)])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(
    mails: RecallWriter, ana: User, signed_in: SignedIn, light: str, width: int
) -> None:
    refs = [ActionRef("main", f"m-{n}", 1) for n in (1, 2, 3)]
    batch, _ = commit(draft_selected(refs, by=ana).batch_id, by=ana, outcome="done", reason="x" * 300)
    work()
    proven = draft_selected(refs, by=ana, is_proven=True)
    draft = draft_selected(refs[1:2], by=ana)
    page = signed_in(ana, color_scheme=light, viewport={"width": width, "height": 800})
    found: dict[str, object] = {}

    for path in (
        "/bulk/",
        f"/bulk/{batch.batch_id}/",
        f"/bulk/{proven.batch_id}/",
        f"/bulk/{draft.batch_id}/",
        "/?tool=send_email&state=any",
    ):
        open_live(page, path)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if lines := violations(page) + ([f"{wide} px too wide"] if wide > 0 else []):
            found[path] = lines

    assert found == {}
