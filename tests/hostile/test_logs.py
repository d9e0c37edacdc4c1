"""Nothing that an agent wrote, and nothing that a person typed about it, stands in the log of the requests about it."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from console.services.tokens import create_user_token
from tests.console.log_lines import captured
from tests.console.view_helpers import HTMX, browser
from tests.hostile.corpus import CORPUS
from tests.hostile.exits import Asker
from tests.hostile.test_corpus import FEW, written
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def test_the_corpus_goes_through_requests_and_none_of_it_into_the_log(memory: RecordWriter, ana: User) -> None:
    client, token = browser(ana, raise_request_exception=False), create_user_token(ana)
    headers = {"Authorization": f"Bearer {token}"}
    found = []
    for number, case in enumerate(CORPUS, start=1):
        agent, text = f"h-{number}", case.text[:FEW].encode("utf-8", "ignore").decode()
        written(memory, agent, case)
        with captured() as lines:
            client.get("/agents/", {"q": text[:500], text[:40]: "x"}, headers=HTMX)
            client.get(f"/actions/main/{agent}/1/", {text[:40]: text[:500]})
            client.post(f"/actions/main/{agent}/1/notes/", {"text": text[:2_000]})
            client.post("/login/", {"username": text[:100], "password": text[:100]})
            said = {"outcome": "done", "reason": text[:2_000], "decision_id": f"d-{number:08}"}
            client.post(
                f"/api/v1/actions/main/{agent}/1/decision", json.dumps(said), content_type="application/json", headers=headers
            )
        whole = "\n".join(str(value) for line in lines.all() for value in line.values())
        pieces = {text[:60].strip(), *case.never, *case.secrets}
        found += [case.name] if len(lines.of("request")) != 5 else []
        found += [f"{case.name}: {piece!r}" for piece in pieces if len(piece) > 2 and piece in whole]
        found += [f"{case.name}: not ASCII"] if not lines.text.isascii() else []

    assert found == []


def test_what_writes_the_log_is_what_the_exits_are_asked_with(memory: RecordWriter, ana: User) -> None:
    memory.action("h-1", 1, args={"body": "needle"})
    asker = Asker(client=browser(ana), token=create_user_token(ana))
    with captured() as lines:
        asker.page("/actions/main/h-1/1/")
        asker.json("/api/v1/actions/main/h-1/1")

    assert [line["user"] for line in lines.of("request")] == ["ana", "ana"]
    assert "needle" not in lines.text
