"""Journeys of people: in with a code, in with a passkey, another browser ended from the settings; and what their pages look like to axe."""

from __future__ import annotations

import re
import time

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from console.models import Grant, Preferences
from tests.browser.conftest import PASSWORD, SignedIn
from tests.browser.live import open_live
from tests.browser.test_every_page import violations
from tests.recall_writer import RecallWriter

pytestmark = pytest.mark.browser


@pytest.fixture
def ana_knows_her_password(ana: User) -> User:
    ana.set_password(PASSWORD)
    ana.save()
    return ana


def sign_in(page: Page) -> None:
    page.goto("/login/")
    page.fill("[name=username]", "ana")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def confirm(page: Page) -> None:
    expect(page.get_by_role("heading", name="Confirm that it is you")).to_be_visible()
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Confirm").click()


def test_somebody_sets_up_an_app_and_comes_in_with_its_code(
    records: RecallWriter, ana_knows_her_password: User, stranger: Page
) -> None:
    page = stranger
    sign_in(page)
    page.get_by_role("link", name="ana", exact=True).click()
    page.get_by_role("link", name="Set up").click()
    confirm(page)
    secret = page.locator("main code").inner_text()
    assert violations(page) == []
    step = int(time.time()) // 30
    page.fill("#id_code", format_hotp_value(hotp_value(secret, step)))
    page.get_by_role("button", name="Turn it on").click()
    expect(page.locator(".code-list li")).to_have_count(10)
    assert violations(page) == []
    code = page.locator(".code-list li").first.inner_text()
    page.get_by_role("link", name="Back to the settings").click()
    page.get_by_role("button", name="Sign out here").click()

    sign_in(page)
    expect(page.get_by_role("heading", name="The second factor")).to_be_visible()
    assert violations(page) == []
    page.fill("#id_code", "000000")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").first).to_contain_text("Incorrect code")
    # The code of the next half minute is not the one that turned it on, which is used up; on a slow machine that minute has come.
    page.fill("#id_code", format_hotp_value(hotp_value(secret, max(step + 1, int(time.time()) // 30))))
    page.get_by_role("button", name="Sign in").click()

    expect(page).to_have_url(re.compile(r"/$"))
    assert re.fullmatch(r"\d{8}", code)


def test_a_passkey_is_added_and_signs_in_by_itself_until_it_is_removed(
    records: RecallWriter, ana_knows_her_password: User, stranger: Page
) -> None:
    page = stranger
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options = {"protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True}
    options |= {"isUserVerified": True, "automaticPresenceSimulation": True}
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    # A passkey is for a name: no browser makes one for an address of numbers.
    site = f"http://localhost:{_port(page)}"
    page.goto(f"{site}/login/")
    page.fill("[name=username]", "ana")
    page.fill("[name=password]", PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="ana", exact=True).click()
    page.get_by_role("link", name="Add").click()
    confirm(page)
    page.fill("#id_name", "Laptop")
    assert violations(page) == []
    page.wait_for_load_state()  # before its script has run, the button sends the form without a key
    page.get_by_role("button", name="Add it").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    page.get_by_role("link", name="Back to the settings").click()
    expect(page.locator("#second-factor")).to_contain_text("Passkey Laptop")
    page.get_by_role("button", name="Sign out here").click()

    use_passkey(page)
    expect(page.get_by_role("link", name="ana", exact=True)).to_be_visible()

    # It confirms as well, and asks for nothing typed.
    page.goto(f"{site}/confirm/passkey/?next=/settings/")
    use_passkey(page)
    expect(page.get_by_role("heading", name="Settings of ana")).to_be_visible()
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.locator("#second-factor")).not_to_contain_text("Laptop")
    page.get_by_role("button", name="Sign out here").click()
    use_passkey(page)
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page).to_have_url(re.compile("/login/"))


def test_another_browser_is_ended_and_its_page_goes_to_the_login_by_itself(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    here, there = signed_in(ana), open_live(signed_in(ana), "/")
    here.goto("/settings/")

    here.get_by_role("button", name="End all others").click()

    expect(here.locator("#sessions li")).to_have_count(1)
    expect(there).to_have_url(re.compile("/login/"))


def test_keys_that_are_switched_off_stay_off_on_every_computer_of_that_person(
    records: RecallWriter, ana: User, signed_in: SignedIn
) -> None:
    records.action("m-1", 1)
    page, another = open_live(signed_in(ana), "/"), signed_in(ana)
    page.keyboard.press("?")
    with page.expect_response("**/settings/keys/"):
        page.get_by_label("Single keys").uncheck()
    open_live(another, "/")

    another.keyboard.press("?")

    expect(another.locator("#help")).to_be_hidden()
    assert Preferences.objects.get(user=ana).single_keys is False


@pytest.mark.parametrize(("light", "width"), [("light", 1440), ("dark", 390), ("light", 320)])
def test_axe_finds_nothing_and_nothing_is_too_wide_on_the_pages_for_admins_and_of_oneself(
    records: RecallWriter, ana: User, signed_in: SignedIn, light: str, width: int
) -> None:
    Grant.objects.create(user=ana, role="admin")
    page = signed_in(ana, color_scheme=light, viewport={"width": width, "height": 800})
    found = {}

    for path in ("/settings/", "/people/", f"/people/{ana.pk}/", "/notifications/", "/settings/password/", "/password/"):
        open_live(page, path)
        found[path] = violations(page)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found[path].append("too wide")

    assert {path: lines for path, lines in found.items() if lines} == {}


def use_passkey(page: Page) -> None:
    """On a page that was just arrived at: the button's own script has to be there."""
    button = page.get_by_role("button", name="Use a passkey")
    expect(button).to_be_visible()
    page.wait_for_load_state()
    button.click()


def _port(page: Page) -> str:
    page.goto("/login/")
    return page.url.split(":")[2].partition("/")[0]
