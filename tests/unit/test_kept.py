"""What was made of a text stays under a digest of everything it depends on; never its source, never without bound."""

from __future__ import annotations

from actions.kept import Kept
from actions.long_arguments import redacted_arguments

SECRET = '{"password": "s3cr3tValue42", "iban": "DE02"}'


def test_what_is_kept_answers_for_exactly_these_texts_and_what_else_it_depends_on() -> None:
    kept, made = Kept[str](10), list[str]()

    def make(name: str) -> str:
        made.append(name)
        return name

    asked = [(("ab", "c"), 1), (("a", "bc"), 1), (("abc",), 1), (("ab", "c"), 2), (("ab\ud800", "c"), 1)]
    first = [kept.get(texts, others, lambda n=n: make(f"{n}")) for n, (texts, others) in enumerate(asked)]  # type: ignore[misc]
    again = [kept.get(texts, others, lambda: make("again")) for texts, others in asked]

    assert first == again == made == ["0", "1", "2", "3", "4"]


def test_no_more_is_kept_than_its_bound_and_what_was_asked_for_last_stays() -> None:
    kept = Kept[str](2)
    for name in ("old", "used", "old", "new"):
        kept.get((name,), None, lambda name=name: name)  # type: ignore[misc]

    assert len(kept) == 2
    assert kept.get(("old",), None, lambda: "made again") == "old"
    assert kept.get(("used",), None, lambda: "made again") == "made again"


def test_short_arguments_are_kept_as_they_are_shown_and_not_as_they_came() -> None:
    from actions import long_arguments

    first = redacted_arguments(SECRET, frozenset())

    assert redacted_arguments(SECRET, frozenset()) is first
    assert "DE02" not in redacted_arguments(SECRET, frozenset({"iban"})).text
    assert "s3cr3tValue42" not in repr(list(long_arguments._short._values.items()))
