"""Resolvers: the list, one definition with its form, its versions, and the dry run that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, zip_longest
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.errors import StoreError
from actions.queries import ActionFilter, ActionItem, list_actions
from actions.records import ActionClass
from actions.resolvers.base import InvalidDefinition, Kind
from console.access import Right, may, visible, visible_stores
from console.addresses import parse_typed_ref
from console.evidence import VerdictView
from console.htmx import own_hosts, render_part
from console.models import Definition, Provider
from console.policy_form import (
    KIND_PREFIX,
    RATE,
    Change,
    Typed,
    definition_changes,
    definition_groups,
    new_definition,
    read_definition,
    typed_of,
)
from console.services.asking import NobodyToAsk
from console.services.definitions import (
    find_definition,
    find_kind,
    list_definitions,
    list_kinds,
    list_versions,
    require_admin,
    save_definition,
    secrets_set,
)
from console.services.dry_run import DryRun, run_draft, run_saved
from console.services.hooks import (
    HEADERS,
    HookChanged,
    NewHook,
    NoHook,
    find_hook,
    hook_mark,
    make_hook,
    remove_hook,
    set_hook_secret,
)
from console.services.policies import ChangedMeanwhile, all_policies
from console.services.trial import CEL_KINDS, MAX_BODY_CHARS, try_out
from console.texts import take_texts
from console.tool_rules import read_rules
from console.views.gate import only_post, signed_in, user_of

VERSIONS_SHOWN = 50
CHOICES_SHOWN = 50
_OWN_FIELDS = frozenset({"name", "per_minute", "at_once", "is_enabled"})
_HOOK_FIELDS = {"hook_secret": "secret"}
_HOOK_LABELS = {"provider": "Calls are signed as by", "secret": "Signing secret"}


@signed_in
@require_safe
def resolvers(request: HttpRequest) -> HttpResponse:
    """Every resolver, which tools name it, and the kinds of which a new one can be made."""
    _require_reader(request)
    policies = all_policies().values()
    lines = [(one, sorted(policy.tool for policy in policies if policy.resolver == one.name)) for one in list_definitions()]
    context = {"lines": lines, "kinds": list_kinds(), "may_admin": may(request.user, Right.ADMIN)}
    return render_part(request, "resolvers/resolvers.html", "resolvers/_list.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """The form of a new resolver of that kind; a POST makes it."""
    require_admin(user_of(request))
    known = _kind_or_404(kind)
    if request.method == "POST":
        return _save(request, None, known, None)
    return _show(request, "", known, None, new_definition(known))


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def resolver(request: HttpRequest, name: str) -> HttpResponse:
    """One resolver; a POST saves a new version, bound to the version that was shown."""
    definition = _definition_or_404(request, name)
    kind = _kind_or_404(definition.kind)
    if request.method == "POST":
        require_admin(user_of(request))
        return _save(request, name, kind, definition)
    return _show(request, name, kind, definition, typed_of(definition), saved=request.GET.get("saved", ""))


@signed_in
@only_post(lambda name: reverse("resolver", args=[name]))
def dry_run(request: HttpRequest, name: str) -> HttpResponse:
    """Ask about one action, as saved or as typed. Writes nothing anywhere; a POST because it asks a provider and carries a form."""
    definition = _definition_or_404(request, name)
    require_admin(user_of(request))
    return _dry_run(request, name, _kind_or_404(definition.kind), definition)


@signed_in
@only_post(lambda kind: reverse("resolver-new", args=[kind]))
def new_dry_run(request: HttpRequest, kind: str) -> HttpResponse:
    """The same for a resolver that was never saved."""
    require_admin(user_of(request))
    return _dry_run(request, None, _kind_or_404(kind), None)


@signed_in
@only_post(lambda name: reverse("resolver", args=[name]))
def expressions(request: HttpRequest, name: str) -> HttpResponse:
    """What each expression of the form gives on an answer that was pasted. Asks nobody; a POST because it carries a form."""
    definition = _definition_or_404(request, name)
    require_admin(user_of(request))
    return _expressions(request, name, _kind_or_404(definition.kind), definition)


@signed_in
@only_post(lambda kind: reverse("resolver-new", args=[kind]))
def new_expressions(request: HttpRequest, kind: str) -> HttpResponse:
    """The same for a resolver that was never saved."""
    require_admin(user_of(request))
    return _expressions(request, None, _kind_or_404(kind), None)


@signed_in
@only_post(lambda name: reverse("resolver", args=[name]))
def hook(request: HttpRequest, name: str) -> HttpResponse:
    """Make, sign otherwise or remove the address at which the provider calls. What is new is shown in this answer and never again."""
    definition = _definition_or_404(request, name)
    by = user_of(request)
    require_admin(by)
    odd = take_texts(request)
    do = request.POST.get("do", "")
    new: NewHook | None = None
    field, problem, status = "", "", 200
    try:
        for sent, wrong in odd.items():
            raise InvalidDefinition(_HOOK_FIELDS.get(sent, sent[:80]), wrong)
        if do == "make":
            new = make_hook(name, request.POST.get("provider", ""), by=by, seen=request.POST.get("seen_hook", ""))
        elif do == "secret":
            set_hook_secret(name, request.POST.get("hook_secret", "").strip(), by=by)
        elif do == "remove":
            remove_hook(name, by=by)
        else:
            problem, status = "Choose what to do.", 422
    except InvalidDefinition as exc:
        field, problem, status = _HOOK_LABELS.get(exc.field, exc.field), exc.problem, 422
    except (NoHook, HookChanged) as exc:
        problem, status = str(exc), 409
    if not (new or problem):
        return redirect(f"{reverse('resolver', args=[name])}#hook")
    page = _context(request, name, _kind_or_404(definition.kind), definition, typed_of(definition))
    page |= {"new_hook": new, "hook_field": field, "hook_problem": problem}
    answer = render_part(request, "resolvers/resolver.html", "resolvers/_resolver.html", page, status=status)
    answer["Cache-Control"] = "no-store"
    return answer


def _expressions(request: HttpRequest, name: str | None, kind: Kind, definition: Definition | None) -> HttpResponse:
    if kind.name not in CEL_KINDS:
        raise Http404(f"resolvers of the kind {kind.name} have no expressions")
    odd = take_texts(request)
    typed = read_definition(kind, request.POST)
    code, said = request.POST.get("try_status", "200").strip(), _action_said(request)
    context: dict[str, Any] = {}
    status = 200
    try:
        for sent, wrong in odd.items():
            raise InvalidDefinition(_sent_as(kind, sent), wrong)
        ref = parse_typed_ref(said, *own_hosts(request)) if said else None
        if said and ref is None:
            raise NobodyToAsk(f"{said[:80]!r} names no action; write store/agent/number, or the address of its page")
        if len(request.POST.get("try_body", "")) > MAX_BODY_CHARS:
            raise InvalidDefinition("Body", f"is longer than {MAX_BODY_CHARS:,} characters")
        if not (code.isascii() and code.isdigit() and len(code) == 3):
            raise NobodyToAsk(f"{code[:20]!r} is no HTTP status")
        tried = try_out(typed.values, int(code), request.POST.get("try_body", ""), ref, by=user_of(request))
        context = {"tried": [(_label(kind, one.field), one) for one in tried]}
    except InvalidDefinition as exc:
        status, context = 422, {"try_field": exc.field, "try_problem": exc.problem}
    except NobodyToAsk as exc:
        status, context = 422, {"try_problem": str(exc)}
    except Http404:
        status, context = 404, {"try_problem": "There is no such action, or it is not yours to see."}
    except StoreError as exc:
        status, context = 503, {"try_problem": f"Store {exc.store} does not answer."}
    page = _context(request, _name_typed(request) if name is None else name, kind, definition, typed) | context
    return render_part(request, "resolvers/resolver.html", "resolvers/_expressions.html", page, status=status)


def _name_typed(request: HttpRequest) -> str:
    return request.POST.get("name", "").strip()


def _action_said(request: HttpRequest) -> str:
    return (request.POST.get("action", "").strip() or request.POST.get("open_action", "")).strip()


def _dry_run(request: HttpRequest, name: str | None, kind: Kind, definition: Definition | None) -> HttpResponse:
    odd = take_texts(request)
    is_typed = "seen_version" in request.POST
    typed = read_definition(kind, request.POST) if is_typed or definition is None else typed_of(definition)
    context: dict[str, Any] = {}
    status = 200
    try:
        for sent, wrong in odd.items():
            raise InvalidDefinition(_sent_as(kind, sent), wrong)
        ran = _run(request, name or _name_typed(request) or "new", kind, definition, typed)
        context = {"dry_run": ran, "view": _view(ran)}
    except InvalidDefinition as exc:
        status, context = 422, {"dry_field": _label(kind, exc.field), "dry_problem": exc.problem}
    except NobodyToAsk as exc:
        status, context = 409, {"dry_problem": str(exc)}
    except Http404:
        status, context = 404, {"dry_problem": "There is no such action, or it is not yours to see."}
    except StoreError as exc:
        status, context = 503, {"dry_problem": f"Store {exc.store} does not answer, so nobody was asked."}
    page = _context(request, _name_typed(request) if name is None else name, kind, definition, typed) | context
    return render_part(request, "resolvers/resolver.html", "resolvers/_dry_run.html", page, status=status)


def _run(request: HttpRequest, name: str, kind: Kind, definition: Definition | None, typed: Typed) -> DryRun:
    said = _action_said(request)
    ref = parse_typed_ref(said, *own_hosts(request))
    if ref is None:
        known = f"{said[:80]!r} names no action; write" if said else "choose an action, or write"
        raise NobodyToAsk(f"{known} store/agent/number")
    is_as_saved = definition is not None and _said(typed) == _said(typed_of(definition)) and not any(typed.secrets.values())
    if is_as_saved and definition is not None and definition.is_enabled:
        return run_saved(name, ref, by=user_of(request))
    return run_draft(name, kind.name, typed.values, typed.secrets, ref, by=user_of(request))


def _said(typed: Typed) -> dict[str, str]:
    """What a form says; a field that is empty says nothing, whether it was saved or not."""
    return {name: text.strip() for name, text in typed.values.items() if text.strip()}


def _view(ran: DryRun) -> VerdictView:
    return VerdictView(
        id="",
        resolver=ran.resolver,
        version=None,
        outcome=ran.outcome,
        grade=ran.grade,
        evidence=ran.evidence,
        asked_at=ran.verdict.evidence.asked_at,
        check_again_at=ran.verdict.check_again_at,
        has_given_up=ran.verdict.has_given_up,
        asked_for="",
    )


def _save(request: HttpRequest, name: str | None, kind: Kind, definition: Definition | None) -> HttpResponse:
    """`name`: None for a new one, whose name stands in the form."""
    odd = take_texts(request)
    name = _name_typed(request) if name is None else name
    typed = read_definition(kind, request.POST)
    seen = request.POST.get("seen_version", "")
    seen_version = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 9 else -1
    if odd:
        return _show(request, name, kind, definition, typed, status=422, odd=odd, seen_version=seen_version)
    try:
        saved = save_definition(
            name,
            kind.name,
            typed.values,
            typed.secrets,
            seen_version=0 if definition is None else seen_version,
            by=user_of(request),
            per_minute=_number("per_minute", typed.per_minute),
            at_once=_number("at_once", typed.at_once),
            is_enabled=typed.is_enabled,
        )
    except InvalidDefinition as exc:
        return _show(request, name, kind, definition, typed, status=422, problem=exc, seen_version=seen_version)
    except ChangedMeanwhile as exc:
        if definition is None:
            taken = InvalidDefinition("name", f"there is a resolver {name[:63]} already")
            return _show(request, name, kind, None, typed, status=409, problem=taken)
        return _show(request, name, kind, find_definition(name), typed, status=409, changed=exc, seen_version=seen_version)
    became = "same" if saved.version == seen_version else "saved"
    return redirect(f"{reverse('resolver', args=[saved.name])}?{became}={saved.version}")


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InvalidDefinition(name, "a whole number")
    return int(text)


def _show(
    request: HttpRequest,
    name: str,
    kind: Kind,
    definition: Definition | None,
    typed: Typed,
    *,
    status: int = 200,
    problem: InvalidDefinition | None = None,
    odd: Mapping[str, str] | None = None,
    changed: ChangedMeanwhile | None = None,
    seen_version: int = -1,
    saved: str = "",
) -> HttpResponse:
    context = _context(request, name, kind, definition, typed, problem, odd)
    if definition is not None and saved == str(definition.version):
        context["saved"] = saved
    if definition is not None and request.method != "POST":
        context["is_same"] = request.GET.get("same", "") == str(definition.version)
    if changed is not None and definition is not None:
        context |= {"changed": changed, "changed_fields": _since(name, seen_version, definition)}
    elif seen_version >= 0:
        context["seen_version"] = seen_version
    return render_part(request, "resolvers/resolver.html", "resolvers/_resolver.html", context, status=status)


def _since(name: str, seen_version: int, definition: Definition) -> tuple[Change, ...]:
    before = next((one for one in list_versions(name, limit=VERSIONS_SHOWN) if one.version == seen_version), None)
    return definition_changes(before, definition) if before is not None else ()


def _context(
    request: HttpRequest,
    name: str,
    kind: Kind,
    definition: Definition | None,
    typed: Typed,
    problem: InvalidDefinition | None = None,
    odd: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    secrets = secrets_set(name) if definition is not None else {}
    problems, other_field, other = _problems(kind, problem)
    for sent, wrong in (odd or {}).items():
        field = sent.removeprefix(KIND_PREFIX)
        if field in _OWN_FIELDS or any(one.name == field for one in kind.fields):
            problems[field] = wrong
        else:
            other_field, other = _sent_as(kind, sent), wrong
    versions = list_versions(name, limit=VERSIONS_SHOWN) if definition is not None else []
    tools = sorted(policy.tool for policy in all_policies().values() if policy.resolver == name) if name else []
    may_admin = may(request.user, Right.ADMIN)
    hook = find_hook(name) if definition is not None and may_admin else None
    return {
        "name": name,
        "kind": kind,
        "definition": definition,
        "tools": tools,
        "groups": definition_groups(kind, typed, secrets, problems),
        "problems": problems,
        "name_problem": problems.get("name", ""),
        # Apart from the sentence: beside `password:` whatever follows would be taken for one and hidden.
        "other_field": other_field,
        "other_problem": other,
        "has_secrets": any(field.type == "secret" for group in definition_groups(kind, typed, secrets) for field in group.fields),
        "address_labels": [field.label for field in kind.fields if field.is_address],
        "seen_version": definition.version if definition is not None else 0,
        "may_admin": may_admin,
        "history": _history(versions),
        "choices": _choices(request, tools) if may_admin else (),
        "hook": hook,
        "hook_mark": hook_mark(hook),
        "hook_providers": [(value, label, HEADERS[value]) for value, label in Provider.choices],
        "hook_preferred": Provider.STRIPE if kind.name == "stripe" else Provider.GENERIC,
        "base_url": settings.BASE_URL,
        "action_said": (request.POST.get("action", "") or request.GET.get("action", ""))[:600],
        "open_said": request.POST.get("open_action", "")[:300],
        "form_url": reverse("resolver", args=[name]) if definition is not None else reverse("resolver-new", args=[kind.name]),
        "try_url": _try_url(name, kind, definition),
        "try_status": request.POST.get("try_status", "200")[:20],
        "try_body": request.POST.get("try_body", "")[:MAX_BODY_CHARS],
        "dry_url": reverse("resolver-dry-run", args=[name])
        if definition is not None
        else reverse("resolver-new-dry-run", args=[kind.name]),
    }


def _try_url(name: str, kind: Kind, definition: Definition | None) -> str:
    """Empty where the kind has no expressions."""
    if kind.name not in CEL_KINDS:
        return ""
    return (
        reverse("resolver-expressions", args=[name])
        if definition is not None
        else reverse("resolver-new-expressions", args=[kind.name])
    )


def _history(versions: list[Definition]) -> list[tuple[Definition, tuple[Change, ...] | None, list[str]]]:
    """Each version with what it changed and the labels of the secrets set with it; None for the first, and where the one before is not listed."""
    changes = [definition_changes(old, new) for new, old in pairwise(versions)]
    return [(version, changed, _secrets_of(version)) for version, changed in zip_longest(versions, changes)]


def _secrets_of(version: Definition) -> list[str]:
    kind = find_kind(version.kind)
    names = [name for name in version.secrets_set.split(",") if name]
    return [_label(kind, name) if kind is not None else name for name in names]


def _problems(kind: Kind, problem: InvalidDefinition | None) -> tuple[dict[str, str], str, str]:
    """What is wrong by field of the form, and what belongs to no field: its name and its problem."""
    if problem is None:
        return {}, "", ""
    if problem.field in _OWN_FIELDS | {field.name for field in kind.fields}:
        return {problem.field: problem.problem}, "", ""
    return {}, problem.field, problem.problem


def _sent_as(kind: Kind, sent: str) -> str:
    """What people call the field that was sent under this name."""
    own = {one.name: one.label for one in RATE} | {
        "action": "Action",
        "open_action": "Action",
        "try_body": "Body",
        "try_status": "Status",
    }
    return own.get(sent) or _label(kind, sent.removeprefix(KIND_PREFIX))[:80]


def _label(kind: Kind, field: str) -> str:
    return next((one.label for one in kind.fields if one.name == field), field)


def _choices(request: HttpRequest, tools: list[str]) -> tuple[ActionItem, ...]:
    """Open calls to try it on: of the tools that name it, else of any."""
    wanted = ActionFilter(tools=frozenset(tools), classes=frozenset({ActionClass.EXTERNAL, ActionClass.IDEMPOTENT}))
    page = list_actions(
        visible_stores(request.user), wanted, limit=CHOICES_SHOWN, may_see=visible(request.user), rules=read_rules()
    )
    return tuple(item for item in page.items if item.facts is not None)


def _kind_or_404(name: str) -> Kind:
    kind = find_kind(name)
    if kind is None:
        raise Http404(f"no kind of resolver is called {name[:40]!r}")
    return kind


def _definition_or_404(request: HttpRequest, name: str) -> Definition:
    _require_reader(request)
    definition = find_definition(name)
    if definition is None:
        raise Http404(f"no resolver is called {name[:63]!r}")
    return definition


def _require_reader(request: HttpRequest) -> None:
    """Addresses and accounts of every provider stand here: for those who may read every tool of every store."""
    if not may(request.user, Right.READ):
        raise PermissionDenied("resolvers are shown to those who may read every tool of every store")
