"""A part of the page that did not change is neither sent nor drawn again; one that changed is, whoever drew it last."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, Response, expect

from console.models import Sweep
from tests.browser.conftest import SignedIn
from tests.recall_writer import RecallWriter

pytestmark = pytest.mark.django_db(transaction=True)

ASK = "document.body.dispatchEvent(new Event('changed'))"


def ask_again(page: Page, path: str) -> Response:
    """The page asks for its parts as after an event; the answer about this one."""
    with page.expect_response(lambda response: path in response.url and response.request.resource_type == "xhr") as told:
        page.evaluate(ASK)
    return told.value


def is_unchanged_soon(page: Page, path: str) -> bool:
    """The page may ask again before it has taken in the answer before; what it does not know yet comes once more."""
    return any(ask_again(page, path).status == 304 for _ in range(10))


def test_an_unchanged_part_is_answered_with_304_and_stays(records: RecallWriter, signed_in: SignedIn, ana: User) -> None:
    records.action("billing-7", 1)
    page = signed_in(ana)
    page.goto("/")
    expect(page.locator(".strip")).to_have_count(1)
    ask_again(page, "/incidents/banner/")
    expect(page.locator("#incidents")).to_be_attached()

    assert is_unchanged_soon(page, "/incidents/banner/")
    expect(page.locator("#incidents")).to_be_attached()
    expect(page.locator(".strip")).to_have_count(1)


def test_a_sweep_that_stands_still_is_said_and_gone_by_itself(records: RecallWriter, signed_in: SignedIn, ana: User) -> None:
    page = signed_in(ana)
    page.goto("/")
    band = page.get_by_text("Nothing goes on by itself.")
    expect(band).to_have_count(0)
    ask_again(page, "/incidents/banner/")

    Sweep.objects.create(name="sweep", ran_at=Now() - timedelta(hours=1))
    assert ask_again(page, "/incidents/banner/").status == 200
    expect(band).to_be_visible()
    assert is_unchanged_soon(page, "/incidents/banner/")
    expect(band).to_be_visible()

    Sweep.objects.update(ran_at=Now())
    ask_again(page, "/incidents/banner/")
    expect(band).to_have_count(0)
