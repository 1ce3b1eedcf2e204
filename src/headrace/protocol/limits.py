"""Limits of a journal that hold on every tier, and checks of the arguments that callers give.

Everything is checked before anything is written: a record that the log accepts and a store refuses can't be undone.

The limits of ids and tags are the store's (headrace.store.limits). In Cassandra a clustering key and the key of a map
hold at most 65 535 bytes, and a row must fit into half of a commit log segment (16 MiB) and into a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from headrace.errors import BadArgument
from headrace.model import MAX_SEQ_NR, Event
from headrace.protocol.actions import duration_of, duration_text
from headrace.store import MAX_ID_BYTES, MAX_TAG_BYTES

__all__ = [
    "MAX_EVENTS",
    "MAX_EXPIRY",
    "MAX_HEADERS",
    "MAX_HEADERS_BYTES",
    "MAX_ID_BYTES",
    "MAX_METADATA_BYTES",
    "MAX_TAGS",
    "MAX_TAG_BYTES",
    "MAX_TEXT_BYTES",
    "MAX_TIMESTAMP_MS",
    "MAX_VALUE_BYTES",
    "UNCHECKED",
    "Expected",
    "Unchecked",
    "check_count",
    "check_events",
    "check_expected",
    "check_expiry",
    "check_headers",
    "check_id",
    "check_option",
    "check_payloads",
    "check_seq_nr",
    "check_size",
    "check_tag",
    "check_text",
    "check_timestamp",
    "is_utf8",
]

MAX_TEXT_BYTES: Final = 32_767
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
MAX_HEADERS_BYTES: Final = 1024 * 1024
MAX_METADATA_BYTES: Final = 1024 * 1024  # each row of an append holds it
MAX_EVENTS: Final = 100_000
MAX_TAGS: Final = 1_000
MAX_HEADERS: Final = 1_000
MAX_EXPIRY: Final = timedelta(days=106_751)  # JVM services read it into a Scala duration: nanoseconds in 64 bits
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999  # the end of the year 9999: drivers know no later time

_SHOWN = 60


class Unchecked(Enum):
    """The type of `UNCHECKED`."""

    UNCHECKED = "unchecked"

    def __repr__(self) -> str:
        return "UNCHECKED"


# The default of `append(expected=…)`. It can't be None: `pointer` returns that for a journal that does not exist, and
# `expected=await journal.pointer(id)` must be safe.
UNCHECKED: Final = Unchecked.UNCHECKED

Expected: TypeAlias = int | Unchecked | None


def check_id(id_: object) -> str:
    """Return the id if it can be a journal's. Raises BadArgument."""
    if id_ == "":
        raise BadArgument("id", id_, "a journal needs an id, of text that UTF-8 can carry")
    return check_text("id", id_, least=1, most=MAX_ID_BYTES)


def check_tag(tag: object, name: str = "tag") -> str:
    """Return the tag if an event can have it. Raises BadArgument."""
    text = check_text(name, tag, least=1, most=MAX_TAG_BYTES)
    if text[0] == "\0":
        raise BadArgument(name, _shown(text), "tags that begin with a NUL are Headrace's own")
    return text


def check_events(events: object) -> tuple[Event, ...]:
    """Return an append's events. Raises BadArgument if there are none or too many, or their numbers do not rise."""
    given = events if type(events) is tuple or type(events) is list else _listed(events)
    if not given:
        raise BadArgument("events", [], "an append holds at least one event")
    if len(given) > MAX_EVENTS:
        raise BadArgument("events", f"{len(given)} events", f"an append holds at most {MAX_EVENTS}; split it")
    checked: list[Event] = []
    before = 0
    for event in given:
        if not isinstance(event, Event):
            raise BadArgument("events", _shown(event), "they are Events, as in [Event(1, payload)]")
        seq_nr = event.seq_nr
        if type(seq_nr) is not int or not before < seq_nr <= MAX_SEQ_NR:
            raise _bad_number(seq_nr, before)
        before = seq_nr
        checked.append(event if event.tags == () else _with_checked_tags(event))
    return tuple(checked)


def check_payloads(payloads: object) -> list[object]:
    """Return the payloads of an append that numbers them. Raises BadArgument for none, and for events with numbers."""
    if isinstance(payloads, str | bytes | Mapping | Event) or not isinstance(payloads, Iterable):
        raise BadArgument("payloads", _shown(payloads), "they are a list, as in [{'deposited': 20}]")
    given = list(payloads)
    if not given:
        raise BadArgument("payloads", [], "an append holds at least one event")
    if any(isinstance(payload, Event) for payload in given):
        raise BadArgument("payloads", "Event", "events have numbers; give their payloads, or use append")
    return given


def check_expected(expected: object) -> int | None:
    """Return the seq_nr that a journal must be at, or 0 if there must be no journal; None for an unchecked append."""
    if expected is UNCHECKED:
        return None
    if expected is None:
        return 0
    if type(expected) is not int or not 0 <= expected <= MAX_SEQ_NR:
        rule = f"it must be a seq_nr from 0 to {MAX_SEQ_NR}, None where there must be no journal, or UNCHECKED"
        raise BadArgument("expected", _shown(expected), rule)
    return expected


