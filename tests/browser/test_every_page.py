"""What holds on every page: axe finds nothing in either light, nothing loads from elsewhere, 320 px are enough, hostile text does nothing."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect

from console.models import Claim, HandOver, Note
from console.services.saved_views import save_view
from tests.browser.conftest import ALIVE, SignedIn
from tests.browser.live import hide, open_live, set_hidden
from tests.hostile.corpus import CORPUS
from tests.recall_writer import RecallWriter

INJECTED = (
    '<button hx-post="/actions/main/h-1/1/decision/" hx-trigger="load" data-hx-get="/stolen">x</button>'
    '<script>fetch("/stolen")</script><img src="/stolen" onerror="fetch(\'/stolen\')"><style>body{display:none}</style>'
)
UNBROKEN = '(settled after a crash: send_email(to="marta.nowak@example.com",subject="' + "x" * 200 + '"))'
WIDTHS = (320, 768, 1440)
WITH_THE_LOOKS = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"]
"""axe's rules whose answers depend on light and width; all the others are asked once."""
PAGES = {
    "queue": "/",
    "queue with filters": "/?state=done,failed,abandoned&class=any&text=a",
    "empty queue": "/?text=nothing-like-this",
    "queue by crash": "/?group=crash",
    "saved views": "/views/?tool=send_email",
    "queue and action": "/?open=main/m-1/1",
    "action": "/actions/main/m-1/1/",
    "closed action": "/actions/main/m-1/2/",
    "waiting action": "/actions/main/live-1/1/",
    "unreadable": "/actions/main/broken-1/1/",
    "arguments": "/actions/main/m-1/1/arguments/",
    "agents": "/agents/",
    "no agents": "/agents/?text=nothing-like-this",
    "agent": "/agents/main/m-1/",
    "settled agent": "/agents/main/s-1/",
    "briefing": "/agents/main/m-1/briefing/",
    "history": "/history/",
    "entry": "/history/main/1/",
    "insight": "/insight/",
    "stores": "/stores/",
    "hand over": "/handover/",
    "nothing to correct": "/actions/main/m-1/2/correction/",
    "not found": "/nothing/here/",
    "bad filter": "/?state=bogus",
}


@pytest.fixture
def story(records: RecallWriter, ana: User, signed_in: SignedIn) -> RecallWriter:
    """A little of everything."""
    records.lease("m-1", epoch=3)
    records.working_state("m-1", goal="Tell Anna", plan=["Write", "Send"])
    records.turn("m-1", 1, "Tell Anna about the delay")
    records.turn("m-1", 2, INJECTED, role="tool", name="find_order")
    records.pointer("m-1", "ticket")
    records.turn("m-1", 3, UNBROKEN, role="tool", name="send_email", brief=UNBROKEN)
    records.action("m-1", 1, args={"to": "anna@example.com", "subject": "Refund\u202e", "body": "x" * 5000})
    records.action(
        "m-1",
        2,
        tool="create_payment",
        status="done",
        args={"amount": 5, "currency": "EUR"},
        result="ok",
        resolution="operator x: y",
    )
    records.action("p-1", 1, tool="create_payment", args={"amount": 120, "currency": "EUR", "to": "ACME"}, status="unknown")
    records.lease("live-1", state="live", ttl=ALIVE)
    records.action("live-1", 1, tool="book_courier", status="unknown")
    records.action("broken-1", 1, body="{")
    records.action("s-1", 1)
    records.action("s-1", 2)  # the same call again
    now = timezone.now()
    place = {"store": "main", "agent": "m-1", "seq": 1, "tool": "send_email", "by": ana, "username": "ana"}
    Claim.objects.create(**place, claimed_at=now, expires_at=now + timedelta(hours=1), taken_from="bea")
    Note.objects.create(**place, decision_id="note-00001", text=UNBROKEN, look_again_at=now - timedelta(hours=1))
    HandOver.objects.create(handover_id="hand-over-1", by=ana, username="bea", to=ana, text="The bank calls " + "x" * 200)
    save_view("Late mails", "tool=send_email&age=300", by=ana, is_shared=True)
    page = signed_in(ana)
    for path, answer in (("/actions/main/live-1/1/", "is-waiting"), ("/actions/main/s-1/1/", "is-written")):
        open_live(page, path)
        page.check("input[value=done]")
        page.fill("#reason", "Seen in the portal")
        expect(page.locator(".slip dd").last).to_contain_text("Seen in the portal")
        page.locator("#decision [data-once]").click()
        expect(page.locator(f".answer.{answer}")).to_be_visible()
    return records


