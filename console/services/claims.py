"""Claiming an action, so that two people do not look at the same one; giving it back, taking it over, handing it on.

A claim blocks nobody: the first decision wins, and whoever decides about somebody else's is told before. Every change is one conditional
write; what nobody worked on for CLAIM_TIME is no claim any more, whether or not anybody has noted that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision, StoreError
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.rules import MAX_REASON_CHARS, check_text
from actions.settle import check_decision_id
from console.access import Person, Right, forget, is_possible, item_or_404, may
from console.models import Claim, ClaimEnd, HandOver
from console.services import journal
from console.services.changes import bump
from console.services.claimed import claims_on, end, end_claims, find_claim
from console.services.deliver import as_column
from console.stores import UnknownStore

MAX_AT_ONCE = 200
"""How many actions one gesture claims, gives back or hands on."""


class ClaimKind(StrEnum):
    """What became of a gesture about one action."""

    CLAIMED = "claimed"  # yours now
    MINE = "mine"  # it was yours already; renewed
    TAKEN = "taken"  # somebody else has it; `claim` says who since when
    RELEASED = "released"  # nobody has it any more
    NOT_MINE = "not_mine"  # there was nothing of yours to give back
    CLOSED = "closed"  # it has ended, so there is nothing to be at
    REFUSED = "refused"  # it is not there for you, or you may not settle it; `detail` says which
    UNKNOWN = "unknown"  # its store did not answer; nothing was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswer:
    """What became of it. `detail` is one sentence for a person."""

    kind: ClaimKind
    ref: ActionRef
    detail: str
    claim: Claim | None = None  # the live one as it stands now


# --- one action ------------------------------------------------------------------------------------------------------


def claim(ref: ActionRef, *, by: User) -> ClaimAnswer:
    """Claim an open action that nobody has; one's own is renewed. Of two at one moment one gets it, the other is told who.

    Raises:
        Http404, PermissionDenied, StoreError: as `access.item_or_404`. Nothing was changed.
    """
    item = item_or_404(by, ref, Right.SETTLE)
    if item.action is not None and not item.action.is_open:
        end_claims(ref)
        return _closed(item)
    return _claim(item, by, taken_from="")


def take_over(ref: ActionRef, *, whose: str, by: User) -> ClaimAnswer:
    """Claim an action that this person has, who keeps a record of it. Where somebody else has it by now, they keep it.

    Raises:
        Http404, PermissionDenied, StoreError: as `access.item_or_404`. Nothing was changed.
    """
    item = item_or_404(by, ref, Right.SETTLE)
    if item.action is not None and not item.action.is_open:
        end_claims(ref)
        return _closed(item)
    with transaction.atomic():
        theirs = claims_on(ref).filter(ended_at=None, username=as_column(whose)).exclude(by=by)
        had = end(theirs, ClaimEnd.TAKEN_OVER, by=by.get_username()) == 1
        return _claim(item, by, taken_from=whose if had else "")


def release(ref: ActionRef, *, by: User) -> ClaimAnswer:
    """Give one's own claim back. Nobody else's is touched. Asks no store: also what has ended or is not reachable is given back."""
    if not is_possible(ref):
        raise Http404(f"there is no action {ref.seq} of that agent")
    with transaction.atomic():
        is_ours = end(claims_on(ref).filter(ended_at=None, by=by), ClaimEnd.RELEASED, by=by.get_username()) == 1
        if is_ours:
            bump(ref.store)
    if is_ours:
        return ClaimAnswer(kind=ClaimKind.RELEASED, ref=ref, detail="nobody has it any more")
    return ClaimAnswer(kind=ClaimKind.NOT_MINE, ref=ref, detail="there was no claim of yours to give back")


def _claim(item: ActionItem, by: User, *, taken_from: str, hand_over: HandOver | None = None) -> ClaimAnswer:
    ref = item.ref
    for _ in range(3):
        now = timezone.now()
        with transaction.atomic():
            end(claims_on(ref).filter(ended_at=None, expires_at__lte=now), ClaimEnd.TIMED_OUT)
            if claims_on(ref).filter(ended_at=None, by=by).update(expires_at=now + settings.CLAIM_TIME) == 1:
                return ClaimAnswer(kind=ClaimKind.MINE, ref=ref, detail="it is yours already", claim=find_claim(ref))
            tool = item.action.tool if item.action else ""
            row = _insert(ref, tool, by, now, taken_from=taken_from, hand_over=hand_over)
            if row is not None:
                bump(ref.store)
                return ClaimAnswer(kind=ClaimKind.CLAIMED, ref=ref, detail="it is yours", claim=row)
        other = find_claim(ref)
        if other is not None:
            return ClaimAnswer(kind=ClaimKind.TAKEN, ref=ref, detail=f"{other.username} has claimed it", claim=other)
    return ClaimAnswer(kind=ClaimKind.TAKEN, ref=ref, detail="others are claiming it right now; look again")


def _insert(ref: ActionRef, tool: str, by: User, now: datetime, *, taken_from: str, hand_over: HandOver | None) -> Claim | None:
    """None where somebody else has it: the key lets one in."""
    try:
        with transaction.atomic():
            return Claim.objects.create(
                store=ref.store,
                agent=ref.agent,
                seq=ref.seq,
                tool=as_column(tool),
                by=by,
                username=by.get_username(),
                claimed_at=now,
                expires_at=now + settings.CLAIM_TIME,
                taken_from=taken_from,
                hand_over=hand_over,
            )
    except IntegrityError:
        return None


def _closed(item: ActionItem) -> ClaimAnswer:
    ended = item.action.status if item.action else ""
    return ClaimAnswer(kind=ClaimKind.CLOSED, ref=item.ref, detail=f"it has ended {ended}, so there is nothing to claim")


# --- several ---------------------------------------------------------------------------------------------------------


def claim_all(refs: Sequence[ActionRef], *, by: User) -> tuple[ClaimAnswer, ...]:
    """Claim each of them; what became of each, in their order. One that cannot be claimed keeps no other one back.

    Raises:
        InvalidDecision: none, or more than MAX_AT_ONCE. Nothing was changed.
    """
    return tuple(_claim_whatever_happens(ref, by) for ref in _bounded(refs))


def release_all(refs: Sequence[ActionRef], *, by: User) -> tuple[ClaimAnswer, ...]:
    """Give each of them back. Raises InvalidDecision as `claim_all`."""
    return tuple(release(ref, by=by) for ref in _bounded(refs) if is_possible(ref))


def _claim_whatever_happens(ref: ActionRef, by: User) -> ClaimAnswer:
    try:
        return claim(ref, by=by)
    except (Http404, UnknownStore):
        return ClaimAnswer(kind=ClaimKind.REFUSED, ref=ref, detail="it is not there for you")
    except PermissionDenied as exc:
        return ClaimAnswer(kind=ClaimKind.REFUSED, ref=ref, detail=str(exc))
    except StoreError:
        return ClaimAnswer(kind=ClaimKind.UNKNOWN, ref=ref, detail="its store does not answer; nothing was changed")


def _bounded(refs: Sequence[ActionRef]) -> list[ActionRef]:
    found = list(dict.fromkeys(refs))
    if not found:
        raise InvalidDecision("select at least one action")
    if len(found) > MAX_AT_ONCE:
        raise InvalidDecision(f"{len(found)} actions are selected; at most {MAX_AT_ONCE} at once")
    return found


# --- handing over ----------------------------------------------------------------------------------------------------


def hand_over(refs: Sequence[ActionRef], *, to: str, text: str, handover_id: str, by: User) -> HandOver:
    """Hand one's claims of these actions to a colleague, with a note that they see: all of them, or none. The same id again is the same one.

    Raises:
        InvalidDecision: nobody of that name, oneself, somebody who may not settle all of them, a claim that is not one's own any more, or
            an id that was used by somebody else. Nothing was changed.
    """
    check_decision_id(handover_id)
    wanted = _bounded(refs)
    known = HandOver.objects.filter(handover_id=handover_id).select_related("to").first()
    if known is not None:
        if known.by_id != by.pk or known.to.get_username() != to:
            raise InvalidDecision("this id was used for another hand-over; open the page again")
        return known
    text = text.strip()
    if len(text) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the note has {len(text)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("note", text)
    receiver = _receiver(to, by)
    try:
        with transaction.atomic(durable=True):
            made = HandOver.objects.create(handover_id=handover_id, by=by, username=by.get_username(), to=receiver, text=text)
            for ref in sorted(
                wanted
            ):  # in one order for everybody: two who hand over at once never wait for each other in a circle
                _hand_on(ref, made, receiver, by)
            for store in sorted({ref.store for ref in wanted}):
                bump(store)
            changed = {str(ref): [by.get_username(), to] for ref in sorted(wanted)}
            detail = {"about": to, "changed": changed}
            journal.record("handed_over", actor=f"operator {by.get_username()}", reason=text, detail=detail)
    except IntegrityError:
        return hand_over(refs, to=to, text=text, handover_id=handover_id, by=by)  # sent twice at once: the other one made it
    return made


def _hand_on(ref: ActionRef, made: HandOver, receiver: User, by: User) -> None:
    mine = claims_on(ref).filter(ended_at=None, by=by, expires_at__gt=timezone.now()).select_for_update().first()
    if mine is None:
        raise InvalidDecision(f"{ref} is not yours any more; nothing was handed over")
    if not may(receiver, Right.SETTLE, store=ref.store, tool=mine.tool):
        raise InvalidDecision(f"{receiver.get_username()} may not settle {ref}; nothing was handed over")
    end(Claim.objects.filter(pk=mine.pk, ended_at=None), ClaimEnd.HANDED_OVER, by=by.get_username())
    now = timezone.now()
    _insert(ref, mine.tool, receiver, now, taken_from=by.get_username(), hand_over=made)


def _receiver(name: str, by: User) -> User:
    receiver = User.objects.filter(username=name, is_active=True).first() if name and "\x00" not in name else None
    if receiver is None:
        raise InvalidDecision("say who is to have them: there is nobody of that name")
    if receiver.pk == by.pk:
        raise InvalidDecision("they are yours already; choose a colleague")
    forget(receiver)
    return receiver


def receivers_for(claims: Collection[Claim], *, by: User, limit: int = 200) -> list[str]:
    """The names of those who may settle every one of these, in their order."""
    people = User.objects.filter(is_active=True).exclude(pk=by.pk).order_by("username")[:limit]
    asked = {(one.store, one.tool) for one in claims}
    return (
        [one.get_username() for one in people if all(may(one, Right.SETTLE, store=s, tool=t) for s, t in asked)] if asked else []
    )


def undismissed(user: Person) -> list[HandOver]:
    """What was handed to this person and not dismissed, newest first, at most 20, each with how many of its claims are still theirs."""
    return list(HandOver.objects.filter(to_id=user.pk, dismissed_at=None).prefetch_related("claims").order_by("-pk")[:20])


def dismiss(pk: int, *, by: User) -> bool:
    """Take the word about a hand-over away, for its receiver alone. False: there is none, or it was taken away before."""
    return HandOver.objects.filter(pk=pk, to=by, dismissed_at=None).update(dismissed_at=timezone.now()) == 1
