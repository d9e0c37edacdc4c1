"""The registry of tools, one tool's policy with its versions, and the simulator: which policy would an action meet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.errors import InvalidQuery, StoreError
from actions.queries import ActionFilter, list_actions, read_whole_args
from actions.records import ActionClass
from actions.summary import problem_of_summary
from actions.tool_rules import ToolRules
from console.access import Right, item_or_404, may, may_see_tool, visible, visible_stores
from console.addresses import parse_tool, parse_typed_ref, tool_address
from console.htmx import own_hosts, render_part
from console.models import Policy
from console.policy_form import Change, policy_changes, policy_groups, policy_values, read_policy
from console.run_lines import known_types, words_of_types
from console.services.definitions import list_definitions
from console.services.policies import ChangedMeanwhile, InvalidPolicy, list_versions, policy_of, save_policy, windows_of
from console.services.registry import ToolLine, empty_line, find_line, read_registry
from console.services.simulation import MAX_ARGS_CHARS, Simulation, simulate
from console.stores import get_store
from console.texts import take_texts
from console.tool_rules import rule_from
from console.untrusted import redact_any, show
from console.views.gate import only_post, signed_in, user_of

VERSIONS_SHOWN = 50
_SIMULATED = {"tool": "Tool", "class": "Class", "args": "Arguments", "action": "Action"}


@signed_in
@require_safe
def tools(request: HttpRequest) -> HttpResponse:
    """Every tool that this person may see, by name; those without a way to find out are flagged."""
    registry = read_registry(user_of(request))
    text = request.GET.get("text", "").strip()[:200]
    only_gaps = request.GET.get("gaps") == "1"
    lines = [line for line in registry.lines if _mentions(line, text) and (not only_gaps or line.gaps)]
    context = {
        "registry": registry,
        "lines": lines,
        "text": text,
        "only_gaps": only_gaps,
        "gap_count": sum(1 for line in registry.lines if line.gaps),
        "reads_resolvers": may(request.user, Right.READ),
        **_run_types(request),
    }
    return render_part(request, "tools/tools.html", "tools/_list.html", context)


def _run_types(request: HttpRequest) -> dict[str, Any]:
    """The registered run types of whose tools this person may see every one, and what is wrong with the registration."""
    known = known_types()
    seen = [kind for kind in words_of_types(known) if all(may_see_tool(request.user, one.name) for one in kind.tools)]
    return {"run_types": seen, "run_types_problem": known.problem}


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def tool(request: HttpRequest, slug: str) -> HttpResponse:
    """One tool: its policy, who changed what, what is missing. A POST saves a new version, bound to the version that was shown."""
    name = _tool_or_404(request, slug)
    if request.method == "POST":
        return _save(request, name)
    policy = policy_of(name)
    context = _page(request, name, policy, policy_values(policy), {})
    saved = request.GET.get("saved", "")
    context["saved"] = saved if saved == str(policy.version) and policy.version else ""
    context["is_same"] = bool(policy.version) and request.GET.get("same", "") == str(policy.version)
    return render_part(request, "tools/tool.html", "tools/_tool.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def simulator(request: HttpRequest) -> HttpResponse:
    """Which policy would this action meet? Arguments come by POST, because they do not belong into addresses; nothing is stored."""
    odd = take_texts(request) if request.method == "POST" else {}
    data = request.POST if request.method == "POST" else request.GET
    said = {
        name: data.get(name, "")[:limit]
        for name, limit in (("tool", 500), ("args", MAX_ARGS_CHARS), ("action", 600), ("class", 20))
    }
    context: dict[str, Any] = {"said": said, "classes": [cls.value for cls in ActionClass]}
    if odd:
        name, wrong = next(iter(odd.items()))
        context |= {"problem_field": _SIMULATED.get(name, name[:80]), "problem": wrong}
    elif len(data.get("args", "")) > MAX_ARGS_CHARS:
        context |= {"problem_field": "Arguments", "problem": f"longer than {MAX_ARGS_CHARS:,} characters"}
    elif said["action"].strip():
        context |= _simulate_action(request, said["action"].strip())
    elif said["tool"]:
        context |= _simulate_typed(request, said)
    elif request.method == "POST":
        context["problem"] = "Name a tool, or an action as store/agent/number."
    status = context.get("status", 422) if context.get("problem") else 200
    return render_part(request, "tools/simulator.html", "tools/_simulation.html", context, status=status)


@signed_in
@only_post(lambda slug: reverse("tool", args=[slug]))
def example(request: HttpRequest, slug: str) -> HttpResponse:
    """An open call as it would be read by what stands in the form. Nothing is stored."""
    name = _tool_or_404(request, slug)
    odd = take_texts(request)
    _, values, _ = read_policy(request.POST)
    typed = Policy(tool=name, version=0, **{field: values[field] for field in READ_BY})
    problem = next(iter(odd.values()), "") or problem_of_summary(typed.summary)
    context = {"problem": problem, "example_url": tool_address(name, view="tool-example")}
    return render(request, "tools/_example.html", context if problem else context | _example(request, name, typed))


READ_BY = ("summary", "redacted", "recipient", "amount", "currency", "reference", "is_minor", "moves_money", "is_irreversible")
"""The fields of a policy that say how a call is read."""


def _example(request: HttpRequest, name: str, policy: Policy) -> dict[str, Any]:
    """The call of the tool that comes first in the queue, by this policy; nothing where none is open."""
    wanted = ActionFilter(tools=frozenset({name}))
    try:
        rules = ToolRules(by_tool={name: rule_from(policy)})
    except KeyError:  # a weight that no choice says
        return {}
    page = list_actions(visible_stores(request.user), wanted, limit=1, may_see=visible(request.user), rules=rules)
    return {"example": next((item for item in page.items if item.facts is not None), None)}


def _simulate_action(request: HttpRequest, said: str) -> dict[str, Any]:
    ref = parse_typed_ref(said, *own_hosts(request))
    if ref is None:
        return {"problem": f"{said[:80]!r} names no action; write store/agent/number, or the address of its page."}
    try:
        item = item_or_404(request.user, ref, Right.READ)
        if item.action is None:
            return {"problem": "That record is unreadable, so no policy can be found for it."}
        args = read_whole_args(get_store(ref.store), item.action)
    except Http404:
        return {"problem": "There is no such action, or it is not yours to see.", "status": 404}
    except StoreError as exc:
        return {"problem": f"Store {exc.store} does not answer.", "status": 503}
    found = simulate(item.action.tool, args, item.action.action_class, store=ref.store)
    return {"simulation": found, "ref": ref, **_policy_words(found)}


def _simulate_typed(request: HttpRequest, said: dict[str, str]) -> dict[str, Any]:
    if not may_see_tool(request.user, said["tool"]):
        return {"problem": "That tool is not yours to see."}
    try:
        action_class = ActionClass(said["class"] or ActionClass.EXTERNAL)
    except ValueError:
        raise InvalidQuery(f"no class is called {said['class']!r}; there are {', '.join(ActionClass)}") from None
    found = simulate(said["tool"], said["args"], action_class)
    return {"simulation": found, **_policy_words(found)}


def _policy_words(found: Simulation) -> dict[str, Any]:
    return {"windows": windows_of(found.policy), "tool_url": tool_address(found.tool)}


def _tool_or_404(request: HttpRequest, slug: str) -> str:
    name = parse_tool(slug)
    if not name or not may_see_tool(request.user, name):
        raise Http404("there is no such tool, or it is not yours to see")
    return name


def _save(request: HttpRequest, name: str) -> HttpResponse:
    odd = take_texts(request)
    said, values, problems = read_policy(request.POST)
    problems |= odd
    seen = request.POST.get("seen_version", "")
    seen_version = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 9 else -1
    changed: ChangedMeanwhile | None = None
    if not may(request.user, Right.ADMIN, tool=name) or not problems:
        # Who may not is refused before anything of the form is said.
        try:
            policy = save_policy(name, values, seen_version=seen_version, by=user_of(request))
            became = "same" if policy.version == seen_version else "saved"
            return redirect(f"{tool_address(name)}?{became}={policy.version}")
        except InvalidPolicy as exc:
            problems = {exc.field: exc.problem}
        except ChangedMeanwhile as exc:
            changed = exc
    policy = policy_of(name)
    context = _page(request, name, policy, said, problems)
    context["other_problem"] = next((wrong for sent, wrong in odd.items() if sent not in said), "")
    if changed is not None:
        context |= {"changed": changed, "changed_fields": _since(name, seen_version, policy)}
    elif seen_version >= 0:
        # Still bound to what was shown: a newer version is told at the next try, not passed over.
        context["seen_version"] = seen_version
    return render_part(request, "tools/tool.html", "tools/_tool.html", context, status=409 if changed else 422)


def _since(name: str, seen_version: int, policy: Policy) -> tuple[Change, ...]:
    """What others changed since the version that stood in the form."""
    before = next(
        (one for one in list_versions(name, limit=VERSIONS_SHOWN) if one.version == seen_version), Policy(tool=name, version=0)
    )
    return policy_changes(before, policy)


def _page(request: HttpRequest, name: str, policy: Policy, said: dict[str, str], problems: dict[str, str]) -> dict[str, Any]:
    registry = read_registry(user_of(request))
    definitions = list_definitions()
    by_name = {definition.name: definition for definition in definitions}
    line = find_line(registry, name)
    versions = list_versions(name, limit=VERSIONS_SHOWN)
    # The first one is compared with the defaults.
    older = [*versions, Policy(tool=name, version=0)]
    return {
        "tool": name,
        "line": line or empty_line(name, policy, by_name.get(policy.resolver)),
        "is_seen": line is not None and bool(line.stores),
        "registry": registry,
        "policy": policy,
        "groups": policy_groups(said, definitions, problems),
        "problems": problems,
        "seen_version": policy.version,
        "may_admin": may(request.user, Right.ADMIN, tool=name),
        "reads_resolvers": may(request.user, Right.READ),
        "is_plain": "," not in name and show(name).plain == name,
        "history": [(version, policy_changes(old, version)) for version, old in pairwise(older)],
        "form_url": tool_address(name),
        "example_url": tool_address(name, view="tool-example"),
        **_example(request, name, policy),
        "simulator_url": reverse("simulator"),
    }


def _mentions(line: ToolLine, text: str) -> bool:
    """Search what a person may see: a secret in a name must not be found by guessing at it."""
    return text.casefold() in redact_any(line.tool).casefold()
