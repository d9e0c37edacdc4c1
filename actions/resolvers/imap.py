"""Mail: looks for the copy that the sender filed, by a Message-ID or a header made from the action's key. Only reads: EXAMINE, BODY.PEEK.

No value of an argument is ever sent: look-alikes are picked by us out of the mails of that day. SEARCH compares parts of a header, so what
it finds is fetched and compared whole here.
"""

from __future__ import annotations

import hashlib
import imaplib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.utils import getaddresses, parsedate_to_datetime
from time import monotonic
from typing import Any

from imap_tools import AND, OR, H
from imap_tools.errors import ImapToolsError, MailboxFolderSelectError

from actions.facts import by_lower_name, first_argument
from actions.resolvers.base import (
    Allowed,
    Canary,
    Claim,
    Effect,
    Field,
    FieldType,
    Finding,
    InvalidDefinition,
    Kind,
    Match,
    MatchedBy,
    Reply,
    Windows,
)
from actions.resolvers.claim import people_in
from actions.resolvers.imap_connection import (
    PLAIN,
    STARTTLS,
    TLS,
    MailBox,
    Malformed,
    Server,
    TooLong,
    Unusable,
    no_answer,
    opened,
    refusal,
    status_of,
)
from actions.resolvers.texts import Texts, read_texts
from actions.resolvers.web import AddressRefused, NoResponse, parse_host
from actions.times import SECOND, Instant, from_datetime, to_datetime

MAX_MESSAGES = 100
LOOK_ALIKE_BEFORE: Instant = 300 * SECOND
LOOK_ALIKE_AFTER: Instant = 3_600 * SECOND
"""How far from the call's beginning a mail may lie that only looks like its effect."""

BY_MESSAGE_ID, BY_HEADER, BY_EITHER = "message-id", "header", "either"

_PORTS = {TLS: 993, STARTTLS: 143, PLAIN: 143}
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,60}")
_DOMAIN = re.compile(r"[A-Za-z0-9.-]{1,253}")
_FETCHED_HEADERS = "MESSAGE-ID TO CC BCC SUBJECT"

