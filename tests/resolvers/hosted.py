"""One web server for all tests that need a payment provider; each test puts an account of its own behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from local.provider import Provider, application, serve


class HostedProvider:
    """`provider` answers what comes to `port` from now on."""

    def __init__(self) -> None:
        self.provider = Provider()
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await application(self.provider)(scope, receive, send)


@contextmanager
def host_provider() -> Iterator[HostedProvider]:
    hosted = HostedProvider()
    with serve(hosted) as hosted.port:
        yield hosted
