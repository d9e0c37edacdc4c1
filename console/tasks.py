"""What the workers do: ids in, services out. Every task may be delivered twice or never; the database alone knows what is due."""

from __future__ import annotations

from celery import shared_task

from console.services import deliver as deliveries

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
