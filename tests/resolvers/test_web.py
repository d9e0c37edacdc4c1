"""HTTP for resolvers: each address that is refused, the pinned connection, and that no answer is too slow or too large to be survived."""

from __future__ import annotations

import gzip
import json
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actions.resolvers.web import (
    AddressRefused,
    Lookup,
    NoResponse,
    Response,
    WebLimits,
    fetch,
    parse_address,
    post_json,
    read_retry_after,
    resolve,
)
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

QUICK = WebLimits(seconds=0.2)
PATIENT = WebLimits(seconds=10)


def ok(asked: Asked, talk: Conversation) -> None:
    talk.answer(200, b'{"ok": true}')


@pytest.fixture
def server() -> Iterator[WebServer]:
    with serve(ok) as running:
        yield running


def get(server: WebServer, path: str = "/", limits: WebLimits = PATIENT, **more: object) -> Response:
    return fetch(f"http://{server.host}{path}", allowed_hosts={server.host}, limits=limits, **more)  # type: ignore[arg-type]


# --- the form of an address ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/x", "ftp:// is not supported"),
        ("file:///etc/passwd", "file:// is not supported"),
        ("javascript:alert(1)", "is no URL"),
        ("//example.com/x", "is no URL"),
        ("http://example.com/x", "http:// is only for hosts on the allow-list"),
        ("https://user:hunter2@example.com/", "holds a user name or password"),
        ("https://example.com@127.0.0.1/", "holds a user name or password"),
        ("https://example.com:0/", "the port is not between 1 and 65535"),
        ("https://example.com:65536/", "the port is not between 1 and 65535"),
        ("https://example.com:/", "the port is not between 1 and 65535"),
        ("https://example.com:443:80/", "the port is not between 1 and 65535"),
        ("https://example.com./", "the host ends with a dot"),
        ("https://127.0.0.1./", "the host ends with a dot"),
        ("https://exämple.com/", "characters beyond ASCII"),
        ("https://①②⑦.0.0.1/", "characters beyond ASCII"),
        ("https://２１３0706433/", "characters beyond ASCII"),
        ("https:///x", "is no host name"),
        ("https://exam%70le.com/", "is no host name"),
        ("https://a..b/", "is no host name"),
        ("https://-a.example/", "is no host name"),
        ("https://" + "a" * 64 + ".example/", "is no host name"),
        ("https://2130706433/", "the host is a number"),
        ("https://0x7f000001/", "the host is a number"),
        ("https://0x7f.1/", "the host is a number"),
        ("https://0177.0.0.1/", "the host is a number"),
        ("https://127.1/", "the host is a number"),
        ("https://127.0.0.0x1/", "the host is a number"),
        ("https://[::1/", "the port is not between 1 and 65535"),
        ("https://[fe80::1%25eth0]/", "with a zone"),
        ("https://[fe80::1%eth0]/", "with a zone"),
        ("https://example.com/#x", "holds a fragment"),
        ("https://example.com\\@127.0.0.1/", "a space, a control character or a backslash"),
        ("https://example.com/a b", "a space, a control character or a backslash"),
        ("https://example.com/\r\nX-A: b", "a space, a control character or a backslash"),
        ("https://example.com/\x00", "a space, a control character or a backslash"),
        ('https://example.com/"', "must be percent-encoded"),
        ("https://example.com/" + "x" * 8_000, "longer than 8,000"),
    ],
)
def test_an_address_of_a_wrong_form_is_refused(url: str, says: str) -> None:
    with pytest.raises(AddressRefused, match=says) as refused:
        parse_address(url)

    assert "hunter2" not in str(refused.value)


INTERNAL = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "0.0.0.0": "unspecified",  # noqa: S104
    "0.1.2.3": "unspecified",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "169.254.169.254": "link-local",
    "100.64.0.1": "carrier-grade NAT",
    "100.127.255.255": "carrier-grade NAT",
    "192.0.2.1": "documentation",
    "198.51.100.1": "documentation",
    "203.0.113.1": "documentation",
    "198.18.0.1": "benchmarking",
    "192.0.0.1": "reserved",
    "192.88.99.1": "6to4",
    "224.0.0.1": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::ffff:127.0.0.1": "IPv4-mapped",
    "::ffff:93.184.216.34": "IPv4-mapped",
    "::127.0.0.1": "not public",
    "64:ff9b::7f00:1": "NAT64",
    "64:ff9b:1::7f00:1": "NAT64",
    "2002:7f00:1::": "6to4",
    "2001:0:7f00:1::": "Teredo",
    "2001:db8::1": "documentation",
    "3fff::1": "documentation",
    "fc00::1": "private",
    "fd12:3456::1": "private",
    "fe80::1": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
    "4000::1": "not public",
}


