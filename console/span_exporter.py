"""Spans on their way to a collector, by OpenTelemetry's own SDK over OTLP/HTTP. Imported by spans.py alone, and only where they are asked for.

A thread of the process sends them in batches. What the collector does not take in time is lost; nobody waits for it but the end of the process.
Headers, certificates and samplers are the SDK's own variables (OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER ...).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

AT_MOST = 2048
"""So many spans wait, and go in one batch: the end of a process waits for two at most, the one that is on its way and the rest."""

_asked: ContextVar[tuple[int, int]] = ContextVar("ids of the span that is being made; 0: a random one", default=(0, 0))
_lock = threading.Lock()
_sender: _Sender | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A span that is the current one."""

    span: trace.Span
    token: Token[contexts.Context]
    at: int


@dataclass(frozen=True, slots=True)
class _Sender:
    pid: int
    processor: BatchSpanProcessor
    tracer: trace.Tracer


class _Ids(RandomIdGenerator):
    def generate_trace_id(self) -> int:
        return _asked.get()[0] or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return _asked.get()[1] or super().generate_span_id()

    def is_trace_id_random(self) -> bool:
        return False


def trace_id_of(agent: str) -> int:
    return int.from_bytes(_digest("trace", agent)[:16]) or 1


def first_span_of(agent: str) -> int:
    """Of the first step of a run."""
    return int.from_bytes(_digest("step", agent)[:8]) or 1


def begin(name: str, agent: str, *, is_first: bool, link: str = "") -> Begun:
    """A root span of this agent's trace, current until it is ended or dropped. `link`: another agent, whose first step it points to."""
    at = time.time_ns()
    span = _root(name, agent, at=at, span_id=first_span_of(agent) if is_first else 0, links=[_link(link)] if link else [])
    return Begun(span=span, token=contexts.attach(trace.set_span_in_context(span)), at=at)


def end(begun: Begun, attributes: Mapping[str, Any], *, is_error: bool) -> None:
    contexts.detach(begun.token)
    _end(begun.span, attributes, time.time_ns(), is_error=is_error)


def drop(begun: Begun) -> None:
    """A span that never ends is never sent."""
    contexts.detach(begun.token)


def add_child(begun: Begun, name: str, attributes: Mapping[str, Any], *, began: int, ended: int | None, is_error: bool) -> None:
    """A whole span within another that goes on. Times are cut to lie in it: records have their store's clock, and calls may be older."""
    now = time.time_ns()
    start = min(max(began, begun.at), now)
    child = _tracer().start_span(name, context=trace.set_span_in_context(begun.span, contexts.Context()), start_time=start)
    _end(child, attributes, min(max(ended if ended is not None else now, start), now), is_error=is_error)


def tell(name: str, agent: str, attributes: Mapping[str, Any], *, began: int, ended: int, is_error: bool) -> None:
    """A root span of this agent's trace that is over."""
    _end(_root(name, agent, at=began), attributes, ended, is_error=is_error)


def flush() -> None:
    """Send what waits, or give up: SPAN_EXPORT_S for each of two batches. The next span begins anew."""
    global _sender
    with _lock:
        sender, _sender = _sender, None
    if sender is not None and sender.pid == os.getpid():
        sender.processor.shutdown()


def _root(name: str, agent: str, *, at: int, span_id: int = 0, links: list[trace.Link] | None = None) -> trace.Span:
    asked = _asked.set((trace_id_of(agent), span_id))
    try:
        return _tracer().start_span(name, context=contexts.Context(), start_time=at, links=links)
    finally:
        _asked.reset(asked)


def _end(span: trace.Span, attributes: Mapping[str, Any], at: int, *, is_error: bool) -> None:
    span.set_attributes(attributes)
    if is_error:
        span.set_status(trace.StatusCode.ERROR)
    span.end(at)


def _link(agent: str) -> trace.Link:
    return trace.Link(trace.SpanContext(trace_id_of(agent), first_span_of(agent), is_remote=True))


def _digest(what: str, agent: str) -> bytes:
    return hashlib.sha256(f"settle {what} {agent}".encode("utf-8", "backslashreplace")).digest()


def _tracer() -> trace.Tracer:
    """Of this process: a thread does not survive a fork, and what a parent has not sent is the parent's."""
    global _sender
    with _lock:
        if _sender is None or _sender.pid != os.getpid():
            exporter = OTLPSpanExporter(
                endpoint=f"{settings.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces", timeout=settings.SPAN_EXPORT_S
            )
            processor = BatchSpanProcessor(
                exporter,
                max_queue_size=AT_MOST,
                max_export_batch_size=AT_MOST,
                schedule_delay_millis=settings.SPAN_EVERY_S * 1000,
            )
            provider = TracerProvider(
                resource=Resource.create({"service.name": settings.OTEL_SERVICE_NAME}),
                id_generator=_Ids(),
                shutdown_on_exit=False,
            )
            provider.add_span_processor(processor)
            _sender = _Sender(os.getpid(), processor, provider.get_tracer("settle"))
        return _sender.tracer


atexit.register(flush)
