"""Reading the texts of a definition's form: each reader answers a value of its type or names the field and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation

from actions.resolvers.base import Field, FieldType, InvalidDefinition, Kind

MAX_TEXT_CHARS = 10_000
YES = "yes"
"""What a flag's text is when it is set; empty when it is not."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A definition's settings and secrets with the defaults filled in. Every name exists; made by `read_texts`."""

    _values: Mapping[str, str] = field(repr=False)

    def text(self, name: str) -> str:
        return self._values[name]

    def flag(self, name: str) -> bool:
        return self._values[name] == YES

    def lines(self, name: str) -> tuple[str, ...]:
        """Without empty ones."""
        return tuple(line.strip() for line in self._values[name].splitlines() if line.strip())

    def number(self, name: str, *, at_least: Decimal | int, at_most: Decimal | int) -> Decimal:
        """
        Raises:
            InvalidDefinition: no number, or one outside of the bounds.
        """
        text = self._values[name]
        try:
            number = Decimal(text)
        except InvalidOperation:
            raise InvalidDefinition(name, f"{text[:40]!r} is no number") from None
        if not number.is_finite() or not at_least <= number <= at_most:
            raise InvalidDefinition(name, f"{text[:40]} is not between {at_least} and {at_most}")
        return number


def read_settings(kind: Kind, settings: Mapping[str, str]) -> Texts:
    """The settings alone, without any secret: for what is to be said before a secret is asked for. Raises as `read_texts`."""
    shown = tuple(field for field in kind.fields if field.type is not FieldType.SECRET)
    return read_texts(replace(kind, fields=shown), settings, {})


def read_texts(kind: Kind, settings: Mapping[str, str], secrets: Mapping[str, str]) -> Texts:
    """Check names, presence, choices and flags of a whole form.

    Raises:
        InvalidDefinition: the first thing that is wrong, in the order of the form.
    """
    fields = {field.name: field for field in kind.fields}
    for given, is_secret in ((settings, False), (secrets, True)):
        for name in given:
            if name not in fields or (fields[name].type is FieldType.SECRET) is not is_secret:
                raise InvalidDefinition(
                    str(name)[:40], f"a resolver of the kind {kind.name} has no such {'secret' if is_secret else 'setting'}"
                )
    return Texts({field.name: _read(field, (secrets if field.type is FieldType.SECRET else settings)) for field in kind.fields})


def _read(field: Field, given: Mapping[str, str]) -> str:
    text = given.get(field.name, field.default)
    # A secret may begin or end with a space; nothing else does on purpose. A flag that is not set stays so, whatever its default.
    if field.type is not FieldType.SECRET:
        text = text.strip() or ("" if field.type is FieldType.FLAG else field.default)
    if field.is_required and not text:
        raise InvalidDefinition(field.name, "is needed")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidDefinition(field.name, f"is longer than {MAX_TEXT_CHARS:,} characters")
    if "\x00" in text:
        raise InvalidDefinition(field.name, "holds a NUL")
    if field.type is FieldType.FLAG and text not in ("", YES):
        raise InvalidDefinition(field.name, f"is {YES!r} or empty")
    if field.type is FieldType.CHOICE and text and text not in field.choices:
        raise InvalidDefinition(field.name, f"is one of {', '.join(field.choices)}")
    return text
