"""Insight: what is counted, of what a person may see, in which time, and that a page costs the same however much there is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from actions.records import ActionRef, NewEntry
from actions.times import SECOND, format_rfc3339, from_datetime, to_datetime
from console.charts import bars, columns
from console.models import Batch, BatchItem, Decision, Inquiry, Preferences, StoredVerdict
from console.services import insight_histories
from console.services.correct import CorrectionRequest, correct_end
from console.services.decide import DecisionRequest, decide
from console.services.insight import Insight
from console.services.insight_settled import took
from console.services.retention import find_range, remove
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.view_helpers import HTMX, browser, filled, path_of, words_of
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db


def shown(by: User, query: str = "") -> Insight:
    response = browser(by).get(f"/insight/{query}")
    assert response.status_code == 200, response.content[:300]
    found: Insight = response.context["found"]
    return found


def a_verdict(agent: str, seq: int, outcome: str, *, grade: str = "exact", ago_s: int = 60, **more: Any) -> StoredVerdict:
    inquiry, _ = Inquiry.objects.get_or_create(store="main", agent=agent, seq=seq, defaults={"tool": "send_email"})
    said = {"resolver": "sent", "version": 1, "policy_version": 1, "resolution": "r", "evidence": '{"fields": []}', "claim": "c"}
    at = timezone.now() - timedelta(seconds=ago_s)
    return StoredVerdict.objects.create(inquiry=inquiry, outcome=outcome, grade=grade, asked_at=at, **{**said, **more})


def settled_by(kind: str, seq: int, *, tool: str = "send_email", took_s: int = 60, ago: timedelta = timedelta(0)) -> None:
    """An entry as a settle writes it, so long ago."""
    store = get_store("main")
    now = from_datetime(datetime.now(UTC) - ago)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "clock", lambda: now)
        detail = {"started_at": format_rfc3339(now - took_s * SECOND)} if kind != "system" else {}
        entry_kind = "observed" if kind == "system" else "settled"
        store.append_entry(
            NewEntry(kind=entry_kind, actor=f"{kind} x", agent="m-1", seq=seq, tool=tool, decision_id=f"d-{seq}", detail=detail)
        )


def decided(records: RecordWriter, by: User, seq: int, outcome: str = "done", **more: Any) -> Any:
    ref = records.action("m-1", seq)
    decide(ref, DecisionRequest(outcome=outcome, reason="looked there", decision_id=f"test-{seq:08}", **more), by=by)
    return ref


# --- what is counted ---------------------------------------------------------------------------------------------------


def test_what_is_open_stands_by_tool_and_age_and_what_is_no_doubt_is_not_counted(memory: RecordWriter, ben: User) -> None:
    now = datetime.now(UTC)
    for seq, age_s in enumerate((10, 200, 400, 80_000, 200_000, 700_000), start=1):
        memory.action("m-1", seq, started_at=f"{now - timedelta(seconds=age_s):%Y-%m-%dT%H:%M:%SZ}")
    memory.action("m-2", 1, tool="pay")
    memory.lease("m-3", state="live")
    memory.action("m-3", 1)  # in flight
    memory.action("m-4", 1, cls="idempotent")
    memory.action("m-5", 1, status="done")
    memory.action("m-6", 1, body="{")

    found = shown(ben)

    assert [(line.tool, line.total) for line in found.open_tools] == [("send_email", 6), ("pay", 1)]
    assert found.open_tools[0].by_age == (2, 1, 1, 1, 1)
    assert found.unreadable == 1


def test_settled_by_whom_how_long_it_took_and_what_resolvers_share(memory: RecordWriter, ben: User) -> None:
    for seq, (kind, took_s) in enumerate([("operator", 10), ("operator", 20), ("operator", 90), ("resolver", 5)], start=1):
        settled_by(kind, seq, took_s=took_s)
    settled_by("system", 5)
    settled_by("resolver", 6, tool="pay", took_s=7)
    settled_by("shell", 7)  # nobody of those that are told apart
    Inquiry.objects.create(store="main", agent="m-1", seq=1, tool="send_email")

    found = shown(ben)

    assert found.settled == {"people": 3, "resolvers": 2, "agents": 1}
    begun, asked = found.took["people"]
    assert (begun.count, begun.median_s, begun.p95_s) == (3, 20.0, 90.0)
    assert asked.count == 1
    assert [(line.tool, line.share, line.total) for line in found.tools] == [("send_email", 20, 5), ("pay", 100, 1)]
    assert sum(slot.people for slot in found.slots) == 3
    (agents,) = (slot for slot in found.slots if slot.agents)
    assert [slot for slot in found.slots if slot.people or slot.resolvers] == [agents]
    assert (agents.agents, agents in found.slots[-2:]) == (
        1,
        True,
    )  # the last day, or the one before where midnight has just passed


def test_a_real_decision_says_when_its_call_began(records: RecordWriter, ana: User) -> None:
    decided(records, ana, 1)

    begun, asked = shown(ana).took["people"]

    assert (begun.count, asked.count) == (1, 0)
    assert begun.median_s is not None
    assert begun.median_s > 60


def test_contradictions_are_told_by_the_verdict_of_that_moment(memory: RecordWriter, ana: User) -> None:
    a_verdict("m-1", 1, "failed", grade="")
    decided(memory, ana, 1, "done")
    a_verdict("m-1", 2, "done", grade="weak")
    decided(memory, ana, 2, "failed")  # a weak one contradicts nobody
    decided(memory, ana, 3, "done")
    a_verdict("m-1", 3, "failed", grade="", ago_s=-1)  # came later
    a_verdict("m-1", 4, "done", grade="exact", is_answered=False)
    decided(memory, ana, 4, "failed")
    a_verdict("m-1", 5, "done", ago_s=30)
    a_verdict("m-1", 5, "failed", grade="", ago_s=10, resolver="other")

    found = shown(ana)

    assert [(one.ref.seq, one.one, one.other) for one in found.against] == [
        (1, "ana decided done", "sent says it did not happen")
    ]
    assert [(one.ref.seq, one.one, one.other) for one in found.between] == [(5, "sent said done", "other said failed")]
    assert [(line.name, line.decisions, line.against) for line in found.reviewers] == [("ana", 4, 1)]


def test_a_decision_that_was_corrected_counts_as_overturned_for_whoever_made_it(
    memory: RecordWriter, ana: User, bea: User
) -> None:
    wrong, right = decided(memory, ana, 1, "done"), decided(memory, ana, 2, "done")
    for ref, outcome in ((wrong, "failed"), (right, "done")):
        said = CorrectionRequest(outcome=outcome, reason="it was another's", correction_id=f"fix-{ref.seq:08}")
        correct_end(ref, said, by=bea)

    found = shown(bea)

    assert [(one.ref.seq, one.one, one.other) for one in found.overturned] == [
        (1, "its agent was told done", "operator bea corrected it to failed")
    ]
    assert [(line.name, line.decisions, line.corrected) for line in found.reviewers] == [("ana", 2, 1)]


def test_the_time_for_one_decision_leaves_out_pauses_and_batches(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [decided(memory, ana, seq) for seq in range(1, 7)]
    now = timezone.now()
    for ref, ago_s in zip(refs, (3_000, 2_980, 2_940, 100, 70, 60), strict=True):
        Decision.objects.filter(seq=ref.seq).update(created_at=now - timedelta(seconds=ago_s))
    batch = Batch.objects.create(batch_id="batch-12345", by=ana, username="ana", said="x")
    row = Decision.objects.get(seq=5)
    BatchItem.objects.create(
        batch=batch, number=1, store="main", agent="m-1", seq=5, decided_as=row.decision_id, state="begun", decision=row
    )

    (line,) = shown(bea).reviewers

    assert (line.decisions, line.in_batches) == (6, 1)
    assert (line.pace.count, line.pace.median_s) == (2, 30.0)  # 20 and 40; not the pause, not to and from the batch


def test_verdicts_on_the_page_are_noted_with_the_decision_and_those_of_other_calls_are_not(
    memory: RecordWriter, ana: User
) -> None:
    mine, other = a_verdict("m-1", 1, "done"), a_verdict("m-9", 1, "done")
    ref, alone = memory.action("m-1", 1), memory.action("m-1", 2)
    client = browser(ana)
    page = client.get(path_of(ref)).content.decode()
    ids = re.findall(r'<input type="hidden" name="shown" value="([^"]+)" form="decision-form">', page)

    for number, shown_ids in ((ref, [*ids, other.evidence_id, "verdict-x"]), (alone, [])):
        client.post(path_of(number, "decision/"), {**filled(client, number), "shown": shown_ids})
    decided(memory, ana, 3)  # by no page

    assert ids == [mine.evidence_id]
    assert list(Decision.objects.order_by("seq").values_list("evidence_shown", flat=True)) == [[mine.pk], [], None]
    (line,) = shown(ana).reviewers
    assert (line.shown_of, line.shown, line.with_none) == (2, 0.5, 1)


# --- which time, and of what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "people"),
    [("", 2), ("?span=24h", 1), ("?span=7d", 2), ("?span=90d", 3), ("?tool=pay", 1), ("?store=main", 2), ("?tool=no", 0)],
)
def test_the_range_and_the_filters_stand_in_the_address(memory: RecordWriter, ben: User, query: str, people: int) -> None:
    settled_by("operator", 3, ago=timedelta(days=60))
    settled_by("operator", 2, tool="pay", ago=timedelta(days=3))
    settled_by("operator", 1)

    found = shown(ben, query)

    assert found.settled["people"] == people
    assert sum(slot.people for slot in found.slots) == people


def test_times_are_by_the_persons_clock_also_where_it_was_changed(memory: RecordWriter, ben: User) -> None:
    Preferences.objects.create(user=ben, time_zone="Europe/Berlin")
    client = browser(ben)

    page = client.get("/insight/?since=2026-10-25T00:00&until=2026-10-26T00:00")

    asked = page.context["asked"]
    assert (asked.since, asked.until) == (datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 23, tzinfo=UTC))
    assert len(page.context["found"].slots) == 25  # the night had an hour more
    assert "From, Europe/Berlin" in page.content.decode()
    assert 'value="2026-10-25T00:00"' in page.content.decode()


@pytest.mark.parametrize(
    "query",
    ["span=1y", "since=yesterday", "since=2026-11-02&until=2026-11-01", "since=2020-01-01", "store=nowhere", "until=0001-01-01"],
)
def test_a_condition_that_means_nothing_is_said_at_its_field_and_nothing_is_counted(
    memory: RecordWriter, ben: User, query: str
) -> None:
    settled_by("operator", 1)

    page = browser(ben).get(f"/insight/?{query}&tool=pay")

    html = page.content.decode()
    wrong = query.partition("=")[0]
    typed = dict(one.split("=") for one in query.split("&"))
    assert (page.status_code, list(page.context["wrong"])) == (400, [wrong])
    assert 'name="tool" value="pay"' in html
    assert f'id="i-{wrong}-wrong" role="alert"' in html
    for name in typed.keys() & {"since", "until"}:
        kind = "text" if name == wrong else "datetime-local"
        assert f'<input type="{kind}" id="i-{name}" name="{name}" value="{typed[name]}"' in html
    assert "Nothing is counted." in html
    assert "Settled, by whom" not in html


def test_a_person_counts_what_they_may_see_and_nothing_else(
    records: RecordWriter, other_store: MemoryWriter, ana: User, person: Cast
) -> None:
    records.action("m-1", 9, tool="pay")
    other_store.action("m-2", 9, tool="pay")
    decided(records, ana, 1)
    a_verdict("m-1", 1, "done")
    a_verdict("m-1", 1, "failed", grade="")
    narrow = person("eve", ("viewer", "main", "pay"))
    elsewhere = person("eli", ("viewer", "other", ""))
    blind = person("app", "approver")

    found, away = shown(narrow), shown(elsewhere)

    assert [(line.tool, line.total) for line in found.open_tools] == [("pay", 1)]
    assert (found.settled["people"], found.reviewers, found.between, found.tools) == (0, (), (), ())
    assert [(line.tool, line.total) for line in away.open_tools] == [("pay", 1)]
    assert (away.settled["people"], away.reviewers, away.between) == (0, (), ())
    assert len(shown(ana).reviewers) == len(shown(ana).between) == 1
    assert browser(elsewhere).get("/insight/?store=main").status_code == 400
    assert browser(blind).get("/insight/").status_code == 403
    assert "/insight/" not in browser(blind).get("/").content.decode()


# --- what it costs, and what it says -----------------------------------------------------------------------------------------


def test_a_page_costs_the_same_with_many_decisions(memory: RecordWriter, ana: User, django_assert_num_queries: Any) -> None:
    client = browser(ana)
    decided(memory, ana, 1)
    a_verdict("m-1", 1, "failed", grade="")
    client.get("/insight/")
    with django_assert_num_queries(PAGE_STATEMENTS):
        client.get("/insight/")
    for seq in range(2, 22):
        decided(memory, ana, seq)
        a_verdict("m-1", seq, "failed", grade="")

    with django_assert_num_queries(PAGE_STATEMENTS):
        assert client.get("/insight/").context["found"].reviewers[0].decisions == 21


PAGE_STATEMENTS = 8


def test_a_history_that_is_too_long_is_cut_and_says_from_when_on_it_counts(
    memory: RecordWriter, ben: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(1, 61):
        settled_by("operator", seq, ago=timedelta(minutes=61 - seq))
    monkeypatch.setattr(insight_histories, "MAX_ENTRIES", 25)
    monkeypatch.setattr(insight_histories, "BATCH", 10)
    reads: list[int] = []
    store = get_store("main")
    real = store.list_entries
    monkeypatch.setattr(store, "list_entries", lambda **asked: reads.append(asked["limit"]) or real(**asked))

    page = browser(ben).get("/insight/")

    assert page.context["found"].settled["people"] == 25
    assert sum(reads) == 1 + 25
    assert "longer than is read for one page" in words_of(page.content.decode())
    assert sum(shown(ben, "?span=24h").settled.values()) == 25
    minutes = (datetime.now(UTC) - timedelta(minutes=9)).strftime("%Y-%m-%dT%H:%M")
    assert not shown(ben, f"?since={minutes}").cut


def test_what_a_retention_removed_is_said_on_the_page_and_in_each_table_of_entries(
    memory: MemoryWriter, ana: User, bea: User
) -> None:
    for seq, days in ((1, 9), (2, 8), (3, 2)):
        settled_by("operator", seq, ago=timedelta(days=days))
    decided(memory, ana, 9, "done")
    correct_end(
        ActionRef("main", "m-1", 9), CorrectionRequest(outcome="failed", reason="no", correction_id="fix-00000009"), by=bea
    )
    store = get_store("main")
    left_at = store.list_entries(limit=1, before=4)[0].at
    found = find_range(store, left_at)
    assert found is not None
    assert [entry.kind for entry in remove(store, found, by="shell root", reason="age")] == ["retained"]

    page, short = browser(ana).get("/insight/"), browser(ana).get("/insight/?span=24h")

    says = "Entries up to 2 of store main were removed by a signed retention."
    html = page.content.decode()
    (one,) = page.context["found"].removed
    assert (one.number, one.until, one.is_signed) == (2, to_datetime(left_at), True)
    assert "The numbers before" in words_of(html.partition("<table")[0])
    assert says in words_of(html.partition("<table")[0])
    tables = {
        re.search('aria-label="([^"]+)', part)[1]: part.partition("</table>")[0] for part in html.split('<div class="scroll"')[1:]
    }  # type: ignore[index]
    told = {name for name, table in tables.items() if says in words_of(table)}
    assert told == set(tables) - {"Calls in doubt by tool and age"}
    assert len(told) == 5
    assert not short.context["found"].removed  # of the last day nothing is gone
    memory.kept.links = [link for link in memory.kept.links if '"retained"' not in link.text]
    unsigned = browser(ana).get("/insight/").content.decode()
    assert "Entries up to 2 of store main are missing, and no signed tombstone says why." in words_of(unsigned)


def test_a_time_of_which_everything_was_removed_is_not_called_empty(memory: MemoryWriter, ben: User) -> None:
    settled_by("operator", 1, ago=timedelta(days=40))
    settled_by("operator", 2)
    store = get_store("main")
    found = find_range(store, store.list_entries(limit=1)[0].at)
    assert found is not None
    list(remove(store, found, by="shell root", reason="age"))
    since, until = (f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%d}" for days in (60, 20))

    said = words_of(browser(ben).get(f"/insight/?since={since}&until={until}").content.decode())

    assert "Entries up to 1 of store main were removed by a signed retention." in said
    assert "Nothing to count yet" not in said
    assert "Nothing was settled in this time, as far as entries are left." in said


def test_a_store_that_does_not_answer_is_named_and_the_others_are_counted(memory: RecordWriter, down: str, ana: User) -> None:
    memory.action("m-1", 1)

    page = browser(ana).get("/insight/")

    assert [name for name, _ in page.context["problems"]] == [down]
    assert page.context["open_total"] == 1
    assert "secret-pw" not in page.content.decode()
    assert "Nothing to count yet" not in page.content.decode()


def test_an_empty_page_says_what_would_stand_there_and_a_piece_is_no_page(memory: RecordWriter, ben: User) -> None:
    page = browser(ben).get("/insight/").content.decode()
    piece = browser(ben).get("/insight/", headers=HTMX).content.decode()

    assert "Nothing to count yet." in page
    assert '<svg class="chart"' not in page
    assert piece.lstrip().startswith('<div id="insight"')


def test_every_chart_has_its_numbers_and_no_style_or_script_of_its_own(memory: RecordWriter, ana: User) -> None:
    a_verdict("m-1", 1, "failed", grade="")
    decided(memory, ana, 1)
    settled_by("resolver", 2)
    settled_by("system", 3)
    memory.action("m-1", 4)

    html = browser(ana).get("/insight/").content.decode().partition('<div id="insight"')[2]

    assert len(re.findall(r'<svg class="chart[^>]*role="img"', html)) == 4
    assert len(re.findall(r"<table", html)) == 6
    assert "style=" not in html
    assert "<script" not in html
    for fill in ("solid", "hatch", "hollow"):
        assert f'class="{fill}"' in html
    for title in re.findall(r'aria-labelledby="([^"]+)"', html):
        assert f'id="{title}"' in html


# --- pure --------------------------------------------------------------------------------------------------------------------


def test_percentiles_are_times_that_were_seen_and_never_less_than_none() -> None:
    assert (took([]).count, took([]).median_s) == (0, None)
    assert (took([-5.0]).median_s, took([-5.0]).p95_s) == (0.0, 0.0)
    many = took([float(n) for n in range(1, 101)])
    assert (many.median_s, many.p95_s) == (50.5, 95.0)


def test_a_bar_is_as_long_as_its_number_and_parts_follow_each_other() -> None:
    made = bars([("a", "8", [6, 2]), ("b", "4", [0, 4]), ("c", "0", [])])
    shares = bars([("a", "", [1, 3])], is_share=True)

    assert [[(part.fill, part.x, part.width) for part in bar.parts] for bar in made.bars] == [
        [("solid", "0.000%", "75.000%"), ("hatch", "75.000%", "25.000%")],
        [("hatch", "0.000%", "50.000%")],
        [],
    ]
    assert [part.width for part in shares.bars[0].parts] == ["25.000%", "75.000%"]
    assert columns([]).highest == columns([(0, 0, 0)]).highest == 0
    ((first, second),) = columns([(1, 3)]).columns
    assert (float(first.y), float(second.y), float(second.height)) == (72.0, 0.0, 72.0)
