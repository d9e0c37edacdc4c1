"""What only the kind `stripe` can hold: pages, statuses, refunds, currencies that Stripe counts otherwise, what the SDK sends along."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import stripe

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Effect, Finding, InvalidDefinition, MatchedBy, Reply
from actions.resolvers.verdict import Grade, Outcome
from actions.times import SECOND
from tests.resolvers.makers import BEGAN, HOUR, LONG_AFTER, make_claim, weigh
from tests.resolvers.worlds.stripe import CANARY, KEY, World


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World.open(request) as opened:
        yield opened


def find(world: World, **settings: str) -> Finding:
    return world.resolver(**settings).ask(world.claim(), now=LONG_AFTER)


def agents_client(world: World) -> stripe.StripeClient:
    """As the agent's tool talks to it: the real SDK."""
    return stripe.StripeClient(KEY, base_addresses={"api": f"http://127.0.0.1:{world.wire.port}"}, max_network_retries=0)


# --- pages -----------------------------------------------------------------------------------------------------------


def test_the_last_page_is_reached(world: World) -> None:
    world.put_payment(world.claim())
    for _ in range(250):
        world.provider.file("payment_intent", created=BEGAN // SECOND + 60)

    found = find(world)

    assert [match.by for match in found.matches] == [MatchedBy.KEY]
    assert found.is_complete
    assert [line.partition("&starting")[0] for line in found.asked[:3]] == [found.asked[0]] * 3


def test_an_account_with_more_than_can_be_looked_at_proves_nothing(world: World) -> None:
    world.put_canary()
    for _ in range(1_001):
        world.provider.file("payment_intent", created=BEGAN // SECOND + 60)

    found = find(world)

    assert (found.matches, found.canary, found.is_complete) == ((), Canary.FOUND, False)
    assert found.notes == ("more than 1,000 payment_intents since then: not all of them were looked at",)
    assert weigh(found).outcome is Outcome.UNKNOWN


def test_only_the_time_since_the_call_is_listed_and_a_window_ends_it(world: World) -> None:
    begin = BEGAN // SECOND

    whole, narrow = find(world).asked[0], find(world, window_s="3600").asked[0]

    assert whole == f"GET /v1/payment_intents?created[gte]={begin - 300}&limit=100"
    assert narrow == f"GET /v1/payment_intents?created[gte]={begin - 300}&created[lte]={begin + 3600}&limit=100"


def test_an_index_that_lags_hides_a_payment_until_it_does_not(world: World) -> None:
    claim = world.claim()
    world.put_payment(claim)
    world.put_canary()
    world.provider.lag_s = 3_600
    early = find(world)
    world.provider.lag_s = 0

    assert (early.matches, early.canary) == ((), Canary.FOUND)
    assert weigh(find(world), claim).outcome is Outcome.DONE


# --- what an object says ---------------------------------------------------------------------------------------------

STATUSES = [
    ("payment_intent", {"status": "succeeded"}, Effect.HAPPENED, "succeeded"),
    ("payment_intent", {"status": "processing"}, Effect.PENDING, "processing: no money has moved yet"),
    ("payment_intent", {"status": "requires_action"}, Effect.PENDING, "requires_action: no money has moved yet"),
    ("payment_intent", {"status": "requires_capture"}, Effect.PENDING, "authorised, not captured: no money has moved yet"),
    ("payment_intent", {"status": "canceled"}, Effect.UNDONE, "canceled"),
    ("payment_intent", {"status": "a new one"}, Effect.PENDING, "a new one: no money has moved yet"),
    ("payment_intent", {"status": None}, Effect.PENDING, "no status: no money has moved yet"),
    ("charge", {"status": "succeeded"}, Effect.HAPPENED, "succeeded"),
    ("charge", {"status": "succeeded", "captured": False}, Effect.PENDING, "succeeded, not captured"),
    ("charge", {"status": "failed"}, Effect.UNDONE, "failed"),
    ("charge", {"status": "succeeded", "amount_refunded": 2000}, Effect.HAPPENED, "20.00 EUR of it refunded"),
    ("charge", {"status": "succeeded", "amount_refunded": 12000}, Effect.UNDONE, "refunded whole"),
    ("charge", {"status": "succeeded", "refunded": True}, Effect.UNDONE, "refunded whole"),
    ("refund", {"status": "succeeded"}, Effect.HAPPENED, "succeeded"),
    ("refund", {"status": "pending"}, Effect.PENDING, "pending"),
    ("refund", {"status": "failed"}, Effect.UNDONE, "failed"),
    ("transfer", {}, Effect.HAPPENED, "made"),
    ("transfer", {"amount_reversed": 100}, Effect.HAPPENED, "1.00 EUR of it reversed"),
    ("transfer", {"reversed": True}, Effect.UNDONE, "reversed whole"),
    ("payout", {"status": "paid"}, Effect.HAPPENED, "paid"),
    ("payout", {"status": "in_transit"}, Effect.PENDING, "in_transit"),
    ("payout", {"status": "canceled"}, Effect.UNDONE, "canceled"),
]


@pytest.mark.parametrize(("kind", "fields", "effect", "note"), STATUSES)
def test_money_has_moved_only_where_the_status_says_so(
    world: World, kind: str, fields: dict[str, Any], effect: Effect, note: str
) -> None:
    world.put_payment(world.claim(), kind=kind, **fields)

    (match,) = find(world, object=kind, canary_id="").matches

    assert (match.by, match.effect, match.note) == (MatchedBy.KEY, effect, note)
    assert (match.amount, match.currency) == (Decimal("120.00"), "EUR")


@pytest.mark.parametrize(
    ("amount", "effect", "note", "outcome"),
    [
        (2_000, Effect.HAPPENED, "succeeded; 20.00 EUR of it refunded", Outcome.DONE),
        (12_000, Effect.UNDONE, "succeeded; refunded whole", Outcome.UNKNOWN),
    ],
)
def test_what_was_paid_back_is_seen_at_the_charge(world: World, amount: int, effect: Effect, note: str, outcome: Outcome) -> None:
    """Paid and refunded by the real SDK, as the agent and an employee would."""
    claim = make_claim(started_at=int(world.provider.clock()) * SECOND)
    client, key = agents_client(world), claim.action.key
    metadata = {"idempotency_key": key, "payee": "ACME GmbH", "reference": "R-7"}
    paid = client.v1.payment_intents.create(
        params={"amount": 12_000, "currency": "eur", "confirm": True, "metadata": metadata}, options={"idempotency_key": key}
    )
    client.v1.refunds.create(params={"payment_intent": paid.id, "amount": amount})

    found = world.resolver().ask(claim, now=LONG_AFTER)

    (match,) = found.matches
    assert (match.object_id, match.effect, match.note) == (paid.id, effect, note)
    assert weigh(found, claim).outcome is outcome


def test_a_capture_of_less_than_was_meant_is_a_conflict(world: World) -> None:
    claim = world.claim()
    world.put_payment(claim, amount_received=9_000)

    verdict = weigh(find(world), claim)

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.CONFLICT)


@pytest.mark.parametrize(
    ("currency", "minor", "main"),
    [
        ("eur", 12_000, "120.00"),
        ("jpy", 500, "500"),
        ("kwd", 5_120, "5.120"),
        ("isk", 50_000, "500"),
        ("ugx", 50_000, "500"),
        ("mga", 500, "500"),
        ("huf", 1_045, "10.45"),
        ("twd", 80_000, "800"),
        ("clp", 500, "500"),
    ],
)
def test_amounts_are_counted_as_stripe_counts_them(world: World, currency: str, minor: int, main: str) -> None:
    world.put_payment(world.claim(), amount=None, currency=currency)
    (one,) = world.provider.find("payment_intent", world.claim().action.key)
    one["amount"] = minor

    (match,) = find(world).matches

    assert match.amount == Decimal(main)


@pytest.mark.parametrize(
    ("claimed", "found"),
    [
        ("lena@example.net", ("lena@example.net",)),
        ("cus_Lena", ("cus_Lena",)),
        ("acct_Lena", ("acct_Lena",)),
        ("Lena Hoffmann", ()),
        ("", ("cus_Lena", "lena@example.net", "acct_Lena")),
    ],
)
def test_a_recipient_is_compared_with_what_is_of_its_sort(world: World, claimed: str, found: tuple[str, ...]) -> None:
    claim = replace(world.claim(), recipients=(claimed,) if claimed else ())
    fields = {"customer": "cus_Lena", "receipt_email": "lena@example.net", "transfer_data": {"destination": "acct_Lena"}}
    world.put_payment(world.claim(), **fields)

    (match,) = world.resolver(recipient_metadata="").ask(claim, now=LONG_AFTER).matches

    assert match.recipients == found


def test_without_a_canary_of_ones_own_any_recent_object_is_one(world: World) -> None:
    empty = find(world, canary_id="").canary
    world.provider.file("payment_intent", created=(LONG_AFTER - 8 * 24 * HOUR) // SECOND)
    old = find(world, canary_id="").canary
    world.provider.file("payment_intent", created=(LONG_AFTER - 24 * HOUR) // SECOND)

    assert [empty, old, find(world, canary_id="").canary] == [Canary.MISSING, Canary.MISSING, Canary.FOUND]


def test_an_object_of_another_sort_is_no_canary(world: World) -> None:
    world.provider.file("charge", id=CANARY)

    assert find(world).canary is Canary.MISSING


ODD = [None, True, "x", [], {}, -1, 1.5, 10**30, {"id": "x"}, "\u202e"]


@pytest.mark.parametrize("kind", ["payment_intent", "charge", "transfer"])
def test_an_object_of_odd_values_is_found_and_tells_what_it_can(world: World, kind: str) -> None:
    """Each field in turn holds what it never should; nothing falls over, and nothing is read out of it."""
    claim = world.claim()
    one = world.put_payment(claim, kind=kind)
    resolver = world.resolver(object=kind, canary_id="", recipient_metadata="")
    names = {*one, "amount_refunded", "amount_reversed", "latest_charge", "transfer_data"}
    for name in names - {"id", "object", "metadata", "created"}:  # the provider itself goes by these
        before = dict(one)
        for value in ODD:
            one[name] = value
            found = resolver.ask(claim, now=LONG_AFTER)
            assert found.reply is Reply.ANSWERED
            assert [match.by for match in found.matches] == [MatchedBy.KEY]
        one.clear()
        one.update(before)


# --- rights and what is sent along -----------------------------------------------------------------------------------


def test_a_key_without_the_right_to_see_the_objects_is_for_somebody_to_mend(world: World) -> None:
    world.provider.denied = frozenset({"payment_intents"})

    found = find(world)

    assert (found.reply, found.canary, len(found.asked)) == (Reply.UNUSABLE, Canary.NOT_ASKED, 1)
    assert "may not read payment_intents" in found.problem


def test_a_key_without_the_right_to_see_account_and_charges_still_finds(world: World) -> None:
    world.put_payment(world.claim(), latest_charge="ch_000099")
    world.provider.denied = frozenset({"account", "charges"})

    found = find(world)

    assert found.account == "an account that this key does not tell, test mode"
    assert "refunds were not looked at" in found.matches[0].note


def test_the_account_and_its_mode_are_told(world: World) -> None:
    assert find(world).account == "acct_demo, test mode"
    assert find(world, account="acct_other").account == "acct_other, test mode"


def test_nothing_is_sent_but_questions_and_nothing_about_this_machine(world: World) -> None:
    world.put_payment(world.claim(), latest_charge="ch_000099")

    find(world)
    find(world)

    sent = world.wire.sent().decode()
    assert {question.method for question in world.provider.questions} == {"GET"}
    headers = {name for question in world.provider.questions for name in question.headers}
    assert headers.isdisjoint({"x-stripe-client-telemetry", "idempotency-key", "cookie"})
    assert [text for text in (platform.node(), platform.platform(), platform.release()) if text in sent] == []
    assert world.claim().action.key not in sent


NOT_STRIPES = [
    b"[]",
    b"null",
    b"{}",
    b'"x"',
    b'{"object": 7}',
    b'{"object": "list"}',
    b'{"object": "list", "data": [1], "has_more": false}',
    b'{"object": "list", "data": []}',
    b"{" * 9_999,
]


@pytest.mark.parametrize("body", NOT_STRIPES)
def test_json_that_is_not_stripes_is_no_answer(world: World, body: bytes) -> None:
    world.provider.says = body

    found = find(world)

    assert (found.reply, found.matches, found.canary, len(found.asked)) == (Reply.NO_ANSWER, (), Canary.NOT_ASKED, 1)


# --- definitions -----------------------------------------------------------------------------------------------------

WRONG = [
    ("api_key", {}, "sk_live_4eC39HqLyjWDarjtT1zdp7dc"),
    ("api_key", {}, "pk_live_4eC39HqLyjWDarjtT1zdp7dc"),
    ("api_key", {}, "rk_live_x\r\nX-Injected: 1"),
    ("object", {"object": "customer"}, "rk_live_1"),
    ("metadata_key", {"metadata_key": "a b"}, "rk_live_1"),
    ("recipient_metadata", {"recipient_metadata": "x[y]"}, "rk_live_1"),
    ("canary_id", {"canary_id": "../customers"}, "rk_live_1"),
    ("account", {"account": "acct_1\r\nX: y"}, "rk_live_1"),
    ("window_s", {"window_s": "1"}, "rk_live_1"),
    ("api_base", {"api_base": "https://stripe.example.net"}, "rk_live_1"),
    ("api_base", {"api_base": "http://api.stripe.com"}, "rk_live_1"),
    ("api_base", {"api_base": "https://api.stripe.com@evil.example"}, "rk_live_1"),
    ("api_base", {"api_base": "http://127.0.0.1:9/v1"}, "rk_live_1"),
    ("timeout_s", {"timeout_s": "0"}, "rk_live_1"),
]


@pytest.mark.parametrize(("field", "settings", "key"), WRONG)
def test_a_setting_that_cannot_be_used_is_named(field: str, settings: dict[str, str], key: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        build_resolver("stripe", "stripe", settings, {"api_key": key}, allowed=Allowed(hosts=frozenset({"127.0.0.1"})))

    assert refused.value.field == field
    assert key not in str(refused.value)


def test_a_definition_that_can_be_used_shows_no_key() -> None:
    assert KEY not in repr(build_resolver("stripe", "stripe", {}, {"api_key": KEY}))
