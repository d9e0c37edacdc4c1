"""The numbers of the whole deployment, as they stand in the console's database: for programs that watch it.

No store is asked, and nothing is counted that grows with the history: what is pending or due by partial indexes and up to a bound, each chain
by its newest row, the rest as sweeps and processes left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db import connection
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from actions.errors import StoreError
from console.models import PENDING_STATES
from console.schedule import SCHEDULE
from console.services.sweeps import LATE_AFTER
from console.services.tallies import BOUNDS, LABELS, read_tallies
from console.stores import CONSOLE_CHAIN, console_chain

MOST_COUNTED = 10_000
"""What is due is counted so far; more is more than enough."""

_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "settle_open_actions": ("Open actions of a store by state, as a sweep last saw them.", ("store", "state")),
    "settle_store_up": ("1 where a store answered the last sweep that looked, else 0.", ("store",)),
    "settle_store_look_age_seconds": ("Since a sweep last looked at a store.", ("store",)),
    "settle_decisions_pending": ("Decisions on their way: proposed, held, waiting.", ("state", "outcome")),
    "settle_due": (f"What a sweep should have taken by now, counted up to {MOST_COUNTED}.", ("kind",)),
    "settle_incidents_open": ("Incidents that nobody has closed.", ()),
    "settle_awaiting_person_seconds": (
        "How long the oldest of what only a second person can let go on has waited; 0 where none does.",
        ("kind",),
    ),
    "settle_sweep_age_seconds": (
        "Since a sweep last ran to its end, or where it never did since the last migration.",
        ("sweep",),
    ),
    "settle_beat_alive": ("1 where any sweep ran within a minute: beat sent it, the broker brought it, a worker ran it.", ()),
    "settle_chain_entries": ("Number of the newest entry of a history, as last seen.", ("chain",)),
    "settle_chain_checkpointed": ("Up to which entry a history is signed.", ("chain",)),
    "settle_chain_anchored": ("Up to which entry a history is signed and the signature has left the databases.", ("chain",)),
    "settle_chain_anchors_waiting": ("Signatures that have not reached one of the places that AUDIT_ANCHORS names now.", ()),
    "settle_chain_verified": ("Entries that held when a history was last verified.", ("chain",)),
    "settle_chain_intact": (
        "1 where the last verification that could read a history found it whole and unchanged, else 0.",
        ("chain",),
    ),
    "settle_chain_verified_age_seconds": (
        "Since a verification that could read a history last ended, or where none did since one was first begun.",
        ("chain",),
    ),
}
_COUNTERS: Mapping[str, str] = {
    "settle_decisions_total": "Decisions that came into a state, by outcome.",
    "settle_corrections_total": "Corrections that came into a state, by outcome.",
    "settle_refusals_total": "Requests that were refused for want of a right, of a second person or of a proof of identity.",
    "settle_resolver_questions_total": "Questions that a resolver was asked and whose answer was kept.",
    "settle_resolver_verdicts_total": "What came of them.",
    "settle_resolver_failures_total": "Questions that nobody answered.",
    "settle_resolver_waits_total": "Times that a question waited because its provider may not be asked more often.",
}

_PENDING = [state.value for state in PENDING_STATES]
_READ = " UNION ALL ".join(
    [
        """SELECT 'settle_decisions_pending' AS name, ARRAY[state, outcome]::text[] AS labels, count(*)::float8 AS value
           FROM console_decision WHERE state = ANY(%(pending)s) GROUP BY state, outcome""",
        """SELECT 'settle_due', ARRAY['decisions'], count(*) FROM (
             SELECT FROM console_decision WHERE state = ANY(%(pending)s) AND next_try_at <= statement_timestamp() LIMIT %(most)s) AS due""",
        """SELECT 'settle_due', ARRAY['corrections'], count(*) FROM (
             SELECT FROM console_correction WHERE state = 'waiting' AND next_try_at <= statement_timestamp() LIMIT %(most)s) AS due""",
        """SELECT 'settle_due', ARRAY['batches'], count(*) FROM (
             SELECT FROM console_batch WHERE due_at <= statement_timestamp() LIMIT %(most)s) AS due""",
        """SELECT 'settle_due', ARRAY['questions'], count(*) FROM (
             SELECT FROM console_inquiry WHERE due_at <= statement_timestamp() LIMIT %(most)s) AS due""",
        """SELECT 'settle_due', ARRAY['notices'], count(*) FROM (
             SELECT FROM console_notice WHERE state = 'due' LIMIT %(most)s) AS due""",
        "SELECT 'settle_incidents_open', ARRAY[]::text[], count(*) FROM console_incident WHERE closed_at IS NULL",
        # What never ran has an age as well: an alert on a number that is not there never fires.
        """SELECT 'settle_sweep_age_seconds', ARRAY[sweep.name], extract(epoch FROM statement_timestamp() - COALESCE(
             ran.ran_at, (SELECT max(applied) FROM django_migrations WHERE app = 'console'))) FROM unnest(%(sweeps)s::text[]) AS sweep (name)
           LEFT JOIN console_sweep AS ran ON ran.name = sweep.name""",
        """SELECT 'settle_beat_alive', ARRAY[]::text[],
             EXISTS (SELECT FROM console_sweep WHERE ran_at >= statement_timestamp() - make_interval(secs => %(late)s))::int""",
        """SELECT 'settle_awaiting_person_seconds', ARRAY[one.kind], COALESCE(extract(epoch FROM statement_timestamp() - one.since), 0)
           FROM (VALUES
             ('decision', (SELECT min(created_at) FROM console_decision WHERE state = 'proposed')),
             ('correction', (SELECT min(created_at) FROM console_correction WHERE state = 'proposed')),
             ('approval', (SELECT min(asked_at) FROM console_approval WHERE state = 'pending'))
           ) AS one (kind, since)""",
        "SELECT 'settle_store_up', ARRAY[store], is_up::int FROM console_store_look WHERE store = ANY(%(stores)s)",
        """SELECT 'settle_store_look_age_seconds', ARRAY[store], extract(epoch FROM statement_timestamp() - looked_at)
           FROM console_store_look WHERE store = ANY(%(stores)s)""",
        "SELECT 'settle_chain_entries', ARRAY[store], entries FROM console_store_look WHERE store = ANY(%(stores)s)",
        # These states are our own words, written by services/looks.py.
        """SELECT 'settle_open_actions', ARRAY[look.store, one.key], one.value::float8
           FROM console_store_look AS look, jsonb_each_text(look.states::jsonb) AS one WHERE look.store = ANY(%(stores)s)""",
        """SELECT 'settle_chain_checkpointed', ARRAY[chain.name], COALESCE(
             (SELECT number FROM console_checkpoint AS c WHERE c.name = chain.name ORDER BY c.id DESC LIMIT 1), 0)
           FROM unnest(%(chains)s::text[]) AS chain (name)""",
        """SELECT 'settle_chain_anchored', ARRAY[chain.name], newest.number FROM unnest(%(chains)s::text[]) AS chain (name), LATERAL (
             SELECT number FROM console_checkpoint AS c WHERE c.name = chain.name
               AND EXISTS (SELECT FROM console_checkpoint_delivery AS d WHERE d.checkpoint_id = c.id AND d.sent_at IS NOT NULL)
             ORDER BY c.id DESC LIMIT 1) AS newest""",
        """SELECT 'settle_chain_anchors_waiting', ARRAY[]::text[], count(*) FROM (
             SELECT FROM console_checkpoint_delivery WHERE sent_at IS NULL AND sink = ANY(%(places)s) LIMIT %(most)s) AS unsent""",
        # A store that did not answer says nothing about its history: what was found before counts, and grows older.
        """SELECT one.name, ARRAY[chain.name], one.value FROM unnest(%(chains)s::text[]) AS chain (name), LATERAL (
             SELECT * FROM console_verification AS v
             WHERE v.name = chain.name AND v.finished_at IS NOT NULL AND v.is_known ORDER BY v.id DESC LIMIT 1
           ) AS newest, LATERAL (VALUES
             ('settle_chain_verified', newest.entries::float8),
             ('settle_chain_intact', (newest.broken = '' AND newest.missing = '' AND newest.problem = '')::int)
           ) AS one (name, value)""",
        """SELECT 'settle_chain_verified_age_seconds', ARRAY[chain.name], extract(epoch FROM statement_timestamp() - last.at)
           FROM unnest(%(chains)s::text[]) AS chain (name), LATERAL (SELECT COALESCE(
             (SELECT v.finished_at FROM console_verification AS v
              WHERE v.name = chain.name AND v.finished_at IS NOT NULL AND v.is_known ORDER BY v.id DESC LIMIT 1),
             (SELECT v.started_at FROM console_verification AS v WHERE v.name = chain.name ORDER BY v.id LIMIT 1)) AS at) AS last
           WHERE last.at IS NOT NULL""",
    ]
)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    labels: tuple[str, ...]
    value: float


class Deployment:
    """A collector for prometheus_client: two statements, and one to the console's own history."""

    def collect(self) -> Iterator[Metric]:
        rows = [*_read(), *_own_chain()]
        yield from _gauges(rows)
        tallies = read_tallies()
        for name, says in _COUNTERS.items():
            counter = CounterMetricFamily(name, says, labels=LABELS[name])
            for labels, value in tallies.get(name, {}).items():
                counter.add_metric(labels, value)
            yield counter
        yield _settle_seconds(tallies)


