"""What only the kind `imap` can hold: folders, copies, drafts, look-alikes, TLS, and servers that lie."""

from __future__ import annotations

import contextlib
import imaplib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Effect, Finding, InvalidDefinition, MatchedBy, Reply, Resolver
from actions.resolvers.verdict import Grade, Outcome
from actions.times import SECOND
from local import dovecot
from local.dovecot import Dovecot
from tests.resolvers.certificates import Certificate, make_certificate
from tests.resolvers.mail import DOMAIN, MailServer, serve_mail
from tests.resolvers.makers import BEGAN, HOUR, LONG_AFTER, make_claim, weigh
from tests.resolvers.worlds.imap import CANARY, MAIL, World

KEY = make_claim().action.key
OURS = {"Message-ID": f"<{KEY}@{DOMAIN}>", "To": "lena@example.net"}
LOCAL = Allowed(hosts=frozenset({"127.0.0.1", "localhost"}))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World.open(request) as opened:
        yield opened


def find(world: World, **changes: object) -> Finding:
    return world.resolver().ask(world.claim(**changes), now=LONG_AFTER)


# --- what a mail says ------------------------------------------------------------------------------------------------


def test_everybody_whom_a_mail_went_to_is_compared_but_those_whom_the_call_copied_to(world: World) -> None:
    world.put_mail({**OURS, "Cc": "Per <per@example.net>", "Bcc": "archive@example.net"})
    args = {**MAIL, "cc": ["per@example.net"], "bcc": "archive@example.net"}

    (as_called,), (without,) = find(world, args=args).matches, find(world).matches

    assert as_called.recipients == ("lena@example.net",)
    assert without.recipients == ("lena@example.net", "per@example.net", "archive@example.net")


def test_a_mail_to_somebody_else_besides_is_a_conflict(world: World) -> None:
    claim = world.claim()
    world.put_mail({**OURS, "Bcc": "thief@example.org"})

    verdict = weigh(world.resolver().ask(claim, now=LONG_AFTER), claim, copies_are_normal=True)

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.CONFLICT)


def test_a_mail_that_does_not_tell_its_recipients_settles_nothing_alone(world: World) -> None:
    claim = world.claim()
    world.put_mail({"Message-ID": OURS["Message-ID"]})

    verdict = weigh(world.resolver().ask(claim, now=LONG_AFTER), claim, copies_are_normal=True)

    assert (verdict.outcome, verdict.grade, verdict.may_settle_alone) == (Outcome.UNKNOWN, Grade.STRONG, False)


def test_a_draft_is_not_sent_yet(world: World) -> None:
    world.put_mail(OURS, flags=r"(\Draft)")

    (match,) = find(world).matches

    assert (match.by, match.effect) == (MatchedBy.KEY, Effect.PENDING)


def test_a_folded_header_is_the_same_header(world: World) -> None:
    world.put_mail({**OURS, "To": "Lena\r\n <lena@example.net>"})

    (match,) = find(world).matches

    assert (match.by, match.recipients) == (MatchedBy.KEY, ("lena@example.net",))


def test_nothing_is_marked_as_seen(world: World) -> None:
    world.put_mail(OURS, flags="()")
    world.put_canary()

    assert find(world).matches
    first = next(line for line in world.server.flags(f'"{world.folder}"') if line.startswith(b"1 "))
    assert rb"\Seen" not in first


# --- look-alikes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "after_s", "is_alike"),
    [
        ({}, 60, True),
        ({"Subject": " Your  order A-0971"}, 60, True),
        ({"Subject": "=?utf-8?q?Your_order_A-0971?="}, 60, True),
        ({"Subject": "Your order A-0972"}, 60, False),
        ({"To": "somebody-else@example.net"}, 60, False),
        ({"Bcc": "somebody-else@example.net"}, 60, False),
        ({}, -400, False),
        ({}, 4000, False),
        ({"X-Idempotency-Key": "another call's"}, 60, False),
        ({"Message-ID": f"<{'0f' * 16}@{DOMAIN}>"}, 60, False),
    ],
)
def test_a_look_alike_has_people_and_subject_and_hour_of_the_call_and_no_key(
    world: World, headers: dict[str, str], after_s: int, is_alike: bool
) -> None:
    world.put_mail({"Message-ID": "<by-hand@mail.example>", "To": "lena@example.net", **headers}, at=BEGAN + after_s * SECOND)

    found = find(world).matches

    assert [match.by for match in found] == ([MatchedBy.FIELDS] if is_alike else [])


