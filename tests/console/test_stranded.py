"""Decisions on their way to a store that is not configured any more: they are shown to whoever may see them, and can be withdrawn."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from actions.records import ActionRef
from console.models import Decision
from console.services.decide import DecisionRequest, decide
from tests.console.conftest import Cast
from tests.console.view_helpers import HTMX, browser, hidden, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ref(memory: RecordWriter, ana: User, settings: Settings) -> ActionRef:
    """An action whose decision waits, in a store that was then taken out of the settings."""
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    decide(ref, DecisionRequest(outcome="done", reason="Found in the Sent folder", decision_id=f"d-{uuid4()}"), by=ana)
    settings.ACTION_STORES = {"elsewhere": "memory:"}
    return ref


def test_the_queue_leads_to_it_and_the_stores_page_lists_it(ref: ActionRef, ben: User) -> None:
    client = browser(ben)

    queue = client.get("/").content.decode()
    listed = text_of(client.get("/stores/").content.decode())

    assert "1 decision cannot be delivered. Its store is not configured any more." in text_of(queue)
    assert 'href="/stores/#stranded"' in queue
    for words in ("ana decided", "done, not written", "“Found in the Sent folder”", "action 1 of m-1", "store main"):
        assert words in listed
    assert "Withdraw it" not in listed


def test_the_page_of_its_action_says_so_and_withdraws_it(ref: ActionRef, ana: User) -> None:
    client = browser(ana)
    response = client.get(path_of(ref))
    html = response.content.decode()
    assert response.status_code == 200
    assert "Store main is not configured any more" in text_of(html)
    assert f'action="{path_of(ref, "decision/withdraw/")}"' in html

    answer = client.post(path_of(ref, "decision/withdraw/"), {"decision_id": hidden(html)["decision_id"]})

    assert (answer.status_code, Decision.objects.get().state) == (200, "withdrawn")
    assert "withdrawn; it will not be written" in text_of(answer.content.decode())
    assert client.get(path_of(ref)).status_code == 404
    assert "cannot be delivered" not in text_of(client.get("/").content.decode())


def test_one_that_may_be_written_is_kept_and_says_why(ref: ActionRef, ana: User) -> None:
    Decision.objects.update(may_be_written=True)

    answer = browser(ana).post(path_of(ref, "decision/withdraw/"))

    assert (answer.status_code, Decision.objects.get().state) == (503, "waiting")
    assert "Put the store back and withdraw it then" in text_of(answer.content.decode())


def test_whoever_may_not_see_the_action_learns_nothing_of_it(ref: ActionRef, dot: User, person: Cast) -> None:
    for user in (dot, person("eve", ("operator", "elsewhere", ""))):
        client = browser(user)
        for path in ("/", "/stores/"):
            said = text_of(client.get(path).content.decode())
            assert "m-1" not in said
            assert "configured any more" not in said
        assert client.get(path_of(ref)).status_code == 404
        assert client.post(path_of(ref, "decision/withdraw/")).status_code == 404
    assert Decision.objects.get().state == "waiting"


def test_it_stands_beside_no_queue_and_breaks_none(ref: ActionRef, ana: User) -> None:
    client = browser(ana)

    assert client.get("/", {"open": str(ref)}).status_code == 200
    assert "<html" not in client.get(path_of(ref), headers=HTMX).content.decode()
    assert client.get(path_of(ActionRef("main", "m-1", 2))).status_code == 404
