"""What this process alone counts: its requests, its listeners, its memory. What all of them count together: services/tallies.py."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

from console.watch import watcher

REGISTRY = CollectorRegistry()
WEB_REQUESTS = Histogram(
    "settle_web_request_seconds",
    "Requests that this web process answered; of a stream the time to its first byte. Routes are patterns.",
    ("method", "route", "status"),
    buckets=(0.025, 0.1, 0.25, 1.0, 5.0),
    registry=REGISTRY,
)
Gauge("settle_web_listeners", "Browser tabs that hold an event stream of this web process.", registry=REGISTRY).set_function(
    lambda: watcher.listeners
)
ProcessCollector(namespace="settle_web", registry=REGISTRY)
