"""Every text of the corpus through every exit: nothing runs, nothing hides, no secret leaves, nothing fails."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from actions.redaction import redact_text
from actions.rules import as_column
from actions.store.memory import MemoryStore
from console.models import Approval, Grant, Run
from console.services.decide import DecisionRequest, decide
from console.services.tokens import create_user_token
from tests.console.view_helpers import browser, text_of
from tests.hostile.corpus import CORPUS, Hostile
from tests.hostile.exits import EXITS, Asker, Exit
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators"),
]

ARTICLE, WHOLE = "/actions/main/h-1/1/", "/actions/main/h-1/1/arguments/"
FEW = 20_000
AGENTS = {f"h-{number}": hostile for number, hostile in enumerate(CORPUS, start=1)}


def written(recall: RecordWriter, agent: str, hostile: Hostile) -> None:
    """This text in everything that an agent can write: an open call of a known tool, one of a tool of that name, and a closed one."""
    text, short = hostile.text[:FEW], hostile.text[:60].strip()
    recall.lease(agent, holder=text.encode("utf-8", "replace").decode().replace("\x00", "")[:2_000] or "x")
    recall.working_state(
        agent, goal=text, plan=[text], progress=text, focus=text, decisions=[text], open_questions=[text], notes=text
    )
    recall.turn(agent, 1, text, role="tool", name=short, brief=text)
    recall.pointer(agent, "p", fields={text[:40]: text}, note=text)
    args = {"to": text, "subject": text, "body": hostile.text, text[:40]: 1} if hostile.args is None else hostile.args
    recall.action(agent, 1, tool="send_email", args=args)
    recall.action(agent, 2, tool=short or "x", args=text)
    recall.action(agent, 3, tool=short or "x", args={"to": text}, status="failed", result=text, error=text, resolution=text)


@cache
def all_written() -> MemoryStore:
    """Every text of the corpus, written once for all tests of this process; each takes a copy."""
    store = MemoryStore()
    for agent, hostile in AGENTS.items():
        written(MemoryWriter(store), agent, hostile)
    return store


@cache
def kept_of(hostile: Hostile) -> str:
    return as_column(redact_text(hostile.text[:FEW]))


def asking(agent: str, hostile: Hostile) -> tuple[Run, Approval]:
    """The same agent as a run that was begun with the text, broke over it once, and asks about a call with it."""
    text = hostile.text[:FEW]
    run = Run(
        run_id=agent,
        store="main",
        type="errand",
        type_version=1,
        input=json.dumps({"text": text}),
        status="waiting_approval",
        started_by="ana",
        problem=kept_of(hostile)[:2_000],
        result=kept_of(hostile),
    )
    approval = Approval(
        approval_id=agent.replace("-", "0"),
        run=run,
        interrupt_id="i",
        tool=as_column(hostile.text[:60].strip()) or "x",
        args=json.dumps({"to": text, "body": hostile.text}),
        digest="0" * 64,
        description=as_column(text),
        allowed=["approve", "reject"],
        asked_at=timezone.now(),
    )
    return run, approval


def decided(recall: RecordWriter, by: User) -> None:
    """A person settled one more call of each, and gave the text as a reason."""
    for number, agent in enumerate(AGENTS):
        reason = AGENTS[agent].text.replace("\x00", "").encode("utf-8", "ignore").decode()[:2_000]
        request = DecisionRequest(outcome="done", reason=reason if reason.strip() else "x", decision_id=f"d-{number:08}")
        tool = AGENTS[agent].text[:60].strip() or "x"
        decide(recall.action(agent, 5, tool=tool, args=AGENTS[agent].text[:FEW]), request, by=by)


@pytest.fixture
def asker(memory: MemoryWriter, ana: User) -> Asker:
    """Everything of the corpus is written; who asks may see all of it."""
    whole = all_written()
    with memory.kept.hold() as store:
        store.records.update({record: dict(metadata) for record, metadata in whole.records.items()})
        store.leases.update(whole.leases)
        store.revision = whole.revision
    runs, approvals = zip(*(asking(agent, hostile) for agent, hostile in AGENTS.items()), strict=True)
    Run.objects.bulk_create(runs)
    Approval.objects.bulk_create(approvals)
    Grant.objects.create(user=ana, role="auditor")
    return Asker(client=browser(ana), token=create_user_token(ana))


def test_the_corpus_is_large_and_its_names_differ() -> None:
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS) >= 60


@pytest.mark.parametrize("way", EXITS, ids=lambda way: way.name)
def test_nothing_an_agent_writes_runs_hides_or_breaks_an_exit(asker: Asker, memory: RecordWriter, ana: User, way: Exit) -> None:
    if way.is_about_decisions:
        decided(memory, ana)
    asked = {"all of them": CORPUS} if way.is_list else {agent: (hostile,) for agent, hostile in AGENTS.items()}
    found: dict[str, list[str]] = {}

    for agent, cases in asked.items():
        if problems := way.check(way.leave(asker, agent), cases):
            found[agent if way.is_list else cases[0].name] = problems

    assert found == {}


def test_what_is_hidden_is_named_on_the_pages_of_the_action_and_its_agent(asker: Asker) -> None:
    missing = []
    for agent, hostile in AGENTS.items():
        pages = [f"/actions/main/{agent}/1/", *([f"/agents/main/{agent}/"] if hostile.args is None else [])]
        for path in pages if hostile.named else ():
            shown = text_of(asker.page(path))
            missing += [f"{named} of {hostile.name} on {path}" for named in hostile.named if named not in shown]

    assert missing == []


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


def test_a_value_is_whole_where_it_is_asked_for_and_still_bounded(memory: RecordWriter, ana: User) -> None:
    memory.action("h-1", 1, args={"body": "y" * 900_000 + "\u202e"})

    html = browser(ana).get(WHOLE).content.decode()

    assert html.count("y") > 4_096
    assert len(html) < 3_000_000
    assert "\u202e" not in html
