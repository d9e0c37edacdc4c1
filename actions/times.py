"""Instants as integer nanoseconds since 1970 in UTC, and their RFC 3339 text as Recall writes it.

Recall stores nine fractional digits; a `datetime` keeps six and would order two actions of the same microsecond at random.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

Instant = int
"""Nanoseconds since 1970-01-01T00:00:00Z; negative before. Only the store's clock decides about leases."""

RELEASED: Instant = 0
"""The expiry that a release writes: exactly 1970-01-01T00:00:00Z."""

SECOND: Instant = 1_000_000_000
YEAR_ONE: Instant = -62_135_596_800 * SECOND
"""What Recall reads where the stored time is null."""

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999 in seconds since 1970: what an RFC 3339 text can say, and a stored time must stay within."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_EPOCH_ORDINAL = _EPOCH.toordinal()


def parse_rfc3339(text: str) -> Instant:
    """Read a stored time: 0 to 9 fractional digits, `Z` or a numeric offset (recall-records 3.2).

    Raises:
        ValueError: no zone, a space instead of `T`, an empty string, a day that does not exist. Recall refuses those too.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time with a zone: {text[:60]!r}")
    second, fraction, sign, off_hours, off_minutes = match.groups()
    moment = datetime.fromisoformat(second)
    seconds = (moment.toordinal() - _EPOCH_ORDINAL) * 86_400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    if sign:
        if int(off_hours) > 23 or int(off_minutes) > 59:
            raise ValueError(f"not an RFC 3339 offset: {text[:60]!r}")
        offset = int(off_hours) * 3600 + int(off_minutes) * 60
        seconds -= offset if sign == "+" else -offset
        if not FIRST_SECOND <= seconds <= LAST_SECOND:
            raise ValueError(f"not a time between the years 1 and 9999: {text[:60]!r}")
    return seconds * SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)


def format_rfc3339(instant: Instant) -> str:
    """Write a time as Recall does: UTC, `Z`, up to nine digits, trailing zeros dropped."""
    seconds, nanos = divmod(instant, SECOND)
    whole = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]  # without its offset, which is none
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{whole}{fraction}Z"


def from_datetime(moment: datetime) -> Instant:
    """The instant of an aware datetime (microseconds).

    Raises:
        ValueError: the datetime is naive; its zone would be a guess.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a time without a zone: {moment.isoformat()}")
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def to_datetime(instant: Instant) -> datetime:
    """The UTC datetime of an instant, cut to microseconds; for screens, never for comparing.

    Instants beyond year 9999 or before year 1 are shown as the nearest that a datetime can hold.
    """
    try:
        return _EPOCH + timedelta(microseconds=instant // 1000)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if instant > 0 else datetime.min.replace(tzinfo=UTC)
