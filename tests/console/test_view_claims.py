"""Claims, notes and handing over on pages and in the API: what one person does, another is told, and nobody is kept from deciding."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from actions.records import ActionRef
from console.models import Claim, HandOver, Note
from console.services.claims import claim, claim_all, hand_over
from console.services.notes import add_note
from tests.console.conftest import Api
from tests.console.view_helpers import HTMX, browser, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)
ApiFor = Callable[[User], Api]


def who_has(ref: ActionRef) -> list[str]:
    return list(Claim.objects.filter(agent=ref.agent, seq=ref.seq, ended_at=None).values_list("username", flat=True))


def test_a_claim_is_said_on_the_row_on_the_page_and_in_the_decision_form(
    memory: RecordWriter, ana: User, bea: User, ben: User
) -> None:
    ref = memory.action("billing-7", 1)
    mine, theirs = browser(ana), browser(bea)

    assert mine.post(path_of(ref, "claim/"), {"do": "claim"}).status_code == 302

    assert "claimed by you" in text_of(mine.get("/").content.decode())
    assert "claimed by ana" in text_of(browser(ben).get("/").content.decode())
    page = text_of(theirs.get(path_of(ref)).content.decode())
    assert "claimed by ana" in page
    assert "ana has claimed this" in page
    assert "whoever decides first has decided" in page
    assert "has claimed this" not in text_of(mine.get(path_of(ref)).content.decode())
    assert "Take it over" not in text_of(browser(ben).get(path_of(ref)).content.decode())


def test_somebody_elses_claim_is_kept_until_taken_over_by_name(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("billing-7", 1)
    claim(ref, by=ana)
    theirs = browser(bea)

    refused = theirs.post(path_of(ref, "claim/"), {"do": "claim"}, headers=HTMX)
    assert (refused.status_code, who_has(ref)) == (409, ["ana"])
    assert "ana has claimed it" in text_of(refused.content.decode())
    assert 'id="claimed"' in refused.content.decode()
    assert "<html" not in refused.content.decode()
    assert theirs.post(path_of(ref, "claim/"), {"do": "claim"}).status_code == 409
    taken = theirs.post(path_of(ref, "claim/"), {"do": "take_over", "whose": "ana"}, headers=HTMX)

    assert (taken.status_code, taken["HX-Trigger"], who_has(ref)) == (200, '{"changed": {}}', ["bea"])
    assert "(from ana)" in text_of(taken.content.decode())
    assert theirs.post(path_of(ref, "claim/"), {"do": "release"}, headers=HTMX).status_code == 200
    assert who_has(ref) == []


@pytest.mark.parametrize("where", ["claim/", "notes/"])
def test_who_may_not_settle_changes_nothing(memory: RecordWriter, ben: User, cyd: User, dot: User, where: str) -> None:
    ref = memory.action("billing-7", 1)
    form = {"text": "x", "note_id": "note-00001"}
    assert browser(ben).post(path_of(ref, where), form).status_code == 403
    assert browser(dot).post(path_of(ref, where), form).status_code == 404
    assert browser(cyd).post(path_of(ref, where), form).status_code == 403
    assert browser(ben).get(path_of(ref, where)).status_code == 302
    assert browser(ben).post("/claims/", {"ref": str(ref)}).status_code == 403
    assert browser(ben).get("/handover/").status_code == 403
    assert (Claim.objects.count(), Note.objects.count()) == (0, 0)


def test_a_selection_is_claimed_and_what_could_not_be_is_named(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2)]
    claim(refs[1], by=bea)
    mine = browser(ana)

    answer = mine.post("/claims/", {"do": "claim", "ref": [str(ref) for ref in refs]}, headers=HTMX)

    assert answer.status_code == 200
    assert "1 of 2 is done, 1 is not" in text_of(answer.content.decode())
    assert "bea has claimed it" in text_of(answer.content.decode())
    assert [who_has(ref) for ref in refs] == [["ana"], ["bea"]]
    assert mine.post("/claims/", {"do": "claim"}).status_code == 422
    toggled = mine.post("/claims/", {"do": "toggle", "ref": str(refs[0])}, headers=HTMX)
    assert (toggled.status_code, who_has(refs[0])) == (200, [])
    mine.post("/claims/", {"do": "toggle", "ref": str(refs[0])}, headers=HTMX)
    assert mine.post("/claims/", {"do": "toggle", "ref": str(refs[1])}, headers=HTMX).status_code == 409
    assert [who_has(ref) for ref in refs] == [["ana"], ["bea"]]


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("claimed=me", {1}),
        ("claimed=bea", {2}),
        ("claimed=nobody", {3, 4}),
        ("look=due", {3}),
        ("claimed=nobody&look=due", {3}),
        ("claimed=me&look=due", set()),
        ("", {1, 2, 3, 4}),
    ],
)
def test_the_queue_is_filtered_by_claim_and_by_what_is_to_be_looked_at(
    memory: RecordWriter, ana: User, bea: User, query: str, seen: set[int]
) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2, 3, 4)]
    claim(refs[0], by=ana)
    claim(refs[1], by=bea)
    now = timezone.now()
    soon = now + timedelta(minutes=1)
    add_note(refs[2], text="ask the bank", look_again_at=soon, note_id="note-due-1", by=ana)
    add_note(refs[2], text="they did not answer", look_again_at=None, note_id="note-due-2", by=bea)
    add_note(refs[3], text="ask again", look_again_at=soon, note_id="note-due-3", by=ana)
    add_note(refs[3], text="and later", look_again_at=now + timedelta(hours=1), note_id="note-due-4", by=ana)
    Note.objects.filter(look_again_at=soon).update(look_again_at=now - timedelta(minutes=1))  # their time has come

    page = browser(ana).get(f"/?{query}").content.decode()

    assert {int(found) for found in re.findall(r'data-pane="main/billing-7/(\d+)"', page)} == seen
    assert ("look again now" in page) == (3 in seen)


@pytest.mark.parametrize("query", ["claimed=zoe", "look=soon"])
def test_a_filter_that_nobody_can_mean_is_refused(memory: RecordWriter, ana: User, query: str) -> None:
    assert browser(ana).get(f"/?{query}").status_code == 400


def test_working_on_an_action_keeps_its_claim_and_watching_does_not(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1)
    claim(ref, by=ana)
    client = browser(ana)
    soon = timezone.now() + timedelta(minutes=3)
    Claim.objects.update(expires_at=soon)

    client.get(path_of(ref, "status/"), headers={**HTMX, "X-Background": "1"})
    client.get("/", headers={**HTMX, "X-Background": "1"})
    assert Claim.objects.get().expires_at == soon
    client.post(path_of(ref, "turn/"), {"outcome": "done", "reason": "x"}, headers=HTMX)

    assert Claim.objects.get().expires_at > soon


# --- notes ---


def test_notes_are_added_at_any_time_listed_newest_first_and_redacted(memory: RecordWriter, ana: User, ben: User) -> None:
    ref = memory.action("billing-7", 1, status="done")
    client = browser(ana)
    form = {"text": "the customer called, token=sk_live_abcdefgh12345678", "note_id": "note-00001", "look_again_at": ""}

    assert client.post(path_of(ref, "notes/"), form).status_code == 302
    again = client.post(path_of(ref, "notes/"), form, headers=HTMX)
    client.post(path_of(ref, "notes/"), {"text": "and again", "note_id": "note-00002", "look_again_at": "2031-01-02T10:00"})

    assert again.status_code == 200
    assert Note.objects.count() == 2
    page = text_of(browser(ben).get(path_of(ref)).content.decode())
    assert page.index("and again") < page.index("the customer called")
    assert "sk_live" not in page
    assert "Add a note" not in page
    assert memory.body_of("billing-7:act:1")["status"] == "done"


@pytest.mark.parametrize(
    "wrong", [{"text": ""}, {"text": "\u200b"}, {"text": "a\x00b"}, {"note_id": "x"}, {"look_again_at": "soon"}]
)
def test_a_note_that_cannot_be_kept_comes_back_as_typed(memory: RecordWriter, ana: User, wrong: dict[str, str]) -> None:
    ref = memory.action("billing-7", 1)
    form = {"text": "called <b>them</b>", "note_id": "note-00001", "look_again_at": "", **wrong}

    for headers in ({}, HTMX):
        answer = browser(ana).post(path_of(ref, "notes/"), form, headers=headers)
        assert answer.status_code == 422
        assert "error" in answer.content.decode()
        if "text" not in wrong:
            assert "called &lt;b&gt;them&lt;/b&gt;" in answer.content.decode()
    assert not Note.objects.exists()


# --- handing over ---


def test_what_is_handed_over_stands_on_the_receivers_queue_until_dismissed(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2)]
    claim_all(refs, by=ana)
    mine, theirs = browser(ana), browser(bea)
    page = mine.get("/handover/").content.decode()
    assert [str(ref) in page for ref in refs] == [True, True]
    assert '<option value="bea">' in page
    form = {"ref": str(refs[0]), "to": "bea", "text": "the bank calls, password=hunter2hunter2", "handover_id": "hand-over-1"}

    assert mine.post("/handover/", form).status_code == 302
    assert mine.post("/handover/", form).status_code == 302

    assert HandOver.objects.count() == 1
    assert [who_has(ref) for ref in refs] == [["bea"], ["ana"]]
    queue = theirs.get("/").content.decode()
    assert "ana handed you 1 call" in text_of(queue)
    assert "hunter2" not in queue
    assert "handed you" not in text_of(mine.get("/").content.decode())
    number = HandOver.objects.get().pk
    mine.post(f"/handover/{number}/dismiss/")
    assert "handed you" in text_of(theirs.get("/handover/band/", headers=HTMX).content.decode())
    assert theirs.post(f"/handover/{number}/dismiss/").status_code == 302
    assert "handed you" not in text_of(theirs.get("/").content.decode())


def test_a_hand_over_that_is_refused_says_why_and_keeps_what_was_typed(
    memory: RecordWriter, ana: User, ben: User, dot: User
) -> None:
    ref = memory.action("billing-7", 1)
    claim(ref, by=ana)
    form = {"ref": str(ref), "to": "dot", "text": "please look", "handover_id": "hand-over-1"}

    answer = browser(ana).post("/handover/", form)

    assert answer.status_code == 422
    assert "dot may not settle main/billing-7/1" in text_of(answer.content.decode())
    assert "please look" in answer.content.decode()
    assert who_has(ref) == ["ana"]


def test_the_hand_over_page_shows_only_what_is_mine(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2)]
    claim(refs[0], by=ana)
    claim(refs[1], by=bea)
    hand_over([refs[1]], to="ana", text="take this", handover_id="hand-over-1", by=bea)
    add_note(refs[0], text="ask the bank", look_again_at=timezone.now() + timedelta(hours=1), note_id="note-00001", by=ana)
    add_note(refs[0], text="not hers", look_again_at=None, note_id="note-00002", by=bea)

    page = text_of(browser(ana).get("/handover/").content.decode())

    assert "ask the bank" in page
    assert "not hers" not in page
    assert "You have claimed nothing" in text_of(browser(bea).get("/handover/").content.decode())


# --- the API ---


def test_the_api_claims_gives_back_and_says_whose(memory: RecordWriter, ana: User, bea: User, ben: User, api: ApiFor) -> None:
    ref = memory.action("billing-7", 1)
    path = f"actions/{ref}/claim"

    status, body = api(ana).post(path, {})
    assert (status, body["claimed_by"]) == (201, "ana")
    assert api(ana).post(path, {})[0] == 200
    assert api(bea).get("actions")[1]["items"][0]["claimed_by"] == "ana"
    assert api(bea).get(f"actions/{ref}")[1]["claimed_by"] == "ana"
    status, body = api(bea).post(path, {})
    assert (status, body["error"], body["claimed_by"]) == (409, "taken", "ana")
    assert api(bea).delete(path)[0] == 404
    assert api(ben).post(path, {})[0] == 403
    assert api(bea).post(path, {"take_over_from": 7})[0] == 422
    assert who_has(ref) == ["ana"]

    assert api(bea).post(path, {"take_over_from": "ana"})[0] == 201
    assert who_has(ref) == ["bea"]
    assert api(bea).delete(path)[0] == 200
    assert api(bea).get("actions")[1]["items"][0]["claimed_by"] is None
