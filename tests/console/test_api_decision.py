"""Deciding through the API: statuses, bodies, what an agent may read, and bad bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.contrib.auth.models import User

from actions.digests import claim_digest
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus
from console.api import api as routes
from console.models import Decision, Note
from console.services.claims import claim as claim_by
from console.services.deliver import deliver
from console.services.policies import save_policy
from console.services.tokens import create_agent_token
from console.stores import get_store
from tests.console.conftest import Api, Cast, MemoryWriter
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

ApiFor = Callable[[User], Api]
PATH = "actions/main/billing-7/1/decision"


def a_body(outcome: str = "done", reason: str = "found in the Sent folder", **fields: Any) -> dict[str, Any]:
    return {"outcome": outcome, "reason": reason, "decision_id": f"test-{uuid4()}", **fields}


def status_now() -> ActionStatus:
    action = get_action(get_store("main"), ActionRef("main", "billing-7", 1)).action
    assert action is not None
    return action.status


@pytest.fixture
def open_action(records: RecordWriter) -> RecordWriter:
    """Action 1 of billing-7, whose agent is dead."""
    records.action("billing-7", 1)
    return records


@pytest.fixture
def living_action(records: RecordWriter) -> RecordWriter:
    records.lease("billing-7", "pod-a:1:aaaa", 1, "live")
    records.action("billing-7", 1)
    return records


def test_the_document_names_all_that_a_decision_says(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    memory.action("billing-7", 1)
    schemas = routes.get_openapi_schema(path_prefix="/api/v1/")["components"]["schemas"]
    agent = Api(create_agent_token("main", "billing-7"))

    told = [api(ana).post(PATH, a_body()), api(ana).get(PATH), agent.get(PATH)]

    assert [status for status, _ in told] == [201, 200, 200]
    assert {name for _, body in told for name in body} <= set(schemas["DecisionOut"]["properties"])


def test_a_decision_is_written(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    body = a_body(result="message-id 1204")
    status, answer = api(ana).post(PATH, body)
    assert status == 201
    assert {name: answer[name] for name in ("id", "state", "outcome", "reason", "result", "error", "by")} == {
        "id": body["decision_id"],
        "state": "written",
        "outcome": "done",
        "reason": "found in the Sent folder",
        "result": "message-id 1204",
        "error": "",
        "by": "ana",
    }
    assert (answer["written_by"], answer["turn"], answer["entry"], answer["warnings"]) == ("us", 1, 1, [])
    assert status_now() is ActionStatus.DONE


def test_the_same_id_again_is_200(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    caller, body = api(ana), a_body()
    assert caller.post(PATH, body)[0] == 201
    status, answer = caller.post(PATH, body)
    assert (status, answer["id"], answer["state"]) == (200, body["decision_id"], "written")


def test_the_same_id_with_other_content_is_409(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    caller, body = api(ana), a_body()
    caller.post(PATH, body)
    status, answer = caller.post(PATH, {**body, "reason": "another reason"})
    assert (status, answer["error"]) == (409, "id_reused")


def test_an_ended_action_is_409_and_says_who_ended_it(open_action: RecordWriter, ana: User, bea: User, api: ApiFor) -> None:
    api(ana).post(PATH, a_body("failed", "not in the ledger"))
    status, answer = api(bea).post(PATH, a_body())
    assert (status, answer["error"]) == (409, "closed")
    assert (answer["decision"]["by"], answer["decision"]["outcome"]) == ("ana", "failed")
    assert answer["item"]["state"] == "failed"
    assert answer["entry"]["actor"] == "operator ana"


def test_a_changed_action_is_412_and_shows_what_it_is_now(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    status, answer = api(ana).post(PATH, a_body(seen="0" * 64))
    assert (status, answer["error"]) == (412, "changed")
    assert answer["item"]["digest"] == get_action(get_store("main"), ActionRef("main", "billing-7", 1)).digest
    assert status_now() is ActionStatus.STARTED


def test_the_digest_of_the_list_is_the_one_to_send(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    caller = api(ana)
    (item,) = caller.get("actions")[1]["items"]
    assert caller.post(PATH, a_body(seen=item["digest"]))[0] == 201


def test_while_its_agent_lives_it_is_202(living_action: RecordWriter, ana: User, bea: User, api: ApiFor) -> None:
    caller, body = api(ana), a_body()
    status, answer = caller.post(PATH, body)
    assert (status, answer["state"]) == (202, "waiting")
    assert "pod-a:1:aaaa" in answer["detail"]
    assert caller.post(PATH, body)[0] == 202
    status, answer = api(bea).post(PATH, a_body("failed"))
    assert (status, answer["error"]) == (409, "pending")
    assert (answer["decision"]["id"], answer["decision"]["state"]) == (body["decision_id"], "waiting")
    assert status_now() is ActionStatus.STARTED


def test_a_waiting_decision_can_be_read_and_withdrawn(living_action: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    caller, body = api(ana), a_body()
    assert caller.get(PATH)[0] == 404
    caller.post(PATH, body)
    assert api(ben).get(PATH)[1]["state"] == "waiting"
    assert api(ben).delete(PATH)[0] == 403
    assert caller.delete(f"{PATH}?decision_id=another-decision")[0] == 409
    status, answer = caller.delete(PATH)
    assert (status, answer["state"]) == (200, "withdrawn")
    assert caller.get(PATH)[1]["state"] == "withdrawn"
    assert caller.delete(PATH)[0] == 404


def test_a_written_decision_cannot_be_withdrawn(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    caller = api(ana)
    caller.post(PATH, a_body())
    status, answer = caller.delete(PATH)
    assert (status, answer["error"], answer["decision"]["state"]) == (409, "closed", "written")


def test_a_note_is_kept(open_action: RecordWriter, ana: User, api: ApiFor) -> None:
    body = a_body("later", "asked the bank", look_again_at="2099-01-01T12:00:00+02:00")
    caller = api(ana)
    status, answer = caller.post(PATH, body)
    assert (status, answer["state"], answer["look_again_at"]) == (201, "noted", "2099-01-01T10:00:00Z")
    assert caller.post(PATH, body)[0] == 200
    assert caller.get(PATH)[0] == 404
    assert status_now() is ActionStatus.STARTED


def test_an_idempotent_call_is_settled_with_a_warning(records: RecordWriter, ana: User, api: ApiFor) -> None:
    records.action("billing-7", 1, cls="idempotent")
    status, answer = api(ana).post(PATH, a_body())
    assert status == 201
    assert "same key" in answer["warnings"][0]


# --- agents ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(own_addresses: None, db: None) -> Api:
    """A caller with the token of billing-7."""
    return Api(create_agent_token("main", "billing-7"))


def test_an_agent_reads_the_decision_about_its_action(living_action: RecordWriter, ana: User, api: ApiFor, agent: Api) -> None:
    assert agent.get(PATH)[0] == 404
    api(ana).post(PATH, a_body(result="message-id 1204"))
    status, answer = agent.get(PATH)
    assert status == 200
    assert (answer["state"], answer["outcome"], answer["result"]) == ("waiting", "done", "message-id 1204")
    assert answer["resolution"] == "operator ana: found in the Sent folder"
    living_action.lease("billing-7", state="released")
    deliver(Decision.objects.get().pk)
    assert agent.get(PATH)[1]["state"] == "written"


@pytest.mark.parametrize("state", ["proposed", "held", "withdrawn", "refused"])
def test_an_agent_is_not_told_what_may_still_change(
    living_action: RecordWriter, ana: User, api: ApiFor, agent: Api, state: str
) -> None:
    api(ana).post(PATH, a_body(result="message-id 1204"))
    Decision.objects.update(state=state)
    status, answer = agent.get(PATH)
    assert (status, answer["state"]) == (200, state)
    assert {answer[name] for name in ("outcome", "reason", "result", "error", "by", "resolution", "tool", "claim")} == {None}


def test_an_agent_is_told_which_call_was_decided_about(living_action: RecordWriter, ana: User, api: ApiFor, agent: Api) -> None:
    """Its number may stand for another call by now, where an agent's records began anew."""
    api(ana).post(PATH, a_body())
    item = get_action(get_store("main"), ActionRef("main", "billing-7", 1))
    assert item.action is not None
    answer = agent.get(PATH)[1]
    assert (answer["tool"], answer["claim"]) == (item.action.tool, claim_digest(item.action, item.action.args))


