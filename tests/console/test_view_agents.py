"""The list of agents: who is found, for whom, in which order, filtered and paged, with a store that is down."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.services.observe import Observer
from tests.console.conftest import Cast, MemoryWriter
from tests.console.test_services_observe import a_lease
from tests.console.view_helpers import BACK, HTMX, browser, words_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PATH = "/agents/"


def listed(html: str) -> list[str]:
    """The agents of a page, in order."""
    return re.findall(r'class="mono" href="/agents/(\w+/[\w.-]+)/"', html)


def test_it_shows_who_has_an_agent_what_it_left_open_and_when_it_last_spoke(records: RecordWriter, ana: User) -> None:
    records.lease("quiet-1", "pod-a:1:aaaa", 4, "live")
    records.lease("m-1", "pod-b:7:cafe", 9, "expired")
    records.turns("m-1", 3)
    records.action("m-1", 1)
    records.action("m-1", 2, cls="idempotent")
    records.action("m-1", 3, status="done")
    Observer("main").observe([a_lease("pod-b:7:cafe", 8, agent="m-1"), a_lease("pod-a:1:aaaa", 4, agent="quiet-1", ends_s=-9)])

    html = browser(ana).get(PATH).content.decode()
    said = words_of(html)

    assert listed(html) == ["main/m-1", "main/quiet-1"]
    assert "1 in doubt , 2 open" in said
    for words in ("pod-b:7:cafe", "pod-a:1:aaaa", "held", "none open", "not seen", "2 agents"):
        assert words in said
    assert said.count("Seen to resume 29 Nov 18:29 UTC") == 1
    assert said.count("Seen to resume not seen") == 1  # it was over when it was first looked at
    assert "29 Nov 18:29 UTC user" in said


def test_those_with_calls_in_doubt_come_first_and_the_order_holds_over_pages(memory: RecordWriter, ana: User) -> None:
    for number in range(120):
        memory.lease(f"a-{number:03}", state="released")
    memory.action("z-1", 1)
    memory.action("b-busy", 1, cls="idempotent")
    client, path, found = browser(ana), PATH, []

    while path:
        html = client.get(path).content.decode()
        found += listed(html)
        more = re.search(r'href="([^"]*)" rel="next"', html)
        path = PATH + more[1] if more else ""

    assert found == ["main/z-1", *[f"main/a-{number:03}" for number in range(120)], "main/b-busy"]


def test_it_is_filtered_by_agent_or_holder_and_by_store(records: RecordWriter, other_store: MemoryWriter, ana: User) -> None:
    records.lease("m-1", "pod-a:1:aaaa")
    records.lease("m-2", "POD-B:1:aaaa")
    other_store.lease("m-1", "pod-b:1:aaaa")
    client = browser(ana)

    assert listed(client.get(f"{PATH}?text=pod-b").content.decode()) == ["other/m-1", "main/m-2"]
    assert listed(client.get(f"{PATH}?text=m-1").content.decode()) == ["main/m-1", "other/m-1"]
    assert listed(client.get(f"{PATH}?text=pod-b&store=main").content.decode()) == ["main/m-2"]
    assert "No agent matches" in client.get(f"{PATH}?text=nobody").content.decode()
    assert client.get(f"{PATH}?store=elsewhere").status_code == 400
    assert client.get(f"{PATH}?cursor=x").status_code == 400


def test_somebody_limited_to_a_tool_finds_only_the_agents_with_open_calls_of_it(memory: RecordWriter, dot: User) -> None:
    memory.lease("m-1")
    memory.action("m-2", 1, tool="create_payment")
    memory.action("m-3", 1, tool="open_ticket")
    memory.action("m-3", 2, tool="create_payment")
    memory.turn("m-3", 1, "I paid 5000 EUR", role="assistant")

    html = browser(dot).get(PATH).content.decode()

    assert listed(html) == ["main/m-3"]
    said = words_of(html)
    assert "1 in doubt" in said
    assert "you see the agents with open calls of your tools" in said
    assert "Last turn not shown" in said


def test_a_store_that_is_down_is_named_and_the_others_go_on(memory: RecordWriter, down: str, ana: User, ben: User) -> None:
    memory.lease("m-1")

    html = browser(ana).get(PATH).content.decode()

    assert listed(html) == ["main/m-1"]
    assert "Store down cannot be read" in html
    assert "secret-pw" not in html
    assert "127.0.0.1" not in browser(ben).get(PATH).content.decode()


def test_more_agents_cost_no_more_queries(memory: RecordWriter, ana: User) -> None:
    client, counts = browser(ana), []
    client.get(PATH)
    for number in range(20):
        memory.lease(f"m-{number}")
        memory.action(f"m-{number}", 1)
        memory.turn(f"m-{number}", 1)
        if number in (1, 19):
            with CaptureQueriesContext(connection) as asked:
                assert len(listed(client.get(PATH).content.decode())) == number + 1
            counts.append(len(asked))

    assert counts[0] == counts[1]


def test_an_agent_whose_name_no_address_can_hold_stands_there_without_a_link(memory: MemoryWriter, ana: User) -> None:
    memory.lease("a/b\u202e")

    html = browser(ana).get(PATH).content.decode()

    assert listed(html) == []
    assert "U+202E" in html
    assert "\u202e" not in html


def test_who_may_see_it_and_how_it_answers(memory: RecordWriter, ana: User, ben: User, cyd: User, person: Cast) -> None:
    memory.lease("m-1")
    client = browser(ana)

    assert browser(ben).get(PATH).status_code == 200
    assert browser(cyd).get(PATH).status_code == 403
    assert browser().get(PATH)["Location"].startswith("/login/")
    assert listed(browser(person("eve", ("viewer", "other", ""))).get(PATH).content.decode()) == []
    assert client.post(PATH).status_code == 405
    assert "<html" not in client.get(PATH, headers=HTMX).content.decode()
    assert "<html" in client.get(PATH, headers=BACK).content.decode()
    assert 'href="/agents/"' in client.get("/").content.decode()


def test_the_list_fetches_itself_as_it_is_filtered_and_a_renewed_lease_is_no_news(memory: RecordWriter, ana: User) -> None:
    client, versions = browser(ana), []
    for epoch, state in ((1, "live"), (2, "live"), (3, "expired")):
        memory.lease("m-1", "pod-a:1:aaaa", epoch, state)
        html = client.get(f"{PATH}?text=m-", headers=HTMX).content.decode()
        versions += re.findall(r'<li class="agent-line" id="agent-\w{16}" data-version="(\w+)"', html)

    assert 'data-live-part hx-get="/agents/?text=m-"' in html
    assert len(versions) == 3
    assert versions[0] == versions[1] != versions[2]
