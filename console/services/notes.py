"""What people noted about an action: reading, and adding one at any time, also after it ended. Notes are the console's own data."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.utils import timezone

from actions.errors import InvalidDecision
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from actions.settle import check_decision_id
from console.access import Person, Right, is_possible, item_or_404
from console.models import DecisionId, Note
from console.services.changes import bump
from console.services.decisions import MAX_ASIDE, of_actions
from console.services.deliver import as_column

MAX_SHOWN = 50
JUST_NOW = timedelta(minutes=30)


def add_note(ref: ActionRef, *, text: str, look_again_at: datetime | None, note_id: str, by: User) -> Note:
    """Keep a note about an open or a closed action. The same id again is the same note.

    Raises:
        Http404, PermissionDenied, StoreError: as `access.item_or_404`. Nothing was kept.
        InvalidDecision: it breaks a rule, or the id stands for something else. Nothing was kept.
    """
    check_decision_id(note_id)
    text = text.strip()
    if not has_visible_text(text):
        raise InvalidDecision("a note is required: what did you see or hear, and where?")
    if len(text) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the note has {len(text)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("note", text)
    if look_again_at is not None and timezone.is_naive(look_again_at):
        raise InvalidDecision("the time to look again has no zone")
    item = item_or_404(by, ref, Right.SETTLE)
    is_past = look_again_at is not None and look_again_at < timezone.now()
    if is_past and not Note.objects.filter(decision_id=note_id).exists():
        raise InvalidDecision("the time to look again is in the past")
    note, _ = write_note(item, text, look_again_at, note_id=note_id, by=by)
    if note is None or not is_same(note, item.ref, text, look_again_at, by=by):
        raise InvalidDecision("this id was used for something else; open the page again")
    return note


def write_note(
    item: ActionItem, text: str, look_again_at: datetime | None, *, note_id: str, by: User
) -> tuple[Note | None, bool]:
    """The note under this id, and whether it was made now; committed. None where the id is a decision's, also of one made this very moment.

    Texts and times are as the caller has checked them; what stood under the id before may be another note (`is_same`).
    """
    try:
        with transaction.atomic(durable=True):
            DecisionId.objects.create(id=note_id)
            note = Note.objects.create(
                decision_id=note_id,
                store=item.store,
                agent=item.agent,
                seq=item.ref.seq,
                tool=as_column(item.action.tool if item.action else ""),
                text=text,
                look_again_at=look_again_at,
                by=by,
                username=by.get_username(),
            )
            bump(item.store)
    except IntegrityError:
        return Note.objects.filter(decision_id=note_id).first(), False
    return note, True


def is_same(note: Note, ref: ActionRef, text: str, look_again_at: datetime | None, *, by: User) -> bool:
    """Whether a note under an id that is sent again says what is sent."""
    return (note.ref, note.text, note.look_again_at, note.by_id) == (ref, text, look_again_at, by.pk)


def notes_on(ref: ActionRef, *, limit: int = MAX_SHOWN) -> list[Note]:
    """The notes on one action, newest first. The caller has checked that its user may see the action."""
    if not is_possible(ref):
        return []
    return list(Note.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq).order_by("-id")[:limit])


def look_agains(refs: Collection[ActionRef]) -> dict[ActionRef, datetime]:
    """When each action is to be looked at again: as the newest note that names a time says. One query, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    if not wanted:
        return {}
    rows = of_actions(_reminders(), wanted)
    return {row.ref: row.look_again_at for row in rows if row.ref in wanted and row.look_again_at}


def refs_due() -> frozenset[ActionRef]:
    """The actions whose time to look again has come, whether open or not. One query."""
    return frozenset(row.ref for row in _reminders().filter(look_again_at__lte=timezone.now()))


def refs_put_off(user: Person) -> frozenset[ActionRef]:
    """The actions on which nobody has to do anything just now: their time to look again has not come, or this person noted lately that they
    cannot tell. At most MAX_ASIDE of each, newest first."""
    now = timezone.now()
    put_off = _reminders().filter(look_again_at__gt=now), Note.objects.filter(by_id=user.pk, created_at__gt=now - JUST_NOW)
    refs = [rows.order_by("-id").values_list("store", "agent", "seq")[:MAX_ASIDE] for rows in put_off]
    return frozenset(ActionRef(*ref) for rows in refs for ref in rows)


def reminders_of(user: User, *, limit: int = 200) -> list[Note]:
    """A person's own notes that name a time and that no later note about the same action overrides; the earliest time first."""
    return list(_reminders().filter(by=user).order_by("look_again_at", "pk")[:limit])


def _reminders() -> QuerySet[Note]:
    """Of each action the newest note that names a time: what holds."""
    same = Note.objects.filter(store=OuterRef("store"), agent=OuterRef("agent"), seq=OuterRef("seq"))
    return Note.objects.filter(pk=Subquery(same.exclude(look_again_at=None).order_by("-id").values("pk")[:1]))
