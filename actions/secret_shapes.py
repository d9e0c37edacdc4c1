"""What counts as a secret: names that say so, values that look like one. Pure; `redaction.py` knows where to look for them.

Every pattern is linear in the length of a text, whatever stands in it: runs are possessive, and a run has one place where it can start.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

HIDDEN = "[redacted]"

# --- names -----------------------------------------------------------------------------------------------------------

_CHUNK = re.compile(r"[^\W_]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    """password passwd passphrase passcode pwd secret token apikey authorization cookie credential cvv cvc cvn otp totp ssn bearer jwt
    creds""".split()
)
_SECRET_PAIRS = frozenset(
    {
        ("api", "key"),
        ("private", "key"),
        ("access", "key"),
        ("secret", "key"),
        ("signing", "key"),
        ("encryption", "key"),
        ("auth", "key"),
        ("master", "key"),
        ("card", "number"),
        ("auth", "header"),
        ("session", "id"),
        ("security", "code"),
    }
)
# Words that others are glued to: `userpassword`, `privatekey`, `jsessionid`.
_GLUED = re.compile(r"(?:password|passwd|passphrase|apikey)(?!less)")
_GLUED_ENDS = tuple(
    {"".join(pair) for pair in _SECRET_PAIRS} | {"secret", "token", "credential", "passcode", "pwd", "cookie", "sessid"}
)
# `pass` alone is a word of tests and flights as well.
_PASS_OF = frozenset(
    """user db database admin root smtp imap pop ldap mysql postgres postgresql pg redis mongo mongodb rabbitmq amqp ftp sftp ssh http
    proxy login mail email auth account basic key keystore wifi sudo my app service client""".split()
)
_GLUED_PASSES = frozenset(f"{word}pass" for word in _PASS_OF)
_COUNTING = frozenset(
    """count counts limit max min total budget usage used length size number num per remaining quota left prompt completion input output
    cached reasoning""".split()
)
_NAME_CHARS = 400


def is_secret_name(name: str) -> bool:
    """Whether a name says that its value is a secret: `api_key`, `clientSecrets`, `passWord`, `privatekey`; not `key`, not `tokenizer`."""
    return _is_secret_name(name if len(name) <= _NAME_CHARS else f"{name[:200]} {name[-200:]}")


def is_secret_pair(first: str, second: str) -> bool:
    """Whether two words of a text are a secret's name together: `api key: ...`."""
    return (first.lower(), _singular(second.lower())) in _SECRET_PAIRS


def may_be_a_count(name: str) -> bool:
    """Whether a plain number under this secret name is no secret: `max_tokens`, `token_count`, `tokens`, `pass` (beside `fail`)."""
    words = _words(name[:_NAME_CHARS])
    tokens = [word for word in words if word in ("token", "tokens")]
    if words == ["pass"]:
        return True
    others = [word for word in words if word not in ("token", "tokens")]
    return bool(tokens) and ("tokens" in tokens or bool(_COUNTING.intersection(others))) and not _says_so(others)


@lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    plain = name if name.isascii() else unicodedata.normalize("NFKC", name)
    words = _words(plain)
    if _says_so(words):
        return True
    if words[-1:] == ["pass"] and (len(words) == 1 or words[-2] in _PASS_OF):
        return True
    return any(_is_glued(chunk.lower()) for chunk in _CHUNK.findall(plain))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _says_so(words: list[str]) -> bool:
    if any(word in _SECRET_WORDS or _singular(word) in _SECRET_WORDS for word in words):
        return True
    return any((first, _singular(second)) in _SECRET_PAIRS for first, second in pairwise(words))


def _is_glued(chunk: str) -> bool:
    bare = chunk.rstrip("0123456789")
    return _GLUED.search(bare) is not None or _singular(bare).endswith(_GLUED_ENDS) or bare in _GLUED_PASSES


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


# --- values ----------------------------------------------------------------------------------------------------------

