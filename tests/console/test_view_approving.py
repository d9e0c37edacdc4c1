"""Four eyes, hold and break-glass on the page: what each person is shown, what their buttons do, and what the list below the queue tells whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from actions.records import ActionRef, ActionStatus
from console.models import Decision
from console.services.approve import turn_down
from console.services.policies import policy_of, save_policy
from tests.console.conftest import PASSWORD, Cast
from tests.console.test_services_approve import cleo, gates, nothing_written, payment, proposed
from tests.console.test_services_decide import status_of
from tests.console.view_helpers import HTMX, browser, filled, path_of, text_of, words_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

__all__ = ["cleo", "gates"]


def second_form(client: Client, ref: ActionRef) -> dict[str, str]:
    """What the page binds an approval to."""
    html = client.get(path_of(ref)).content.decode()
    form = html.split('decision/approve/#decision"')[1].split("</form>")[0]
    return {name: form.split(f'name="{name}" value="')[1].split('"')[0] for name in ("decision_id", "seen")}


def post(client: Client, ref: ActionRef, way: str, **said: str) -> tuple[int, str]:
    answer = client.post(path_of(ref, f"decision/{way}/"), said, headers=HTMX)
    return answer.status_code, words_of(answer.content.decode())


@pytest.mark.usefixtures("gates")
def test_the_form_proposes_where_a_second_person_is_asked_for(memory: RecordWriter, ana: User) -> None:
    ref = payment(memory)
    client = browser(ana)
    form = filled(client, ref, reason="seen in the dashboard")
    turn = words_of(client.post(path_of(ref, "turn/"), form, headers=HTMX).content.decode())

    answer = client.post(path_of(ref, "decision/"), form, headers=HTMX)
    said = words_of(answer.content.decode())

    assert "Propose: it happened" in turn
    assert "nothing is written before a second person approves it" in turn
    assert answer.status_code == 202
    assert "Proposed: done, waiting for a second person" in said
    assert "a second person when amount > 1000 (policy 1)" in said
    assert nothing_written(ref)


@pytest.mark.usefixtures("gates")
def test_the_second_person_sees_the_turn_the_reason_and_the_rule_and_approves(
    memory: RecordWriter, ana: User, cleo: User
) -> None:
    ref = payment(memory)
    proposed(ref, ana)
    client = browser(cleo)
    page = words_of(client.get(path_of(ref)).content.decode())
    form = second_form(client, ref)

    assert "ana says done" in page
    assert "(settled after a crash: done; operator ana: seen in the dashboard) done" in page
    assert "amount > 1000" in page
    assert "Go on without a second person" not in page
    unbound = post(client, ref, "approve", decision_id=form["decision_id"])
    assert unbound[0] == 412
    assert nothing_written(ref)
    status, said = post(client, ref, "approve", **form)

    assert (status, "Written: done" in said) == (201, True)
    assert status_of(ref) is ActionStatus.DONE


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("name", ["ana", "bea", "ben"])
def test_who_may_not_approve_is_offered_no_button_and_refused(
    memory: RecordWriter, ana: User, bea: User, ben: User, name: str
) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    client = browser({"ana": ana, "bea": bea, "ben": ben}[name])
    html = client.get(path_of(ref)).content.decode()

    assert "decision/approve/" not in html
    assert ("Go on without a second person" in html) is (name != "ben")
    for way, said in (("approve", {"seen": "x"}), ("turn-down", {"reason": "no"})):
        assert post(client, ref, way, decision_id=row.decision_id, **said)[0] == 403
    if name == "ben":
        assert post(client, ref, "break-glass", decision_id=row.decision_id, glass_reason="nobody is awake now")[0] == 403
    assert nothing_written(ref)
    assert Decision.objects.get().state == "proposed"


@pytest.mark.usefixtures("gates")
def test_turning_it_down_needs_a_reason_and_its_proposer_reads_it(memory: RecordWriter, ana: User, cleo: User) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    client = browser(cleo)

    status, said = post(client, ref, "turn-down", decision_id=row.decision_id, reason="")
    assert (status, "what is wrong with it?" in said, "Approve: done" in said) == (422, True, True)
    status, said = post(client, ref, "turn-down", decision_id=row.decision_id, reason="another payment")

    assert (status, "Turned down" in said) == (200, True)
    foot = browser(ana).get(path_of(ref, f"status/?foot={row.decision_id}&was=proposed"), headers=HTMX)
    said = words_of(foot.content.decode())
    assert "a second person turned it down cleo turned it down: another payment" in said
    assert "delivered" not in said
    assert nothing_written(ref)


@pytest.mark.parametrize("way", ["approve", "turn-down", "break-glass"])
@pytest.mark.parametrize("is_late", [True, False], ids=["somebody was first", "no proof of identity"])
def test_whoever_is_stopped_reads_what_they_typed(
    memory: RecordWriter, ana: User, cleo: User, person: Cast, gates: Callable[..., None], way: str, is_late: bool
) -> None:
    row = proposed(payment(memory), ana)
    client = browser(person("dora", "approver", "operator"))
    form = second_form(client, row.ref)
    if is_late:
        turn_down(row.ref, row.decision_id, by=cleo, reason="another payment")
    else:
        Decision.objects.update(needs_step_up=True)
    field = "glass_reason" if way == "break-glass" else "reason"

    status, said = post(client, row.ref, way, **form, **{field: "looked at it <twice>"})

    if way == "turn-down" and not is_late:
        assert (status, "looked at it <twice>" in said) == (200, True), said  # refusing needs no proof
    else:
        assert (status, "What you typed looked at it <twice>" in said) == (409 if is_late else 403, True)
    assert nothing_written(row.ref)


@pytest.mark.usefixtures("gates")
def test_breaking_the_glass_shows_on_the_page_for_good(memory: RecordWriter, ana: User) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    client = browser(ana)

    status, said = post(client, ref, "break-glass", decision_id=row.decision_id, glass_reason="urgent")
    assert (status, "at least 10 characters" in said) == (422, True)
    assert nothing_written(ref)
    status, said = post(client, ref, "break-glass", decision_id=row.decision_id, glass_reason="The bank closes in ten minutes")

    assert (status, "Written: done" in said) == (201, True)
    page = text_of(client.get(path_of(ref)).content.decode())
    assert "ana broke the glass: “The bank closes in ten minutes”" in page


def test_a_broken_glass_stands_in_the_row_of_the_queue_while_it_is_not_written(
    memory: RecordWriter, ana: User, gates: Callable[..., None]
) -> None:
    gates(hold_s=60)
    ref = payment(memory)
    row = proposed(ref, ana)
    status, said = post(
        browser(ana), ref, "break-glass", decision_id=row.decision_id, glass_reason="The bank closes in ten minutes"
    )
    assert (status, "Held: done" in said) == (202, True)
    assert "done, held by ana · without a second person" in words_of(browser(ana).get("/").content.decode())


def test_a_held_decision_counts_down_and_can_be_undone(
    memory: RecordWriter, ana: User, ben: User, cyd: User, gates: Callable[..., None]
) -> None:
    gates(second_person_when="", hold_s=60)
    ref = payment(memory)
    client = browser(ana)
    form = filled(client, ref, reason="seen in the dashboard")
    answer = client.post(path_of(ref, "decision/"), form, headers=HTMX)
    row = Decision.objects.get()
    left = path_of(ref, f"decision/held/?id={row.decision_id}")

    assert (answer.status_code, row.state) == (202, "held")
    assert "Undo" in words_of(answer.content.decode())
    assert "s left" in words_of(client.get(left).content.decode())
    assert "Undo" not in words_of(browser(ben).get(path_of(ref)).content.decode().split('id="decision"')[1])
    assert browser(cyd).get(left).status_code == 403
    assert client.get(path_of(ref, "decision/held/?id=another")).status_code == 404
    undone = client.post(path_of(ref, "decision/withdraw/"), {"decision_id": row.decision_id}, headers=HTMX)
    assert "Withdrawn; it will not be written" in words_of(undone.content.decode())
    after = client.get(left)
    assert (after.status_code, after["HX-Trigger"]) == (204, '{"changed": {}}')
    assert nothing_written(ref)


def test_the_foot_moves_with_the_decisions_state(memory: RecordWriter, ana: User, cleo: User, gates: Callable[..., None]) -> None:
    gates(hold_s=60)
    ref = payment(memory)
    row = proposed(ref, ana)
    watch = path_of(ref, f"status/?foot={row.decision_id}&was=proposed")
    client = browser(ana)
    assert client.get(watch, headers=HTMX).status_code == 204
    client_of_cleo = browser(cleo)
    post(client_of_cleo, ref, "approve", **second_form(client_of_cleo, ref))

    moved = client.get(watch, headers=HTMX)

    assert "and cleo approved it" in words_of(moved.content.decode())
    assert client.get(watch.replace("proposed", "held"), headers=HTMX).status_code == 204


@pytest.mark.usefixtures("quick_passwords")
def test_a_fresh_proof_of_identity_is_asked_for_and_nothing_typed_is_lost(
    memory: RecordWriter, ana: User, gates: Callable[..., None]
) -> None:
    gates(second_person_when="", step_up_when="true")
    ref = payment(memory)
    client = browser(ana)
    form = filled(client, ref, reason="seen in the dashboard")

    asked = client.post(path_of(ref, "decision/"), form, headers=HTMX)
    html = asked.content.decode()
    assert asked.status_code == 403
    assert 'href="/confirm/?next=%2Factions%2Fmain%2Fbilling-7%2F1%2F"' in html
    assert 'value="seen in the dashboard"' in html
    assert not Decision.objects.exists()
    assert client.post("/confirm/", {"password": PASSWORD, "next": path_of(ref)})["Location"] == path_of(ref)

    _proved(client, ago=timedelta(minutes=11))
    assert client.post(path_of(ref, "decision/"), form, headers=HTMX).status_code == 403
    assert not Decision.objects.exists()
    _proved(client, ago=timedelta(minutes=9))
    assert client.post(path_of(ref, "decision/"), form, headers=HTMX).status_code == 201


def _proved(client: Client, *, ago: timedelta) -> None:
    """What this session has proved, it has proved so long ago."""
    session = client.session
    for record in session["account_authentication_methods"]:
        record["at"] = (timezone.now() - ago).timestamp()
    session.save()


@pytest.mark.usefixtures("gates")
def test_the_list_shows_what_this_person_may_see_and_first_what_is_theirs_to_approve(
    memory: RecordWriter, ana: User, amy: User, cleo: User, dot: User, ben: User, person: Cast
) -> None:
    save_policy("open_ticket", {"second_person_when": "true"}, seen_version=policy_of("open_ticket").version, by=amy)
    limited = person("limited", ("approver", "main", "open_ticket"), "viewer")
    proposed(payment(memory), ana)
    ticket = memory.action("m-2", 1, tool="open_ticket", args={"title": "Broken"})
    proposed(ticket, ana)

    def listed(who: User) -> str:
        return words_of(browser(who).get("/proposals/", headers=HTMX).content.decode())

    assert listed(cleo).startswith("Waiting for a second person 2 Payment of 4200.00 EUR to ACME")
    assert listed(cleo).count("yours to approve") == 2
    assert listed(ana).count("somebody else's to approve") == 2
    assert listed(limited).index("Ticket 'Broken'") < listed(limited).index("Payment of")
    assert listed(limited).count("yours to approve") == 1
    assert "Payment" not in listed(dot)
    assert "Ticket 'Broken'" in listed(dot)
    page = words_of(browser(cleo).get("/").content.decode())
    assert "Waiting for a second person 2" in page


def test_an_empty_list_says_so_to_those_who_could_approve(memory: RecordWriter, cleo: User, ben: User) -> None:
    assert "Nothing waits for you." in words_of(browser(cleo).get("/").content.decode())
    html = browser(ben).get("/proposals/").content.decode()
    assert " hidden>" in html.split('id="proposals"')[1][:400]


@pytest.mark.usefixtures("gates")
def test_the_list_costs_the_same_with_many(
    memory: RecordWriter, ana: User, cleo: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client = browser(cleo)
    for number in range(1, 13):
        proposed(payment(memory, number), ana)
    with django_assert_max_num_queries(8):  # session, user, roles among them
        client.get("/proposals/", headers=HTMX)


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize("way", ["approve", "turn-down", "break-glass"])
def test_who_comes_with_a_get_is_sent_to_the_action(memory: RecordWriter, ana: User, cleo: User, way: str) -> None:
    ref = payment(memory)
    proposed(ref, ana)
    answer = browser(cleo).get(path_of(ref, f"decision/{way}/"))
    assert (answer.status_code, answer["Location"]) == (302, path_of(ref))
    assert nothing_written(ref)


def test_text_of_others_is_never_markup(memory: RecordWriter, ana: User, cleo: User, gates: Callable[..., None]) -> None:
    gates(second_person_when="args.note != '<b hx-get=/x>'")
    ref = payment(memory, args={"amount": 1, "currency": "EUR", "to": "<img src=x>", "note": "\u202e"})
    proposed(ref, ana, reason="<script>alert(1)</script>")
    for page in (path_of(ref), "/proposals/", "/"):
        html = browser(cleo).get(page).content.decode()
        assert "<script>alert" not in html
        assert "<img src=x" not in html
        assert "<b hx-get" not in html


def test_a_decision_that_no_database_could_keep_is_not_there(memory: RecordWriter, ana: User, cleo: User) -> None:
    ref, name = payment(memory), "decision\x001"
    client = browser(ana)

    assert client.post(path_of(ref, "decision/withdraw/"), {"decision_id": name}).status_code == 404
    assert post(browser(cleo), ref, "approve", decision_id=name)[0] == 404
    assert client.get(path_of(ref, "status/"), {"foot": name, "was": "proposed"}, headers=HTMX).status_code == 204
    assert client.get(path_of(ref, "decision/held/"), {"id": name}).status_code == 404
    assert not Decision.objects.exists()
