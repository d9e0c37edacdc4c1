"""The history's pages for auditors: conditions, before and after, whether it holds, and exports through the browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from actions.records import NewEntry
from actions.store.audit_file import verify_file
from actions.times import SECOND, parse_rfc3339
from console.history import HistoryFilter, list_history, number_after
from console.models import ExportRecord, Grant, Verification
from console.services import journal, verification
from console.services.exports import begin_export, write_export
from console.store_news import PLAIN
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.test_commands import run
from tests.console.test_commands_audit import settle_three
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db


@pytest.fixture
def decided(memory: RecordWriter, ana: User) -> MemoryWriter:
    assert isinstance(memory, MemoryWriter)
    settle_three(memory)
    return memory


@pytest.fixture
def aud(db: None) -> User:
    """An auditor of everything."""
    user = User.objects.create_user("aud")
    Grant.objects.create(user=user, role="auditor")
    return user


@pytest.fixture
def auditor(aud: User) -> Client:
    return browser(aud)


# --- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("text=reason+2", [2]),
        ("text=REASON+2", [2]),
        ("actor=ana", [3, 2, 1]),
        ("actor=operator+ana", [3, 2, 1]),
        ("actor=bob", []),
        ("outcome=done&seq=3&agent=billing-7", [3]),
        ("outcome=failed", []),
        ("since=2020-01-01", [3, 2, 1]),
        ("since=2100-01-01", []),
        ("until=2020-01-01T10:00", []),
        ("until=2100-01-01T00:00:00%2B02:00", [3, 2, 1]),
    ],
)
def test_entries_are_found_by_what_they_say(decided: MemoryWriter, auditor: Client, query: str, shown: list[int]) -> None:
    page = auditor.get(f"/history/?store=main&{query}")
    answer = auditor.get(f"/api/v1/audit?store=main&{query}", headers={"Authorization": f"Bearer {token_of('aud')}"})

    assert [item.entry.seq for item in page.context["page"].items] == shown
    assert [item["seq"] for item in answer.json()["items"]] == shown


def token_of(name: str) -> str:
    return run("create_token", name).out.strip()


@pytest.mark.parametrize("query", ["since=yesterday", "until=2026-13-01", "seq=0", "seq=x", "kind=nonsense", "store=nowhere"])
def test_a_condition_that_means_nothing_is_refused(decided: MemoryWriter, auditor: Client, query: str) -> None:
    assert auditor.get(f"/history/?{query}").status_code == 400


def test_a_time_long_past_is_looked_up_and_not_walked_to(memory: RecordWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(memory, MemoryWriter)
    store = memory.kept
    began = parse_rfc3339("2026-01-01T00:00:00Z")
    for day in range(400):
        monkeypatch.setattr(store, "clock", lambda day=day: began + day * 86_400 * SECOND)
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=day + 1))
    reads: list[int] = []
    real = store.list_entries
    monkeypatch.setattr(store, "list_entries", lambda **asked: reads.append(asked["limit"]) or real(**asked))
    wanted = HistoryFilter(since=began + 10 * 86_400 * SECOND, until=began + 13 * 86_400 * SECOND)

    page = list_history([store], wanted, limit=50, may_see=lambda name, tool: True)

    assert [item.entry.seq for item in page.items] == [13, 12, 11]
    assert page.next is None
    assert sum(reads) < 200 + 20  # one batch, and the halving
    assert number_after(store, began - 1) == 1
    assert number_after(store, began + 10**18) == 401


# --- the console's own history ---------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_consoles_own_history_stands_between_the_stores_in_one_order(decided: MemoryWriter, auditor: Client) -> None:
    entry = journal.record("exported", actor="operator eve", detail={"changed": {"amount": [1, 2], "name": [None, "x"]}})

    page = auditor.get("/history/")
    whole = auditor.get(f"/history/console/{entry.number}/")

    assert page.context["page"].items[0].store == "console"
    assert [item.store for item in page.context["page"].items[1:4]] == ["main"] * 3
    assert whole.context["changed"] == (("amount", "1", "2"), ("name", "", "x"))
    assert "Before and after" in whole.content.decode()


@pytest.mark.django_db(transaction=True)
def test_whoever_is_limited_to_a_store_sees_nothing_of_the_consoles_own(decided: MemoryWriter, cyd: User) -> None:
    Grant.objects.create(user=cyd, role="auditor", store="main")
    entry = journal.record("exported", actor="operator eve")
    client = browser(cyd)

    assert "console" not in client.get("/history/").context["stores"]
    assert client.get("/history/?store=console").status_code == 400
    assert client.get(f"/history/console/{entry.number}/").status_code == 404


def test_an_entry_of_an_action_shows_what_changed_in_it_and_says_of_nothing_else_that_it_is_gone(
    decided: MemoryWriter, auditor: Client
) -> None:
    page = auditor.get("/history/main/1/")

    changed = {name: (before, after) for name, before, after in page.context["changed"]}
    assert changed["status"] == ("started", "done")
    assert changed["result_digest"][0] == ""
    assert changed["args"][0]
    assert {name for name, (_, after) in changed.items() if after is None} == {"args", "args_digest"}
    table = page.content.decode().partition("Before and after")[2].partition("</table>")[0]
    assert table.count("not said") == 2


# --- whether it holds ------------------------------------------------------------------------------------------------


def test_a_walk_is_asked_for_once_and_says_what_it_found(decided: MemoryWriter, auditor: Client) -> None:
    auditor.post("/history/verification/now/", {"name": "main"})
    auditor.post("/history/verification/now/", {"name": "main"})  # pressed twice

    row = Verification.objects.get(name="main")
    assert "walking" in auditor.get("/history/verification/").content.decode()
    verification.run(row.pk)
    verification.run(row.pk)  # delivered twice
    row.refresh_from_db()
    assert (row.is_intact, row.entries, row.asked_by) == (True, 3, "operator aud")
    assert "walking" not in auditor.get("/history/verification/").content.decode()


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", False), ("auditor", True), ("admin", True)])
def test_a_walk_costs_much_and_is_for_those_who_audit_or_run_it(
    decided: MemoryWriter, person: Cast, role: str, may: bool
) -> None:
    client = browser(person("eve", role))
    page = client.get("/history/verification/")
    assert (page.status_code, "Verify all now" in page.content.decode()) == (200, may)

    answer = client.post("/history/verification/now/")

    assert (answer.status_code, Verification.objects.exists()) == ((302, True) if may else (403, False))


def test_who_audits_one_store_has_that_one_walked_and_no_other(decided: MemoryWriter, person: Cast) -> None:
    client = browser(person("eve", ("auditor", "main", ""), ("viewer", "", "")))

    assert client.post("/history/verification/now/").status_code == 302
    assert client.post("/history/verification/now/", {"name": "console"}).status_code == 400

    assert [row.name for row in Verification.objects.all()] == ["main"]


def test_integrity_and_completeness_are_shown_apart(decided: MemoryWriter, auditor: Client) -> None:
    decided.kept.links[1] = decided.kept.links[1]._replace(text="x")
    del decided.kept.links[0]
    row, _ = verification.ask("main", by="operator aud")
    verification.run(row.pk)

    text = auditor.get("/history/verification/").content.decode()

    assert "entry 2: entry 2 was changed" in text
    assert "entry 1: entry 1 is missing" in text
    row.refresh_from_db()
    assert not row.is_intact


def test_a_walk_whose_worker_died_can_be_asked_for_again(decided: MemoryWriter, auditor: Client) -> None:
    row, _ = verification.ask("main", by="system beat")
    Verification.objects.filter(pk=row.pk).update(told_at=row.started_at - 2 * verification.STANDS_STILL, entries=7)

    assert "its worker stopped after 7 entries" in auditor.get("/history/verification/").content.decode()
    again, is_new = verification.ask("main", by="operator aud")

    assert (is_new, again.pk != row.pk) == (True, True)


def test_a_history_that_cannot_be_read_is_not_called_broken(memory: RecordWriter, down: str, auditor: Client) -> None:
    row, _ = verification.ask("down", by="operator aud")
    verification.run(row.pk)
    row.refresh_from_db()

    assert (row.is_known, row.is_intact, row.broken, row.missing) == (False, False, "", "")
    page = text_of(auditor.get("/history/verification/").content.decode())
    assert f"not known: {PLAIN}" in page
    assert row.problem
    assert row.problem not in page


# --- exports ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
@pytest.mark.parametrize("format_", ["csv", "jsonl"])
@pytest.mark.django_db(transaction=True)
def test_what_is_filtered_is_taken_out_with_a_manifest_that_verifies(
    decided: MemoryWriter, auditor: Client, tmp_path: Path, format_: str
) -> None:
    response = auditor.post("/history/export/", {"format": format_, "store": "main", "text": "reason 2"})
    path = tmp_path / f"history.{format_}"
    path.write_bytes(b"".join(response))
    manifest = auditor.get(response["X-Settle-Manifest"])
    path.with_name(path.name + ".manifest.json").write_bytes(manifest.content)

    assert response["Content-Disposition"].startswith("attachment; filename=")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert verify_file(path).verdict == "intact: 1 entries, anchored up to 0"
    assert json.loads(manifest.content)["filter"] == {"store": "main", "text": "reason 2"}
    assert auditor.get("/history/?store=console&kind=exported").context["page"].items[0].entry.actor == "operator aud"
    assert ExportRecord.objects.get().rows == 1


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_whoever_may_see_less_takes_out_less_and_the_manifest_says_so(decided: MemoryWriter, cyd: User) -> None:
    Grant.objects.create(user=cyd, role="auditor", store="main", tool="create_payment")
    client = browser(cyd)

    response = client.post("/history/export/", {"format": "jsonl"})

    assert b"".join(response) == b""
    assert json.loads(client.get(response["X-Settle-Manifest"]).content)["filter"] == {"seen by": "operator cyd"}


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_what_cannot_be_read_is_kept_from_whoever_is_limited_to_tools_and_counted(
    decided: MemoryWriter, cyd: User, auditor: Client, tmp_path: Path
) -> None:
    links = decided.kept.links
    links[1] = links[1]._replace(text='{"secret": "of another tool"}')
    grant = Grant.objects.create(user=cyd, role="auditor", store="main", tool="send_email")

    def taken_out(by: Client) -> tuple[list[int], dict[str, str]]:
        response = by.post("/history/export/", {"format": "jsonl", "store": "main"})
        rows = [json.loads(line)["number"] for line in b"".join(response).splitlines()]
        said: dict[str, str] = json.loads(by.get(response["X-Settle-Manifest"]).content)["filter"]
        return rows, said

    limited = browser(cyd)
    rows, said = taken_out(limited)
    command = run("export_audit", "--format", "csv", "--output", str(tmp_path / "h.csv"), "--user", "cyd")

    assert rows == [1, 3]
    assert said == {"store": "main", "seen by": "operator cyd", "left out": "1 unreadable entry, of whatever tool"}
    assert "left out: 1 unreadable entry, of whatever tool" in text_of(limited.get("/history/exports/").content.decode())
    assert (command.code, command.out.splitlines()[-1]) == (0, f"exported 2 entries to {tmp_path / 'h.csv'}")
    assert "left out: 1 unreadable entry, of whatever tool" in command.err
    assert "another tool" not in (tmp_path / "h.csv").read_text()
    assert verify_file(tmp_path / "h.csv").is_intact
    assert taken_out(auditor) == ([1, 2, 3], {"store": "main"})
    grant.tool = ""
    grant.save()
    assert taken_out(browser(cyd)) == ([1, 2, 3], {"store": "main", "seen by": "operator cyd"})


def test_an_export_is_refused_without_the_right_and_by_get(decided: MemoryWriter, ana: User, auditor: Client) -> None:
    client = browser(ana)

    assert client.post("/history/export/", {"format": "csv"}).status_code == 403
    assert client.get("/history/exports/").status_code == 403
    assert auditor.get("/history/export/").status_code == 302
    assert auditor.post("/history/export/", {"format": "xml"}).status_code == 400
    assert not ExportRecord.objects.exists()


def test_a_manifest_is_its_exporters_alone(decided: MemoryWriter, aud: User, ana: User) -> None:
    record = ExportRecord.objects.create(key="6d2bb1d4-3a0c-4b39-9b7f-0a4a4ad1a111", by=aud, file="h.csv", manifest="{}")
    Grant.objects.create(user=ana, role="auditor")

    assert browser(aud).get(f"/history/exports/{record.key}/manifest/").status_code == 200
    assert browser(ana).get(f"/history/exports/{record.key}/manifest/").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_what_people_change_and_what_is_refused_read_as_sentences(memory: RecordWriter, auditor: Client) -> None:
    changed = {"roles": [["viewer"], ["auditor in store main", "viewer"]], "may come in": [None, True]}
    journal.record("role_changed", actor="admin amy", detail={"about": "bob", "changed": changed})
    journal.record(
        "denied", actor="user ben", reason="you need a role", detail={"about": "action claim", "why": "forbidden", "times": 4}
    )
    journal.record("locked_out", actor="somebody", detail={"about": "ana"})

    lines = [text_of(one) for one in auditor.get("/history/").content.decode().split('<li class="entry">')[1:]]

    assert "somebody gave too many wrong passwords of ana" in lines[0]
    assert "user ben was turned away from claiming a call (4 times within a minute) “you need a role”" in lines[1]
    assert "admin amy changed the roles of bob may come in: nothing → yes" in lines[2]
    assert "roles: viewer → auditor in store main, viewer" in lines[2]
    assert "this console" in lines[2]


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_row_that_says_nothing_readable_is_taken_out_as_one_of_its_own_chain(
    decided: MemoryWriter, tmp_path: Path, format_: str
) -> None:
    links = decided.kept.links
    links[1] = links[1]._replace(text="[1, 2]")
    file = tmp_path / f"h.{format_}"

    write_export(begin_export(format_, HistoryFilter(store="main"), by="operator aud"), file)

    report = verify_file(file)
    assert [(store, chain.first_bad) for store, chain in report.chains] == [("main", 2)]


def test_an_entry_that_a_retention_removed_is_said_to_be_removed_and_by_which_entry(
    decided: MemoryWriter, auditor: Client
) -> None:
    store = get_store("main")
    assert store.append_entry(NewEntry(kind="retained", actor="shell root", reason="age", detail={"removed": [1, 2]})).number == 4
    del decided.kept.links[:2]

    first, last, never = (text_of(auditor.get(f"/history/main/{number}/").content.decode()) for number in (1, 2, 9))

    assert "entry 1 of store main was removed by age; entry 4 says by whom and why" in first
    assert "entry 2 of store main was removed by age; entry 4 says by whom and why" in last
    assert "store main has no entry 9" in never


@pytest.mark.django_db(transaction=True)
def test_what_a_tools_policy_became_is_said_with_the_tool(auditor: Client) -> None:
    entry = journal.record(
        "policy_changed", actor="admin ana", tool="send_receipt", detail={"changed": {"mode": ["propose", "settle"]}}
    )

    page = text_of(auditor.get(f"/history/console/{entry.number}/").content.decode())

    assert "tool send_receipt" in page
