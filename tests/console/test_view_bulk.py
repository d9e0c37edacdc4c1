"""Pages and API of bulk decisions: from a selection or a filter to a preview, from there to one commit, and what became of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from actions.records import ActionRef
from console.models import Batch, Decision, Grant
from console.services import batches, bulk
from console.services.bulk import draft_selected
from console.services.decide import DecisionRequest, decide
from console.services.policies import save_policy
from tests.console.conftest import PASSWORD, Api, Cast
from tests.console.test_services_bulk import mails, shown, status_of, work
from tests.console.view_helpers import HTMX, browser, hidden, path_of, words_of
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db

REASON = "the provider's log of that hour"


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes what is sent; `work` is the worker."""
    monkeypatch.setattr("console.tasks.advance_batch.delay", lambda pk: None)


def preview(client: Client, *refs: ActionRef, **fields: str) -> str:
    """The address of a preview of these."""
    answer = client.post("/bulk/", {"ref": [str(ref) for ref in refs], **fields})
    assert answer.status_code == 302
    return str(answer["Location"])


def send(client: Client, address: str, outcome: str = "done", reason: str = REASON, **fields: Any) -> Any:
    """Look at what would be written, then write it."""
    page = client.post(address, {"outcome": outcome, "reason": reason, "review": "1", **fields})
    assert page.status_code == 200, words_of(page.content.decode())[:300]
    return client.post(address, {"outcome": outcome, "reason": reason, "seen": hidden(page.content.decode())["seen"], **fields})


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ({"second_person_when": "true"}, "a second person when true"),
        ({"hold_s": 60}, "held for 1 min"),
        ({}, ""),
    ],
    ids=["four eyes", "a hold", "nothing"],
)
def test_what_is_not_written_at_once_is_said_before_and_after(
    records: RecordWriter, ana: User, amy: User, gate: dict[str, Any], says: str
) -> None:
    if gate:
        save_policy("send_email", gate, seen_version=0, by=amy)
    client, refs = browser(ana), mails(records, "a-1", "a-2")
    address = preview(client, *refs)
    before = words_of(client.get(address).content.decode())

    send(client, address)
    work(Batch.objects.get())
    after = words_of(client.get(address).content.decode())

    assert ("is not always written at once" in before, f"Its policy asks for: {says}" in before) == (bool(gate), bool(gate))
    assert ("2 of 2 2 not written yet" in after, "every call has its outcome" in after) == (bool(gate), not gate)
    assert [status_of(ref) for ref in refs] == ["started" if gate else "done"] * 2


def test_ticked_rows_become_a_preview_a_review_and_one_commit(records: RecordWriter, ana: User) -> None:
    client, refs = browser(ana), mails(records, "a-1", "a-2")
    queue = client.get("/").content.decode()
    assert 'formaction="/bulk/"' in queue

    address = preview(client, *refs)
    page = words_of(client.get(address).content.decode())
    assert "Decide 2 calls" in page
    assert "Nothing is decided yet" in page
    reviewed = client.post(address, {"outcome": "done", "reason": REASON, "review": "1"}).content.decode()
    assert "(settled after a crash: done; operator ana: the provider&#x27;s log of that hour) done" in reviewed
    assert "Write: it happened · 2 calls" in words_of(reviewed)
    unseen = client.post(address, {"outcome": "failed", "reason": REASON, "seen": hidden(reviewed)["seen"]})
    assert (unseen.status_code, Batch.objects.get().state) == (200, "draft")

    sent = [send(client, address) for _ in range(1)] + [client.post(address, {"outcome": "done", "reason": REASON, "seen": "x"})]
    assert [answer.status_code for answer in sent] == [302, 302]
    work(Batch.objects.get())

    page = words_of(client.get(address).content.decode())
    assert "2 of 2" in page
    assert "finished" in page
    assert [status_of(ref) for ref in refs] == ["done", "done"]
    assert Decision.objects.count() == 2
    other = client.post(address, {"outcome": "failed", "reason": REASON})
    assert other.status_code == 409
    assert "sent before, as done" in words_of(other.content.decode())
    assert "2 of 2" in words_of(client.get("/bulk/").content.decode())


