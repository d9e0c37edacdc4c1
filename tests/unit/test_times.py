"""RFC 3339 as Recall writes and reads it, to the nanosecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.times import RELEASED, SECOND, YEAR_ONE, format_rfc3339, from_datetime, parse_rfc3339, to_datetime
from tests.unit.strategies import instants


@given(instants)
def test_every_instant_comes_back_from_its_text(instant: int) -> None:
    assert parse_rfc3339(format_rfc3339(instant)) == instant


@given(instants, instants)
def test_instants_order_as_time_does_where_texts_do_not(one: int, other: int) -> None:
    assert (one < other) == (parse_rfc3339(format_rfc3339(one)) < parse_rfc3339(format_rfc3339(other)))
    assert parse_rfc3339("2026-11-29T18:29:06.2Z") < parse_rfc3339("2026-11-29T18:29:06.219Z")


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("2026-11-29T18:29:06.219072333Z", "2026-11-29T18:29:06.219072333Z"),
        ("2026-11-29T18:29:06.210000000Z", "2026-11-29T18:29:06.21Z"),
        ("2026-11-29T18:29:06.0Z", "2026-11-29T18:29:06Z"),
        ("2026-11-29T19:29:06+01:00", "2026-11-29T18:29:06Z"),
        ("2026-11-29T13:59:06.5-04:30", "2026-11-29T18:29:06.5Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
    ],
)
def test_a_time_is_written_in_utc_without_trailing_zeros(text: str, again: str) -> None:
    assert format_rfc3339(parse_rfc3339(text)) == again


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-29T18:29:12.4",
        "2026-11-29 18:29:12Z",
        "2026-11-29T18:29:12z",
        "2026-11-29t18:29:12Z",
        "2026-11-29T18:29:12.Z",
        "2026-11-29T18:29:12.1234567890Z",
        "2026-11-29T18:29Z",
        "2026-11-29",
        "2026-02-30T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-29T24:00:00Z",
        "2026-11-29T18:60:00Z",
        "2026-11-29T18:29:60Z",
        "0000-01-01T00:00:00Z",
        "2026-11-29T18:29:12+24:00",
        "2026-11-29T18:29:12+01:60",
        "2026-11-29T18:29:12+0100",
        "9999-12-31T23:59:59-00:01",
        "0001-01-01T00:00:00+00:01",
        "２０２６-11-29T18:29:12Z",
        " 2026-11-29T18:29:12Z",
        "2026-11-29T18:29:12Z\n",
    ],
)
def test_what_recall_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an? |must be in|out of range"):
        parse_rfc3339(text)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11))])))
def test_a_datetime_comes_back_to_the_microsecond(moment: datetime) -> None:
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:
        return
    assert to_datetime(from_datetime(moment)) == expected


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(ValueError, match="without a zone"):
        from_datetime(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(("instant", "year"), [(10**30, 9999), (-(10**30), 1)])
def test_what_a_datetime_cannot_hold_is_shown_as_the_nearest(instant: int, year: int) -> None:
    assert to_datetime(instant).year == year


def test_the_landmarks() -> None:
    assert format_rfc3339(RELEASED) == "1970-01-01T00:00:00Z"
    assert format_rfc3339(YEAR_ONE) == "0001-01-01T00:00:00Z"
    assert format_rfc3339(RELEASED - 1) == "1969-12-31T23:59:59.999999999Z"
    assert parse_rfc3339("1970-01-01T00:00:01Z") == SECOND
