"""Deciding on the page: the turn before the commit, the commit bound to it, and a panel for every answer."""

from __future__ import annotations

import re
import uuid
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from actions.records import ActionRef, ActionStatus, Turn
from console import checks, stores
from console.models import Decision, Note
from console.services.decide import DecisionRequest, decide
from console.services.deliver import attempt
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import BACK, HTMX, browser, filled, hidden, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    checks.forget()


def status_of(ref: ActionRef) -> str:
    action = stores.get_store(ref.store).get_action(ref.agent, ref.seq).action
    return getattr(action, "status", "unreadable")


def turns_of(ref: ActionRef) -> list[str]:
    return [turn.content for turn in stores.get_store(ref.store).list_turns(ref.agent, limit=10) if isinstance(turn, Turn)]


def said(response: Any) -> str:
    return text_of(response.content.decode())


def post(client: Client, ref: ActionRef, form: dict[str, str], **headers: str) -> Any:
    return client.post(path_of(ref, "decision/"), form, headers=headers or HTMX)


# --- the turn-to-be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "content", "brief"),
    [
        (
            {"outcome": "done", "reason": "Found in Sent", "result": "250 ok"},
            "250 ok",
            "(settled after a crash: done; operator ana: Found in Sent) 250 ok",
        ),
        (
            {"outcome": "failed", "reason": "Not in Sent"},
            "failed: Not in Sent",
            "(settled after a crash: failed; operator ana: Not in Sent) failed: Not in Sent",
        ),
        (
            {"outcome": "abandoned", "reason": "No longer needed"},
            "abandoned: No longer needed",
            "(settled after a crash: abandoned; operator ana: No longer needed) abandoned",
        ),
    ],
)
def test_the_exact_turn_is_shown_before_anything_is_written(
    records: RecordWriter, ana: User, fields: dict[str, str], content: str, brief: str
) -> None:
    ref = records.action("m-1", 1)
    client = browser(ana)

    shown = said(client.post(path_of(ref, "turn/"), {**filled(client, ref), **fields}, headers=HTMX))

    assert content in shown
    assert brief in shown
    assert status_of(ref) == ActionStatus.STARTED

    post(client, ref, filled(client, ref, **fields))

    turn = stores.get_store("main").list_turns("m-1", limit=1)[0]
    assert isinstance(turn, Turn)
    assert (turn.content, turn.brief) == (content, brief)


def test_a_note_has_no_turn(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)

    assert "Nothing is written to the agent" in said(
        browser(ana).post(path_of(ref, "turn/"), {"outcome": "later", "reason": "x", "decision_id": "0" * 8}, headers=HTMX)
    )


@pytest.mark.parametrize(
    "fields", [{}, {"outcome": "done"}, {"outcome": "done", "reason": "a\x00b"}, {"outcome": "bogus", "reason": "x"}]
)
def test_as_long_as_something_is_missing_nothing_can_be_committed(
    memory: RecordWriter, ana: User, fields: dict[str, str]
) -> None:
    ref = memory.action("m-1", 1)

    html = browser(ana).post(path_of(ref, "turn/"), {"decision_id": "0" * 8, **fields}, headers=HTMX).content.decode()

    assert "turn_seen" not in html
    assert "Write:" not in html


# --- the commit ------------------------------------------------------------------------------------------------------


def test_it_writes_and_says_what_was_written_and_where_to_go_on(records: RecordWriter, ana: User) -> None:
    ref = records.action("m-1", 1)
    records.action("p-1", 1, tool="create_payment", args={"amount": 7, "currency": "EUR", "to": "ACME"})
    client = browser(ana)

    response = post(client, ref, filled(client, ref, "done", "Found in the Sent folder"))

    assert response.status_code == 201
    assert status_of(ref) == ActionStatus.DONE
    assert turns_of(ref) == ["done"]
    assert "Written: done" in said(response)
    assert "It is turn 1 of m-1" in said(response)
    assert "Next: Payment of 7.00 EUR to ACME" in said(response)
    assert "/history/main/1/" in response.content.decode()
    assert "changed" in response["HX-Trigger"]