def test_a_tab_that_is_overtaken_while_it_is_weighed_shows_what_was_sent_and_no_empty_preview(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, refs = browser(ana), mails(memory, "a-1", "a-2")
    address = preview(client, *refs)
    said = {"outcome": "done", "reason": REASON}
    seen = hidden(client.post(address, {**said, "review": "1"}).content.decode())["seen"]
    weigh = bulk.review

    def overtaken(batch: Batch, **more: Any) -> bulk.Review:
        monkeypatch.setattr(bulk, "review", weigh)
        bulk.commit(batch.batch_id, by=ana, **said)
        return weigh(batch, **more)

    monkeypatch.setattr(bulk, "review", overtaken)
    answer = client.post(address, {**said, "seen": seen})

    assert (answer.status_code, answer["Location"]) == (302, address)
    work(Batch.objects.get())
    assert [status_of(ref) for ref in refs] == ["done", "done"]
    assert Decision.objects.count() == 2


def test_all_that_match_need_a_filter(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    mails(memory, "a-1", "a-2")
    memory.action("t-1", 1, tool="open_ticket")
    assert "Decide all" not in client.get("/").content.decode()
    assert "Decide all 2 that match" in words_of(client.get("/?tool=send_email").content.decode())

    for query in ("", "state=any&class=any", "tool=%20,", "store=main", "class=external", "text=%20", "age=0", "tol=send_email"):
        answer = client.post("/bulk/", {"filter": query})
        assert (answer.status_code, "Nothing was decided" in answer.content.decode()) == (422, True), query
    assert not Batch.objects.exists()
    answer = client.post("/bulk/", {"filter": "tool=send_email"})
    assert answer.status_code == 302
    assert Batch.objects.get().items.count() == 2
    assert "all with tool send_email" in words_of(client.get(answer["Location"]).content.decode())


def test_a_refusal_is_one_line_also_for_htmx_and_10_000_are_refused(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    (ref,) = mails(memory, "a-1")
    for refs in ([], ["nonsense"]):
        answer = client.post("/bulk/", {"ref": refs}, headers=HTMX)
        assert (answer.status_code, "<html" in answer.content.decode()) == (422, False)
        assert "Select at least one action." in answer.content.decode()
    many = client.post("/bulk/", {"ref": [f"main/a-1/{seq}" for seq in range(1, 700)]})
    assert many.status_code == 422
    assert "699 are selected; at most 500" in many.content.decode()
    assert client.post("/bulk/", {"ref": [f"main/a-1/{seq}" for seq in range(1, 10_001)]}).status_code == 400
    made = client.post("/bulk/", {"ref": [str(ref)]}, headers=HTMX)
    assert made["HX-Redirect"] == f"/bulk/{Batch.objects.get().batch_id}/"


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"outcome": "done", "reason": ""}, 422, "reason"),
        ({"outcome": "", "reason": REASON}, 422, "Say what happened first"),
        ({"outcome": "later", "reason": REASON}, 422, "one action at a time"),
        ({"outcome": "done", "reason": "a\x00b"}, 422, "Not written"),
    ],
)
def test_a_form_that_breaks_a_rule_says_so_and_changes_nothing(
    memory: RecordWriter, ana: User, fields: dict[str, str], status: int, says: str
) -> None:
    client = browser(ana)
    address = preview(client, *mails(memory, "a-1"))
    answer = client.post(address, {**fields, "seen": "x"})
    assert (answer.status_code, says in words_of(answer.content.decode())) == (status, True)
    assert (Batch.objects.get().state, Decision.objects.count()) == ("draft", 0)


def test_rights_are_asked_for_everything_in_the_body(
    memory: RecordWriter, ana: User, ben: User, bea: User, cyd: User, dot: User, amy: User
) -> None:
    mail, ticket = *mails(memory, "a-1"), memory.action("t-1", 1, tool="open_ticket")
    assert browser().post("/bulk/", {"ref": str(mail)})["Location"].startswith("/login/")
    for user in (ben, cyd, amy):
        assert browser(user).post("/bulk/", {"ref": str(mail)}).status_code == 403
    assert not Batch.objects.exists()
    client = browser(dot)
    address = preview(client, mail, ticket)
    page = client.get(address).content.decode()
    assert "not found" in page
    assert "Refund" not in page
    send(client, address)
    work(Batch.objects.get())
    assert [status_of(ref) for ref in (mail, ticket)] == ["started", "done"]

    for path in (address, f"{address}cancel/", f"{address}undo/", f"{address}again/"):
        assert browser(bea).post(path).status_code == 404
    assert browser(bea).get(address).status_code == 404
    assert browser(ana).get("/bulk/").status_code == 200
    assert browser(amy).get(address).status_code == 200
    Grant.objects.filter(user=dot).update(tool="another")
    hidden_row = client.get(address).content.decode()
    assert "A call of a tool that you may not see" in hidden_row
    assert "t-1" not in hidden_row


