"""One console over two PostgreSQL stores and one MongoDB store: one queue, three agents of the same name, and walls between them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient, Client
from pytest_django import Settings

from actions.queries import get_action
from actions.records import ActionRef, ActionStatus
from console import checks, stores
from console.models import Decision
from console.services.decide import DecisionRequest, decide
from console.services.deliver import deliver
from console.services.tokens import create_agent_token
from console.views import events
from local.mongo import Mongo
from local.postgres import Postgres
from tests.console.conftest import Api, Cast
from tests.console.coroutines import run_to_end
from tests.console.test_commands import run
from tests.console.test_store_news import api
from tests.console.test_view_queue import strips
from tests.console.view_helpers import HTMX, browser, filled, path_of, text_of
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter, RecordWriter
from tests.servers import VECTOR_TEMPLATE

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "billing-7"
NAMES = ("docs", "east", "west")
GONE = "postgres://nobody:secret-pw@127.0.0.1:1/nothing?connect_timeout=1"


@pytest.fixture(scope="session")
def west_url(pg_server: Postgres) -> Iterator[str]:
    """A second database of records, for a worker's whole run."""
    name = f"t_west_{secrets.token_hex(6)}"
    yield pg_server.create_database(name, template=VECTOR_TEMPLATE)
    pg_server.drop_database(name)


@pytest.fixture(scope="session")
def docs_url(mongo_server: Mongo) -> Iterator[str]:
    name = f"t_docs_{secrets.token_hex(6)}"
    yield mongo_server.url(name)
    mongo_server.drop_database(name)


Three = dict[str, RecordWriter]


@pytest.fixture
def three(settings: Settings, west_url: str, docs_url: str) -> Iterator[Three]:
    """Stores `east` and `west` on PostgreSQL and `docs` on MongoDB, empty and prepared, as agents write them."""
    collection = f"t{secrets.token_hex(8)}"
    bases = {"east": settings.ACTION_STORES["main"], "west": west_url, "docs": docs_url}
    urls = {name: f"{base}{'&' if '?' in base else '?'}collection={collection}" for name, base in bases.items()}
    settings.ACTION_STORES = urls
    stores.reset()
    checks.forget()
    with ExitStack() as opened:
        writers: Three = {}
        for name, url in urls.items():
            writer = MongoWriter(url, store=name) if name == "docs" else RecallWriter(url, store=name)
            writers[name] = opened.enter_context(writer).create()
            stores.get_store(name).prepare()
        yield writers
        stores.reset()


def close_the_door_of(name: str, settings: Settings) -> None:
    """The store cannot be reached any more, and the console was started anew."""
    settings.ACTION_STORES = {**settings.ACTION_STORES, name: GONE}
    stores.reset()
    checks.forget()


def status_of(ref: ActionRef) -> ActionStatus:
    action = get_action(stores.get_store(ref.store), ref).action
    assert action is not None
    return action.status


def items(caller: Api, **query: Any) -> list[str]:
    """References of all pages, one row at a time."""
    found, cursor = [], ""
    while cursor is not None:
        status, body = caller.get("actions", limit=1, cursor=cursor, **query)
        assert status == 200, body
        found += [f"{item['store']}/{item['agent']}/{item['seq']}" for item in body["items"]]
        cursor = body["next"]
    return found


def test_rows_of_all_three_stand_in_one_order(three: Three, ana: User) -> None:
    for number, name in enumerate(NAMES):
        three[name].action(AGENT, 1, args={"to": f"{name}@example.com"}, started_at=f"2026-11-29T10:00:0{3 - number}Z")
        three[name].action(
            AGENT, 2, tool="create_payment", args={"amount": 5, "currency": "EUR"}, started_at="2026-11-29T10:00:09Z"
        )
    expected = [f"{name}/{AGENT}/2" for name in NAMES] + [f"{name}/{AGENT}/1" for name in ("west", "east", "docs")]

    html = browser(ana).get("/").content.decode()

    assert re.findall(r'data-pane="([^"]*)"', html) == expected
    assert all(name in strip for name, strip in zip(("docs", "east", "west"), strips(html), strict=False))
    assert items(api(ana)) == expected
    assert items(api(ana), store="west,docs") == [ref for ref in expected if not ref.startswith("east")]
    assert [ref for line in run("open_actions").out.splitlines() for ref in expected if ref in line] == expected


