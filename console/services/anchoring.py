"""Taking checkpoints out of the databases: to a file, syslog, a webhook or a mailbox. In their order, at least once, never in anybody's way."""

from __future__ import annotations

import fcntl
import json
import logging
import logging.handlers
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import httpx
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from console.models import CheckpointDelivery, StoredCheckpoint

log = logging.getLogger(__name__)

DEADLINE_S = 10
LONGEST_BACK_OFF = timedelta(hours=1)
BATCH = 100


class NotDelivered(Exception):
    """It may have arrived all the same; it is sent again. The message is one line for a person."""


class OutOfStep(NotDelivered):
    """The place holds what cannot come before this. Nothing was written there."""


def deliver_due() -> int:
    """Send what is due to each place of AUDIT_ANCHORS, oldest first; a place that fails is left alone for a while, the others go on."""
    return sum(_deliver_to(sink) for sink in settings.AUDIT_ANCHORS)


def _deliver_to(sink: str) -> int:
    """How many arrived. One process at a time for one place: the rows are locked, and whoever comes meanwhile goes on without them."""
    sent = 0
    for _ in range(BATCH):
        with transaction.atomic(durable=True):
            waiting = CheckpointDelivery.objects.filter(sink=sink, sent_at__isnull=True).order_by("id")
            oldest = waiting.select_related("checkpoint").select_for_update(skip_locked=True, of=("self",)).first()
            # Nobody overtakes: where another process holds the oldest one, what was found is not the oldest.
            if oldest is None or waiting.values_list("pk", flat=True).first() != oldest.pk or oldest.next_try_at > timezone.now():
                return sent
            try:
                send(sink, oldest.checkpoint.line)
            except NotDelivered as exc:
                oldest.attempts += 1
                oldest.problem = str(exc)[:500]
                pause = min(timedelta(seconds=2 ** min(oldest.attempts + 3, 12)), LONGEST_BACK_OFF)
                oldest.next_try_at = timezone.now() + pause
                oldest.save(update_fields=["attempts", "problem", "next_try_at"])
                log.warning("checkpoint %s does not reach %s: %s", oldest.checkpoint.serial, _shown(sink), exc)
                return sent
            oldest.sent_at = timezone.now()
            oldest.problem = ""
            oldest.save(update_fields=["sent_at", "problem"])
        sent += 1
    return sent


def send(sink: str, line: str) -> None:
    """One checkpoint to one place, within DEADLINE_S.

    Raises:
        NotDelivered: it did not, or nobody knows.
    """
    try:
        _SENDERS[urlsplit(sink).scheme](sink, line)
    except NotDelivered:
        raise
    except Exception as exc:
        raise NotDelivered(f"{type(exc).__name__}: {' '.join(str(exc).split())[:200]}") from exc


def append_checkpoint(path: Path, line: str) -> None:
    """One checkpoint at the end of a file and onto the disk; two processes never mix theirs, and what stands there already is not repeated.

    Where the file's newest of this history is older than the one before this, those between come first: others sign too, beat by itself, and
    a file with one left out could never be verified again.

    Raises:
        OutOfStep: the file has a later one, or another one with this number. It was not touched.
        OSError: it cannot be read or written.
    """
    new = _place_of(line)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = file.read()
        here = [raw for raw in kept.decode("utf-8", "replace").splitlines() if new is None or _is_of(raw, new)]
        if line in here:
            return
        lines = [line]
        if new is not None and here and (newest := max(found.serial for raw in here if (found := _place_of(raw)) is not None)):
            if newest >= new.serial:
                raise OutOfStep(
                    f"it holds checkpoint {newest} of {new.store}, and this one is number {new.serial}: this console may have been restored "
                    "from a backup; keep that file and name a new one"
                )
            lines = [*_lines_between(new, newest), line]
        # A line that was cut off by a crash must not swallow this one.
        start = "\n" if kept and not kept.endswith(b"\n") else ""
        file.write((start + "".join(f"{each}\n" for each in lines)).encode())
        file.flush()
        os.fsync(file.fileno())


class _Place(NamedTuple):
    """Whose checkpoint a line is, and which one."""

    store: str
    chain: str
    serial: int


def _place_of(line: str) -> _Place | None:
    """None for a line that says none; whether it is signed is the verification's matter."""
    try:
        said = json.loads(line)
        return _Place(str(said["store"]), str(said["chain"]), int(said["serial"]))
    except (ValueError, KeyError, TypeError):
        return None


def _is_of(raw: str, new: _Place) -> bool:
    found = _place_of(raw)
    return found is not None and found[:2] == new[:2]


def _lines_between(new: _Place, after: int) -> list[str]:
    rows = StoredCheckpoint.objects.filter(name=new.store, chain=new.chain, serial__gt=after, serial__lt=new.serial)
    return list(rows.order_by("serial").values_list("line", flat=True))


def _to_file(sink: str, line: str) -> None:
    append_checkpoint(Path(unquote(urlsplit(sink).path)), line)


def _to_syslog(sink: str, line: str) -> None:
    parts = urlsplit(sink)
    local = "/dev/log"
    address: str | tuple[str, int] = (parts.hostname, parts.port or 514) if parts.hostname else local
    if address == local and not os.path.exists(local):
        raise NotDelivered("this machine has no /dev/log; name a host: syslog://host:514")
    handler = logging.handlers.SysLogHandler(address=address, facility=logging.handlers.SysLogHandler.LOG_AUTH)
    failed: list[str] = []
    handler.handleError = lambda record: failed.append("syslog did not take it")  # type: ignore[method-assign]
    try:
        handler.emit(logging.LogRecord("settle", logging.INFO, "", 0, f"settle checkpoint {line}", None, None))
    finally:
        handler.close()
    if failed:
        raise NotDelivered(failed[0])


def _to_web(sink: str, line: str) -> None:
    answer = httpx.post(sink, content=line + "\n", headers={"Content-Type": "application/json"}, timeout=DEADLINE_S)
    if not answer.is_success:
        raise NotDelivered(f"it answered {answer.status_code}")


def _to_mail(sink: str, line: str) -> None:
    sent = EmailMessage(
        subject="Settle: checkpoint of the history",
        body=f"{line}\n\nKeep this line: `verify_audit --anchor FILE` compares the history with it.\n",
        to=[unquote(urlsplit(sink).path)],
    ).send(fail_silently=False)
    if sent != 1:
        raise NotDelivered("the mail server took nothing")


def _shown(sink: str) -> str:
    """Without what may be a password or a token in it."""
    parts = urlsplit(sink)
    return f"{parts.scheme}:{parts.hostname or parts.path}"


_SENDERS: dict[str, Callable[[str, str], None]] = {
    "file": _to_file,
    "syslog": _to_syslog,
    "https": _to_web,
    "http": _to_web,
    "mailto": _to_mail,
}