def check_seq_nr(name: str, seq_nr: object, *, most: int | None = MAX_SEQ_NR) -> int:
    """Return a seq_nr of at most `most`; with None it may be higher than any that can exist."""
    if type(seq_nr) is not int or seq_nr < 1 or (most is not None and seq_nr > most):
        rule = "numbers start at 1" if most is None else f"numbers go from 1 to {most}"
        raise BadArgument(name, _shown(seq_nr), rule)
    return seq_nr


def check_timestamp(name: str, timestamp_ms: object) -> int:
    """Return a time in milliseconds since 1970."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise BadArgument(name, _shown(timestamp_ms), f"it must be milliseconds since 1970, at most {MAX_TIMESTAMP_MS}")
    return timestamp_ms


def check_count(name: str, count: object) -> int:
    """Return a count of at least 1."""
    if type(count) is not int or count < 1:
        raise BadArgument(name, _shown(count), "it must be a number, at least 1")
    return count


def check_text(name: str, value: object, *, least: int = 0, most: int = MAX_TEXT_BYTES) -> str:
    """Return a text that a record can carry, from `least` to `most` bytes, as a plain str."""
    if not isinstance(value, str) or not is_utf8(value):
        raise BadArgument(name, _shown(value), "it must be text that UTF-8 can carry")
    if len(value) < least:
        raise BadArgument(name, value, "it must not be empty")
    if len(value) * 4 > most and (size := len(value.encode())) > most:
        raise BadArgument(name, _shown(value), f"it takes {size} bytes, and all tiers can store {most}")
    return value if type(value) is str else str.__str__(value)


def check_option(name: str, value: object) -> str | None:
    """Return a text, or None if it is absent."""
    return None if value is None else check_text(name, value)


def check_headers(headers: object) -> dict[str, str]:
    """Return the application's headers of an append, text to text."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise BadArgument("headers", _shown(headers), "they are a mapping from text to text")
    if len(headers) > MAX_HEADERS:
        raise BadArgument("headers", f"{len(headers)} headers", f"an append has at most {MAX_HEADERS}")
    checked = {}
    for name, value in headers.items():
        named = check_text("header", name, least=1)
        checked[named] = check_text(f"header {named!r}", value, most=MAX_HEADERS_BYTES)
    return checked


def check_expiry(expire_after: object) -> str | None:
    """Return how long the journal lives after the append, in the form that the record holds."""
    if expire_after is None:
        return None
    if not isinstance(expire_after, timedelta | str):
        raise BadArgument("expire_after", _shown(expire_after), "it must be a timedelta, or text as in '1 day'")
    duration = duration_of(expire_after) if isinstance(expire_after, str) else expire_after
    if duration > MAX_EXPIRY:
        raise BadArgument("expire_after", str(expire_after), f"it must not be longer than {MAX_EXPIRY.days} days")
    return duration_text(duration)


def check_size(name: str, size_bytes: int, most: int) -> None:
    """Raise BadArgument for what is larger than every tier can store."""
    if size_bytes > most:
        raise BadArgument(name, f"{size_bytes} bytes", f"all tiers can store {most}; split it, or keep it elsewhere")


def is_utf8(text: str) -> bool:
    """Return True if UTF-8 can carry the text: it can't if it holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(events: object) -> list[object]:
    if isinstance(events, str | bytes | Mapping | Event) or not isinstance(events, Iterable):
        raise BadArgument("events", _shown(events), "they are a list of Events, as in [Event(1, payload)]")
    return list(events)


def _bad_number(seq_nr: object, before: int) -> BadArgument:
    if type(seq_nr) is not int or not 1 <= seq_nr <= MAX_SEQ_NR:
        return BadArgument("seq_nr", _shown(seq_nr), f"numbers go from 1 to {MAX_SEQ_NR}")
    return BadArgument("seq_nr", seq_nr, f"it must be above {before}, the number before it in the append")


def _with_checked_tags(event: Event) -> Event:
    """Return the event with plain text tags. What is not a list of texts would hold the journal later."""
    tags: object = event.tags
    if not isinstance(tags, tuple | list):
        raise BadArgument("tags", _shown(tags), "they are a tuple of texts, as in tags=('vip',)")
    if len(tags) > MAX_TAGS:
        raise BadArgument(f"tags of event {event.seq_nr}", f"{len(tags)} tags", f"an event has at most {MAX_TAGS}")
    checked = tuple(check_tag(tag, f"tag of event {event.seq_nr}") for tag in tags)
    return event if checked == tags and _are_plain(tags) else msgspec.structs.replace(event, tags=checked)


def _are_plain(tags: tuple[object, ...] | list[object]) -> bool:
    return type(tags) is tuple and all(type(tag) is str for tag in tags)


def _shown(value: object) -> object:
    """Return a value as an error shows it: the start of a long one, and only the type of what is not a plain value."""
    if isinstance(value, str) and len(value) > _SHOWN:
        return value[:_SHOWN] + "…"
    if isinstance(value, bytes) and len(value) > _SHOWN:
        return value[:_SHOWN] + b"..."
    is_plain = value is None or isinstance(value, str | bytes | float)
    if is_plain or (isinstance(value, int) and value.bit_length() < _SHOWN * 3):
        return value
    return type(value).__name__
