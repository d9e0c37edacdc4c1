"""Every text of the corpus through every page: nothing runs, nothing hides, nothing fails."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.auth.models import User

from console.services.decide import DecisionRequest, decide
from tests.console.view_helpers import HTMX, browser, text_of
from tests.hostile.corpus import CORPUS, Hostile
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)

ROWS, ARTICLE, WHOLE, AGENT, HISTORY = (
    "/",
    "/actions/main/h-1/1/",
    "/actions/main/h-1/1/arguments/",
    "/agents/main/h-1/",
    "/history/",
)


def pages(user: User) -> dict[str, str]:
    """Every page and piece that shows an agent's text."""
    client = browser(user)
    paths = (ROWS, "/?open=main/h-1/1", ARTICLE, f"{ARTICLE}status/", WHOLE, AGENT, HISTORY, "/history/main/1/", "/stores/")
    paths += ("/agents/", f"{AGENT}briefing/")
    found = {path: client.get(path) for path in paths}
    found |= {f"part of {path}": client.get(path, headers=HTMX) for path in (ROWS, ARTICLE, WHOLE, AGENT, HISTORY)}
    assert {path: response.status_code for path, response in found.items() if response.status_code != 200} == {}
    return {path: response.content.decode() for path, response in found.items()}


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda hostile: hostile.name.replace(" ", "-"))
def test_nothing_an_agent_writes_runs_hides_or_breaks_a_page(memory: RecordWriter, ana: User, hostile: Hostile) -> None:
    text = hostile.text
    memory.lease("h-1", holder=text.encode("utf-8", "replace").decode().replace("\x00", ""))
    memory.working_state(
        "h-1", goal=text, plan=[text], progress=text, focus=text, decisions=[text], open_questions=[text], notes=text
    )
    memory.turn("h-1", 1, text, role="tool", name=text[:60], brief=text)
    memory.pointer("h-1", "p", fields={text[:40]: text}, note=text)
    memory.action("h-1", 1, tool="send_email", args={"to": text, "subject": text, "body": text, text[:40]: 1})
    memory.action("h-1", 2, tool=text[:60].strip() or "x", args=text, status="failed", error=text, resolution=text)
    memory.action("h-1", 3, tool="send_email", args={"to": "x"}, status="done", result=text)
    clean = text.replace("\x00", "").encode("utf-8", "ignore").decode()
    memory.action("h-1", 4, tool=text[:60].strip() or "x", args={"to": text})
    settled = memory.action("h-1", 5, tool="send_email", args={"to": text})
    decide(settled, DecisionRequest(outcome="done", reason=clean or "x", decision_id="0" * 8), by=ana)

    shown = pages(ana)

    for path, html in shown.items():
        for never in hostile.never:
            assert never not in html, path
        for tag in ("title", "button", "option", "label"):
            for inside in re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", html, re.DOTALL):
                assert text not in inside or len(text) < 3, f"{tag} on {path}"
        for spoken in re.findall(r'(?:aria-label|alt|placeholder)="([^"]*)"', html):
            assert text not in spoken, path
    for named in hostile.named:
        assert named in text_of(shown[ARTICLE])
        assert named in text_of(shown[AGENT])


def test_the_frame_is_closed_for_htmx_and_titled_as_untrusted(memory: RecordWriter, ana: User) -> None:
    memory.action("h-1", 1, args={"body": "<b hx-get=/x>"})

    html = browser(ana).get(ARTICLE).content.decode()

    frame = re.search(r'<figure class="quoted" id="arguments">.*?</figure>', html, re.DOTALL)
    assert frame is not None
    assert "Untrusted text." in frame[0]
    assert re.search(r"<pre hx-disable[^>]*>", frame[0])


def test_the_text_shown_is_bounded_and_says_what_it_left_out(memory: RecordWriter, ana: User) -> None:
    memory.action("h-1", 1, args={"body": "y" * 900_000})

    html = browser(ana).get(ARTICLE).content.decode()

    assert html.count("y") < 10_000
    assert "more characters" in text_of(html)


def test_ten_thousand_keys_and_json_bombs_are_shown_as_text(memory: RecordWriter, ana: User) -> None:
    memory.action("h-1", 1, args=json.dumps({f"k{n}": n for n in range(10_000)}))
    memory.action("h-1", 2, args="[" * 200_000)

    for path in (ROWS, ARTICLE, WHOLE, "/actions/main/h-1/2/", AGENT):
        assert browser(ana).get(path).status_code == 200
