"""Every way into the console: each is listed here, and none decides without the right or without the second person.

A new address, route, command or task fails the first test until somebody has said which kind it is; all of them are then called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.db.models import Model
from django.urls import URLPattern, URLResolver, reverse

from actions.records import ActionRef
from console import tasks, urls
from console.api import api as routes
from console.models import (
    Batch,
    Channel,
    Claim,
    Correction,
    Decision,
    Grant,
    HandOver,
    Inquiry,
    Note,
    Run,
    Verification,
)
from console.services.bulk import draft_selected, review
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
    *("bulk", "batch", "batch-undo", "batch-again"),
    *("correction", "correction-approve", "correction-turn-down", "correction-withdraw"),
}
PAGES_OF_SETTLERS = {"action-claim", "action-note", "claims", "correction-preview", "decision-preview", "handover"}
"""They decide nothing; whoever may not settle leaves nothing there either."""
OTHER_PAGES = {
    *(
        "action",
        "action-arguments",
        "action-ask",
        "action-result",
        "action-reveal",
        "action-status",
        "agent",
        "agent-ask",
        "asking",
    ),
    *("decision-held", "entry", "events", "eviction", "history", "hook", "incident", "incidents"),
    *(
        "incidents-banner",
        "healthz",
        "metrics",
        "login",
        "logout",
        "proposals",
        "queue",
        "readyz",
        "resolver",
        "resolver-dry-run",
    ),
    *("resolver-expressions", "resolver-hook", "resolver-new", "resolver-new-dry-run", "resolver-new-expressions", "resolvers"),
    *("simulator", "stores", "theme", "tool", "tools", "tool-example"),
    *("agents", "agent-briefing", "batch-cancel", "handover-band", "handover-dismiss", "saved-view", "saved-views"),
    *("export", "exports", "export-manifest", "verification", "verify-now"),
    *("agent-replay", "insight"),
    *("people", "person", "notifications", "channel", "confirm", "password-forgotten", "password-choose", "password-change"),
    # What lets a run's call happen, or moves a run: tests/console/test_view_approvals.py and test_view_runs.py.
    *("approvals", "approval", "runs", "run", "run-new", "run-cancel", "run-resume", "run-restart", "run-done", "run-undo"),
    *("settings", "settings-keys", "settings-mail", "settings-sessions"),
    *("account_login", "account_logout", "account_reauthenticate", "account_signup"),
    *("openid_connect_login", "openid_connect_callback", "socialaccount_connections", "socialaccount_signup"),
    *("mfa_authenticate", "mfa_login_webauthn", "mfa_reauthenticate", "mfa_reauthenticate_webauthn", "mfa_index"),
    *("mfa_activate_totp", "mfa_deactivate_totp", "mfa_view_recovery_codes", "mfa_generate_recovery_codes"),
    *("mfa_list_webauthn", "mfa_add_webauthn", "mfa_edit_webauthn", "mfa_remove_webauthn"),
}
_ACTION = "/api/v1/actions/{store}/{agent}/{seq}"
_RUN = "/api/v1/runs/{run_id}"
GATED_ROUTES = {
    ("post", f"{_ACTION}/decision"),
    ("delete", f"{_ACTION}/decision"),
    ("post", f"{_ACTION}/decision/approve"),
    ("post", f"{_ACTION}/decision/turn-down"),
    ("post", f"{_ACTION}/decision/break-glass"),
    ("post", f"{_ACTION}/decision/through-server"),
    ("post", f"{_ACTION}/correction"),
    ("delete", f"{_ACTION}/correction"),
    ("post", "/api/v1/bulk"),
}
OTHER_ROUTES = {
    ("get", "/api/v1/actions"),
    ("get", _ACTION),
    ("get", f"{_ACTION}/decision"),
    ("get", "/api/v1/token"),
    ("post", f"{_ACTION}/resolve"),
    ("post", f"{_ACTION}/claim"),
    ("delete", f"{_ACTION}/claim"),
    ("get", "/api/v1/bulk/{batch_id}"),
    ("post", "/api/v1/agents/{store}/{agent}/eviction"),
    ("get", "/api/v1/audit"),
    ("get", "/api/v1/agents/{store}/{agent}/replay"),
    ("get", "/api/v1/runs"),
    ("post", "/api/v1/runs"),
    ("get", _RUN),
    ("get", f"{_RUN}/events"),
    ("get", f"{_RUN}/compensation"),
    *(("post", f"{_RUN}/{gesture}") for gesture in ("cancel", "resume", "restart", "done", "compensate")),
    ("get", "/api/v1/approvals"),
    ("get", "/api/v1/approvals/{approval_id}"),
    ("post", "/api/v1/approvals/{approval_id}"),
}
"""Of runs: they decide no action; tests/console/test_api_runs.py asks each as everybody."""
GATED_COMMANDS = {
    "settle": ["done", "--reason", "seen in the dashboard"],
    "approve": ["--reason", "seen in the dashboard"],
    "correct": ["failed", "--reason", "seen in the dashboard"],
}
OTHER_COMMANDS = {
    *("check_stores", "create_token", "create_user", "discover_stores", "evict", "open_actions", "prepare_store"),
    *("reseal_secrets", "revoke_token", "set_role", "verify_audit", "export_audit", "retain_audit", "sign_checkpoints"),
    "export_replay",
}
ROW_OF_TASK: dict[str, type[Model] | None] = {
    "deliver": Decision,
    "deliver_correction": Correction,
    "advance_batch": Batch,
    "ask": Inquiry,
    "advance_run": Run,
    "undo_run": Run,
    "notify": Channel,
    "verify": Verification,
    **dict.fromkeys(
        (
            "sweep",
            "sweep_inquiries",
            "sweep_runs",
            "recheck_failed",
            "sweep_ends",
            "sweep_notices",
            "sign_checkpoints",
            "verify_all",
        )
    ),
    "send_password_link": None,
}
"""Whose number a task is given."""

PARTS = {
    "store": "main",
    "agent": "billing-7",
    "slug": PAY,
    "name": "sent-folder",
    "kind": "http",
    "number": 1,
    "provider": "generic",
    "token": "x",
    "provider_id": "company",
    "uidb64": "MQ",
    "pk": 1,
    "key": UUID(int=1),
    "run_id": "billing-7",
    "approval_id": "approval-1",
    "batch_id": "",  # one is made for each
}
ENDS_THE_SESSION = ("account_logout", "logout")


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


@cache
def document() -> dict[str, Any]:
    """Of the API; made once, which takes a third of a second. Nobody changes it."""
    return routes.get_openapi_schema(path_prefix="/api/v1/")


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    schema = document()
    return {(method, path): one for path, methods in schema["paths"].items() for method, one in methods.items()}


def test_every_entry_point_is_listed() -> None:
    assert {str(one.name) for one in pages(urls.urlpatterns)} == GATED_PAGES | PAGES_OF_SETTLERS | OTHER_PAGES
    assert set(operations()) == GATED_ROUTES | OTHER_ROUTES
    folder = Path(tasks.__file__).parent / "management" / "commands"
    assert {file.stem for file in folder.glob("[a-z]*.py")} == set(GATED_COMMANDS) | OTHER_COMMANDS
    assert {name.rpartition(".")[2] for name in current_app.tasks if name.startswith("console.")} == set(ROW_OF_TASK)


def what_is_sent(ref: ActionRef, row: Decision | None, page: dict[str, str]) -> dict[str, Any]:
    """Everything that any of our forms or bodies asks for, as truthfully as an impatient person would fill it in."""
    said: dict[str, Any] = {
        "outcome": "done",
        "reason": "seen in the dashboard",
        "glass_reason": "short",
        "confirm": "billing-7",
        "holder": "pod-a",
        "ref": str(ref),
        "refs": [str(ref)],
        "text": "seen in the dashboard",
        "correction_id": f"correction-{ref.seq}",
        "second_reason": "seen in the dashboard",
        "batch_id": f"batch-{ref.seq}",
        "note_id": f"note-{ref.seq}",
        "type": "errand",
        "input": {"turns": []},
        "decision": "approve",
    }
    return {**page, **said, "decision_id": row.decision_id if row else f"decision-{ref.seq}"}


def try_pages(
    writer: RecordWriter, who: User, begin: Callable[[ActionRef], Decision | None], names: set[str] | None = None
) -> Iterator[tuple[str, ActionRef, Any]]:
    """POST to every address (or to these), each about an action of its own, a batch's about a batch of it. Signing out comes last."""
    client = browser(who, raise_request_exception=False)
    wanted = [one for one in pages(urls.urlpatterns) if names is None or one.name in names]
    for seq, one in enumerate(sorted(wanted, key=lambda page: (page.name in ENDS_THE_SESSION, str(page.name))), start=1):
        ref = payment(writer, seq)
        row = begin(ref)
        form = (
            filled(client, ref, reason="seen in the dashboard")
            if row is None and one.name == "decision" and names is None
            else {}
        )
        parts = _arguments(one, seq)
        if "batch_id" in parts:
            parts["batch_id"], form = _a_batch_of(ref, who)
        answer = client.post(reverse(str(one.name), kwargs=parts), what_is_sent(ref, row, form))
        assert answer.status_code < 500, (one.name, answer.content[:300])
        assert "_auth_user_id" in client.session or one.name in ENDS_THE_SESSION, one.name
        yield str(one.name), ref, answer


