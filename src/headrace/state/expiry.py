"""Times to live: how they are written down, and when a value is due."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from headrace.errors import BadArgument

__all__ = ["NEVER", "Duration", "expires_at", "is_due", "ttl_in_ms"]

# Seconds, a timedelta, or a text such as "90s", "15m", "12h", "30d".
Duration: TypeAlias = float | timedelta | str

NEVER = 0

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_MAX_MS = 1 << 53


def ttl_in_ms(ttl: Duration) -> int:
    """Return a time to live in milliseconds; 0 or less is due at once. Raises BadArgument."""
    if isinstance(ttl, timedelta):
        found = ttl / timedelta(milliseconds=1)
    elif isinstance(ttl, str):
        match = _TEXT.fullmatch(ttl.strip())
        if match is None:
            raise BadArgument("ttl", ttl, "it must be a number with a unit: ms, s, m, h or d, as in '30d'")
        found = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(ttl, int | float) and not isinstance(ttl, bool):
        found = ttl * 1000
    else:
        raise BadArgument("ttl", ttl, "it must be seconds, a timedelta, or a text such as '30d'")
    if not -_MAX_MS < found < _MAX_MS:
        raise BadArgument("ttl", ttl, f"it must be shorter than {_MAX_MS} ms")
    return round(found)


def expires_at(timestamp_ms: int, ttl_ms: int | None) -> int:
    """Return when a value that was written then is due; NEVER without a time to live."""
    return NEVER if ttl_ms is None else max(1, timestamp_ms + ttl_ms)


def is_due(expires_ms: int, now_ms: int) -> bool:
    """Return True if a value must not be shown any more."""
    return expires_ms != NEVER and expires_ms <= now_ms
