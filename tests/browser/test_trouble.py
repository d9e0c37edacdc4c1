"""What a person sees when something stands still, ends or changes under them, and that nothing they typed goes to somebody else."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, Response, Route, expect

from tests.browser.conftest import ALIVE, SignedIn
from tests.browser.live import ask_again, hold, open_live, tell, until
from tests.browser.test_deciding import decide, fill_in
from tests.browser.test_second_person import PAY, gates
from tests.recall_writer import RecallWriter


def test_a_server_that_never_answers_is_said_and_the_decision_can_be_sent_again(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    assert page.evaluate("htmx.config.timeout") == 15_000
    page.route("**/decision/", lambda route: None)
    fill_in(page, "done", "Found it")
    page.evaluate("htmx.config.timeout = 300")

    page.locator("#decision [data-once]").click()

    expect(page.locator("#no-answer")).to_be_visible()
    expect(page.locator("[data-live]")).to_have_attribute("data-live", "off")
    expect(page.locator("#decision [data-once]")).to_be_enabled()
    page.unroute("**/decision/")
    page.evaluate("htmx.config.timeout = 15000")
    page.locator("#decision [data-once]").click()
    expect(page.locator(".answer.is-written")).to_be_visible()


@pytest.mark.parametrize("button", ["Approve: done", "Turn it down"])
def test_a_second_person_without_an_answer_is_told_that_nobody_knows_and_sends_it_again(
    records: RecallWriter, ana: User, cleo: User, eve: User, signed_in: SignedIn, button: str
) -> None:
    gates(eve, second_person_when="true", hold_s=0)
    records.action("m-1", 1, tool=PAY, args={"amount": 4200, "currency": "EUR", "to": "ACME"})
    proposer = signed_in(ana)
    proposer.goto("/actions/main/m-1/1/")
    decide(proposer, "done", "Seen in the dashboard")
    expect(proposer.locator("#decision")).to_contain_text("waiting for a second person")
    page = open_live(signed_in(cleo), "/actions/main/m-1/1/")
    page.fill("#second-reason", "I looked at it")
    page.route("**/decision/*/", lambda route: route.fulfill(status=500))

    page.get_by_role("button", name=button).click()

    expect(page.locator("#decision .no-answer")).to_contain_text("not known what became of it")
    expect(page.locator("#second-reason")).to_have_value("I looked at it")
    page.unroute("**/decision/*/")
    page.route("**/decision/*/", hold_until_the_foot_was_asked_for(page))
    page.get_by_role("button", name=button).click()
    expect(page.locator("#decision .answer")).to_contain_text("Written: done" if button.startswith("Approve") else "Turned down")


def hold_until_the_foot_was_asked_for(page: Page) -> Callable[[Route], None]:
    """Let a gesture be made, and its answer through only after a live update of the same section has come."""

    def handle(route: Route) -> None:
        answer = route.fetch()
        page.evaluate(
            """async () => {
                const came = new Promise((done) => document.body.addEventListener("htmx:afterRequest", (event) => {
                    if (event.detail.requestConfig.path.includes("foot=")) done();
                }));
                document.body.dispatchEvent(new Event("changed"));
                await came;
            }"""
        )
        route.fulfill(response=answer)

    return handle


def test_silence_is_not_live(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    page = signed_in(ana)
    page.clock.install()
    page.goto("/")
    expect(page.locator("[data-live=on]")).to_be_visible()
    page.route("**/*", lambda route: None)  # what is asked from now on never comes

    for _ in range(3):  # what was under way already may still be heard once
        page.clock.run_for(26_000)

    expect(page.locator("[data-live=off]")).to_be_visible()


def test_a_draft_is_its_authors_alone(records: RecallWriter, ana: User, bea: User, signed_in: SignedIn, site: str) -> None:
    records.action("m-1", 1)
    page = signed_in(ana)
    page.goto("/actions/main/m-1/1/")
    page.check("input[value=done]")
    page.fill("#reason", "Typed by ana")
    client = Client()
    client.force_login(bea)
    page.context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site}])

    page.goto("/actions/main/m-1/1/")

    expect(page.locator("#reason")).to_have_value("")
    assert page.evaluate("Object.keys(sessionStorage).filter((key) => key.startsWith('draft:')).length") == 0


def test_an_end_under_somebody_typing_holds_the_commit_back_until_they_look(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page, other = signed_in(ana), signed_in(bea)
    page.goto("/actions/main/m-1/1/")
    page.check("input[value=failed]")
    page.fill("#reason", "Typed by ana")
    expect(page.locator(".slip dd").last).to_contain_text("Typed by ana")
    other.goto("/actions/main/m-1/1/")
    decide(other, "done", "Found it")

    expect(page.locator("#foot-news [role=alert]")).to_contain_text("It ended meanwhile: done, by operator bea")
    expect(page.locator("#decision [data-once]")).to_be_disabled()
    expect(page.locator("#reason")).to_have_value("Typed by ana")
    page.get_by_role("button", name="Look at it").click()
    expect(page.locator("#decision [data-once]")).to_be_enabled()


def test_who_has_just_decided_is_not_told_that_it_ended_meanwhile(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana), "/actions/main/m-1/1/")
    # The news comes first, while the answer is held up, and then once more after it.
    page.route("**/decision/", hold_until_the_page_knows(page))
    decide(page, "done", "Found it")

    expect(page.locator(".answer.is-written")).to_be_visible()
    ask_again(page, "status")
    expect(page.locator("#status .state.is-done")).to_be_visible()
    expect(page.locator("#foot-news [role=alert]")).to_have_count(0)
    assert page.evaluate("window.told") == 0


def hold_until_the_page_knows(page: Page) -> Callable[[Route], None]:
    """Let the decision be made, and its answer through only after a live update has said the same."""

    def handle(route: Route) -> None:
        answer = route.fetch()
        page.evaluate(
            """async () => {
                window.told = 0;
                const count = () => { window.told += document.querySelectorAll("#foot-news [role=alert]").length; };
                const knows = () => document.querySelector("#status .state.is-done");
                const told = new Promise((done) => document.body.addEventListener("htmx:afterSettle", () => {
                    count();
                    if (knows()) done();
                }));
                count();
                document.body.dispatchEvent(new Event("changed"));
                if (!knows()) await told;
            }"""
        )
        route.fulfill(response=answer)

    return handle


def test_a_decision_that_is_delivered_says_so_where_it_was_waiting(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    records.lease("m-1", state="live", ttl=ALIVE)
    records.action("m-1", 1)
    page, other = signed_in(ana), signed_in(bea)
    page.goto("/actions/main/m-1/1/")
    decide(page, "done", "Found it")
    expect(page.locator(".answer.is-waiting")).to_be_visible()
    other.goto("/actions/main/m-1/1/")

    other.locator("#status").get_by_role("button", name="Withdraw it").click()

    expect(page.locator(".answer.is-withdrawn")).to_be_visible()
    expect(page.locator(".answer.is-waiting")).to_have_count(0)


def test_what_is_pressed_while_live_updates_are_under_way_is_sent_at_once_and_is_somebody_at_work(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.lease("m-1", state="live", ttl=ALIVE)
    records.action("m-1", 1)
    page = signed_in(ana)
    page.goto("/actions/main/m-1/1/")
    decide(page, "done", "Found it")
    expect(page.locator("#status").get_by_role("button", name="Withdraw it")).to_be_visible()
    held = hold(page, "**/status/?seen=*")
    tell(page)
    until(page, lambda: held)

    with page.expect_request("**/withdraw/") as pressed:
        page.locator("#status").get_by_role("button", name="Withdraw it").click()
        tell(page)  # a second update would have taken its place

    expect(page.locator(".answer.is-withdrawn")).to_be_visible()
    assert held[0].request.headers["x-background"] == "1"
    assert "x-background" not in pressed.value.headers
    for route in held:
        route.continue_()


def test_what_was_asked_about_one_action_is_never_shown_beside_another(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1, args={"to": "first@example.com"}, started_at="2026-11-29T10:00:01Z")
    records.action("m-2", 1, args={"to": "second@example.com"}, started_at="2026-11-29T10:00:02Z")
    page, other = open_live(signed_in(ana), "/?open=main/m-1/1"), signed_in(bea)
    other.goto("/actions/main/m-1/1/")
    held = hold(page, "**/m-1/1/status/?seen=*")
    decide(other, "done", "Found it")
    expect(other.locator(".answer.is-written")).to_be_visible()
    until(page, lambda: held)  # it is sent on only now, and answered with what is true now

    page.locator("#queue a[data-pane='main/m-2/1']").click()
    expect(page.locator("#action h1")).to_contain_text("second@example.com")
    page.check("#decision input[value=failed]")
    with page.expect_response("**/m-1/1/status/?seen=*"):
        for route in held:
            route.continue_()

    page.fill("#reason", "Not there")
    expect(page.locator("#decision [data-once]")).to_be_enabled()
    expect(page.locator("#claim")).to_contain_text("second@example.com")
    expect(page.locator("#foot-news")).to_be_empty()
    assert "first@example.com" not in page.locator("#action").inner_text()


def test_a_page_of_somebody_who_is_no_longer_signed_in_says_who_is(
    records: RecallWriter, ana: User, bea: User, signed_in: SignedIn, site: str
) -> None:
    records.action("m-1", 1)
    page = signed_in(ana)
    page.goto("/actions/main/m-1/1/")
    page.check("input[value=done]")
    page.fill("#reason", "Found it")
    expect(page.locator(".slip dd").last).to_contain_text("Found it")
    client = Client()
    client.force_login(bea)
    page.context.add_cookies(
        [
            {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site},
            {"name": "csrftoken", "value": "z" * 32, "url": site},
        ]
    )

    page.locator("#decision [data-once]").click()

    expect(page.locator("#decision .problem")).to_contain_text("You are signed in as bea now; this page was opened by ana.")
    expect(page.locator("#reason")).to_have_value("Found it")
    assert records.body_of("m-1:act:1")["status"] == "started"


def test_the_list_keeps_its_place_beside_the_opened_action(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    for seq in range(1, 46):
        records.action("m-1", seq, args={"to": f"c{seq}@example.com"})
    page = open_live(signed_in(ana), "/")
    link = page.get_by_role("link", name="Email to c40@example.com")
    link.scroll_into_view_if_needed()
    before = link.bounding_box()

    link.click()

    expect(page.locator("#action h1")).to_contain_text("c40@")
    after = link.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 24
    assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    place = page.evaluate("document.querySelector('.list').scrollTop")
    page.get_by_role("link", name="Decide").click()
    expect(page.locator("#decision")).to_be_in_viewport()
    assert page.evaluate("document.querySelector('.list').scrollTop") == place


@pytest.mark.parametrize("width", [320, 390])
def test_the_bar_of_a_phone_is_one_row_and_says_whether_it_is_live(
    records: RecallWriter, ana: User, signed_in: SignedIn, width: int
) -> None:
    page = signed_in(ana, viewport={"width": width, "height": 700})
    page.goto("/")

    expect(page.locator("[data-live=on]")).to_be_visible()
    box = page.locator(".topbar").bounding_box()
    assert box is not None
    assert box["height"] < 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def small_targets(page: Page) -> list[str]:
    return list(
        page.evaluate("""() => [...document.querySelectorAll(".action a, .action button:not(.vh), .topbar a, .topbar button")]
            .filter((one) => one.offsetParent && !one.closest("p.quiet, .answer p"))
            .filter((one) => { const box = one.getBoundingClientRect(); return box.height < 23.5 || box.width < 23.5; })
            .map((one) => one.outerHTML.slice(0, 120))""")
    )


def test_what_was_sent_is_answered_and_no_part_that_asks_by_itself_leads_elsewhere_meanwhile(
    records: RecallWriter, eve: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(eve), "/tools/send_email/")
    # What is typed is shown in an example, which would notice first that the session has ended.
    with page.expect_response("**/example/"):
        page.fill("#field-settle_window_s", "90 min")
    held = hold(page, "**/tools/send_email/")
    redirects: list[str] = []

    def let_go(response: Response) -> None:
        if held and "hx-redirect" in response.headers:
            redirects.append(response.headers["hx-redirect"])
            held.pop().continue_()

    page.on("response", let_go)
    page.context.clear_cookies(name="sessionid")

    page.evaluate("""setTimeout(() => {
        document.querySelector("form.settings-form").requestSubmit();
        setInterval(() => document.body.dispatchEvent(new Event("changed")), 200);
    })""")

    expect(page.get_by_text("Your session had ended.")).to_be_visible()
    assert redirects
    assert all("ended=get" in one for one in redirects)


@pytest.mark.parametrize("width", [390, 1440])
def test_what_is_pressed_is_large_enough(records: RecallWriter, ana: User, signed_in: SignedIn, width: int) -> None:
    records.action("m-1", 1, args={"to": "b@example.com", "body": "x" * 5000})
    page = open_live(signed_in(ana, viewport={"width": width, "height": 900}), "/actions/main/m-1/1/")

    assert small_targets(page) == []


def test_a_button_that_waits_stays_readable_under_the_pointer(records: RecallWriter, ana: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = open_live(signed_in(ana, reduced_motion="reduce"), "/actions/main/m-1/1/")
    fill_in(page, "done", "Found it")
    button = page.locator("#turn [data-once]")
    button.evaluate("one => { one.disabled = true; }")
    rest = button.evaluate("one => getComputedStyle(one).backgroundColor")

    button.hover(force=True)

    assert button.evaluate("one => getComputedStyle(one).backgroundColor") == rest
    assert re.match(r"rgb", rest)


def test_the_door_promises_what_was_typed_only_where_it_is_kept(records: RecallWriter, eve: User, signed_in: SignedIn) -> None:
    records.action("m-1", 1)
    page = signed_in(eve)
    kept = page.get_by_text("What you typed is kept in this tab.")
    open_live(page, "/actions/main/m-1/1/")
    page.check("input[value=done]")
    page.fill("#reason", "Typed by eve")
    expect(page.locator(".slip dd").last).to_contain_text("Typed by eve")
    cookies = page.context.cookies()

    page.context.clear_cookies(name="sessionid")
    page.locator("#decision [data-once]").click()
    expect(page.get_by_text("Your session had ended.")).to_be_visible()
    expect(kept).to_be_visible()

    page.context.add_cookies(cookies)  # type: ignore[arg-type]
    open_live(page, "/tools/send_email/")
    with page.expect_response("**/example/"):
        page.fill("#field-settle_window_s", "90 min")
    page.context.clear_cookies(name="sessionid")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your session had ended.")).to_be_visible()
    expect(kept).to_be_hidden()

    page.context.add_cookies(cookies)  # type: ignore[arg-type]
    page.goto("/actions/main/m-1/1/")
    expect(page.locator("#reason")).to_have_value("Typed by eve")
    assert records.body_of("m-1:act:1")["status"] == "started"
