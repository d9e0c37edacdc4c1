"""The page on which a lease is taken away: what it says before, what it asks, and what it answers. Works without JavaScript."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.models import Decision
from tests.console.conftest import Api, Cast
from tests.console.test_services_evict import HOLDER, begun, decided, kinds
from tests.console.view_helpers import HTMX, browser, hidden, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PATH = "/agents/main/billing-7/eviction/"


def filled(client: Client, **fields: str) -> dict[str, str]:
    page = client.get(PATH).content.decode()
    form = re.search(r'<form method="post" action="/agents/.*?</form>', page, re.DOTALL)
    assert form is not None
    return {**hidden(form[0]), "reason": "its pod is gone", "confirm": "billing-7", **fields}


def test_the_page_says_who_holds_it_warns_and_asks(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)

    page = browser(amy).get(PATH).content.decode()

    said = text_of(page)
    for words in (
        HOLDER,
        "The old process may still be running.",
        "may still happen",
        "Type the agent's id",
        "Action 1",
        "by ana",
        "Seen",
        "held until",
    ):
        assert words in said
    assert "cannot be read" not in said
    assert "<script" not in page.split("<main", 1)[1]
    assert kinds() == ["waiting"]


def test_sent_as_it_is_shown_it_evicts_and_tells_what_was_written(records: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(records), ana)
    client = browser(amy)

    form = filled(client)
    answer, again = client.post(PATH, form), client.post(PATH, form)

    assert (answer.status_code, again.status_code) == (201, 200)
    assert "The lease was taken away" in text_of(answer.content.decode())
    assert "written" in text_of(answer.content.decode())
    assert "It was taken away before" in text_of(again.content.decode())
    assert kinds() == ["waiting", "evicted", "settled"]
    history = text_of(client.get("/history/").content.decode())
    assert "admin amy took the lease away" in history
    assert "its pod is gone" in history


@pytest.mark.parametrize(("field", "says"), [("reason", "A reason is required"), ("confirm", "Type the agent's id to confirm.")])
def test_what_is_missing_is_named_and_the_rest_is_kept(memory: RecordWriter, ana: User, amy: User, field: str, says: str) -> None:
    decided(begun(memory), ana)
    client = browser(amy)

    answer = client.post(PATH, filled(client, **{"reason": "kept words", "confirm": "billing-7", field: " "}))

    page = answer.content.decode()
    assert answer.status_code == 422
    assert says in text_of(page)
    assert ("kept words" in page) == (field == "confirm")
    assert kinds() == ["waiting"]


def test_another_agents_id_is_refused(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    client = browser(amy)

    answer = client.post(PATH, filled(client, confirm="billing-8"))

    assert answer.status_code == 422
    assert "exactly" in text_of(answer.content.decode())
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")


def test_a_lease_that_moved_is_shown_anew_and_nothing_is_written(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    client = browser(amy)
    form = filled(client, reason="what I typed")
    memory.lease("billing-7", holder="pod-b:1:bbbb", epoch=9, state="live")

    answer = client.post(PATH, form)

    page = answer.content.decode()
    assert answer.status_code == 412
    assert "held otherwise now" in text_of(page)
    assert "pod-b:1:bbbb" in text_of(page)
    assert "what I typed" in page
    assert memory.lease_of("billing-7") == ("pod-b:1:bbbb", 9, "live")
    assert kinds() == ["waiting"]
    new = hidden(page.split('action="/agents/')[1])
    assert client.post(PATH, {**new, "reason": "r", "confirm": "billing-7"}).status_code == 201


def test_without_a_waiting_decision_or_a_holder_there_is_no_form(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = begun(memory)
    client = browser(amy)
    assert "No decision waits for this lease" in text_of(client.get(PATH).content.decode())
    decided(ref, ana)
    memory.lease("billing-7", holder=HOLDER, epoch=9, state="released")

    page = client.get(PATH).content.decode()

    assert "Nobody holds this agent now" in text_of(page)
    assert 'name="confirm"' not in page


def test_the_way_there_is_shown_to_admins_while_a_decision_waits(
    memory: RecordWriter, ana: User, amy: User, person: Cast
) -> None:
    ref = begun(memory)
    both = person("gil", "admin", "operator")
    pages = [path_of(ref), "/agents/main/billing-7/"]
    assert [PATH in browser(both).get(page).content.decode() for page in pages] == [False, False]
    decided(ref, ana)

    assert [PATH in browser(amy).get(page).content.decode() for page in pages] == [True, True]
    assert [PATH in browser(ana).get(page).content.decode() for page in pages] == [False, False]
    memory.lease("billing-7", holder=HOLDER, epoch=9, state="expired")
    assert [PATH in browser(amy).get(page).content.decode() for page in pages] == [False, False]


def test_it_refuses_who_may_not_and_hides_from_strangers(
    memory: RecordWriter, ana: User, ben: User, cyd: User, dot: User
) -> None:
    decided(begun(memory), ana)
    form = {"holder": HOLDER, "reason": "r", "confirm": "billing-7", "decision_id": "test-12345678"}

    for user in (ana, ben, cyd, dot):
        client = browser(user)
        assert client.get(PATH).status_code == 403
        assert client.post(PATH, form).status_code == 403
    assert browser().get(PATH).status_code == 302
    assert browser(ana).get("/agents/other/billing-7/eviction/").status_code == 404
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert Decision.objects.get().state == "waiting"


def test_a_post_without_our_token_does_nothing(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    client = browser(amy, enforce_csrf_checks=True)

    assert client.post(PATH, filled(client) | {"csrfmiddlewaretoken": ""}).status_code == 403
    assert kinds() == ["waiting"]


def test_htmx_gets_the_panel_alone(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    page = browser(amy).get(PATH, headers=HTMX).content.decode()
    assert "<html" not in page
    assert page.count('id="eviction"') == 1


@pytest.mark.parametrize("kind", ["unavailable", "read_only"])
def test_a_store_that_cannot_say_offers_the_same_again(
    flaky: RecordWriter, ana: User, amy: User, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actions.errors import StoreReadOnly, StoreUnavailable
    from console.stores import get_store

    decided(begun(flaky), ana)
    client = browser(amy)
    form = filled(client)
    problem = (
        StoreUnavailable("main", "gone", may_be_written=True) if kind == "unavailable" else StoreReadOnly("main", "a standby")
    )

    def fail(*args: object, **options: object) -> None:
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(type(get_store("main")), "evict", fail)
        answer = client.post(PATH, form)

    page = answer.content.decode()
    assert answer.status_code == 503
    assert ("Unknown: no answer came back" in text_of(page)) == (kind == "unavailable")
    resent = hidden(page.split('action="/agents/')[1])
    assert resent["decision_id"] == form["decision_id"]
    assert client.post(PATH, resent).status_code == 201


# --- the API -------------------------------------------------------------------------------------------------------------


def test_the_api_evicts_once_and_says_what_became_of_the_decisions(
    memory: RecordWriter, ana: User, amy: User, api: type[Api]
) -> None:
    decided(begun(memory), ana)
    body = {"holder": HOLDER, "reason": "its pod is gone", "confirm": "billing-7", "decision_id": "api-12345678"}
    caller: Api = api(amy)  # type: ignore[arg-type]

    status, said = caller.post("agents/main/billing-7/eviction", body)
    again, repeated = caller.post("agents/main/billing-7/eviction", body)

    assert (status, again) == (201, 200)
    assert (said["entry"]["kind"], said["entry"]["actor"]) == ("evicted", "admin amy")
    assert [one["state"] for one in said["decisions"]] == ["written"]
    assert repeated["entry"] == said["entry"]
    assert repeated["decisions"] == []
    status, error = caller.post("agents/main/billing-7/eviction", {**body, "decision_id": "api-23456789"})
    assert (status, error["error"]) == (412, "changed")


def test_the_api_refuses_what_the_page_refuses(memory: RecordWriter, ana: User, amy: User, ben: User, api: type[Api]) -> None:
    ref = begun(memory)
    body = {"holder": HOLDER, "reason": "r", "confirm": "billing-7", "decision_id": "api-12345678"}
    path = "agents/main/billing-7/eviction"
    admin: Api = api(amy)  # type: ignore[arg-type]

    assert admin.post(path, body)[0] == 409
    decided(ref, ana)
    assert Api(None).post(path, body)[0] == 401
    assert api(ben).post(path, body)[0] == 403  # type: ignore[arg-type]
    assert admin.post("agents/other/billing-7/eviction", body)[0] == 404
    for bad in ({**body, "confirm": "x"}, {**body, "reason": ""}, {**body, "extra": 1}, {"holder": HOLDER}):
        assert admin.post(path, bad)[0] == 422
    status, error = admin.post(path, {**body, "holder": "vm:8:bbbb"})
    assert (status, error["error"], error["lease"]["holder"]) == (412, "changed", HOLDER)
    assert admin.get(path)[0] == 405
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert kinds() == ["waiting"]
