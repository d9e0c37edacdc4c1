"""Work that no address does: what workers do, people and views made at once, templates by themselves. A process with the console's settings.

`Inside` is the benchmark's end; this module run as a program is the other. A line of JSON asks, a line of JSON answers.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from local.processes import ServerError

ROOT = Path(__file__).resolve().parent.parent
CALLABLE = "bench.inside.answer"
RESOLVER = "bench-world"


class Inside:
    """The other process, while the block lasts. `log`: where its lines of log go, which are not the benchmark's."""

    def __init__(self, environment: Mapping[str, str], *, log: Path) -> None:
        line = [sys.executable, "-m", "bench.inside"]
        self._log = log
        with log.open("a") as lines:
            self._process = subprocess.Popen(
                line, env=dict(environment), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=lines, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # it ends at the end of its questions
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def ask(self, name: str, **arguments: Any) -> Any:
        """Let it do one thing.

        Raises:
            ServerError: it failed, or has ended.
        """
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps({"name": name, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise ServerError(f"inside: {name}: {self._how_it_ended()}") from exc
        answer = json.loads(self._process.stdout.readline() or json.dumps({"problem": self._how_it_ended()}))
        if "problem" in answer:
            raise ServerError(f"inside: {name}: {answer['problem']}")
        return answer["said"]

    def _how_it_ended(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the process has ended: {lines[-1]}" if lines else "the process has ended"


# --- the other end ----------------------------------------------------------------------------------------------------


def answer(action: Any) -> Any:
    """A resolver of a team that finds exactly what was asked for, at once."""
    from actions.resolvers.base import Canary, Finding, Match, MatchedBy, Reply

    args = json.loads(action.args)
    match = Match(object_id=f"msg-{action.key[:12]}", by=MatchedBy.KEY, recipients=(str(args.get("to", "")),))
    return Finding(reply=Reply.ANSWERED, matches=(match,), canary=Canary.FOUND, is_complete=True, asked_at=0)


def make_operators(count: int) -> list[str]:
    """Tokens of so many people who may settle everything."""
    from django.contrib.auth.models import User

    from console.services.tokens import create_user_token

    people = [User.objects.create_superuser(f"operator-{number}") for number in range(count)]
    return [create_user_token(person) for person in people]


def make_views(user: str) -> list[int]:
    """Three saved views, whose counts stand above the queue: by tool, by age, by text."""
    from django.contrib.auth.models import User

    from console.services.saved_views import save_view

    person = User.objects.get(username=user)
    queries = {"Mails": "tool=send_email", "Old": "age=86400", "Refunds": "text=refund"}
    return [save_view(name, query, by=person).id for name, query in queries.items()]


def remove_views(user: str, numbers: list[int]) -> None:
    from django.contrib.auth.models import User

    from console.services.saved_views import delete_view

    for number in numbers:
        delete_view(number, by=User.objects.get(username=user))


def time_template(user: str, path: str, times: int, headers: dict[str, str]) -> dict[str, Any]:
    """One page in this process: milliseconds of the whole and of its templates, statements of the console's database."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from console import htmx as htmx_module

    htmx: Any = htmx_module  # its `render` is Django's; what draws through it is timed

    client = Client(headers={"host": "127.0.0.1", **headers})
    client.force_login(User.objects.get(username=user), backend="console.backends.People")
    render, rendered, whole = htmx.render, list[float](), list[float]()

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return render(*args, **kwargs)
        finally:
            rendered.append((time.perf_counter() - began) * 1000)

    htmx.render = timed
    try:
        for _ in range(times + 2):
            began = time.perf_counter()
            answered = client.get(path)
            whole.append((time.perf_counter() - began) * 1000)
            if answered.status_code != 200:
                raise RuntimeError(f"{path} answered {answered.status_code}")
        with CaptureQueriesContext(connection) as queries:
            client.get(path)
    finally:
        htmx.render = render
    return {"template": rendered[2 : times + 2], "whole": whole[2:], "queries": len(queries)}


def decide_batch(user: str, refs: list[tuple[str, int]]) -> dict[str, Any]:
    """Preview, go, and a worker's steps until every item is decided."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from actions.records import ActionRef
    from console.models import BatchItem, Decision, DecisionState
    from console.services import batches, bulk

    person = User.objects.get(username=user)
    began = time.perf_counter()
    batch = bulk.draft_selected([ActionRef("main", agent, seq) for agent, seq in refs], by=person)
    previewed = time.perf_counter()
    batch, _ = bulk.commit(batch.batch_id, by=person, outcome="done", reason="found in the Sent folder")
    steps = []
    with CaptureQueriesContext(connection) as queries:
        before = time.perf_counter()
        is_left = batches.advance(batch.pk)
        steps.append((time.perf_counter() - before) * 1000)
    first = len(queries)
    while is_left:
        before = time.perf_counter()
        is_left = batches.advance(batch.pk)
        steps.append((time.perf_counter() - before) * 1000)
    items = BatchItem.objects.filter(batch=batch)
    written = Decision.objects.filter(pk__in=items.values("decision"), state=DecisionState.WRITTEN).count()
    return {
        "preview_ms": (previewed - began) * 1000,
        "whole_ms": (time.perf_counter() - previewed) * 1000,
        "steps": steps,
        "statements_an_item": first / min(batches.STEP, len(refs)),
        "written": written,
    }


def prepare_asking(user: str, tool: str) -> None:
    """The policy that lets every mail be asked about by our own callable."""
    from django.contrib.auth.models import User

    from console.services.definitions import save_definition
    from console.services.policies import policy_of, save_policy

    person = User.objects.get(username=user)
    values = {"callable": CALLABLE, "proves_absence": "yes"}
    save_definition(RESOLVER, "python", values, {}, seen_version=0, by=person, per_minute=600, at_once=8)
    save_policy(tool, {"resolver": RESOLVER}, seen_version=policy_of(tool).version, by=person)


def sweep(most: int) -> dict[str, Any]:
    """A sweep that finds what nobody was asked about, one that finds nothing new, and then each question, as workers take them.

    The provider's pace is put aside: what is measured is our work, not his patience.
    """
    from django.utils import timezone

    from console.models import Inquiry, Pace, StoredVerdict
    from console.services import inquiries, resolve

    began = time.perf_counter()
    found = inquiries.discover()
    discovered = time.perf_counter()
    inquiries.discover()
    again = time.perf_counter()
    each, before = [], StoredVerdict.objects.count()
    for pk in Inquiry.objects.filter(due_at__lte=timezone.now()).order_by("pk").values_list("pk", flat=True)[:most]:
        Pace.objects.all().delete()
        start = time.perf_counter()
        resolve.ask(pk)
        each.append((time.perf_counter() - start) * 1000)
    return {
        "found": found,
        "discover_ms": (discovered - began) * 1000,
        "again_ms": (again - discovered) * 1000,
        "each": each,
        "verdicts": StoredVerdict.objects.count() - before,
    }


WORK: Mapping[str, Callable[..., Any]] = {
    one.__name__: one for one in (make_operators, make_views, remove_views, time_template, decide_batch, prepare_asking, sweep)
}


def serve(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        asked = json.loads(line)
        try:
            yield json.dumps({"said": WORK[asked.pop("name")](**asked)})
        except Exception as exc:
            yield json.dumps({"problem": f"{type(exc).__name__}: {exc}"[:400]})


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    for said in serve(iter(sys.stdin)):
        print(said, flush=True)