KIND = Kind(
    name="imap",
    label="Mailbox (IMAP)",
    help="Looks into the folder where the sender files what it sent, for a mail that carries the action's key. "
    "Mail sent by SMTP is not filed by itself: this finds something only if the tool, or its provider, puts a copy there.",
    windows=Windows(settle_window_s=3_600),
    fields=(
        Field(
            name="host",
            label="Server",
            help="The IMAP server's name, as its certificate has it. One in a private network has to be allowed by this "
            "deployment.",
            is_required=True,
            is_address=True,
        ),
        Field(
            name="port",
            label="Port",
            help="Empty: 993 with TLS from the start, else 143.",
            type=FieldType.NUMBER,
            is_address=True,
        ),
        Field(
            name="security",
            label="Security",
            help="TLS from the start, or STARTTLS. None is only for hosts that this deployment allows by name.",
            type=FieldType.CHOICE,
            choices=(TLS, STARTTLS, PLAIN),
            default=TLS,
            is_address=True,
        ),
        Field(
            name="certificate_authority",
            label="Own certificate authority",
            help="PEM text of the authority that signed the server's certificate. Empty: those that this machine trusts.",
            type=FieldType.CODE,
            is_address=True,
        ),
        Field(name="user", label="User", help="Best an account that may only read.", is_required=True),
        Field(name="password", label="Password", help="Or the provider's app password.", type=FieldType.SECRET, is_required=True),
        Field(
            name="folder",
            label="Folder",
            help=r"As the server names it, for example Sent or [Gmail]/Sent Mail. Empty: the one that it marks as \Sent.",
        ),
        Field(
            name="search_by",
            label="The key stands in",
            help="The Message-ID, a header of its own, or whichever has it. Big providers do not search in headers of your own "
            "reliably: let the tool put the key into the Message-ID too.",
            type=FieldType.CHOICE,
            choices=(BY_EITHER, BY_MESSAGE_ID, BY_HEADER),
            default=BY_EITHER,
        ),
        Field(
            name="message_id",
            label="Message-ID",
            help="How the tool makes it: {key} is the action's key, {domain} the domain below.",
            default="<{key}@{domain}>",
        ),
        Field(name="message_id_domain", label="Domain of Message-IDs", help="What the tool writes after the @."),
        Field(name="header", label="Header", help="The header that holds the key alone.", default="X-Idempotency-Key"),
        Field(
            name="canary_message_id",
            label="Canary",
            help="Message-ID of a mail that is known to be in that folder, with its <>. Finding it proves that account, folder and "
            "rights are the right ones. Empty: any mail of the last days.",
        ),
        Field(
            name="canary_days",
            label="Days of the canary",
            help="Without a canary of your own: a mail of at most so many days ago counts as one.",
            type=FieldType.NUMBER,
            default="7",
        ),
        Field(
            name="proves_absence",
            label="What is not found was not sent",
            help="Leave this off unless you know that every mail of this tool is filed in this folder before the tool answers, and that "
            "nobody deletes there. Many senders never file a copy; then every mail would be called unsent, and sent twice.",
            type=FieldType.FLAG,
        ),
        Field(
            name="timeout_s",
            label="Time limit",
            help="Seconds for one question, everything in it, at most 10.",
            type=FieldType.NUMBER,
            default="10",
        ),
    ),
)


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> ImapResolver:
    """See base.Build."""
    texts = read_texts(KIND, settings, secrets)
    security = texts.text("security")
    port = int(texts.number("port", at_least=1, at_most=65_535)) if texts.text("port") else _PORTS[security]
    try:
        address = parse_host(texts.text("host"), port, allowed.hosts)
    except AddressRefused as exc:
        raise InvalidDefinition("host", str(exc)) from None
    if security == PLAIN and not address.is_allowed:
        raise InvalidDefinition("security", "'none' sends the password readable; only for hosts that this deployment allows")
    for text in ("user", "folder"):
        if not texts.text(text).isprintable():
            raise InvalidDefinition(text, "holds a control character")
    if re.search(r"[\x00-\x1f\x7f]", texts.text("password")):
        raise InvalidDefinition("password", "holds a control character")
    return ImapResolver(
        name=name,
        proves_absence=texts.flag("proves_absence"),
        server=Server(
            address=address,
            security=security,
            authority=_authority(texts),
            user=texts.text("user"),
            password=texts.text("password"),
        ),
        folder=texts.text("folder"),
        message_id=_message_id_template(texts),
        header=_header_name(texts),
        canary_message_id=_canary(texts),
        canary_days=int(texts.number("canary_days", at_least=1, at_most=3_650)),
        timeout_s=float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10)),
    )


def _authority(texts: Texts) -> str:
    pem = texts.text("certificate_authority")
    if pem:
        try:
            ssl.create_default_context(cadata=pem)
        except (ssl.SSLError, ValueError):
            raise InvalidDefinition("certificate_authority", "is no certificate in PEM") from None
    return pem


def _message_id_template(texts: Texts) -> str:
    """With the domain in it; empty where Message-IDs are not looked at."""
    if texts.text("search_by") == BY_HEADER:
        return ""
    template, domain = texts.text("message_id"), texts.text("message_id_domain")
    if "{domain}" in template and not _DOMAIN.fullmatch(domain):
        raise InvalidDefinition("message_id_domain", "is the domain that the tool writes into its Message-IDs")
    template = template.replace("{domain}", domain)
    if template.count("{key}") != 1 or not _KEY.fullmatch(template):
        raise InvalidDefinition("message_id", "is printable ASCII without spaces, with {key} in it once")
    return template


def _header_name(texts: Texts) -> str:
    if texts.text("search_by") == BY_MESSAGE_ID:
        return ""
    if not _HEADER_NAME.fullmatch(texts.text("header")):
        raise InvalidDefinition("header", "is a header's name: letters, digits and -")
    return texts.text("header")


def _canary(texts: Texts) -> str:
    canary = texts.text("canary_message_id")
    if canary and not _KEY.fullmatch(canary):
        raise InvalidDefinition("canary_message_id", "is printable ASCII without spaces")
    return canary