def violations(page: Page) -> list[str]:
    """What axe finds, one line each."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


def troubles(page: Page) -> list[str]:
    """What axe finds on a page in either light, and at which widths it scrolls sideways: all of one load."""
    page.emulate_media(color_scheme="light")
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    before = page.viewport_size
    assert before is not None
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 700})
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{wide} px too wide at {width}"] if wide > 0 else []
        if width == min(WIDTHS):
            page.evaluate("scrollTo(0, 0)")  # what lies half under the head line is no smaller for it
            again = page.evaluate("rules => axe.run(document, {runOnly: rules})", WITH_THE_LOOKS)["violations"]
            found += [f"dark, {width}: {one['id']}: {node['html'][:160]}" for one in again for node in one["nodes"]]
    page.set_viewport_size(before)
    return found


def test_axe_finds_nothing_on_any_page_in_either_light_and_none_scrolls_sideways(
    story: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    page = signed_in(ana, reduced_motion="reduce")
    found = {}

    for name, path in PAGES.items():
        found[name] = troubles(open_live(page, path))

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_axe_finds_nothing_in_the_answers(records: RecallWriter, ana: User, ben: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    records.action("m-1", 2, cls="idempotent")
    page = signed_in(ana, reduced_motion="reduce")
    found = []
    open_live(page, "/actions/main/m-1/1/")
    for outcome in ("done", "failed", "abandoned", "later"):
        page.check(f"input[value={outcome}]")
        page.fill("#reason", f"About {outcome}")
        expect(page.locator("#turn [data-once]")).to_be_visible()
        expect(page.locator(".slip.stale")).to_have_count(0)
        found += troubles(page)
    page.locator("#decision [data-once]").click()
    expect(page.locator(".answer.is-later")).to_be_visible()
    found += troubles(page)
    open_live(page, "/actions/main/m-1/2/")
    page.check("input[value=done]")
    page.fill("#reason", "Found it")
    expect(page.locator(".slip dd").last).to_contain_text("Found it")
    page.locator("#decision [data-once]").click()
    expect(page.locator(".answer.is-written")).to_be_visible()
    found += troubles(page)
    open_live(page, "/actions/main/m-1/2/")
    page.get_by_role("link", name="I was wrong").click()
    page.locator("#correction input[value=failed]").check()
    page.fill("#correction-reason", "Another customer's")
    expect(page.locator("#correction-turn")).to_contain_text("Another customer's")
    expect(page.locator("#correction-turn [data-once]")).to_be_visible()
    found += troubles(page)
    page.locator("#correction-turn [data-once]").click()
    expect(page.locator("#correction .answer.is-written")).to_be_visible()
    found += troubles(page)
    viewer = signed_in(ben, reduced_motion="reduce")
    found += troubles(open_live(viewer, "/actions/main/m-1/1/"))

    assert found == []


def test_axe_finds_nothing_at_the_door(stranger: Page) -> None:
    stranger.emulate_media(reduced_motion="reduce")
    stranger.goto("/login/?next=/&ended=post")
    assert troubles(stranger) == []

    stranger.fill("[name=username]", "nobody")
    stranger.fill("[name=password]", "wrong")
    stranger.get_by_role("button", name="Sign in").click()

    expect(stranger.get_by_role("alert").last).to_contain_text("do not match")
    assert troubles(stranger) == []


def test_no_page_breaks_a_rule_of_its_own_or_asks_another_host(
    story: RecallWriter, ana: User, signed_in: SignedIn, site: str
) -> None:
    """Console errors are what the CSP, a missing file or a script's mistake leave behind."""
    page = signed_in(ana)
    complaints: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3])))

    for path in PAGES.values():
        open_live(page, path)

    assert [line for line in complaints if "status of 404" not in line and "status of 400" not in line] == []
    assert hosts == {site}


