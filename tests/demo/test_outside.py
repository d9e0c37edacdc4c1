"""The outside world of the demo: where it is, what it shows, and the resolvers that are defined for it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Finding, MatchedBy, Reply
from actions.resolvers.claim import Roles, claim_of
from actions.resolvers.verdict import compare
from console.services.definitions import find_definition, list_definitions, options_of, save_definition
from console.services.policies import all_policies, save_policy
from demo.outside import HOST, Outside, kept_outside
from demo.policies import POLICIES, ensure_policies, ensure_resolvers, wanted
from demo.stage import ROOT, inherited
from demo.world import MAIL, PAYMENTS, TICKETS, World
from local import processes
from tests.resolvers.makers import make_action

PAYMENT = {"id": "pay_1", "amount": 480.5, "currency": "EUR", "payee": "Halden GmbH", "reference": "INV-1"}
EFFECTS: dict[str, tuple[str, dict[str, object]]] = {
    "send_email": (MAIL, {"to": "marta@example.com", "subject": "Re: \u202eyours", "body": "Hello\n"}),
    "create_payment": (PAYMENTS, PAYMENT),
    "open_ticket": (TICKETS, {"id": "T-1", "title": "Cold store 3", "body": "9 °C", "priority": "high"}),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outside, World]]:
    """Running, over a world in which one mail was sent before they were started."""
    folder = tmp_path_factory.mktemp("outside")
    file, log, world = folder / "outside.json", folder / "log", World(folder / "world")
    outside = kept_outside(file)
    world.append(MAIL, "an-earlier-key", {"to": "marta@example.com", "subject": "Earlier", "body": ""})
    line = [sys.executable, "-m", "demo.providers", str(file), str(world.folder)]
    process = processes.spawn(line, env=inherited(), cwd=ROOT, log=log)
    processes.wait_for_port(outside.tickets_port, process=process, log=log)
    yield outside, world
    processes.stop(process)


def look(outside: Outside, tool: str, key: str) -> Finding:
    """What the tool's resolver finds of one call, as the demo defines it."""
    policy = POLICIES[tool]
    one = next(one for one in wanted(outside) if one.name == policy["resolver"])
    action = make_action(tool=tool, key=key, args=EFFECTS[tool][1], started_at=time.time_ns())
    claim = claim_of(action, action.args, Roles(reference=policy.get("reference", "")))
    allowed = Allowed(hosts=frozenset(outside.allowed_hosts.split()))
    finding = build_resolver(one.kind, one.name, one.values, one.secrets, allowed=allowed).ask(claim, now=action.started_at)
    assert finding.reply is Reply.ANSWERED, finding.problem
    for match in finding.matches:
        assert all(row.agrees for row in compare(claim, match))
    return finding


@pytest.mark.parametrize("tool", EFFECTS)
def test_what_an_agent_did_is_found_by_its_key_and_what_it_did_not_is_not(servers: tuple[Outside, World], tool: str) -> None:
    outside, world = servers
    file, effect = EFFECTS[tool]
    assert not look(outside, tool, f"{tool}-done").matches

    world.append(file, f"{tool}-done", effect)

    processes.wait_until(lambda: bool(look(outside, tool, f"{tool}-done").matches), what="the effect")
    (match,) = look(outside, tool, f"{tool}-done").matches
    assert match.by is MatchedBy.KEY
    assert not [match for match in look(outside, tool, f"{tool}-not-done").matches if match.by is MatchedBy.KEY]


def test_mails_of_an_earlier_start_are_there_as_soon_as_the_tracker_answers(servers: tuple[Outside, World]) -> None:
    assert [match.by for match in look(servers[0], "send_email", "an-earlier-key").matches] == [MatchedBy.KEY]


def test_ports_and_credentials_are_kept_and_a_port_that_was_taken_moves(tmp_path: Path) -> None:
    file = tmp_path / "outside.json"
    first = kept_outside(file)
    assert kept_outside(file) == first
    assert file.stat().st_mode & 0o777 == 0o600
    with closing(socket.create_server((HOST, first.mail_port))):
        moved = kept_outside(file)

    assert moved.mail_port != first.mail_port
    assert moved.former_ports == (first.mail_port,)
    assert (moved.ports[1:], moved.mail_password) == (first.ports[1:], first.mail_password)
    assert kept_outside(file) == moved


@pytest.mark.django_db(transaction=True)
def test_what_a_person_changed_stays_and_an_address_follows_its_server(settings: object, tmp_path: Path) -> None:
    by = User.objects.create_superuser("demo")
    outside = kept_outside(tmp_path / "outside.json")
    settings.RESOLVER_ALLOWED_HOSTS = tuple(outside.allowed_hosts.split())  # type: ignore[attr-defined]
    for _ in range(2):
        ensure_resolvers(outside, by)
        ensure_policies(by)
    assert [one.version for one in list_definitions()] == [1, 1, 1]
    assert {policy.version for policy in all_policies().values()} == {1}
    assert {tool for tool, policy in all_policies().items() if policy.mode == "settle"} == {"send_receipt"}

    mailbox = find_definition("sent-folder")
    assert mailbox is not None
    save_definition("sent-folder", "imap", {**options_of(mailbox), "folder": "Gesendet"}, {}, seen_version=1, by=by)
    save_policy("send_email", {"tool_timeout_s": 9}, seen_version=1, by=by)
    with closing(socket.create_server((HOST, outside.mail_port))):
        moved = kept_outside(tmp_path / "outside.json")
    settings.RESOLVER_ALLOWED_HOSTS = tuple(moved.allowed_hosts.split())  # type: ignore[attr-defined]
    ensure_resolvers(moved, by)
    ensure_policies(by)

    assert {one.name: one.version for one in list_definitions()} == {"sent-folder": 3, "payments": 1, "tracker": 1}
    followed = find_definition("sent-folder")
    assert followed is not None
    assert (options_of(followed)["folder"], options_of(followed)["port"]) == ("Gesendet", str(moved.mail_port))
    assert {tool: policy.version for tool, policy in all_policies().items() if policy.version > 1} == {"send_email": 2}
