"""Which address shows what."""

from __future__ import annotations

from allauth.mfa.base import views as second_factor
from allauth.mfa.recovery_codes import views as recovery_codes
from allauth.mfa.totp import views as totp
from allauth.mfa.webauthn import views as passkeys
from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.views.generic import RedirectView

from console import health
from console.api import api
from console.views import (
    account,
    action,
    agent,
    approvals,
    approving,
    asking,
    audit,
    bulk,
    claims,
    correction,
    decision,
    events,
    eviction,
    handover,
    history,
    hooks,
    incidents,
    insight,
    metrics,
    notes,
    notifications,
    people,
    queue,
    replay,
    resolvers,
    reveal,
    run,
    runs,
    saved_views,
    settings,
    single_sign_on,
    status,
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


class BatchConverter(AgentConverter):
    """A batch id: as a decision id."""

    regex = r"[A-Za-z0-9-]{8,64}"


register_converter(AgentConverter, "agent")
register_converter(BatchConverter, "batch")
register_converter(ToolConverter, "tool")
register_converter(ResolverConverter, "resolver")
register_converter(StoreConverter, "store")
register_converter(NumberConverter, "number")

one_action: list[URLPattern | URLResolver] = [
    path("", action.action, name="action"),
    path("status/", status.status, name="action-status"),
    path("arguments/", action.arguments, name="action-arguments"),
    path("result/", action.result, name="action-result"),
    path("reveal/", reveal.revealed, name="action-reveal"),
    path("ask/", asking.ask_now, name="action-ask"),
    path("turn/", decision.show_turn, name="decision-preview"),
    path("decision/", decision.commit, name="decision"),
    path("decision/withdraw/", decision.take_back, name="decision-withdraw"),
    path("decision/through/", through.through, name="decision-through"),
    path("decision/approve/", approving.approve_it, name="decision-approve"),
    path("decision/turn-down/", approving.turn_it_down, name="decision-turn-down"),
    path("decision/break-glass/", approving.go_on_alone, name="decision-break-glass"),
    path("decision/held/", approving.held, name="decision-held"),
    path("claim/", claims.claim_one, name="action-claim"),
    path("notes/", notes.note, name="action-note"),
    path("correction/", correction.correction, name="correction"),
    path("correction/turn/", correction.show_correction_turn, name="correction-preview"),
    path("correction/approve/", correction.approve_it, name="correction-approve"),
    path("correction/turn-down/", correction.turn_it_down, name="correction-turn-down"),
    path("correction/withdraw/", correction.take_back_correction, name="correction-withdraw"),
]
pages: list[URLPattern | URLResolver] = [
    path("", queue.queue, name="queue"),
    path("actions/<store:store>/<agent:agent>/<number:seq>/", include(one_action)),
    path("agents/", agent.agents, name="agents"),
    path("agents/<store:store>/<agent:agent>/", agent.agent, name="agent"),
    path("agents/<store:store>/<agent:agent>/briefing/", agent.briefing, name="agent-briefing"),
    path("agents/<store:store>/<agent:agent>/replay/", replay.replay, name="agent-replay"),
    path("agents/<store:store>/<agent:agent>/eviction/", eviction.eviction, name="eviction"),
    path("agents/<store:store>/<agent:agent>/ask/", asking.ask_agent, name="agent-ask"),
    path("proposals/", approving.proposals, name="proposals"),
    path("asking/", asking.ask_selected, name="asking"),
    path("claims/", claims.claim_selected, name="claims"),
    path("handover/", handover.handover, name="handover"),
    path("handover/band/", handover.band, name="handover-band"),
    path("handover/<number:number>/dismiss/", handover.dismissal, name="handover-dismiss"),
    path("views/", saved_views.saved_views, name="saved-views"),
    path("views/<number:number>/", saved_views.saved_view, name="saved-view"),
    path("bulk/", bulk.batches, name="bulk"),
    path("bulk/<batch:batch_id>/", bulk.batch, name="batch"),
    path("bulk/<batch:batch_id>/cancel/", bulk.cancel, name="batch-cancel"),
    path("bulk/<batch:batch_id>/undo/", bulk.undo, name="batch-undo"),
    path("bulk/<batch:batch_id>/again/", bulk.again, name="batch-again"),
    path("tools/", tools.tools, name="tools"),
    path("tools/<tool:slug>/", tools.tool, name="tool"),
    path("tools/<tool:slug>/example/", tools.example, name="tool-example"),
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
    path("insight/", insight.insight, name="insight"),
    path("history/", history.history, name="history"),
    path("history/verification/", audit.verification, name="verification"),
    path("history/verification/now/", audit.verify_now, name="verify-now"),
    path("history/export/", audit.export, name="export"),
    path("history/exports/", audit.exports, name="exports"),
    path("history/exports/<uuid:key>/manifest/", audit.manifest, name="export-manifest"),
    path("history/<store:store>/<number:number>/", history.entry, name="entry"),
    path("approvals/", approvals.approvals, name="approvals"),
    path("approvals/<agent:approval_id>/", approvals.approval, name="approval"),
    path("runs/", runs.runs, name="runs"),
    path("runs/new/<store:kind>/", runs.new, name="run-new"),
    path("runs/<agent:run_id>/", run.run, name="run"),
    path("runs/<agent:run_id>/cancel/", run.cancel, name="run-cancel"),
    path("runs/<agent:run_id>/resume/", run.resume, name="run-resume"),
    path("runs/<agent:run_id>/restart/", run.restart, name="run-restart"),
    path("runs/<agent:run_id>/done/", run.done, name="run-done"),
    path("runs/<agent:run_id>/undo/", run.undo, name="run-undo"),
    path("stores/", store.stores, name="stores"),
    path("people/", people.people, name="people"),
    path("people/<number:number>/", people.person, name="person"),
    path("notifications/", notifications.notifications, name="notifications"),
    path("notifications/<number:number>/", notifications.channel, name="channel"),
    path("events/", events.events, name="events"),
]
to_settings = RedirectView.as_view(pattern_name="settings")
# The names with account_, mfa_ and socialaccount_ are those by which allauth finds them.
accounts: list[URLPattern | URLResolver] = [
    path("login/", account.login, name="login"),
    path("login/", account.login, name="account_login"),
    path("login/", account.login, name="account_signup"),  # nobody signs up by themselves
    path("login/code/", second_factor.authenticate, name="mfa_authenticate"),
    path("login/passkey/", passkeys.login_webauthn, name="mfa_login_webauthn"),
    path("login/<slug:provider_id>/", single_sign_on.login, name="openid_connect_login"),
    path("login/<slug:provider_id>/back/", single_sign_on.callback, name="openid_connect_callback"),
    path("logout/", account.logout, name="logout"),
    path("logout/", account.logout, name="account_logout"),
    path("theme/", account.theme, name="theme"),
    path("confirm/", account.confirm, name="account_reauthenticate"),
    path("confirm/", account.confirm, name="confirm"),
    path("confirm/code/", second_factor.reauthenticate, name="mfa_reauthenticate"),
    path("confirm/passkey/", passkeys.reauthenticate_webauthn, name="mfa_reauthenticate_webauthn"),
    path("password/", account.forgot_password, name="password-forgotten"),
    path("password/<uidb64>/<token>/", account.choose_password, name="password-choose"),
    path("settings/", settings.settings, name="settings"),
    path("settings/keys/", settings.keys, name="settings-keys"),
    path("settings/mail/", settings.mail, name="settings-mail"),
    path("settings/sessions/", settings.sessions, name="settings-sessions"),
    path("settings/password/", account.change_password, name="password-change"),
    path("settings/app/", account.changes_factors(totp.activate_totp), name="mfa_activate_totp"),
    path("settings/app/remove/", account.changes_factors(totp.deactivate_totp), name="mfa_deactivate_totp"),
    path("settings/recovery-codes/", recovery_codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path(
        "settings/recovery-codes/new/",
        account.changes_factors(recovery_codes.generate_recovery_codes),
        name="mfa_generate_recovery_codes",
    ),
    path("settings/passkeys/add/", account.changes_factors(passkeys.add_webauthn), name="mfa_add_webauthn"),
    path("settings/passkeys/<int:pk>/", account.changes_factors(passkeys.edit_webauthn), name="mfa_edit_webauthn"),
    path("settings/passkeys/<int:pk>/remove/", account.changes_factors(passkeys.remove_webauthn), name="mfa_remove_webauthn"),
    path("settings/all/", to_settings, name="mfa_index"),
    path("settings/all/", to_settings, name="mfa_list_webauthn"),
    path("settings/all/", to_settings, name="socialaccount_connections"),
    path("settings/all/", to_settings, name="socialaccount_signup"),
]
machines: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/v1/", api.urls),
    path("hooks/<slug:provider>/<slug:token>", hooks.call, name="hook"),
]

urlpatterns: list[URLPattern | URLResolver] = [*pages, *accounts, *machines]

handler400 = "console.views.errors.bad_request"
handler403 = "console.views.errors.forbidden"
handler404 = "console.views.errors.not_found"
handler500 = "console.views.errors.server_error"
