"""What `--store` chooses: which stores a demo has, by their names in ACTION_STORES, and what keeps each of them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping

POSTGRES, MONGO = "postgres", "mongo"
MAIN, OPS = "main", "ops"

STORES: Mapping[str, Mapping[str, str]] = {
    "postgres": {MAIN: POSTGRES},
    "mongo": {MAIN: MONGO},
    "both": {MAIN: POSTGRES, OPS: MONGO},  # operations keep their agents' records apart
}
