"""What became of a decision: resumed when, and by what it is known; repeated or not."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from actions.arguments import canonical_arguments
from actions.times import SECOND, format_rfc3339, to_datetime
from console.services.aftermath import Aftermath, aftermaths
from console.services.decide import DecisionRequest, decide
from console.services.observe import Observer
from console.stores import get_store
from tests.console.test_services_observe import a_lease
from tests.console.view_helpers import browser, path_of, text_of
from tests.recall_writer import RecordWriter, time_text

pytestmark = pytest.mark.django_db

ARGS = {"to": "ann@example.com", "subject": "Refund"}


def decided(records: RecordWriter, by: User, outcome: str = "done", seq: int = 1, **fields: Any) -> None:
    ref = records.action("m-1", seq, args=ARGS, **fields)
    decide(ref, DecisionRequest(outcome=outcome, reason="seen", decision_id=f"test-{outcome}-{seq}"), by=by)


def of(seq: int = 1) -> Aftermath:
    store = get_store("main")
    found = aftermaths(store, "m-1", store.list_entries(limit=20, agent="m-1", seq=seq))
    assert len(found) == 1
    return next(iter(found.values()))


def later(seconds: float) -> str:
    """So long after the first decision, as an agent would write it."""
    entries = get_store("main").list_entries(limit=20, agent="m-1")
    return format_rfc3339(min(entry.at for entry in entries) + int(seconds * SECOND))


def test_until_anything_is_seen_nothing_is_claimed(records: RecordWriter, ana: User) -> None:
    decided(records, ana)

    found = of()

    assert (found.resumed_at, found.is_seen, found.repeated_as, found.is_flagged) == (None, False, None, False)


def test_its_own_next_turn_says_that_it_went_on_and_ours_do_not(records: RecordWriter, ana: User) -> None:
    decided(records, ana)
    decided(records, ana, seq=2)
    assert of().resumed_at is None
    records.turn("m-1", 3, "Good, it is sent", role="assistant", at=later(60))

    found = of()

    assert found.resumed_at is not None
    assert not found.is_seen
    assert format_rfc3339(int(found.resumed_at.timestamp()) * SECOND)[:16] == later(60)[:16]


def test_a_holder_that_was_seen_before_its_first_word_says_so(records: RecordWriter, ana: User) -> None:
    decided(records, ana)
    entry = get_store("main").list_entries(limit=1, agent="m-1")[0]
    after = entry.detail["after"]
    assert isinstance(after, dict)
    Observer("main").observe([a_lease("pod-a:1:aaaa", after["epoch"] - 1, agent="m-1")])
    assert of().resumed_at is None

    seen = a_lease("pod-b:2:bbbb", after["epoch"] + 2, agent="m-1", at_s=10)
    Observer("main").observe([seen])

    found = of()
    assert (found.is_seen, found.holder, found.resumed_at) == (True, "pod-b:2:bbbb", to_datetime(seen.read_at))


@pytest.mark.parametrize("status", ["started", "done"])
def test_the_same_call_again_after_done_is_flagged_also_while_it_is_open(records: RecordWriter, ana: User, status: str) -> None:
    decided(records, ana)
    records.action("m-1", 2, args={"to": "bob@example.com"}, started_at=later(5))
    records.action("m-1", 3, tool="send_sms", args=ARGS, started_at=later(6))
    records.action("m-1", 4, args='{"to":  "ann@example.com", "subject": "Refund"}', status=status, started_at=later(7))
    records.action("m-1", 5, args=ARGS, started_at=later(8))

    found = of()

    assert (found.repeated_as, found.is_flagged, found.is_repeat_open, found.is_repeat_before) == (
        4,
        True,
        status == "started",
        False,
    )
    assert found.resumed_at is not None  # it began a call
    page = text_of(browser(ana).get(path_of(records.action("other", 1))).content.decode())
    assert "Repeated" not in page


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("done", "Repeated: action 2"), ("failed", "Retried as action 2"), ("abandoned", "Called again as action 2")],
)
def test_it_stands_on_the_action_page_in_the_words_of_its_outcome(
    memory: RecordWriter, ana: User, outcome: str, words: str
) -> None:
    decided(memory, ana, outcome)
    client = browser(ana)
    assert "so far" in text_of(client.get("/actions/main/m-1/1/").content.decode())
    memory.action("m-1", 2, args=ARGS, started_at=later(5))

    for path in ("/actions/main/m-1/1/", "/agents/main/m-1/"):
        assert words in text_of(client.get(path).content.decode())


def test_a_call_begun_before_the_decision_is_told_as_such(records: RecordWriter, ana: User) -> None:
    records.action("m-1", 2, args=ARGS, started_at=time_text(3))
    decided(records, ana)

    assert (of().repeated_as, of().is_repeat_before) == (2, True)


def test_arguments_that_overflowed_are_compared_whole(records: RecordWriter, ana: User) -> None:
    long = {"to": "ann@example.com", "body": "x" * 9000}
    ref = records.action("m-1", 1, args=long)
    decide(ref, DecisionRequest(outcome="done", reason="seen", decision_id="test-12345678"), by=ana)
    records.action("m-1", 2, args={**long, "zzz": "other"}, started_at=later(5))
    assert of().repeated_as is None

    records.action("m-1", 3, args=long, started_at=later(6))

    assert of().repeated_as == 3


def test_an_end_that_its_agent_wrote_has_no_aftermath(memory: RecordWriter, ana: User) -> None:
    memory.action("m-1", 1, status="done")

    assert aftermaths(get_store("main"), "m-1", ()) == {}
    assert "so far" not in text_of(browser(ana).get("/actions/main/m-1/1/").content.decode())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('{"a": 1, "b": [1, {"d": 2, "c": 3}]}', '{"b":[1,{"c":3,"d":2}],"a":1}', True),
        ('{"a": 1}', '{"a": 1.0}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        (" plain text ", "plain text", True),
        ('{"a": 1, "a": 2}', '{"a": 2}', False),  # which of the two the tool used, nobody knows
        ("", "", True),
    ],
)
def test_arguments_are_the_same_where_they_say_the_same(one: str, other: str, is_same: bool) -> None:
    assert (canonical_arguments(one) == canonical_arguments(other)) == is_same