@dataclass(frozen=True, slots=True, kw_only=True)
class ImapResolver:
    """One folder of one account."""

    name: str
    kind: str = "imap"
    proves_absence: bool
    copies_are_normal: bool = True  # a provider files one too; a mail under two labels
    server: Server
    folder: str
    message_id: str
    header: str
    canary_message_id: str
    canary_days: int
    timeout_s: float

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        """See base.Resolver."""
        began = monotonic()
        asking = _Asking(account=f"{self.server.user} at {self.server.address.host}")
        answer: dict[str, Any] = {}
        try:
            if not _KEY.fullmatch(claim.action.key):
                raise Unusable("this action's key cannot stand in a header of a mail")
            with opened(self.server, began + self.timeout_s) as mailbox:
                answer = self._look(mailbox, claim, now, asking)
            reply, problem = Reply.ANSWERED, ""
        except (Unusable, AddressRefused) as exc:
            reply, problem = Reply.UNUSABLE, str(exc)
        except (OSError, imaplib.IMAP4.error, ImapToolsError, Malformed, NoResponse, ValueError) as exc:
            # ValueError: what imaplib and imap-tools could not decode.
            reply, problem = Reply.NO_ANSWER, no_answer(exc, self.timeout_s)
            asking.status = status_of(exc) or asking.status
        return Finding(
            reply=reply,
            problem=problem,
            asked=tuple(asking.asked),
            account=asking.account,
            asked_at=now,
            took_ms=int((monotonic() - began) * 1000),
            status=asking.status,
            answer_digest=asking.digest.hexdigest() if asking.asked else "",
            **answer,
        )

    def _look(self, mailbox: MailBox, claim: Claim, now: Instant, asking: _Asking) -> dict[str, Any]:
        folder = self.folder or _sent_folder(mailbox, asking)
        asking.account += f", folder {folder}"
        asking.tell(f"EXAMINE {folder}")
        try:
            mailbox.folder.set(folder, readonly=True)
        except MailboxFolderSelectError as exc:
            raise refusal(exc, f"there is no folder {folder}, or it may not be read") from exc
        place = f"{folder}, UIDVALIDITY {_uid_validity(mailbox)}"
        key = claim.action.key
        uids = _search(mailbox, self._by_key(key), asking)
        messages = _fetch(mailbox, uids[-MAX_MESSAGES:], self.header, asking)
        ours = [message for message in messages if self._is_ours(message, key)]
        matches = tuple(_match(message, claim, MatchedBy.KEY, place) for message in ours)
        canary = self._look_for_canary(mailbox, now, asking)
        notes: tuple[str, ...] = ()
        if not matches:
            matches, notes = self._look_alikes(mailbox, claim, place, asking)
        return {"matches": matches, "canary": canary, "is_complete": len(uids) <= MAX_MESSAGES, "notes": notes}

    def _by_key(self, key: str) -> str:
        wanted = []
        if self.message_id:
            wanted.append(H("Message-ID", self.message_id.replace("{key}", key)))
        if self.header:
            wanted.append(H(self.header, key))
        return str(OR(header=wanted) if len(wanted) > 1 else AND(header=wanted))

    def _is_ours(self, message: _Message, key: str) -> bool:
        """Whole, to the last character; with several headers of one name each of them counts."""
        by_id = self.message_id and self.message_id.replace("{key}", key) in message.values("message-id")
        return bool(by_id or (self.header and key in message.values(self.header)))

    def _has_a_key(self, message: _Message) -> bool:
        """Whether it carries a key at all: then it is the effect of another action."""
        before, _, after = self.message_id.partition("{key}")
        pattern = re.compile(re.escape(before) + "[0-9a-f]{32}" + re.escape(after))
        by_id = self.message_id and any(pattern.fullmatch(value) for value in message.values("message-id"))
        return bool(by_id or (self.header and any(message.values(self.header))))

    def _look_alikes(
        self, mailbox: MailBox, claim: Claim, place: str, asking: _Asking
    ) -> tuple[tuple[Match, ...], tuple[str, ...]]:
        """Mails of that hour to the same people with the same subject, that carry no key."""
        first, last = claim.action.started_at - LOOK_ALIKE_BEFORE, claim.action.started_at + LOOK_ALIKE_AFTER
        # Days are the server's, whatever its zone; the hour is compared below.
        days = AND(date_gte=_day(first) - timedelta(days=1), date_lt=_day(last) + timedelta(days=2))
        uids = _search(mailbox, str(days), asking)
        try:
            messages = _fetch(mailbox, uids[-MAX_MESSAGES:], self.header, asking)
        except TooLong:
            return (), ("the mails of those days are too many to be looked at for look-alikes",)
        alike = tuple(
            _match(message, claim, MatchedBy.FIELDS, place)
            for message in messages
            if message.at is not None
            and first <= message.at <= last
            and not self._has_a_key(message)
            and _is_alike(message, claim)
        )
        is_all = len(uids) <= MAX_MESSAGES
        return alike, () if is_all else (
            f"of the {len(uids)} mails of those days only the newest were looked at for look-alikes",
        )

    def _look_for_canary(self, mailbox: MailBox, now: Instant, asking: _Asking) -> Canary:
        if not self.canary_message_id:
            since = str(AND(date_gte=_day(now) - timedelta(days=self.canary_days)))
            return Canary.FOUND if _search(mailbox, since, asking) else Canary.MISSING
        uids = _search(mailbox, str(AND(header=H("Message-ID", self.canary_message_id))), asking)
        messages = _fetch(mailbox, uids[-MAX_MESSAGES:], "", asking)
        is_there = any(self.canary_message_id in message.values("message-id") for message in messages)
        return Canary.FOUND if is_there else Canary.MISSING


