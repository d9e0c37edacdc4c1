"""\"I was wrong\" on the page, in the API and as a command: the exact turn first, then one correction, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from actions.records import ActionRef, Turn
from console.models import Correction, Incident
from console.services.decide import decide
from console.services.policies import save_policy
from console.stores import get_store
from tests.console.conftest import PASSWORD, Api, Cast
from tests.console.test_services_races import a_request
from tests.console.view_helpers import HTMX, browser, hidden, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)
ApiFor = Callable[[User], Api]
REASON = "the provider's log has <no> such payment"


def decided(records: RecordWriter, by: User, outcome: str = "done") -> ActionRef:
    ref = records.action("billing-7", 1, tool="create_payment")
    decide(ref, a_request(outcome), by=by)
    return ref


def turns_of(ref: ActionRef) -> list[str]:
    found = get_store(ref.store).list_turns(ref.agent, limit=50)
    return [turn.content for turn in reversed(found) if isinstance(turn, Turn)]


def filled(client: Client, ref: ActionRef, **fields: str) -> dict[str, str]:
    """The form as a person leaves it after the turn was shown."""
    page = client.get(path_of(ref, "correction/")).content.decode()
    form = {**_correction_form(page), "outcome": "failed", "reason": REASON, **fields}
    turn = client.post(path_of(ref, "correction/turn/"), form, headers=HTMX).content.decode()
    return {**form, **{name: value for name, value in hidden(turn).items() if name == "turn_seen"}}


def _correction_form(page: str) -> dict[str, str]:
    form = page[page.index('id="correction-form"') :]
    return {name: value for name, value in hidden(form[: form.index("</form>")]).items() if name in ("correction_id", "basis")}


def test_the_turn_that_is_written_is_the_one_that_was_shown(records: RecordWriter, ana: User, bea: User) -> None:
    ref = decided(records, ana)
    client = browser(bea)
    assert "I was wrong" in text_of(client.get(path_of(ref)).content.decode())
    page = client.get(path_of(ref, "correction/")).content.decode()
    assert "Its agent was told done by operator ana" in text_of(page)
    assert "It has not read that yet" in text_of(page)
    form = {**_correction_form(page), "outcome": "failed", "reason": REASON}

    reviewed = client.post(path_of(ref, "correction/"), form)  # as without scripts: the turn was not seen yet
    assert (reviewed.status_code, len(turns_of(ref)), Correction.objects.count()) == (200, 1, 0)
    turn = "correction: action 1 was settled as done, which was wrong; in truth it did not happen: the provider's log has <no> such payment"
    assert turn in text_of(reviewed.content.decode())
    form |= {name: value for name, value in hidden(reviewed.content.decode()).items() if name == "turn_seen"}
    written = client.post(path_of(ref, "correction/"), form)

    assert (written.status_code, turns_of(ref)[1:]) == (201, [turn])
    said = text_of(written.content.decode())
    assert "has not read what it was told first" in said
    assert f"Incident {Incident.objects.get().pk}" in said
    assert client.post(path_of(ref, "correction/"), form).status_code == 200
    assert len(turns_of(ref)) == 2
    after = text_of(browser(ana).get(path_of(ref)).content.decode())
    assert "Corrected: it did not happen." in after
    assert "operator bea corrected it" in after
    assert "the provider's log has" in text_of(browser(ana).get("/history/").content.decode())


def test_a_panel_of_the_page_answers_with_a_panel(memory: RecordWriter, ana: User) -> None:
    ref = decided(memory, ana)
    client = browser(ana)

    answer = client.post(path_of(ref, "correction/"), filled(client, ref), headers=HTMX)

    assert (answer.status_code, answer["HX-Trigger"]) == (201, '{"changed": {}}')
    assert "<html" not in answer.content.decode()
    assert 'id="correction"' in answer.content.decode()


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"outcome": ""}, 422),
        ({"outcome": "abandoned"}, 422),
        ({"reason": ""}, 422),
        ({"reason": "a\x00b"}, 422),
        ({"outcome": "done"}, 422),
        ({"correction_id": "x"}, 422),
        ({"turn_seen": "0" * 64}, 200),
        ({"basis": "9999"}, 412),
    ],
)
def test_what_cannot_be_written_comes_back_as_typed_and_writes_nothing(
    memory: RecordWriter, ana: User, wrong: dict[str, str], status: int
) -> None:
    ref = decided(memory, ana)
    client = browser(ana)

    answer = client.post(path_of(ref, "correction/"), filled(client, ref) | wrong)

    assert answer.status_code == status
    if "reason" not in wrong:
        assert "the provider&#x27;s log has &lt;no&gt; such payment" in answer.content.decode()
    assert len(turns_of(ref)) == 1
    assert not Correction.objects.exists()


def test_who_may_not_settle_it_sees_no_form_and_writes_nothing(memory: RecordWriter, ana: User, ben: User, dot: User) -> None:
    ref = decided(memory, ana)
    form = filled(browser(ana), ref)
    for person, status in ((ben, 403), (dot, 404)):
        for rest in ("correction/", "correction/turn/", "correction/withdraw/"):
            assert browser(person).post(path_of(ref, rest), form).status_code == status
        assert browser(person).get(path_of(ref, "correction/")).status_code == status
    assert "I was wrong" not in text_of(browser(ben).get(path_of(ref)).content.decode())
    assert len(turns_of(ref)) == 1


def test_what_its_agent_ended_itself_has_nothing_to_correct(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1, status="done")
    assert "nothing to correct" in text_of(browser(ana).get(path_of(ref, "correction/")).content.decode())


def test_a_correction_that_waits_is_shown_and_taken_back(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = decided(memory, ana)
    memory.lease("billing-7", epoch=5, state="live")
    client = browser(ana)

    assert client.post(path_of(ref, "correction/"), filled(client, ref)).status_code == 202

    assert "A correction is on its way: failed" in text_of(browser(bea).get(path_of(ref)).content.decode())
    assert client.post(path_of(ref, "correction/withdraw/")).status_code == 302
    assert "on its way" not in text_of(client.get(path_of(ref)).content.decode())
    assert (Correction.objects.get().state, len(turns_of(ref))) == ("withdrawn", 1)


@pytest.mark.usefixtures("quick_passwords")
def test_a_fresh_proof_of_identity_is_asked_for_and_nothing_typed_is_lost(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = decided(memory, ana)
    save_policy("create_payment", {"step_up_when": "true"}, seen_version=0, by=amy)
    client = browser(ana)
    form = filled(client, ref)

    asked = client.post(path_of(ref, "correction/"), form, headers=HTMX)

    html = asked.content.decode()
    assert (asked.status_code, len(turns_of(ref)), Correction.objects.exists()) == (403, 1, False)
    assert 'href="/confirm/?next=%2Factions%2Fmain%2Fbilling-7%2F1%2Fcorrection%2F"' in html
    assert "has &lt;no&gt; such payment" in html
    client.post("/confirm/", {"password": PASSWORD})
    form |= {name: value for name, value in hidden(html).items() if name == "turn_seen"}
    assert client.post(path_of(ref, "correction/"), form, headers=HTMX).status_code == 201
    assert len(turns_of(ref)) == 2


def test_the_api_corrects_once_and_says_what_it_came_to(memory: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    ref = decided(memory, ana)
    path, body = f"actions/{ref}/correction", {"outcome": "failed", "reason": REASON, "correction_id": "correction-1"}

    assert api(ben).post(path, body)[0] == 403
    assert api(ana).post(path, {**body, "outcome": "abandoned"})[0] == 422
    assert api(ana).post(path, {**body, "extra": 1})[0] == 422
    assert api(ana).post(path, {**body, "outcome": "done"})[0] == 422
    assert len(turns_of(ref)) == 1
    status, said = api(ana).post(path, body)
    assert (status, said["state"], said["told"], said["outcome"], said["was_read"]) == (201, "written", "done", "failed", "no")
    assert said["incident"] == Incident.objects.get().pk
    assert api(ana).post(path, body)[0] == 200
    assert api(ana).post(path, {**body, "outcome": "unknown"})[0] == 409
    assert len(turns_of(ref)) == 2

    shown = api(ben).get(f"actions/{ref}")[1]
    assert (shown["status"], shown["correction"]["outcome"], shown["decision"]["outcome"]) == ("done", "failed", "done")
    assert api(ana).delete(path)[0] == 404


def test_the_api_keeps_what_a_living_agent_cannot_be_told_yet(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    ref = decided(memory, ana)
    memory.lease("billing-7", epoch=5, state="live")
    path = f"actions/{ref}/correction"
    status, said = api(ana).post(path, {"outcome": "unknown", "reason": REASON, "correction_id": "correction-1"})
    assert (status, said["state"]) == (202, "waiting")
    status, said = api(ana).post(path, {"outcome": "failed", "reason": REASON, "correction_id": "correction-2"})
    assert (status, said["error"]) == (409, "pending")
    assert api(ana).delete(path)[1]["state"] == "withdrawn"


def _run(*args: Any, **options: Any) -> str:
    out = StringIO()
    call_command("correct", *args, stdout=out, stderr=StringIO(), **options)
    return out.getvalue()


def test_the_command_says_its_state_first_and_refuses_in_one_line(memory: RecordWriter, ana: User, ben: User) -> None:
    ref = decided(memory, ana)
    for user, outcome in (("ben", "failed"), ("ana", "done")):
        with pytest.raises(CommandError) as caught:
            _run("main", "billing-7", "1", outcome, reason=REASON, user=user)
        assert "\n" not in str(caught.value)
    with pytest.raises(CommandError):
        _run("main", "billing-7", "1", "failed", reason=" ", user="ana")
    assert len(turns_of(ref)) == 1

    assert _run("main", "billing-7", "1", "failed", reason=REASON, user="ana").startswith("written ")

    assert len(turns_of(ref)) == 2


def test_a_correction_that_needs_two_is_proposed_shown_and_approved_on_the_page(
    memory: RecordWriter, ana: User, amy: User, person: Cast
) -> None:
    ref = decided(memory, ana)
    save_policy("create_payment", {"second_person_when": "outcome == 'failed'"}, seen_version=0, by=amy)
    client, other = browser(ana), browser(person("other", "approver"))
    page = client.get(path_of(ref, "correction/")).content.decode()
    form = {**_correction_form(page), "outcome": "failed", "reason": REASON}
    shown = client.post(path_of(ref, "correction/turn/"), form, headers=HTMX).content.decode()
    assert "Propose it: failed" in text_of(shown)
    assert "nothing is written before a second person approves it" in text_of(shown)

    kept = client.post(path_of(ref, "correction/"), {**form, **hidden(shown)})

    assert (kept.status_code, "Kept as your proposal" in text_of(kept.content.decode())) == (202, True)
    row = Correction.objects.get()
    assert "A correction waits for a second person: failed" in text_of(client.get(path_of(ref)).content.decode())
    own = client.post(path_of(ref, "correction/approve/"), {"correction_id": row.correction_id})
    assert (own.status_code, len(turns_of(ref))) == (403, 1)
    listed = text_of(other.get("/proposals/", headers=HTMX).content.decode())
    assert "correction: failed, proposed by ana" in listed
    assert "yours to approve" in listed
    seen = other.get(path_of(ref)).content.decode()
    assert "correction: action 1 was settled as done, which was wrong" in text_of(seen)
    assert other.get(path_of(ref, "correction/approve/")).status_code == 302

    assert "Approve the correction: failed" in text_of(seen)
    assert "Withdraw the proposal" not in text_of(seen)
    empty = other.post(path_of(ref, "correction/turn-down/"), {"correction_id": row.correction_id, "second_reason": " "})
    assert (empty.status_code, "Approve the correction" in text_of(empty.content.decode())) == (422, True)
    done = other.post(path_of(ref, "correction/approve/"), {"correction_id": row.correction_id, "second_reason": "seen"})

    assert (done.status_code, len(turns_of(ref))) == (201, 2)
    after = text_of(client.get(path_of(ref)).content.decode())
    assert "other approved it" in after
    assert "waits for a second person" not in after
    assert "correction: failed" not in text_of(other.get("/proposals/", headers=HTMX).content.decode())


def test_that_no_tenants_server_takes_a_correction_is_said_before_it_is_typed(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = decided(memory, ana)
    said = "A correction cannot go through the tenant's server"
    monkeypatch.setattr("console.views.correction.find_server", lambda store: object())
    assert said not in text_of(browser(ana).get(path_of(ref, "correction/")).content.decode())

    memory.lease("billing-7", epoch=5, state="live")

    assert said in text_of(browser(ana).get(path_of(ref, "correction/")).content.decode())
