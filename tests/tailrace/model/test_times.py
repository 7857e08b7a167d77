import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.times import looks_like_time, parse_time, to_text, to_us

UTC = datetime.UTC
NOW = datetime.datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


@given(us=st.integers(0, 253_402_300_799_999_999))
def test_microseconds_and_text_and_back(us):
    moment = parse_time(to_text(us))
    assert to_us(moment, "since") == us
    assert to_us(moment.astimezone(datetime.timezone(datetime.timedelta(hours=-7))), "since") == us


def test_what_is_out_of_range():
    assert to_text(2**63 - 1) == "9223372036854775807 µs"
    assert to_us(datetime.datetime(1, 1, 1, tzinfo=UTC), "since") == 0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T10:00:00Z", NOW),
        ("2026-11-21T11:00+01:00", NOW),
        ("2026-11-21 10:00:00.000250Z", NOW + datetime.timedelta(microseconds=250)),
        ("-90s", NOW - datetime.timedelta(seconds=90)),
        ("-15m", NOW - datetime.timedelta(minutes=15)),
        ("-2h", NOW - datetime.timedelta(hours=2)),
        ("-3d", NOW - datetime.timedelta(days=3)),
    ],
)
def test_times_that_people_write(text, moment):
    assert looks_like_time(text)
    assert parse_time(text, NOW) == moment


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-11-21T10:00:00", "no time zone: add Z"),
        ("2026-11-21", "no time zone"),
        ("-15", "no time: write 2026"),
        ("-15x", "no time: write 2026"),
        ("-999999999d", "before the year 1"),
        ("15m", "no time: write 2026"),
        ("", "no time"),
    ],
)
def test_what_is_no_time(text, said):
    with pytest.raises(ValueError, match=said):
        parse_time(text, NOW)


def test_a_span_is_before_now():
    assert abs(parse_time("-0s") - datetime.datetime.now(UTC)) < datetime.timedelta(minutes=1)


@pytest.mark.parametrize("zone", [None, type("Undecided", (datetime.tzinfo,), {"utcoffset": lambda self, dt: None})()])
def test_a_naive_time_is_refused(zone):
    with pytest.raises(ValueError, match=r"until is .*no time zone: use an aware datetime"):
        to_us(datetime.datetime(2026, 11, 21, tzinfo=zone), "until")
