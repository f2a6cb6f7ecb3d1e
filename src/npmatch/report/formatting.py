"""Formatting of numbers and names; a missing number is a dash."""

from __future__ import annotations

import re

from npmatch.training.log import number

MISSING = "–"


def percent(value: object, digits: int = 1) -> str:
    """A value in per cent as `5.1 %`."""
    x = number(value)
    return MISSING if x is None else f"{x:.{digits}f} %"


def decimal(value: object, digits: int = 3) -> str:
    """A number as `0.123`."""
    x = number(value)
    return MISSING if x is None else f"{x:.{digits}f}"


def count(value: object) -> str:
    """A count as `10 000`, with narrow spaces between the thousands."""
    x = number(value)
    return MISSING if x is None else f"{round(x):,}".replace(",", "\u202f")


def duration(seconds: object) -> str:
    """A number of seconds as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    x = number(seconds)
    if x is None:
        return MISSING
    if x < 9.95:
        return f"{x:.1f} s"
    whole = round(x)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(x / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def printable(name: object) -> str:
    """A name on one line, with control characters and invalid bytes replaced by U+FFFD.

    Characters that change the writing direction are replaced too: with one, `gpj.exe` reads as `exe.jpg`.
    """
    one_line = re.sub(r"[\t\r\n\u2028\u2029]+", " ", str(name))
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "\ufffd", one_line)


def shortened(name: str, length: int = 18) -> str:
    """A name cut to `length` characters, to fit beside a point of a figure."""
    return name if len(name) <= length else name[: length - 1] + "…"
