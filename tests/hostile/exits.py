"""The exits: every place where a text of an agent leaves the console. A new one is a line in EXITS; a new kind of it brings its check."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from django.core.management import call_command
from django.test import Client

from tests.console.conftest import PASSWORD
from tests.console.view_helpers import HTMX
from tests.hostile.corpus import Hostile

MAX_PAGE = 1_000_000
MAX_WHOLE = 6_000_000
"""Of one answer: lists cut each text, and only who asks for one value whole gets it whole."""
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks at an exit: a person's browser, and a program with that person's token."""

    client: Client
    token: str

    def page(self, path: str, **headers: str) -> str:
        answer = self.client.get(path, headers={**headers})
        assert answer.status_code == 200, f"{answer.status_code} of {path}"
        return answer.content.decode()

    def revealed(self, path: str) -> str:
        """What is hidden of one action, after a fresh proof and for a reason."""
        if "account_authentication_methods" not in self.client.session:
            assert self.client.post("/confirm/", {"password": PASSWORD}).status_code == 302
        answer = self.client.post(path, {"reason": "to see whether it does anything"})
        assert answer.status_code == 200, f"{answer.status_code} of {path}"
        return answer.content.decode()

    def json(self, path: str) -> str:
        answer = Client().get(path, headers={"Authorization": f"Bearer {self.token}"})
        assert answer.status_code == 200, f"{answer.status_code} of {path}"
        return b"".join(answer).decode()

    def every_page(self, path: str, **headers: str) -> str:
        """A list to its end, by its own links."""
        found = [self.page(path, **headers)]
        while way := re.search(r'<a href="([^"]+)" rel="next">', found[-1]):
            found.append(self.page(path + way[1].replace("&amp;", "&"), **headers))
        return "".join(found)


