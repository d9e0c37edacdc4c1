"""A tool's name in an address and back: names may hold anything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.addresses import parse_tool, tool_slug

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|~[A-Za-z0-9_-]+", re.ASCII)


@given(st.text(st.characters(), min_size=1, max_size=128))
def test_every_name_has_one_address_that_leads_back_to_it(tool: str) -> None:
    slug = tool_slug(tool)

    assert _SAFE.fullmatch(slug)
    assert parse_tool(slug) == tool


@pytest.mark.parametrize("tool", ["..", ".", "~", "~abc", "a/b", "\ud800", "", " send_email"])
def test_names_that_a_browser_would_change_are_not_written_as_they_are(tool: str) -> None:
    assert tool_slug(tool).startswith("~")


@pytest.mark.parametrize("slug", ["~", "~c2VuZF9lbWFpbA", "~!!", "~a", "~_w"])
def test_an_address_that_we_do_not_write_names_no_tool(slug: str) -> None:
    assert parse_tool(slug) == ""
