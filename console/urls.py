"""Which address shows what."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, register_converter

from console import health
from console.api import api
from console.views import (
    account,
    action,
    agent,
    asking,
    audit,
    decision,
    events,
    eviction,
    history,
    hooks,
    incidents,
    queue,
    resolvers,
    store,
    through,
    tools,
)


class AgentConverter:
    """An agent id as Recall allows it."""

    regex = r"[A-Za-z0-9._-]{1,128}"  # what addresses.py links is the same, but for dots that a browser resolves away

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class StoreConverter(AgentConverter):
    """A store's name as ACTION_STORES allows it."""

    regex = r"[a-z0-9][a-z0-9_-]{0,62}"


class NumberConverter(AgentConverter):
    """A number from 1 that a database can be asked for."""

    regex = r"[1-9][0-9]{0,17}"

    def to_python(self, value: str) -> int:  # type: ignore[override]
        return int(value)

    def to_url(self, value: object) -> str:
        return str(value)


class ToolConverter(AgentConverter):
    """A tool's name as addresses.tool_slug writes it."""

    regex = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|~[A-Za-z0-9_-]{1,400}"


class ResolverConverter(AgentConverter):
    """A resolver's name, or a kind's."""

    regex = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"


register_converter(AgentConverter, "agent")
register_converter(ToolConverter, "tool")
register_converter(ResolverConverter, "resolver")
register_converter(StoreConverter, "store")
register_converter(NumberConverter, "number")

one_action: list[URLPattern | URLResolver] = [
    path("", action.action, name="action"),
    path("status/", action.status, name="action-status"),
    path("arguments/", action.arguments, name="action-arguments"),
    path("result/", action.result, name="action-result"),
    path("ask/", asking.ask_now, name="action-ask"),
    path("turn/", decision.show_turn, name="decision-preview"),
    path("decision/", decision.commit, name="decision"),
    path("decision/withdraw/", decision.take_back, name="decision-withdraw"),
    path("decision/through/", through.through, name="decision-through"),
]
pages: list[URLPattern | URLResolver] = [
    path("", queue.queue, name="queue"),
    path("actions/<store:store>/<agent:agent>/<number:seq>/", include(one_action)),
    path("agents/<store:store>/<agent:agent>/", agent.agent, name="agent"),
    path("agents/<store:store>/<agent:agent>/eviction/", eviction.eviction, name="eviction"),
    path("agents/<store:store>/<agent:agent>/ask/", asking.ask_agent, name="agent-ask"),
    path("asking/", asking.ask_selected, name="asking"),
    path("tools/", tools.tools, name="tools"),
    path("tools/<tool:slug>/", tools.tool, name="tool"),
    path("simulator/", tools.simulator, name="simulator"),
    path("resolvers/", resolvers.resolvers, name="resolvers"),
    path("resolvers/<resolver:name>/", resolvers.resolver, name="resolver"),
    path("resolvers/<resolver:name>/dry-run/", resolvers.dry_run, name="resolver-dry-run"),
    path("resolvers/<resolver:name>/hook/", resolvers.hook, name="resolver-hook"),
    path("resolvers/new/<resolver:kind>/", resolvers.new, name="resolver-new"),
    path("resolvers/new/<resolver:kind>/dry-run/", resolvers.new_dry_run, name="resolver-new-dry-run"),
    path("resolvers/<resolver:name>/expressions/", resolvers.expressions, name="resolver-expressions"),
    path("resolvers/new/<resolver:kind>/expressions/", resolvers.new_expressions, name="resolver-new-expressions"),
    path("incidents/", incidents.incidents, name="incidents"),
    path("incidents/banner/", incidents.banner, name="incidents-banner"),
    path("incidents/<number:number>/", incidents.incident, name="incident"),
    path("history/", history.history, name="history"),
    path("history/verification/", audit.verification, name="verification"),
    path("history/verification/now/", audit.verify_now, name="verify-now"),
    path("history/export/", audit.export, name="export"),
    path("history/exports/", audit.exports, name="exports"),
    path("history/exports/<uuid:key>/manifest/", audit.manifest, name="export-manifest"),
    path("history/<store:store>/<number:number>/", history.entry, name="entry"),
    path("stores/", store.stores, name="stores"),
    path("events/", events.events, name="events"),
]
accounts: list[URLPattern | URLResolver] = [
    path("login/", account.login, name="login"),
    path("logout/", account.logout, name="logout"),
    path("theme/", account.theme, name="theme"),
]
machines: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("api/v1/", api.urls),
    path("hooks/<slug:provider>/<slug:token>", hooks.call, name="hook"),
]

urlpatterns: list[URLPattern | URLResolver] = [*pages, *accounts, *machines]

handler400 = "console.views.errors.bad_request"
handler403 = "console.views.errors.forbidden"
handler404 = "console.views.errors.not_found"
handler500 = "console.views.errors.server_error"