@pytest.mark.parametrize(("address", "what"), INTERNAL.items(), ids=INTERNAL)
def test_an_address_that_is_not_public_is_refused_as_text_and_as_what_a_name_resolves_to(address: str, what: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressRefused, match=f"is (an? )?{what}.*only hosts on the allow-list may be"):
        parse_address(f"https://{host}/")

    # One bad address among good ones is enough.
    named = parse_address("https://api.example.com/")
    with pytest.raises(AddressRefused, match=f"api.example.com is .*{what}"):
        resolve(named, seconds=1, lookup=lambda host, port: ["93.184.216.34", address])


def test_public_addresses_are_taken() -> None:
    public = ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "100.63.255.255", "172.32.0.1"]

    assert resolve(parse_address("https://api.example.com/"), seconds=1, lookup=lambda host, port: public) == public


@pytest.mark.parametrize(
    ("url", "allowed", "is_allowed"),
    [
        ("https://127.0.0.1/", "127.0.0.1", True),
        ("http://127.0.0.1:8080/", "127.0.0.1", True),
        ("http://127.0.0.1:8080/", "127.0.0.1:8080", True),
        ("http://127.0.0.1:8081/", "127.0.0.1:8080", False),
        ("https://ledger.internal/", "LEDGER.internal", True),
        ("https://ledger.internal/", "ledger.internal:443", True),
        ("https://x.ledger.internal/", "ledger.internal", False),
        ("https://[::1]/", "[::1]", True),
        ("https://[::1]:8443/", "[::1]:8443", True),
        ("https://[0:0::1]/", "::1", True),
    ],
)
def test_the_allow_list_names_hosts_or_hosts_with_a_port(url: str, allowed: str, is_allowed: bool) -> None:
    taken = pytest.raises(AddressRefused, match="allow-list") if url.startswith("http:") and not is_allowed else nullcontext()
    with taken:
        assert parse_address(url, {allowed}).is_allowed is is_allowed


def test_a_refused_address_is_never_connected_to(server: WebServer) -> None:
    rebinds: Lookup = lambda host, port: ["127.0.0.1"]  # noqa: E731

    with pytest.raises(AddressRefused, match="api.example.com is 127.0.0.1, which is loopback"):
        fetch(f"https://api.example.com:{server.port}/", limits=PATIENT, lookup=rebinds)
    with pytest.raises(AddressRefused, match="127.0.0.1 is loopback"):
        fetch(f"https://{server.host}/", limits=PATIENT)

    assert server.connections == 0


# --- the pinned connection -------------------------------------------------------------------------------------------


def test_a_name_that_is_resolved_to_something_else_later_changes_nothing(server: WebServer) -> None:
    host = f"api.example.test:{server.port}"
    with serve(ok, address="127.0.0.2", port=server.port) as elsewhere:
        looked_up = []

        def rebinding(name: str, port: int) -> list[str]:
            looked_up.append(name)
            return ["127.0.0.1"] if len(looked_up) == 1 else ["127.0.0.2"]

        fetch(f"http://{host}/a?b=c", allowed_hosts={host}, limits=PATIENT, lookup=rebinding)

        assert looked_up == ["api.example.test"]
        assert [(asked.target, asked.headers["host"]) for asked in server.asked] == [("/a?b=c", host)]
        assert elsewhere.connections == 0


def test_the_next_address_is_tried_where_one_takes_no_connection(server: WebServer) -> None:
    host = f"api.example.test:{server.port}"
    lookup: Lookup = lambda name, port: ["127.0.0.3", "127.0.0.1"]  # noqa: E731

    assert fetch(f"http://{host}/", allowed_hosts={host}, limits=PATIENT, lookup=lookup).status == 200


def _certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a self-signed certificate of that name, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(pem + private)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.pem")
    return serving, ssl.create_default_context(cadata=pem.decode())


