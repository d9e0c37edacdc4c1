"""What the tests of views share: a signed-in browser, htmx's headers, a decision form filled in as the page does it."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from actions.records import ActionRef

HTMX = {"HX-Request": "true"}
BACK = {"HX-Request": "true", "HX-History-Restore-Request": "true"}
BOOSTED = {"HX-Request": "true", "HX-Boosted": "true"}


def browser(user: User | None = None, **options: Any) -> Client:
    """A browser in which this person is signed in."""
    client = Client(**options)
    if user is not None:
        client.force_login(user)
    return client


def path_of(ref: ActionRef, rest: str = "") -> str:
    return f"/actions/{ref.store}/{ref.agent}/{ref.seq}/{rest}"


class _Inputs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "input" and said.get("type") == "hidden" and said.get("name"):
            self.found[str(said["name"])] = said.get("value") or ""


def hidden(html: str) -> dict[str, str]:
    """The hidden fields of a page's decision form."""
    form = re.search(r'<form[^>]*id="decision-form".*?</form>', html, re.DOTALL)
    inputs = _Inputs()
    inputs.feed(form[0] if form else html)
    return inputs.found


def text_of(html: str) -> str:
    """What a person reads: without tags, white space folded."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", re.sub(r"<(style|script).*?</\1>", "", html, flags=re.DOTALL))).split())


def filled(
    client: Client, ref: ActionRef, outcome: str = "done", reason: str = "Found in the Sent folder", **fields: str
) -> dict[str, str]:
    """The decision form as a person leaves it after the turn was shown: bound to that turn."""
    page = client.get(path_of(ref)).content.decode()
    form = {**hidden(page), "outcome": outcome, "reason": reason, **fields}
    turn = client.post(path_of(ref, "turn/"), form, headers=HTMX).content.decode()
    return {**form, **{name: value for name, value in hidden(turn).items() if name == "turn_seen"}}


def words_of(html: str) -> str:
    """The same with a space for every tag: for tables and lists, whose cells no character parts."""
    inline = re.sub(r'<span class="id">([^<]*)</span>', r"\1", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", inline)).split())
