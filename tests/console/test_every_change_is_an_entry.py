"""Each gesture that changes something here, made by its page or command: one entry with who, before and after; none where it is refused.

A new address, route or command fails the first test until somebody has said what it changes, or why that is no entry of the console's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal import auth
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
)
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from console import tasks, urls
from console.models import Channel, Hook, Token
from console.services import channels, hooks
from console.services.channels import Quiet
from console.services.claims import claim
from console.services.hooks import hook_mark
from console.services.people import give_role, password_path
from console.services.tokens import create_user_token
from tests.console.conftest import PASSWORD, Cast
from tests.console.entries import console_entries
from tests.console.test_entry_points import operations, pages
from tests.console.test_services_approve import payment
from tests.console.test_view_resolvers import SECRET as RESOLVER_SECRET
from tests.console.test_view_resolvers import http_form
from tests.console.test_view_tools import form_of
from tests.console.view_helpers import browser
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_passwords")]

NEW_PASSWORD = "another horse battery staple"
WEBHOOK = "https://hooks.example.com/T0/very-secret-path"


@dataclass(slots=True, kw_only=True)
class World:
    """Somebody for every gesture, and whom or what it is about."""

    admin: User
    owner: User  # who changes what is their own
    other: User  # about whom an admin's gestures are
    records: RecordWriter
    clients: dict[str, Client] = field(default_factory=dict)  # by name, signed in before anything is counted

    @property
    def other_path(self) -> str:
        return f"/people/{self.other.pk}/"


Do = Callable[[World, Client], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gesture:
    """`do` makes it in a browser, or as a command. `changed`: each name with before and after; `...` stands for any value, never for none."""

    name: str
    do: Do
    kind: str
    changed: dict[str, list[Any]]
    actor: str = "admin amy"
    by: str = "admin"  # whose browser: admin, owner, or nobody's
    prepare: Callable[[World], Any] = lambda world: None
    through: tuple[str, ...] = ()  # the page or the command


def post(path: str | Callable[[World], str], **said: Any) -> Do:
    return lambda world, client: client.post(path if isinstance(path, str) else path(world), said)


def to_person(do: str, **said: str) -> Do:
    return post(lambda world: world.other_path, do=do, **said)


def run(*arguments: str) -> Do:
    return lambda world, client: call_command(*arguments, stdout=StringIO())


def create_user(world: World, client: Client) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", StringIO(f"{NEW_PASSWORD}\n"))
        return call_command("create_user", "eve", stdout=StringIO())


def add_app(world: World, client: Client) -> Any:
    client.get("/settings/app/")
    step = next(iter(auth.yield_hotp_counters_from_time()))
    code = hotp_value(client.session["mfa.totp.secret"], step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "yield_hotp_counters_from_time", lambda: iter([step]))  # its half minute does not turn meanwhile
        return client.post("/settings/app/", {"code": format_hotp_value(code)})


def owners_app(world: World) -> None:
    TOTP.activate(world.owner, generate_totp_secret())
    RecoveryCodes.activate(world.owner)


def owners_passkey(world: World) -> None:
    Authenticator.objects.create(user=world.owner, type="webauthn", data={"name": "blue key", "credential": {}})


def passkey_path(rest: str = "") -> Callable[[World], str]:
    return lambda world: f"/settings/passkeys/{Authenticator.objects.get(type='webauthn').pk}/{rest}"


def choose_password(world: World, client: Client) -> Any:
    return client.post(
        client.get(password_path(world.other))["Location"], {"new_password1": NEW_PASSWORD, "new_password2": NEW_PASSWORD}
    )


def resolver(world: World) -> None:
    assert browser(world.admin).post("/resolvers/new/http/", http_form()).status_code == 302


def hooked(world: World) -> None:
    resolver(world)
    hooks.make_hook("provider", "stripe", by=world.admin)


def hook_form(do: str, **said: str) -> Do:
    def send(world: World, client: Client) -> Any:
        seen = hook_mark(Hook.objects.filter(name="provider").first())
        return client.post("/resolvers/provider/hook/", {"do": do, "seen_hook": seen, **said})

    return send


def webhook(world: World) -> None:
    channels.add_webhook("ops", WEBHOOK, ["money"], Quiet(), by=world.admin)


def the_webhook(do: str, **said: str) -> Do:
    return post(lambda world: f"/notifications/{Channel.objects.get(way='webhook').pk}/", do=do, **said)


def told_by_mail(world: World) -> None:
    channels.set_own_mail(world.owner, ["money"], Quiet(), time_zone="UTC")


def claimed(world: World) -> None:
    claim(payment(world.records, 1), by=world.owner)


def elsewhere(who: str) -> Callable[[World], None]:
    def sign_in(world: World) -> None:
        Client().post("/login/", {"username": getattr(world, who).username, "password": PASSWORD})

    return sign_in


POLICY = {"version": [0, 1], "recipient": ["", "mail.to"]}
HOOK = {"called by": [None, "stripe"], "address": [None, "made"], "signed with": [None, ...]}
GONE_HOOK = {"called by": ["stripe", None], "address": ["made", None], "signed with": ["a secret", None]}
CHANNEL = {
    "told by": [None, ...],
    "of": [None, ["money"]],
    "quiet": [None, "none"],
    "urgent passes": [None, False],
    "time zone": [None, "UTC"],
}

GESTURES = (
    Gesture(
        name="a policy",
        do=lambda world, client: client.post("/tools/send_email/", form_of("send_email", recipient="mail.to")),
        kind="policy_changed",
        changed=POLICY,
        through=("tool",),
    ),
    Gesture(
        name="a new resolver",
        do=lambda world, client: client.post("/resolvers/new/http/", http_form()),
        kind="resolver_changed",
        changed={"version": [None, 1], "kind": [None, "http"], "sealed": [[], ["secret set"]], "url": [None, ...], ...: ...},  # type: ignore[dict-item]
        through=("resolver-new",),
    ),
    Gesture(
        name="a resolver, with another secret",
        prepare=resolver,
        do=lambda world, client: client.post("/resolvers/provider/", http_form(seen_version="1", per_minute="7")),
        kind="resolver_changed",
        changed={"version": [1, 2], "per_minute": [60, 7], "sealed": [["secret set"], ["secret replaced"]]},
        through=("resolver",),
    ),
    Gesture(name="an address for providers", prepare=resolver, do=hook_form("make", provider="stripe"), kind="hook_changed", changed=HOOK,
            through=("resolver-hook",)),
    Gesture(name="another secret for providers", prepare=hooked, do=hook_form("secret", hook_secret="whsec_0123456789abcdef"),
            kind="hook_changed", changed={"signed with": ["a secret", ...]}, through=("resolver-hook",)),
    Gesture(name="no address for providers", prepare=hooked, do=hook_form("remove"), kind="hook_changed", changed=GONE_HOOK,
            through=("resolver-hook",)),
    Gesture(name="a webhook", do=post("/notifications/", name="ops", address=WEBHOOK, event="money"), kind="channel_changed", changed=CHANNEL,
            through=("notifications",)),
    Gesture(name="what a webhook is told", prepare=webhook, do=the_webhook("save", event="incident", urgent_passes="yes", time_zone="UTC"),
            kind="channel_changed", changed={"of": [["money"], ["incident"]]}, through=("channel",)),
    Gesture(name="no webhook", prepare=webhook, do=the_webhook("remove"), kind="channel_changed",
            changed={name: [..., None] for name in CHANNEL}, through=("channel",)),
    Gesture(name="one's own mails", do=post("/settings/mail/", event="money"), by="owner", actor="user ana", kind="channel_changed",
            changed=CHANNEL, through=("settings-mail",)),
    Gesture(name="no mails any more", prepare=told_by_mail, do=post("/settings/mail/"), by="owner", actor="user ana", kind="channel_changed",
            changed={name: [..., None] for name in CHANNEL}, through=("settings-mail",)),
    Gesture(name="a role", do=to_person("give", role="operator", store="main"), kind="role_changed",
            changed={"roles": [["viewer"], ["operator in store main", "viewer"]]}, through=("person",)),
    Gesture(name="no role", do=to_person("take", role="viewer"), kind="role_changed", changed={"roles": [["viewer"], []]}, through=("person",)),
    Gesture(name="a role by a command", do=run("set_role", "bob", "auditor", "--tool", "send_email"), by="", actor="a command",
            kind="role_changed", changed={"roles": [["viewer"], ["auditor for tool send_email", "viewer"]]}, through=("set_role",)),
    Gesture(name="a person", do=post("/people/", username="eve", email="eve@example.com"), kind="person_added",
            changed={"mail address": [None, "eve@example.com"], "may come in": [None, True]}, through=("people",)),
    Gesture(name="a person by a command", do=create_user, by="", actor="a command", kind="person_added",
            changed={"may come in": [None, True]}, through=("create_user",)),
    Gesture(name="a mail address", do=to_person("email", email="b@example.com"), kind="person_changed",
            changed={"mail address": ["", "b@example.com"]}, through=("person",)),
    Gesture(name="nobody comes in", do=to_person("deactivate"), kind="person_changed", changed={"may come in": [True, False]},
            through=("person",)),
    Gesture(name="a link for a password", do=to_person("link"), kind="password_link", changed={"link for a new sign-in": [None, "made"]},
            through=("person",)),
    Gesture(name="somebody's sessions", prepare=elsewhere("other"), do=to_person("end"), kind="sessions_ended", changed={"sessions": [1, 0]},
            through=("person",)),
    Gesture(name="somebody's second factor", prepare=lambda world: TOTP.activate(world.other, generate_totp_secret()), do=to_person("reset"),
            kind="second_factor_changed", changed={"second factor": [..., []]}, through=("person",)),
    Gesture(name="one's own other sessions", prepare=elsewhere("owner"), do=post("/settings/sessions/", session="others"), by="owner",
            actor="user ana", kind="sessions_ended", changed={"sessions": [2, 1]}, through=("settings-sessions",)),
    Gesture(name="one's own password", by="owner", actor="user ana", kind="password_changed",
            do=post("/settings/password/", old_password=PASSWORD, new_password1=NEW_PASSWORD, new_password2=NEW_PASSWORD),
            changed={"comes in with": ["a password", "another password"]}, through=("password-change",)),
    Gesture(name="a password by a link", do=choose_password, by="", actor="user bob", kind="password_changed",
            changed={"comes in with": ["a password", "another password"]}, through=("password-choose",)),
    Gesture(name="an app", do=add_app, by="owner", actor="user ana", kind="second_factor_changed", changed={"second factor": [[], ...]},
            through=("mfa_activate_totp",)),
    Gesture(name="no app", prepare=owners_app, do=post("/settings/app/remove/"), by="owner", actor="user ana", kind="second_factor_changed",
            changed={"second factor": [..., []]}, through=("mfa_deactivate_totp",)),
    Gesture(name="other recovery codes", prepare=owners_app, do=post("/settings/recovery-codes/new/"), by="owner", actor="user ana",
            kind="second_factor_changed", changed={"second factor": [..., ...]}, through=("mfa_generate_recovery_codes",)),
    Gesture(name="a passkey's name", prepare=owners_passkey, do=post(passkey_path(), name="red key"), by="owner", actor="user ana",
            kind="second_factor_changed", changed={"second factor": [..., ...]}, through=("mfa_edit_webauthn", "mfa_add_webauthn")),
    Gesture(name="no passkey", prepare=owners_passkey, do=post(passkey_path("remove/")), by="owner", actor="user ana",
            kind="second_factor_changed", changed={"second factor": [..., []]}, through=("mfa_remove_webauthn",)),
    Gesture(name="a token", do=run("create_token", "bob"), by="", actor="a command", kind="token_created", changed={...: [None, "made"]},  # type: ignore[dict-item]
            through=("create_token",)),
    Gesture(name="an agent's token", do=run("create_token", "--agent", "main", "billing-7"), by="", actor="a command", kind="token_created",
            changed={...: [None, "made"]}, through=("create_token",)),  # type: ignore[dict-item]
    Gesture(name="no token", prepare=lambda world: create_user_token(world.other), do=run("revoke_token", "--user", "bob"), by="",
            actor="a command", kind="token_revoked", changed={...: ["made", None]}, through=("revoke_token",)),  # type: ignore[dict-item]
    Gesture(name="a hand-over", prepare=claimed, by="owner", actor="operator ana", kind="handed_over",
            do=post("/handover/", ref="main/billing-7/1", to="bea", text="please look", handover_id="hand-over-1"),
            changed={"main/billing-7/1": ["ana", "bea"]}, through=("handover",)),
)  # fmt: skip

BESIDE_THE_ACTION = {
    *("decision", "decision-approve", "decision-turn-down", "decision-break-glass", "decision-withdraw", "decision-through"),
    *("bulk", "batch", "batch-undo", "batch-again", "eviction", "incident"),
    *("correction", "correction-approve", "correction-turn-down", "correction-withdraw"),
    *(
        "action-ask",
        "agent-ask",
        "asking",
        "action-reveal",
        "hook",
    ),  # a run of a resolver, which they make due; what was looked at
    *("settle", "approve", "correct", "evict", "prepare_store"),
}
"""What is about an action stands in its store's chain: tests/console/test_services_*.py, test_view_reveal.py, tests/store/."""
ELSEWHERE = {
    "approval": "tests/console/test_services_approvals.py",
    **dict.fromkeys(("run-new", "run-cancel", "run-resume", "run-restart", "run-done"), "tests/console/test_services_runs.py"),
    "run-undo": "tests/console/test_services_undoing.py",
    "export": "tests/console/test_view_audit.py",
    "export_audit": "tests/console/test_commands_audit.py",
    "retain_audit": "tests/console/test_commands_audit.py",
    "agent-replay": "tests/console/test_replay.py",
    "export_replay": "tests/console/test_replay.py",
    "openid_connect_callback": "tests/console/test_single_sign_on.py",
    "login": "tests/console/test_lock_outs.py: a door that is closed",
}
NO_ENTRY = {
    "who is at a call, notes, views and looks are for colleagues, not for auditors": {
        *(
            "action-claim",
            "action-note",
            "claims",
            "saved-view",
            "saved-views",
            "handover-dismiss",
            "theme",
            "settings",
            "settings-keys",
        ),
    },
    "it decides nothing by itself": {"batch-cancel", "verify-now", "sign_checkpoints", "verify_audit"},
    "it changes how secrets are kept, not what they are": {"reseal_secrets"},
    "it sends a link, or asks who is there": {
        *("password-forgotten", "confirm", "account_reauthenticate", "mfa_reauthenticate", "mfa_reauthenticate_webauthn"),
        *(
            "mfa_authenticate",
            "mfa_login_webauthn",
            "openid_connect_login",
            "account_login",
            "account_signup",
            "logout",
            "account_logout",
        ),
    },
    "it only reads": {
        *(
            "action",
            *("approvals", "runs", "run", "metrics"),
            "action-arguments",
            "action-result",
            "action-status",
            "agent",
            "agents",
            "agent-briefing",
            "correction-preview",
        ),
        *(
            "decision-preview",
            "decision-held",
            "entry",
            "events",
            "exports",
            "export-manifest",
            "handover-band",
            "healthz",
            "readyz",
            "history",
        ),
        *(
            "incidents",
            "incidents-banner",
            "mfa_index",
            "mfa_list_webauthn",
            "mfa_view_recovery_codes",
            "proposals",
            "queue",
            "resolvers",
        ),
        *("resolver-dry-run", "resolver-expressions", "resolver-new-dry-run", "resolver-new-expressions", "simulator"),
        *("socialaccount_connections", "socialaccount_signup", "stores", "tool-example", "tools", "verification"),
        *("check_stores", "discover_stores", "insight", "open_actions"),
    },
}
ROUTES_BESIDE_THE_ACTION = {
    "decision",
    "approve",
    "turn-down",
    "break-glass",
    "through-server",
    "correction",
    "bulk",
    "resolve",
    "eviction",
}
ROUTES_OF_RUNS = {"runs", "cancel", "resume", "restart", "done", "compensate", "{approval_id}"}
"""Each is an entry: tests/console/test_services_runs.py, test_services_approvals.py, test_services_undoing.py."""
ROUTES_WITHOUT = {"claim"}

