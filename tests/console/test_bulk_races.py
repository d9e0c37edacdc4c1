"""Batches with several at once: two tabs, two workers, a worker and the person who cancels. One batch, and every call is decided once."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from console.models import Batch, Decision
from console.services import batches
from console.services.batches import advance, cancel, items_showing, undo
from console.services.bulk import commit, draft_selected
from tests.console.test_services_bulk import REASON, settled, shown, status_of, work
from tests.console.test_services_races import together
from tests.recall_writer import RecallWriter

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_same_form_from_two_tabs_at_once_is_one_batch(postgres: RecallWriter, ana: User) -> None:
    refs = [postgres.action(f"a-{number}", 1) for number in range(3)]
    drafts = together(*[partial(draft_selected, refs, by=ana, batch_id="batch-00001", content_digest="x")] * 3)
    assert len({draft.pk for draft in drafts}) == Batch.objects.count() == 1

    answers = together(*[partial(commit, "batch-00001", by=ana, outcome="done", reason=REASON)] * 3)

    assert sorted(is_new for _, is_new in answers) == [False, False, True]
    assert shown(work(answers[0][0])) == ["written"] * 3
    assert [settled(ref) for ref in refs] == [1, 1, 1]


def test_workers_that_come_together_decide_each_call_once(postgres: RecallWriter, ana: User) -> None:
    refs = [postgres.action(f"a-{number}", 1) for number in range(4)]
    batch, _ = commit(draft_selected(refs, by=ana).batch_id, by=ana, outcome="done", reason=REASON)

    assert any(one is False for one in together(*[partial(advance, batch.pk)] * 4))
    # Also where the claim of one that is slow runs out under it.
    Batch.objects.update(claimed_until=timezone.now())
    together(*[partial(advance, batch.pk)] * 2)

    assert shown(work(batch)) == ["written"] * 4
    assert [settled(ref) for ref in refs] == [1] * 4
    assert Decision.objects.count() == 4


@pytest.mark.parametrize("gesture", [cancel, undo])
def test_who_stops_a_batch_while_a_worker_is_at_it_leaves_each_call_decided_or_not(
    postgres: RecallWriter, ana: User, gesture: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "STEP", 3)
    refs = [postgres.action(f"a-{number}", 1) for number in range(6)]
    batch, _ = commit(draft_selected(refs, by=ana).batch_id, by=ana, outcome="done", reason=REASON)

    together(partial(advance, batch.pk), partial(gesture, batch.batch_id, by=ana))  # type: ignore[operator]
    batch = work(batch)

    assert batch.state == {cancel: "cancelled", undo: "undone"}[gesture]  # type: ignore[index]
    for item in items_showing(batch, ""):
        assert (item.outcome_shown, status_of(item.ref), settled(item.ref)) in [
            ("written", "done", 1),
            ("cancelled", "started", 0),
        ]
    assert Decision.objects.count() == shown(batch).count("written")
