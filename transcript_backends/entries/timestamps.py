"""The ``timestamp`` of an entry, in its two forms: a number of seconds since 1970, or RFC 3339. No digit is ever lost."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal

from msgspec import Raw

from transcript_backends.errors import InvalidEntryError

ABSENT = Raw(b"null")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST, _END = -62_135_596_800, 253_402_300_800  # seconds: the years 1 to 9999, which is what both forms can tell
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,9})?")
_EXACT = Context(prec=1000)
_RFC3339 = re.compile(r'"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))?"')


def written(moment: datetime | None) -> Raw:
    """A moment, by default now, as it goes into a line: RFC 3339 in UTC, ending in ``Z``.

    Raises:
        InvalidEntryError: the moment has no time zone.
    """
    if moment is None:
        seconds, fraction = divmod(time.time_ns(), 10**9)
        text = f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{fraction:09}"
    elif moment.tzinfo is None:
        raise InvalidEntryError(f"{moment!r} has no time zone; use datetime.now(timezone.utc)", "timestamp")
    else:
        text = moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat()
    return Raw(f'"{text}Z"'.encode())


def nanoseconds(raw: Raw) -> int | None:
    """Nanoseconds since 1970, exactly; digits after the ninth are cut. None where there is no timestamp.

    Raises:
        InvalidEntryError: it is neither form, has no time zone, or is not in the years 1 to 9999.
    """
    text = bytes(raw).decode(errors="replace")
    if text == "null":
        return None
    if _NUMBER.fullmatch(text):
        seconds = Decimal(text)
        if not _FIRST <= seconds < _END:
            raise InvalidEntryError(f"timestamp {text[:40]} is no number of seconds in the years 1 to 9999", "timestamp")
        return int(_EXACT.scaleb(seconds, 9).to_integral_value("ROUND_FLOOR"))
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise InvalidEntryError(f"timestamp {text[:40]} is neither RFC 3339 nor a number of seconds", "timestamp")
    day, clock, fraction, sign, hours, minutes = found.groups()
    if sign is None and text[-2] not in "Zz":
        raise InvalidEntryError(f"timestamp {text} has no time zone; end it in Z or an offset", "timestamp")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}+00:00")
    except ValueError as error:
        raise InvalidEntryError(f"timestamp {text[:40]} is no date: {error}", "timestamp") from error
    offset = int(hours or 0) * 3600 + int(minutes or 0) * 60
    whole = (moment - _EPOCH) // timedelta(seconds=1) - (-offset if sign == "-" else offset)
    return whole * 10**9 + int(f"{fraction or '':0<9.9}")


def moment(raw: Raw) -> datetime | None:
    """The timestamp as a `datetime` in UTC, cut to microseconds; None where there is none. Raises as `nanoseconds`."""
    exact = nanoseconds(raw)
    try:
        return None if exact is None else _EPOCH + timedelta(microseconds=exact // 1000)
    except OverflowError as error:
        raise InvalidEntryError(f"timestamp {bytes(raw).decode()} is not in the years 1 to 9999", "timestamp") from error
