"""Imports only go down: the table of the design, checked for every module that exists, imports inside functions included."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ("actions", "agents", "console", "local", "demo", "bench", "tests")

DRIVERS = (
    "psycopg",
    "psycopg_pool",
    "psycopg2",
    "asyncpg",
    "pymongo",
    "bson",
    "gridfs",
    "polign_db",
    "sqlite3",
    "secantus",
    "langgraph.checkpoint.postgres",
)
FRAMEWORKS = ("django", "allauth", "celery", "ninja", "csp", "axes", "django_htmx", "template_partials")
# An adapter may stand in several modules of its own: connections, set-up, documents.
POSTGRES = (
    "actions.store.postgres",
    "actions.store.postgres_agents",
    "actions.store.postgres_closing",
    "actions.store.postgres_connection",
    "actions.store.postgres_database",
    "actions.store.postgres_deadlines",
    "actions.store.postgres_discovery",
    "actions.store.postgres_entries",
    "actions.store.postgres_records",
    "actions.store.postgres_rows",
    "actions.store.postgres_setup",
    "actions.store.postgres_statements",
)
MONGO = (
    "actions.store.mongo",
    "actions.store.mongo_agents",
    "actions.store.mongo_closing",
    "actions.store.mongo_connection",
    "actions.store.mongo_database",
    "actions.store.mongo_discovery",
    "actions.store.mongo_documents",
    "actions.store.mongo_entries",
    "actions.store.mongo_records",
    "actions.store.mongo_setup",
)
AUDIT = ("actions.store.audit", "actions.store.audit_file", "actions.store.checkpoints")
POLIGN = ("actions.store.polign", "actions.store.polign_http", "actions.store.polign_records", "actions.store.polign_steps")
CHECKPOINTER = "console.run_checkpoints"
EXPORTER = "console.span_exporter"
SPANS = ("opentelemetry",)
CONCRETE_STORES = ("actions.store.memory", *POSTGRES, *MONGO, *POLIGN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What modules whose name begins with one of `of` may import of this house, and which other packages never.

    `never` wins over `house`; a prefix ends at a dot. `packages` None means any other package that is not in `never`.
    """

    says: str
    of: tuple[str, ...]
    house: tuple[str, ...]
    packages: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()
    exactly: tuple[str, ...] = ()  # modules importable by this very name, though `never` or `house` says otherwise


