"""What a person must know about a store before believing a list of it: down, cut off, read-only, cautions, and in whose words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actions.queries import StoreStatus
from actions.records import StoreCheck
from console.access import Person, sees_problems
from console.checks import recent_checks
from console.models import KnownCount
from console.services.known_counts import last_known
from console.stores import ActionStore

PLAIN = "Those who settle or run it can see why."
"""Said in place of a store's own words, which may name hosts, users and rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNews:
    """One store above a list of actions. All empty: nothing stands between the list and the truth."""

    name: str
    problem: str  # why it did not answer, in words for this person; empty when it did
    is_listed: bool  # False: none of its actions is in the list
    is_truncated: bool
    known: KnownCount | None  # while it is not listed: what was in doubt when it last answered, where this person may know
    why_not: str  # why it can be read and not settled, in words for this person; empty where it can be settled
    cautions: tuple[str, ...]


def told(user: Person, store: str, problem: str) -> str:
    """A store's own words, or a plain sentence for those who neither settle nor run it."""
    return problem if sees_problems(user, store) else PLAIN


def complain(user: Person | None, store: str, problem: str) -> str:
    """The same as a sentence about the store, where nothing else says that it does not answer. `user` None: an agent's program."""
    if user is not None and sees_problems(user, store):
        return f"store {store}: {problem}"
    return f"store {store} does not answer as it should. {PLAIN}"


def read_news(user: Person, stores: Sequence[ActionStore], statuses: Sequence[StoreStatus]) -> tuple[StoreNews, ...]:
    """The news of the stores that a list was read from. Those that just did not answer are not asked again."""
    answered = {status.name for status in statuses if not status.problem}
    checks = recent_checks([store for store in stores if store.name in answered])
    known = last_known(user, [status.name for status in statuses if not status.is_listed])
    in_order = sorted(statuses, key=lambda status: status.is_listed)  # what is missing stands first
    return tuple(_news(user, status, checks.get(status.name), known.get(status.name)) for status in in_order)


def _news(user: Person, status: StoreStatus, check: StoreCheck | None, known: KnownCount | None) -> StoreNews:
    is_read_only = check is not None and check.is_reachable and not check.can_settle
    return StoreNews(
        name=status.name,
        problem=told(user, status.name, status.problem) if status.problem else "",
        is_listed=status.is_listed,
        is_truncated=status.is_truncated,
        known=known,
        why_not=told(user, status.name, check.why_not) if check is not None and is_read_only else "",
        cautions=check.cautions if check is not None else (),
    )
