"""Many decisions in one gesture: the set that a preview fixes, the worker's steps, what became of each, cancel, undo and again."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision
from actions.queries import ActionFilter, get_action
from actions.records import ActionRef
from console.models import Batch, BatchItem, Decision, Grant, Inquiry, StoredVerdict
from console.services import batches, bulk
from console.services.batches import advance, again, cancel, items_showing, progress_of, undo
from console.services.bulk import BatchCommitted, BulkRefused, commit, draft_matching, draft_selected, overview_of, review
from console.services.decide import DecisionRequest, decide
from console.services.deliver import deliver
from console.services.policies import save_policy
from console.stores import get_store
from tests.console import own_resolver as world
from tests.console.conftest import Cast
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db

REASON = "the provider's log of that hour"


def mails(records: RecordWriter, *agents: str) -> list[ActionRef]:
    return [records.action(agent, 1, args={"to": "b@example.com", "subject": "Refund"}) for agent in agents]


def work(batch: Batch) -> Batch:
    """What workers do until nothing is left, as if each found the claim of the one before run out."""
    while advance(batch.pk):
        pass
    batch.refresh_from_db()
    return batch


def shown(batch: Batch) -> list[str]:
    return [item.outcome_shown for item in items_showing(batch, "")]


def why(batch: Batch) -> list[str]:
    return [item.why_for(sees_problems=True) for item in items_showing(batch, "")]


def status_of(ref: ActionRef) -> str:
    action = get_action(get_store(ref.store), ref).action
    assert action is not None
    return action.status.value


def settled(ref: ActionRef) -> int:
    return sum(entry.kind == "settled" for entry in get_store(ref.store).list_entries(limit=50, agent=ref.agent))


def gone(batch: Batch, by: User, outcome: str = "done", **fields: Any) -> Batch:
    return commit(batch.batch_id, by=by, outcome=outcome, reason=REASON, **fields)[0]


# --- the preview fixes the set ---------------------------------------------------------------------------------------


def test_a_preview_says_of_each_whether_it_can_be_decided_and_decides_nothing(
    memory: RecordWriter, ana: User, bea: User, dot: User
) -> None:
    open_one, taken = mails(memory, "a-1", "a-2")
    closed = memory.action("a-3", 1, status="done")
    broken = memory.action("a-4", 1, body="{")
    absent = ActionRef("main", "nobody", 7)
    memory.lease("a-2", state="live")
    decide(taken, DecisionRequest(outcome="done", reason="seen", decision_id=str(uuid4())), by=bea)

    batch = draft_selected([open_one, taken, closed, broken, absent, open_one], by=ana)

    assert dict(zip([item.agent for item in items_showing(batch, "")], why(batch), strict=True)) == {
        "a-1": "",
        "a-2": "operator bea has decided it done; that decision is waiting",
        "a-3": "it has ended already: done",
        "a-4": "the record is unreadable",
        "nobody": "not found",
    }
    assert shown(batch).count("ready") == 1
    assert Decision.objects.count() == 1
    assert status_of(open_one) == "started"
    assert advance(batch.pk) is False
    assert why(draft_selected([open_one], by=ana)) == [""]
    with pytest.raises(PermissionDenied):
        draft_selected([open_one], by=User(username="nobody"))
    assert why(draft_selected([open_one], by=dot)) == ["not found"]


def test_a_preview_counts_and_sums_what_can_be_decided(memory: RecordWriter, ana: User, amy: User, own_resolver: None) -> None:
    world.define(amy)
    world.name_it(amy)
    world.bring(world.match())
    refs = [
        memory.action("p-1", 1, tool="create_payment", args={"amount": 120, "currency": "EUR", "to": "ACME"}),
        memory.action("p-2", 1, tool="create_payment", args={"amount": "0.10", "currency": "EUR", "to": "ACME"}),
        memory.action("p-3", 1, tool="create_payment", args={"amount_cents": 500, "currency": "EUR", "to": "ACME"}),
        memory.action("p-4", 1, tool="create_payment", args={"amount": "much", "currency": "EUR", "to": "ACME"}),
        *mails(memory, "m-1"),
        memory.action("i-1", 1, cls="idempotent"),
    ]
    world.ask(refs[4], ana)

    found = overview_of(draft_selected(refs, by=ana))

    assert (found.ready, found.left_out, found.without_amount, found.idempotent) == (6, 0, 1, 1)
    assert [(one.currency, one.total, one.calls) for one in found.money] == [
        ("EUR", Decimal("120.10"), 2),
        ("EUR minor units", Decimal(500), 1),
    ]
    assert dict(found.tools) == {"create_payment": 4, "send_email": 2}
    assert dict(found.evidence) == {"nobody was asked": 5, "it happened": 1}


def test_an_empty_filter_is_not_a_filter_and_too_many_are_refused(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails(memory, "a-1", "a-2", "a-3")
    mail = ActionFilter(tools=frozenset({"send_email"}))
    monkeypatch.setattr(bulk, "MAX_MATCHING", 2)

    for wanted, narrows, says in (
        (ActionFilter(), False, "An empty filter is not a filter"),
        (mail, True, "3 calls match; at most 2 are decided at once"),
        (ActionFilter(tools=frozenset({"other"})), True, "No open call matches"),
        (ActionFilter(states=frozenset({"done"})), True, "calls that have ended"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BulkRefused, match=says):
            draft_matching(wanted, narrows=narrows, said="all", by=ana)
    with pytest.raises(BulkRefused, match="10,000 are selected; at most 500"):
        draft_selected([ActionRef("main", "a-1", seq) for seq in range(1, 10_001)], by=ana)
    assert not Batch.objects.exists()


def test_what_appears_or_changes_after_the_preview_is_not_decided(records: RecordWriter, ana: User) -> None:
    first, second = mails(records, "a-1", "a-2")
    batch = draft_matching(ActionFilter(tools=frozenset({"send_email"})), narrows=True, said="tool send_email", by=ana)
    (later,) = mails(records, "a-3")
    records.action("a-2", 1, args={"to": "somebody-else@example.com"})

    batch = work(gone(batch, ana))

    assert shown(batch) == ["written", "changed"]
    assert [status_of(ref) for ref in (first, second, later)] == ["done", "started", "started"]
    assert batch.state == "finished"
    assert (progress_of((batch,))[batch.pk].done, progress_of((batch,))[batch.pk].failed) == (2, 1)


def test_a_preview_names_the_store_that_did_not_answer_and_takes_none_of_its_calls(
    memory: RecordWriter, down: str, ana: User
) -> None:
    (ref,) = mails(memory, "a-1")

    selected = draft_selected([ref, ActionRef(down, "a-1", 1)], by=ana)
    matching = draft_matching(ActionFilter(tools=frozenset({"send_email"})), narrows=True, said="", by=ana)

    assert why(selected) == ["", "its store does not answer; make the preview again when it does"]
    assert matching.notes == "Store down did not answer: what it holds is not in this batch."
    assert shown(matching) == ["ready"]


# --- go --------------------------------------------------------------------------------------------------------------


def test_each_item_goes_through_the_one_path_under_an_id_of_its_own(records: RecordWriter, ana: User) -> None:
    refs = mails(records, "a-1", "a-2")
    batch = work(gone(draft_selected(refs, by=ana), ana, "failed"))

    assert shown(batch) == ["written", "written"]
    decisions = Decision.objects.order_by("agent")
    assert [(one.outcome, one.reason, one.actor) for one in decisions] == [("failed", REASON, "operator ana")] * 2
    assert {one.decision_id[: len(bulk.id_prefix(batch.batch_id))] for one in decisions} == {bulk.id_prefix(batch.batch_id)}
    assert [settled(ref) for ref in refs] == [1, 1]
    assert advance(batch.pk) is False


def test_a_commit_sent_again_is_one_batch_and_another_content_is_refused(memory: RecordWriter, ana: User, bea: User) -> None:
    (ref,) = mails(memory, "a-1")
    batch = draft_selected([ref], by=ana)

    assert commit(batch.batch_id, by=ana, outcome="done", reason=REASON)[1] is True
    assert commit(batch.batch_id, by=ana, outcome="done", reason=f" {REASON} ")[1] is False
    with pytest.raises(BatchCommitted, match="sent before, as done"):
        commit(batch.batch_id, by=ana, outcome="failed", reason=REASON)
    with pytest.raises(Http404):
        commit(batch.batch_id, by=bea, outcome="done", reason=REASON)

    assert commit(work(batch).batch_id, by=ana, outcome="done", reason=REASON)[1] is False
    assert (status_of(ref), settled(ref), Decision.objects.count()) == ("done", 1, 1)


@pytest.mark.parametrize(
    ("outcome", "reason", "says"),
    [
        ("done", "  ", "reason"),
        ("later", "not yet", "one action at a time"),
        ("maybe", "x", "cannot be decided"),
        ("done", "a\x00", "NUL|character"),
    ],
)
def test_a_commit_that_breaks_a_rule_changes_nothing(
    memory: RecordWriter, ana: User, outcome: str, reason: str, says: str
) -> None:
    batch = draft_selected(mails(memory, "a-1"), by=ana)
    with pytest.raises(InvalidDecision, match=says):
        commit(batch.batch_id, by=ana, outcome=outcome, reason=reason)
    batch.refresh_from_db()
    assert (batch.state, shown(batch), Decision.objects.count()) == ("draft", ["ready"], 0)


def test_calls_that_only_read_are_left_out_unless_they_are_given_up(memory: RecordWriter, ana: User) -> None:
    pure, mail = memory.action("p-1", 1, cls="pure"), *mails(memory, "a-1")
    batch = work(gone(draft_selected([pure, mail], by=ana), ana))
    assert sorted(shown(batch)) == ["left_out", "written"]
    with pytest.raises(BulkRefused, match="Nothing in this batch can be decided like that"):
        gone(draft_selected([pure], by=ana), ana)
    assert shown(work(gone(draft_selected([pure], by=ana), ana, "abandoned"))) == ["written"]


def test_of_two_who_decide_one_wins_and_the_rest_of_the_batch_goes_on(records: RecordWriter, ana: User, bea: User) -> None:
    refs = mails(records, "a-1", "a-2", "a-3")
    batch = gone(draft_selected(refs, by=ana), ana)
    decide(refs[1], DecisionRequest(outcome="failed", reason="the customer said so", decision_id=str(uuid4())), by=bea)

    work(batch)

    assert shown(batch) == ["written", "closed", "written"]
    assert why(batch)[1] == "it already ended failed, by operator bea: the customer said so"
    assert [status_of(ref) for ref in refs] == ["done", "failed", "done"]
    assert batches.failed_refs(ana, batch.batch_id) == frozenset()  # it has ended: nothing is left to decide
    progress = progress_of((batch,))[batch.pk]
    assert (progress.failed, progress.still_open) == (1, 0)


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(memory: RecordWriter, ana: User, amy: User, own_resolver: None) -> list[ActionRef]:
    """Four emails: found, proved not to be there, one that nothing is proved about, one that nobody was asked about."""
    world.define(amy)
    world.name_it(amy, settle_window_s=3_600)
    refs = mails(memory, "f-1", "f-2", "f-3", "f-4")
    world.bring(world.match())
    world.ask(refs[0], ana)
    world.bring()
    world.ask(refs[1], ana)
    StoredVerdict.objects.filter(inquiry__agent="f-2").update(asked_at=timezone.now() - timedelta(hours=2))
    Inquiry.objects.filter(agent="f-2").update(lost_at=timezone.now() - timedelta(hours=4))
    assert world.ask(refs[1], ana).outcome == "failed"
    world.bring(world.match(recipients=("other@example.com",)))
    world.ask(refs[2], ana)
    return refs


def test_what_the_world_says_otherwise_is_left_out_unless_ticked_one_by_one(found: list[ActionRef], ana: User) -> None:
    batch = draft_selected([found[0], found[3]], by=ana)
    weighed = review(batch, outcome="failed", reason=REASON, by=ana)
    ((item, against),) = weighed.against
    assert (item.ref, weighed.ready) == (found[0], 1)

    work(gone(batch, ana, "failed"))
    assert dict(zip([item.agent for item in items_showing(batch, "")], shown(batch), strict=True)) == {
        "f-1": "left_out",
        "f-4": "written",
    }
    assert status_of(found[0]) == "started"

    second = draft_selected([found[0]], by=ana)
    work(gone(second, ana, "failed", despite=[against.evidence_id]))
    assert (shown(second), status_of(found[0])) == (["written"], "failed")


def test_evidence_that_comes_after_the_go_stops_its_item_alone(
    memory: RecordWriter, ana: User, amy: User, own_resolver: None
) -> None:
    world.define(amy)
    world.name_it(amy)
    refs = mails(memory, "a-1", "a-2")
    batch = gone(draft_selected(refs, by=ana), ana, "failed")
    world.bring(world.match())
    world.ask(refs[0], ana)

    work(batch)

    assert shown(batch) == ["contradicted", "written"]
    assert "that came after the preview" in why(batch)[0]
    assert [status_of(ref) for ref in refs] == ["started", "failed"]


def test_what_the_evidence_proves_is_settled_as_it_says_and_the_rest_is_kept(found: list[ActionRef], ana: User) -> None:
    batch = draft_selected(found, by=ana, is_proven=True)
    agents = [item.agent for item in items_showing(batch, "")]
    assert dict(zip(agents, why(batch), strict=True)) == {
        "f-1": "",
        "f-2": "",
        "f-3": "nothing is proved about it",
        "f-4": "nobody was asked about it",
    }

    work(commit(batch.batch_id, by=ana)[0])

    assert [status_of(ref) for ref in found] == ["done", "failed", "started", "started"]
    decisions = {one.agent: one for one in Decision.objects.all()}
    assert decisions["f-1"].evidence_id.startswith("verdict-")
    assert "resolver sent-folder, exact" in decisions["f-1"].reason
    assert decisions["f-1"].actor == "operator ana"


def test_newer_evidence_than_the_preview_showed_settles_nothing(found: list[ActionRef], ana: User) -> None:
    batch, _ = commit(draft_selected([found[0]], by=ana, is_proven=True).batch_id, by=ana)
    world.bring(world.match(recipients=("other@example.com",)))
    world.ask(found[0], ana)
    work(batch)
    assert (shown(batch), status_of(found[0])) == (["contradicted"], "started")


# --- rights ----------------------------------------------------------------------------------------------------------


def test_rights_count_at_the_time_of_writing(memory: RecordWriter, ana: User, dot: User) -> None:
    mail, ticket = *mails(memory, "a-1"), memory.action("t-1", 1, tool="open_ticket")
    Grant.objects.create(user=dot, role="viewer")
    batch = draft_selected([mail, ticket], by=dot)
    assert why(batch) == ["you may not settle this tool", ""]

    other = gone(draft_selected([mail, ticket], by=ana), ana)
    Grant.objects.filter(user=ana).update(tool="open_ticket")
    work(other)
    assert shown(other) == ["no_right", "written"]
    assert status_of(mail) == "started"


def test_a_person_who_lost_every_role_decides_nothing_more(memory: RecordWriter, ana: User) -> None:
    refs = mails(memory, "a-1", "a-2", "a-3")
    batch = gone(draft_selected(refs, by=ana), ana)
    Grant.objects.filter(user=ana).delete()
    work(batch)
    assert shown(batch) == ["no_right"] * 3
    assert {status_of(ref) for ref in refs} == {"started"}
    assert not Decision.objects.exists()


def test_a_batch_is_its_persons_and_an_admins_of_everything(
    memory: RecordWriter, ana: User, bea: User, amy: User, person: Cast
) -> None:
    batch = gone(draft_selected(mails(memory, "a-1"), by=ana), ana)
    half = person("hal", ("admin", "main", ""))

    assert [batches.list_batches(user) for user in (ana, amy, bea, half)] == [(batch,), (batch,), (), ()]
    assert batches.find_batch(amy, batch.batch_id) == batch
    for stranger in (bea, half):
        with pytest.raises(Http404):
            batches.find_batch(stranger, batch.batch_id)
    for gesture in (undo, again):
        with pytest.raises(Http404):
            gesture(batch.batch_id, by=amy)


# --- on its way ------------------------------------------------------------------------------------------------------


def test_a_living_agents_decision_waits_and_undo_withdraws_all_that_is_not_written(records: RecordWriter, ana: User) -> None:
    refs = mails(records, "a-1", "a-2")
    records.lease("a-2", state="live")
    batch = work(gone(draft_selected(refs, by=ana), ana))
    assert shown(batch) == ["written", "waiting"]
    assert progress_of((batch,))[batch.pk].can_withdraw == 1

    batch = work(undo(batch.batch_id, by=ana))

    assert (shown(batch), batch.state) == (["written", "withdrawn"], "undone")
    assert [status_of(ref) for ref in refs] == ["done", "started"]
    with pytest.raises(BulkRefused, match="Nothing of this batch can be withdrawn"):
        undo(batch.batch_id, by=ana)


def test_cancelling_decides_nothing_more_and_what_is_written_stays(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = mails(memory, "a-1", "a-2", "a-3")
    monkeypatch.setattr(batches, "STEP", 1)
    batch = gone(draft_selected(refs, by=ana), ana)
    assert advance(batch.pk) is True

    cancel(batch.batch_id, by=ana)
    work(batch)

    assert (shown(batch), batch.state, batch.due_at) == (["written", "cancelled", "cancelled"], "cancelled", None)
    assert [status_of(ref) for ref in refs] == ["done", "started", "started"]


def test_the_failed_ones_tried_again_are_written_once(flaky: MemoryWriter, ana: User) -> None:
    refs = mails(flaky, "a-1", "a-2")
    batch = gone(draft_selected(refs, by=ana), ana)
    flaky.kept.fails = "before_write"  # type: ignore[attr-defined]
    work(batch)
    assert shown(batch) == ["unavailable"] * 2
    assert all("nothing was written" in one for one in why(batch))

    flaky.kept.fails = ""  # type: ignore[attr-defined]
    work(again(batch.batch_id, by=ana))

    assert shown(batch) == ["written"] * 2
    assert [settled(ref) for ref in refs] == [1, 1]
    with pytest.raises(BulkRefused, match="Nothing failed"):
        again(batch.batch_id, by=ana)


def test_an_answer_that_was_lost_is_unknown_until_its_decision_is_found_written(flaky: MemoryWriter, ana: User) -> None:
    (ref,) = mails(flaky, "a-1")
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    batch = work(gone(draft_selected([ref], by=ana), ana))
    assert shown(batch) == ["unknown"]
    assert progress_of((batch,))[batch.pk].failed == 0

    flaky.kept.fails = ""  # type: ignore[attr-defined]
    deliver(Decision.objects.get().pk)

    assert shown(batch) == ["written"]
    assert settled(ref) == 1


def test_a_worker_that_died_within_an_item_is_followed_by_one_that_finds_it_decided(memory: RecordWriter, ana: User) -> None:
    refs = mails(memory, "a-1", "a-2")
    batch = gone(draft_selected(refs, by=ana), ana)
    item = BatchItem.objects.get(agent="a-1")
    # It had decided and could not say so any more.
    decide(item.ref, DecisionRequest(outcome="done", reason=REASON, decision_id=item.decided_as, seen=item.digest), by=ana)
    BatchItem.objects.filter(pk=item.pk).update(state="begun")
    Batch.objects.update(claimed_until=timezone.now() + timedelta(minutes=1), token="dead")
    assert advance(batch.pk) is False

    Batch.objects.update(claimed_until=timezone.now())
    assert batches.claim_due(10) == [batch.pk]
    assert batches.claim_due(10) == []
    work(batch)

    assert shown(batch) == ["written", "written"]
    assert [settled(ref) for ref in refs] == [1, 1]


def test_a_step_costs_the_same_statements_however_many_wait(
    memory: RecordWriter, ana: User, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "STEP", 1)
    refs = [memory.action("many-1", seq) for seq in range(1, 301)]
    with django_assert_max_num_queries(14):
        batch = draft_selected(refs, by=ana)
    with django_assert_max_num_queries(16):
        batch = gone(batch, ana)
    with django_assert_max_num_queries(45):
        assert advance(batch.pk) is True
    assert progress_of((batch,))[batch.pk].written == 1


# --- the gates of each tool ------------------------------------------------------------------------------------------


def test_each_item_meets_the_gates_of_its_tool(memory: RecordWriter, ana: User, amy: User) -> None:
    gates = {"pay": {"second_person_when": "true"}, "wire": {"step_up_when": "true"}, "mail": {"hold_s": 600}}
    for tool, rule in gates.items():
        save_policy(tool, rule, seen_version=0, by=amy)
    refs = [memory.action(f"{tool}-1", 1, tool=tool) for tool in ("pay", "wire", "mail", "open_ticket")]

    batch = work(gone(draft_selected(refs, by=ana), ana))

    assert {item.agent: item.outcome_shown for item in items_showing(batch, "")} == {
        "pay-1": "proposed",
        "wire-1": "refused",
        "mail-1": "held",
        "open_ticket-1": "written",
    }
    assert [settled(ref) for ref in refs] == [0, 0, 0, 1]
    (refused,) = (item for item in items_showing(batch, "") if item.agent == "wire-1")
    assert "prove who you are first" in refused.why
    progress = progress_of((batch,))[batch.pk]
    assert (progress.on_its_way, progress.can_withdraw, progress.failed) == (2, 2, 1)

    undone = work(undo(batch.batch_id, by=ana))

    assert sorted(shown(undone)) == ["refused", "withdrawn", "withdrawn", "written"]
    assert [settled(ref) for ref in refs] == [0, 0, 0, 1]


# --- a proof of identity, and numbers --------------------------------------------------------------------------------


def test_one_proof_at_the_word_go_counts_for_every_item_however_long_it_takes(
    records: RecordWriter, ana: User, amy: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy("send_email", {"step_up_when": "true"}, seen_version=0, by=amy)
    refs, now = mails(records, "a-1", "a-2"), timezone.now()
    unproved, late = gone(draft_selected(refs[:1], by=ana), ana), now - timedelta(minutes=11)
    work(unproved)
    assert (shown(unproved), [settled(ref) for ref in refs]) == (["refused"], [0, 0])
    assert shown(work(again(unproved.batch_id, by=ana, confirmed_at=late))) == ["refused"]

    batch = gone(draft_selected(refs[1:], by=ana), ana, confirmed_at=now)
    monkeypatch.setattr("console.services.batches.timezone.now", lambda: now + timedelta(hours=1))
    work(batch)

    assert (shown(batch), [settled(ref) for ref in refs]) == (["written"], [0, 1])
    monkeypatch.undo()
    assert shown(work(again(unproved.batch_id, by=ana, confirmed_at=timezone.now()))) == ["written"]


def test_the_numbers_of_a_batch_add_up_whatever_became_of_its_calls(
    memory: RecordWriter, ana: User, bea: User, amy: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy("create_payment", {"hold_s": 60}, seen_version=0, by=amy)
    held = memory.action("p-1", 1, tool="create_payment", args={"amount": 12, "currency": "EUR", "to": "ACME"})
    refs = [held, *mails(memory, "a-1", "a-2", "a-3", "a-4")]
    batch = gone(draft_selected([*refs, memory.action("z-1", 1, status="done")], by=ana), ana)
    decide(refs[1], DecisionRequest(outcome="failed", reason="bounced", decision_id=str(uuid4())), by=bea)
    monkeypatch.setattr(batches, "STEP", 3)

    def numbers() -> dict[str, int]:
        found = progress_of((Batch.objects.get(pk=batch.pk),))[batch.pk]
        assert found.written + found.on_its_way + found.failed + found.withdrawn + found.cancelled + found.open == found.total
        assert found.done + found.cancelled + found.open == found.total
        names = ("total", "done", "written", "on_its_way", "failed", "withdrawn", "cancelled", "open", "left_out")
        return {name: getattr(found, name) for name in names if getattr(found, name)}

    assert numbers() == {"total": 5, "open": 5, "left_out": 1}
    advance(batch.pk)
    assert numbers() == {"total": 5, "done": 3, "written": 1, "on_its_way": 1, "failed": 1, "open": 2, "left_out": 1}
    cancel(batch.batch_id, by=ana)
    work(batch)
    assert numbers() == {"total": 5, "done": 3, "written": 1, "on_its_way": 1, "failed": 1, "cancelled": 2, "left_out": 1}
    work(undo(batch.batch_id, by=ana))
    assert numbers() == {"total": 5, "done": 3, "written": 1, "withdrawn": 1, "failed": 1, "cancelled": 2, "left_out": 1}