def test_the_failed_ones_are_opened_in_the_queue_selected_and_nobody_elses(memory: RecordWriter, ana: User, bea: User) -> None:
    client, refs = browser(ana), mails(memory, "a-1", "a-2", "a-3")
    address = preview(client, *refs)
    memory.lease("a-2", state="live")
    decide(refs[1], DecisionRequest(outcome="failed", reason="seen", decision_id=str(uuid4())), by=bea)
    send(client, address)
    work(Batch.objects.get())

    page = client.get(address).content.decode()
    (link,) = re.findall(r'href="(/\?[^"]*batch=[^"]*)"', page)
    assert "Open this 1 in the queue" in words_of(page)
    queue = client.get(link.replace("&amp;", "&")).content.decode()
    assert re.findall(r'name="ref" value="([^"]*)"[^>]* checked', queue) == [str(refs[1])]
    assert "Decide all" not in queue
    assert "decided by others 1" in words_of(client.get(address, {"show": "failed"}).content.decode())
    assert "a-1" not in re.sub(
        r"(?s)<dl.*?</dl>", "", client.get(address, {"show": "pending"}).content.decode().split('<ol class="batch-items"')[1]
    )
    assert browser(bea).get(link.replace("&amp;", "&")).status_code == 404
    assert client.get(address, {"show": "nonsense"}).status_code == 400


