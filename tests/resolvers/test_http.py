"""The kind `http` beyond the contract: what its form refuses, what it sends, and each answer that is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Claim, Effect, Finding, InvalidDefinition, MatchedBy, Reply
from actions.times import SECOND
from tests.resolvers.makers import BEGAN, LONG_AFTER, make_claim, weigh
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

SECRET = "sk-test-hunter2-0123456789"
OURS = {"key": make_claim().action.key, "payee": "ACME GmbH", "amount": 120.0, "currency": "eur", "reference": "R-7"}
SAYS = {name: f"object.{name}" for name in ("key", "amount", "currency", "reference")} | {"recipient": "object.payee"}


@pytest.fixture
def server() -> Iterator[WebServer]:
    with serve(lambda asked, talk: talk.answer(200, b"[]")) as running:
        yield running


def ask(server: WebServer, body: object = None, claim: Claim | None = None, *, status: int = 200, **form: str) -> Finding:
    """Ask with that answer standing ready; text and bytes go out as they are, all else as JSON."""
    if body is not None:
        raw = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
        server.answer = lambda asked, talk: talk.answer(status, raw)
    settings = {"url": f"http://{server.host}/v1/payments", "timeout_s": "10", **SAYS, **form}
    secrets = {"secret": SECRET} if form.get("auth", "none") != "none" else {}
    resolver = build_resolver("http", "payments", settings, secrets, allowed=Allowed(hosts=frozenset({server.host})))
    return resolver.ask(claim or make_claim(), now=LONG_AFTER)


# --- the form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("url", "http://example.com/", "http:// is only for hosts on the allow-list"),
        ("url", "https://10.0.0.1/", "10.0.0.1 is private"),
        ("url", "https://example.com/{key}", "must be percent-encoded"),
        ("params", "key", "'key' is not name=value"),
        ("params", "a b={key}", "is not name=value"),
        ("params", "key={nope}", "there is no {nope}; there are {key}, {recipient}, {amount}"),
        ("params", "key={key.secret}", "there is no {key.secret}"),
        ("params", "key={key", "a brace in 'key={key' has no partner"),
        ("params", "key={{key}}", "a brace in 'key={{key}}' has no partner"),
        ("params", "\n".join("a=b" for _ in range(21)), "are more than 20"),
        ("auth", "basic", "is one of none, bearer, header"),
        ("auth", "bearer", "is needed"),
        ("auth_header", "Host", "no name of a header"),
        ("auth_header", "X-Key: a", "no name of a header"),
        ("objects", "body.data[", "line 1, column "),
        ("objects", "object.data", "line 1, column 1: there is no 'object'; there are action, body, status"),
        ("key", "body.key", "line 1, column 1: there is no 'body'; there are action, object"),
        ("key", "object.exists(a, a.exists(b, b.exists(c, c)))", "at most 2 inside of each other"),
        ("key", "", "is needed"),
        ("amount", "object.amount +", "line 1, column 16"),
        ("complete", "nope", "there is no 'nope'"),
        ("absent_statuses", "404, 200", "'200' is neither 404 nor 410"),
        ("absent_statuses", "4xx", "'4xx' is neither 404 nor 410"),
        ("proves_absence", "true", "is 'yes' or empty"),
        ("timeout_s", "11", "is not between 0.05 and 10"),
        ("timeout_s", "soon", "'soon' is no number"),
        ("timeout_s", "nan", "is not between 0.05 and 10"),
        ("account", "a\x00b", "holds a NUL"),
        ("account", "x" * 10_001, "is longer than 10,000 characters"),
    ],
)
def test_a_form_that_cannot_be_used_is_refused_by_its_field(field: str, text: str, says: str) -> None:
    form = {"url": "https://api.example.com/v1", "key": "object.key", "auth": "none", field: text}
    secrets = {}
    if field == "auth_header":
        form["auth"], secrets = "header", {"secret": SECRET}

    with pytest.raises(InvalidDefinition) as refused:
        build_resolver("http", "payments", form, secrets)

    assert (refused.value.field, says in refused.value.problem) == ("secret" if text == "bearer" else field, True)


def test_absence_as_proof_needs_a_canary() -> None:
    with pytest.raises(InvalidDefinition, match="canary_key: is needed where absence is proof"):
        build_resolver("http", "p", {"url": "https://api.example.com/", "key": "object.key", "proves_absence": "yes"})


@pytest.mark.parametrize("secret", [f"{SECRET}\r\nX: y", f" {SECRET}", f"{SECRET}ü"])
def test_a_secret_that_no_header_can_hold_is_refused_and_not_repeated(secret: str) -> None:
    form = {"url": "https://api.example.com/", "key": "object.key", "auth": "bearer"}
    with pytest.raises(InvalidDefinition) as refused:
        build_resolver("http", "p", form, {"secret": secret})

    assert refused.value.field == "secret"
    assert "hunter2" not in str(refused.value)


def test_neither_a_resolver_nor_its_definition_shows_its_secret_in_a_log() -> None:
    form = {"url": "https://api.example.com/", "key": "object.key", "auth": "bearer"}

    assert "hunter2" not in repr(build_resolver("http", "p", form, {"secret": SECRET}))


# --- what is sent ----------------------------------------------------------------------------------------------------


def test_every_placeholder_is_filled_and_encoded(server: WebServer) -> None:
    names = ("key", "recipient", "amount", "currency", "reference", "agent", "seq", "tool")
    params = "\n".join(f"{name}={{{name}}}" for name in names) + "\nq=key:{key}\nlimit=100"
    claim = make_claim(args={"amount": 120.5, "currency": "EUR", "payee": "A & B=C", "reference": "R/7?#"}, tool="pay/../x")

    finding = ask(server, claim=claim, params=params)

    (asked,) = server.asked
    assert dict(parse_qsl(urlsplit(asked.target).query)) == {
        "key": claim.action.key,
        "recipient": "A & B=C",
        "amount": "120.5",
        "currency": "EUR",
        "reference": "R/7?#",
        "agent": "billing-1",
        "seq": "2",
        "tool": "pay/../x",
        "q": f"key:{claim.action.key}",
        "limit": "100",
    }
    assert urlsplit(asked.target).path == "/v1/payments"
    assert finding.asked == (f"GET http://{server.host}{asked.target}",)


@pytest.mark.parametrize(
    ("params", "args", "says"),
    [
        ("to={recipient}", {"amount": 1}, "needs a recipient, and the call tells none"),
        ("amount={amount}", {"to": "a@example.com"}, "needs a amount, and the call tells none"),
        ("amount={amount}", {"amount": 5}, "needs a amount, and the call tells none"),  # cents of which currency?
        ("to={recipient}", {"to": ["a@example.com", "b@example.com"]}, "several recipients"),
    ],
)
def test_a_question_that_would_be_another_one_is_not_asked(
    server: WebServer, params: str, args: dict[str, Any], says: str
) -> None:
    finding = ask(server, claim=make_claim(args=args), params=params, is_minor="yes")

    assert (finding.reply, says in finding.problem) == (Reply.UNUSABLE, True)
    assert server.asked == []


def test_a_key_inside_of_a_longer_parameter_must_be_plain(server: WebServer) -> None:
    finding = ask(server, claim=make_claim(key="x' OR 1"), params="query=metadata['key']:'{key}'")

    assert (finding.reply, server.asked) == (Reply.UNUSABLE, [])


@pytest.mark.parametrize(
    ("form", "header", "value"),
    [({"auth": "bearer"}, "authorization", f"Bearer {SECRET}"), ({"auth": "header", "auth_header": "X-Key"}, "x-key", SECRET)],
)
def test_credentials_go_into_one_header_and_nowhere_else(
    server: WebServer, form: dict[str, str], header: str, value: str
) -> None:
    finding = ask(server, [OURS], **form)

    assert server.asked[0].headers[header] == value
    assert SECRET not in server.asked[0].target
    assert SECRET not in repr(finding)


def test_secrets_among_the_parameters_are_hidden_in_what_was_asked(server: WebServer) -> None:
    finding = ask(server, params="api_key=hunter2\nkey={key}")

    assert "hunter2" not in repr(finding)
    assert "key=" in finding.asked[0]


# --- what comes back -------------------------------------------------------------------------------------------------


def test_an_object_is_read_field_by_field(server: WebServer) -> None:
    one = {
        **OURS,
        "id": 77,
        "amount": 12000,
        "created": 1_795_976_958,
        "state": "open",
        "payee": ["ACME <a@example.com>", "b@example.com"],
    }

    finding = ask(
        server, {"data": [one]}, objects="body.data", id="object.id", at="object.created", is_minor="yes",
        effect='object.state == "paid" ? "happened" : "pending"', params="key={key}",
    )  # fmt: skip

    (match,) = finding.matches
    assert (match.object_id, match.by, match.effect) == ("77", MatchedBy.KEY, Effect.PENDING)
    assert (match.recipients, match.amount, match.currency) == (("a@example.com", "b@example.com"), Decimal("120.00"), "EUR")
    assert (match.reference, match.at) == ("R-7", BEGAN + SECOND)
    assert (finding.status, finding.account) == ("200", server.host)
    assert finding.answer_digest == hashlib.sha256(json.dumps({"data": [one]}).encode()).hexdigest()


def test_the_body_itself_is_the_list_or_the_only_object(server: WebServer) -> None:
    assert len(ask(server, [OURS, {**OURS, "key": "another", "payee": "x"}]).matches) == 1
    assert len(ask(server, OURS).matches) == 1


def test_two_objects_of_our_key_without_ids_are_two(server: WebServer) -> None:
    finding = ask(server, [OURS, OURS])

    assert [match.object_id for match in finding.matches] == ["object 1", "object 2"]
    assert "it may have happened more than once" in weigh(finding).resolution


def test_what_agrees_in_recipient_and_amount_is_a_look_alike_and_nothing_else_is(server: WebServer) -> None:
    others = [
        {**OURS, "key": "another"},
        {**OURS, "key": None},
        {**OURS, "key": "", "amount": 120.01},
        {**OURS, "key": "", "payee": "somebody"},
        {**OURS, "key": "", "reference": "R-8"},
        {**OURS, "key": "", "payee": None},
        {**OURS, "key": "", "amount": None},
    ]

    finding = ask(server, others)

    assert [(match.object_id, match.by) for match in finding.matches] == [
        ("object 1", MatchedBy.FIELDS),
        ("object 2", MatchedBy.FIELDS),
    ]


def test_without_an_amount_a_look_alike_is_of_the_same_recipient_and_not_older_than_the_call(server: WebServer) -> None:
    ages = [{"key": "", "payee": "ACME GmbH", "at": "2026-11-29T%02d:00:00Z" % hour} for hour in (0, 23)]  # noqa: UP031

    finding = ask(server, ages, make_claim(args={"payee": "ACME GmbH"}), at="object.at", amount="", currency="", reference="")

    assert [match.object_id for match in finding.matches] == ["object 2"]


NO_ANSWERS: dict[str, tuple[int, object, str]] = {
    "204 without a body": (204, "", "no JSON that can be read"),
    "500": (500, [], "the server fails (500)"),
    "503": (503, [], "the server fails (503)"),
    "404": (404, {}, "may also mean: hidden from these credentials"),
    "410": (410, {}, "may also mean: hidden from these credentials"),
    "no JSON": (200, "{'a': 1}", "no JSON that can be read"),
    "half of JSON": (200, '{"data": [', "no JSON that can be read"),
    "two values": (200, "{} {}", "no JSON that can be read"),
    "a name twice": (200, '{"data": [], "data": [1]}', "a name stands twice"),
    "a name twice inside": (200, '[{"key": "a", "key": "b"}]', "a name stands twice"),
    "NaN": (200, '[{"amount": NaN}]', "it holds NaN"),
    "Latin-1": (200, '["ü"]'.encode("latin-1"), "no JSON that can be read"),
    "UTF-16": (200, "[]".encode("utf-16"), "no JSON that can be read"),
    "a nesting bomb": (200, "[" * 100_000, "no JSON that can be read"),
    "a number bomb": (200, "[" + "9" * 10_000 + "]", "no JSON that can be read"),
    "an exponent bomb": (200, '[{"amount": 1e99999999999999999999}]', "no JSON that can be read"),
    "half a character": (200, '[{"key": "\\ud800"}]', "half of a character"),
    "an object without a key": (200, [OURS, {}], "key: there is no field 'key'"),
    "a number as the key": (200, [{**OURS, "key": 7}], "key: is no text"),
    "a text as the amount": (200, [{**OURS, "amount": "a lot"}], "amount: is no number of money"),
    "true as the amount": (200, [{**OURS, "amount": True}], "amount: is no number of money"),
    "an object as the recipient": (200, [{**OURS, "payee": {}}], "recipient: is neither a text nor a list of texts"),
    "a mebibyte as the reference": (200, [{**OURS, "reference": "x" * 900_000}], "reference: is longer than 2,000 characters"),
    "501 objects": (200, [OURS] * 501, "there are 501; at most 500 are looked at"),
    "too large": (200, "x" * 1_048_577, "larger than 1,048,576 bytes"),
}


@pytest.mark.parametrize("how", NO_ANSWERS)
def test_what_cannot_be_read_is_no_answer_and_never_absence(server: WebServer, how: str) -> None:
    status, body, says = NO_ANSWERS[how]

    finding = ask(server, body, status=status)

    assert (finding.reply, finding.matches, finding.canary, finding.is_complete) == (Reply.NO_ANSWER, (), Canary.NOT_ASKED, False)
    assert says in finding.problem


@pytest.mark.parametrize("status", [400, 401, 402, 403, 405, 422, 451])
def test_a_question_that_the_server_refuses_is_unusable(server: WebServer, status: int) -> None:
    finding = ask(server, [], status=status)

    assert (finding.reply, finding.status, str(status) in finding.problem) == (Reply.UNUSABLE, str(status), True)


def test_a_redirect_is_unusable(server: WebServer) -> None:
    server.answer = lambda asked, talk: talk.answer(302, Location="http://169.254.169.254/")

    finding = ask(server)

    assert (finding.reply, "redirects (302)" in finding.problem, len(server.asked)) == (Reply.UNUSABLE, True, 1)


@pytest.mark.parametrize(
    ("form", "body", "says"),
    [
        ({"objects": "body.nope"}, {"data": []}, "objects: there is no field 'nope'"),
        ({"objects": "body.data"}, {"data": {}}, "objects: is no list"),
        ({"complete": "!body.has_more"}, {"data": []}, "complete: there is no field 'has_more'"),
        ({"complete": "body.data.size()", "objects": "body.data"}, {"data": []}, "complete: is neither true nor false"),
        ({"effect": "object.reference"}, [OURS], "effect: is none of happened, pending, undone"),
        ({"at": "object.reference"}, [OURS], "at: is no time with a zone"),
        ({"at": "object.amount > 1.0"}, [OURS], "at: is neither a time nor seconds since 1970"),
        ({"objects": "body.filter(x, true)"}, [{"a": number} for number in range(5_000)], "too much to look at"),
    ],
)
def test_an_expression_that_does_not_fit_the_answer_is_no_answer(
    server: WebServer, form: dict[str, str], body: object, says: str
) -> None:
    finding = ask(server, body, **form)

    assert (finding.reply, finding.matches) == (Reply.NO_ANSWER, ())
    assert says in finding.problem


# --- absence ---------------------------------------------------------------------------------------------------------

ABSENCE = {"params": "key={key}", "canary_key": "canary-1", "proves_absence": "yes"}


def _by_key(objects: dict[str, object], missing: int) -> Any:
    """A provider that answers one object by key, or a status."""

    def answer(asked: Asked, talk: Conversation) -> None:
        key = dict(parse_qsl(urlsplit(asked.target).query))["key"]
        talk.answer(200, json.dumps(objects[key]).encode()) if key in objects else talk.answer(missing, b"gone")

    return answer


def test_a_404_means_none_only_where_the_definition_says_so_and_the_canary_is_there(server: WebServer) -> None:
    server.answer = _by_key({"canary-1": {**OURS, "key": "canary-1"}}, 404)

    told, untold = ask(server, **ABSENCE, absent_statuses="404"), ask(server, **ABSENCE)
    server.answer = _by_key({}, 404)
    hidden = ask(server, **ABSENCE, absent_statuses="404")

    assert (told.reply, told.canary, told.is_complete, len(told.asked)) == (Reply.ANSWERED, Canary.FOUND, True, 2)
    assert untold.reply is Reply.NO_ANSWER
    assert (hidden.reply, hidden.canary) == (Reply.ANSWERED, Canary.MISSING)


def test_an_answer_that_has_more_is_not_complete(server: WebServer) -> None:
    page = {"data": [{**OURS, "key": "canary-1", "payee": "x"}], "has_more": True}

    finding = ask(server, page, objects="body.data", complete="status == 200 && !body.has_more", canary_key="canary-1")

    assert (finding.reply, finding.canary, finding.is_complete) == (Reply.ANSWERED, Canary.FOUND, False)


def test_a_canary_is_looked_for_in_the_same_answer_where_the_request_has_no_key(server: WebServer) -> None:
    finding = ask(server, [{**OURS, "key": "canary-1", "payee": "x"}], canary_key="canary-1", params="limit=100")

    assert (finding.canary, len(server.asked)) == (Canary.FOUND, 1)


def test_no_canary_is_asked_for_once_our_key_is_found(server: WebServer) -> None:
    finding = ask(server, [OURS], **ABSENCE)

    assert (finding.canary, len(server.asked)) == (Canary.NOT_ASKED, 1)


def test_a_provider_that_fails_at_the_canary_has_not_answered_at_all(server: WebServer) -> None:
    def answer(asked: Asked, talk: Conversation) -> None:
        talk.answer(503 if "canary" in asked.target else 200, b"[]", Retry_After="7")

    server.answer = answer

    finding = ask(server, **ABSENCE)

    assert (finding.reply, finding.is_complete, finding.retry_after_s) == (Reply.NO_ANSWER, False, 7)
    assert len(finding.asked) == 2


def test_an_empty_key_of_ours_is_in_no_object(server: WebServer) -> None:
    claim = make_claim()
    nameless = replace(claim, action=replace(claim.action, key=""))

    finding = ask(server, [{**OURS, "key": ""}, {**OURS, "key": None}], nameless)

    assert {match.by for match in finding.matches} == {MatchedBy.FIELDS}