def test_a_token_is_told_whose_it_is_and_nothing_more(ana: User, cyd: User, api: ApiFor, agent: Api) -> None:
    assert agent.get("token") == (200, {"user": None, "store": "main", "agent": "billing-7"})
    assert api(ana).get("token") == (200, {"user": "ana", "store": None, "agent": None})
    assert api(cyd).get("token")[0] == 403
    assert Api("settle_nobodys").get("token")[0] == 401
    assert agent.get("token", verbose="1")[0] == 422


def test_an_agent_may_do_nothing_else(living_action: RecordWriter, ana: User, api: ApiFor, agent: Api) -> None:
    api(ana).post(PATH, a_body())
    assert agent.post(PATH, a_body())[0] == 403
    assert agent.delete(PATH)[0] == 403
    assert agent.get("actions/main/billing-8/1/decision")[0] == 403
    assert agent.get("actions/other/billing-7/1/decision")[0] == 403
    assert Decision.objects.get().state == "waiting"


# --- who may ---------------------------------------------------------------------------------------------------------


def test_a_viewer_may_not_decide(open_action: RecordWriter, ben: User, api: ApiFor) -> None:
    assert api(ben).post(PATH, a_body())[0] == 403
    assert status_now() is ActionStatus.STARTED


def test_what_may_not_be_seen_is_not_there(open_action: RecordWriter, dot: User, api: ApiFor) -> None:
    caller = api(dot)
    assert caller.post(PATH, a_body())[0] == 404
    assert caller.get(PATH)[0] == 404
    assert caller.delete(PATH)[0] == 404


