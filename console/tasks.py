"""What the workers do: ids in, services out. Every task may be delivered twice or never; the database alone knows what is due."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from celery import shared_task
from django.conf import settings
from django.db import connection
from kombu.exceptions import OperationalError

from actions.store.checkpoints import Checkpoint
from console.services import (
    anchoring,
    approvals,
    batches,
    checkpoints,
    ends,
    incidents,
    inquiries,
    looks,
    notices,
    notifications,
    passwords,
    resolve,
    run_claims,
    undoing,
    verification,
)
from console.services import correction_delivery as corrections
from console.services import deliver as deliveries
from console.services.sweeps import SWEEP, is_due, note_sweep
from console.stores import list_chains

log = logging.getLogger(__name__)

BATCH = 100
SIGN_EVERY = timedelta(hours=1)


@shared_task(name="console.tasks.deliver")
def deliver(decision_pk: int) -> None:
    """One attempt at one decision; whoever else is at it goes on alone."""
    deliveries.deliver(decision_pk)


@shared_task(name="console.tasks.deliver_correction")
def deliver_correction(correction_pk: int) -> None:
    """One attempt at one correction; whoever else is at it goes on alone."""
    corrections.deliver_correction(correction_pk)


@shared_task(name="console.tasks.sweep")
def sweep() -> None:
    """Send a task for each decision and correction whose time has come: lease perhaps free, store perhaps back, or left over by a crash.

    And one for each batch that stands still.
    """
    for pk in deliveries.claim_due(BATCH):
        deliver.delay(pk)
    for pk in corrections.claim_due_corrections(BATCH):
        deliver_correction.delay(pk)
    for pk in batches.claim_due(BATCH):
        advance_batch.delay(pk)
    note_sweep(SWEEP)


@shared_task(name="console.tasks.advance_batch")
def advance_batch(batch_pk: int) -> None:
    """One bounded step of a batch; what is left is the next task's."""
    if batches.advance(batch_pk):
        send_batch(batch_pk)


def send_batch(batch_pk: int) -> None:
    """Go on with a batch, by a worker. Where no broker takes it, the sweep finds it."""
    _send(advance_batch, [batch_pk], "batch %s is left to the sweep")


@shared_task(name="console.tasks.sweep_runs")
def sweep_runs() -> None:
    """Find the runs whose time has come, those whose worker died or whose calls are settled, and what nobody answered in time."""
    approvals.expire_approvals(BATCH)
    run_claims.free_the_lost(BATCH)
    run_claims.wake_parked(BATCH)
    for pk in run_claims.claim_due_runs(BATCH):
        advance_run.delay(pk)
    for pk in run_claims.claim_due_runs(BATCH, run_claims.UNDOING):
        undo_run.delay(pk)
    note_sweep("runs")


# A message that waited longer is worth nothing any more: the sweep has sent another one.
_WORTH_S = settings.RUN_QUEUED_S + 10


# No soft limit: it would be raised inside of a tool, and count as the tool's own failure. The hard one is a crash, which loses nothing.
@shared_task(name="console.tasks.advance_run", soft_time_limit=0, expires=_WORTH_S)
def advance_run(run_pk: int) -> None:
    """One step of a run; the next one is the next task's."""
    from console.services import advancing  # LangGraph, which a web process that sends tasks does not need

    if advancing.advance_run(run_pk):
        send_runs([run_pk])


@shared_task(name="console.tasks.undo_run", soft_time_limit=0, expires=_WORTH_S)
def undo_run(run_pk: int) -> None:
    """Take back one call of a run; the next one is the next task's."""
    if undoing.undo_run(run_pk):
        send_undoing([run_pk])


def send_runs(pks: Iterable[int]) -> None:
    """Go on with these runs, by a worker. Where no broker takes it, the sweep finds them."""
    _send(advance_run, pks, "run %s is left to the sweep")


def send_undoing(pks: Iterable[int]) -> None:
    """The same for taking back what they did."""
    _send(undo_run, pks, "run %s is left to the sweep")


@shared_task(name="console.tasks.ask")
def ask(inquiry_pk: int) -> None:
    """Ask one due question; whoever else is at it goes on alone."""
    resolve.ask(inquiry_pk)


