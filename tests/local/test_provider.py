"""The payment provider of demo and tests behaves as Stripe says that it does, as far as we lean on it. Asked by Stripe's own SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stripe

from local.provider import KEY, Provider, application, serve


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def client(provider: Provider) -> Iterator[stripe.StripeClient]:
    with serve(application(provider)) as port:
        yield stripe.StripeClient(KEY, base_addresses={"api": f"http://127.0.0.1:{port}"}, max_network_retries=0)


def pay(client: stripe.StripeClient, key: str, amount: int = 12_000) -> stripe.PaymentIntent:
    return client.v1.payment_intents.create(
        params={"amount": amount, "currency": "eur", "confirm": True, "metadata": {"idempotency_key": key}},
        options={"idempotency_key": key},
    )


def test_the_same_key_again_pays_nothing_more(client: stripe.StripeClient, provider: Provider) -> None:
    first, again = pay(client, "k1"), pay(client, "k1")

    assert (first.id, first.status, first.amount_received) == (again.id, "succeeded", 12_000)
    assert [one["id"] for one in provider.find("payment_intent", "k1")] == [first.id]


def test_the_same_key_for_something_else_is_refused(client: stripe.StripeClient, provider: Provider) -> None:
    pay(client, "k1")

    with pytest.raises(stripe.IdempotencyError):
        pay(client, "k1", amount=1)

    assert len(provider.find("payment_intent", "k1")) == 1


def test_lists_and_searches_lag_behind_and_ids_do_not(client: stripe.StripeClient, provider: Provider) -> None:
    provider.lag_s = 3_600
    paid = pay(client, "k1")
    query = "metadata['idempotency_key']:'k1'"

    listed, found = client.v1.payment_intents.list().data, client.v1.payment_intents.search(params={"query": query}).data
    by_id = client.v1.payment_intents.retrieve(paid.id)
    provider.lag_s = 0

    assert (listed, found, by_id.id) == ([], [], paid.id)
    assert [one.id for one in client.v1.payment_intents.list().data] == [paid.id]
    assert [one.id for one in client.v1.payment_intents.search(params={"query": query}).data] == [paid.id]


def test_pages_come_newest_first_and_whole(client: stripe.StripeClient, provider: Provider) -> None:
    ids = [provider.file("payout", created=1_000 + number)["id"] for number in range(7)]

    page = client.v1.payouts.list(params={"limit": 3, "created": {"gte": 1_001}})

    assert [one.id for one in page.auto_paging_iter()] == ids[:0:-1]


def test_what_is_kept_in_a_file_is_there_after_a_restart(tmp_path: Path) -> None:
    before = Provider(journal=tmp_path / "payments.jsonl")
    made = before.file("payment_intent", amount=5, metadata={"idempotency_key": "k1"})

    after = Provider(journal=tmp_path / "payments.jsonl")

    assert after.find("payment_intent", "k1") == [made]
    assert after.file("payment_intent")["id"] != made["id"]


def test_it_counts_what_it_is_asked(client: stripe.StripeClient, provider: Provider) -> None:
    client.v1.payment_intents.search(params={"query": "metadata['idempotency_key']:'k1'"})
    client.v1.payment_intents.search(params={"query": "metadata['idempotency_key']:'k2'"})

    assert (provider.asked(), provider.asked("'k1'"), provider.asked("'k3'")) == (2, 1, 0)