@pytest.mark.parametrize(
    ("query", "next_one"),
    [
        ("tool=send_email", "Next: Email to b@example.com"),
        ("tool=send_email&state=interrupted,done", "Next: Email to b@example.com"),
        ("tool=open_ticket", "Nothing else of this filter is in doubt. Next of the whole queue: Payment of 7.00 EUR"),
        ("state=done&class=any", "Next: Payment of 7.00 EUR"),  # what is settled is no work
        ("", "Next: Payment of 7.00 EUR"),
        ("state=bogus", "Next: Payment of 7.00 EUR"),
        ("store=nowhere", "Next: Payment of 7.00 EUR"),
        ("claimed=nobody-of-that-name", "Next: Payment of 7.00 EUR"),
    ],
)
@pytest.mark.parametrize("way", ["the form", "the page", "the queue"])
def test_next_is_of_the_filter_that_the_person_came_from(
    memory: RecordWriter, ana: User, query: str, next_one: str, way: str
) -> None:
    ref = memory.action("m-1", 1)
    memory.action("m-2", 1, args={"to": "b@example.com"})
    memory.action("p-1", 1, tool="create_payment", args={"amount": 7, "currency": "EUR", "to": "ACME"})
    client = browser(ana)
    form = filled(client, ref)
    named = f"{path_of(ref)}?{urlencode({'queue': query})}"
    if way == "the form":
        page = client.get(named).content.decode()
        assert unescape(page.split('class="back" href="')[1].split('"')[0]) == (f"/?{query}" if query else "/")
        form |= {name: value for name, value in hidden(page).items() if name == "queue"}
    headers = {"the form": {}, "the page": {"Referer": f"http://testserver{named}"}}.get(
        way, {**HTMX, "HX-Current-URL": f"http://testserver/?{query}&open={ref}&cursor=x"}
    )

    answer = client.post(path_of(ref, "decision/"), form, headers=headers)

    assert answer.status_code == 201
    assert next_one in said(answer)
    assert ("?queue=tool%3Dsend_email" in answer.content.decode()) is query.startswith("tool=send_email")


@pytest.mark.parametrize(
    "seen", ["http://elsewhere.example/?tool=send_email", "http://testserver/stores/?tool=send_email", "http://[", "::"]
)
def test_another_page_is_no_queue_that_somebody_came_from(memory: RecordWriter, ana: User, seen: str) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    answer = client.post(path_of(ref, "decision/"), filled(client, ref), headers={"Referer": seen})

    assert answer.status_code == 201
    assert "queue=" not in answer.content.decode()


def test_without_javascript_the_first_submit_shows_the_turn_and_the_second_writes_it(records: RecordWriter, ana: User) -> None:
    ref = records.action("m-1", 1)
    client = browser(ana)
    form = {**hidden(client.get(path_of(ref)).content.decode()), "outcome": "failed", "reason": "Not in the log"}

    review = client.post(path_of(ref, "decision/"), form)

    assert review.status_code == 200
    assert "Not written yet." in said(review)
    assert "failed: Not in the log" in said(review)
    assert status_of(ref) == ActionStatus.STARTED

    written = client.post(path_of(ref, "decision/"), {**form, **hidden(review.content.decode())})

    assert written.status_code == 201
    assert "<html" in written.content.decode()
    assert status_of(ref) == ActionStatus.FAILED


