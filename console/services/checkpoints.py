"""Signing how far each history has come. A chain is verified from the last checkpoint on before anything vouches for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from actions.errors import ActionsError
from actions.records import ChainHead
from actions.store.audit import ChainReport, verify_chain
from actions.store.base import EntryChain
from actions.store.checkpoints import (
    Anchors,
    BadSignature,
    Checkpoint,
    proven_by,
    public_key,
    read_anchors,
    read_checkpoint,
    sign_checkpoint,
)
from console.models import CheckpointDelivery, StoredCheckpoint
from console.stores import list_chains


class ChainBroken(ActionsError):
    """The history does not follow from what was signed before. Nothing was signed; `.report` says what is wrong."""

    def __init__(self, name: str, report: ChainReport) -> None:
        self.name = name
        self.report = report
        super().__init__(f"{name}: entry {report.first_bad}: {report.problem}")


def trusted_keys() -> tuple[str, ...]:
    """The public keys that count: of every key in AUDIT_SIGNING_KEY, and the retired ones of AUDIT_PUBLIC_KEYS."""
    return (*(public_key(seed) for seed in settings.AUDIT_SIGNING_KEYS), *settings.AUDIT_PUBLIC_KEYS)


def stored_anchors(name: str) -> Anchors:
    """The checkpoints that this console keeps of one history, each with its signature checked.

    Raises:
        BadSignature: one of them was changed, forged, put in the place of another or taken out.
    """
    rows = StoredCheckpoint.objects.filter(name=name).order_by("chain", "serial")
    return read_anchors(rows.values_list("line", flat=True).iterator(), trusted_keys())


def sign_next(chain: EntryChain, *, even_unchanged: bool = False) -> Checkpoint | None:
    """The next checkpoint of one history, kept and on its way to every place of AUDIT_ANCHORS. None: no entry came since the last one.

    What came since is walked first, in flat memory. Of two processes that sign at one moment, one does; the other answers None.

    Raises:
        ChainBroken: what stands there does not follow from the last checkpoint. Nothing was signed.
        BadSignature: the last checkpoint in this database is not one of ours. Nothing was signed.
        StoreError: the history cannot be read. Nothing was signed.
    """
    head = chain.read_head()
    newest = StoredCheckpoint.objects.filter(name=chain.name, chain=head.chain).order_by("-serial").first()
    previous = read_checkpoint(newest.line, trusted_keys()) if newest else None
    if previous is not None and (previous.number, previous.head) == (head.number, head.hash) and not even_unchanged:
        return None
    report = _walk_since(chain, head, previous)
    if not report.is_intact:
        raise ChainBroken(chain.name, report)
    checkpoint = sign_checkpoint(
        chain.name,
        head,
        count=(previous.count if previous else 0) + report.entries,
        at=time.time_ns(),
        previous=previous,
        seed=settings.AUDIT_SIGNING_KEYS[0],
    )
    return checkpoint if _keep(checkpoint) else None


def sign_all(*, even_unchanged: bool = False) -> Iterator[Checkpoint | ChainBroken | tuple[str, ActionsError | BadSignature]]:
    """Every history, one after the other; what stands in the way of one does not stop the others."""
    for chain in list_chains():
        try:
            signed = sign_next(chain, even_unchanged=even_unchanged)
        except ChainBroken as exc:
            yield exc
        except (ActionsError, BadSignature) as exc:
            yield chain.name, exc
        else:
            if signed is not None:
                yield signed


def _walk_since(chain: EntryChain, head: ChainHead, previous: Checkpoint | None) -> ChainReport:
    """What came after a checkpoint, up to this head; entries that come meanwhile are the next one's."""
    base = ChainHead(chain=head.chain, number=previous.number, hash=previous.head) if previous else None
    links = (link for link in chain.iterate_links(after=base.number if base else 0) if link.number <= head.number)
    return verify_chain(head.chain, links, head, base=base, removed_by=None if base else proven_by(chain.name, trusted_keys()))


def _unsent_to(sink: str, row: StoredCheckpoint) -> list[int]:
    """This one; and those that were signed while a place which had earlier ones was not named, oldest first: it never has a gap."""
    same = StoredCheckpoint.objects.filter(name=row.name, chain=row.chain)
    last = same.filter(deliveries__sink=sink).order_by("-serial").values_list("serial", flat=True).first()
    if last is None:
        return [row.pk]
    return list(same.filter(serial__gt=last, serial__lte=row.serial).order_by("serial").values_list("pk", flat=True))


def _keep(checkpoint: Checkpoint) -> bool:
    try:
        with transaction.atomic(durable=True):
            row = StoredCheckpoint.objects.create(
                name=checkpoint.store,
                chain=checkpoint.chain,
                serial=checkpoint.serial,
                number=checkpoint.number,
                line=checkpoint.line,
            )
            now = timezone.now()
            for sink in settings.AUDIT_ANCHORS:
                CheckpointDelivery.objects.bulk_create(
                    CheckpointDelivery(checkpoint_id=pk, sink=sink, next_try_at=now) for pk in _unsent_to(sink, row)
                )
    except IntegrityError:
        return False
    return True
