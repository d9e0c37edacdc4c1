"""Saved views: whose they are, what stands in them, how many match, and what has left the world since they were saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User

from actions.errors import InvalidDecision
from actions.store.memory import MemoryStore
from console.models import FirstView, SavedView
from console.services.saved_views import MAX_OWN, begin_with, delete_view, list_views, rename_view, save_view
from tests.console.conftest import Cast, MemoryWriter
from tests.console.test_services_races import together
from tests.console.view_helpers import HTMX, browser, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

NASTY = "<img src=x onerror=alert(1)>\u202e\"' {{ x }}"


def tabs(html: str) -> list[str]:
    """The views above the list, as text."""
    nav = re.search(r'<nav class="chips views".*?</nav>', html, re.DOTALL)
    return [text_of(one) for one in re.findall(r'<a class="chip".*?</a>', nav[0], re.DOTALL)] if nav else []


def test_a_filter_is_kept_under_a_name_and_stands_above_the_list_with_how_many_match(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1, args={"to": "needle@example.com"})
    memory.action("m-1", 2)
    memory.action("t-1", 1, tool="open_ticket")
    client = browser(ana)
    offered = client.get("/views/?tool=send_email&cursor=x&open=main/m-1/1").content.decode()
    assert 'name="query" value="tool=send_email"' in offered

    answer = client.post("/views/", {"name": "  Mails  now ", "query": "tool=send_email&cursor=x&nonsense=1"})
    client.post("/views/", {"name": "By text", "query": "text=needle"})
    client.post("/views/", {"name": "Settled", "query": "state=done&class=any"})

    assert answer.status_code == 302
    assert answer["Location"] == "/?tool=send_email"
    assert tabs(client.get("/").content.decode()) == ["By text 1", "Mails now 2", "Settled"]  # a closed one is not read here
    assert tabs(client.get("/?tool=send_email").content.decode())[1] == "Mails now 2"
    assert re.search(r'aria-current="true"><span><bdi>Mails now', client.get("/?tool=send_email").content.decode())
    piece = client.get("/", headers=HTMX).content.decode()
    assert re.findall(r'id="view-count-\d+" hx-swap-oob="true">(\d*)<', piece) == ["1", "2", ""]


def test_counts_are_capped_limited_to_what_one_sees_and_cost_no_read_of_a_store(
    memory: RecordWriter, ana: User, dot: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(1, 1003):
        memory.action("a", seq)
    memory.action("t", 1, tool="open_ticket")
    save_view("Mails", "tool=send_email", by=ana, is_shared=True)
    save_view("Text", "text=refund", by=ana)
    for number in range(10):
        save_view(f"View {number}", f"agent=a{number}", by=ana)
    reads: list[str] = []
    real: Callable[..., Any] = MemoryStore.read_actions
    monkeypatch.setattr(MemoryStore, "read_actions", lambda self, *a, **k: reads.append(self.name) or real(self, *a, **k))  # type: ignore[func-returns-value]

    html = browser(ana).get("/").content.decode()

    assert reads == ["main"]
    assert tabs(html)[:2] == ["Mails 1,000+", "Text"]  # not looked for in so many
    assert tabs(browser(dot).get("/").content.decode()) == ["Mails 0"]


def test_a_store_that_does_not_answer_leaves_a_question_mark_behind_every_count(
    memory: RecordWriter, ana: User, down: str
) -> None:
    memory.action("m-1", 1)
    save_view("Mails", "tool=send_email", by=ana)

    assert tabs(browser(ana).get("/").content.decode()) == ["Mails 1 + ?"]


def test_a_view_is_its_owners_until_it_is_shared_and_then_its_owners_and_admins_to_change(
    memory: RecordWriter, ana: User, bea: User, amy: User, cyd: User
) -> None:
    memory.action("m-1", 1)
    own, shared = save_view("Own", "tool=a", by=ana), save_view("Shared", "tool=b", by=ana, is_shared=True)

    assert [view.name for view in list_views(ana)] == ["Own", "Shared"]
    assert [(view.name, view.may_change) for view in list_views(bea)] == [("Shared", False)]
    assert [(view.name, view.may_change) for view in list_views(amy)] == [("Shared", True)]
    for person, view in ((bea, own), (bea, shared), (amy, own)):
        for gesture in ("rename", "share", "keep", "delete"):
            answer = browser(person).post(f"/views/{view.id}/", {"gesture": gesture, "name": "Mine"})
            assert answer.status_code == 404
    assert browser(bea).post(f"/views/{own.id}/", {"gesture": "begin"}).status_code == 404
    assert browser(cyd).get("/views/").status_code == 403
    assert browser(cyd).post("/views/", {"name": "x", "query": "tool=a"}).status_code == 403
    assert [(row.name, row.is_shared) for row in SavedView.objects.order_by("pk")] == [("Own", False), ("Shared", True)]

    browser(amy).post(f"/views/{shared.id}/", {"gesture": "rename", "name": "Renamed"})
    browser(ana).post(f"/views/{own.id}/", {"gesture": "share"})
    browser(amy).post(f"/views/{shared.id}/", {"gesture": "keep"})
    assert [view.name for view in list_views(bea)] == ["Own"]
    browser(ana).post(f"/views/{shared.id}/", {"gesture": "delete"})
    assert [row.name for row in SavedView.objects.all()] == ["Own"]
    assert browser(ana).get(f"/views/{own.id}/").status_code == 302
    assert browser(ana).post(f"/views/{own.id}/", {"gesture": "explode"}).status_code == 400


def test_a_persons_queue_begins_with_the_view_they_chose_and_everything_stays_one_click_away(
    memory: RecordWriter, ana: User, bea: User
) -> None:
    memory.action("m-1", 1)
    memory.action("t-1", 1, tool="open_ticket")
    view = save_view("Tickets", "tool=open_ticket", by=ana, is_shared=True)
    client = browser(ana)
    client.post(f"/views/{view.id}/", {"gesture": "begin"})

    assert client.get("/")["Location"] == "/?tool=open_ticket"
    assert client.get("/", headers=HTMX).status_code == 200
    html = client.get("/?in=doubt").content.decode()
    assert 'href="/?in=doubt" aria-current="true">in doubt' in html
    assert "send_email" in html
    assert browser(bea).get("/").status_code == 200  # shared, and chosen by ana alone
    client.post(f"/views/{view.id}/", {"gesture": "end"})
    assert client.get("/").status_code == 200
    begin_with(view.id, by=bea)
    delete_view(view.id, by=ana)
    assert not FirstView.objects.exists()
    assert browser(bea).get("/").status_code == 200


def test_a_store_that_has_gone_since_is_named_and_takes_nobodys_queue_away(
    records: RecordWriter, other_store: MemoryWriter, ana: User, settings: Any
) -> None:
    records.action("m-1", 1)
    view = save_view("Elsewhere", "store=other", by=ana)
    begin_with(view.id, by=ana)
    assert browser(ana).get("/")["Location"] == "/?store=other"
    settings.ACTION_STORES = {"main": settings.ACTION_STORES["main"]}

    response = browser(ana).get("/")

    said = text_of(response.content.decode())
    assert response.status_code == 200
    assert "Your queue cannot begin with Elsewhere. No store is called 'other' here; there are main." in said
    assert "m-1" in said
    assert tabs(response.content.decode())[0].startswith("Elsewhere !")
    opened = browser(ana).get("/?store=other")
    assert opened.status_code == 400
    assert "no store is called 'other' here" in text_of(opened.content.decode())
    assert browser(ana).get("/views/").status_code == 200


@pytest.mark.parametrize(
    ("name", "query", "problem"),
    [
        ("", "tool=a", "give it a name"),
        ("\u200b \u202e", "tool=a", "give it a name"),
        ("x" * 61, "tool=a", "the limit is 60"),
        ("a\x00b", "tool=a", "NUL"),
        ("Fine", "", "nothing is filtered here"),
        ("Fine", "cursor=abc&open=main/a/1", "nothing is filtered here"),
        ("Fine", "state=bogus", "no state is called"),
        ("Fine", "age=soon", "age"),
        ("Fine", "store=moon", "no store is called"),
        ("Fine", "tool=" + "%C3%A9" * 500, "longer than 2,000"),
        ("Taken", "tool=a", "already"),
    ],
)
def test_what_cannot_be_kept_is_said_where_it_was_typed_and_nothing_is_stored(
    memory: RecordWriter, ana: User, name: str, query: str, problem: str
) -> None:
    save_view("Taken", "tool=z", by=ana)

    answer = browser(ana).post("/views/", {"name": name, "query": query})

    assert answer.status_code == 422
    assert problem in text_of(answer.content.decode())
    assert [row.name for row in SavedView.objects.all()] == ["Taken"]


def test_a_hostile_name_is_shown_for_what_it_is_everywhere(memory: RecordWriter, ana: User, amy: User) -> None:
    memory.action("m-1", 1)
    view = save_view(NASTY, "tool=%3Cscript%3E", by=ana, is_shared=True)
    begin_with(view.id, by=amy)

    for html in (browser(amy).get("/?in=doubt").content.decode(), browser(amy).get("/views/").content.decode()):
        assert "<img src=x" not in html
        assert "&lt;img src=x onerror=alert(1)&gt;" in html
        assert "U+202E" in text_of(html)
        assert "<script>" not in re.sub(r"<head>.*?</head>", "", html, flags=re.DOTALL)


def test_names_are_once_per_person_and_views_are_limited(ana: User, bea: User) -> None:
    first = save_view("Mails", "tool=a", by=ana)
    save_view("Mails", "tool=b", by=bea)
    save_view("Other", "tool=c", by=ana)
    with pytest.raises(InvalidDecision, match="already"):
        rename_view(first.id, "Other", by=ana)
    for number in range(MAX_OWN - 2):
        save_view(f"View {number}", "tool=a", by=ana)

    with pytest.raises(InvalidDecision, match="delete one first"):
        save_view("One more", "tool=a", by=ana)

    assert SavedView.objects.get(pk=first.id).name == "Mails"
    assert SavedView.objects.filter(owner=ana).count() == MAX_OWN


@pytest.mark.django_db(transaction=True)
def test_of_two_who_save_the_last_view_together_one_is_told_and_stores_nothing(person: Cast) -> None:
    eve = person("eve", "viewer")
    for number in range(MAX_OWN - 1):
        save_view(f"View {number}", "tool=a", by=eve)

    outcomes = together(*(partial(_save, name, eve) for name in ("One", "Two")))

    assert sorted(outcomes) == ["refused", "saved"]
    assert SavedView.objects.filter(owner=eve).count() == MAX_OWN


def _save(name: str, by: User) -> str:
    try:
        save_view(name, "tool=a", by=by)
    except InvalidDecision:
        return "refused"
    return "saved"