def _arguments(one: URLPattern, seq: int) -> dict[str, Any]:
    """What this address is made of; the converters of the patterns around it are Django's own business."""
    if str(one.name).startswith(("action", "correction", "decision")):
        return {"store": "main", "agent": "billing-7", "seq": seq}
    return {name: PARTS[name] for name in one.pattern.converters}


def _a_batch_of(ref: ActionRef, who: User) -> tuple[str, dict[str, str]]:
    """A preview of this person's, with what binds its button to it; for those who may make none, somebody else's."""
    try:
        batch = draft_selected([ref], by=who)
    except PermissionDenied:
        another, _ = User.objects.get_or_create(username="another")
        Grant.objects.get_or_create(user=another, role="operator")
        batch = draft_selected([ref], by=another)
    weighed = review(batch, outcome="done", reason="seen in the dashboard", by=who)
    return batch.batch_id, {"seen": weighed.digest}


def try_routes(
    writer: RecordWriter, caller: Api, begin: Callable[[ActionRef], Decision | None]
) -> Iterator[tuple[str, ActionRef, int]]:
    """Call every route that is no GET, each about an action of its own and with the body that its schema asks for."""
    schemas = document()["components"]["schemas"]
    for seq, ((method, path), one) in enumerate(sorted(operations().items(), key=lambda item: item[0]), start=1001):
        if method == "get":
            continue
        ref = payment(writer, seq)
        row = begin(ref)
        about = {"run_id": "run-0", "approval_id": "0"}  # there is none: whoever has no right learns no more than that
        address = path.removeprefix("/api/v1/").format(store="main", agent="billing-7", seq=seq, **about)
        if method == "delete":
            yield f"{method} {path}", ref, caller.delete(address)[0]
            continue
        body: dict[str, Any] = {}
        if "requestBody" in one:
            schema = one["requestBody"]["content"]["application/json"]["schema"]
            name = next(way["$ref"] for way in schema.get("anyOf", [schema]) if "$ref" in way).rpartition("/")[2]
            sent = what_is_sent(ref, row, {} if "/actions/" in path else {"seen": "0"})
            body = {field: sent[field] for field in schemas[name]["properties"] if field in sent}
            if path.endswith("break-glass"):
                body["reason"] = "short"  # with a longer one it passes, and is on the record
        yield f"{method} {path}", ref, caller.post(address, body)[0]


