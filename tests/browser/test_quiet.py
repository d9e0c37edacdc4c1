"""A part of the page that did not change is neither sent nor drawn again; one that changed is, whoever drew it last."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from console.models import Sweep
from tests.browser.conftest import SignedIn
from tests.browser.live import ask_again, open_live
from tests.recall_writer import RecallWriter

pytestmark = pytest.mark.django_db(transaction=True)

BANNER = "incidents"


def is_unchanged_soon(page: Page) -> bool:
    """A time in it may tick in between."""
    return 304 in {ask_again(page, BANNER) for _ in range(3)}


def test_an_unchanged_part_is_answered_with_304_and_stays(records: RecallWriter, signed_in: SignedIn, ana: User) -> None:
    records.action("billing-7", 1)
    page = open_live(signed_in(ana), "/")
    expect(page.locator(".strip")).to_have_count(1)

    assert is_unchanged_soon(page)
    expect(page.locator("#incidents")).to_be_attached()
    expect(page.locator(".strip")).to_have_count(1)


def test_a_sweep_that_stands_still_is_said_and_gone_by_itself(records: RecallWriter, signed_in: SignedIn, ana: User) -> None:
    page = open_live(signed_in(ana), "/")
    band = page.get_by_text("Nothing goes on by itself.")
    expect(band).to_have_count(0)

    Sweep.objects.create(name="sweep", ran_at=Now() - timedelta(hours=1))
    ask_again(page, BANNER)
    expect(band).to_be_visible()
    assert is_unchanged_soon(page)
    expect(band).to_be_visible()

    Sweep.objects.update(ran_at=Now())
    ask_again(page, BANNER)
    expect(band).to_have_count(0)