Leaving = Callable[[Asker, str], str]
Check = Callable[[str, Iterable[Hostile]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """What leaves there for one agent (or for all, where `is_list`), and what must hold of it."""

    name: str
    leave: Leaving
    check: Check
    is_list: bool = False
    is_about_decisions: bool = False


# --- what holds of each kind ---------------------------------------------------------------------------------------------


def unseen(text: str) -> list[str]:
    """The characters of a text that nobody sees, or that change how others look; line feeds are none."""
    return sorted({f"U+{ord(char):04X}" for char in text if _is_unseen(char)})


def _is_unseen(char: str) -> bool:
    if " " <= char <= "~" or char == "\n":
        return False
    is_selector = char in "\u115f\u1160\u2800\u3164\uffa0" or 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF
    return is_selector or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class _Structure(HTMLParser):
    """What a browser would make of a page that an agent had a hand in."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.labels: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        said = {name: value or "" for name, value in attrs}
        if tag in _FOREIGN_TAGS or (tag == "script" and "src" not in said):
            self.problems.append(f"an element {tag}")
        for name, value in said.items():
            if name.startswith("on") or name in ("style", "srcdoc") or name.removeprefix("data-").startswith("hx-on"):
                self.problems.append(f"an attribute {name}")
            is_inert = name == "value" and tag == "option"  # sent back as it is, shown by the words beside it
            if not is_inert and (any(word in value for word in _FOREIGN_WORDS) or unseen(value)):
                self.problems.append(f"agents' text in {name} of {tag}")
            if name in ("href", "src", "action", "formaction") and value and value[0] not in "/?#":
                self.problems.append(f"{name} leads to {value[:40]}")
            if name in ("title", "aria-label", "alt", "placeholder"):
                self.labels.append(value)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(tag in self._open for tag in ("title", "button", "label", "summary")):
            self.labels.append(data)


_FOREIGN_TAGS = frozenset(
    "iframe object embed base style img math foreignobject audio video source applet frame marquee template".split()
)
_FOREIGN_WORDS = ("stolen", "evil.example", "alert(1)", "javascript:", "data:text")


def check_page(html: str, cases: Iterable[Hostile], most: int = MAX_PAGE) -> list[str]:
    """No element and no attribute of theirs, nothing unseen, no label that they wrote, no secret, and an end."""
    structure = _Structure()
    structure.feed(html)
    found = [*structure.problems, *(f"unmarked {char}" for char in unseen(html)), *_secrets(html, cases)]
    found += [f"longer than {most:,}: {len(html):,}"] if len(html) > most else []
    labels = "\n".join(structure.labels)
    for case in cases:
        found += [f"{never[:30]!r} of {case.name}" for never in case.never if never in html]
        found += [f"{case.name} in a label"] if len(case.text) > 8 and case.text[:200] in labels else []
    return found


def check_whole_page(html: str, cases: Iterable[Hostile]) -> list[str]:
    """The same of a page on which a text stands as long as it is, up to a bound."""
    return check_page(html, [replace(case, never=tuple(never for never in case.never if len(never) < 1_000)) for case in cases])


def check_revealed(html: str, cases: Iterable[Hostile]) -> list[str]:
    """The same of the one page that hides no secret and cuts nothing."""
    shorter = [replace(case, secrets=(), never=tuple(never for never in case.never if len(never) < 1_000)) for case in cases]
    return check_page(html, shorter, MAX_WHOLE)


def check_csv(body: str, cases: Iterable[Hostile]) -> list[str]:
    """Cells that no spreadsheet reckons with, whatever stands before their sign; nothing unseen in them, no secret, and an end."""
    cells = [cell for row in csv.reader(body.splitlines()) for cell in row]
    found = [f"a formula {cell[:40]!r}" for cell in cells if cell.lstrip()[:1] in tuple("=+-@") and not _NUMBER.fullmatch(cell)]
    found += [f"unmarked {char}" for cell in cells for char in unseen(cell)]
    found += [f"longer than {MAX_WHOLE:,}: {len(body):,}"] if len(body) > MAX_WHOLE else []
    return found + _secrets(body, cases)


def check_json(body: str, cases: Iterable[Hostile]) -> list[str]:
    """JSON, in which every character that is not ASCII is an escape; no secret, and an end."""
    lines = [body] if body.startswith("{") and body.count("\n") < 2 else body.splitlines()
    for line in lines:
        json.loads(line)
    found = [] if body.isascii() else ["not ASCII"]
    found += [f"unmarked {char}" for char in unseen(body)]
    found += [f"longer than {MAX_WHOLE:,}: {len(body):,}"] if len(body) > MAX_WHOLE else []
    return found + _secrets(body, cases)


def check_table(text: str, cases: Iterable[Hostile]) -> list[str]:
    """Lines of our own: an agent's line feed begins none, and nothing moves a terminal's cursor."""
    states = {"STATE", "interrupted", "unknown", "in_flight", "unclear", "unreadable"}
    found = [f"a line {line[:40]!r}" for line in text.splitlines() if line.split(" ")[0] not in states]
    found += [f"unmarked {char}" for char in unseen(text)]
    found += [f"longer than {MAX_PAGE:,}"] if len(text) > MAX_PAGE else []
    return found + _secrets(text, cases)


def _secrets(text: str, cases: Iterable[Hostile]) -> list[str]:
    return [f"the secret of {case.name}" for case in cases if any(secret in text for secret in case.secrets)]


# --- the table -----------------------------------------------------------------------------------------------------------


def _printed(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def _exported(format_: str) -> str:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "history"
        call_command("export_audit", "--format", format_, "--output", str(file), stdout=StringIO(), stderr=StringIO())
        return file.read_bytes().decode()


def page(path: str, *, name: str, is_list: bool = False, is_about_decisions: bool = False) -> tuple[Exit, Exit]:
    """A page, and the piece of it that htmx fetches."""
    fetch = Asker.every_page if is_list else Asker.page

    def leaving(**headers: str) -> Leaving:
        return lambda asker, agent: fetch(asker, path.format(agent), **headers)

    return (
        Exit(name=name, leave=leaving(), check=check_page, is_list=is_list, is_about_decisions=is_about_decisions),
        Exit(
            name=f"piece of {name}",
            leave=leaving(**HTMX),
            check=check_page,
            is_list=is_list,
            is_about_decisions=is_about_decisions,
        ),
    )


EXITS: tuple[Exit, ...] = (
    *page("/", name="queue", is_list=True),
    *page("/history/", name="history", is_list=True, is_about_decisions=True),
    *page("/tools/", name="tools", is_list=True),
    *page("/insight/", name="insight", is_list=True, is_about_decisions=True),
    *page("/actions/main/{}/1/", name="action"),
    page("/actions/main/{}/3/", name="closed action")[0],
    page("/agents/main/{}/", name="agent")[0],
    replace(page("/agents/main/{}/briefing/", name="briefing")[0], check=check_whole_page),
    page("/agents/", name="agents", is_list=True)[0],
    *page("/runs/", name="runs", is_list=True),
    *page("/runs/{}/", name="run"),
    page("/approvals/", name="approvals", is_list=True)[0],
    Exit(
        name="approval", leave=lambda asker, agent: asker.page(f"/approvals/{agent.replace('-', '0')}/"), check=check_whole_page
    ),
    Exit(name="revealed", leave=lambda asker, agent: asker.revealed(f"/actions/main/{agent}/1/reveal/"), check=check_revealed),
    Exit(name="export csv", leave=lambda _asker, _: _exported("csv"), check=check_csv, is_list=True, is_about_decisions=True),
    Exit(
        name="export jsonl", leave=lambda _asker, _: _exported("jsonl"), check=check_json, is_list=True, is_about_decisions=True
    ),
    Exit(name="API list", leave=lambda asker, _: asker.json("/api/v1/actions?limit=200"), check=check_json, is_list=True),
    Exit(name="API item", leave=lambda asker, agent: asker.json(f"/api/v1/actions/main/{agent}/1"), check=check_json),
    Exit(name="API closed item", leave=lambda asker, agent: asker.json(f"/api/v1/actions/main/{agent}/3"), check=check_json),
    Exit(
        name="API audit",
        leave=lambda asker, _: asker.json("/api/v1/audit?limit=200"),
        check=check_json,
        is_list=True,
        is_about_decisions=True,
    ),
    Exit(name="API replay", leave=lambda asker, agent: asker.json(f"/api/v1/agents/main/{agent}/replay"), check=check_json),
    Exit(name="API run", leave=lambda asker, agent: asker.json(f"/api/v1/runs/{agent}"), check=check_json),
    Exit(name="API runs", leave=lambda asker, _: asker.json("/api/v1/runs?limit=200"), check=check_json, is_list=True),
    Exit(name="API approvals", leave=lambda asker, _: asker.json("/api/v1/approvals?limit=200"), check=check_json, is_list=True),
    Exit(name="open_actions", leave=lambda _asker, _: _printed("open_actions"), check=check_table, is_list=True),
    Exit(name="open_actions --json", leave=lambda _asker, _: _printed("open_actions", "--json"), check=check_json, is_list=True),
)
"""An export, a notification's subject or its body: one more line, as soon as it leaves the console."""
