"""The JSON API at /api/v1/: what programs and agents may ask. Bearer tokens only, so no cookie can be misused from another site.

One file for each noun that is asked about, with its routes and shapes; what goes for all of them is in the others.
"""

from __future__ import annotations

from console.api import (
    actions,
    approvals,
    batches,
    claims,
    compensations,
    corrections,
    decisions,
    entries,
    evictions,
    replays,
    run_events,
    runs,
    tokens,
)
from console.api import errors as _errors  # noqa: F401 - they tell `api` how each is answered
from console.api import run_errors as _run_errors  # noqa: F401
from console.api.methods import nothing_here, refuse_others
from console.api.root import api as api

for _noun in (
    actions,
    decisions,
    tokens,
    corrections,
    claims,
    evictions,
    batches,
    entries,
    replays,
    runs,
    run_events,
    compensations,
    approvals,
):
    refuse_others(_noun.router)
    api.add_router("", _noun.router)
api.add_router("", nothing_here)  # the last, because it takes every address that is left
