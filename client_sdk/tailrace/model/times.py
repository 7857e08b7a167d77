"""Converts times between datetimes, text and the microseconds since 1970 UTC of the wire. Pure."""

from __future__ import annotations

import datetime
import re

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"-(\d{1,9})([smhd])", re.ASCII)


def parse_span(text: str) -> float:
    """Returns the seconds of a span, "90d" or "15m". Units are s, m, h and d. Raises ValueError for any other text."""
    span = _SPAN.fullmatch(f"-{text}")
    if span is None:
        raise ValueError(f"{text!r} is no span of time: write 90d, or 15m (units s, m, h, d)")
    return datetime.timedelta(**{_UNITS[span[2]]: int(span[1])}).total_seconds()


def to_us(moment: datetime.datetime, name: str) -> int:
    """Returns microseconds since 1970 UTC, 0 before that. Raises ValueError, with ``name``, without a time zone."""
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(
            f"{name} is {moment!r}, which has no time zone: use an aware datetime, as datetime.now(timezone.utc), or "
            ".astimezone() if it is local time"
        )
    return max((moment - _EPOCH) // _MICROSECOND, 0)


def to_text(us: int) -> str:
    """Returns a timestamp in ISO 8601, in UTC; the number itself if it is after the year 9999."""
    try:
        return (_EPOCH + us * _MICROSECOND).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{us} µs"


def looks_like_time(text: str) -> bool:
    """Tells whether ``text`` begins as a year or a span, for `parse_time`. A positions string never does."""
    return text[:1].isdecimal() or text[:1] == "-"


def parse_time(text: str, now: datetime.datetime | None = None) -> datetime.datetime:
    """Parses ISO 8601 with a zone, "2026-11-21T10:00:00Z", or a span before ``now``, "-15m".

    Units are s, m, h and d. ``now`` is this machine's clock by default. Raises ValueError for any other text.
    """
    span = _SPAN.fullmatch(text)
    if span is not None:
        before = datetime.timedelta(**{_UNITS[span[2]]: int(span[1])})
        try:
            return (datetime.datetime.now(datetime.UTC) if now is None else now) - before
        except OverflowError:
            raise ValueError(f"{text!r} is before the year 1") from None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 2026-11-21T10:00:00Z, or -15m (units s, m, h, d)") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: add Z, or one like +01:00")
    return moment
