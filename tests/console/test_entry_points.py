"""Every way into the console: each is listed here, and none decides without the right or without the second person.

A new address, route, command or task fails the first test until somebody has said which kind it is; all of them are then called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.urls import URLPattern, URLResolver, reverse

from actions.records import ActionRef
from console import tasks, urls
from console.api import api as routes
from console.models import Decision
from console.services.policies import save_policy
from console.services.tokens import create_agent_token
from tests.console.conftest import Api, Cast
from tests.console.test_services_approve import PAY, hold_is_over, nothing_written, payment, proposed
from tests.console.view_helpers import browser, filled, path_of
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("four_eyes")]

GATED_PAGES = {
    "decision",
    "decision-approve",
    "decision-turn-down",
    "decision-break-glass",
    "decision-withdraw",
    "decision-through",
}
OTHER_PAGES = {
    *("action", "action-arguments", "action-ask", "action-result", "action-status", "agent", "agent-ask", "asking"),
    *("decision-held", "decision-preview", "entry", "events", "eviction", "history", "hook", "incident", "incidents"),
    *("incidents-banner", "healthz", "login", "logout", "proposals", "queue", "readyz", "resolver", "resolver-dry-run"),
    *("resolver-expressions", "resolver-hook", "resolver-new", "resolver-new-dry-run", "resolver-new-expressions", "resolvers"),
    *("simulator", "stores", "theme", "tool", "tools"),
}
_ACTION = "/api/v1/actions/{store}/{agent}/{seq}"
GATED_ROUTES = {
    ("post", f"{_ACTION}/decision"),
    ("delete", f"{_ACTION}/decision"),
    ("post", f"{_ACTION}/decision/approve"),
    ("post", f"{_ACTION}/decision/turn-down"),
    ("post", f"{_ACTION}/decision/break-glass"),
    ("post", f"{_ACTION}/decision/through-server"),
}
OTHER_ROUTES = {
    ("get", "/api/v1/actions"),
    ("get", _ACTION),
    ("get", f"{_ACTION}/decision"),
    ("post", f"{_ACTION}/resolve"),
    ("post", "/api/v1/agents/{store}/{agent}/eviction"),
    ("get", "/api/v1/audit"),
}
GATED_COMMANDS = {
    "settle": ["done", "--reason", "seen in the dashboard"],
    "approve": ["--reason", "seen in the dashboard"],
}
OTHER_COMMANDS = {
    *("check_stores", "create_token", "create_user", "discover_stores", "evict", "open_actions", "prepare_store"),
    *("reseal_secrets", "revoke_token", "set_role", "verify_audit"),
}
TASKS = {"deliver", "sweep", "ask", "sweep_inquiries", "recheck_failed"}

PARTS = {
    "store": "main",
    "agent": "billing-7",
    "slug": PAY,
    "name": "sent-folder",
    "kind": "http",
    "number": 1,
    "provider": "generic",
    "token": "x",
}


@pytest.fixture
def four_eyes(amy: User) -> None:
    save_policy(PAY, {"second_person_when": "amount > 1000"}, seen_version=0, by=amy)


@pytest.fixture
def all_alone(person: Cast) -> User:
    """Somebody with every role: what stops them is the gate alone."""
    return person("all", "viewer", "operator", "approver", "auditor", "admin")


def pages(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    for one in patterns:
        if isinstance(one, URLPattern):
            yield one
        elif one.namespace is None and one.app_name != "ninja":
            yield from pages(one.url_patterns)


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    schema = routes.get_openapi_schema(path_prefix="/api/v1/")
    return {(method, path): one for path, methods in schema["paths"].items() for method, one in methods.items()}


def test_every_entry_point_is_listed() -> None:
    assert {str(one.name) for one in pages(urls.urlpatterns)} == GATED_PAGES | OTHER_PAGES
    assert set(operations()) == GATED_ROUTES | OTHER_ROUTES
    folder = Path(tasks.__file__).parent / "management" / "commands"
    assert {file.stem for file in folder.glob("[a-z]*.py")} == set(GATED_COMMANDS) | OTHER_COMMANDS
    assert {name.rpartition(".")[2] for name in current_app.tasks if name.startswith("console.")} == TASKS


def what_is_sent(ref: ActionRef, row: Decision | None, page: dict[str, str]) -> dict[str, str]:
    """Everything that any of our forms or bodies asks for, as truthfully as an impatient person would fill it in."""
    said = {
        "outcome": "done",
        "reason": "seen in the dashboard",
        "glass_reason": "short",
        "confirm": "billing-7",
        "holder": "pod-a",
    }
    return {**page, **said, "decision_id": row.decision_id if row else f"decision-{ref.seq}"}


def try_pages(
    writer: RecordWriter, who: User, begin: Callable[[ActionRef], Decision | None], names: set[str] | None = None
) -> Iterator[tuple[str, ActionRef, Any]]:
    """POST to every address (or to these), each about an action of its own. Signing out comes last."""
    client = browser(who, raise_request_exception=False)
    wanted = [one for one in pages(urls.urlpatterns) if names is None or one.name in names]
    for seq, one in enumerate(sorted(wanted, key=lambda page: (page.name == "logout", str(page.name))), start=1):
        ref = payment(writer, seq)
        row = begin(ref)
        form = (
            filled(client, ref, reason="seen in the dashboard")
            if row is None and one.name == "decision" and names is None
            else {}
        )
        address = reverse(str(one.name), kwargs=_arguments(one, seq))
        yield str(one.name), ref, client.post(address, what_is_sent(ref, row, form))


def _arguments(one: URLPattern, seq: int) -> dict[str, Any]:
    """What this address is made of; the converters of the patterns around it are Django's own business."""
    if str(one.name).startswith(("action", "decision")):
        return {"store": "main", "agent": "billing-7", "seq": seq}
    return {name: PARTS[name] for name in one.pattern.converters}


