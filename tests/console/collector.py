"""A collector of spans: a real OTLP/HTTP receiver that reads what comes with OpenTelemetry's own messages, and answers as a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.resolvers.web_server import Asked, Conversation, serve


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]  # trace and span
    attributes: dict[str, Any]
    is_error: bool
    began: int
    ended: int
    service: str
    others: int  # events, and a text beside the status: there are to be none


@dataclass(slots=True)
class Collector:
    """`status`: what it answers, once it is let go on; what it does not answer with 200 it does not keep. `reached` is set by every request."""

    address: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def of(self, name: str, **attributes: Any) -> list[Span]:
        """By the time at which they began."""
        found = [one for one in self.spans if one.name == name and attributes.items() <= one.attributes.items()]
        return sorted(found, key=lambda one: one.began)

    def take(self, asked: Asked, talk: Conversation) -> None:
        self.raw.append(asked.body)
        self.reached.set()
        self.may_go_on.wait(120)
        if self.status == 200 and (asked.method, asked.target) == ("POST", "/v1/traces"):
            self.spans += _read(asked.body)
        talk.answer(self.status, content_type="application/x-protobuf")


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    collector.may_go_on.set()
    with serve(collector.take) as server:
        collector.address = f"http://{server.host}"
        yield collector
        collector.may_go_on.set()


def _read(body: bytes) -> list[Span]:
    return [
        Span(
            name=one.name,
            trace=one.trace_id.hex(),
            id=one.span_id.hex(),
            parent=one.parent_span_id.hex(),
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in one.links),
            attributes={pair.key: _value(pair.value) for pair in one.attributes},
            is_error=one.status.code == 2,
            began=one.start_time_unix_nano,
            ended=one.end_time_unix_nano,
            service=next(pair.value.string_value for pair in of.resource.attributes if pair.key == "service.name"),
            others=len(one.events) + len(one.status.message),
        )
        for of in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in of.scope_spans
        for one in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
