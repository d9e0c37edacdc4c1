"""What a policy hides in arguments stands in no evidence either, and the verdict stays what it is."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal

from actions.resolvers.claim import Roles, claim_of
from actions.resolvers.hiding import hide_in_verdict
from actions.resolvers.verdict import Circumstances, Grade, Outcome, Verdict, judge
from actions.tool_rules import hidden_name
from tests.resolvers.makers import WINDOWS, make_action, make_finding, make_match

ARGS = '{"to": {"iban": "DE02 1203"}, "amount": 7, "currency": "EUR", "pin": 12}'
ROLES = Roles(recipient="to.iban")


def verdict() -> Verdict:
    match = make_match(object_id="pay-DE02 1203", recipients=("DE02 1203",), amount=Decimal(7), reference="")
    finding = make_finding(
        match,
        asked=("GET https://bank/?iban=DE02%201203", "GET https://bank/?iban=DE02+1203&pin=12"),
        notes=("to DE02 1203 since noon",),
    )
    claim = claim_of(make_action(args=ARGS), ARGS, ROLES)
    return judge(finding, claim, circumstances=Circumstances(lease=None), windows=WINDOWS, proves_absence=True)


def test_hidden_arguments_are_hidden_wherever_the_evidence_repeats_them() -> None:
    whole = verdict()
    assert str(asdict(whole.evidence)).count("1203") >= 5

    found = hide_in_verdict(whole, ARGS, ROLES, frozenset({hidden_name("IBAN")}))

    assert "1203" not in str(asdict(found))
    assert (found.outcome, found.grade) == (whole.outcome, whole.grade) == (Outcome.DONE, Grade.EXACT)
    assert [row.agrees for row in found.evidence.fields] == [row.agrees for row in whole.evidence.fields]
    assert "7" in str([row.claimed for row in found.evidence.fields])


def test_without_such_names_the_evidence_is_as_it_was() -> None:
    whole = verdict()

    assert hide_in_verdict(whole, ARGS, ROLES, frozenset()) is whole
    assert hide_in_verdict(whole, ARGS, ROLES, frozenset({"nothere"})) == whole