def rules(modules: Mapping[str, str]) -> list[Rule]:
    """The table, first match wins. The ground floor is whatever lies in actions/ itself and is not a second-floor module."""
    above_ground = ("actions.store", "actions.resolvers", "actions.settle", "actions.correct", "actions.queries")
    ground = tuple(name for name in modules if name.startswith("actions.") and not _within(name, above_ground))
    words = (
        "actions.resolvers.base",
        "actions.resolvers.verdict",
        "actions.resolvers.texts",
    )  # what a form and a verdict consist of
    console_never = (*DRIVERS, *CONCRETE_STORES, *SPANS, CHECKPOINTER, EXPORTER)
    return [
        Rule(says="actions/store/postgres: psycopg and the ground floor", of=POSTGRES,
             house=(*ground, "actions.store"), packages=("psycopg", "psycopg_pool"), exactly=("actions",)),
        Rule(says="actions/store/mongo: pymongo and the ground floor", of=MONGO,
             house=(*ground, "actions.store"), packages=("pymongo", "bson"), exactly=("actions",)),
        Rule(says="actions/store/polign: httpx and the ground floor", of=POLIGN,
             house=(*ground, "actions.store"), packages=("httpx",), exactly=("actions",)),
        Rule(says="actions/store/audit: cryptography for signatures, the codec and the ground floor", of=AUDIT,
             house=(*ground, "actions.store.codec", *AUDIT), packages=("cryptography",), exactly=("actions",)),
        Rule(says="actions/store/*: the ground floor and each other; only an adapter has a driver", of=("actions.store",),
             house=(*ground, "actions.store"), packages=(), exactly=("actions",)),
        Rule(says="actions/settle and queries: the ground floor and store.base; no driver, no concrete store",
             of=("actions.settle", "actions.queries"), house=(*ground, "actions.store.base"), packages=(), exactly=("actions",)),
        Rule(says="actions/correct: the same and settle, whose ids and holders it shares",
             of=("actions.correct",), house=(*ground, "actions.store.base", "actions.settle"), packages=(), exactly=("actions",)),
        Rule(says="actions/resolvers/sql: psycopg, as its protocol library, and what the other kinds may", of=("actions.resolvers.sql",),
             house=(*ground, "actions.resolvers"),
             never=(*(driver for driver in DRIVERS if driver != "psycopg"), *FRAMEWORKS), exactly=("actions",)),
        Rule(says="actions/resolvers/*: the ground floor and a protocol library; no django, no stores", of=("actions.resolvers",),
             house=(*ground, "actions.resolvers"), never=(*DRIVERS, *FRAMEWORKS), exactly=("actions",)),
        Rule(says="the ground floor of actions: the standard library and each other", of=("actions",),
             house=ground, packages=(), exactly=("actions",)),
        Rule(says="agents/*: actions; no django, no celery, no driver, no spans", of=("agents",),
             house=("actions", "agents"), never=(*DRIVERS, *FRAMEWORKS, *SPANS)),
        Rule(says="console/stores.py alone opens stores, and knows no driver", of=("console.stores",),
             house=("actions", "console"), never=tuple(name for name in console_never if name != CHECKPOINTER)),
        Rule(says="console/run_checkpoints: LangGraph's checkpointer with its driver, opened by stores.py alone", of=(CHECKPOINTER,),
             house=ground, never=FRAMEWORKS, exactly=("actions",)),
        Rule(says="console/spans: the exporter, where one is asked for", of=("console.spans",),
             house=("actions", "agents", "console"), never=tuple(name for name in console_never if name != EXPORTER)),
        Rule(says="console/span_exporter: OpenTelemetry, and nothing of this house", of=(EXPORTER,), house=(), never=DRIVERS),
        Rule(says="console/database: Django's engine with its driver, over what our stores know of connections", of=("console.database",),
             house=("actions.store.deadlines", "actions.store.postgres_connection", "actions.store.postgres_deadlines"),
             packages=("django", "psycopg"), exactly=("actions", "actions.store")),
        Rule(says="console/models: the ground floor; no stores, services or views", of=("console.models", "console.migrations"),
             house=(*ground, "console.models", "console.migrations"), never=console_never, exactly=("actions", "console")),
        Rule(says="console/services, tasks, commands: actions, agents, models, stores.py, access.py; no driver, no HttpRequest",
             of=("console.services", "console.tasks", "console.management"), house=("actions", "agents", "console"),
             never=(*console_never, "django.http.HttpRequest", "console.views", "console.forms", "console.htmx", "console.api",
                    "console.urls", "actions.store.open_store")),
        Rule(says="console/views and api: the rest of console, actions.queries, the words of resolvers, the ground floor",
             of=("console.views", "console.api"), house=(*ground, "actions.queries", *words, "console"), never=console_never,
             exactly=("actions", "agents.runs.RunTypeRefused")),
        Rule(says="the rest of console: no driver, and stores only through console/stores.py", of=("console",),
             house=(*ground, "actions.queries", *words, "agents", "console"), never=console_never, exactly=("actions",)),
        Rule(says="local/: servers of a laptop, below demo and bench", of=("local",), house=("actions", "agents", "console", "local")),
        Rule(says="demo/: anything below it", of=("demo",), house=("actions", "agents", "console", "local", "demo")),
        Rule(says="bench/: anything below it", of=("bench",), house=("actions", "agents", "console", "local", "demo", "bench")),
    ]  # fmt: skip


def test_imports_only_go_down() -> None:
    assert violations(house_modules()) == []


def house_modules() -> dict[str, str]:
    """Every module of the house but tests, which may import anything: its dotted name and its file."""
    files = [file for package in HOUSE if package != "tests" for file in (ROOT / package).rglob("*.py")]
    return {_dotted(file.relative_to(ROOT)): str(file.relative_to(ROOT)) for file in sorted(files)}


def violations(modules: Mapping[str, str], sources: Mapping[str, str] | None = None) -> list[str]:
    """`file:line: imports x; rule` for each import that the table does not allow."""
    table = rules(modules)
    found = []
    for module, file in modules.items():
        rule = next(rule for rule in table if _within(module, rule.of))
        source = sources[module] if sources is not None else (ROOT / file).read_text()
        found += [
            f"{file}:{line}: imports {imported}; {rule.says}"
            for line, imported in imports(source, module, modules, is_package=file.endswith("__init__.py"))
            if not _is_allowed(imported, rule)
        ]
    return found


