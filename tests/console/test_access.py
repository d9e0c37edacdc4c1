"""Who may do what, and what is hidden from whom."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client
from pytest_django import Settings

from actions.records import ActionRef, NewEntry
from console.access import Right, forget, has_any_role, item_or_404, may, may_somewhere, visible, visible_stores
from console.models import Grant
from console.services import journal
from console.services.tokens import create_user_token
from console.stores import UnknownStore, console_chain, get_store
from tests.console.conftest import Cast, MemoryWriter
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("role", "rights"),
    [
        ("viewer", {Right.READ, Right.HISTORY}),
        ("operator", {Right.READ, Right.HISTORY, Right.SETTLE}),
        ("approver", {Right.READ, Right.APPROVE}),
        ("auditor", {Right.READ, Right.HISTORY, Right.EXPORT, Right.REVEAL}),
        ("admin", {Right.READ, Right.HISTORY, Right.EVICT, Right.ADMIN}),
    ],
)
def test_each_role_has_its_rights_and_no_others(person: Cast, role: str, rights: set[Right]) -> None:
    user = person("eve", role)
    assert {right for right in Right if may(user, right, store="main", tool="send_email")} == rights


def test_roles_add_up(person: Cast) -> None:
    user = person("eve", "admin", "operator")
    assert may(user, Right.ADMIN)
    assert may(user, Right.SETTLE)


def test_a_superuser_has_every_right(person: Cast) -> None:
    user = person("root", is_superuser=True)
    assert all(may(user, right) for right in Right)


def test_an_inactive_user_has_none(person: Cast) -> None:
    user = person("eve", "operator", is_superuser=True, is_active=False)
    assert not any(may_somewhere(user, right) for right in Right)
    assert not has_any_role(user)


def test_nobody_has_none() -> None:
    assert not any(may_somewhere(AnonymousUser(), right) for right in Right)


def test_a_limited_role_counts_only_there(dot: User) -> None:
    assert may(dot, Right.SETTLE, store="main", tool="open_ticket")
    assert not may(dot, Right.SETTLE, store="main", tool="send_email")
    assert not may(dot, Right.SETTLE, store="other", tool="open_ticket")


def test_a_forgotten_argument_asks_for_everything(dot: User) -> None:
    assert not may(dot, Right.SETTLE)
    assert not may(dot, Right.SETTLE, store="main")
    assert may_somewhere(dot, Right.SETTLE)
    assert may_somewhere(dot, Right.SETTLE, store="main")
    assert not may_somewhere(dot, Right.SETTLE, store="other")


def test_rows_of_a_list_are_asked_for_one_by_one(dot: User) -> None:
    may_see = visible(dot)
    assert may_see("main", "open_ticket")
    assert not may_see("main", "send_email")
    assert not may_see("main", "")


def test_stores_without_anything_to_see_are_left_out(other_store: MemoryWriter, dot: User, ben: User, cyd: User) -> None:
    assert [store.name for store in visible_stores(dot)] == ["main"]
    assert [store.name for store in visible_stores(ben)] == ["main", "other"]
    assert visible_stores(cyd) == ()


def test_an_action_is_found_by_whoever_may_see_it(records: RecordWriter, ben: User) -> None:
    ref = records.action("billing-7", 1)
    assert item_or_404(ben, ref).ref == ref


def test_an_action_that_may_be_seen_but_not_settled_is_refused(records: RecordWriter, ben: User, amy: User) -> None:
    ref = records.action("billing-7", 1)
    for user in (ben, amy):
        with pytest.raises(PermissionDenied):
            item_or_404(user, ref, Right.SETTLE)


def test_an_action_that_may_not_be_seen_is_hidden(records: RecordWriter, dot: User, cyd: User) -> None:
    ref = records.action("billing-7", 1, tool="send_email")
    for user in (dot, cyd):
        with pytest.raises(Http404):
            item_or_404(user, ref)


def test_an_unreadable_action_is_hidden_from_whoever_does_not_see_every_tool(records: RecordWriter, dot: User, ben: User) -> None:
    ref = records.action("billing-7", 1, tool="open_ticket", body="{")
    assert item_or_404(ben, ref).unreadable is not None
    with pytest.raises(Http404):
        item_or_404(dot, ref)


@pytest.mark.parametrize(
    "ref", [("main", "billing-7", 9), ("main", "bil\x00ing", 1), ("main", "\ud800", 1), ("main", "a", 0), ("main", "a", 2**63)]
)
def test_what_cannot_be_there_is_not_there(records: RecordWriter, ben: User, ref: tuple[str, str, int]) -> None:
    with pytest.raises(Http404):
        item_or_404(ben, ActionRef(*ref))


def test_a_store_that_is_not_configured_is_not_there(memory: RecordWriter, ben: User) -> None:
    with pytest.raises(UnknownStore, match="no store is called 'nowhere'"):
        item_or_404(ben, ActionRef("nowhere", "billing-7", 1))


def test_a_store_with_an_address_nobody_can_open_answers_with_why(memory: RecordWriter, settings: object) -> None:
    settings.ACTION_STORES = {"odd": "polign+gopher://x"}  # type: ignore[attr-defined]
    assert "no adapter" in get_store("odd").check().why_not


def test_roles_are_asked_for_once_in_a_request(ana: User, django_assert_num_queries: object) -> None:
    user = User.objects.get(pk=ana.pk)
    with django_assert_num_queries(1):  # type: ignore[operator]
        assert all(may(user, Right.READ, store="main", tool=f"tool-{n}") for n in range(20))


def test_a_role_taken_away_is_gone_for_the_next_request(ana: User) -> None:
    assert may(ana, Right.SETTLE)
    Grant.objects.all().delete()
    forget(ana)
    assert not may(ana, Right.SETTLE)


@pytest.mark.parametrize(
    ("roles", "kinds"),
    [
        (("viewer",), {"withdrawn", "asked", "role_changed"}),
        (("operator",), {"withdrawn", "asked", "role_changed"}),
        (("auditor",), {"withdrawn", "asked", "role_changed"}),
        (("admin",), {"withdrawn", "asked", "role_changed"}),
        (("approver",), None),
        ((("viewer", "main", ""),), {"withdrawn"}),
        ((("auditor", "other", ""),), {"asked"}),
        ((("admin", "main", ""), ("approver", "", "")), {"withdrawn"}),
        ((("viewer", "", "send_email"),), {"withdrawn", "asked"}),
        ((("viewer", "", "open_ticket"),), set()),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else "",  # a set's order differs from process to process
)
@pytest.mark.django_db(transaction=True)
def test_every_role_but_approver_reads_history_and_a_limited_one_only_theirs(
    memory: RecordWriter, settings: Settings, person: Cast, roles: tuple[Any, ...], kinds: set[str] | None
) -> None:
    """What stands in the console's own history about people is of those who may look into every store."""
    settings.ACTION_STORES = {**settings.ACTION_STORES, "other": "memory:"}
    get_store("main").append_entry(NewEntry(kind="withdrawn", actor="operator ana", agent="m-1", seq=1, tool="send_email"))
    get_store("other").append_entry(NewEntry(kind="asked", actor="resolver sent", agent="m-1", seq=1, tool="send_email"))
    journal.record("role_changed", actor="admin amy", detail={"about": "bob", "changed": {"roles": [[], ["admin"]]}})
    eve = person("eve", *roles)
    client = browser(eve)

    page = client.get("/history/")
    answer = Client().get("/api/v1/audit", headers={"Authorization": f"Bearer {create_user_token(eve)}"})

    assert page.status_code == answer.status_code == (403 if kinds is None else 200)
    if kinds is not None:
        assert {item.entry.kind for item in page.context["page"].items} == kinds
        assert {item["kind"] for item in answer.json()["items"]} - {"token_created"} == kinds
        assert ("bob" in text_of(page.content.decode())) is ("role_changed" in kinds)  # not in a token, where it is by chance
        number = console_chain().read_head().number - 1
        assert client.get(f"/history/console/{number}/").status_code == (200 if "role_changed" in kinds else 404)