def test_a_pinned_connection_still_asks_for_the_name_and_checks_its_certificate(tmp_path: Path) -> None:
    serving, trusting = _certificate(tmp_path, "api.example.test")
    names: list[str | None] = []
    serving.sni_callback = lambda connection, name, context: names.append(name)  # type: ignore[assignment]
    lookup: Lookup = lambda name, port: ["127.0.0.1"]  # noqa: E731
    with serve(ok, tls=serving) as server:
        right, wrong = f"api.example.test:{server.port}", f"other.example.test:{server.port}"

        answer = fetch(f"https://{right}/", allowed_hosts={right}, tls=trusting, lookup=lookup)
        with pytest.raises(NoResponse, match="no secure connection to other.example.test"):
            fetch(f"https://{wrong}/", allowed_hosts={wrong}, tls=trusting, lookup=lookup)
        with pytest.raises(NoResponse, match="its certificate or its TLS cannot be trusted"):
            fetch(f"https://{right}/", allowed_hosts={right}, lookup=lookup)

    assert answer.status == 200
    assert names[:2] == ["api.example.test", "other.example.test"]
    assert [asked.headers["host"] for asked in server.asked] == [right]


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_parameters_are_encoded_and_headers_are_the_definitions_alone(server: WebServer) -> None:
    get(server, "/v1/payments?limit=1", params=[("q", "a&b=c d/../%00\r\n\x00ü")], headers={"X-Key": "k"})

    (asked,) = server.asked
    assert asked.target == "/v1/payments?limit=1&q=a%26b%3Dc+d%2F..%2F%2500%0D%0A%00%C3%BC"
    assert sorted(asked.headers) == ["accept", "accept-encoding", "connection", "host", "user-agent", "x-key"]
    assert (asked.method, asked.headers["x-key"]) == ("GET", "k")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"params": [("q", "\ud800")]}, "half of a character"),
        ({"params": [("q", "x" * 8_000)]}, "longer than 8,000"),
        ({"headers": {"X-Key": "a\r\nX-Other: b"}}, "the value of the header X-Key"),
        ({"headers": {"X-Key": "ü"}}, "the value of the header X-Key"),
        ({"headers": {"X-Key:": "a"}}, "a header's name"),
        ({"headers": {"host": "other"}}, "is not a definition's to set"),
        ({"headers": {"Content-Length": "5"}}, "is not a definition's to set"),
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_not_sent(server: WebServer, more: dict[str, object], says: str) -> None:
    with pytest.raises(AddressRefused, match=says):
        get(server, **more)

    assert server.connections == 0


# --- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(server: WebServer, status: int) -> None:
    with serve(ok, address="127.0.0.2") as elsewhere:
        server.answer = lambda asked, talk: talk.answer(status, Location=f"http://127.0.0.2:{elsewhere.port}/")

        with pytest.raises(AddressRefused, match=rf"127.0.0.1 redirects \({status}\), which is not followed"):
            get(server)

        assert elsewhere.connections == 0


def _drip(asked: Asked, talk: Conversation) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not talk.over.wait(0.02):
        talk.send(b"x")


def _drip_head(asked: Asked, talk: Conversation) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n")
    while not talk.over.wait(0.02):
        talk.send(b"X: y\r\n")


def _endless(asked: Asked, talk: Conversation) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while not talk.over.is_set():
        talk.send(b"x" * 65_536)


BOMB = gzip.compress(b"\0" * 50_000_000)


TOO_MUCH = {
    "says nothing": (lambda asked, talk: talk.hang(), "took longer than 0.2 s"),
    "drips its body": (_drip, "took longer than 0.2 s"),
    "drips its head": (_drip_head, "took longer than 0.2 s"),
    "never ends": (_endless, "larger than 1,048,576 bytes"),
    "unpacks to a bomb": (lambda asked, talk: talk.answer(200, BOMB, Content_Encoding="gzip"), "larger than 1,048,576 bytes"),
    "is one byte too large": (lambda asked, talk: talk.answer(200, b"x" * 1_048_577), "larger than 1,048,576 bytes"),
    "is one byte too large unpacked": (
        lambda asked, talk: talk.answer(200, gzip.compress(b"x" * 1_048_577), Content_Encoding="gzip"),
        "larger than 1,048,576 bytes",
    ),
    "is cut short": (lambda asked, talk: talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), "cut its answer short"),
    "is cut short within gzip": (
        lambda asked, talk: talk.answer(200, gzip.compress(b'{"data": []}' * 99)[:-9], Content_Encoding="gzip"),
        "ends in the middle",
    ),
    "has something behind its gzip": (
        lambda asked, talk: talk.answer(200, gzip.compress(b"{}") * 2, Content_Encoding="gzip"),
        "something stands behind its end",
    ),
    "is not the gzip it says": (lambda asked, talk: talk.answer(200, b"{}", Content_Encoding="gzip"), "not the gzip"),
    "is in brotli": (lambda asked, talk: talk.answer(200, b"{}", Content_Encoding="br"), "an encoding that was not asked for"),
    "is no HTTP": (lambda asked, talk: talk.send(b"220 mail.example.com ESMTP\r\n"), "did not answer with HTTP"),
    "has an endless head": (
        lambda asked, talk: talk.send(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000),
        "did not answer with HTTP",
    ),
    "is nothing": (lambda asked, talk: None, "did not answer with HTTP, or cut its answer short"),
}


