"""Who plays in the demo, in its first shift and in later ones."""

from __future__ import annotations

from demo.cast import CAST, LIVE, TWIN, called, cast_of, next_live, part_of, shift, still_to_play

MADE = {(part.agent, part.last_call) for part in CAST}


def test_every_external_tool_dies_before_and_after_its_effect() -> None:
    deaths = {(part.kill_in, part.after) for part in CAST if part.leaves_doubt}
    assert deaths == {(tool, after) for tool in ("send_email", "create_payment", "open_ticket") for after in (False, True)}


def test_the_first_shift_plays_when_nothing_is_recorded() -> None:
    assert tuple(still_to_play(CAST, set(), 0, wanted=3)) == CAST


def test_who_has_played_does_not_play_again() -> None:
    assert still_to_play(CAST, MADE, 5, wanted=3) == []


def test_when_everything_is_settled_another_shift_plays() -> None:
    assert tuple(still_to_play(CAST, MADE, 0, wanted=3)) == shift(CAST, 1)
    assert not {part.agent for part in shift(CAST, 1)} & {part.agent for part in CAST}


def test_an_agent_of_any_shift_is_known_by_its_id() -> None:
    for part in (*CAST, *shift(CAST, 1), *shift(CAST, 7), LIVE, next_live({LIVE.agent})):
        assert part_of(CAST, "main", part.agent) == part
    assert part_of(CAST, "main", "support-agent-8") is None
    assert part_of(CAST, "main", "nobody") is None


def test_the_live_agent_is_a_new_one_each_time() -> None:
    assert next_live(set()) == LIVE
    assert next_live({LIVE.agent}).agent == "outreach-agent-2"


def test_with_a_store_of_their_own_operations_have_their_agents_there_and_one_id_is_two_agents() -> None:
    cast = cast_of({"main": "...", "ops": "..."})

    assert {part.agent for part in cast if part.store == "ops"} == {"ops-agent-1", "ops-agent-4", TWIN.agent}
    assert [part for part in cast if part.store == "main"] == [part for part in CAST if not part.agent.startswith("ops-")]
    mine, theirs = (part_of(cast, store, "support-agent-7") for store in ("main", "ops"))
    assert mine is not None
    assert theirs is not None
    assert mine.script != theirs.script
    assert part_of(cast, "ops", "support-agent-27") == shift([TWIN], 1)[0]
    assert part_of(cast, "ops", "billing-agent-2") is None


def test_an_agent_is_called_by_its_store_only_where_there_are_two() -> None:
    assert called(TWIN, ["main", "ops"]) == "ops/support-agent-7"
    assert called(TWIN, ["ops"]) == "support-agent-7"


def test_each_store_alone_has_enough_calls_in_doubt() -> None:
    for stores in (["main"], ["main", "ops"]):
        for store in stores:
            assert sum(part.leaves_doubt for part in cast_of(stores) if part.store == store) >= 3