def _read() -> list[_Row]:
    stores = list(settings.ACTION_STORES)
    asked: dict[str, list[str] | int | float] = {
        "stores": stores,
        "chains": [*stores, CONSOLE_CHAIN],
        "pending": _PENDING,
        "most": MOST_COUNTED,
    }
    asked |= {"sweeps": list(SCHEDULE), "places": list(settings.AUDIT_ANCHORS), "late": LATE_AFTER.total_seconds()}
    with connection.cursor() as cursor:
        cursor.execute(_READ, asked)
        return [_Row(name, tuple(labels), float(value)) for name, labels, value in cursor.fetchall()]


def _own_chain() -> list[_Row]:
    try:
        return [_Row("settle_chain_entries", (CONSOLE_CHAIN,), console_chain().read_head().number)]
    except StoreError:
        return []  # not known now, and nothing else is held up by it


def _gauges(rows: Iterable[_Row]) -> Iterator[Metric]:
    gauges = {name: GaugeMetricFamily(name, says, labels=labels) for name, (says, labels) in _GAUGES.items()}
    for row in rows:
        gauges[row.name].add_metric(row.labels, row.value)
    yield from gauges.values()


def _settle_seconds(tallies: Mapping[str, Mapping[tuple[str, ...], float]]) -> Metric:
    """Kept by the bound under which each fell, told as Prometheus wants it: up to each bound."""
    histogram = HistogramMetricFamily("settle_settle_seconds", "How long a store took to write one decision.", labels=("store",))
    counted, sums = tallies.get("settle_settle_seconds_bucket", {}), tallies.get("settle_settle_seconds_sum", {})
    for (store,), total in sums.items():
        below, buckets = 0.0, []
        for bound in [*(f"{one:g}" for one in BOUNDS), "+Inf"]:
            below += counted.get((store, bound), 0.0)
            buckets.append((bound, below))
        histogram.add_metric((store,), buckets, total)
    return histogram
