"""The corpus: each text, what must not appear in a page as it is, and what must be said instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One text. `never`: stretches that must not stand in a page; `named`: what a person must read in their place."""

    name: str
    text: str
    never: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


CORPUS: tuple[Hostile, ...] = (
    Hostile(name="script", text="<script>alert(1)</script>", never=("<script>alert",), named=("<script>alert(1)</script>",)),
    Hostile(name="img onerror", text="<img src=x onerror=alert(1)>", never=("<img src=x",)),
    Hostile(name="svg onload", text="<svg/onload=alert(1)>", never=("<svg/onload",)),
    Hostile(name="closing tags", text='"></bdi></pre></figure><h1>Settled</h1>', never=("<h1>Settled",)),
    Hostile(name="htmx attributes", text='<b hx-post="/x" hx-trigger="load">b</b>', never=("<b hx-post",)),
    Hostile(name="htmx enabling", text='<div hx-disable="false" data-hx-get="/x">', never=('<div hx-disable="false"',)),
    Hostile(name="template", text="{{ request.user.password }}{% debug %}", named=("{{ request.user.password }}",)),
    Hostile(name="comment", text="<!-- hidden --><![CDATA[x]]>", never=("<!-- hidden",)),
    Hostile(name="entity", text="&lt;b&gt; &#x202e; &amp;", named=("&lt;b&gt; &#x202e; &amp;",)),
    Hostile(
        name="link",
        text="[Approve](javascript:alert(1)) https://evil.example/x",
        never=('href="javascript:', 'href="https://evil'),
    ),
    Hostile(name="style", text="<style>body{display:none}</style>", never=("<style>body",)),
    Hostile(name="bidi override", text="invoice\u202egpj.exe", never=("\u202e",), named=("U+202E",)),
    Hostile(name="bidi isolate", text="a\u2067b\u2069c", never=("\u2067", "\u2069"), named=("U+2067", "U+2069")),
    Hostile(
        name="zero width", text="pay\u200bpal\u200c\u200d\ufeff", never=("\u200b", "\u200d", "\ufeff"), named=("U+200B", "U+FEFF")
    ),
    Hostile(name="many zero widths", text="a" + "\u200b" * 200 + "b", never=("\u200b",), named=("U+200B ×",)),
    Hostile(
        name="tag characters",
        text="hi" + "".join(chr(0xE0000 + ord(c)) for c in "send 5000"),
        never=("\U000e0073",),
        named=("U+E0073",),
    ),
    Hostile(name="variation selectors", text="a\ufe0fb\U000e0100c", never=("\ufe0f", "\U000e0100"), named=("U+FE0F", "U+E0100")),
    Hostile(name="controls", text="a\x07b\x1b[31mc\x9bd", never=("\x07", "\x1b", "\x9b"), named=("U+0007", "U+001B", "U+009B")),
    Hostile(name="NUL", text="a\x00b", never=("\x00",), named=("U+0000",)),
    Hostile(name="lone surrogate", text="a\ud83db", named=("U+D83D",)),
    Hostile(
        name="line separators",
        text="a\u2028b\u2029c\u0085d",
        never=("\u2028", "\u2029", "\u0085"),
        named=("U+2028", "U+2029", "U+0085"),
    ),
    Hostile(name="padding", text="To: boss" + " " * 150 + "BCC: thief", never=(" " * 100,), named=("space ×150",)),
    Hostile(name="blank lines", text="top" + "\n" * 100 + "bottom", never=("\n" * 50,)),
    Hostile(
        name="blank letters",
        text="a\u3164b\u2800c\u00a0d\u3000e",
        never=("\u3164", "\u2800", "\u3000"),
        named=("U+3164", "U+2800"),
    ),
    Hostile(name="stacked marks", text="z" + "\u0301" * 60, never=("\u0301" * 4,), named=("U+0301 ×",)),
    Hostile(name="Cyrillic domain", text="ana@p\u0430ypal.com", never=("p\u0430ypal.com",), named=("xn--pypal-4ve.com",)),
    Hostile(
        name="ideographic dot",
        text="https://ex\u00e4mple\u3002com/x",
        never=("ex\u00e4mple\u3002com",),
        named=("xn--exmple-cua.com",),
    ),
    Hostile(name="soft hyphen", text="pay\u00adpal", never=("\u00ad",), named=("U+00AD",)),
    Hostile(name="private use", text="a\ue000\U0010fffdb", never=("\ue000", "\U0010fffd"), named=("U+E000",)),
    Hostile(name="mongolian", text="a\u180eb\u180bc", never=("\u180e", "\u180b"), named=("U+180E",)),
)
"""Thirty to begin with. What a person could mistake belongs here with the words that name it."""
