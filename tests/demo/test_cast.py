"""Who plays in the demo, in its first shift and in later ones."""

from __future__ import annotations

from demo.cast import CAST, LIVE, next_live, part_of, shift, still_to_play

MADE = {(part.agent, part.last_call) for part in CAST}


def test_every_external_tool_dies_before_and_after_its_effect() -> None:
    deaths = {(part.kill_in, part.after) for part in CAST if part.leaves_doubt}
    assert deaths == {(tool, after) for tool in ("send_email", "create_payment", "open_ticket") for after in (False, True)}


def test_the_first_shift_plays_when_nothing_is_recorded() -> None:
    assert tuple(still_to_play(set(), 0, wanted=3)) == CAST


def test_who_has_played_does_not_play_again() -> None:
    assert still_to_play(MADE, 5, wanted=3) == []


def test_when_everything_is_settled_another_shift_plays() -> None:
    assert tuple(still_to_play(MADE, 0, wanted=3)) == shift(1)
    assert not {part.agent for part in shift(1)} & {part.agent for part in CAST}


def test_an_agent_of_any_shift_is_known_by_its_id() -> None:
    for part in (*CAST, *shift(1), *shift(7), LIVE, next_live({LIVE.agent})):
        assert part_of(part.agent) == part
    assert part_of("support-agent-8") is None
    assert part_of("nobody") is None


def test_the_live_agent_is_a_new_one_each_time() -> None:
    assert next_live(set()) == LIVE
    assert next_live({LIVE.agent}).agent == "outreach-agent-2"