# --- canary and folder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days_ago", "canary"), [(2, Canary.FOUND), (30, Canary.MISSING)])
def test_without_a_canary_of_ones_own_any_recent_mail_is_one(world: World, days_ago: int, canary: Canary) -> None:
    world.put_mail({"Message-ID": "<x@y>"}, at=LONG_AFTER - days_ago * 24 * HOUR)

    found = world.resolver(canary_message_id="", canary_days="7").ask(world.claim(), now=LONG_AFTER)

    assert (found.canary, found.matches) == (canary, ())


def test_a_folder_that_is_not_there_is_for_somebody_to_mend(world: World) -> None:
    found = world.resolver(folder="Nowhere").ask(world.claim(), now=LONG_AFTER)

    assert (found.reply, "no folder Nowhere" in found.problem) == (Reply.UNUSABLE, True)
    assert found.canary is Canary.NOT_ASKED


def test_no_folder_marked_as_sent_is_said(world: World) -> None:
    found = world.resolver(folder="").ask(world.claim(), now=LONG_AFTER)

    assert found.reply is Reply.UNUSABLE
    assert r"no folder is marked as \Sent" in found.problem


# --- security --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def tls_server(certificate: Certificate) -> Iterator[MailServer]:
    with serve_mail(certificate=certificate.file, key=certificate.key) as server:
        server.create("Sent")
        yield server


def resolver_of(port: int, server: MailServer | Dovecot, **settings: str) -> Resolver:
    form = {"host": "localhost", "port": str(port), "user": server.user, "message_id_domain": DOMAIN, **settings}
    return build_resolver("imap", "sent", form, {"password": server.password}, allowed=LOCAL)


def test_starttls_with_an_authority_of_ones_own(tls_server: MailServer, certificate: Certificate) -> None:
    resolver = resolver_of(tls_server.port, tls_server, security="starttls", folder="Sent", certificate_authority=certificate.pem)

    assert resolver.ask(make_claim(), now=LONG_AFTER).reply is Reply.ANSWERED


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_certificate_that_nobody_vouches_for_ends_it_before_the_password_is_sent(tls_server: MailServer, host: str) -> None:
    resolver = resolver_of(tls_server.port, tls_server, security="starttls", folder="Sent", host=host)

    found = resolver.ask(make_claim(), now=LONG_AFTER)

    assert (found.reply, found.asked) == (Reply.UNUSABLE, ())
    assert "certificate" in found.problem


def test_a_server_without_starttls_is_not_spoken_to_in_the_clear(world: World) -> None:
    found = world.resolver(security="starttls").ask(world.claim(), now=LONG_AFTER)

    assert (found.reply, found.problem) == (Reply.UNUSABLE, "the server offers no STARTTLS")
    assert b"LOGIN" not in world.wire.sent()


# --- servers that lie ------------------------------------------------------------------------------------------------


