"""What the workers do: ids in, services out. Every task may be delivered twice or never; the database alone knows what is due."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from celery import shared_task
from django.db import connection
from kombu.exceptions import OperationalError

from actions.store.checkpoints import Checkpoint
from console.services import anchoring, checkpoints, inquiries, resolve, verification
from console.services import deliver as deliveries
from console.stores import list_chains

log = logging.getLogger(__name__)

BATCH = 100


@shared_task(name="console.tasks.deliver")
def deliver(decision_pk: int) -> None:
    """One attempt at one decision; whoever else is at it goes on alone."""
    deliveries.deliver(decision_pk)


@shared_task(name="console.tasks.sweep")
def sweep() -> None:
    """Send a task for each decision whose time has come: lease perhaps free, store perhaps back, or left over by a crash."""
    for pk in deliveries.claim_due(BATCH):
        deliver.delay(pk)


@shared_task(name="console.tasks.ask")
def ask(inquiry_pk: int) -> None:
    """Ask one due question; whoever else is at it goes on alone."""
    resolve.ask(inquiry_pk)


def send_asking(inquiry_pks: Iterable[int]) -> None:
    """Ask now, by a worker. Where no broker takes it, the sweep finds the question half a minute later."""
    if not connection.in_atomic_block:
        connection.close()  # a broker that hangs must not keep a connection that others are waiting for
    for pk in inquiry_pks:
        try:
            ask.delay(pk)
        except OperationalError as exc:
            log.warning("question %s is left to the sweep: the broker does not answer (%s)", pk, type(exc).__name__)
            return


@shared_task(name="console.tasks.sweep_inquiries")
def sweep_inquiries() -> None:
    """Find what should be asked about, and send a task for each question that is due."""
    inquiries.discover()
    for pk in resolve.claim_due(BATCH):
        ask.delay(pk)


@shared_task(name="console.tasks.recheck_failed")
def recheck_failed() -> None:
    """Look again at what was written as failed a day ago."""
    inquiries.recheck_failed()


@shared_task(name="console.tasks.verify", soft_time_limit=240, time_limit=270)
def verify(verification_pk: int) -> None:
    """Walk one history. A million entries take a while."""
    verification.run(verification_pk)


def send_verifying(pks: Iterable[int]) -> None:
    """Verify now, by a worker. Where no broker takes it, the page says that it stands still, and it can be asked again."""
    if not connection.in_atomic_block:
        connection.close()
    for pk in pks:
        try:
            verify.delay(pk)
        except OperationalError as exc:
            log.warning("verification %s was not sent: the broker does not answer (%s)", pk, type(exc).__name__)
            return


@shared_task(name="console.tasks.verify_all")
def verify_all() -> None:
    """Once a day, whether anybody asks or not."""
    for chain in list_chains():
        row, is_new = verification.ask(chain.name, by="system beat")
        if is_new:
            verify.delay(row.pk)


@shared_task(name="console.tasks.sign_checkpoints")
def sign_checkpoints() -> None:
    """Sign how far each history has come, and take it out of the databases."""
    for signed in checkpoints.sign_all():
        if not isinstance(signed, Checkpoint):
            log.error("no checkpoint: %s", signed if isinstance(signed, Exception) else f"{signed[0]}: {signed[1]}")
    anchoring.deliver_due()
