"""Refused attempts as entries: who tried what that is not theirs, in words, bounded however often they try."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from django.core.cache import cache
from django.db import Error as ConsoleDatabaseError
from django.db import connection, transaction

from actions.digests import canonical_json, sha256_text
from actions.errors import StoreError
from console.services import journal

log = logging.getLogger(__name__)

_MINUTE_S = 60


def enter_denial(
    actor: str, gesture: str, *, why: str, reason: str, store: str = "", agent: str = "", seq: int | None = None
) -> bool:
    """Enter that somebody who is known was refused; False where only their count was raised.

    Of one person, gesture and cause in one minute the 1st, 2nd, 4th, 8th ... attempt is an entry, which says how many it had been by then:
    a flood of a million writes twenty. Counted for all processes together. `gesture` is one of GESTURES, or the name of a page that only
    shows something; the entry holds it and its words.

    Raises:
        StoreError: the history cannot be written. The refusal itself stands.
    """
    key = f"denied-{int(time.time()) // _MINUTE_S}-{sha256_text(canonical_json([actor, gesture, why]))}"
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [key])
        times = cache.get(key, 0) + 1
        cache.set(key, times, timeout=2 * _MINUTE_S)
        if times & (times - 1):
            return False
        detail = {"about": gesture, "tried": words_of(gesture), "why": why, "times": times}
        detail |= {"of": {"store": store}} if store else {}
        journal.record("denied", actor=actor, agent=agent, seq=seq, reason=reason, detail=detail)
    return True


def leave_denial(
    actor: str, gesture: str, *, why: str = "forbidden", reason: str, store: str = "", agent: str = "", seq: int | None = None
) -> None:
    """As `enter_denial`, for whoever refuses all the same: where the history cannot be written, the log says so."""
    try:
        enter_denial(actor, gesture, why=why, reason=reason, store=store, agent=agent, seq=seq)
    except (StoreError, ConsoleDatabaseError) as exc:
        log.warning("that %s was refused is not in the history: %s", actor, type(exc).__name__)


def words_of(gesture: str) -> str:
    """What was tried, as it reads behind "was turned away from"."""
    return GESTURES.get(gesture) or f"sending something to the page {gesture}"


GESTURES: Mapping[str, str] = {
    # pages, by the name of their address
    "action ask": "asking a resolver about a call",
    "action claim": "claiming a call",
    "action note": "writing a note about a call",
    "action reveal": "seeing what is hidden of a call",
    "agent ask": "asking resolvers about an agent's open calls",
    "agent replay": "taking out an agent's replay",
    "approval": "answering what a run asks",
    "asking": "asking resolvers about several calls",
    "batch": "deciding about many calls at once",
    "batch again": "trying the failed calls of a batch again",
    "batch cancel": "cancelling a batch",
    "batch undo": "withdrawing what a batch decided",
    "bulk": "making a preview of a decision about many calls",
    "channel": "changing what a webhook is told",
    "claims": "claiming several calls",
    "confirm": "proving who they are",
    "correction": "correcting an end",
    "correction approve": "approving a correction",
    "correction turn down": "turning a correction down",
    "correction withdraw": "taking a correction back",
    "decision": "deciding about a call",
    "decision approve": "approving a decision",
    "decision break glass": "going on without a second person",
    "decision through": "writing a decision through the tenant's server",
    "decision turn down": "turning a decision down",
    "decision withdraw": "withdrawing a decision",
    "eviction": "taking a lease away",
    "export": "taking the history out",
    "handover": "handing calls over",
    "handover dismiss": "dismissing a hand-over",
    "hook": "calling as a provider",
    "incident": "closing an incident",
    "login": "signing in",
    "logout": "signing out",
    "notifications": "adding a webhook",
    "password change": "changing their password",
    "password choose": "choosing a password",
    "password forgotten": "asking for a link for a new password",
    "people": "adding an account",
    "person": "changing an account or its roles",
    "resolver": "changing a resolver",
    "resolver hook": "changing where a provider calls for a resolver",
    "resolver new": "making a resolver",
    "run cancel": "cancelling a run",
    "run done": "marking a run as done",
    "run new": "starting a run",
    "run restart": "beginning a run anew",
    "run resume": "resuming a run",
    "run undo": "taking back what a run did",
    "saved view": "changing a saved view",
    "saved views": "saving a view",
    "settings": "changing their settings",
    "settings keys": "changing their keys",
    "settings mail": "changing what they are mailed about",
    "settings sessions": "ending their sessions",
    "theme": "changing how the pages look",
    "tool": "changing a tool's policy",
    "verify now": "having the histories verified",
    # pages of the library that signs people in
    "account_login": "signing in",
    "account_logout": "signing out",
    "account_reauthenticate": "proving who they are",
    "account_signup": "making an account",
    "mfa_activate_totp": "setting up an app for codes",
    "mfa_add_webauthn": "adding a passkey",
    "mfa_authenticate": "giving the second factor",
    "mfa_deactivate_totp": "removing their app for codes",
    "mfa_edit_webauthn": "renaming a passkey",
    "mfa_generate_recovery_codes": "making recovery codes",
    "mfa_login_webauthn": "signing in with a passkey",
    "mfa_reauthenticate": "proving who they are with a code",
    "mfa_reauthenticate_webauthn": "proving who they are with a passkey",
    "mfa_remove_webauthn": "removing a passkey",
    "openid_connect_callback": "coming back from single sign-on",
    "openid_connect_login": "signing in by single sign-on",
    # the API, by method and address
    "GET actions": "reading calls through the API",
    "GET actions decision": "reading what was decided through the API",
    "GET approvals": "reading what runs ask through the API",
    "GET runs": "reading runs through the API",
    "GET runs compensation": "reading what a run could take back through the API",
    "GET runs events": "following a run through the API",
    "POST approvals": "answering what a run asks through the API",
    "POST runs": "starting a run through the API",
    "POST runs cancel": "cancelling a run through the API",
    "POST runs compensate": "taking back what a run did through the API",
    "POST runs done": "marking a run as done through the API",
    "POST runs restart": "beginning a run anew through the API",
    "POST runs resume": "resuming a run through the API",
    "GET agents replay": "taking out an agent's replay through the API",
    "GET audit": "reading the history through the API",
    "GET bulk": "reading a batch through the API",
    "GET token": "asking the API whose a token is",
    "DELETE actions claim": "giving a claim back through the API",
    "DELETE actions correction": "taking a correction back through the API",
    "DELETE actions decision": "withdrawing a decision through the API",
    "POST actions claim": "claiming a call through the API",
    "POST actions correction": "correcting an end through the API",
    "POST actions decision": "deciding about a call through the API",
    "POST actions decision approve": "approving a decision through the API",
    "POST actions decision break-glass": "going on without a second person through the API",
    "POST actions decision through-server": "writing a decision through the tenant's server, by the API",
    "POST actions decision turn-down": "turning a decision down through the API",
    "POST actions resolve": "asking a resolver about a call through the API",
    "POST agents eviction": "taking a lease away through the API",
    "POST bulk": "deciding about many calls through the API",
    # a worker's, for whoever made the batch
    "batch item": "deciding about a call of a batch",
    "batch item withdraw": "withdrawing a decision of a batch",
    # commands that act as somebody
    "command approve": "approving a decision, by a command",
    "command correct": "correcting an end, by a command",
    "command evict": "taking a lease away, by a command",
    "command export_audit": "taking the history out, by a command",
    "command export_replay": "taking out an agent's replay, by a command",
    "command settle": "deciding about a call, by a command",
}
"""Every gesture that can be refused, as it reads behind "was turned away from". Pages that only show something have none."""