TABLES = (
    *("console_policy", "console_definition", "console_secret", "console_hook", "console_channel", "console_grant", "auth_user"),
    *("console_token", "mfa_authenticator", "console_claim", "console_hand_over"),
)


def test_every_way_in_is_said_to_change_something_or_not() -> None:
    through = {name for gesture in GESTURES for name in gesture.through}
    known = through | BESIDE_THE_ACTION | set(ELSEWHERE) | {name for names in NO_ENTRY.values() for name in names}
    commands = {file.stem for file in (Path(tasks.__file__).parent / "management" / "commands").glob("[a-z]*.py")}

    assert known == {str(one.name) for one in pages(urls.urlpatterns)} | commands
    writing = {path.rpartition("/")[2] for method, path in operations() if method != "get"}
    assert writing == ROUTES_BESIDE_THE_ACTION | ROUTES_OF_RUNS | ROUTES_WITHOUT


@pytest.fixture
def world(memory: RecordWriter, person: Cast) -> World:
    owner = person("ana", "operator", email="ana@example.com")
    person("bea", "operator")
    made = World(admin=person("amy", "admin"), owner=owner, other=person("bob", "viewer"), records=memory)
    for name in ("admin", "owner"):
        made.clients[name] = Client(raise_request_exception=False)
        made.clients[name].post("/login/", {"username": getattr(made, name).username, "password": PASSWORD})
        made.clients[name].post("/confirm/", {"password": PASSWORD})
    made.clients["stranger"] = browser(person("sam", "viewer"))
    made.clients[""] = Client(raise_request_exception=False)
    return made