# --- bad bodies ------------------------------------------------------------------------------------------------------


def _raw(**fields: Any) -> str:
    return json.dumps(a_body(**fields))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 422),
        ("{", 422),
        ("[]", 422),
        ('"done"', 422),
        ("null", 422),
        ("{}", 422),
        ("[" * 200_000, 422),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, 422),
        ('{"outcome": NaN}', 422),
        ('{"outcome": ' + "9" * 10_000 + "}", 422),
        (b"\xff\xfe{\x00}\x00", 422),
        (b"\x80", 422),
        (_raw(outcome="maybe"), 422),
        (_raw(outcome="unknown"), 422),
        (_raw(outcome="failed", result="sent"), 422),
        (_raw(reason=""), 422),
        (_raw(reason="a\x00b"), 422),
        (_raw(reason="a\ud800b"), 422),
        (_raw(result="\ud800"), 422),
        (_raw(result="x" * 1_048_577), 422),
        (_raw(reason="x" * 100_000), 422),
        (_raw(decision_id="short"), 422),
        (_raw(decision_id="x" * 65), 422),
        (_raw(unheard_of=1), 422),
        (json.dumps({**a_body(), "reason": 5}), 422),
        (json.dumps({**a_body(), "outcome": ["done"]}), 422),
        (json.dumps({**a_body(), "outcome": {"a": {}}}), 422),
        (json.dumps({"outcome": "done", "reason": "x"}), 422),
        (_raw(look_again_at="2099-01-01T12:00:00Z"), 422),
        (json.dumps(a_body("later", look_again_at="2099-01-01T12:00:00")), 422),
        (json.dumps(a_body("later", look_again_at="tomorrow")), 422),
        (json.dumps(a_body("later", look_again_at="2099-02-30T00:00:00Z")), 422),
        (json.dumps(a_body("later", look_again_at="2020-01-01T00:00:00Z")), 422),
        (json.dumps(a_body("later", look_again_at=4070908800)), 422),
        (json.dumps(a_body())[:-1] + ', "reason": "twice"}', 422),
        ('{"reason": "' + "x" * 2_700_000 + '"}', 413),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str | bytes) else str(value),
)
def test_a_bad_body_is_told_what_is_wrong(memory: RecordWriter, ana: User, api: ApiFor, body: str | bytes, status: int) -> None:
    memory.action("billing-7", 1)
    got, answer = api(ana).post(PATH, body)
    assert got == status, answer
    assert answer["error"]
    assert answer["detail"]
    assert len(answer["detail"]) < 400
    assert not Decision.objects.exists()
    assert not Note.objects.exists()
    assert status_now() is ActionStatus.STARTED