def send_asking(inquiry_pks: Iterable[int]) -> None:
    """Ask now, by a worker. Where no broker takes it, the sweep finds the question half a minute later."""
    _send(ask, inquiry_pks, "question %s is left to the sweep")


@shared_task(name="console.tasks.sweep_inquiries")
def sweep_inquiries() -> None:
    """Find what should be asked about, and send a task for each question that is due."""
    inquiries.discover()
    for pk in resolve.claim_due(BATCH):
        ask.delay(pk)
    note_sweep("ask")


@shared_task(name="console.tasks.recheck_failed")
def recheck_failed() -> None:
    """Look again at what was written as failed a day ago, and enter what is not said yet of the incidents that came of it.

    And forget whom we told of what long ago.
    """
    inquiries.recheck_failed()
    incidents.sweep_incidents()
    notices.prune()
    note_sweep("recheck")


@shared_task(name="console.tasks.sweep_ends")
def sweep_ends() -> None:
    """Enter in the history what actions became without anybody here, also where nobody watches; and note what each store is like."""
    ends.sweep_ends()
    looks.look_at_stores()
    note_sweep("ends")


@shared_task(name="console.tasks.sweep_notices")
def sweep_notices() -> None:
    """Find what people want to be told, and send a task for each channel whose turn it is."""
    notices.find()
    for pk in notifications.due_channels():
        notify.delay(pk)
    note_sweep("notify")


@shared_task(name="console.tasks.notify", soft_time_limit=60, time_limit=75)
def notify(channel_pk: int) -> None:
    """Tell one channel; a hanging one holds up nobody but this task, and that not for long."""
    notifications.send_due(channel_pk)


@shared_task(name="console.tasks.send_password_link", soft_time_limit=60, time_limit=75)
def send_password_link(said: str) -> None:
    """Mail a link for a new password to whoever that name or address belongs to, if to anybody."""
    passwords.mail_link(said)


def ask_for_password_link(said: str) -> bool:
    """Have the link mailed by a worker, so that nobody can tell from the time it takes whether there is such a person. False: no broker."""
    try:
        send_password_link.delay(said)
    except OperationalError as exc:
        log.warning("no link for a new password: the broker does not answer (%s)", type(exc).__name__)
        return False
    return True


@shared_task(name="console.tasks.verify", soft_time_limit=240, time_limit=270)
def verify(verification_pk: int) -> None:
    """Walk one history. A million entries take a while."""
    verification.run(verification_pk)


def send_verifying(pks: Iterable[int]) -> None:
    """Verify now, by a worker. Where no broker takes it, the page says that it stands still, and it can be asked again."""
    _send(verify, pks, "verification %s was not sent")


@shared_task(name="console.tasks.verify_all")
def verify_all() -> None:
    """Each history once a day, whether anybody asks or not: beat sends this more often, and the database knows when it was."""
    for chain in list_chains():
        if not verification.is_due(chain.name):
            continue
        row, is_new = verification.ask(chain.name, by="system beat")
        if is_new:
            verify.delay(row.pk)
    note_sweep("verify")


@shared_task(name="console.tasks.sign_checkpoints")
def sign_checkpoints() -> None:
    """Once an hour sign how far each history has come; and, as often as beat asks, send what has not left the databases yet."""
    if not is_due("checkpoints", SIGN_EVERY):
        anchoring.deliver_due()
        return
    for signed in checkpoints.sign_all():
        if not isinstance(signed, Checkpoint):
            log.error("no checkpoint: %s", signed if isinstance(signed, Exception) else f"{signed[0]}: {signed[1]}")
    anchoring.deliver_due()
    note_sweep("checkpoints")


def _send(task: Any, pks: Iterable[int], otherwise: str) -> None:
    """Give each to a worker; the first that no broker takes ends it, and the log says `otherwise`."""
    if not connection.in_atomic_block:
        connection.close()  # a broker that hangs must not keep a connection that others are waiting for
    for pk in pks:
        try:
            task.delay(pk)
        except OperationalError as exc:
            log.warning(f"{otherwise}: the broker does not answer (%s)", pk, type(exc).__name__)
            return
