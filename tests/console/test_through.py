"""A waiting decision is written through the tenant's own server, on a person's word: the service and its page, against a real `recall serve`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from pytest_django import Settings

from actions.errors import StoreUnavailable
from actions.records import ActionRef, NewEntry, Turn
from actions.store.postgres import PostgresStore
from console import stores
from console.models import Decision, DecisionState
from console.services.answers import AnswerKind
from console.services.deliver import attempt, deliver
from console.services.through import write_through
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.conftest import Api
from tests.console.test_commands import run
from tests.console.test_services_evict import decided
from tests.console.view_helpers import HTMX, browser, hidden, path_of, text_of
from tests.interop.serve import Serve
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.interop]

TENANT, COLLECTION, AGENT = "tenant-a", "recall_lexical_v1__tenant_a_80a707af", "billing-7"
REF = ActionRef("main", AGENT, 1)


@pytest.fixture
def serve(pg_url: str, tmp_path: Path, settings: Settings) -> Iterator[Serve]:
    """An agent whose process is dead and whose server keeps its lease alive; store `main` names that server."""
    with Serve(pg_url, tmp_path, keys=[TENANT]) as running:
        address = f"{pg_url}?collection={COLLECTION}&serve={quote(running.address, safe='')}&serve_key={running.key(TENANT)}"
        settings.ACTION_STORES = {"main": address}
        stores.reset()
        running.call(TENANT, "agent_resume", agent_id=AGENT)
        running.call(
            TENANT, "begin_action", agent_id=AGENT, tool="send_email", **{"class": "external"}, args='{"to": "ann@example.com"}'
        )
        get_store("main").prepare()
        yield running
        stores.reset()


def kinds() -> list[str]:
    return [entry.kind for entry in reversed(get_store("main").list_entries(limit=50))]


def turns() -> list[str]:
    return [turn.message_id for turn in get_store("main").list_turns(AGENT, limit=9) if isinstance(turn, Turn)]


def send(row: Decision, by: User, confirm: str = AGENT) -> AnswerKind:
    return write_through(REF, decision_id=row.decision_id, confirm=confirm, by=by).kind


def test_the_decision_is_written_and_the_same_again_says_so(serve: Serve, ana: User) -> None:
    row = decided(REF, ana)

    answer = write_through(REF, decision_id=row.decision_id, confirm=AGENT, by=ana)

    assert answer.kind is AnswerKind.WRITTEN
    assert kinds() == ["waiting", "settling", "settled"]
    assert turns() == [f"settle:1:{row.decision_id}"]
    row.refresh_from_db()
    assert (row.state, row.written_by, row.turn_seq, row.entry_number) == ("written", "us", 1, 3)
    assert send(row, ana) is AnswerKind.REPEATED
    assert get_store("main").list_entries(limit=1)[0].detail["through"] == "the tenant's server"
    assert kinds() == ["waiting", "settling", "settled"]


def test_nothing_is_written_without_the_persons_word(serve: Serve, ana: User, ben: User, cyd: User, amy: User) -> None:
    row = decided(REF, ana)

    assert send(row, ana, confirm="billing-8") is AnswerKind.INVALID
    assert send(row, ana, confirm="") is AnswerKind.INVALID
    for user, refusal in [(ben, PermissionDenied), (amy, PermissionDenied), (cyd, Http404)]:
        with pytest.raises(refusal):
            send(row, user)
    deliver(row.pk)

    assert (kinds(), turns()) == (["waiting"], [])
    assert write_through(REF, decision_id="another-1234", confirm=AGENT, by=ana).kind is AnswerKind.NOTHING


def test_a_store_without_a_server_says_so(serve: Serve, ana: User, settings: Settings) -> None:
    row = decided(REF, ana)
    settings.ACTION_STORES = {"main": settings.ACTION_STORES["main"].partition("&serve=")[0]}
    stores.reset()

    assert send(row, ana) is AnswerKind.READ_ONLY
    assert browser(ana).get(path_of(REF, "decision/through/")).status_code == 404
    assert "through/" not in browser(ana).get(path_of(REF)).content.decode()
    assert turns() == []


def test_cut_off_after_the_turn_it_cannot_be_withdrawn_and_sending_it_again_completes_it(
    serve: Serve, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = decided(REF, ana)
    with monkeypatch.context() as cut:
        cut.setattr("actions.store.serve._Hands.write_end", _lost)
        answer = write_through(REF, decision_id=row.decision_id, confirm=AGENT, by=ana)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "may be" in answer.detail

    attempt(row.pk, wait=True)
    withdrawn = withdraw(REF, by=ana, decision_id=row.decision_id)

    assert withdrawn.kind is AnswerKind.UNAVAILABLE
    row.refresh_from_db()
    assert (row.state, row.may_be_written) == (DecisionState.WAITING, True)
    assert "through its tenant's server" in row.why
    assert send(row, ana) is AnswerKind.WRITTEN
    assert len(turns()) == 1
    assert kinds() == ["waiting", "settling", "settling", "settled"]


def test_cut_off_after_the_turn_and_free_since_the_sweep_settles_it_without_a_second_turn(
    serve: Serve, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = decided(REF, ana)
    with monkeypatch.context() as cut:
        cut.setattr("actions.store.serve._Hands.write_end", _lost)
        assert send(row, ana) is AnswerKind.UNAVAILABLE
    serve.call(TENANT, "agent_release", agent_id=AGENT)

    delivered = deliver(row.pk)

    assert delivered is not None
    assert (delivered.state, delivered.turn_seq, len(turns())) == ("written", 1, 1)


def test_closed_without_its_entry_the_sweep_knows_it_for_ours(serve: Serve, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    row = decided(REF, ana)
    append = PostgresStore.append_entry

    def fail(self: PostgresStore, entry: NewEntry) -> object:
        if entry.kind == "settled":
            raise StoreUnavailable(self.name, "gone", may_be_written=False)
        return append(self, entry)

    with monkeypatch.context() as cut:
        cut.setattr(PostgresStore, "append_entry", fail)
        assert send(row, ana) is AnswerKind.UNAVAILABLE
    assert kinds() == ["waiting", "settling"]

    delivered = deliver(row.pk)

    assert delivered is not None
    assert (delivered.state, delivered.written_by, delivered.entry_number) == ("written", "us", 3)
    assert kinds() == ["waiting", "settling", "settled"]


def _lost(self: object, closing: object, held: object) -> None:
    raise StoreUnavailable("main", "the connection broke", may_be_written=True)


def test_an_agent_that_is_free_by_now_is_settled_as_any_other(serve: Serve, ana: User) -> None:
    row = decided(REF, ana)
    serve.call(TENANT, "agent_release", agent_id=AGENT)

    assert send(row, ana) is AnswerKind.WRITTEN

    assert kinds() == ["waiting", "settled"]
    assert turns() == [""]


def test_a_server_that_is_down_leaves_it_waiting_and_withdrawable(serve: Serve, ana: User) -> None:
    row = decided(REF, ana)
    serve.kill()

    answer = write_through(REF, decision_id=row.decision_id, confirm=AGENT, by=ana)

    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "nothing was written now" in answer.detail
    assert serve.key(TENANT) not in answer.detail
    assert (kinds(), turns()) == (["waiting"], [])
    assert withdraw(REF, by=ana, decision_id=row.decision_id).kind is AnswerKind.WITHDRAWN


# --- the page ------------------------------------------------------------------------------------------------------------


def test_the_page_warns_asks_and_writes(serve: Serve, ana: User, ben: User) -> None:
    row = decided(REF, ana)
    client, path = browser(ana), path_of(REF, "decision/through/")
    assert path in client.get(path_of(REF)).content.decode()

    page = client.get(path).content.decode()

    said = text_of(page)
    for words in (
        "The agent's process may be alive.",
        "may still happen",
        "Type the agent's id",
        "found it",
        "by ana",
        "held until",
    ):
        assert words in said
    assert "cannot be read" not in said
    form = re.search(r'<form method="post" action="/actions/.*?</form>', page, re.DOTALL)
    assert form is not None
    fields = hidden(form[0])
    assert fields["decision_id"] == row.decision_id
    wrong = client.post(path, {**fields, "confirm": "x"})
    assert (wrong.status_code, "exactly" in text_of(wrong.content.decode())) == (422, True)
    assert client.get(path, headers=HTMX).content.decode().count("<html") == 0
    assert browser(ben).get(path).status_code == 403
    assert browser(ben).post(path, {**fields, "confirm": AGENT}).status_code == 403
    assert turns() == []
    done = client.post(path, {**fields, "confirm": AGENT})
    assert done.status_code == 201
    assert "Written: done" in text_of(done.content.decode())
    assert client.post(path, {**fields, "confirm": AGENT}).status_code == 200
    assert "No decision about this action is on its way." in text_of(client.get(path).content.decode())
    assert len(turns()) == 1


def test_no_key_is_shown_anywhere(serve: Serve, ana: User, amy: User) -> None:
    decided(REF, ana)
    for user in (ana, amy):
        for path in (path_of(REF), path_of(REF, "decision/through/"), "/stores/", "/history/", f"/agents/main/{AGENT}/"):
            assert serve.key(TENANT) not in browser(user).get(path).content.decode()


def test_the_api_writes_it_too(serve: Serve, ana: User, ben: User, api: Callable[[User], Api]) -> None:
    row = decided(REF, ana)
    path, body = f"actions/main/{AGENT}/1/decision/through-server", {"decision_id": row.decision_id, "confirm": AGENT}

    assert api(ana).post(path, {**body, "confirm": "x"})[0] == 422
    assert api(ben).post(path, body)[0] == 403
    assert api(ana).get(path)[0] == 405
    assert turns() == []
    status, said = api(ana).post(path, body)
    assert (status, said["state"], said["turn"]) == (201, "written", 1)
    assert api(ana).post(path, body)[0] == 200
    assert len(turns()) == 1


def test_check_stores_says_whether_the_server_takes_the_key(serve: Serve, settings: Settings) -> None:
    good = run("check_stores")
    settings.ACTION_STORES = {"main": settings.ACTION_STORES["main"].replace(serve.key(TENANT), "filekey-unknown-aaaaaaaa")}
    stores.reset()
    bad = run("check_stores")

    assert "main: decisions for live agents can be written through its tenant's server" in good.out
    assert "main: warning: nothing can be written through its tenant's server" in bad.out
    assert (good.code, bad.code) == (0, 0)
    assert "filekey-" not in good.out + bad.out


@pytest.mark.parametrize(
    "options",
    ["serve=http%3A%2F%2Fh%2Fmcp", "serve_key=filekey-1", "serve=ftp%3A%2F%2Fh&serve_key=filekey-1", "serve=h&serve_key=filekey-1",
     "serve=http%3A%2F%2Fh%3Anine&serve_key=filekey-1", "serve=http%3A%2F%2Fh%2Fmcp&serve_key=filekey%201"],
)  # fmt: skip
def test_an_address_of_no_server_is_said_and_not_repeated(memory: RecordWriter, settings: Settings, options: str) -> None:
    settings.ACTION_STORES = {"main": f"postgres://ann:hunter2hunter2@h/db?{options}"}
    stores.reset()

    said = run("check_stores")

    assert said.code == 1
    assert "serve_key" in said.err
    assert "filekey" not in said.out + said.err
    assert "hunter2" not in said.out + said.err