def kept() -> list[tuple[str, str]]:
    """What stands in every table that a gesture changes."""
    with connection.cursor() as cursor:
        looks = [
            f"SELECT '{name}', coalesce(md5(string_agg(t::text, '|' ORDER BY t::text)), '') FROM {name} t" for name in TABLES
        ]
        cursor.execute(" UNION ALL ".join(looks))
        return sorted(cursor.fetchall())


def newest() -> int:
    return max((entry.number for entry in console_entries()), default=0)


@pytest.mark.parametrize("gesture", GESTURES, ids=lambda gesture: gesture.name)
def test_each_change_is_one_entry_with_who_before_and_after(world: World, gesture: Gesture) -> None:
    gesture.prepare(world)
    before = newest()

    gesture.do(world, world.clients[gesture.by])

    (entry,) = console_entries(after=before)
    assert (entry.kind, entry.actor) == (gesture.kind, gesture.actor)
    changed = entry.detail["changed"]
    assert isinstance(changed, dict)
    for name, pair in gesture.changed.items():
        assert name is ... or name in changed, changed
        found = changed[name] if name is not ... else next(iter(changed.values()))
        assert pair is ... or all(is_as(one, wanted) for one, wanted in zip(found, pair, strict=True)), (name, found)
    assert ... in gesture.changed or changed.keys() == gesture.changed.keys()
    assert all(one[0] != one[1] for one in changed.values())
    for secret in (NEW_PASSWORD, PASSWORD, RESOLVER_SECRET, "whsec_0123456789abcdef", "very-secret-path"):
        assert secret not in entry.text