# --- questions -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Asking:
    """What has been asked so far and what came of it."""

    account: str
    asked: list[str] = field(default_factory=list)
    status: str = ""
    digest: Any = field(default_factory=hashlib.sha256)

    def tell(self, question: str) -> None:
        self.asked.append(question[:1_000])


def _search(mailbox: MailBox, criteria: str, asking: _Asking) -> list[str]:
    """UIDs, oldest first."""
    asking.tell(f"UID SEARCH {criteria}")
    # Without a CHARSET, which some servers refuse: what is sent is ASCII.
    status, data = mailbox.client.uid("SEARCH", criteria)
    if status != "OK":
        raise Malformed(f"SEARCH was answered with {status}")
    parts = [part for part in data if part is not None]
    uids = [uid for part in parts if isinstance(part, bytes) for uid in part.decode("ascii", "replace").split()]
    if not all(isinstance(part, bytes) for part in parts) or not all(re.fullmatch("[0-9]{1,10}", uid) for uid in uids):
        raise Malformed("the answer to SEARCH is not a list of numbers")
    asking.status = "OK"
    asking.digest.update(" ".join(uids).encode() + b"\n")
    return sorted(uids, key=int)


def _sent_folder(mailbox: MailBox, asking: _Asking) -> str:
    """The one that the server marks (RFC 6154): Sent, Gesendet, [Gmail]/Sent Mail ..."""
    asking.tell("LIST")
    marked = [one.name for one in mailbox.folder.list() if "\\sent" in {flag.lower() for flag in one.flags}]
    if len(marked) != 1:
        found = "several folders are" if marked else "no folder is"
        raise Unusable(rf"{found} marked as \Sent here; name the folder in the definition")
    return marked[0]


def _uid_validity(mailbox: MailBox) -> str:
    _, data = mailbox.client.response("UIDVALIDITY")
    return data[0].decode("ascii", "replace") if data and isinstance(data[0], bytes) else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """What was fetched of one mail. Header names in lower case."""

    uid: str
    at: Instant | None
    is_draft: bool
    headers: Mapping[str, tuple[str, ...]]

    def values(self, name: str) -> tuple[str, ...]:
        return self.headers.get(name.lower(), ())

    def addresses(self) -> tuple[str, ...]:
        texts = [*self.values("to"), *self.values("cc"), *self.values("bcc")]
        return tuple(dict.fromkeys(address for _, address in getaddresses(texts) if "@" in address))

    def subject(self) -> str:
        raw = next(iter(self.values("subject")), "")
        try:
            return str(make_header(decode_header(raw)))
        except (HeaderParseError, LookupError, ValueError):
            return raw