def test_what_was_typed_after_the_turn_was_shown_is_not_written(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    response = post(client, ref, {**filled(client, ref, "done", "Found it"), "reason": "Found it, I think"})

    assert "Not written yet." in said(response)
    assert "Found it, I think" in said(response)
    assert status_of(ref) == ActionStatus.STARTED


def test_a_preset_without_javascript_fills_the_reason_and_writes_nothing(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "done", "")

    html = client.post(path_of(ref, "decision/"), {**form, "preset": "Found in the Sent folder"}).content.decode()

    assert re.search(r'<textarea id="reason"[^>]*>\s*Found in the Sent folder</textarea>', html)
    assert status_of(ref) == ActionStatus.STARTED


@pytest.mark.parametrize("outcome", ["", "failed", "abandoned", "later"])
def test_a_preset_of_another_outcome_is_refused(memory: RecordWriter, ana: User, outcome: str) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    form = {**hidden(client.get(path_of(ref)).content.decode()), "outcome": outcome, "reason": "Mine", "error": "x"}

    response = client.post(path_of(ref, "decision/"), {**form, "preset": "Found in the Sent folder"})

    assert response.status_code == 422
    assert re.search(r'<textarea id="reason"[^>]*>\s*Mine</textarea>', response.content.decode())
    assert status_of(ref) == ActionStatus.STARTED


def test_the_default_button_of_the_form_shows_the_turn_and_writes_nothing(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    page = client.get(path_of(ref)).content.decode()
    first = re.search(r"<button[^>]*>", page[page.index('id="decision-form"') :])
    assert first is not None
    assert 'name="review"' in first[0]

    response = client.post(path_of(ref, "decision/"), {**filled(client, ref), "review": "1"})

    assert response.status_code == 200
    assert "Not written yet." in said(response)
    assert status_of(ref) == ActionStatus.STARTED


def test_a_reason_is_required(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    response = post(client, ref, filled(client, ref, "done", "  "))

    assert response.status_code == 422
    assert "A reason is required" in said(response)
    assert status_of(ref) == ActionStatus.STARTED


def test_a_rule_that_is_broken_is_named_and_nothing_typed_is_lost(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, cls="pure", tool="read_file")
    client = browser(ana)

    response = post(client, ref, filled(client, ref, "done", "I saw it"))

    assert response.status_code == 422
    assert "can only be abandoned" in said(response)
    assert "I saw it" in said(response)
    assert status_of(ref) == ActionStatus.STARTED


def test_a_result_typed_for_another_outcome_is_left_out(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    response = post(client, ref, filled(client, ref, "failed", "No", result="250 ok", look_again_at="2030-01-01T10:00"))

    assert response.status_code == 201
    assert turns_of(ref) == ["failed: No"]


def test_a_note_is_kept_and_the_agent_reads_nothing(records: RecordWriter, ana: User) -> None:
    ref = records.action("m-1", 1)
    client = browser(ana)

    response = post(client, ref, filled(client, ref, "later", "The mailbox is down", look_again_at="2030-01-01T10:00"))

    assert response.status_code == 201
    assert "nothing was written to the agent" in said(response)
    assert "1 Jan 2030 10:00 UTC" in said(response)
    assert status_of(ref) == ActionStatus.STARTED
    assert turns_of(ref) == []
    assert Note.objects.get().text == "The mailbox is down"


def test_sent_twice_is_written_once(records: RecordWriter, ana: User) -> None:
    ref = records.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref)
    post(client, ref, form)

    response = post(client, ref, form)

    assert response.status_code == 200
    assert "Already written: done" in said(response)
    assert len(turns_of(ref)) == 1


# --- refusals are answers --------------------------------------------------------------------------------------------


def test_the_second_person_is_told_who_decided_what_and_loses_nothing(records: RecordWriter, ana: User, bea: User) -> None:
    ref = records.action("m-1", 1)
    first, second = browser(ana), browser(bea)
    early, late = filled(first, ref, "done", "Found in Sent"), filled(second, ref, "failed", "I do not see it anywhere")
    post(first, ref, early)

    response = post(second, ref, late)

    assert response.status_code == 409
    assert "operator ana said done" in said(response)
    assert "“Found in Sent”" in said(response)
    assert "I do not see it anywhere" in said(response)
    assert turns_of(ref) == ["done"]


def test_a_live_agent_keeps_the_decision_waiting_until_it_is_withdrawn(records: RecordWriter, ana: User) -> None:
    records.lease("m-1", holder="pod-z:1:live", state="live")
    ref = records.action("m-1", 1)
    client = browser(ana)

    response = post(client, ref, filled(client, ref))

    assert response.status_code == 202
    assert "Nothing is written to the agent yet" in said(response)
    assert "pod-z:1:live holds the lease until" in said(response)
    assert status_of(ref) == ActionStatus.STARTED
    assert "A decision is on its way: done." in said(client.get(path_of(ref)))

    decision_id = hidden(response.content.decode())["decision_id"]
    answer = client.post(path_of(ref, "decision/withdraw/"), {"decision_id": decision_id}, headers=HTMX)

    assert "Withdrawn; it will not be written" in said(answer)
    assert Decision.objects.get().state == "withdrawn"
    assert "There is nothing to withdraw" in said(client.post(path_of(ref, "decision/withdraw/"), headers=HTMX))


def test_the_foot_learns_what_became_of_the_decision_it_shows(memory: RecordWriter, ana: User, bea: User) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    client, other = browser(ana), browser(bea)
    decision_id = hidden(post(client, ref, filled(client, ref)).content.decode())["decision_id"]
    assert f"foot={decision_id}" in client.get(path_of(ref)).content.decode()
    watch = path_of(ref, f"status/?foot={decision_id}")
    assert client.get(watch, headers=HTMX).status_code == 204

    memory.lease("m-1", state="released")
    Decision.objects.update(next_try_at=timezone.now())
    attempt(Decision.objects.get().pk, wait=True)

    assert "Your decision (done) is written as turn 1 of m-1." in said(client.get(watch, headers=HTMX))
    assert "The decision of ana (done) is written as turn 1 of m-1." in said(other.get(watch, headers=HTMX))
    late = client.post(path_of(ref, "decision/withdraw/"), {"decision_id": decision_id}, headers=HTMX)
    assert late.status_code == 409
    assert "Too late to withdraw: already delivered Your decision (done) is written as turn 1 of m-1." in said(late)
    assert "before you" not in said(late)


def test_the_foot_says_nothing_while_the_store_has_it_and_the_row_does_not_say_so_yet(memory: RecordWriter, ana: User) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    client = browser(ana)
    decision_id = hidden(post(client, ref, filled(client, ref)).content.decode())["decision_id"]
    memory.action("m-1", 1, status="done", result="done")

    response = client.get(path_of(ref, f"status/?foot={decision_id}&was=proposed"), headers=HTMX)

    assert response.status_code == 204
    assert Decision.objects.get().state == "waiting"


def test_the_foot_learns_of_a_withdrawal_by_somebody_else(memory: RecordWriter, ana: User, bea: User) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    client = browser(ana)
    decision_id = hidden(post(client, ref, filled(client, ref)).content.decode())["decision_id"]
    browser(bea).post(path_of(ref, "decision/withdraw/"), {"decision_id": decision_id}, headers=HTMX)

    assert "Withdrawn; it will not be written" in said(client.get(path_of(ref, f"status/?foot={decision_id}"), headers=HTMX))


# --- the store goes away under the form ------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [HTMX, {}], ids=["htmx", "page"])
def test_a_store_that_is_gone_at_the_commit_answers_in_the_panel_and_loses_nothing(
    flaky: MemoryWriter, ana: User, headers: dict[str, str]
) -> None:
    ref = flaky.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "done", "Found in the Sent folder")
    flaky.kept.fails = "read"  # type: ignore[attr-defined]

    response = client.post(path_of(ref, "decision/"), form, headers=headers)

    html = response.content.decode()
    assert response.status_code == 503
    assert 'id="decision"' in html
    assert "Not written: store main does not answer" in said(response)
    assert "Found in the Sent folder" in said(response)
    assert "connection refused" not in html
    assert hidden(html[html.index('id="decision"') :])["decision_id"] == form["decision_id"]
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    assert post(client, ref, form).status_code == 201


def test_a_store_that_is_gone_while_somebody_types_leaves_the_form_alone(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]

    response = client.post(path_of(ref, "turn/"), form, headers=HTMX)

    assert response.status_code == 503
    assert "does not answer, so the turn cannot be shown" in said(response)
    assert "connection refused" not in said(response)
    assert "data-once" not in response.content.decode()


def test_only_those_who_run_the_console_see_what_the_driver_says(flaky: MemoryWriter, person: Cast) -> None:
    ref = flaky.action("m-1", 1)
    client = browser(person("eve", "operator", "admin"))
    form = filled(client, ref)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]

    assert "connection refused" in said(post(client, ref, form))


def test_the_foot_says_that_the_action_ended_meanwhile_and_by_whom(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    seen = hidden(client.get(path_of(ref)).content.decode())["seen"]
    assert "data-blocks" not in client.get(path_of(ref, f"status/?seen={seen}"), headers=HTMX).content.decode()
    decide(ref, DecisionRequest(outcome="failed", reason="Not there", decision_id="1" * 8), by=bea)

    news = client.get(path_of(ref, f"status/?seen={seen}"), headers=HTMX)

    assert "It ended meanwhile: failed, by operator bea." in said(news)
    assert "data-blocks" in news.content.decode()
    assert "hx-swap-oob" in news.content.decode()


def test_another_persons_decision_on_its_way_is_shown(memory: RecordWriter, ana: User, bea: User) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "failed", "Not there")
    decide(ref, DecisionRequest(outcome="done", reason="Seen", decision_id="1" * 8), by=bea)

    response = post(client, ref, form)

    assert response.status_code == 409
    assert "bea said done" in said(response)
    assert "Not there" in said(response)


def test_an_action_that_changed_is_shown_anew_and_the_text_stays(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "done", "Found it in the log")
    memory.action("m-1", 1, args={"to": "somebody-else@example.com"})

    response = post(client, ref, form)

    assert response.status_code == 412
    assert "has changed since you opened it" in said(response)
    assert "somebody-else@example.com" in said(response)
    assert "Found it in the log" in said(response)
    assert status_of(ref) == ActionStatus.STARTED

    again = {**form, **hidden(response.content.decode())}
    assert again["seen"] != form["seen"]
    assert post(client, ref, again).status_code == 201


def test_a_used_up_form_comes_back_fresh(memory: RecordWriter, ana: User) -> None:
    one, two = memory.action("m-1", 1), memory.action("m-1", 2)
    client = browser(ana)
    used = filled(client, one)
    post(client, one, used)

    response = post(client, two, {**filled(client, two), "decision_id": used["decision_id"]})

    assert response.status_code == 409
    assert "this form was used before" in said(response)
    assert hidden(response.content.decode())["decision_id"] != used["decision_id"]
    assert status_of(two) == ActionStatus.STARTED


@pytest.mark.parametrize("decision_id", ["", "short", "x" * 65, "not allowed!"])
def test_a_decision_id_that_is_none_is_refused(memory: RecordWriter, ana: User, decision_id: str) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    assert post(client, ref, {**filled(client, ref), "decision_id": decision_id}).status_code == 422
    assert status_of(ref) == ActionStatus.STARTED


def test_a_store_that_can_only_be_read_says_what_to_do(memory: MemoryWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "done", "Found it")
    memory.kept._is_prepared = False

    response = post(client, ref, form)

    assert response.status_code == 503
    assert "the store can only be read" in said(response)
    assert "Found it" in said(response)


def test_a_lost_answer_is_said_to_be_unknown_and_asking_again_finds_it_written(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("m-1", 1)
    client = browser(ana)
    form = filled(client, ref, "done", "Found it")
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]

    response = post(client, ref, form)

    assert response.status_code == 503
    assert "Unknown: no answer came back" in said(response)
    assert "Found it" in said(response)

    flaky.kept.fails = ""  # type: ignore[attr-defined]
    answer = post(client, ref, hidden(response.content.decode()))

    assert answer.status_code in (200, 201)
    assert "ritten: done" in said(answer)
    assert turns_of(ref) == ["done"]


# --- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", ["turn/", "decision/", "decision/withdraw/"])
class TestEveryPost:
    """What holds for the preview, the commit and the withdrawal."""

    FORM = {"outcome": "done", "reason": "Found it", "decision_id": str(uuid.UUID(int=7))}

    def test_it_refuses_get(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1)
        response = browser(ana).get(path_of(ref, rest), self.FORM)
        assert (response.status_code, response["Location"]) == (302, path_of(ref))
        assert browser(ana).put(path_of(ref, rest)).status_code == 405
        assert status_of(ref) == ActionStatus.STARTED
        assert not Decision.objects.exists()

    def test_it_refuses_viewers(self, memory: RecordWriter, ben: User, rest: str) -> None:
        ref = memory.action("m-1", 1)

        response = browser(ben).post(path_of(ref, rest), self.FORM, headers=HTMX)

        assert response.status_code == 403
        assert status_of(ref) == ActionStatus.STARTED

    def test_it_refuses_an_admin_who_is_nothing_else(self, memory: RecordWriter, amy: User, rest: str) -> None:
        assert browser(amy).post(path_of(memory.action("m-1", 1), rest), self.FORM).status_code == 403

    def test_it_hides_from_people_without_a_role_and_from_other_teams(
        self, memory: RecordWriter, cyd: User, dot: User, person: Cast, rest: str
    ) -> None:
        ref = memory.action("m-1", 1)

        assert browser(cyd).post(path_of(ref, rest), self.FORM).status_code == 403
        assert browser(dot).post(path_of(ref, rest), self.FORM).status_code == 404
        assert browser(person("eve", ("operator", "other", ""))).post(path_of(ref, rest), self.FORM).status_code == 404
        assert status_of(ref) == ActionStatus.STARTED

    def test_it_needs_the_csrf_token(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1)

        response = browser(ana, enforce_csrf_checks=True).post(path_of(ref, rest), self.FORM)

        assert response.status_code == 403
        assert "Not sent from one of our pages" in response.content.decode()
        assert status_of(ref) == ActionStatus.STARTED

    def test_it_refuses_what_another_site_started(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1)

        response = browser(ana).post(path_of(ref, rest), self.FORM, headers={"Sec-Fetch-Site": "cross-site"})

        assert response.status_code == 403
        assert "Nothing was written" in text_of(response.content.decode())

    def test_an_ended_session_sends_the_page_to_the_login_and_says_that_nothing_was_written(
        self, memory: RecordWriter, db: None, rest: str
    ) -> None:
        ref = memory.action("m-1", 1)
        client = browser()
        client.cookies["sessionid"] = "ended"

        response = client.post(
            path_of(ref, rest), self.FORM, headers={**HTMX, "HX-Current-URL": f"http://testserver{path_of(ref)}"}
        )

        assert response["HX-Redirect"].startswith("/login/?next=%2Factions%2Fmain%2Fm-1%2F1%2F")
        assert "nothing was written" in text_of(client.get(response["HX-Redirect"]).content.decode())
        assert status_of(ref) == ActionStatus.STARTED

    def test_it_answers_a_page_to_everybody_but_htmx(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1)
        client = browser(ana)

        assert "<html" in client.post(path_of(ref, rest), self.FORM).content.decode()
        assert "<html" in client.post(path_of(ref, rest), self.FORM, headers=BACK).content.decode()
        assert "<html" not in client.post(path_of(ref, rest), self.FORM, headers=HTMX).content.decode()

    def test_an_action_that_is_not_there_is_not_found(self, memory: RecordWriter, ana: User, rest: str) -> None:
        assert browser(ana).post(f"/actions/main/nobody/7/{rest}", self.FORM).status_code == 404

    def test_an_unreadable_record_cannot_be_decided(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1, body="{")

        assert browser(ana).post(path_of(ref, rest), self.FORM, headers=HTMX).status_code in (200, 404, 422)
        assert status_of(ref) == "unreadable"