class Liar:
    """Speaks just enough IMAP: each command is answered by what `answers` has for its name, `{tag}` filled in; else by OK."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        client.sendall(b"* OK ready\r\n")  # a status without a text is refused by imaplib
        for line in client.makefile("rb"):
            tag, _, command = line.strip().partition(b" ")
            name = next((name for name in self._answers if command.upper().startswith(name)), b"")
            usual = b"* CAPABILITY IMAP4rev1 STARTTLS\r\n{tag} OK done\r\n" if command == b"CAPABILITY" else b"{tag} OK done\r\n"
            client.sendall((self._answers[name] if name else usual).replace(b"{tag}", tag).replace(b"{line}", line.strip()))


FOUND_FOUR = b"* SEARCH 4\r\n{tag} OK done\r\n"
LIES = {
    "a literal larger than memory": ({b"UID SEARCH": b"* SEARCH {99999999999}\r\n"}, Reply.NO_ANSWER, "longer than"),
    "a line without an end": ({b"UID SEARCH": b"* SEARCH " + b"1 " * 1_000_000}, Reply.NO_ANSWER, "longer than"),
    "numbers that are none": (
        {b"UID SEARCH": b"* SEARCH 1:* ALL\r\n{tag} OK done\r\n"},
        Reply.NO_ANSWER,
        "not a list of numbers",
    ),
    "a literal for numbers": (
        {b"UID SEARCH": b"* SEARCH {3}\r\nabc\r\n{tag} OK done\r\n"},
        Reply.NO_ANSWER,
        "not a list of numbers",
    ),
    "numbers beyond all bounds": (
        {b"UID SEARCH": b"* SEARCH " + b"9" * 5_000 + b"\r\n{tag} OK done\r\n"},
        Reply.NO_ANSWER,
        "not a list of numbers",
    ),
    "bytes that are no text": ({b"EXAMINE": b"* \xff\xfe\r\n{tag} OK \xff\r\n"}, Reply.NO_ANSWER, "does not speak IMAP"),
    "mails that it then does not have": ({b"UID SEARCH": FOUND_FOUR}, Reply.NO_ANSWER, "did not bring every mail"),
    "another mail than the one asked for": (
        {b"UID SEARCH": FOUND_FOUR, b"UID FETCH": b"* 1 FETCH (UID 5 BODY[HEADER] {5}\r\na:b\r\n)\r\n{tag} OK done\r\n"},
        Reply.NO_ANSWER,
        "did not bring every mail",
    ),
    "no answer to the question": ({b"UID SEARCH": b"{tag} BAD what?\r\n"}, Reply.NO_ANSWER, "does not speak IMAP"),
    "a refused question": ({b"UID SEARCH": b"{tag} NO {line}\r\n"}, Reply.NO_ANSWER, "answered with NO"),
    "a login that will pass": ({b"LOGIN": b"{tag} NO [UNAVAILABLE] later\r\n"}, Reply.NO_ANSWER, "[UNAVAILABLE]"),
    "a login that will not": (
        {b"LOGIN": b"{tag} NO [AUTHENTICATIONFAILED] {line}\r\n"},
        Reply.UNUSABLE,
        "refuses this user and password (NO [AUTHENTICATIONFAILED])",
    ),
    "the password repeated": ({b"LOGIN": b"{tag} BAD {line}\r\n"}, Reply.NO_ANSWER, "does not speak IMAP"),
    "a farewell": ({b"EXAMINE": b"* BYE {line}\r\n"}, Reply.NO_ANSWER, "does not speak IMAP"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_no_answer_and_its_words_are_not_repeated(lie: str) -> None:
    answers, reply, problem = LIES[lie]
    server = Liar(answers)
    form = {"host": "127.0.0.1", "port": str(server.port), "security": "none", "user": "u", "folder": "Sent", "timeout_s": "10"}

    found = build_resolver("imap", "sent", {**form, "message_id_domain": DOMAIN}, {"password": "pass-phrase"}, allowed=LOCAL).ask(
        make_claim(), now=LONG_AFTER
    )
    server.close()

    assert (found.reply, found.matches, found.canary, found.is_complete) == (reply, (), Canary.NOT_ASKED, False)
    assert problem in found.problem
    assert "pass-phrase" not in repr(found)


def test_what_was_slipped_in_before_tls_is_not_listened_to() -> None:
    """A man in the middle may answer STARTTLS and append an answer to the question that comes after it."""
    server = Liar({b"STARTTLS": b"{tag} OK go\r\n* OK slipped in\r\n"})

    found = build_resolver(
        "imap",
        "sent",
        {"host": "127.0.0.1", "port": str(server.port), "security": "starttls", "user": "u", "message_id_domain": DOMAIN},
        {"password": "p"},
        allowed=LOCAL,
    ).ask(make_claim(), now=LONG_AFTER)
    server.close()

    assert (found.reply, found.asked) == (Reply.NO_ANSWER, ())
    assert "between STARTTLS and TLS" in found.problem


# --- definitions -----------------------------------------------------------------------------------------------------

FORM = {"host": "imap.example.net", "user": "agents", "message_id_domain": DOMAIN}

WRONG = [
    ("host", {"host": "imap.example.net/x"}),
    ("host", {"host": "user@imap.example.net"}),
    ("host", {"host": "10.0.0.7"}),
    ("host", {"host": "::1"}),
    ("port", {"port": "0"}),
    ("port", {"port": "imap"}),
    ("security", {"security": "none"}),
    ("security", {"security": "maybe"}),
    ("certificate_authority", {"certificate_authority": "not a certificate"}),
    ("user", {"user": "a\r\nb"}),
    ("folder", {"folder": "Sent\r\nX LOGOUT"}),
    ("message_id", {"message_id": "<fixed@{domain}>"}),
    ("message_id", {"message_id": "<{key}{key}@{domain}>"}),
    ("message_id", {"message_id": "<{key}@{domain}> x"}),
    ("message_id_domain", {"message_id_domain": ""}),
    ("message_id_domain", {"message_id_domain": 'a"b'}),
    ("header", {"header": "X Key"}),
    ("header", {"header": "X-Key: y\r\nZ"}),
    ("canary_message_id", {"canary_message_id": "<a b>"}),
    ("canary_days", {"canary_days": "0"}),
    ("timeout_s", {"timeout_s": "60"}),
]


@pytest.mark.parametrize(("field", "settings"), WRONG)
def test_a_setting_that_cannot_be_used_is_named(field: str, settings: dict[str, str]) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        build_resolver("imap", "sent", {**FORM, **settings}, {"password": "pass-phrase"})

    assert refused.value.field == field
    assert "pass-phrase" not in str(refused.value)


def test_a_name_that_leads_into_the_private_network_is_refused_when_it_is_asked(world: World) -> None:
    form = {**FORM, "host": "localhost", "port": str(world.server.port)}

    found = build_resolver("imap", "sent", form, {"password": "p"}).ask(world.claim(), now=LONG_AFTER)

    assert (found.reply, found.asked) == (Reply.UNUSABLE, ())
    assert "only hosts on the allow-list" in found.problem


# --- Dovecot ---------------------------------------------------------------------------------------------------------


@pytest.mark.dovecot
def test_dovecot_finds_its_sent_folder_by_mark_and_gets_nothing_but_our_questions(
    tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> None:
    """TLS from the start, a folder with another name, a hostile key and hostile arguments; its own log tells what it was sent."""
    binary = dovecot.find()
    assert binary
    hostile = 'k"\\){3}(*%'
    with dovecot.start(binary, certificate=certificate.file, key=certificate.key) as server:
        resolver = resolver_of(
            server.tls_port, server, canary_message_id=CANARY, certificate_authority=certificate.pem, search_by="either"
        )
        _file(server, certificate, f"X-Idempotency-Key: \r\n {KEY}\r\nTo: lena@example.net")
        _file(server, certificate, f"Message-ID: <{hostile}@{DOMAIN}>\r\nTo: per@example.net")
        _file(server, certificate, f"Message-ID: {CANARY}\r\nTo: x@example.net")
        before = set(server.said.iterdir())
        claim = make_claim(args=MAIL)
        found = resolver.ask(claim, now=LONG_AFTER)
        attack = replace(
            claim,
            action=replace(claim.action, key=hostile),
            recipients=('a"\r\nX1 DELETE Gesendet\r\n',),
        )
        found_hostile = resolver.ask(attack, now=LONG_AFTER)
        said = [_commands(file) for file in sorted(set(server.said.iterdir()) - before) if file.suffix == ".in"]
        refused = resolver_of(server.tls_port, server).ask(claim, now=LONG_AFTER)

    assert (found.reply, found.canary, len(found.matches)) == (Reply.ANSWERED, Canary.FOUND, 1)
    assert found.account == "agents at localhost, folder Gesendet"
    assert found_hostile.matches[0].recipients == ("per@example.net",)
    ours, hostile_ours = said
    assert [command.partition(" (")[0] for command in ours] == [
        *('LIST "" "*"', 'EXAMINE "Gesendet"', "UID SEARCH", "UID FETCH 1", "UID SEARCH", "UID FETCH 3", "LOGOUT")
    ]
    assert (
        hostile_ours[2]
        == rf'UID SEARCH (OR HEADER "Message-ID" "<k\"\\){{3}}(*%@{DOMAIN}>" HEADER "X-Idempotency-Key" "k\"\\){{3}}(*%")'
    )
    assert len(hostile_ours) == len(ours)
    assert (refused.reply, "certificate" in refused.problem) == (Reply.UNUSABLE, True)


def _file(server: Dovecot, certificate: Certificate, headers: str) -> None:
    context = ssl.create_default_context(cadata=certificate.pem)
    with imaplib.IMAP4_SSL("localhost", server.tls_port, ssl_context=context, timeout=60) as client:
        client.login(server.user, server.password)
        moment = imaplib.Time2Internaldate((BEGAN + SECOND) // SECOND)
        assert client.append("Gesendet", "", moment, f"{headers}\r\n\r\nHello.".encode())[0] == "OK"


def _commands(file: Path) -> list[str]:
    """Without time and tag."""
    return [line.split(" ", 2)[2] for line in file.read_text().splitlines() if line.count(" ") >= 2]