def test_the_same_agent_id_is_three_agents_in_everything_people_do(three: Three, ana: User, ben: User) -> None:
    refs = {name: three[name].action(AGENT, 1, args={"to": f"{name}@example.com"}) for name in NAMES}
    three["west"].lease(AGENT, state="live")
    three["west"].action(AGENT, 1, status="unknown", args={"to": "west@example.com"})
    three["docs"].turn(AGENT, 1, "I live in docs")
    client = browser(ana)

    written = client.post(path_of(refs["east"], "decision/"), filled(client, refs["east"], reason="Found in east"), headers=HTMX)
    decide(refs["west"], DecisionRequest(outcome="failed", reason="Not in west", decision_id="west-0001"), by=ana)
    decide(refs["docs"], DecisionRequest(outcome="later", reason="Asked docs", decision_id="docs-0001"), by=ana)

    assert written.status_code == 201
    assert {name: status_of(ref) for name, ref in refs.items()} == {"east": "done", "west": "unknown", "docs": "started"}
    shown = strips(browser(ben).get("/").content.decode())
    assert len(shown) == 2
    assert ["failed, waiting by ana" in strip for strip in shown] == ["west@" in strip for strip in shown]
    assert ["Asked docs" in strip for strip in shown] == ["docs@" in strip for strip in shown]
    pages = {name: text_of(browser(ben).get(f"/agents/{name}/{AGENT}/").content.decode()) for name in NAMES}
    assert [name for name in NAMES if "I live in docs" in pages[name]] == ["docs"]
    assert [name for name in NAMES if "settled after a crash" in pages[name]] == ["east"]
    assert [name for name in NAMES if "held until" in pages[name]] == ["west"]
    for name in NAMES:
        html = client.get(f"/history/?store={name}&agent={AGENT}").content.decode()
        listed = [text_of(entry) for entry in re.findall(r'<li class="entry">.*?</li>', html, re.DOTALL)]
        assert len(listed) == {"east": 1, "west": 1, "docs": 0}[name]
        assert all(f"store {name}" in line for line in listed)
        _, body = api(ben).get(f"actions/{name}/{AGENT}/1")
        assert (body["decision"] or {}).get("state") == {"east": "written", "west": "waiting", "docs": None}[name]
        assert bool(body["note"]) == (name == "docs")
    three["west"].lease(AGENT, state="released", epoch=2)
    assert deliver(Decision.objects.get(decision_id="west-0001").pk).state == "written"  # type: ignore[union-attr]
    assert {name: status_of(ref) for name, ref in refs.items()} == {"east": "done", "west": "failed", "docs": "started"}


def test_an_agents_token_is_of_one_store(three: Three, ana: User) -> None:
    for name in NAMES:
        ref = three[name].action(AGENT, 1)
        decide(ref, DecisionRequest(outcome="done", reason=f"Seen in {name}", decision_id=f"{name}-0001"), by=ana)
    caller = Api(create_agent_token("west", AGENT))

    assert caller.get(f"actions/west/{AGENT}/1/decision")[1]["reason"] == "Seen in west"
    for name in ("east", "docs"):
        status, body = caller.get(f"actions/{name}/{AGENT}/1/decision")
        assert (status, "Seen in" in json.dumps(body)) == (403, False)


# --- walls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_down", [False, True], ids=["all answer", "the others are down"])
def test_of_a_store_that_is_not_theirs_people_learn_nothing_anywhere(
    three: Three, ana: User, person: Cast, settings: Settings, is_down: bool
) -> None:
    eve = person("eve", ("operator", "west", ""))
    for name in NAMES:
        ref = three[name].action(AGENT, 1, tool=f"tool_of_{name}", args={"to": f"{name}@example.com"})
        decide(ref, DecisionRequest(outcome="done", reason=f"Seen in {name}", decision_id=f"{name}-0001"), by=ana)
        three[name].action(AGENT, 2, tool=f"tool_of_{name}", args={"to": f"{name}@example.com"})
        three[name].turn(AGENT, 9, f"I live in {name}")
    browser(ana).get("/")  # so that something is known of each
    if is_down:
        for name in ("east", "docs"):
            close_the_door_of(name, settings)
    client, caller = browser(eve), api(eve)

    for path in ("/", "/?state=any&class=any", f"/?agent={AGENT}", "/?text=example.com", "/history/", f"/history/?agent={AGENT}", "/stores/",
                 f"/agents/west/{AGENT}/", f"/actions/west/{AGENT}/2/", f"/actions/west/{AGENT}/2/status/"):  # fmt: skip
        for headers in ({}, HTMX):
            response = client.get(path, headers=headers)
            html = response.content.decode()
            assert response.status_code == 200, path
            assert not re.search(r"\b(east|docs)\b|_east|_docs|Last known|does not answer|cannot be read", html), path
            assert "west" in html, path
    said = text_of(client.get("/").content.decode())
    assert "1 action" in said
    for path in ("actions", "actions?state=done,interrupted", "audit"):
        status, body = caller.get(path)
        assert (status, body["problems"]) == (200, [])
        assert {item["store"] for item in body["items"]} == {"west"}

    for name in ("east", "docs"):
        _is_a_wall(client, caller, name)
        assert is_down or status_of(ActionRef(name, AGENT, 2)) is ActionStatus.STARTED