def is_as(found: Any, wanted: Any) -> bool:
    return found not in (None, "", []) if wanted is ... else bool(found == wanted)


@pytest.mark.parametrize("gesture", [one for one in GESTURES if one.by == "admin"], ids=lambda gesture: gesture.name)
def test_who_may_not_changes_nothing_and_leaves_no_such_entry(world: World, gesture: Gesture) -> None:
    gesture.prepare(world)
    before, as_it_was = newest(), kept()

    assert gesture.do(world, world.clients["stranger"]).status_code == 403

    assert [entry.kind for entry in console_entries(after=before)] == ["denied"]
    assert kept() == as_it_was


@pytest.mark.parametrize("gesture", GESTURES, ids=lambda gesture: gesture.name)
def test_what_cannot_be_entered_is_not_changed(world: World, gesture: Gesture) -> None:
    gesture.prepare(world)
    before, as_it_was = newest(), kept()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION public.a_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;"
            "CREATE TRIGGER a_full BEFORE INSERT ON settle_audit.entries FOR EACH ROW EXECUTE FUNCTION public.a_full()"
        )

    if gesture.by or gesture.through == ("password-choose",):
        assert gesture.do(world, world.clients[gesture.by]).status_code == 503
    else:
        with pytest.raises(CommandError, match="its disk is full"):
            gesture.do(world, Client())

    assert newest() == before
    assert kept() == as_it_was


def test_changing_nothing_is_no_entry(world: World) -> None:
    before = newest()
    admin, owner = world.clients["admin"], world.clients["owner"]

    admin.post(world.other_path, {"do": "give", "role": "viewer"})
    admin.post(world.other_path, {"do": "take", "role": "auditor"})
    admin.post(world.other_path, {"do": "activate"})
    admin.post(world.other_path, {"do": "email", "email": ""})
    admin.post(world.other_path, {"do": "reset"})
    owner.post("/settings/sessions/", {"session": "others"})
    owner.post("/settings/mail/")
    give_role(world.other, "viewer", by=None)

    assert newest() == before
    assert not Token.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_changes_at_one_moment_the_second_tells_what_the_first_left(person: Cast) -> None:
    user = person("bob", "viewer")

    def give(role: str) -> None:
        try:
            give_role(user, role, by=None)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(give, ["operator", "approver", "auditor", "admin"]))

    steps = [entry.detail["changed"]["roles"] for entry in reversed(console_entries("role_changed"))]  # type: ignore[index]
    assert steps[0][0] == ["viewer"]
    assert [after for _, after in steps[:-1]] == [before for before, _ in steps[1:]]
    assert steps[-1][1] == ["admin", "approver", "auditor", "operator", "viewer"]