def test_nothing_that_agents_write_is_run_or_fetched(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    """Everything of the corpus that would run or load something, at once."""
    texts = [INJECTED, *(one.text for one in CORPUS if any(word in one.text for word in ("stolen", "alert(1)", "evil.example")))]
    whole = "\n".join(texts)
    for seq, text in enumerate(texts, start=1):
        records.turn("h-1", seq, text, role="tool", name=text[:60])
        records.pointer("h-1", f"p{seq}", fields={text[:40]: text}, note=text)
        records.action("h-1", seq + 1, tool=text[:60], args={"to": text, "subject": text, text[:40]: text})
    records.working_state("h-1", goal=whole, plan=texts, notes=whole)
    records.action("h-1", 1, args={"to": texts[0], "subject": whole, "body": whole + "x" * 5000})
    page = signed_in(ana)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    page.on("dialog", lambda dialog: asked.append(f"POST a dialog: {dialog.message}"))

    for path in (
        "/",
        "/?open=main/h-1/1",
        "/actions/main/h-1/1/arguments/",
        "/agents/main/h-1/",
        "/agents/main/h-1/briefing/",
        "/actions/main/h-1/1/",
    ):
        open_live(page, path)
        expect(page.locator("body")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#arguments.whole")).to_be_visible()

    assert len(texts) > 20
    assert [line for line in asked if line.startswith("POST") or "stolen" in line or "evil.example" in line] == []
    assert records.body_of("h-1:act:1")["status"] == "started"
    assert json.dumps(page.title()).isascii()
    assert "stolen" not in page.title()


def test_the_light_can_be_switched_by_hand_and_stays(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    page = signed_in(ana, color_scheme="light", java_script_enabled=False)
    page.goto("/stores/")

    page.get_by_role("button", name="Dark").click()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("heading", name="Stores")).to_be_visible()
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_button_for_the_light_offers_the_opposite_of_what_is_seen(
    records: RecallWriter, ana: User, signed_in: SignedIn, system: str
) -> None:
    page = signed_in(ana, color_scheme=system, java_script_enabled=False)
    page.goto("/stores/")
    seen = []
    other = {"light": "dark", "dark": "light"}

    for _ in range(3):
        seen.append(page.evaluate("getComputedStyle(document.documentElement).colorScheme"))
        page.get_by_role("button", name=other[seen[-1]].title()).click()
        expect(page.get_by_role("button", name=seen[-1].title())).to_be_visible()
        page.wait_for_load_state()

    assert seen == [system, other[system], system]


def test_live_updates_keep_focus_and_place(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    for seq in range(1, 41):
        records.action("m-1", seq, args={"to": f"c{seq}@example.com"})
    page = open_live(signed_in(ana), "/")
    link = page.get_by_role("link", name="Email to c30@example.com")
    link.focus()
    before = link.bounding_box()

    records.action("m-1", 41, args={"to": "new@example.com"})
    expect(page.locator(".strip")).to_have_count(41)
    records.action("m-1", 1, args={"to": "c1@example.com"}, status="done")
    expect(page.locator(".strip")).to_have_count(40)

    expect(link).to_be_focused()
    after = link.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 48


def test_the_event_stream_is_closed_while_the_tab_is_hidden(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    page, other = signed_in(ana), signed_in(bea)
    open_live(other, "/")
    open_live(page, "/")
    hide(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    records.action("m-1", 1)

    expect(other.locator(".strip")).to_have_count(1)  # everybody else has learned of it
    expect(page.locator(".strip")).to_have_count(0)
    assert asked == []
    set_hidden(page, False)
    expect(page.locator(".strip")).to_have_count(1)
