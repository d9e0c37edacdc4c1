"""Notes that name a time: which of them holds, and what they keep out of somebody's way."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from actions.errors import InvalidDecision
from console.models import Note
from console.services.notes import add_note, look_agains, refs_due, refs_put_off
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def test_a_time_that_has_passed_is_refused_but_the_same_note_sent_again_is_the_same(memory: RecordWriter, ana: User) -> None:
    ref, now = memory.action("m-1", 1), timezone.now()
    with pytest.raises(InvalidDecision, match="in the past"):
        add_note(ref, text="ask the bank", look_again_at=now - timedelta(minutes=1), note_id="note-past-1", by=ana)
    assert not Note.objects.exists()

    made = add_note(ref, text="ask the bank", look_again_at=now + timedelta(hours=1), note_id="note-soon-1", by=ana)
    Note.objects.update(look_again_at=now - timedelta(hours=1))
    again = add_note(ref, text="ask the bank", look_again_at=now - timedelta(hours=1), note_id="note-soon-1", by=ana)

    assert again == made
    assert Note.objects.count() == 1


def test_of_two_times_the_newest_note_holds_everywhere(memory: RecordWriter, ana: User, bea: User) -> None:
    ref, now = memory.action("m-1", 1), timezone.now()
    add_note(ref, text="tomorrow", look_again_at=now + timedelta(days=1), note_id="note-late-1", by=ana)
    assert refs_put_off(bea) == {ref}
    soon = add_note(ref, text="no, at once", look_again_at=now + timedelta(minutes=5), note_id="note-late-2", by=ana)
    add_note(ref, text="he did not answer", look_again_at=None, note_id="note-late-3", by=ana)

    Note.objects.filter(pk=soon.pk).update(look_again_at=now)

    assert look_agains([ref]) == {ref: now}
    assert refs_due() == {ref}
    assert refs_put_off(bea) == frozenset()
    assert refs_put_off(ana) == {ref}  # who has just noted something about it
