"""From what was found to what may be said: one pure function, `judge`. A wrong "done" loses a customer's email, a wrong "failed" sends it twice;
so "cannot tell" is the normal answer, and each other answer has to earn itself (resolvers.md, The rules).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from actions.records import Action, ActionStatus, Lease
from actions.resolvers.base import Canary, Claim, Effect, Finding, Match, MatchedBy, Reply, Windows
from actions.times import SECOND, Instant, format_rfc3339

CLOCK_SKEW: Instant = 300 * SECOND
"""How far a provider's clock may run behind the agent's before an object is older than the call that should have made it."""

_BACK_OFF_S, _LONGEST_BACK_OFF_S = 60, 3_600
_NOTHING_NEW_S, _LONGEST_NOTHING_NEW_S = 900, 6 * 3_600
_UNUSABLE_S = 3_600
_MARGIN: Instant = 1 * SECOND


class Outcome(StrEnum):
    """What a resolver may say about an open action."""

    DONE = "done"
    FAILED = "failed"  # proved: it did not happen
    UNKNOWN = "unknown"  # cannot tell


class Grade(StrEnum):
    """How well an object fits the claim. `weak` and `conflict` never settle anything; a person sees them."""

    EXACT = "exact"  # our key, and every field that both sides tell agrees
    STRONG = "strong"  # the provider's id, or our key in an object that tells nothing to compare; fields agree
    WEAK = "weak"  # looks like it, without the key
    CONFLICT = "conflict"  # our key or the provider's id, but something differs


class Fence(StrEnum):
    """Whether the process that began the call can still act for its agent."""

    FENCED = "fenced"  # its lease was released or taken over
    EXPIRED = "expired"  # nobody took over yet; a settle fences it by taking the lease
    HELD = "held"  # it may be at work
    UNKNOWN = "unknown"  # this store's leases cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """An earlier question that was answered, whole, with a canary, and did not find it; by the same definition."""

    asked_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known beside the finding."""

    lease: Lease | None
    leases_known: bool = True
    first_holder: str = ""  # of the lease when the action was first seen; empty where nobody watched
    lost_at: Instant | None = None  # when we first saw that its holder had lost the lease
    negatives: tuple[Negative, ...] = ()
    first_asked_at: Instant | None = None  # None: this is the first time
    misses: int = 0  # questions in a row before this one that were not answered
    asked: int = 0  # questions before this one


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldComparison:
    """One field of claim and world side by side. `agrees` None: one side does not tell."""

    name: str
    claimed: str
    found: str
    agrees: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict rests on, for the screen and for three weeks later. Redacted by the kind that asked."""

    asked: tuple[str, ...]
    account: str
    asked_at: Instant
    took_ms: int
    status: str
    answer_digest: str
    matched_ids: tuple[str, ...]
    fields: tuple[FieldComparison, ...]
    canary: Canary
    rule: str  # the sentence that decided
    notes: tuple[str, ...] = ()
    is_negative: bool = False  # counts as one of the two that absence needs
    is_answered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one question allows to be said. `check_again_at` None: it is not asked again by itself (decided, or given up)."""

    outcome: Outcome
    grade: Grade | None = None
    resolution: str
    evidence: Evidence
    check_again_at: Instant | None = None
    has_given_up: bool = False

    @property
    def may_settle_alone(self) -> bool:
        """Whether a policy that says `settle` may write it without a person: found, with our key, and everything agrees."""
        return self.outcome is Outcome.DONE and self.grade is Grade.EXACT


def judge(
    finding: Finding,
    claim: Claim,
    *,
    circumstances: Circumstances,
    windows: Windows,
    proves_absence: bool,
    copies_are_normal: bool = False,
    accepts_strong: bool = False,
    jitter: float = 0.5,
) -> Verdict:
    """Weigh one finding. Pure: the same arguments give the same verdict; `jitter` is from 0 to 1 and spreads the next questions.

    `done` only on an exact match, or on a strong one where `accepts_strong`; `failed` only where every condition of `_why_not_absent`
    holds; otherwise unknown, with the moment at which asking again can tell more.
    """
    if finding.reply is not Reply.ANSWERED:
        return _not_answered(finding, claim, circumstances, windows, jitter)
    if finding.matches:
        best = _best_match(finding.matches, claim, copies_are_normal=copies_are_normal)
        is_done = best.grade is Grade.EXACT or (best.grade is Grade.STRONG and accepts_strong)
        if is_done and best.match.effect is Effect.HAPPENED:
            return _verdict(Outcome.DONE, finding, best)
        return _cannot_tell(finding, best, circumstances, windows, jitter)
    missing = _why_not_absent(finding, claim.action, circumstances, windows, proves_absence=proves_absence)
    if missing is None:
        best = _Weighed(rule="not found twice, a window apart, after nothing could happen any more", fields=compare(claim, None))
        return _verdict(Outcome.FAILED, finding, best, is_negative=True)
    best = _Weighed(rule=missing.rule, fields=compare(claim, None))
    return _cannot_tell(
        finding, best, circumstances, windows, jitter, earliest=missing.ask_at, is_negative=_is_negative(finding, proves_absence)
    )


