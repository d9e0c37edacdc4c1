"""What every kind of resolver promises, over a real provider of each kind: what it finds, and that nothing else is ever taken for an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from importlib.util import find_spec

import pytest

from actions.resolvers import KINDS, build_resolver, get_kind
from actions.resolvers.base import Canary, Claim, Finding, InvalidDefinition, MatchedBy, Reply, Resolver
from actions.resolvers.verdict import Grade, Outcome, Verdict
from actions.times import SECOND
from tests.resolvers import worlds
from tests.resolvers.makers import BEGAN, HOUR, LONG_AFTER, make_circumstances, weigh
from tests.resolvers.worlds import BREAKS, CREDENTIALS, RATE_LIMIT, RETRY_AFTER_S, World, world_class


@pytest.fixture(params=worlds.NAMES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_class(request.param).open(request) as opened:
        yield opened


def ask(world: World, claim: Claim, **settings: str) -> tuple[Finding, Verdict]:
    """Ask long after the call, and judge where everything but the finding speaks for absence: fenced, and one negative earlier."""
    resolver = world.resolver(**settings)
    finding = resolver.ask(claim, now=LONG_AFTER)
    return finding, judged(resolver, finding, claim)


def judged(resolver: Resolver, finding: Finding, claim: Claim, **changes: object) -> Verdict:
    return weigh(finding, claim, proves_absence=resolver.proves_absence, copies_are_normal=resolver.copies_are_normal, **changes)


# --- found -----------------------------------------------------------------------------------------------------------


def test_finds_by_key(world: World) -> None:
    claim = world.claim()
    world.put_canary()
    world.put(claim)

    finding, verdict = ask(world, claim)

    assert (finding.reply, finding.problem) == (Reply.ANSWERED, "")
    assert {match.by for match in finding.matches} == {MatchedBy.KEY}
    assert (verdict.outcome, verdict.grade, verdict.may_settle_alone) == (Outcome.DONE, Grade.EXACT, True)
    assert {row.name for row in verdict.evidence.fields if row.agrees} == set(world.tells)


def test_tells_what_was_asked_of_whom_when_and_a_digest_of_the_answer(world: World) -> None:
    claim = world.claim()
    world.put(claim)

    finding, _ = ask(world, claim)

    assert finding.asked
    assert finding.account
    assert finding.asked_at == LONG_AFTER
    assert len(finding.answer_digest) == 64


def test_no_finding_holds_a_secret(world: World) -> None:
    claim = world.claim()
    world.put(claim)
    found = repr(ask(world, claim)[0])
    world.break_with(CREDENTIALS if CREDENTIALS in world.breaks else next(iter(world.breaks)))
    refused = repr(ask(world, claim)[0])

    assert [secret for secret in world.secrets if secret in found or secret in refused] == []


def test_an_object_of_another_call_is_not_found(world: World) -> None:
    claim, other = world.claim(), world.claim(agent="billing-2", key="0f" * 16)
    world.put_canary()
    world.put(other)

    finding, verdict = ask(world, claim)

    assert [match for match in finding.matches if match.by is not MatchedBy.FIELDS] == []
    assert verdict.outcome is not Outcome.DONE


def test_the_same_key_twice_is_one_effect_only_where_copies_are_normal(world: World) -> None:
    claim = world.claim()
    world.put(claim)
    world.put(claim)

    _, verdict = ask(world, claim)

    expected = (Outcome.DONE, Grade.EXACT) if world.resolver().copies_are_normal else (Outcome.UNKNOWN, Grade.CONFLICT)
    assert (verdict.outcome, verdict.grade) == expected


DIFFERENCES = {"amount": Decimal("120.01"), "recipient": "somebody-else@example.net", "currency": "USD"}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_our_key_with_another_value_is_a_conflict(world: World, name: str) -> None:
    claim = world.claim()
    world.put_canary()
    world.put(claim, **{name: DIFFERENCES[name]})  # type: ignore[arg-type]

    _, verdict = ask(world, claim)

    if name in world.tells:
        assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.CONFLICT)
        assert [row.name for row in verdict.evidence.fields if row.agrees is False] == [name]
    else:  # an object that does not tell it cannot differ in it
        assert (verdict.outcome, verdict.grade) == (Outcome.DONE, Grade.EXACT)


@pytest.mark.parametrize("key", ["", "0f" * 16], ids=["without a key", "with another key"])
def test_a_look_alike_settles_nothing(world: World, key: str) -> None:
    claim = world.claim()
    world.put_canary()
    world.put(claim, key=key)

    finding, verdict = ask(world, claim)

    assert {match.by for match in finding.matches} <= {MatchedBy.FIELDS}
    assert (verdict.outcome, verdict.grade) in {(Outcome.UNKNOWN, Grade.WEAK), (Outcome.FAILED, None)}
    assert verdict.may_settle_alone is False


@pytest.mark.parametrize("shape", ["x{}", "{}x", "{} ", "{}\u200b", "{}{}", "<{}>", "urn:{}"])
def test_a_key_that_only_contains_ours_is_not_ours(world: World, shape: str) -> None:
    claim = world.claim()
    world.put_canary()
    world.put(claim, key=shape.format(claim.action.key, claim.action.key))

    finding, verdict = ask(world, claim)

    assert [match for match in finding.matches if match.by is not MatchedBy.FIELDS] == []
    assert verdict.outcome is not Outcome.DONE


# --- not found -------------------------------------------------------------------------------------------------------


def test_nothing_beside_a_canary_is_a_negative_and_two_of_them_prove_absence(world: World) -> None:
    claim = world.claim()
    world.put_canary()

    finding, verdict = ask(world, claim)

    assert (finding.reply, finding.matches, finding.canary, finding.is_complete) == (Reply.ANSWERED, (), Canary.FOUND, True)
    assert (verdict.outcome, verdict.evidence.is_negative) == (Outcome.FAILED, True)
    first = judged(world.resolver(), finding, claim, circumstances=make_circumstances(negatives=()))
    assert (first.outcome, first.evidence.is_negative) == (Outcome.UNKNOWN, True)


def test_an_empty_world_proves_nothing_for_its_canary_is_missing(world: World) -> None:
    finding, verdict = ask(world, world.claim())

    assert (finding.matches, finding.canary) == ((), Canary.MISSING)
    assert (verdict.outcome, verdict.evidence.is_negative) == (Outcome.UNKNOWN, False)


def test_a_canary_is_compared_whole_too(world: World) -> None:
    world.put_canary(suffix="x")

    finding, verdict = ask(world, world.claim())

    assert (finding.canary, verdict.outcome) == (Canary.MISSING, Outcome.UNKNOWN)


def test_absence_is_not_proved_by_a_resolver_that_does_not_say_so(world: World) -> None:
    world.put_canary()

    _, verdict = ask(world, world.claim(), proves_absence="")

    assert (verdict.outcome, verdict.evidence.is_negative) == (Outcome.UNKNOWN, False)


def test_what_turns_up_after_the_first_question_is_found_by_the_second(world: World) -> None:
    """Index lag, as a resolver sees it: the first answer is empty and decides nothing before the window is over."""
    claim, resolver = world.claim(), world.resolver()
    world.put_canary()
    early = BEGAN + 400 * SECOND
    first = judged(resolver, resolver.ask(claim, now=early), claim, circumstances=make_circumstances(negatives=()))

    world.put(claim)

    assert (first.outcome, first.check_again_at is not None) == (Outcome.UNKNOWN, True)
    assert ask(world, claim)[1].outcome is Outcome.DONE


def test_absence_proves_nothing_once_the_provider_forgets(world: World) -> None:
    claim, resolver = world.claim(), world.resolver()
    world.put_canary()

    finding = resolver.ask(claim, now=BEGAN + 31 * 24 * HOUR)

    assert judged(resolver, finding, claim).outcome is Outcome.UNKNOWN


# --- no answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_world_is_never_an_answer(world: World, how: str) -> None:
    if how not in world.breaks:
        # Nothing to break; then the world must have named what its protocol has.
        assert world.breaks <= set(BREAKS)
        return
    claim = world.claim()
    world.put_canary()
    world.break_with(how)

    finding, verdict = ask(world, claim)

    assert finding.reply is (Reply.UNUSABLE if how == CREDENTIALS else Reply.NO_ANSWER)
    assert finding.problem
    assert finding.matches == ()
    assert (finding.canary, finding.is_complete) == (Canary.NOT_ASKED, False)
    assert finding.retry_after_s == (RETRY_AFTER_S if how == RATE_LIMIT else 0)
    assert (verdict.outcome, verdict.evidence.is_negative) == (Outcome.UNKNOWN, False)
    assert world.asked_count() <= 1  # nobody knocks again and again within one question


def test_a_world_that_breaks_does_not_unfind_what_is_there(world: World) -> None:
    claim, resolver = world.claim(), world.resolver()
    world.put(claim)
    before = resolver.ask(claim, now=LONG_AFTER)
    world.break_with(next(how for how in reversed(BREAKS) if how in world.breaks))

    after = resolver.ask(claim, now=LONG_AFTER)

    assert before.matches
    assert judged(resolver, after, claim).outcome is Outcome.UNKNOWN


# --- hostile arguments -----------------------------------------------------------------------------------------------

HOSTILE = {
    "CRLF": "a\r\nX-Injected: 1\r\n\r\nGET /other HTTP/1.1",
    "LF": "a\nb",
    "quotes": "\"' OR '1'='1' -- \"; DROP TABLE payments; \\",
    "NUL": "a\x00b",
    "percent": "%00%0d%0a%2e%2e%2f&key=other#fragment",
    "path": "../../etc/passwd?x=y;z",
    "template": "{key} {{7*7}} ${x} %(key)s :key $1",
    "mail": ") ALL (OR SUBJECT {3}\r\nabc",
    "unicode": "\u202e\u2028\U0001f4b8ſ\u0130\ufeff",
    "surrogate": "\ud800",
    "long": "x" * 1_048_576,
}


@pytest.mark.parametrize("where", ["arguments", "key"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_values_change_nothing_about_what_is_asked(world: World, text: str, where: str) -> None:
    world.put_canary()
    claim, resolver = world.claim(), world.resolver()
    resolver.ask(claim, now=LONG_AFTER)
    usual = world.shapes()

    hostile = _with(claim, text, where)
    finding = resolver.ask(hostile, now=LONG_AFTER)

    asked = world.shapes()[len(usual) :]
    assert asked == usual or (asked == () and finding.reply is not Reply.ANSWERED)
    assert finding.matches == ()
    assert all(len(line) <= 10_000 for line in finding.asked)


def _with(claim: Claim, text: str, where: str) -> Claim:
    if where == "key":
        return replace(claim, action=replace(claim.action, key=text))
    return replace(claim, recipients=(text,), currency=text, reference=text, action=replace(claim.action, agent=text, tool=text))


# --- definitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if find_spec(f"actions.resolvers.{kind}")])
def test_every_kind_has_a_world_and_a_form_with_help(kind: str) -> None:
    assert kind in worlds.NAMES
    assert get_kind(kind).name == kind
    assert [field.name for field in get_kind(kind).fields if not (field.label and field.help)] == []


def test_a_needed_setting_that_is_missing_is_named(world: World) -> None:
    needed = [field.name for field in get_kind(world.kind).fields if field.is_required]

    with pytest.raises(InvalidDefinition) as refused:
        build_resolver(world.kind, "nameless", {}, {})

    assert refused.value.field in needed


def test_a_setting_that_no_kind_has_is_refused(world: World) -> None:
    with pytest.raises(InvalidDefinition, match="no_such_setting"):
        world.resolver(no_such_setting="1")