def try_routes(
    writer: RecordWriter, caller: Api, begin: Callable[[ActionRef], Decision | None]
) -> Iterator[tuple[str, ActionRef, int]]:
    """Call every route that is no GET, each about an action of its own and with the body that its schema asks for."""
    schemas = routes.get_openapi_schema(path_prefix="/api/v1/")["components"]["schemas"]
    for seq, ((method, path), one) in enumerate(sorted(operations().items(), key=lambda item: item[0]), start=101):
        if method == "get":
            continue
        ref = payment(writer, seq)
        row = begin(ref)
        address = path.removeprefix("/api/v1/").format(store="main", agent="billing-7", seq=seq)
        if method == "delete":
            yield f"{method} {path}", ref, caller.delete(address)[0]
            continue
        body: dict[str, str] = {}
        if "requestBody" in one:
            name = one["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            sent = what_is_sent(ref, row, {})
            body = {field: sent[field] for field in schemas[name]["properties"] if field in sent}
            if path.endswith("break-glass"):
                body["reason"] = "short"  # with a longer one it passes, and is on the record
        yield f"{method} {path}", ref, caller.post(address, body)[0]


def try_commands(
    writer: RecordWriter, who: User, begin: Callable[[ActionRef], Decision | None]
) -> Iterator[tuple[str, ActionRef, str]]:
    for seq, (name, arguments) in enumerate(GATED_COMMANDS.items(), start=201):
        ref = payment(writer, seq)
        begin(ref)
        try:
            call_command(
                name, "main", "billing-7", str(seq), *arguments, user=who.get_username(), stdout=StringIO(), stderr=StringIO()
            )
            said = "done"
        except CommandError as exc:
            said = str(exc)
        yield name, ref, said


def test_who_has_every_role_gets_nothing_of_their_own_past_the_second_person(
    memory: RecordWriter, all_alone: User, api: Callable[[User], Api]
) -> None:
    def begin(ref: ActionRef) -> Decision:
        return proposed(ref, all_alone)

    seen: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.ROOT_URLCONF", "console.urls")
        for name, ref, answer in try_pages(memory, all_alone, begin):
            seen[name] = answer.status_code
            assert nothing_written(ref), name
    for name, ref, status in try_routes(memory, api(all_alone), begin):
        seen[name] = status
        assert nothing_written(ref), name
    for name, ref, said in try_commands(memory, all_alone, begin):
        assert nothing_written(ref), name
        assert said != "done", name
    assert not Decision.objects.filter(state__in=["held", "waiting", "written"]).exists()
    assert (seen["decision-approve"], seen["decision-turn-down"], seen["decision-break-glass"]) == (403, 403, 422)
    assert [seen[f"post {_ACTION}/decision/{way}"] for way in ("approve", "turn-down", "break-glass")] == [403, 403, 422]


def test_nothing_is_written_at_once_where_a_second_person_is_asked_for(
    memory: RecordWriter, all_alone: User, api: Callable[[User], Api]
) -> None:
    seen: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.ROOT_URLCONF", "console.urls")
        for name, ref, answer in try_pages(memory, all_alone, lambda ref: None):
            seen[name] = answer.status_code
            assert nothing_written(ref), name
    caller = api(all_alone)
    for name, ref, status in try_routes(memory, caller, lambda ref: None):
        seen[name] = status
        assert nothing_written(ref), name
    for name, ref, said in try_commands(memory, all_alone, lambda ref: None):
        assert nothing_written(ref), name
        assert (said == "done") is (name == "settle"), said
    assert set(Decision.objects.values_list("state", flat=True)) == {"proposed"}
    assert Decision.objects.count() == 3
    assert (seen["decision"], seen[f"post {_ACTION}/decision"]) == (202, 202)
    for task in TASKS:
        one = getattr(tasks, task)
        one(*Decision.objects.values_list("pk", flat=True)[:1]) if task in ("deliver", "ask") else one()
    assert all(nothing_written(row.ref) for row in Decision.objects.all())


@pytest.mark.parametrize("role", ["viewer", "approver", "auditor", "admin", ""])
def test_who_may_not_settle_keeps_nothing_anywhere(
    memory: RecordWriter, person: Cast, api: Callable[[User], Api], role: str
) -> None:
    who = person("who", *([role] if role else []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.ROOT_URLCONF", "console.urls")
        for name, ref, answer in try_pages(memory, who, lambda ref: None, GATED_PAGES):
            assert nothing_written(ref), name
            assert answer.status_code in (403, 404), (name, answer.status_code)
    for name, ref, status in try_routes(memory, api(who), lambda ref: None):
        assert nothing_written(ref), name
        assert status in ((403, 404, 412) if role == "admin" and "eviction" in name else (403, 404)), (name, status)
    for name, ref, said in try_commands(memory, who, lambda ref: None):
        assert nothing_written(ref), name
        assert said != "done", name
    assert not Decision.objects.exists()


def test_an_agents_own_token_decides_and_approves_nothing(memory: RecordWriter, ana: User, own_addresses: None) -> None:
    caller = Api(create_agent_token("main", "billing-7"))
    for name, ref, status in try_routes(memory, caller, lambda ref: proposed(ref, ana)):
        assert status == 403, name
        assert nothing_written(ref), name
    assert set(Decision.objects.values_list("state", flat=True)) == {"proposed"}


def test_a_hold_is_ended_by_its_time_alone(memory: RecordWriter, ana: User, amy: User) -> None:
    save_policy(PAY, {"second_person_when": "", "hold_s": 600}, seen_version=1, by=amy)
    ref = payment(memory, 301)
    browser(ana).post(path_of(ref, "decision/"), filled(browser(ana), ref))
    row = Decision.objects.get()
    tasks.deliver(row.pk)
    tasks.sweep()
    assert (Decision.objects.get().state, nothing_written(ref)) == ("held", True)
    hold_is_over(row)
    tasks.deliver(row.pk)
    assert Decision.objects.get().state == "written"
