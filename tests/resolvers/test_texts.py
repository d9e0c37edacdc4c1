"""Reading a definition's form: what each type of field takes, in its own bounds, and that no secret is ever repeated."""

from __future__ import annotations

from decimal import Decimal

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Field, FieldType, InvalidDefinition, Kind
from actions.resolvers.texts import Texts, read_texts

KIND = Kind(
    name="sample",
    label="Sample",
    help="For these tests.",
    fields=(
        Field(name="place", label="Place", help="Where.", is_required=True),
        Field(name="secret", label="Secret", help="What.", type=FieldType.SECRET),
        Field(name="wide", label="Wide", help="How.", type=FieldType.FLAG, default="yes"),
        Field(name="way", label="Way", help="Which.", type=FieldType.CHOICE, choices=("up", "down"), default="up"),
        Field(name="names", label="Names", help="Whose.", type=FieldType.LINES),
        Field(name="seconds", label="Seconds", help="How long.", type=FieldType.NUMBER, default="10"),
    ),
)


def read(secret: str = "", **settings: str) -> Texts:
    return read_texts(KIND, {"place": "here", **settings}, {"secret": secret} if secret else {})


def test_defaults_stand_for_what_is_missing_or_blank_but_a_flag_can_be_unset() -> None:
    bare, blank = read(), read(way=" ", seconds="", wide="")

    assert (bare.text("way"), bare.number("seconds", at_least=1, at_most=10), bare.flag("wide")) == ("up", Decimal(10), True)
    assert (blank.text("way"), blank.number("seconds", at_least=1, at_most=10), blank.flag("wide")) == ("up", Decimal(10), False)


def test_outer_spaces_go_except_from_a_secret() -> None:
    texts = read(secret=" s ", place=" there\n", names=" a \r\n\n b\n")

    assert (texts.text("place"), texts.text("secret"), texts.lines("names")) == ("there", " s ", ("a", "b"))
    assert " s " not in repr(texts)


@pytest.mark.parametrize("number", ["0.9", "10.1", "-1", "nan", "inf", "1e99", "ten", "1,5", "0x1"])
def test_a_number_is_a_number_within_its_bounds(number: str) -> None:
    with pytest.raises(InvalidDefinition, match="seconds: "):
        read(seconds=number).number("seconds", at_least=1, at_most=10)


@pytest.mark.parametrize(
    ("settings", "secrets", "field"),
    [
        ({}, {}, "place"),
        ({"place": "here", "nowhere": "x"}, {}, "nowhere"),
        ({"place": "here", "secret": "hunter2"}, {}, "secret"),
        ({"place": "here"}, {"place": "hunter2"}, "place"),
        ({"place": "here"}, {"secret": "hunter2\x00"}, "secret"),
        ({"place": "here"}, {"secret": "hunter2" * 2_000}, "secret"),
    ],
)
def test_what_does_not_belong_into_the_form_is_refused_without_repeating_it(
    settings: dict[str, str], secrets: dict[str, str], field: str
) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        read_texts(KIND, settings, secrets)

    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


def test_there_is_no_kind_of_another_name() -> None:
    with pytest.raises(InvalidDefinition, match="no kind of resolver is called 'os'"):
        build_resolver("os", "x", {})
