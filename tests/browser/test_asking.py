"""Asking the world in a real browser: "Ask now", evidence that fills the form in, policies, resolvers and their dry run."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import APIResponse, Route, expect
from pytest_django import Settings

from actions.records import ActionRef
from console import stores
from console.models import Decision, Definition, Hook, Incident, Inquiry, Pace, StoredVerdict
from console.services import claims, resolve
from console.services.asking import request_asking
from console.services.decide import DecisionRequest, decide
from console.services.definitions import save_definition
from console.services.hooks import make_hook
from console.services.inquiries import look_again
from console.services.policies import save_policy
from tests.browser import ledger
from tests.browser.conftest import SignedIn
from tests.browser.live import ask_again, open_live, tell, until
from tests.browser.test_every_page import troubles, violations
from tests.recall_writer import RecallWriter

FOUND = ActionRef("main", "m-1", 1)
SECRET = "token-xyzzy-0123456789"


@pytest.fixture
def world(records: RecallWriter, eve: User, store_url: str, settings: Settings) -> Iterator[RecallWriter]:
    """Emails, of which one can be found, and a resolver for them; this process is the worker."""
    settings.ACTION_STORES = {"main": store_url}
    settings.RESOLVER_CALLABLES = (ledger.PATH,)
    stores.reset()
    save_definition("sent-folder", "python", {"callable": ledger.PATH}, {}, seen_version=0, by=eve)
    save_policy("send_email", {"resolver": "sent-folder", "is_irreversible": "yes"}, seen_version=0, by=eve)
    records.lease("m-1", epoch=3)
    records.action("m-1", 1, args={"to": "found@example.com", "subject": "Refund"})
    records.action("m-1", 2, args={"to": "differs@example.com", "subject": "Contract"})
    records.action("m-1", 3, tool="create_payment", args={"amount": 120, "currency": "EUR", "to": "ACME"})
    yield records
    stores.reset()


def work() -> None:
    """What a worker does with every question that is due."""
    for pk in Inquiry.objects.filter(due_at__isnull=False).values_list("pk", flat=True):
        Pace.objects.all().delete()
        resolve.ask(pk)


@pytest.fixture
def incident(world: RecallWriter, eve: User) -> Incident:
    """An email that was written as failed and turned up."""
    world.action("r-1", 1, args={"to": "found-later@example.com"})
    decide(ActionRef("main", "r-1", 1), DecisionRequest(outcome="failed", reason="Not there", decision_id=str(uuid4())), by=eve)
    look_again(Decision.objects.get())
    request_asking(FOUND, by=eve)
    request_asking(ActionRef("main", "m-1", 2), by=eve)
    work()
    return Incident.objects.get()


def test_axe_finds_nothing_and_nothing_scrolls_sideways(incident: Incident, eve: User, ben: User, signed_in: SignedIn) -> None:
    pages = [
        "/tools/",
        "/tools/send_email/",
        "/resolvers/",
        "/resolvers/new/http/",
        "/simulator/?tool=send_email",
        "/incidents/",
        f"/incidents/{incident.pk}/",
        "/actions/main/m-1/2/",
        "/actions/main/r-1/1/",
        "/?verdict=done",
        "/?open=main/m-1/1",
        "/agents/main/m-1/",
    ]
    read_only = ["/tools/send_email/", "/resolvers/sent-folder/"]
    found: dict[str, object] = {}

    for user, paths in ((eve, pages), (ben, read_only)):
        page = signed_in(user, reduced_motion="reduce")
        for path in paths:
            found[f"{user} {path}"] = troubles(open_live(page, path))

    assert {name: lines for name, lines in found.items() if lines} == {}


def test_asking_shows_at_once_that_it_asks_and_then_by_itself_what_was_found(
    world: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")

    page.get_by_role("button", name="Ask sent-folder now").click()
    expect(page.locator("#world")).to_contain_text("Asking …")
    expect(page.locator("#ask-now")).to_be_focused()
    work()

    expect(page.locator("#world .verdict")).to_contain_text("found by our key; the fields agree")
    expect(page.locator("#world")).not_to_contain_text("Asking …")
    assert StoredVerdict.objects.get().asked_for == "ana"


def test_what_somebody_reads_is_not_folded_up_by_what_changes_elsewhere(
    world: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    request_asking(FOUND, by=ana)
    work()
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    page.locator("#world .verdict summary").click()
    expect(page.locator("#world .rule")).to_be_hidden()

    claims.claim(FOUND, by=bea)

    expect(page.locator("#claimed")).to_contain_text("claimed by bea")  # the answer that brings the world along was drawn
    expect(page.locator("#world .verdict summary")).to_be_visible()
    expect(page.locator("#world .rule")).to_be_hidden()


@pytest.mark.parametrize("has_scripts", [True, False])
def test_evidence_fills_the_form_in_and_a_person_writes_it(
    world: RecallWriter, ana: User, signed_in: SignedIn, has_scripts: bool
) -> None:
    request_asking(FOUND, by=ana)
    work()
    page = signed_in(ana, java_script_enabled=has_scripts)
    page.goto("/actions/main/m-1/1/")

    page.locator(".chips.evidence button").first.click()
    expect(page.locator(".slip")).to_contain_text("resolver sent-folder, exact")
    assert not Decision.objects.exists()
    page.get_by_role("button", name="Write: it happened").click()

    expect(page.locator(".answer.is-written")).to_be_visible()
    assert Decision.objects.get().evidence_id == StoredVerdict.objects.get().evidence_id
    assert world.body_of("m-1:act:1")["status"] == "done"


@pytest.mark.parametrize("has_scripts", [True, False])
def test_what_was_found_is_written_as_failed_only_after_a_word_about_it(
    world: RecallWriter, eve: User, signed_in: SignedIn, has_scripts: bool
) -> None:
    request_asking(FOUND, by=eve)
    work()
    page = signed_in(eve, java_script_enabled=has_scripts)
    page.goto("/actions/main/m-1/1/")
    page.check("#decision input[value=failed]")
    page.fill("#reason", "The customer has nothing")
    if not has_scripts:
        page.locator("#turn").get_by_role("button", name="Show the turn").click()
    expect(page.locator(".slip dd").last).to_contain_text("The customer has nothing")
    expect(page.locator("#turn [role=alert]")).to_contain_text("sent-folder says it happened: found by our key")
    assert not has_scripts or violations(page) == []

    page.locator("#decision [data-once]").click()
    expect(page.get_by_text("Tick this first")).to_be_visible()
    assert world.body_of("m-1:act:1")["status"] == "started"
    page.get_by_label("I have seen that sent-folder found it").check()
    page.locator("#decision [data-once]").click()

    expect(page.locator(".answer.is-written")).to_be_visible()
    assert world.body_of("m-1:act:1")["status"] == "failed"


@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_dry_run_of_what_is_typed_stores_nothing_and_keeps_the_typed_secret_to_the_browser(
    world: RecallWriter, eve: User, signed_in: SignedIn, has_scripts: bool
) -> None:
    page = signed_in(eve, java_script_enabled=has_scripts)
    page.goto("/resolvers/new/http/")
    page.fill("#field-name", "provider")
    page.fill("#field-set-url", "https://127.0.0.1:1/payments")
    page.select_option("#field-set-auth", "bearer")
    page.fill("#field-set-secret", SECRET)
    page.fill("#field-set-key", "object.key")
    page.select_option("#dry-open", "main/m-1/3")

    page.get_by_role("button", name="Ask, and change nothing").click()

    expect(page.locator("#dry-run")).to_contain_text("Nobody was asked. Address: 127.0.0.1 is loopback")
    assert page.input_value("#field-set-secret") == (SECRET if has_scripts else "")
    assert page.input_value("#field-name") == "provider"
    assert Definition.objects.count() == 1
    assert not StoredVerdict.objects.exists()


def test_enter_does_what_its_field_is_for_and_never_saves_beside_it(
    world: RecallWriter, eve: User, provider_hook: Hook, signed_in: SignedIn
) -> None:
    page = signed_in(eve)
    page.goto("/resolvers/payments/")

    for field, typed, where, said in (
        ("#try-status", "20", "#tried", "is no HTTP status"),
        ("#dry-action", "nonsense", "#dry-run", "names no action"),
    ):
        page.fill(field, typed)
        page.press(field, "Enter")
        expect(page.locator(where)).to_contain_text(said)
    page.fill("#hook-secret", "whsec_0123456789abcdef")
    page.press("#hook-secret", "Enter")
    expect(page.locator("#hook-secret")).to_have_value("")
    page.wait_for_load_state()  # it may be another page, and Enter is the browser's before its script has run
    expect(page.get_by_text("Copy both now")).to_have_count(0)
    after = Hook.objects.get()
    assert after.token_hash == provider_hook.token_hash
    assert bytes(after.secret) != bytes(provider_hook.secret)
    assert Definition.objects.filter(name="payments").count() == 1

    page.fill("#field-per_minute", "7")
    page.press("#field-per_minute", "Enter")
    expect(page.get_by_text("Saved as version 2.")).to_be_visible()


@pytest.fixture
def provider_hook(world: RecallWriter, eve: User) -> Hook:
    """Of an http resolver that nobody has asked."""
    said = {"url": "https://api.example.com/", "objects": "body.data", "key": "object.key", "id": "object.id"}
    save_definition("payments", "http", said, {}, seen_version=0, by=eve)
    make_hook("payments", "stripe", by=eve)
    return Hook.objects.get()


def test_a_policy_is_saved_by_keyboard_and_a_wrong_one_names_its_field(
    world: RecallWriter, eve: User, signed_in: SignedIn
) -> None:
    page = signed_in(eve)
    page.goto("/tools/create_payment/")

    page.fill("#field-settle_window_s", "90")
    page.keyboard.press("Enter")
    expect(page.locator(".has-problem .error")).to_contain_text("no length of time")
    page.fill("#field-settle_window_s", "90 min")
    page.keyboard.press("Enter")

    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    expect(page.locator(".versions")).to_contain_text("1 h 30 min")


def test_news_that_blocks_a_decision_outlive_what_is_drawn_in_its_place(
    world: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    request_asking(FOUND, by=ana)
    work()
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    world.action("m-1", 1, status="unknown", args={"to": "found@example.com", "subject": "Refund"})
    expect(page.locator("#foot-news [role=alert]")).to_contain_text("It has changed since you opened it")
    ask_again(page, "status")

    page.locator(".chips.evidence button").first.click()

    expect(page.locator("#reason")).not_to_have_value("")  # another form stands there, which the server drew without the news
    expect(page.locator("#foot-news [role=alert]")).to_contain_text("It has changed since you opened it")
    expect(page.locator("#decision [data-once]")).to_be_disabled()


def test_what_was_asked_for_before_a_gesture_is_not_drawn_over_its_answer(
    world: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    late: list[tuple[Route, APIResponse]] = []

    def answer_late(route: Route) -> None:
        if late:
            route.continue_()
        else:
            late.append((route, route.fetch()))

    page.route("**/m-1/1/status/?seen=*", answer_late)
    tell(page)
    until(page, lambda: late)
    page.evaluate("""() => {
        window.drawn = [];
        new MutationObserver(() => window.drawn.push(document.querySelector("#world").innerText))
            .observe(document.querySelector("#action"), { subtree: true, childList: true, characterData: true, attributes: true });
    }""")

    page.get_by_role("button", name="Ask sent-folder now").click()
    expect(page.locator("#world")).to_contain_text("Asking …")
    page.evaluate("window.drawn = []")
    route, answer = late[0]
    route.fulfill(response=answer)

    # Nor is the next one under way, which is sent as soon as this one came.
    expect(page.locator("#status.htmx-request")).to_have_count(0)
    assert all("Asking …" in one for one in page.evaluate("window.drawn"))
    expect(page.locator("#world")).to_contain_text("Asking …")
    expect(page.locator("#ask-now")).to_be_focused()
