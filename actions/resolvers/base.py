"""What every resolver is: it looks for one call's effect in the outside world and brings what it found. It never judges and never acts.

A kind asks (`Resolver.ask`) and answers a Finding: plain data. What a Finding means, verdict.py decides for every kind alike, so that no
kind can call something failed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from actions.arguments import Arguments
from actions.errors import ActionsError
from actions.records import Action
from actions.times import Instant


class InvalidDefinition(ActionsError):
    """A resolver's settings cannot be used; `.field` names the one. Nothing was asked, nothing was stored."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


# --- what is looked for ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one action says it did, as far as the world can be asked about it. Unredacted: never store or show it as it is."""

    action: Action
    arguments: Arguments  # whole
    recipients: tuple[str, ...] = ()
    amount: Decimal | None = None  # in the currency's main unit
    currency: str = ""  # upper case
    reference: str = ""


# --- what was found --------------------------------------------------------------------------------------------------


class Reply(StrEnum):
    """How the asking itself went."""

    ANSWERED = "answered"
    NO_ANSWER = "no answer"  # time-out, 429, 5xx, connection lost, malformed: says nothing about the world; ask again later
    UNUSABLE = (
        "unusable"  # wrong credentials, no such folder, an address that is refused: nobody can answer until somebody mends it
    )


class MatchedBy(StrEnum):
    """What ties an object of the world to the action."""

    KEY = "key"  # our idempotency key stands in it, whole
    PROVIDER_ID = "provider id"  # the provider's own id, known from the action's records
    OWN_WORD = "own resolver's word"  # a resolver of the team's own says so and shows no object
    FIELDS = "fields"  # it looks like it: same recipient, amount, time. Never proof


class Effect(StrEnum):
    """What an object says about the effect."""

    HAPPENED = "happened"
    PENDING = "pending"  # neither yet: a payment being processed, a queued mail
    UNDONE = "undone"  # it is there and came to nothing, or was taken back: cancelled, refunded


class Canary(StrEnum):
    """Whether a known recent object of the same account was found, which proves credentials, folder, region and scope."""

    FOUND = "found"
    MISSING = "missing"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One object of the world. A field that the object does not tell is empty or None; it then neither agrees nor differs."""

    object_id: str
    by: MatchedBy
    effect: Effect = Effect.HAPPENED
    recipients: tuple[str, ...] = ()
    amount: Decimal | None = None  # in the currency's main unit
    currency: str = ""
    reference: str = ""
    at: Instant | None = None  # when it came to be, by the provider's clock
    note: str = ""  # one sentence for a person


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one question brought. Everything in it may be stored and shown: values are redacted, no credentials."""

    reply: Reply
    matches: tuple[Match, ...] = ()
    canary: Canary = Canary.NOT_ASKED
    is_complete: bool = False  # every object that could be ours was looked at: the last page was reached
    asked: tuple[str, ...] = ()  # the questions as they were sent, in order, redacted
    account: str = ""  # whose mailbox, which account, which database
    asked_at: Instant  # by this process's clock, before the first question
    took_ms: int = 0
    status: str = ""  # HTTP or IMAP status of the decisive answer
    answer_digest: str = ""  # SHA-256 of the raw answers, for whoever has to prove it later
    problem: str = ""  # one sentence where it was not answered
    retry_after_s: int = 0  # what the provider asked for
    notes: tuple[
        str, ...
    ] = ()  # sentences for a person about the answer as a whole: a replica, too many rows, an open transaction


class Resolver(Protocol):
    """One configured way of asking. Safe to share between threads; opens nothing before the first question."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def proves_absence(self) -> bool:
        """The definition declares that what is not found does not exist."""
        ...

    @property
    def copies_are_normal(self) -> bool:
        """Several objects with one key are one effect: a mail in two folders."""
        ...

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        """Look once, within the kind's time and size limits. Changes nothing in the world.

        Never raises for what the world does: no answer and a wrong answer are Findings too.
        """
        ...


# --- how one is defined ----------------------------------------------------------------------------------------------


class FieldType(StrEnum):
    """How a setting is asked for in a form."""

    TEXT = "text"
    SECRET = "secret"  # write-only: kept encrypted, never shown again  # noqa: S105
    NUMBER = "number"
    CHOICE = "choice"
    FLAG = "flag"
    LINES = "lines"  # several, one a line
    CODE = "code"  # SQL, CEL: mono, several lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting of a kind, as the form and the documentation show it."""

    name: str
    label: str
    help: str
    type: FieldType = FieldType.TEXT
    is_required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    is_address: bool = False  # says where a secret is sent: who changes it has to type the secrets again


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How long things take with one tool and its provider; seconds. The defaults of a kind lie above the documented lag."""

    tool_timeout_s: int = 300  # after this the tool itself has given up: no effect begins later
    settle_window_s: int = 3_600  # the provider shows whatever happened before that long ago
    retention_s: int = 30 * 86_400  # the provider forgets what is older
    give_up_after_s: int = 3 * 86_400  # asked no more by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the console has to know of a kind of resolver. `fields` in the order of its form."""

    name: str
    label: str
    help: str
    fields: tuple[Field, ...]
    windows: Windows = field(default_factory=Windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the deployment allows resolvers: from its environment, never from a form, so that no admin in a browser can widen it."""

    hosts: frozenset[str] = frozenset()  # `host` or `host:port`, lower case: may be private, and spoken to without TLS
    callables: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # of the kind `python`, by dotted path


NOTHING_ALLOWED = Allowed()


class Build(Protocol):
    """A kind's constructor."""

    def __call__(self, name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> Resolver:
        """A resolver from the texts of its form; everything in them is checked here, nothing is connected to.

        Raises:
            InvalidDefinition: names the field and what is wrong with it, without repeating a secret.
        """
        ...