_UID = re.compile(rb"\bUID (\d+)")
_INTERNALDATE = re.compile(rb'\bINTERNALDATE "([^"]{1,40})"')
_FLAGS = re.compile(rb"\bFLAGS \(([^)]*)\)")


def _fetch(mailbox: MailBox, uids: list[str], header: str, asking: _Asking) -> list[_Message]:
    """Of each mail when it was filed and the headers that we compare; one question for all of them."""
    if not uids:
        return []
    wanted = f"(UID INTERNALDATE FLAGS BODY.PEEK[HEADER.FIELDS ({' '.join(filter(None, [_FETCHED_HEADERS, header.upper()]))})])"
    asking.tell(f"UID FETCH {','.join(uids)} {wanted}")
    status, data = mailbox.client.uid("FETCH", ",".join(uids), wanted)
    if status != "OK":
        raise Malformed(f"FETCH was answered with {status}")
    messages = []
    parts = list(data)
    for place, part in enumerate(parts):
        if not isinstance(part, tuple):
            continue
        after = parts[place + 1] if place + 1 < len(parts) and isinstance(parts[place + 1], bytes) else b""
        facts, raw = part[0] + b" " + after, part[1]
        asking.digest.update(facts + raw)
        uid = _UID.search(facts)
        if uid and uid[1].decode() in uids:
            messages.append(_read_message(uid[1].decode(), facts, raw))
    if {message.uid for message in messages} != set(uids):
        raise Malformed("FETCH did not bring every mail that SEARCH had found")
    return messages


def _read_message(uid: str, facts: bytes, raw: bytes) -> _Message:
    headers: dict[str, tuple[str, ...]] = {}
    for line in re.sub(rb"\r?\n(?=[ \t])", b"", raw).splitlines():
        name, colon, value = line.partition(b":")
        if colon:
            text = value.decode("utf-8", "replace").lstrip(" \t")
            key = name.decode("ascii", "replace").lower()
            headers[key] = (*headers.get(key, ()), text)
    flags = _FLAGS.search(facts)
    return _Message(uid=uid, at=_internal_date(facts), is_draft=bool(flags and b"\\draft" in flags[1].lower()), headers=headers)


def _internal_date(facts: bytes) -> Instant | None:
    found = _INTERNALDATE.search(facts)
    try:
        return from_datetime(parsedate_to_datetime(found[1].decode())) if found else None
    except ValueError:
        return None


def _match(message: _Message, claim: Claim, by: MatchedBy, place: str) -> Match:
    said = f"{next(iter(message.values('message-id')), 'a mail without Message-ID')}, subject {message.subject()!r}"
    return Match(
        object_id=f"UID {message.uid} in {place}",
        by=by,
        effect=Effect.PENDING if message.is_draft else Effect.HAPPENED,
        recipients=_without_copies(message.addresses(), claim),
        at=message.at,
        note=f"{said[:300]}; it is still a draft" if message.is_draft else said[:300],
    )


def _without_copies(addresses: tuple[str, ...], claim: Claim) -> tuple[str, ...]:
    """A claim names the main recipients; those that the call itself copied to are no difference, any other is."""
    value = claim.arguments.value
    named = by_lower_name(value) if isinstance(value, dict) else {}
    copied = {person.casefold() for name in ("cc", "bcc") for person in people_in(named.get(name))}
    copied -= {person.casefold() for person in claim.recipients}
    return tuple(address for address in addresses if address.casefold() not in copied)


def _is_alike(message: _Message, claim: Claim) -> bool:
    value = claim.arguments.value
    subject = first_argument(by_lower_name(value), ("subject", "title"))[1] if isinstance(value, dict) else None
    has_people = {one.casefold() for one in claim.recipients} == {
        one.casefold() for one in _without_copies(message.addresses(), claim)
    }
    has_subject = not isinstance(subject, str) or " ".join(subject.split()) == " ".join(message.subject().split())
    return bool(claim.recipients) and has_people and has_subject


def _day(instant: Instant) -> date:
    return to_datetime(instant).date()