def test_cancel_undo_and_again_are_buttons_that_appear_where_they_can_do_something(
    flaky: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, refs = browser(ana), mails(flaky, "a-1", "a-2", "a-3")
    address = preview(client, *refs)
    send(client, address)
    batch = Batch.objects.get()
    monkeypatch.setattr(batches, "STEP", 1)
    batches.advance(batch.pk)
    page = words_of(client.get(address).content.decode())
    assert "1 of 3" in page
    assert "Cancel the rest (2)" in page
    assert "Try the failed ones again" not in page
    assert client.get(f"{address}cancel/").status_code == 302
    assert Batch.objects.get().state == "running"

    assert client.post(f"{address}cancel/").status_code == 302
    work(batch)
    assert shown(batch) == ["written", "cancelled", "cancelled"]
    for where in (address, "/bulk/"):  # what was not begun was not come to
        assert "1 of 3, 2 cancelled" in words_of(client.get(where).content.decode())
    assert client.post(f"{address}undo/").status_code == 409
    assert client.post(f"{address}again/").status_code == 409

    flaky.lease("a-2", state="live")
    second = preview(client, *refs[1:])
    send(client, second)
    work(Batch.objects.latest("pk"))
    assert "Withdraw what is not written yet (1)" in words_of(client.get(second).content.decode())
    client.post(f"{second}undo/")
    assert shown(work(Batch.objects.latest("pk"))) == ["withdrawn", "written"]


def test_pages_cost_the_same_statements_with_2_and_with_12_calls(
    memory: RecordWriter, ana: User, django_assert_max_num_queries: Any
) -> None:
    client = browser(ana)
    for agent, count in (("few", 2), ("many", 12)):
        address = preview(client, *(memory.action(agent, seq) for seq in range(1, count + 1)))
        with django_assert_max_num_queries(14):
            client.get(address)
        send(client, address)
        work(Batch.objects.latest("pk"))
        with django_assert_max_num_queries(10):
            client.get(address)
        with django_assert_max_num_queries(9):
            client.get("/bulk/")


def test_the_partial_is_the_batch_alone_and_comes_by_itself(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    address = preview(client, *mails(memory, "a-1"))
    send(client, address)
    part = client.get(address, headers=HTMX).content.decode()
    assert part.lstrip().startswith('<div id="batch"')
    assert "data-live-part" in part
    assert "every 2s" in part
    work(Batch.objects.get())
    assert "every 30s" in client.get(address, headers=HTMX).content.decode()


def test_an_agents_page_offers_to_settle_what_is_proven_of_what_it_left_open(memory: RecordWriter, ana: User) -> None:
    client = browser(ana)
    refs = [memory.action("m-1", seq) for seq in (1, 2)]
    mails(memory, "m-2")
    page = client.get("/agents/main/m-1/").content.decode()

    address = client.post("/bulk/", {"filter": hidden(page)["filter"], "proven": "1"})["Location"]

    batch = Batch.objects.get()
    assert (batch.is_proven, {item.ref for item in batch.items.all()}) == (True, set(refs))
    assert words_of(client.get(address).content.decode()).count("nobody was asked about it") == 2


# --- the API ---------------------------------------------------------------------------------------------------------


def test_the_api_takes_refs_or_a_filter_and_the_same_id_again_is_the_same_batch(
    records: RecordWriter, ana: User, bea: User, ben: User, api: Callable[[User], Api]
) -> None:
    refs, caller = mails(records, "a-1", "a-2", "a-3"), api(ana)
    body = {"batch_id": "batch-00001", "refs": [str(ref) for ref in refs[:2]], "outcome": "done", "reason": REASON}

    assert api(ben).post("bulk", body)[0] == 403
    status, said = caller.post("bulk", body)
    assert (status, said["id"], said["counts"]) == (202, "batch-00001", {"queued": 2})
    assert caller.post("bulk", body)[0] == 200
    work(Batch.objects.get())
    status, said = caller.get("bulk/batch-00001")
    assert (status, said["state"], [one["outcome"] for one in said["items"]]) == (200, "finished", ["written", "written"])
    assert {one["decision_id"] for one in said["items"]} == set(Decision.objects.values_list("decision_id", flat=True))
    page = caller.get("bulk/batch-00001", limit=1)[1]
    assert (len(page["items"]), page["next"]) == (1, "1")
    assert [one["agent"] for one in caller.get("bulk/batch-00001", limit=1, cursor="1")[1]["items"]] == ["a-2"]

    assert caller.post("bulk", {**body, "reason": "another"})[0] == 409
    assert api(bea).post("bulk", body)[0] == 409
    assert api(bea).get("bulk/batch-00001")[0] == 404
    by_filter = {"batch_id": "batch-00002", "filter": {"tool": "send_email"}, "outcome": "failed", "reason": REASON}
    assert caller.post("bulk", by_filter)[0] == 202
    work(Batch.objects.latest("pk"))
    assert [status_of(ref) for ref in refs] == ["done", "done", "failed"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"refs": ["main/a-1/1"], "filter": {"tool": "send_email"}, "outcome": "done", "reason": REASON}, "one of the two"),
        ({"outcome": "done", "reason": REASON}, "one of the two"),
        ({"filter": {}, "outcome": "done", "reason": REASON}, "An empty filter"),
        ({"filter": {"state": "any", "class": "any"}, "outcome": "done", "reason": REASON}, "An empty filter"),
        ({"filter": {"agnt": "a-1"}, "outcome": "done", "reason": REASON}, "no filter 'agnt'"),
        ({"refs": [], "outcome": "done", "reason": REASON}, "Select at least one"),
        ({"refs": ["main/a-1"], "outcome": "done", "reason": REASON}, "names no action"),
        ({"refs": ["main/a-1/1"], "outcome": "done", "reason": ""}, "reason"),
        ({"refs": ["main/a-1/1"], "outcome": "later", "reason": REASON}, "one action at a time"),
        ({"refs": ["main/a-1/1"], "proven": True, "reason": REASON}, "send neither"),
        ({"refs": ["main/a-1/1"], "outcome": "done", "reason": REASON, "batch_id": "short"}, "8 to 64"),
        ({"refs": [f"main/a-1/{seq}" for seq in range(1, 10_001)], "outcome": "done", "reason": REASON}, "10,000 are selected"),
    ],
)
def test_the_api_refuses_what_is_not_meant_and_decides_nothing(
    memory: RecordWriter, ana: User, api: Callable[[User], Api], body: dict[str, Any], says: str
) -> None:
    (ref,) = mails(memory, "a-1")
    status, said = api(ana).post("bulk", {"batch_id": "batch-00001", **body})
    assert (status, said["error"]) == (422, "invalid")
    assert says in said["detail"]
    assert not Batch.objects.exists()
    assert status_of(ref) == "started"