@pytest.mark.parametrize("how", TOO_MUCH)
def test_an_answer_that_is_no_answer_is_one(server: WebServer, how: str) -> None:
    server.answer, says = TOO_MUCH[how]
    seconds = 0.2 if "longer" in says else 10.0

    with pytest.raises(NoResponse, match=says):
        get(server, limits=WebLimits(seconds=seconds))


def test_a_bomb_is_not_even_unpacked(server: WebServer) -> None:
    server.answer = lambda asked, talk: talk.answer(200, BOMB, Content_Encoding="gzip")
    tracemalloc.start()
    try:
        with pytest.raises(NoResponse, match="larger than"):
            get(server)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 10_000_000


def test_an_answer_of_exactly_the_limit_is_whole(server: WebServer) -> None:
    server.answer = lambda asked, talk: talk.answer(200, gzip.compress(b"x" * 1_048_576), Content_Encoding="gzip")

    assert len(get(server).body) == 1_048_576


def test_nobody_listening_and_a_name_without_an_address_are_no_answer() -> None:
    with pytest.raises(NoResponse, match="127.0.0.1 takes no connection on port 9"):
        fetch("http://127.0.0.1:9/", allowed_hosts={"127.0.0.1"}, limits=PATIENT)
    with pytest.raises(NoResponse, match=r"nowhere\.example has no address"):
        fetch("https://nowhere.example/", limits=PATIENT, lookup=lambda host, port: [])


def test_a_look_up_that_hangs_does_not_outlast_the_limit() -> None:
    over = Event()

    def hang(host: str, port: int) -> list[str]:
        over.wait(60)
        return []

    with pytest.raises(NoResponse, match=r"looking up slow\.example took longer"):
        fetch("https://slow.example/", limits=WebLimits(seconds=0.05), lookup=hang)
    over.set()


def test_a_tls_handshake_that_hangs_does_not_outlast_the_limit(server: WebServer) -> None:
    with pytest.raises(NoResponse, match="took longer"):
        fetch(f"https://{server.host}/", allowed_hosts={server.host}, limits=QUICK)


NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("999999999", 86_400),
        ("Sun, 29 Nov 2026 12:02:00 GMT", 120),
        ("Sun, 29 Nov 2026 12:02:00", 120),
        ("Sunday, 29-Nov-26 12:02:00 GMT", 120),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 86_400),
        ("-5", 0),
        ("soon", 0),
        ("", 0),
        ("1e9", 0),
        ("٣", 0),
    ],
)
def test_a_server_says_when_to_ask_again_in_seconds_or_as_a_date(text: str, seconds: int) -> None:
    assert read_retry_after(text, now=NOW) == seconds


# --- a message -------------------------------------------------------------------------------------------------------


def test_a_message_is_sent_whole_and_once_to_a_checked_address_only(server: WebServer) -> None:
    said = {"text": "Grüße \U0001f600 " + "x" * 100_000}

    answer = post_json(f"http://{server.host}/hook?a=b", said, allowed_hosts={server.host}, limits=PATIENT)

    assert answer.status == 200
    (asked,) = server.asked
    assert (asked.method, asked.target) == ("POST", "/hook?a=b")
    assert json.loads(asked.body) == said
    assert asked.headers["content-type"] == "application/json"
    with pytest.raises(AddressRefused):
        post_json(f"https://{server.host}/", said)
    server.answer = lambda asked, talk: talk.answer(307, Location=f"http://{server.host}/elsewhere")
    with pytest.raises(AddressRefused, match="redirects"):
        post_json(f"http://{server.host}/", said, allowed_hosts={server.host})
    assert len(server.asked) == 2


def test_a_message_that_nobody_answers_ends_within_its_limit(server: WebServer) -> None:
    server.answer = lambda asked, talk: talk.hang()

    with pytest.raises(NoResponse, match="took longer"):
        post_json(f"http://{server.host}/", {}, allowed_hosts={server.host}, limits=QUICK)