def fence_of(action: Action, lease: Lease | None, *, first_holder: str = "", leases_known: bool = True) -> Fence:
    """Whether the process that began this action is fenced off (resolvers.md, rule 2). A missing lease row fences every writer."""
    if not leases_known:
        return Fence.UNKNOWN
    if action.status is ActionStatus.UNKNOWN or lease is None or lease.is_released:
        return Fence.FENCED
    if first_holder and lease.holder != first_holder:
        return Fence.FENCED
    return Fence.HELD if lease.is_live else Fence.EXPIRED


def last_possible_effect(action: Action, circumstances: Circumstances, windows: Windows) -> Instant | None:
    """The moment after which the call can have had no effect any more; None where it cannot be known.

    The end of the old lease counts, and a release or a takeover erases it; then it is the moment at which we first saw it gone.
    """
    lease, own_end = circumstances.lease, action.started_at + windows.tool_timeout_s * SECOND
    fence = fence_of(action, lease, first_holder=circumstances.first_holder, leases_known=circumstances.leases_known)
    if fence is Fence.EXPIRED and lease is not None:
        return max(own_end, lease.expires_at)
    if fence is Fence.FENCED and circumstances.lost_at is not None:
        return max(own_end, circumstances.lost_at)
    return None


def evidence_until(action: Action, circumstances: Circumstances, windows: Windows) -> Instant:
    """Until when a provider can still show what this call did: its retention, from the last moment at which the call can have done it.

    Where that moment is not known, it is the tool's own time-out. Absence stops proving anything a little earlier: at the retention from
    the beginning of the call, because it may have had its effect at once.
    """
    last = last_possible_effect(action, circumstances, windows)
    return (action.started_at + windows.tool_timeout_s * SECOND if last is None else last) + windows.retention_s * SECOND


def compare(claim: Claim, match: Match | None) -> tuple[FieldComparison, ...]:
    """Recipient, amount, currency and reference side by side, those that at least one side tells. Text without case and outer spaces."""
    rows = [
        _compare_people(claim.recipients, match.recipients if match else ()),
        _compare_amounts(claim.amount, match.amount if match else None),
        _compare_texts("currency", claim.currency, match.currency if match else ""),
        _compare_texts("reference", claim.reference, match.reference if match else ""),
    ]
    return tuple(row for row in rows if row.claimed or row.found)


# --- matches ---------------------------------------------------------------------------------------------------------


