"""The world beside an action: evidence for whom, "Ask now", what it fills into the form, the queue's column, and incidents."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from actions.records import ActionRef
from actions.resolvers.base import Canary, MatchedBy, Reply
from console.models import Decision, DecisionState, Incident, Inquiry, Note, StoredVerdict
from console.services import resolve
from console.services.asking import request_asking
from console.services.decide import DecisionRequest, decide
from console.services.evidence import standings_of
from console.services.inquiries import look_again
from tests.console import own_resolver as world
from tests.console.conftest import Cast
from tests.console.view_helpers import HTMX, browser, filled, hidden, path_of, words_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_resolver")]

NASTY = '<script>alert(1)</script>\u202e<a hx-get="/stolen">x</a>'


@pytest.fixture
def asked(memory: RecordWriter, ana: User, amy: User) -> ActionRef:
    """An interrupted email whose tool has a resolver; nobody has asked yet."""
    memory.lease("m-1")
    world.define(amy)
    world.name_it(amy)
    return memory.action("m-1", 1, args={"to": "b@example.com", "subject": "Refund"})


def world_of(html: str) -> str:
    return words_of(html.split('id="world"')[1].split("</section>")[0])


def test_a_verdict_is_shown_whole_field_by_field(asked: ActionRef, ana: User) -> None:
    world.bring(
        world.match(),
        account="sent@example.com",
        status="OK",
        answer_digest="ab" * 32,
        asked=("SEARCH HEADER",),
        notes=("A copy.",),
    )
    verdict = world.ask(asked, ana)

    said = world_of(browser(ana).get(path_of(asked)).content.decode())

    for words in (
        "It happened exact sent-folder",
        "found by our key; the fields agree",
        "recipient b@example.com b@example.com agrees",
        "Account sent@example.com",
        "for ana",
        "Answer OK",
        "Canary found: account, folder and rights are the right ones",
        "Found msg-1",
        "Digest of the answer abababababababab",
        "Resolver sent-folder, version 1",
        f"Evidence {verdict.evidence_id}",
        "A copy.",
        "SEARCH HEADER",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("brings", "words"),
    [
        (
            {"matches": (world.match(recipients=("c@example.com",)),)},
            ("Cannot tell conflict", "differs", "but the recipient differs"),
        ),
        ({"matches": (world.match(by=MatchedBy.FIELDS),)}, ("Cannot tell weak", "only something that looks like it")),
        ({"matches": (world.match(recipients=()),)}, ("Cannot tell strong", "not told")),
        ({"canary": Canary.MISSING}, ("Cannot tell nothing found", "Canary missing", "Look again at")),
        (
            {"reply": Reply.NO_ANSWER, "problem": "too many questions (429)"},
            ("no answer: too many questions (429)", "Look again at"),
        ),
    ],
)
def test_each_grade_has_a_word_and_a_shape(asked: ActionRef, ana: User, brings: dict[str, Any], words: tuple[str, ...]) -> None:
    world.bring(*brings.pop("matches", ()), **brings)
    world.ask(asked, ana)

    html = browser(ana).get(path_of(asked)).content.decode()

    for said in words:
        assert said in world_of(html)
    assert "#grade-" in html.split('id="world"')[1]


def test_evidence_is_inert_whatever_a_provider_or_an_agent_wrote(memory: RecordWriter, ana: User, amy: User) -> None:
    memory.lease("m-1")
    ref = memory.action("m-1", 1, args={"to": NASTY, "subject": "x"})
    world.define(amy)
    world.name_it(amy)
    world.bring(
        world.match(object_id=NASTY, recipients=(NASTY,), note=NASTY), account=NASTY, status=NASTY, asked=(NASTY,), notes=(NASTY,)
    )
    world.ask(ref, ana)
    client = browser(ana)

    pages = "".join(client.get(path).content.decode() for path in (path_of(ref), "/", path_of(ref, "status/")))

    assert "alert(1)" in pages
    assert "<script>alert" not in pages
    assert "<a hx-get" not in pages
    assert "\u202e" not in pages


def test_secrets_in_what_was_found_are_hidden(asked: ActionRef, ana: User) -> None:
    secret = "sk_live_51H8abcdefghijklmnop"
    world.bring(world.match(object_id=secret, note=f"key {secret}"), asked=(f"GET /?token={secret}",), account=secret)
    world.ask(asked, ana)

    html = browser(ana).get(path_of(asked)).content.decode()

    assert "[redacted]" in html
    assert secret not in html


# --- asking ----------------------------------------------------------------------------------------------------------


def test_ask_now_makes_the_question_due_and_says_asking_at_once(asked: ActionRef, ana: User) -> None:
    client = browser(ana)

    part = client.post(path_of(asked, "ask/"), headers=HTMX)
    page = client.post(path_of(asked, "ask/"))

    assert (part.status_code, page.status_code) == (202, 302)
    assert page["Location"] == f"{path_of(asked)}#world"
    assert "Asking … waits for a worker" in world_of(part.content.decode())
    assert "<html" not in part.content.decode()
    row = Inquiry.objects.get()
    assert row.asked_for == "ana"
    assert row.due_at is not None
    assert row.due_at <= timezone.now()
    assert not StoredVerdict.objects.exists()
    assert "Asking …" in world_of(client.get(path_of(asked)).content.decode())


def test_without_a_resolver_it_says_so_and_shows_admins_the_way(memory: RecordWriter, ana: User, person: Cast) -> None:
    ref = memory.action("m-1", 1)
    both = person("eve", "admin", "operator")

    for user, sees_link in ((ana, False), (both, True)):
        html = browser(user).get(path_of(ref)).content.decode()
        assert "no resolver is configured for send_email" in world_of(html)
        assert 'id="ask-now"' not in html
        assert ('href="/tools/send_email/"' in html.split('id="world"')[1]) is sees_link
    refused = browser(ana).post(path_of(ref, "ask/"), headers=HTMX)
    page = browser(ana).post(path_of(ref, "ask/"))

    assert (refused.status_code, page.status_code) == (409, 409)
    for answer in (refused, page):
        assert "Nobody was asked. no resolver is configured for send_email" in world_of(answer.content.decode())
    assert not Inquiry.objects.exists()


def test_who_may_not_settle_reads_the_evidence_and_cannot_ask(asked: ActionRef, ana: User, ben: User, dot: User) -> None:
    world.bring(world.match())
    world.ask(asked, ana)

    html = browser(ben).get(path_of(asked)).content.decode()

    assert "found by our key" in world_of(html)
    assert 'id="ask-now"' not in html
    assert browser(ben).post(path_of(asked, "ask/")).status_code == 403
    assert browser(dot).post(path_of(asked, "ask/")).status_code == 404
    assert browser(ana).get(path_of(asked, "ask/")).status_code == 302
    assert len(world.asked) == 1


def test_an_ended_or_a_pure_call_is_not_asked_about(asked: ActionRef, memory: RecordWriter, ana: User) -> None:
    done, pure = memory.action("m-1", 2, status="done"), memory.action("m-1", 3, cls="pure")

    for ref, why in ((done, "it has ended already"), (pure, "it only read")):
        answer = browser(ana).post(path_of(ref, "ask/"), headers=HTMX)
        assert answer.status_code == 409
        assert why in world_of(answer.content.decode())
    assert not Inquiry.objects.exists()


def test_an_idempotent_call_says_what_its_agent_will_do(asked: ActionRef, memory: RecordWriter, ana: User) -> None:
    ref = memory.action("m-1", 2, cls="idempotent")

    said = world_of(browser(ana).get(path_of(ref)).content.decode())

    assert "On its next resume Recall runs this call again with the same key" in said
    assert "Ask sent-folder now" in said
    assert "On its next resume" not in world_of(browser(ana).get(path_of(asked)).content.decode())


def test_the_panel_tells_trouble_and_giving_up(asked: ActionRef, ana: User, amy: User) -> None:
    request_asking(asked, by=ana)
    client = browser(ana)
    world.define(amy, values={"callable": world.PATH}, is_enabled=False)
    resolve.ask(Inquiry.objects.get().pk)
    off = world_of(client.get(path_of(asked)).content.decode())
    Inquiry.objects.update(problem="", due_at=None, given_up_at=timezone.now())
    gave_up = world_of(client.get(path_of(asked)).content.decode())

    assert "It could not be asked. resolver sent-folder is switched off" in off
    assert "Gave up asking" in gave_up


def test_everything_an_agent_left_open_is_asked_about_in_one_gesture(
    asked: ActionRef, memory: RecordWriter, ana: User, ben: User, dot: User
) -> None:
    memory.action("m-1", 2, tool="open_ticket")
    memory.action("m-1", 3, cls="pure")
    memory.action("m-1", 4, status="done")
    memory.action("m-1", 5, args={"to": "c@example.com"})

    answer = browser(ana).post("/agents/main/m-1/ask/", headers=HTMX)
    said = words_of(answer.content.decode())

    assert answer.status_code == 202
    assert "2 of its open calls are being asked about, 1 is not." in said
    assert "no resolver is configured for open_ticket" in said
    assert set(Inquiry.objects.values_list("seq", flat=True)) == {1, 5}
    assert "Ask about all open calls" in browser(ana).get("/agents/main/m-1/").content.decode()
    assert "Ask about all open calls" not in browser(ben).get("/agents/main/m-1/").content.decode()
    assert browser(ben).post("/agents/main/m-1/ask/").status_code == 403
    assert browser(dot).post("/agents/main/m-9/ask/").status_code == 404
    limited = words_of(browser(dot).post("/agents/main/m-1/ask/").content.decode())
    assert "0 of its open calls" in limited
    assert "b@example.com" not in limited


def test_live_updates_bring_the_panel_and_only_its_version_tells_whether_it_moved(asked: ActionRef, ana: User) -> None:
    client = browser(ana)

    def version() -> str:
        part = client.get(path_of(asked, "status/"), headers=HTMX).content.decode()
        assert 'id="world"' in part
        return part.split('id="world"')[1].split('data-version="')[1][:16]

    first, again = version(), version()
    world.bring(world.match())
    world.ask(asked, ana)

    assert first == again
    assert version() != first


# --- deciding by it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("brings", "outcome"), [({"matches": (world.match(),)}, "done"), ({"canary": Canary.MISSING}, "later")], ids=["found", "not"]
)
def test_a_verdict_fills_the_form_in_and_commits_nothing(
    asked: ActionRef, ana: User, brings: dict[str, Any], outcome: str
) -> None:
    world.bring(*brings.pop("matches", ()), **brings)
    verdict = world.ask(asked, ana)
    client = browser(ana)
    form = {**hidden(client.get(path_of(asked)).content.decode()), "reason": "I looked too.", "evidence": verdict.evidence_id}

    for headers in ({}, HTMX):
        answer = client.post(path_of(asked, "decision/"), form, headers=headers)
        html = answer.content.decode()
        assert answer.status_code == 200
        assert f'value="{outcome}" checked' in html
        assert f"I looked too. {' '.join(verdict.resolution.split())[:20]}" in html
        assert f'name="evidence_id" value="{verdict.evidence_id}" checked' in html
    assert not Decision.objects.exists()
    assert not Note.objects.exists()


def test_a_decision_keeps_the_evidence_that_it_rests_on(asked: ActionRef, ana: User) -> None:
    world.bring(world.match())
    verdict = world.ask(asked, ana)
    client = browser(ana)

    answer = client.post(path_of(asked, "decision/"), filled(client, asked, evidence_id=verdict.evidence_id))

    assert answer.status_code == 201
    decision = Decision.objects.get()
    assert (decision.state, decision.evidence_id) == (DecisionState.WRITTEN, verdict.evidence_id)


@pytest.mark.parametrize("said", ["verdict-999999", "verdict-", "nonsense", "verdict-x", "verdict-²"])
def test_a_verdict_about_another_action_fills_nothing_in_and_is_not_kept(
    asked: ActionRef, memory: RecordWriter, ana: User, said: str
) -> None:
    other = memory.action("m-2", 1, args={"to": "b@example.com"})
    client = browser(ana)
    world.bring(world.match())
    foreign = world.ask(asked, ana).evidence_id
    form = hidden(client.get(path_of(other)).content.decode())

    for evidence in (said, foreign):
        answer = client.post(path_of(other, "decision/"), {**form, "evidence": evidence})
        assert answer.status_code == 422
        assert "There is no such verdict about this action." in words_of(answer.content.decode())
    client.post(path_of(other, "decision/"), filled(client, other, evidence_id=foreign))
    assert Decision.objects.get().evidence_id == ""


# --- the queue -------------------------------------------------------------------------------------------------------


def strip_of(html: str, ref: ActionRef) -> str:
    return words_of(next(part for part in html.split('<li class="strip')[1:] if f'data-pane="{ref}"' in part))


def test_a_row_says_the_newest_verdict_in_a_few_words(asked: ActionRef, memory: RecordWriter, ana: User) -> None:
    refs = [asked, *(memory.action(f"m-{n}", 1, args={"to": "b@example.com"}) for n in range(2, 6))]
    found = [
        {"matches": (world.match(),)},
        {"canary": Canary.MISSING},
        {"matches": (world.match(recipients=("x@example.com",)),)},
        {"reply": Reply.NO_ANSWER, "problem": "time-out"},
    ]
    for ref, brings in zip(refs, found, strict=False):
        world.bring(*brings.pop("matches", ()), **brings)  # type: ignore[misc]
        world.ask(ref, ana)
    request_asking(refs[4], by=ana)

    html = browser(ana).get("/").content.decode()

    assert "sent-folder: found" in strip_of(html, refs[0])
    assert "sent-folder: not yet, look again" in strip_of(html, refs[1])
    assert "sent-folder: found, but it differs" in strip_of(html, refs[2])
    assert "sent-folder: no answer, look again" in strip_of(html, refs[3])
    assert "asking sent-folder …" in strip_of(html, refs[4])


def test_the_queue_is_filtered_by_verdict(asked: ActionRef, memory: RecordWriter, ana: User) -> None:
    other, never = (memory.action(f"m-{n}", 1, args={"to": "b@example.com"}) for n in (2, 3))
    world.bring(canary=Canary.MISSING)
    world.ask(asked, ana)
    world.ask(other, ana)
    world.bring(world.match())
    world.ask(asked, ana)
    client = browser(ana)

    def shown(verdict: str) -> set[str]:
        html = client.get(f"/?verdict={verdict}").content.decode()
        return {str(ref) for ref in (asked, other, never) if f'data-pane="{ref}"' in html}

    assert shown("done") == {str(asked)}
    assert shown("unknown") == {str(other)}
    assert shown("none") == {str(never)}
    assert shown("failed") == shown("conflict") == set()
    assert shown("") == {str(asked), str(other), str(never)}
    assert client.get("/?verdict=bogus").status_code == 400


@pytest.mark.parametrize("count", [2, 40])
def test_the_evidence_of_a_page_is_one_statement(
    memory: RecordWriter, ana: User, amy: User, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    world.define(amy)
    world.name_it(amy)
    world.bring(world.match())
    refs = [memory.action("m-1", number, args={"to": "b@example.com"}) for number in range(1, count + 1)]
    rows = [Inquiry(store=r.store, agent=r.agent, seq=r.seq, tool="send_email", resolver="sent-folder") for r in refs]
    Inquiry.objects.bulk_create(rows)
    world.ask(refs[0], ana)

    with django_assert_num_queries(1):
        found = standings_of(refs)

    assert len(found) == count
    assert found[refs[0]].outcome == "done"


# --- incidents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def incident(asked: ActionRef, ana: User) -> Incident:
    """The email was written as failed, and turned up a day later."""
    decide(asked, DecisionRequest(outcome="failed", reason="Not there", decision_id="decision-1"), by=ana)
    look_again(Decision.objects.get())
    world.bring(world.match(object_id=NASTY))
    resolve.ask(Inquiry.objects.get().pk)
    return Incident.objects.get()


def test_an_open_incident_stands_on_every_page_for_who_may_see_the_action(
    incident: Incident, memory: RecordWriter, ana: User, ben: User, dot: User
) -> None:
    memory.action("m-2", 1, tool="open_ticket")

    for user in (ana, ben):
        for path in ("/", "/history/", "/tools/", "/stores/", path_of(incident.ref), "/nothing/here/"):
            assert "One incident is open." in words_of(browser(user).get(path).content.decode()), path
    hidden_from_dot = [browser(dot).get(path) for path in ("/", "/incidents/", f"/incidents/{incident.pk}/")]
    banner = browser(dot).get("/incidents/banner/", headers=HTMX).content.decode()
    assert [answer.status_code for answer in hidden_from_dot] == [200, 200, 404]
    for text in (*(answer.content.decode() for answer in hidden_from_dot), banner):
        assert "incident is open" not in text
        assert "m-1" not in text
        assert "send_email" not in text


def test_an_incident_shows_its_evidence_and_is_closed_once_with_a_note(incident: Incident, ana: User, bea: User) -> None:
    client, path = browser(ana), f"/incidents/{incident.pk}/"

    page = client.get(path).content.decode()
    closed = client.post(path, {"note": "Refunded by hand"})
    late = browser(bea).post(path, {"note": "Another way"})

    assert "found by our key" in words_of(page)
    assert "<script>alert" not in page
    assert f'href="{path}"' in client.get(path_of(incident.ref)).content.decode().split('id="world"')[1]
    assert closed.status_code == 302
    assert late.status_code == 409
    assert "What you typed: “Another way”" in words_of(late.content.decode())
    assert "Refunded by hand" in words_of(late.content.decode())
    incident.refresh_from_db()
    assert (incident.closed_by, incident.closing_note) == ("ana", "Refunded by hand")
    assert "incident is open" not in client.get("/").content.decode()
    assert "Incident, closed." in words_of(client.get(path_of(incident.ref)).content.decode())
    assert "Refunded by hand" in words_of(client.get("/history/").content.decode())


@pytest.mark.parametrize("note", ["", "   ", "\u200b", "x" * 2_001])
def test_an_incident_is_not_closed_without_a_note(incident: Incident, ana: User, note: str) -> None:
    answer = browser(ana).post(f"/incidents/{incident.pk}/", {"note": note})

    assert answer.status_code == 422
    assert 'id="note-error"' in answer.content.decode()
    incident.refresh_from_db()
    assert incident.closed_at is None


def test_who_may_not_settle_reads_an_incident_and_cannot_close_it(incident: Incident, ben: User, amy: User) -> None:
    for user in (ben, amy):
        client = browser(user)
        assert "settings-form" not in client.get(f"/incidents/{incident.pk}/").content.decode()
        assert client.post(f"/incidents/{incident.pk}/", {"note": "mine"}).status_code == 403
    incident.refresh_from_db()
    assert incident.closed_at is None


def test_no_incident_says_when_one_would_appear(memory: RecordWriter, ana: User) -> None:
    html = browser(ana).get("/incidents/").content.decode()

    assert "looked at again a day later" in words_of(html)
    assert browser(ana).get("/incidents/banner/").status_code == 302


# --- deciding against a verdict --------------------------------------------------------------------------------------

FOUND: dict[str, Any] = {"matches": (world.match(),)}
NOT_FOUND: dict[str, Any] = {"matches": ()}
DIFFERS: dict[str, Any] = {"matches": (world.match(recipients=("c@example.com",)),)}
STRONG: dict[str, Any] = {"matches": (world.match(recipients=()),)}
HAPPENED = "sent-folder says it happened: found by our key"


@pytest.mark.parametrize(
    ("brings", "outcome", "says", "must_tick"),
    [
        (FOUND, "failed", HAPPENED, True),
        (FOUND, "abandoned", HAPPENED, False),
        (FOUND, "done", "", False),
        (FOUND, "later", "", False),
        (STRONG, "failed", "sent-folder found it by our key or the provider's own id, but is not certain", True),
        (DIFFERS, "done", "sent-folder found our key, but something differs", False),
        ({"matches": (world.match(by=MatchedBy.FIELDS),)}, "failed", "", False),
    ],
)
def test_a_decision_against_the_newest_verdict_says_so_before_it_is_written(
    asked: ActionRef, ana: User, brings: dict[str, Any], outcome: str, says: str, must_tick: bool
) -> None:
    world.bring(*brings["matches"])
    verdict = world.ask(asked, ana)
    client = browser(ana)
    form = filled(client, asked, outcome)

    shown = words_of(client.post(path_of(asked, "turn/"), form, headers=HTMX).content.decode())
    whole = words_of(client.post(path_of(asked, "turn/"), form).content.decode())
    first = client.post(path_of(asked, "decision/"), form)

    assert [says in shown, says in whole, "You are about to write otherwise" in shown] == [True, True, bool(says)]
    assert first.status_code == (422 if must_tick else 201)
    assert Decision.objects.exists() == (not must_tick and outcome != "later")
    if must_tick:
        assert "I have seen that sent-folder found it" in words_of(first.content.decode())
        assert "Not written. Tick this first" in words_of(first.content.decode())
        wrong = client.post(path_of(asked, "decision/"), {**form, "seen_against": "verdict-0"})
        done = client.post(path_of(asked, "decision/"), {**form, "seen_against": verdict.evidence_id})
        again = client.post(path_of(asked, "decision/"), {**form, "seen_against": ""})
        assert (wrong.status_code, done.status_code, again.status_code) == (422, 201, 200)
        assert Decision.objects.get().outcome == "failed"


def test_a_verdict_that_came_after_the_turn_was_shown_is_shown_before_anything_is_written(asked: ActionRef, ana: User) -> None:
    client = browser(ana)
    form = filled(client, asked, "abandoned")
    world.bring(world.match())
    world.ask(asked, ana)

    answer = client.post(path_of(asked, "decision/"), form)

    said = words_of(answer.content.decode())
    assert (answer.status_code, "Not written yet." in said, HAPPENED in said) == (200, True, True)
    assert not Decision.objects.exists()


def test_whoever_decides_against_a_verdict_without_the_page_is_warned(asked: ActionRef, ana: User) -> None:
    world.bring(world.match())
    verdict = world.ask(asked, ana)

    answer = decide(
        asked, DecisionRequest(outcome="failed", reason="The customer has nothing", decision_id="test-against"), by=ana
    )

    assert (answer.kind, answer.warnings) == ("written", (f"{HAPPENED} ({verdict.evidence_id})",))
