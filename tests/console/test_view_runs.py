"""Runs on the screen: the list, one run with what people do about it, taking one back, starting one; and where else they are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries, Settings

from console import run_types
from console.models import Run
from tests.console.conftest import Cast
from tests.console.run_kinds import MODULE, REFUND
from tests.console.runs import a_run, an_approval, an_event
from tests.console.view_helpers import HTMX, browser, text_of, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory", "refunds", "quick_passwords")]
GOOD = {
    "in-order": "A-17",
    "in-amount": "1200.50",
    "in-channel": "letter",
    "in-notify": "yes",
    "in-tags": '["vip"]',
    "key": "key-1",
}


@pytest.fixture
def refunds(settings: Settings) -> Iterator[None]:
    settings.RUN_TYPES = (MODULE,)
    settings.RUN_STORE = "main"
    run_types._known = None
    yield
    run_types._known = None


# --- the list --------------------------------------------------------------------------------------------------------


def test_the_list_shows_runs_newest_first_with_what_they_wait_for(ana: User) -> None:
    first = a_run("run-1", status="waiting_approval", steps=3)
    an_approval(first)
    a_run("run-2", status="running", parked="open_calls", by="bea")
    html = browser(ana).get("/runs/").content.decode()
    said = words_of(html)

    assert html.index("/runs/run-2/") < html.index("/runs/run-1/")
    assert "1 call to approve" in said
    assert "a call is in doubt" in said
    assert "Refund · order A-17, amount 1200.00" in said
    assert 'aria-current="page">Runs</a>' in html


@pytest.mark.parametrize(
    ("summary", "given", "sentence"),
    [
        ("Refund of {amount} EUR, order {order}", {"order": "A-17", "amount": 59.9}, "Refund of 59.90 EUR, order A-17"),
        ("Refund of {amount} EUR, order {order}", {"order": "A-17"}, "Refund · order A-17"),
        ("", {"order": "A-17", "amount": 59.9, "currency": "EUR"}, "Refund · order A-17, amount 59.90 EUR, currency EUR"),
        ("", {"order": "A-17", "amount": "much", "nested": {"x": 1}}, "Refund · order A-17, amount much"),
        ("To {order}", {"order": "<b>" + "x" * 100}, "To <b>" + "x" * 57),
    ],
)
def test_a_run_is_called_by_one_sentence_wherever_it_is_named(
    ana: User, monkeypatch: pytest.MonkeyPatch, summary: str, given: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(run_types, "_known", {"refund": replace(REFUND, summary=summary)})
    a_run("run-1", given=given)
    client = browser(ana)

    for path in ("/runs/", "/runs/run-1/", "/runs/run-1/undo/"):
        assert sentence in text_of(client.get(path).content.decode()), path
    assert f">{sentence[:3]}" in client.get("/runs/run-1/").content.decode().split("<h1>")[1].split("</h1>")[0]


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("status=failed", {"run-2"}),
        ("type=refund", {"run-1", "run-2"}),
        ("type=other", {"run-3"}),
        ("text=RUN-1", {"run-1"}),
        ("text=bea", {"run-3"}),
        ("status=done&type=refund", set()),
    ],
)
def test_filters_stand_in_the_address(ana: User, query: str, seen: set[str]) -> None:
    a_run("run-1")
    a_run("run-2", status="failed")
    a_run("run-3", type="other", by="bea")
    html = browser(ana).get(f"/runs/?{query}").content.decode()

    assert {one for one in ("run-1", "run-2", "run-3") if f"/runs/{one}/" in html} == seen
    assert ("No run matches" in html) is (not seen)


def test_a_filter_that_means_nothing_is_said(ana: User) -> None:
    client = browser(ana)
    for query in ("status=bogus", "cursor=nowhere", "cursor=%00"):
        assert client.get(f"/runs/?{query}").status_code == 400
    assert client.get("/runs/?text=%00").status_code in (200, 400)


def test_pages_follow_each_other_without_gap_or_repetition(ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.views.runs.PAGE_SIZE", 2)
    for number in range(5):
        a_run(f"run-{number}")
    client, path, seen = browser(ana), "/runs/?type=refund", []
    for _ in range(3):
        html = client.get(path).content.decode()
        seen += [one for one in (f"run-{number}" for number in range(4, -1, -1)) if f'href="/runs/{one}/"' in html]
        path = "/runs/" + (html.split('rel="next"')[0].rpartition('href="')[2].split('"')[0].replace("&amp;", "&"))

    assert seen == [f"run-{number}" for number in range(4, -1, -1)]


def test_who_may_not_read_every_tool_of_a_type_sees_no_run_of_it(dot: User, ben: User, cyd: User) -> None:
    a_run("run-1")
    assert "/runs/run-1/" not in browser(dot).get("/runs/").content.decode()
    assert browser(dot).get("/runs/run-1/").status_code == 404
    assert browser(dot).get("/runs/run-1/undo/").status_code == 404
    assert browser(ben).get("/runs/run-1/").status_code == 200
    assert browser(cyd).get("/runs/").status_code == 403
    assert browser().get("/runs/").status_code == 302


def test_the_list_costs_the_same_with_two_and_with_twenty(ana: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    client = browser(ana)
    client.get("/runs/")
    for count in (2, 18):
        for _ in range(count):
            an_approval(a_run())
        with django_assert_num_queries(6):
            client.get("/runs/", headers=HTMX)


def test_the_menu_names_runs_only_where_there_is_something_to_see(ana: User, settings: Settings) -> None:
    settings.RUN_TYPES = ()
    client = browser(ana)
    assert 'href="/runs/"' not in client.get("/stores/").content.decode()
    a_run("run-1")
    assert 'href="/runs/"' in client.get("/stores/").content.decode()


def test_a_declaration_that_cannot_work_is_said_and_takes_no_page_away(ana: User, settings: Settings) -> None:
    settings.RUN_TYPES = (MODULE, MODULE)
    run_types._known = None
    a_run("run-1")
    client = browser(ana)
    for path in ("/runs/", "/tools/"):
        assert "two run types are called errand" in text_of(client.get(path).content.decode())
    assert client.get("/").status_code == 200


def test_a_module_that_cannot_be_loaded_is_said_and_takes_no_page_away(
    memory: RecordWriter, ana: User, settings: Settings
) -> None:
    run = a_run("run-1", status="failed")
    asked = an_approval(a_run("run-2", status="waiting_approval"))
    memory.action("run-1", 1, tool="pay", status="done", args={"order": "A-17"}, result="ok")
    settings.RUN_TYPES = ("no.such.module",)
    run_types._known = None
    client = browser(ana)

    pages = {
        path: client.get(path)
        for path in (
            "/",
            "/runs/",
            "/runs/run-1/",
            "/runs/run-1/undo/",
            f"/approvals/{asked.approval_id}/",
            "/agents/main/run-1/",
            "/tools/",
        )
    }

    assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(pages, 200)
    for path in ("/runs/", "/runs/run-1/", "/tools/"):
        assert "module no.such.module of RUN_TYPES cannot be loaded" in text_of(pages[path].content.decode())
    for gesture in ("resume", "restart"):
        answer = client.post(f"/runs/run-1/{gesture}/", {"reason": "paid twice"})
        assert answer.status_code == 409
        assert "paid twice" in answer.content.decode()
    run.refresh_from_db()
    assert run.status == "failed"


# --- one run ---------------------------------------------------------------------------------------------------------


def test_the_page_tells_how_far_it_is_what_it_called_and_what_happened(memory: RecordWriter, ana: User) -> None:
    run = a_run("run-1", status="failed", steps=2, busy_ms=65_000, cost=Decimal("0.25"), problem="the graph raised KeyError: 'x'")
    an_event(run, "started", by="ana")
    an_event(run, "step", nodes=["agent"], calls=[{"seq": 1, "tool": "look_up"}], cost="0.25", busy_ms=1200)
    an_event(run, "step", nodes=["tools"], calls=[{"seq": 2, "tool": "pay"}])
    an_event(run, "resumed", reason="the worker that was at it is gone", lost=1)
    an_event(run, "failed", problem="the graph raised KeyError: 'x'")
    memory.action("run-1", 1, tool="look_up", cls="pure", status="done", args={"order": "A-17"}, result="ok")
    memory.action("run-1", 2, tool="pay", status="done", args={"amount": 1200, "currency": "EUR", "to": "ACME"}, result="ok")
    memory.action("run-1", 3, tool="take_back", status="done", args={"order": "A-17", "compensates": 2}, result="ok")
    said = words_of(browser(ana).get("/runs/run-1/").content.decode())

    for words in ("It failed.", "KeyError", "2 of 20", "0.25 of 2", "Payment of 1200.00 EUR to ACME", "takes back call 2"):
        assert words in said
    for words in (
        "taken back by call 3",
        "Step 2",
        "nodes tools",
        "took 1.2 s",
        "workers lost 1",
        "the worker that was at it is gone",
    ):
        assert words in said


def test_a_parked_run_leads_to_the_call_in_doubt(memory: RecordWriter, ana: User) -> None:
    a_run("run-1", parked="open_calls", problem="nobody knows yet whether these calls happened: 1 (pay)")
    memory.action("run-1", 1, tool="pay", status="unknown", args={"amount": 12, "currency": "EUR"})
    html = browser(ana).get("/runs/run-1/").content.decode()

    assert "/?open=main/run-1/1" in html
    assert "It stands still: a call is in doubt." in text_of(html)


def test_a_run_whose_type_is_gone_says_so(ana: User) -> None:
    a_run("run-1", type="forgotten", status="failed")
    html = browser(ana).get("/runs/run-1/").content.decode()
    said = text_of(html)

    assert 'aria-label="Main"' in html
    assert "Its type forgotten is not registered here" in said
    assert "Resume" not in said


def test_hostile_words_stay_words(memory: RecordWriter, ana: User) -> None:
    evil = '<script>alert(1)</script>\u202e{% now "Y" %}'
    run = a_run(
        "run-1", status="failed", problem=evil, result=evil, given={"order": evil, "api_key": "sk_live_" + "51H8abcdEFGHijklMNOP"}
    )
    an_event(run, "failed", problem=evil, by=evil, nodes=[evil])
    an_approval(run, args={"to": evil, evil: evil}, description=evil, message=evil, state="rejected", answered_by="bea")
    memory.working_state("run-1", goal=evil)
    memory.action("run-1", 1, tool=evil, args={"to": evil})
    client = browser(ana)
    for path in ("/runs/run-1/", "/runs/", f"/approvals/{run.approvals.get().approval_id}/"):
        html = client.get(path).content.decode()
        assert "<script>alert" not in html
        assert "\u202e" not in html
        assert "sk_live_" not in html


def test_its_piece_leaves_what_is_typed_alone(ana: User) -> None:
    a_run("run-1")
    piece = browser(ana).get("/runs/run-1/", headers=HTMX).content.decode()

    assert "<html" not in piece
    assert "<textarea" not in piece
    assert 'id="run-buttons"' in piece
    assert 'hx-swap-oob="true"' in piece


# --- what people do about it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "undoing", "offered"),
    [
        ("done", "", set()),
        ("failed", "", {"resume", "restart", "done", "undo"}),
        ("cancelled", "running", set()),
        ("cancelled", "stopped", {"restart", "undo"}),
        ("failed", "done", {"restart"}),
    ],
)
def test_a_run_offers_what_can_be_done_about_it_and_asks_no_reason_for_nothing(
    ana: User, status: str, undoing: str, offered: set[str]
) -> None:
    a_run("run-1", status=status, undoing=undoing)
    html = browser(ana).get("/runs/run-1/").content.decode()

    assert {one for one in ("cancel", "resume", "restart", "done", "undo") if f"/runs/run-1/{one}/" in html} == offered
    assert ('class="choices"' in html) is bool(offered)  # without them the field for the reason is not shown


def test_cancelling_says_why_and_leads_back(ana: User) -> None:
    run = a_run("run-1")
    answer = browser(ana).post("/runs/run-1/cancel/", {"reason": "wrong customer"})

    assert (answer.status_code, answer["Location"]) == (302, "/runs/run-1/")
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert "wrong customer" in text_of(browser(ana).get("/runs/run-1/").content.decode())
    again = browser(ana).post("/runs/run-1/cancel/", {"reason": "once more"})
    assert again.status_code == 409
    assert "once more" in again.content.decode()


def test_a_reason_of_several_lines_is_kept_as_it_was_typed(ana: User) -> None:
    """A browser sends two characters for each line feed."""
    run = a_run("run-1")
    typed = urlencode({"reason": "wrong customer\r\nasked by phone"})
    browser(ana).post("/runs/run-1/cancel/", typed, content_type="application/x-www-form-urlencoded")

    run.refresh_from_db()
    assert run.cancel_reason == "wrong customer\nasked by phone"
    html = browser(ana).get("/runs/run-1/").content.decode()
    assert "wrong customer\nasked by phone" in html
    assert "\\r" not in html


def test_restarting_shows_the_new_run_and_warns_before(memory: RecordWriter, ana: User) -> None:
    a_run("run-1", status="failed")
    memory.action("run-1", 1, tool="pay", status="done", args={"amount": 5}, result="ok")
    client = browser(ana)
    assert "moved money" in text_of(client.get("/runs/run-1/").content.decode())
    answer = client.post("/runs/run-1/restart/", {"reason": "its data had changed"})

    new = Run.objects.get(restart_of__run_id="run-1")
    assert (answer.status_code, answer["Location"]) == (302, f"/runs/{new.run_id}/")
    assert f"/runs/{new.run_id}/" in client.get("/runs/run-1/").content.decode()
    assert "/runs/run-1/" in client.get(f"/runs/{new.run_id}/").content.decode()
    assert client.post("/runs/run-1/restart/", {"reason": "twice"}).status_code == 409
    assert Run.objects.count() == 2


def test_a_run_with_open_calls_is_not_marked_done_and_names_them(memory: RecordWriter, ana: User) -> None:
    run = a_run("run-1", status="failed")
    memory.action("run-1", 1, tool="pay", status="unknown", args={"amount": 12, "currency": "EUR"})
    answer = browser(ana).post("/runs/run-1/done/", {"reason": "the rest was done by hand"})
    html = answer.content.decode()

    assert answer.status_code == 409
    assert "calls are still open: 1 (pay)" in text_of(html)
    assert "/?open=main/run-1/1" in html
    assert "the rest was done by hand" in html
    run.refresh_from_db()
    assert run.status == "failed"


@pytest.mark.parametrize("gesture", ["cancel", "resume", "restart", "done", "undo"])
@pytest.mark.parametrize("role", ["viewer", "approver", "auditor", "admin"])
def test_who_may_not_settle_does_nothing_about_a_run(person: Cast, gesture: str, role: str) -> None:
    run = a_run("run-1", status="running" if gesture == "cancel" else "failed")
    client = browser(person("who", role))
    answer = client.post(f"/runs/run-1/{gesture}/", {"reason": "because", "seen": "0"})

    assert answer.status_code == 403
    assert 'formaction="' not in client.get("/runs/run-1/").content.decode()
    before = run.status
    run.refresh_from_db()
    assert (run.status, run.undoing, Run.objects.count()) == (before, "", 1)


@pytest.mark.parametrize("gesture", ["cancel", "resume", "restart", "done", "undo"])
def test_without_a_reason_nothing_is_done_and_a_get_leads_to_the_page(ana: User, gesture: str) -> None:
    a_run("run-1", status="failed")
    client = browser(ana)
    for reason in ("", "   ", "x" * 2001, "half \x00 a text"):
        assert client.post(f"/runs/run-1/{gesture}/", {"reason": reason}).status_code == 422
    assert Run.objects.get().status == "failed"
    if gesture != "undo":
        answer = client.get(f"/runs/run-1/{gesture}/?reason=mail+preview")
        assert (answer.status_code, answer["Location"]) == (302, "/runs/run-1/")


# --- starting one ----------------------------------------------------------------------------------------------------


def test_the_form_has_a_field_for_each_value_of_the_schema(ana: User) -> None:
    html = browser(ana).get("/runs/new/refund/").content.decode()

    for name in ("order", "amount", "channel", "notify", "tags"):
        assert f'name="in-{name}"' in html
    assert '<option value="letter"' in html
    assert "The number of the order. At least" not in html
    assert "The number of the order. At most 40 characters." in text_of(html)
    assert "More than 0, at most 1000000." in text_of(html)


def test_a_run_is_started_once_however_often_the_form_is_sent(ana: User) -> None:
    client = browser(ana)
    answers = [client.post("/runs/new/refund/", GOOD) for _ in range(2)]

    run = Run.objects.get()
    assert {one["Location"] for one in answers} == {f"/runs/{run.run_id}/"}
    assert json.loads(run.input) == {"order": "A-17", "amount": 1200.5, "channel": "letter", "notify": True, "tags": ["vip"]}
    other = client.post("/runs/new/refund/", {**GOOD, "in-order": "B-2"})
    assert other.status_code == 409
    assert 'value="B-2"' in other.content.decode()
    assert 'value="key-1"' not in other.content.decode()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"in-order": ""}, "Field required"),
        ({"in-order": "x" * 41}, "at most 40 characters"),
        ({"in-order": "A-17!"}, "it does not look like what is asked for"),
        ({"in-amount": "-3"}, "greater than 0"),
        ({"in-amount": "twelve"}, "decimal"),
        ({"in-tags": "[1"}, "this is no JSON"),
        ({"in-tags": "[1]"}, "valid string"),
        ({"in-channel": "pigeon"}, "mail"),
        ({"in-order": "a\x00b"}, "NUL character"),
    ],
)
def test_what_the_schema_does_not_take_stands_at_its_field_and_nothing_typed_is_lost(
    ana: User, said: dict[str, Any], problem: str
) -> None:
    answer = browser(ana).post("/runs/new/refund/", {**GOOD, **said})
    html = answer.content.decode()

    assert answer.status_code == 422
    assert problem in text_of(html)
    assert "has-problem" in html
    assert 'value="1200.50"' in html or "in-amount" in said
    assert not Run.objects.exists()


def test_a_type_that_there_is_not_and_a_person_who_may_not_start_nothing(ana: User, ben: User) -> None:
    assert browser(ana).get("/runs/new/bogus/").status_code == 404
    answer = browser(ben).post("/runs/new/refund/", GOOD)

    assert answer.status_code == 403
    assert not Run.objects.exists()
    assert "Start the run" not in browser(ben).get("/runs/new/refund/").content.decode()


# --- elsewhere -------------------------------------------------------------------------------------------------------


def test_actions_and_agents_lead_to_their_run(memory: RecordWriter, ana: User, dot: User) -> None:
    run = a_run("run-1")
    an_event(run, "step", calls=[{"seq": 1}])
    an_event(run, "step", calls=[{"seq": 2}])
    memory.action("run-1", 1, tool="pay", status="done", args={"amount": 5}, result="ok")
    memory.action("run-1", 2, tool="take_back", status="done", args={"order": "A", "compensates": 1}, result="ok")
    memory.action("m-1", 1)
    client = browser(ana)

    assert "run run-1, step 1, taken back by action 2" in text_of(client.get("/actions/main/run-1/1/").content.decode())
    assert "run run-1, step 2, takes back action 1" in text_of(client.get("/actions/main/run-1/2/").content.decode())
    assert 'href="/runs/run-1/"' in client.get("/agents/main/run-1/").content.decode()
    assert 'href="/runs/run-1/"' not in client.get("/actions/main/m-1/1/").content.decode()


def test_the_registry_says_what_stands_before_each_tool_and_flags_what_does_not(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1, tool="send_fax")
    client = browser(ana)
    said = text_of(client.get("/tools/").content.decode())

    assert "Somebody has to agree when args.amount > 1000.0; after 1 h without an answer the run fails" in said
    assert "taken back by take_back" in said
    assert "it cannot be undone, and has neither a gate nor a compensation" in said
    assert "Run type refund calls it with neither an approval gate nor a compensation" in said
    assert "send_fax" in text_of(client.get("/tools/?gaps=1").content.decode())
    assert "Run type refund calls it" in text_of(client.get("/tools/send_fax/").content.decode())


# --- taking one back -------------------------------------------------------------------------------------------------


def undo_form(client: Any) -> dict[str, str]:
    html = client.get("/runs/run-1/undo/").content.decode()
    return {"reason": "paid twice", "seen": html.split('name="seen" value="')[1].split('"')[0]}


def paid(memory: RecordWriter, **fields: Any) -> Run:
    memory.action("run-1", 1, tool="look_up", cls="pure", status="done", args={"order": "A-17"}, result="ok")
    memory.action("run-1", 2, tool="pay", status="done", args={"order": "A-17", "amount": 5}, result="ok")
    memory.action("run-1", 3, tool="send_fax", status="done", args={"to": "+49"}, result="ok")
    return a_run("run-1", **{"status": "failed", **fields})


def test_what_would_be_taken_back_is_shown_first_and_begun_once(memory: RecordWriter, ana: User) -> None:
    run = paid(memory)
    client = browser(ana)
    html = client.get("/runs/run-1/undo/").content.decode()
    said = words_of(html)

    assert html.index('id="undo-3"') < html.index('id="undo-2"')
    assert "by calling take_back with" in said
    assert "nothing takes it back" in said
    form = undo_form(client)
    assert "Take back 1 call" in said
    answer = client.post("/runs/run-1/undo/", form)
    assert (answer.status_code, answer["Location"]) == (302, "/runs/run-1/")
    run.refresh_from_db()
    assert run.undoing == "running"
    again = client.post("/runs/run-1/undo/", form)
    assert again.status_code == 409
    assert "paid twice" in again.content.decode()
    assert "Take back" not in text_of(again.content.decode().split('id="begin-title"')[1])  # there is nothing that it could begin
    assert "being taken back" in text_of(client.get("/runs/run-1/").content.decode())


def test_the_plan_says_why_nobody_can_tell_how_a_call_is_taken_back(memory: RecordWriter, ana: User) -> None:
    paid(memory)
    memory.action("run-1", 4, tool="pay_by_cheque", status="done", args={"order": "A-17"}, result="ok")

    said = words_of(browser(ana).get("/runs/run-1/undo/").content.decode())

    assert "It cannot be told how. run type refund has no tool pay_by_cheque any more" in said
    assert "Take back 2 calls" in said


def test_a_plan_that_is_not_the_one_shown_is_not_begun(memory: RecordWriter, ana: User) -> None:
    run = paid(memory)
    client = browser(ana)
    form = undo_form(client)
    memory.action("run-1", 4, tool="pay", status="done", args={"order": "B-2", "amount": 9}, result="ok")
    answer = client.post("/runs/run-1/undo/", form)

    assert answer.status_code == 412
    assert "paid twice" in answer.content.decode()
    assert "Take back 2 calls" in text_of(answer.content.decode())
    run.refresh_from_db()
    assert run.undoing == ""


@pytest.mark.parametrize("status", ["running", "done"])
def test_what_goes_on_or_is_done_is_not_taken_back(memory: RecordWriter, ana: User, status: str) -> None:
    run = paid(memory, status=status)
    client = browser(ana)
    html = client.get("/runs/run-1/undo/").content.decode()

    assert "Only a run that failed or was cancelled" in text_of(html)
    assert 'name="seen"' not in html
    assert client.post("/runs/run-1/undo/", {"reason": "paid twice", "seen": "0" * 64}).status_code == 409
    run.refresh_from_db()
    assert run.undoing == ""