def try_commands(
    writer: RecordWriter, who: User, begin: Callable[[ActionRef], Decision | None]
) -> Iterator[tuple[str, ActionRef, str]]:
    for seq, (name, arguments) in enumerate(GATED_COMMANDS.items(), start=2001):
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
    assert (seen["batch"], seen["post /api/v1/bulk"]) == (302, 202)
    assert Batch.objects.filter(state="running").count() == 2
    for name, model in ROW_OF_TASK.items():
        task = getattr(tasks, name)
        for pk in model.objects.values_list("pk", flat=True) if model else ():
            task(pk)
        if model is None:
            task("all") if name == "send_password_link" else task()
    assert not Batch.objects.filter(state="running").exists()
    assert list(Decision.objects.values_list("state", flat=True)) == ["proposed"] * 5  # and each batch's own
    assert all(nothing_written(row.ref) for row in Decision.objects.all())


@pytest.mark.parametrize("role", ["viewer", "approver", "auditor", "admin", ""])
def test_who_may_not_settle_keeps_nothing_anywhere(
    memory: RecordWriter, person: Cast, api: Callable[[User], Api], role: str
) -> None:
    who = person("who", *([role] if role else []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.ROOT_URLCONF", "console.urls")
        for name, ref, answer in try_pages(memory, who, lambda ref: None, GATED_PAGES | PAGES_OF_SETTLERS):
            assert nothing_written(ref), name
            assert answer.status_code in (403, 404), (name, answer.status_code)
    for name, ref, status in try_routes(memory, api(who), lambda ref: None):
        assert nothing_written(ref), name
        assert status in ((403, 404, 412) if role == "admin" and "eviction" in name else (403, 404)), (name, status)
    for name, ref, said in try_commands(memory, who, lambda ref: None):
        assert nothing_written(ref), name
        assert said != "done", name
    for model in (Decision, Correction, Claim, Note, HandOver):
        assert not model.objects.exists(), model
    assert not Batch.objects.exclude(username="another", state="draft").exists()


def test_an_agents_own_token_decides_and_approves_nothing(memory: RecordWriter, ana: User, own_addresses: None) -> None:
    caller = Api(create_agent_token("main", "billing-7"))
    for name, ref, status in try_routes(memory, caller, lambda ref: proposed(ref, ana)):
        assert status == 403, name
        assert nothing_written(ref), name
    assert set(Decision.objects.values_list("state", flat=True)) == {"proposed"}
    for model in (Batch, Correction, Claim):
        assert not model.objects.exists(), model


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
