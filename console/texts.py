"""Texts as forms send them: what no database column keeps and no page can show is found before anything is asked."""

from __future__ import annotations

from django.http import HttpRequest, QueryDict

from actions.errors import ActionsError
from actions.rules import check_text

_SHOWN_AS = "\ufffd"


def take_texts(request: HttpRequest) -> dict[str, str]:
    """What is wrong with the texts of a POST, by the name of the field; empty where all can be used.

    From then on `request.POST` holds U+FFFD in place of each such character, so that the form can be drawn again around it. Whoever gets
    anything back refuses the whole form: nobody meant what stands there now.
    """
    problems: dict[str, str] = {}
    repaired = QueryDict(mutable=True)
    for sent, texts in request.POST.lists():
        name = _repair(sent)
        repaired.setlist(name, [_repair(text) for text in texts])
        for text in (sent, *texts):
            try:
                check_text("text", text)
            except ActionsError as exc:
                problems[name] = str(exc)
    if problems:
        repaired._mutable = False
        request.POST = repaired  # type: ignore[assignment]
    return problems


def _repair(text: str) -> str:
    return "".join(_SHOWN_AS if char == "\x00" or "\ud800" <= char <= "\udfff" else char for char in text)