def _is_a_wall(client: Client, caller: Api, name: str) -> None:
    """Every address of a hidden store answers as that of a store which is not there."""
    action, form = f"/actions/{name}/{AGENT}/2/", {"outcome": "done", "reason": "x", "decision_id": "12345678"}
    gets = [
        action,
        *(f"{action}{rest}" for rest in ("status/", "arguments/", "result/")),
        f"/agents/{name}/{AGENT}/",
        f"/history/{name}/1/",
    ]
    answers = [client.get(path) for path in gets]
    answers += [client.post(f"{action}{rest}", form) for rest in ("turn/", "decision/", "decision/withdraw/")]
    assert {answer.status_code for answer in answers} == {404}
    for path in (f"/?store={name}", f"/history/?store={name}"):
        answer = client.get(path)
        assert answer.status_code == 400
        assert re.search(r"here; there are west(?!,)", text_of(answer.content.decode()))
        answers.append(answer)
    opened = client.get("/", {"open": f"{name}/{AGENT}/2"})
    assert opened.status_code == 200
    answers.append(opened)
    hidden = re.compile(rf"tool_of_{name}|{name}@example|Seen in|I live in {name}|Last known|does not answer|127\.0\.0\.1")
    assert [found[0] for answer in answers if (found := hidden.search(answer.content.decode()))] == []
    one, decision = f"actions/{name}/{AGENT}/2", f"actions/{name}/{AGENT}/1/decision"
    asked = [caller.get(one), caller.get(decision), caller.delete(decision), caller.post(f"{one}/decision", form)]
    asked += [caller.get("actions", store=name), caller.get("actions", store=f"west,{name}"), caller.get("audit", store=name)]
    assert [status for status, _ in asked] == [404] * len(asked)
    assert "example.com" not in json.dumps(asked)


def test_live_updates_tell_only_of_stores_that_are_theirs(three: Three, person: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    async def subscribe(*, may_see: Any, ping_s: float) -> Any:
        heard.extend(name for name in NAMES if may_see(name))
        yield events.CHANGED

    monkeypatch.setattr(events.watcher, "subscribe", subscribe)
    client = browser(person("eve", ("viewer", "west", "")))

    async def listen() -> None:
        listener = AsyncClient()
        listener.cookies = client.cookies
        response = await listener.get("/events/")
        stream = response.streaming_content  # type: ignore[attr-defined]
        await anext(stream)
        await stream.aclose()
        await sync_to_async(connections.close_all)()  # of the thread that answered

    run_to_end(listen())

    assert heard == ["west"]


def test_one_store_down_leaves_the_others_whole(three: Three, ana: User, ben: User, settings: Settings) -> None:
    for name in NAMES:
        for seq in (1, 2):
            three[name].action(AGENT, seq)
    browser(ana).get("/")
    close_the_door_of("west", settings)

    said = text_of(browser(ben).get("/").content.decode())
    listed = run("open_actions", "--json")

    assert re.search(r"Store west does not answer\. Those who settle or run it can see why\..*Last known: 2 in doubt, at ", said)
    assert "4 actions, not known in west" in said
    assert items(api(ben)) == [f"{name}/{AGENT}/{seq}" for seq in (1, 2) for name in ("docs", "east")]
    assert (listed.code, len(listed.out.splitlines())) == (1, 4)
    assert listed.err.startswith("store west: ")
    assert "(last known: 2 in doubt, at " in listed.err
    assert "secret-pw" not in said + listed.err
    answer = api(ana).post(f"actions/docs/{AGENT}/1/decision", {"outcome": "done", "reason": "seen", "decision_id": "docs-0001"})
    assert (answer[0], status_of(ActionRef("docs", AGENT, 1))) == (201, ActionStatus.DONE)