def test_other_methods_and_batches_that_are_not_there_are_answered_in_json(
    memory: RecordWriter, ana: User, api: Callable[[User], Api]
) -> None:
    assert api(ana).delete("bulk/batch-00001")[0] == 405
    assert api(ana).get("bulk")[0] == 405
    assert api(ana).get("bulk/batch-00001") == (404, {"error": "not_found", "detail": "there is no such batch"})


def test_reason_and_sentence_are_redacted_and_made_visible_on_every_exit(
    memory: RecordWriter, ana: User, own_addresses: None, settings: Any
) -> None:
    settings.ROOT_URLCONF = "console.urls"
    nasty = '<b hx-post="/x">\u202eevil'
    ref = memory.action("a-1", 1, args={"to": nasty, "subject": "password=hunter2hunter2"})
    client = browser(ana)
    address = preview(client, ref)
    send(client, address, reason="token sk_live_0123456789abcdefABCDEF01 was used")
    for path in (address, "/bulk/"):
        page = client.get(path).content.decode()
        assert "<b hx-post" not in page
        assert "\u202e" not in page
        assert "hunter2" not in page
        assert "sk_live_0123456789abcdefABCDEF01" not in page


def test_a_draft_that_nobody_sent_decides_nothing_and_is_not_listed(memory: RecordWriter, ana: User) -> None:
    draft_selected(mails(memory, "a-1"), by=ana)
    page = browser(ana).get("/bulk/").content.decode()
    assert "No batch yet." in page
    assert path_of(ActionRef("main", "a-1", 1)) not in page
    assert batches.claim_due(10) == []


def test_what_a_policy_hides_since_the_preview_is_not_shown_there_either(memory: RecordWriter, ana: User, amy: User) -> None:
    hidden_now, plain = memory.action("a-1", 1, args={"to": "ana@example.com"}), memory.action("a-2", 1, tool="open_ticket")
    client = browser(ana)
    address = preview(client, hidden_now, plain)
    assert "ana@example.com" in client.get(address).content.decode()
    save_policy("send_email", {"redacted": "to"}, seen_version=0, by=amy)

    before = client.get(address).content.decode()
    assert send(client, address).status_code == 302
    work(Batch.objects.get())
    after = client.get(address).content.decode()

    assert "ana@example.com" not in before + after
    assert f">{hidden_now}<" in re.sub(r"</?bdi[^>]*>", "", after)
    assert "2 of 2" in words_of(after)


def test_a_proof_of_identity_is_asked_for_before_anything_is_typed_and_once(
    memory: RecordWriter, person: Cast, amy: User, quick_passwords: None
) -> None:
    save_policy("send_email", {"step_up_when": "true"}, seen_version=0, by=amy)
    person("eve", "operator")
    client, refs = browser(), mails(memory, "a-1", "a-2")
    client.post("/login/", {"username": "eve", "password": PASSWORD})
    forget_proof(client)
    address = preview(client, *refs)
    page = client.get(address).content.decode()
    assert "A proof of identity is asked for." in words_of(page)
    link = re.search(r'href="(/confirm/\?next=[^"]+)"', page)
    assert link

    refused = send(client, address)

    assert (refused.status_code, Batch.objects.get().state) == (403, "draft")
    assert "Prove first that it is you" in words_of(refused.content.decode())
    assert REASON in words_of(refused.content.decode())  # nothing typed is lost
    assert client.post(link[1], {"password": PASSWORD})["Location"] == address
    assert "A proof of identity is asked for." not in words_of(client.get(address).content.decode())

    assert send(client, address).status_code == 302
    work(Batch.objects.get())
    assert [status_of(ref) for ref in refs] == ["done", "done"]


def forget_proof(client: Client) -> None:
    """As if it had been given an hour ago."""
    session = client.session
    session["account_authentication_methods"] = [
        {**record, "at": record["at"] - 3_600} for record in session["account_authentication_methods"]
    ]
    session.save()
