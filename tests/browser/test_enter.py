"""Enter in whatever field shows the turn: it writes nothing and puts nothing into the reason."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Response, expect

from tests.browser.conftest import SignedIn
from tests.browser.live import open_live
from tests.recall_writer import RecallWriter

FIELDS = [("failed", "#error"), ("later", "#look-again"), ("done", "input[value=done]")]  # Enter in a textarea is a new line


@pytest.mark.parametrize("has_js", [True, False], ids=["js", "no-js"])
@pytest.mark.parametrize(("outcome", "field"), FIELDS)
def test_enter_in_a_field_only_shows_the_turn(
    records: RecallWriter, ana: User, signed_in: SignedIn, has_js: bool, outcome: str, field: str
) -> None:
    records.action("m-1", 1)
    page = signed_in(ana, java_script_enabled=has_js)
    if has_js:
        open_live(page, "/actions/main/m-1/1/")
    else:
        page.goto("/actions/main/m-1/1/")
    page.check(f"input[value={outcome}]")
    with page.expect_response(is_of_form) if has_js else nullcontext():
        page.fill("#reason", "Typed by me")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    for _ in range(2):  # the second time the turn stands there already
        with page.expect_response(is_of_form):
            page.locator(field).press("Enter")
        page.wait_for_load_state()
        expect(page.locator("#turn [data-once]")).to_be_visible()
        expect(page.locator("#reason")).to_have_value("Typed by me")

    expect(page.locator(".answer:visible")).to_have_count(0)
    assert len(sent) == 2
    assert records.body_of("m-1:act:1")["status"] == "started"
    assert "m-1:turn:1" not in records.record_ids()


def is_of_form(answer: Response) -> bool:
    """The answer to the form as it was filled in, not to the choice before."""
    return answer.request.method == "POST" and "Typed" in (answer.request.post_data or "")