_SHAPES = re.compile(
    r"""-----BEGIN\ [A-Z0-9 ]{0,40}?PRIVATE\ KEY(?:\ BLOCK)?-----.*?(?:-----END\ [A-Z0-9 ]{0,40}?PRIVATE\ KEY(?:\ BLOCK)?-----|\Z)
      # A word in plain letters after "Basic" is prose; after "Bearer" few are.
      | \b(?:Bearer\s{1,16}+(?!(?i:authentication|authorization|credentials)(?![A-Za-z0-9+/_=~]))
          |Basic\s{1,16}+(?![A-Za-z][a-z]{0,18}+(?![A-Za-z0-9+/_=~])))[A-Za-z0-9+/._~=-]{12,}+
      # Glued to something it may start anywhere, so there its first part is bounded.
      | (?:(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,512}+)
        \.[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+){0,3}+
      | (?<![A-Za-z0-9])(?:sk|pk|rk|whsec)_(?:(?:live|test)_)?+[A-Za-z0-9+/]{12,}+=*+
      | (?<![A-Za-z0-9])sk-(?=[A-Za-z_-]{0,64}+[0-9])[A-Za-z0-9_-]{16,}+
      | (?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{20,}+
      | (?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{20,}+
      | (?<![A-Za-z0-9])gl(?:pat|rt|dt|cbt)-[A-Za-z0-9_-]{16,}+
      | (?<![A-Za-z0-9])(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}+
      | (?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
      | (?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}+
      | (?<![A-Za-z0-9])ya29\.[A-Za-z0-9_-]{20,}+
      | (?<![A-Za-z0-9])(?:npm|hf|shp(?:at|ss|ca|pa)|dop_v1)_[A-Za-z0-9]{24,}+
      | (?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{24,}+
      | (?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+""",
    re.VERBOSE | re.DOTALL,
)
# No `/` in it: it ends where the next one could begin.
_AUTHORITY = re.compile(r"""(?<=://)[^\s/?\#"'<>\\]++""")
# A bank account has a checksum of its own and is shown; else cards would be seen in some of them.
_NUMBERS = re.compile(
    r"""(?P<account>(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:\ ?[A-Z0-9]{4}){2,7}(?:\ ?[A-Z0-9]{1,3})?(?![A-Za-z0-9]))
      | (?<!\d)(?<!\d\.)(?<![A-Z]{2})(?<!\d[A-Za-z])\d++(?:[ \u00a0-]\d++)*+(?P<fraction>\.\d|[A-Za-z])?""",
    re.VERBOSE,
)
_RUN = re.compile(r"\d+")
_ISSUER = re.compile(r"4|5[0-9]|6[0-9]|3[0-9]|2[2-7]")
_MAX_GROUPS = 6


def hide_shapes(text: str) -> str:
    """A text without what looks like a token, a key, a password in an address or a card number."""
    text = _SHAPES.sub(HIDDEN, text)
    text = _AUTHORITY.sub(_hide_login, text)
    return _NUMBERS.sub(_hide_cards, text)


def is_card(digits: str) -> bool:
    """13 to 19 digits of a card's issuer that pass the Luhn check (ISO/IEC 7812-1), and not all the same."""
    if not 13 <= len(digits) <= 19 or not digits.isascii() or not _ISSUER.match(digits) or len(set(digits)) == 1:
        return False
    numbers = [int(digit) for digit in reversed(digits)]
    return (sum(numbers[::2]) + sum(sum(divmod(number * 2, 10)) for number in numbers[1::2])) % 10 == 0


def _hide_login(match: re.Match[str]) -> str:
    """`user:password@host`; the last `@` counts, as it does for who opens it. A name alone is no secret."""
    login, at, host = match[0].rpartition("@")
    return f"{HIDDEN}@{host}" if at and ":" in login else match[0]


def _hide_cards(match: re.Match[str]) -> str:
    """Cards among groups of digits. A window of whole groups, so that no part of a longer number is taken for one."""
    found = match[0]
    if match["account"] and _is_account(found):
        return found
    groups = list(_RUN.finditer(found))
    if match["fraction"]:
        groups = groups[: -2 if match["fraction"][0] == "." else -1]
    kept, end, at = [], 0, 0
    while at < len(groups):
        last = _card_from(groups, at)
        if last is not None:
            kept += [found[end : groups[at].start()], HIDDEN]
            end = groups[last].end()
            at = last
        at += 1
    return "".join([*kept, found[end:]])


def _card_from(groups: list[re.Match[str]], first: int) -> int | None:
    """The last of the groups that are a card's number together with the `first`."""
    if not _ISSUER.match(groups[first][0]) and len(groups[first][0]) > 1:
        return None
    digits = ""
    # A number may be spelled digit by digit, but then nothing else stands there.
    spelled = first == 0 and 13 <= len(groups) <= 19 and all(len(group[0]) == 1 for group in groups)
    for last in range(first, len(groups) if spelled else min(len(groups), first + _MAX_GROUPS)):
        digits += groups[last][0]
        if len(digits) > 19:
            return None
        if is_card(digits) and (not spelled or last == len(groups) - 1):
            return last
    return None


def _is_account(text: str) -> bool:
    """The checksum of an IBAN (ISO 13616)."""
    bare = text.replace(" ", "")
    return int("".join(str(int(char, 36)) for char in bare[4:] + bare[:4])) % 97 == 1
