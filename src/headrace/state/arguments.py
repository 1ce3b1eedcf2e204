"""Arguments of reads and subscriptions: each check names the argument that no call accepts."""

from __future__ import annotations

import re

from headrace.errors import BadArgument

__all__ = ["check_heartbeat", "check_limit", "check_offset", "check_staleness", "place_after"]

# What fits into the messages between nodes.
_MAX_WHOLE = (1 << 63) - 1
_OFFSET = re.compile(r"-?[0-9]{1,18}")


def check_limit(limit: object) -> None:
    """Refuse a number of pairs that no page has. Raises BadArgument."""
    if type(limit) is not int or not 1 <= limit <= _MAX_WHOLE:
        raise BadArgument("limit", limit, "a page has at least one pair: it must be a whole number from 1 on")


def check_offset(name: str, offset: object) -> None:
    """Refuse what is no offset; -1 is the one before the first record. Raises BadArgument."""
    if type(offset) is not int or not -1 <= offset <= _MAX_WHOLE:
        raise BadArgument(name, offset, "it must be a whole number that a read or a change came with")


def check_staleness(max_staleness_s: object) -> None:
    """Refuse a bound that is no age: text, NaN, or below 0. Infinity allows every age. Raises BadArgument."""
    if max_staleness_s is not None and not _is_seconds(max_staleness_s, least=0):
        raise BadArgument("max_staleness_s", max_staleness_s, "it must be a number of seconds, 0 or more")


def check_heartbeat(heartbeat_s: object) -> None:
    """Refuse a time between heartbeats that is none. Raises BadArgument."""
    if heartbeat_s is not None and (heartbeat_s == 0 or not _is_seconds(heartbeat_s, least=0)):
        raise BadArgument("heartbeat_s", heartbeat_s, "it must be a number of seconds above 0")


def place_after(after: object) -> tuple[str | None, int | None]:
    """Return the topic's id, if it is known, and the offset of what a subscriber resumes after. Raises BadArgument."""
    if after is None:
        return None, None
    if isinstance(after, str):
        topic_id, _, offset = after.rpartition(":")
        if _OFFSET.fullmatch(offset):
            return topic_id, int(offset)
    elif type(after) is int and -1 <= after <= _MAX_WHOLE:
        return None, after
    shown = after[:60] if isinstance(after, str) else after
    raise BadArgument("after", shown, "it must be an offset, or the token of a change")


def _is_seconds(value: object, *, least: int) -> bool:
    """Return True for a number from `least` on that a message can carry."""
    if type(value) is int:
        return least <= value <= _MAX_WHOLE
    return type(value) is float and value >= least
