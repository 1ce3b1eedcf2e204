"""Durations as Scala writes them ("1 day", "90 seconds"), because that is what stands in records and tables."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.errors import BadArgument

__all__ = ["duration_of", "duration_text"]

_UNITS_MS = {
    "d": 86_400_000,
    "h": 3_600_000,
    "min": 60_000,
    "s": 1000,
    "ms": 1,
    "us": 0.001,
    "ns": 0.000001,
}
_NAMES = {
    "d": ("d", "day"),
    "h": ("h", "hr", "hour"),
    "min": ("m", "min", "minute"),
    "s": ("s", "sec", "second"),
    "ms": ("ms", "milli", "millisecond"),
    "us": ("µs", "us", "micro", "microsecond"),
    "ns": ("ns", "nano", "nanosecond"),
}
_MS_BY_NAME = {name: _UNITS_MS[unit] for unit, names in _NAMES.items() for n in names for name in (n, f"{n}s")}
_WRITTEN = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*")


def duration_of(text: str) -> timedelta:
    """Parse "1 day", "10 seconds", "5min"."""
    match = _TEXT.fullmatch(text)
    if match is None or match[2] not in _MS_BY_NAME:
        raise BadArgument("duration", text, "it is a number and a unit, as in '1 day' or '90 seconds'")
    try:
        return timedelta(milliseconds=float(match[1]) * _MS_BY_NAME[match[2]])
    except OverflowError as error:
        raise BadArgument("duration", text, f"it must not be longer than {timedelta.max.days} days") from error


def duration_text(duration: timedelta) -> str:
    """Write a duration in the largest unit that holds it exactly."""
    total_ms = duration // timedelta(milliseconds=1)
    if total_ms < 1:
        raise BadArgument("duration", str(duration), "it must be at least a millisecond")
    name, unit_ms = next((name, unit_ms) for name, unit_ms in _WRITTEN if total_ms % unit_ms == 0)
    count = total_ms // unit_ms
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