def test_another_content_type_is_refused(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    memory.action("billing-7", 1)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        status, answer = api(ana).post(PATH, json.dumps(a_body()), content_type=kind)
        assert (status, answer["error"]) == (415, "unsupported")
    assert api(ana).post(PATH, json.dumps(a_body()), content_type="application/json; charset=utf-8")[0] == 201


def test_what_was_sent_is_never_repeated(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    memory.action("billing-7", 1)
    _, answer = api(ana).post(PATH, json.dumps({**a_body(), "reason": ["hunter2-hunter2"], "x": "hunter2-hunter2"}))
    assert "hunter2" not in json.dumps(answer)


def test_a_read_only_store_is_503_with_the_remedy(flaky: MemoryWriter, ana: User, api: ApiFor) -> None:
    flaky.action("billing-7", 1)
    flaky.kept._is_prepared = False
    status, answer = api(ana).post(PATH, a_body())
    assert (status, answer["error"]) == (503, "read_only")
    assert "prepare_store main" in answer["detail"]


def test_a_lost_answer_is_503_and_found_again(flaky: MemoryWriter, ana: User, api: ApiFor) -> None:
    flaky.action("billing-7", 1)
    caller, body = api(ana), a_body()
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    status, answer = caller.post(PATH, body)
    assert (status, answer["error"]) == (503, "unavailable")
    assert "not known" in answer["detail"]
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    assert caller.post(PATH, body)[0] == 200


def test_secrets_in_a_decision_are_hidden(open_action: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    _, answer = api(ana).post(PATH, a_body(reason="password=hunter2-hunter2", result="token: hunter2-hunter2"))
    assert "hunter2" not in json.dumps(answer)
    for path in (PATH, "actions/main/billing-7/1", "audit"):
        assert "hunter2" not in json.dumps(api(ben).get(path)[1])


# --- the second person -----------------------------------------------------------------------------------------------


@pytest.fixture
def four_eyes(person: Cast) -> None:
    admin = person("amy", "admin")
    save_policy("create_payment", {"second_person_when": "amount > 1000"}, seen_version=0, by=admin)
    save_policy("open_ticket", {"step_up_when": "true"}, seen_version=0, by=admin)
    save_policy("send_email", {"hold_s": 60}, seen_version=0, by=admin)


@pytest.mark.usefixtures("four_eyes")
def test_a_proposal_is_answered_202_and_approved_by_somebody_else(
    memory: RecordWriter, ana: User, person: Cast, api: Callable[[User], Api]
) -> None:
    cleo = api(person("cleo", "approver"))
    memory.action("m-1", 1, tool="create_payment", args={"amount": 4200, "currency": "EUR"})
    at = "actions/main/m-1/1"
    body = {"outcome": "done", "reason": "seen in the dashboard", "decision_id": "decision-1"}

    status, proposed = api(ana).post(f"{at}/decision", body)
    assert (status, proposed["state"], "amount > 1000" in proposed["rule"]) == (202, "proposed", True)
    assert api(ana).post(f"{at}/decision/approve", {"decision_id": "decision-1"})[0] == 403
    status, shown = cleo.get(at)
    assert (status, shown["status"], shown["decision"]["state"]) == (200, "started", "proposed")
    approve = {"decision_id": "decision-1", "reason": "I see it", "seen": "something else"}
    assert cleo.post(f"{at}/decision/approve", approve)[0] == 412
    status, done = cleo.post(f"{at}/decision/approve", {**approve, "seen": shown["decision"]["seen"]})

    assert (status, done["state"], done["by"], done["second"]) == (201, "written", "ana", "cleo")
    status, late = api(person("dora", "approver")).post(f"{at}/decision/approve", {"decision_id": "decision-1"})
    assert (status, late["error"], "cleo approved it" in late["detail"]) == (409, "not_proposed", True)


@pytest.mark.parametrize("odd", ["\x00", "\ud800"], ids=["NUL", "half a pair"])
def test_a_name_that_no_database_keeps_names_nothing(
    memory: RecordWriter, ana: User, person: Cast, api: Callable[[User], Api], odd: str
) -> None:
    caller = api(person("dora", "operator", "approver"))
    ref = memory.action("m-1", 1)
    at, name = "actions/main/m-1/1", f"decision{odd}1"
    bodies = {
        "approve": {"decision_id": name},
        "turn-down": {"decision_id": name, "reason": "another one"},
        "break-glass": {"decision_id": name, "reason": "nobody is awake"},
        "through-server": {"decision_id": name, "confirm": "m-1"},
    }

    assert {way: caller.post(f"{at}/decision/{way}", body)[0] for way, body in bodies.items()} == dict.fromkeys(bodies, 404)
    assert caller.get(f"bulk/{quote(name, errors='surrogatepass')}")[0] in (400, 404, 422)
    claim_by(ref, by=ana)
    assert caller.post(f"{at}/claim", {"take_over_from": f"ana{odd}"})[0] == 409
    assert not Decision.objects.exists()


@pytest.mark.usefixtures("four_eyes")
def test_holds_break_glass_turning_down_and_identity_have_answers_of_their_own(
    memory: RecordWriter, ana: User, person: Cast, api: Callable[[User], Api]
) -> None:
    caller, cleo = api(ana), api(person("cleo", "approver"))
    for seq, tool in enumerate(("create_payment", "create_payment", "open_ticket", "send_email"), start=1):
        memory.action("m-1", seq, tool=tool, args={"amount": 4200, "currency": "EUR", "to": "b@example.com"})
    said = {
        seq: caller.post(
            f"actions/main/m-1/{seq}/decision", {"outcome": "done", "reason": "seen", "decision_id": f"decision-{seq}"}
        )
        for seq in (1, 2, 3, 4)
    }

    assert [status for status, _ in said.values()] == [202, 202, 403, 202]
    assert said[3][1]["error"] == "confirm_identity"
    assert (said[4][1]["state"], said[4][1]["held_until"] is not None) == ("held", True)
    assert caller.get("actions/main/m-1/3/decision")[0] == 404
    status, down = cleo.post("actions/main/m-1/1/decision/turn-down", {"decision_id": "decision-1", "reason": "another one"})
    assert (status, down["state"], down["second_reason"]) == (200, "refused", "another one")
    status, alone = caller.post(
        "actions/main/m-1/2/decision/break-glass", {"decision_id": "decision-2", "reason": "nobody is awake"}
    )
    assert (status, alone["state"], alone["broke_glass"]) == (201, "written", "nobody is awake")
    assert caller.delete("actions/main/m-1/4/decision")[1]["state"] == "withdrawn"


@pytest.mark.parametrize("holds", [False, True])
def test_an_answer_names_whoever_else_has_claimed_the_call(
    records: RecordWriter, ana: User, bea: User, amy: User, api: ApiFor, holds: bool
) -> None:
    """As the page does before it is decided. One's own claim is no news, nor is somebody else's to a refusal."""
    if holds:
        save_policy("send_email", {"hold_s": 30}, seen_version=0, by=amy)
    theirs, mine, free = (records.action("billing-7", seq) for seq in (1, 2, 3))
    claim_by(theirs, by=bea)
    claim_by(mine, by=ana)

    answers = [api(ana).post(f"actions/main/billing-7/{ref.seq}/decision", a_body()) for ref in (theirs, mine, free)]

    assert [status for status, _ in answers] == [202 if holds else 201] * 3
    told = [[text for text in body["warnings"] if "claimed" in text] for _, body in answers]
    assert told[1:] == [[], []]
    (warning,) = told[0]
    assert warning.startswith("bea has claimed it, since ")