_NOTHING = Match(object_id="", by=MatchedBy.FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """What decides, in one sentence."""

    rule: str
    fields: tuple[FieldComparison, ...]
    match: Match = _NOTHING
    grade: Grade | None = None


def _best_match(matches: tuple[Match, ...], claim: Claim, *, copies_are_normal: bool) -> _Weighed:
    """A conflict outweighs everything: somebody has to look. Then exact, strong, weak."""
    weighed = [_weigh(match, claim) for match in matches]
    certain = [one for one in weighed if one.match.by is not MatchedBy.FIELDS]
    happened = {one.match.object_id for one in certain if one.match.effect is Effect.HAPPENED}
    if len(happened) > 1 and not copies_are_normal:
        first = certain[0]
        return _Weighed(
            rule=f"found {len(happened)} objects with our key: it may have happened more than once",
            fields=first.fields,
            match=first.match,
            grade=Grade.CONFLICT,
        )
    order = (Grade.CONFLICT, Grade.EXACT, Grade.STRONG, Grade.WEAK)
    return min(weighed, key=lambda one: (order.index(one.grade or Grade.WEAK), one.match.effect is not Effect.HAPPENED))


_RULES = {
    (MatchedBy.KEY, True): ("found by our key; the fields agree", Grade.EXACT),
    (MatchedBy.KEY, False): ("found by our key, but it tells nothing that could be compared", Grade.STRONG),
    (MatchedBy.PROVIDER_ID, True): ("found by the provider's id; the fields agree", Grade.STRONG),
    (MatchedBy.PROVIDER_ID, False): ("found by the provider's id, but it tells nothing that could be compared", Grade.WEAK),
    (MatchedBy.OWN_WORD, True): ("a resolver of the team's own says that it happened", Grade.STRONG),
    (MatchedBy.OWN_WORD, False): ("a resolver of the team's own says that it happened", Grade.STRONG),
}
"""By what it was found, and whether a field could be compared (or the claim has none): what to call it."""


def _weigh(match: Match, claim: Claim) -> _Weighed:
    fields = compare(claim, match)
    if match.by is MatchedBy.FIELDS:
        return _Weighed(
            rule="only something that looks like it was found, without our key", fields=fields, match=match, grade=Grade.WEAK
        )
    differing = [row.name for row in fields if row.agrees is False]
    rule = ""
    if differing:
        rule = f"found by our {match.by}, but the {' and the '.join(differing)} {'differs' if len(differing) == 1 else 'differ'}"
    elif match.at is not None and match.at < claim.action.started_at - CLOCK_SKEW:
        rule = f"found by our {match.by}, but it is from {format_rfc3339(match.at)}, before the call began"
    elif match.effect is Effect.UNDONE:
        rule = f"found by our {match.by}, but it was cancelled or taken back"
    if rule:
        return _Weighed(rule=rule, fields=fields, match=match, grade=Grade.CONFLICT)
    is_compared = any(row.agrees for row in fields) or not fields
    rule, grade = _RULES[match.by, is_compared]
    if match.effect is Effect.PENDING:
        rule = f"{rule}; it is not finished yet"
    return _Weighed(rule=rule, fields=fields, match=match, grade=grade)


def _compare_people(claimed: tuple[str, ...], found: tuple[str, ...]) -> FieldComparison:
    ours, theirs = {_plain(one) for one in claimed}, {_plain(one) for one in found}
    agrees = ours == theirs if ours and theirs else None
    return FieldComparison(name="recipient", claimed=", ".join(claimed), found=", ".join(found), agrees=agrees)


def _compare_amounts(claimed: Decimal | None, found: Decimal | None) -> FieldComparison:
    agrees = claimed == found if claimed is not None and found is not None else None
    return FieldComparison(name="amount", claimed=_number(claimed), found=_number(found), agrees=agrees)


def _compare_texts(name: str, claimed: str, found: str) -> FieldComparison:
    agrees = _plain(claimed) == _plain(found) if claimed and found else None
    return FieldComparison(name=name, claimed=claimed, found=found, agrees=agrees)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _number(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:f}"


# --- absence ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """The first thing that "it did not happen" lacks; `ask_at`: the earliest moment at which it can be there."""

    rule: str
    ask_at: Instant | None = None


def _is_negative(finding: Finding, proves_absence: bool) -> bool:
    return (
        proves_absence
        and finding.reply is Reply.ANSWERED
        and finding.is_complete
        and finding.canary is Canary.FOUND
        and not finding.matches
    )


def _why_not_absent(
    finding: Finding, action: Action, circumstances: Circumstances, windows: Windows, *, proves_absence: bool
) -> _Missing | None:
    """None: it is proved that it did not happen. Every line is a condition of its own; none makes up for another."""
    lease, now, window = circumstances.lease, finding.asked_at, windows.settle_window_s * SECOND
    if not proves_absence:
        return _Missing(rule="not found; this resolver does not prove absence")
    if finding.canary is not Canary.FOUND:
        why = "the canary is missing too" if finding.canary is Canary.MISSING else "no canary was looked for"
        return _Missing(rule=f"not found, but {why}: the account, the folder or the rights may be wrong")
    if not finding.is_complete:
        return _Missing(rule="not found, but not everything could be looked at")
    if now >= action.started_at + windows.retention_s * SECOND:
        return _Missing(rule="not found, but the provider keeps nothing that old")
    fence = fence_of(action, lease, first_holder=circumstances.first_holder, leases_known=circumstances.leases_known)
    if fence is Fence.UNKNOWN:
        return _Missing(rule="not found, but nobody can tell whether its process is alive: this store's leases cannot be read")
    if fence is Fence.HELD:
        return _Missing(
            rule="not found, but its process may still be at it: the lease is live", ask_at=lease.expires_at if lease else None
        )
    over = last_possible_effect(action, circumstances, windows)
    if over is None:
        return _Missing(rule="not found; since when its process is gone is not known yet", ask_at=now + window)
    if now <= over + window:
        until = -(-(over + window) // SECOND) * SECOND  # people read it
        return _Missing(rule=f"not found yet; it can still turn up until {format_rfc3339(until)}", ask_at=over + window)
    first = min((one.asked_at for one in circumstances.negatives if one.asked_at > over), default=None)
    if first is None:
        return _Missing(rule="not found once; it is asked a second time", ask_at=now + window)
    if now < first + window:
        return _Missing(rule="not found once; the second question comes a window later", ask_at=first + window)
    return None


# --- answers ---------------------------------------------------------------------------------------------------------


def _not_answered(finding: Finding, claim: Claim, circumstances: Circumstances, windows: Windows, jitter: float) -> Verdict:
    """Never "failed": whatever went wrong with asking says nothing about the call."""
    if finding.reply is Reply.UNUSABLE:
        pause = _UNUSABLE_S
        rule = f"could not be asked: {finding.problem}"
    else:
        pause = _back_off(_BACK_OFF_S, _LONGEST_BACK_OFF_S, circumstances.misses)
        rule = f"no answer: {finding.problem}"
    best = _Weighed(rule=rule, fields=compare(claim, None))
    earliest = finding.asked_at + finding.retry_after_s * SECOND if finding.retry_after_s else None
    return _cannot_tell(finding, best, circumstances, windows, jitter, earliest=earliest, pause_s=pause)


def _cannot_tell(
    finding: Finding,
    best: _Weighed,
    circumstances: Circumstances,
    windows: Windows,
    jitter: float,
    *,
    earliest: Instant | None = None,
    pause_s: int | None = None,
    is_negative: bool = False,
) -> Verdict:
    """Unknown, and when to ask again: not before `earliest`, never before the pause is over, and not at all beyond the tool's limit."""
    if earliest is not None and pause_s is None:
        ask_at = max(earliest, finding.asked_at) + _MARGIN
    else:
        pause = pause_s or _back_off(_NOTHING_NEW_S, _LONGEST_NOTHING_NEW_S, circumstances.asked)
        ask_at = max(finding.asked_at + pause * SECOND, earliest or 0)
    ask_at += int((ask_at - finding.asked_at) * 0.2 * min(max(jitter, 0.0), 1.0))
    limit = (circumstances.first_asked_at or finding.asked_at) + windows.give_up_after_s * SECOND
    has_given_up = ask_at > limit
    return _verdict(
        Outcome.UNKNOWN,
        finding,
        best,
        is_negative=is_negative,
        check_again_at=None if has_given_up else ask_at,
        has_given_up=has_given_up,
    )


def _verdict(
    outcome: Outcome,
    finding: Finding,
    best: _Weighed,
    *,
    is_negative: bool = False,
    check_again_at: Instant | None = None,
    has_given_up: bool = False,
) -> Verdict:
    ids = tuple(dict.fromkeys(match.object_id for match in finding.matches if match.object_id))
    evidence = Evidence(
        asked=finding.asked,
        account=finding.account,
        asked_at=finding.asked_at,
        took_ms=finding.took_ms,
        status=finding.status,
        answer_digest=finding.answer_digest,
        matched_ids=ids,
        fields=best.fields,
        canary=finding.canary,
        rule=best.rule,
        notes=(*(match.note for match in finding.matches if match.note), *finding.notes),
        is_negative=is_negative,
        is_answered=finding.reply is Reply.ANSWERED,
    )
    named = f" ({', '.join(ids[:3])})" if ids else ""
    return Verdict(
        outcome=outcome,
        grade=best.grade,
        resolution=f"{best.rule}{named}",
        evidence=evidence,
        check_again_at=check_again_at,
        has_given_up=has_given_up,
    )


def _back_off(first_s: int, longest_s: int, times: int) -> int:
    return min(longest_s, first_s << min(times, 16))
