"""The action page: the claim, the record, the agent, the entries; for whom, as page and as pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries

from console import checks
from console.services.decide import DecisionRequest, decide
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import BACK, HTMX, browser, hidden, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    checks.forget()


def test_it_shows_claim_record_agent_and_form(records: RecordWriter, ana: User) -> None:
    records.lease("m-1", holder="pod-b:7:cafe", epoch=4)
    records.working_state("m-1", goal="Tell Anna", plan=["Write", "Send"])
    records.turn("m-1", 1, "I will write to Anna now", role="assistant")
    records.pointer("m-1", "ticket", fields={"id": "HELP-1"})
    ref = records.action("m-1", 1, args={"to": "anna@example.com", "subject": "Refund", "body": "Dear Anna"})

    response = browser(ana).get(path_of(ref))
    said = text_of(response.content.decode())

    assert response.status_code == 200
    for words in (
        "Email to anna@example.com, 'Refund'",
        "Dear Anna",
        "no resolver is configured for send_email",
        "pod-b:7:cafe",
        "Tell Anna",
        "I will write to Anna now",
        "HELP-1",
        "It happened",
        "It did not happen",
        "Give up on it",
        "Cannot tell yet",
    ):
        assert words in said


def test_the_form_has_an_id_of_its_own_each_time_and_the_digest_of_what_is_shown(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)

    one, two = (hidden(client.get(path_of(ref)).content.decode()) for _ in range(2))

    assert one["decision_id"] != two["decision_id"]
    assert one["seen"] == two["seen"] != ""


def test_secrets_in_arguments_turns_and_results_are_hidden(memory: RecordWriter, ana: User) -> None:
    secret = "sk_live_51H8abcdefghijklmnop"
    memory.turn("m-1", 1, json.dumps({"password": "hunter2-hunter2"}), role="tool", name="login")
    memory.working_state("m-1", goal=f"Use {secret}")
    ref = memory.action("m-1", 1, args={"api_key": "plain-secret", "body": f"key {secret}"}, status="done", result=f"ok {secret}")

    pages = "".join(browser(ana).get(path_of(ref, rest)).content.decode() for rest in ("", "arguments/", "result/", "status/"))

    assert "[redacted]" in pages
    for hiding in (secret, "plain-secret", "hunter2"):
        assert hiding not in pages


def test_large_arguments_are_cut_and_whole_one_click_away(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, args={"body": "x" * 20_000 + " the end"})
    client = browser(ana)

    html = client.get(path_of(ref)).content.decode()
    whole = client.get(path_of(ref, "arguments/")).content.decode()

    assert "the end" not in html
    assert "more characters" in text_of(html)
    assert f'href="{path_of(ref, "arguments/")}"' in html
    assert "the end" in whole


def test_a_closed_action_shows_its_end_and_no_form(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, status="failed", error="mailbox full", resolution="operator bea: looked at the log")

    html = browser(ana).get(path_of(ref)).content.decode()

    assert "mailbox full" in html
    assert "operator bea: looked at the log" in html
    assert "decision-form" not in html


def test_a_viewer_sees_no_form_but_why(memory: RecordWriter, ben: User) -> None:
    ref = memory.action("m-1", 1)

    html = browser(ben).get(path_of(ref)).content.decode()

    assert "decision-form" not in html
    assert "you need the role operator" in text_of(html)


def test_a_store_that_can_only_be_read_shows_no_form_but_the_remedy(memory: MemoryWriter, ana: User) -> None:
    memory.kept._is_prepared = False
    ref = memory.action("m-1", 1)

    html = browser(ana).get(path_of(ref)).content.decode()

    assert "decision-form" not in html
    assert "prepare_store main" in html


def test_a_pure_call_can_only_be_given_up(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, cls="pure", tool="read_file")

    html = browser(ana).get(path_of(ref)).content.decode()

    assert 'value="done" disabled' in html.replace("checked ", "")
    assert 'value="abandoned" checked' in html


def test_an_idempotent_call_comes_with_a_warning(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, cls="idempotent")

    assert "runs it again with the same key" in text_of(browser(ana).get(path_of(ref)).content.decode())


def test_a_live_agent_is_said_above_the_form(memory: RecordWriter, ana: User) -> None:
    memory.lease("m-1", state="live")
    ref = memory.action("m-1", 1)

    said = text_of(browser(ana).get(path_of(ref)).content.decode())

    assert "in flight" in said
    assert "kept as waiting and delivered once the lease is free" in said


def test_an_unreadable_record_shows_what_is_known(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1, body="{")

    response = browser(ana).get(path_of(ref))

    assert response.status_code == 200
    assert "m-1:act:1" in response.content.decode()
    assert "decision-form" not in response.content.decode()


def test_entries_stand_beside_the_claim(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("m-1", 1)
    decide(ref, DecisionRequest(outcome="done", reason="Found in the Sent folder", decision_id="0" * 8), by=bea)

    said = text_of(browser(ana).get(path_of(ref)).content.decode())

    assert "operator bea decided done" in said
    assert "“Found in the Sent folder”" in said


def test_the_agents_words_are_for_those_who_may_see_every_tool(memory: RecordWriter, dot: User) -> None:
    memory.working_state("t-1", goal="Pay somebody and open a ticket")
    memory.turn("t-1", 1, "the amount is 5000")
    ref = memory.action("t-1", 1, tool="open_ticket", args={"title": "Safari"})

    html = browser(dot).get(path_of(ref)).content.decode()

    assert "Safari" in html
    assert "Pay somebody" not in html
    assert "5000" not in text_of(html)


@pytest.mark.parametrize("rest", ["", "status/", "arguments/", "result/"])
class TestEveryPiece:
    """What holds for the page and for each piece of it."""

    def test_it_hides_from_somebody_limited_to_another_tool(self, memory: RecordWriter, dot: User, rest: str) -> None:
        ref = memory.action("m-1", 1, args={"to": "b@example.com"})

        response = browser(dot).get(path_of(ref, rest))

        assert response.status_code == 404
        assert "b@example.com" not in response.content.decode()

    def test_it_hides_from_people_without_a_role(self, memory: RecordWriter, cyd: User, rest: str) -> None:
        ref = memory.action("m-1", 1, args={"to": "b@example.com"})

        assert browser(cyd).get(path_of(ref, rest)).status_code == 403
        assert browser(cyd).get(path_of(ref, rest), headers=HTMX)["HX-Redirect"] == "/"

    def test_it_hides_from_somebody_limited_to_another_store(self, memory: RecordWriter, person: Cast, rest: str) -> None:
        ref = memory.action("m-1", 1)

        assert browser(person("eve", ("operator", "other", ""))).get(path_of(ref, rest)).status_code == 404

    def test_it_sends_strangers_to_the_login(self, memory: RecordWriter, db: None, rest: str) -> None:
        ref = memory.action("m-1", 1)

        assert browser().get(path_of(ref, rest))["Location"].startswith("/login/?next=")

    def test_it_refuses_post(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1)

        assert browser(ana).post(path_of(ref, rest)).status_code == 405

    def test_it_is_a_page_unless_htmx_asks_for_a_piece(self, memory: RecordWriter, ana: User, rest: str) -> None:
        ref = memory.action("m-1", 1, args={"to": "b@example.com"})
        client = browser(ana)

        for headers, is_page in (({}, True), (BACK, True), (HTMX, False)):
            response = client.get(path_of(ref, rest), headers=headers)
            assert ("<html" in response.content.decode()) == is_page
            assert "HX-Request" in response["Vary"]

    def test_what_is_not_there_is_said(self, memory: RecordWriter, ana: User, rest: str) -> None:
        assert browser(ana).get(f"/actions/main/nobody/7/{rest}").status_code == 404
        assert browser(ana).get(f"/actions/elsewhere/nobody/7/{rest}").status_code == 404

    def test_a_store_that_does_not_answer_is_said(self, flaky: MemoryWriter, ana: User, rest: str) -> None:
        ref = flaky.action("m-1", 1)
        flaky.kept.fails = "read"  # type: ignore[attr-defined]

        response = browser(ana).get(path_of(ref, rest))

        assert response.status_code == 503
        assert "What it holds is not known now." in text_of(response.content.decode())


@pytest.mark.parametrize(
    "path", ["/actions/main/m-1/0/", "/actions/main/m-1/99999999999999999999/", "/actions/main/m%201/1/", "/actions/MAIN/m-1/1/"]
)
def test_addresses_that_name_nothing_are_not_found(memory: RecordWriter, ana: User, path: str) -> None:
    assert browser(ana).get(path).status_code == 404


def test_the_pane_beside_the_queue_names_the_action_in_the_queues_address(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    headers = {**HTMX, "HX-Target": "pane", "HX-Current-URL": "http://testserver/?tool=send_email"}

    response = browser(ana).get(path_of(ref), headers=headers)

    assert response["HX-Push-Url"] == "/?tool=send_email&open=main/m-1/1"


def test_what_changed_elsewhere_is_said_while_the_form_stays(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 1)
    client = browser(ana)
    seen = hidden(client.get(path_of(ref)).content.decode())["seen"]
    memory.action("m-1", 1, status="unknown", args={"to": "somebody-else@example.com", "body": "another text"})

    html = client.get(path_of(ref, f"status/?seen={seen}"), headers=HTMX).content.decode()

    assert "has changed since you opened it" in html
    assert "decision-form" not in html
    assert "another text" in html


@pytest.mark.parametrize("turns", [2, 200])
def test_it_costs_the_same_however_long_the_story(
    memory: RecordWriter, ana: User, turns: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    memory.turns("m-1", turns)
    ref = memory.action("m-1", 1)
    client = browser(ana)
    client.get(path_of(ref))

    # session, user, roles, policies, what stands about it, its tool's policy, what stands around; of neither is there anything to read
    with django_assert_num_queries(7):
        client.get(path_of(ref))


@pytest.mark.parametrize(
    "args",
    [
        "{not json",
        "[" * 100_000,
        json.dumps({f"k{i}": i for i in range(10_000)}),
        '{"n": ' + "9" * 5000 + "}",
        '{"n": 1e999999}',
        json.dumps({"body": "x" * 1_000_000}),
        '{"a": "\\u0000\\ud83d"}',
        "",
        "null",
        '"just text"',
    ],
    ids=["invalid", "nested", "wide", "long-number", "huge-exponent", "a-megabyte", "nul-and-surrogate", "empty", "null", "text"],
)
def test_whatever_the_arguments_are_the_pages_render(memory: RecordWriter, ana: User, args: Any) -> None:
    ref = memory.action("m-1", 1, args=args)
    client = browser(ana)

    for path in ("/", path_of(ref), path_of(ref, "arguments/"), "/agents/main/m-1/"):
        assert client.get(path).status_code == 200
