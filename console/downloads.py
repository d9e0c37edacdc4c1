"""A file that is handed out while it is being read: in pieces, never cached, and never taken for a page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import StreamingHttpResponse

_PIECE = 65_536


def download(pieces: Iterator[str], *, file: str, content_type: str) -> StreamingHttpResponse:
    """ASCII pieces as an attachment. What cannot be read on breaks the download off."""
    response = StreamingHttpResponse(_stream(pieces), content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{file}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response


async def _stream(pieces: Iterator[str]) -> AsyncIterator[bytes]:
    try:
        while piece := await sync_to_async(_take)(pieces):
            yield piece
    finally:
        await sync_to_async(_close)()


def _take(pieces: Iterator[str]) -> bytes:
    taken = bytearray()
    for piece in pieces:
        taken += piece.encode("ascii")
        if len(taken) >= _PIECE:
            break
    return bytes(taken)


def _close() -> None:
    if not connection.in_atomic_block:
        connection.close()
