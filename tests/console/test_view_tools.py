"""The registry, a tool's policy in the browser, and the simulator: for whom, what is counted, what is refused and what is kept."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries

from console.addresses import tool_address
from console.models import Policy
from console.policy_form import policy_values
from console.services.changes import read_changes
from console.services.decide import DecisionRequest, decide
from console.services.policies import policy_of, save_policy
from tests.console import own_resolver as world
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import HTMX, browser, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

NASTY = 'pay/../<img src=x onerror=alert(1)>,"\u202e\u0430'


def form_of(tool: str, **changes: str) -> dict[str, str]:
    """The policy form as the page draws it, with these differences."""
    policy = policy_of(tool)
    return {**policy_values(policy), "seen_version": str(policy.version), **changes}


def line_of(html: str, tool: str) -> str:
    """What a person reads in the line of one tool."""
    return next(words_of(line) for line in html.split('<li class="ledger-line">')[1:] if f"<bdi>{tool}</bdi>" in line)


def test_every_tool_that_was_seen_has_a_line_with_what_became_of_its_calls(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = memory.action("m-1", 1)
    memory.action("m-1", 2, tool="read_file", cls="pure", status="done")
    decide(ref, DecisionRequest(outcome="done", reason="Found", decision_id="decision-1"), by=ana)
    memory.action("m-2", 1, tool="create_payment", args={"amount": 5, "currency": "EUR"})
    save_policy("never_called", {"compensation": "call them"}, seen_version=0, by=amy)

    html = browser(ana).get("/tools/").content.decode()

    assert "Settled 1 / 0 / 0" in line_of(html, "send_email")
    assert "Median —" not in line_of(html, "send_email")
    assert "Class pure" in line_of(html, "read_file")
    assert "It moves money, and has neither a resolver nor a compensation." in line_of(html, "create_payment")
    assert "not seen" in line_of(html, "never_called")
    assert "Design gap" not in line_of(html, "send_email")


def test_a_resolver_or_a_compensation_closes_the_gap(memory: RecordWriter, ana: User, amy: User) -> None:
    for number, tool in enumerate(("create_payment", "delete_user", "wire_money"), start=1):
        memory.action("m-1", number, tool=tool)
    world.define(amy)
    world.name_it(amy, "delete_user")
    save_policy("create_payment", {"compensation": "refund it by hand"}, seen_version=0, by=amy)

    html = browser(ana).get("/tools/?gaps=1").content.decode()

    assert "neither a resolver" in line_of(html, "wire_money")
    assert "create_payment" not in html
    assert "delete_user" not in html


def test_a_resolver_that_is_switched_off_and_two_classes_are_flagged_too(memory: RecordWriter, ana: User, amy: User) -> None:
    memory.action("m-1", 1)
    memory.action("m-1", 2, cls="idempotent")
    world.define(amy)
    world.name_it(amy)
    world.define(amy, is_enabled=False)

    said = words_of(browser(ana).get("/tools/send_email/").content.decode())

    assert "resolver sent-folder is switched off" in said
    assert "recorded as external and as idempotent" in said


def test_tools_of_others_are_neither_listed_nor_opened_nor_counted(memory: RecordWriter, dot: User, amy: User, cyd: User) -> None:
    memory.action("m-1", 1)
    memory.action("m-1", 2, tool="open_ticket")
    save_policy("send_email", {"compensation": "secret plan"}, seen_version=0, by=amy)
    client = browser(dot)

    html = client.get("/tools/").content.decode()

    assert "open_ticket" in html
    assert "send_email" not in html
    assert client.get("/tools/send_email/").status_code == 404
    assert client.post("/tools/send_email/", form_of("send_email")).status_code == 404
    assert client.get("/tools/open_ticket/").status_code == 200
    assert browser(cyd).get("/tools/").status_code == 403
    said = words_of(client.post("/simulator/", {"tool": "send_email", "args": "{}"}).content.decode())
    assert "not yours to see" in said
    assert "secret plan" not in said


@pytest.mark.parametrize("name", ["ana", "dot", "eve"])
def test_only_admins_of_the_tool_in_every_store_see_the_form_and_may_save(
    memory: RecordWriter, ana: User, dot: User, person: Cast, name: str
) -> None:
    memory.action("m-1", 1, tool="open_ticket")
    eve = person("eve", ("admin", "main", "open_ticket"))
    client = browser({"ana": ana, "dot": dot, "eve": eve}[name])

    page = client.get("/tools/open_ticket/").content.decode()
    answer = client.post("/tools/open_ticket/", form_of("open_ticket", compensation="mine"))

    assert "settings-form" not in page
    assert "you need the role admin" in words_of(page)
    assert "Settle window" in page
    assert answer.status_code == 403
    assert not Policy.objects.exists()


def test_an_admin_saves_a_version_and_sees_who_changed_what(memory: RecordWriter, amy: User) -> None:
    memory.action("m-1", 1)
    client = browser(amy)

    saved = client.post("/tools/send_email/", form_of("send_email", settle_window_s="90 min", retention_s="7 d"))
    client.post("/tools/send_email/", form_of("send_email", recipient="mail.to", is_minor="yes"))
    said = words_of(client.get(saved["Location"].replace("saved=1", "saved=2")).content.decode())

    policy = policy_of("send_email")
    assert (saved.status_code, policy.version) == (302, 2)
    assert (policy.settle_window_s, policy.retention_s, policy.recipient, policy.is_minor) == (5_400, 604_800, "mail.to", True)
    assert "Saved as version 2" in said
    assert "Settle window 1 h became 1 h 30 min" in said
    assert "Recipient empty became mail.to" in said
    assert said.count("amy") >= 3


def test_the_rules_of_a_policy_are_kept_and_what_they_read_from_the_call_is_said(memory: RecordWriter, amy: User) -> None:
    memory.action("m-1", 1)
    client = browser(amy)

    client.post("/tools/send_email/", form_of("send_email", second_person_when="amuont > 1000", hold_s="30 s", sla_s="1 h"))
    html = client.get("/tools/send_email/").content.decode()

    policy = policy_of("send_email")
    assert (policy.second_person_when, policy.step_up_when, policy.hold_s, policy.sla_s) == ("amuont > 1000", "", 30, 3_600)
    at_field = words_of(html.split('id="field-second_person_when"')[1].split('<div class="setting')[0])
    assert "Arguments of the call itself: amuont. A call without them meets the rule." in at_field
    assert "Arguments of the call itself" not in words_of(
        html.split('id="field-step_up_when"')[1].split('<div class="setting')[0]
    )


@pytest.mark.parametrize(
    ("field", "typed", "problem"),
    [
        ("settle_window_s", "90", "no length of time"),
        ("retention_s", "1 h", "must be longer than"),
        ("mode", "settle", "without a resolver"),
        ("resolver", "nobody-there", "no resolver"),
        ("moves_money", "perhaps", "choose yes, no"),
        ("compensation", "x" * 2_001, "at most 2000 characters"),
        ("second_person_when", "amount >", "line 1, column 9"),
        ("step_up_when", "known(amount)", "there is no function 'known'"),
        ("second_person_when", "'always'", "neither yes nor no"),
        ("hold_s", "2 h", "from 0 s to 1 h"),
        ("sla_s", "0 s", "from 1 min"),
    ],
)
def test_what_is_wrong_stands_at_its_field_and_nothing_typed_is_lost(
    memory: RecordWriter, amy: User, field: str, typed: str, problem: str
) -> None:
    client = browser(amy)

    answer = client.post("/tools/send_email/", form_of("send_email", **{"recipient": "kept.words", field: typed}))
    html = answer.content.decode()

    assert answer.status_code == 422
    at_field = html.split(f'id="field-{field}"')[1].split('<div class="setting')[0]
    assert problem in words_of(at_field)
    assert 'value="kept.words"' in html
    assert not Policy.objects.exists()


def test_a_stale_form_is_told_what_others_changed_and_keeps_what_was_typed(memory: RecordWriter, amy: User, person: Cast) -> None:
    client, eve = browser(amy), person("eve", "admin")
    stale = form_of("send_email", compensation="my own words")
    save_policy("send_email", {"recipient": "addressee"}, seen_version=0, by=eve)

    answer = client.post("/tools/send_email/", stale)
    html = answer.content.decode()

    assert answer.status_code == 409
    assert "Version 1 by eve" in words_of(html)
    assert "Recipient empty became addressee" in words_of(html)
    assert "my own words" in html
    assert policy_of("send_email").version == 1
    again = client.post("/tools/send_email/", {**stale, "seen_version": "1"})
    assert again.status_code == 302
    assert policy_of("send_email").compensation == "my own words"


@pytest.mark.parametrize("seen", ["", "-1", "x", "99999999999"])
def test_a_form_without_the_version_that_was_shown_is_stale(memory: RecordWriter, amy: User, seen: str) -> None:
    answer = browser(amy).post("/tools/send_email/", form_of("send_email", seen_version=seen))

    assert answer.status_code == 409
    assert not Policy.objects.exists()


def test_a_hostile_name_has_an_address_and_does_nothing(memory: RecordWriter, amy: User) -> None:
    memory.action("m-1", 1, tool=NASTY)
    client = browser(amy)

    html = client.get("/tools/").content.decode()
    address = tool_address(NASTY)
    page = client.get(address)
    saved = client.post(address, form_of(NASTY, compensation="none"))

    assert f'href="{address}"' in html
    assert page.status_code == 200
    assert "<img" not in html + page.content.decode()
    assert "U+202E" in page.content.decode()
    assert "<title>Tool · Settle</title>" in page.content.decode()
    assert saved.status_code == 302
    assert policy_of(NASTY).compensation == "none"


def test_a_secret_in_a_name_is_hidden_and_cannot_be_searched_for(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1, tool="call sk_live_51H8abcdefghijklmnop")
    client = browser(ana)

    everything = client.get("/tools/").content.decode()
    guessed = client.get("/tools/?text=sk_live_51H8").content.decode()

    assert "sk_live" not in everything
    assert "No tool matches" in guessed


def test_a_store_that_does_not_answer_is_named(memory: MemoryWriter, ana: User, down: str) -> None:
    memory.action("m-1", 1)

    said = words_of(browser(ana).get("/tools/").content.decode())

    assert "Store down does not answer." in said
    assert "send_email" in said
    assert "secret-pw" not in said


def test_nothing_seen_yet_says_what_would_appear(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)

    assert "No tool has been seen yet." in words_of(client.get("/tools/").content.decode())
    assert "No tool matches." in words_of(client.get("/tools/?text=mail").content.decode())
    assert "No call of it has been seen yet." in words_of(client.get("/tools/send_email/").content.decode())


def test_htmx_gets_the_pieces_and_everybody_else_the_pages(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)

    for address, root in (("/tools/", 'id="tools"'), ("/tools/send_email/", 'id="tool"')):
        page, part = client.get(address), client.get(address, headers=HTMX)
        assert "<html" in page.content.decode()
        assert "<html" not in part.content.decode()
        assert root in part.content.decode()
        assert "HX-Request" in part["Vary"]
        assert part["Cache-Control"] == "no-store"


@pytest.mark.parametrize("count", [2, 60])
def test_the_registry_costs_the_same_with_2_tools_and_with_60(
    memory: RecordWriter, ana: User, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(1, count + 1):
        memory.action("m-1", number, tool=f"tool_{number}", status="done" if number % 2 else "started")
    client = browser(ana)
    client.get("/tools/")  # the session is written once

    # session, user, roles; own decisions of what ended, all decisions, policies, resolvers; what there is around
    with django_assert_num_queries(8):
        client.get("/tools/")


# --- the simulator ---------------------------------------------------------------------------------------------------


def test_the_simulator_says_which_policy_and_which_argument(memory: RecordWriter, ana: User, amy: User) -> None:
    world.define(amy, "ledger")
    save_policy(
        "create_payment",
        {"resolver": "ledger", "mode": "settle", "amount": "order.total", "is_minor": True},
        seen_version=0,
        by=amy,
    )
    args = {"order": {"total": 12_000}, "payee": "ACME", "currency": "eur", "api_key": "hunter2-hunter2"}

    said = words_of(browser(ana).post("/simulator/", {"tool": "create_payment", "args": json.dumps(args)}).content.decode())

    assert "ledger is asked by itself, and an exact find is written without a person: policy 1 says settle." in said
    assert "amount order.total 120" in said
    assert "recipient payee ACME" in said
    assert "currency currency EUR" in said
    assert "reference order not told" in said
    assert said.count("hunter2-hunter2") == 1  # what was typed stands in its own field and nowhere else


def test_the_simulator_takes_an_action_that_the_person_may_see(memory: RecordWriter, ana: User, dot: User) -> None:
    ref = memory.action("m-1", 1, args={"to": "b@example.com"})

    seen = browser(ana).post("/simulator/", {"action": str(ref)})
    hidden = browser(dot).post("/simulator/", {"action": str(ref)})

    assert "recipient to b@example.com" in words_of(seen.content.decode())
    assert "Nobody is asked: no policy is set" in words_of(seen.content.decode())
    assert hidden.status_code == 404
    assert "b@example.com" not in hidden.content.decode()


@pytest.mark.parametrize("data", [{}, {"action": "nonsense"}, {"tool": "x", "class": "odd"}, {"tool": "x", "args": "[[[["}])
def test_the_simulator_never_breaks(memory: RecordWriter, ana: User, data: dict[str, str]) -> None:
    assert browser(ana).post("/simulator/", data).status_code in (200, 400, 422)


# --- how its calls are read ------------------------------------------------------------------------------------------


def test_the_form_shows_an_open_call_as_what_is_typed_would_have_it_read_and_stores_nothing(
    memory: RecordWriter, amy: User, dot: User
) -> None:
    memory.action("m-1", 1, tool="sync", args={"who": {"iban": "S3CRET", "name": "<b>ACME"}, "sum": 7})
    client = browser(amy)
    page = client.get("/tools/sync/").content.decode()
    assert "Sync: sum 7" in words_of(page)
    assert 'hx-post="/tools/sync/example/"' in page

    typed = form_of("sync", summary="Payout of {amount} to {who.name}", amount="sum", redacted="iban", moves_money="yes")
    html = client.post("/tools/sync/example/", typed, headers=HTMX).content.decode()

    assert "Payout of 7.00 to <b>ACME" in words_of(html)
    assert "<b>ACME" not in html
    assert "Under “Money”" in html
    assert "S3CRET" not in html
    broken = client.post("/tools/sync/example/", form_of("sync", summary="{sum"), headers=HTMX).content.decode()
    assert "a single { at character 1" in words_of(broken)
    assert client.post("/tools/sync/example/", form_of("sync", moves_money="maybe"), headers=HTMX).status_code == 200
    assert client.post("/tools/other/example/", form_of("other"), headers=HTMX).status_code == 200
    assert browser(dot).post("/tools/sync/example/", typed, headers=HTMX).status_code == 404
    assert not Policy.objects.exists()


@pytest.mark.parametrize(
    ("field", "typed", "problem"),
    [
        ("summary", "Refund of {amount", "a single { at character 11"),
        ("summary", "x" * 201, "at most 200 characters"),
        ("redacted", "iban, ***", "is no name of an argument"),
    ],
)
def test_a_sentence_or_a_name_that_cannot_be_read_is_refused_at_its_field(
    memory: RecordWriter, amy: User, field: str, typed: str, problem: str
) -> None:
    answer = browser(amy).post("/tools/send_email/", form_of("send_email", **{field: typed}))

    assert answer.status_code == 422
    assert problem in words_of(answer.content.decode())
    assert typed in answer.content.decode()
    assert not Policy.objects.exists()


def test_a_new_version_tells_every_open_queue_and_an_unchanged_one_tells_nobody(memory: RecordWriter, amy: User) -> None:
    before = read_changes().get("main", 0)

    save_policy("send_email", {"summary": "Mail"}, seen_version=0, by=amy)
    assert read_changes()["main"] == before + 1

    save_policy("send_email", {"summary": "Mail"}, seen_version=1, by=amy)
    assert read_changes()["main"] == before + 1