def imports(source: str, module: str, modules: Mapping[str, str], *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported anywhere in a source; `from a import b` is a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, is_package=is_package)
            yield from ((node.lineno, f"{base}.{alias.name}" if alias.name != "*" else base) for alias in node.names)


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _is_allowed(imported: str, rule: Rule) -> bool:
    if _within(imported, rule.never):
        return False
    top = imported.partition(".")[0]
    if top in HOUSE:
        return _within(imported, rule.house) or imported in rule.exactly
    return top in sys.stdlib_module_names or rule.packages is None or top in rule.packages


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _dotted(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_only_settings_read_the_environment() -> None:
    """Entry points may name the settings module, as Django's own do."""
    readers = [
        f"{file}:{node.lineno}"
        for module, file in house_modules().items()
        if module.startswith("console.") and module != "console.settings"
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv") and "setdefault" not in _line(file, node.lineno)
    ]
    assert readers == []


def _line(file: str, number: int) -> str:
    return (ROOT / file).read_text().splitlines()[number - 1]


WRONG = [
    ("actions/rules.py", "import httpx"),
    ("actions/rules.py", "from actions.store import base"),
    ("actions/rules.py", "def f():\n    from django.conf import settings"),
    ("actions/store/base.py", "import psycopg"),
    ("actions/store/postgres.py", "import pymongo"),
    ("actions/store/postgres.py", "from console import stores"),
    ("actions/store/postgres.py", "from .. import settle"),
    ("actions/settle.py", "from actions.store.postgres import PostgresStore"),
    ("actions/settle.py", "from actions.store import open_store"),
    ("actions/queries.py", "from .store import memory"),
    ("actions/resolvers/mail.py", "from actions.store.base import ActionStore"),
    ("actions/resolvers/mail.py", "import psycopg"),
    ("actions/resolvers/sql_query.py", "import psycopg"),
    ("actions/resolvers/sql.py", "import pymongo"),
    ("actions/resolvers/sql.py", "import psycopg_pool"),
    ("actions/resolvers/sql.py", "from actions.store.base import ActionStore"),
    ("agents/harness.py", "import psycopg"),
    ("agents/harness.py", "import celery"),
    ("agents/langgraph/tools.py", "import psycopg"),
    ("agents/steps.py", "from opentelemetry import trace"),
    ("console/services/advancing.py", "from console import span_exporter"),
    ("console/spans.py", "from opentelemetry import trace"),
    ("agents/harness.py", "from console import models"),
    ("console/stores.py", "import psycopg"),
    ("console/stores.py", "from actions.store.postgres import PostgresStore"),
    ("console/stores.py", "from langgraph.checkpoint.postgres import PostgresSaver"),
    ("console/services/runs.py", "from console.run_checkpoints import open_saver"),
    ("console/run_checkpoints.py", "from django.db import connections"),
    ("agents/steps.py", "from langgraph.checkpoint.postgres import PostgresSaver"),
    ("console/services/decide.py", "from django.http import HttpRequest"),
    ("console/services/decide.py", "from console.views import queue"),
    ("console/services/decide.py", "from actions.store import open_store"),
    ("console/tasks.py", "import pymongo"),
    ("console/views/queue.py", "from actions.settle import settle"),
    ("console/views/queue.py", "from actions.store.base import ActionStore"),
    ("console/api/actions.py", "import actions.store"),
    ("console/access.py", "from actions.store import open_store"),
    ("console/models/decision.py", "from console.services import decide"),
    ("console/models/decision.py", "from actions.settle import settle"),
    ("console/views/queue.py", "from local import postgres"),
    ("agents/harness.py", "from demo import cast"),
    ("local/postgres.py", "from demo import cast"),
    ("demo/cast.py", "from bench import queue"),
    ("demo/cast.py", "from tests import servers"),
]


@pytest.mark.parametrize(("file", "source"), WRONG)
def test_an_import_upwards_is_found_with_its_file_line_and_rule(file: str, source: str) -> None:
    (complaint,) = violations(*_synthetic(file, f"import json\n{source}\n"))

    assert complaint.startswith(f"{file}:{2 + source.count(chr(10))}: imports ")
    assert complaint.partition("; ")[2]


RIGHT = [
    ("actions/rules.py", "from actions.records import Action\nimport json"),
    ("actions/store/postgres.py", "from psycopg_pool import ConnectionPool\nfrom . import base\nfrom ..records import Action"),
    ("actions/settle.py", "from actions.store.base import ActionStore"),
    ("actions/resolvers/mail.py", "import imap_tools\nfrom actions.records import Action"),
    ("actions/resolvers/sql.py", "import psycopg\nfrom actions.resolvers import base"),
    ("agents/harness.py", "from actions import rules"),
    ("console/stores.py", "from actions.store import open_store"),
    ("console/services/decide.py", "from actions.settle import settle\nfrom console.stores import get_store"),
    (
        "console/views/queue.py",
        "from actions import queries\nfrom console import services, access\nfrom django.http import HttpRequest",
    ),
    ("console/models/decision.py", "from actions.records import ActionRef"),
    ("demo/cast.py", "from local import postgres"),
]


@pytest.mark.parametrize(("file", "source"), RIGHT)
def test_an_import_downwards_is_allowed(file: str, source: str) -> None:
    assert violations(*_synthetic(file, source)) == []


def _synthetic(file: str, source: str) -> tuple[dict[str, str], dict[str, str]]:
    """A house of empty modules, and the one under test."""
    others = ["actions/records.py", "actions/rules.py", "actions/store/__init__.py", "actions/store/base.py", "console/stores.py"]
    modules = {_dotted(Path(name)): name for name in [*others, file]}
    return modules, {module: source if name == file else "" for module, name in modules.items()}
