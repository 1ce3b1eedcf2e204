"""Timers: commands to an aggregate at a later time, kept in the record of the aggregate that set them.

A timer is set, replaced and cancelled in the transaction of the command that did it, and it leaves the record in the
transaction of what it fired. So there is nothing to be remembered about it anywhere else. Decisions only, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from headrace.errors import BadArgument, NotReadable
from headrace.state import Duration, ttl_in_ms

__all__ = [
    "TIMERS_INDEX",
    "Cancel",
    "RecordTimers",
    "Schedule",
    "Timer",
    "Timers",
    "check_timer_name",
    "due_at_ms",
    "first_due",
    "replaced",
]

TIMERS_INDEX = "timers"
"""The index of the state topic by which an owner finds what is due."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NAME = 256
_FIRST_DELAY_MS = 60_000
_LAST_DELAY_MS = 86_400_000


class Timer(msgspec.Struct, frozen=True, array_like=True):
    """A command that is to be handled at or after `due_ms`; for another aggregate if one is named.

    `delays` counts how often it was put off, because owners ended while they handled it, or its state can't be read.
    """

    name: str
    due_ms: int
    kind: str
    data: bytes
    aggregate: str | None = None
    delays: int = 0

    def put_off(self, now_ms: int) -> Timer:
        """Return the timer with a later time: a minute, then four times as long each time, a day at most."""
        delay_ms = min(_FIRST_DELAY_MS * 4 ** min(self.delays, 10), _LAST_DELAY_MS)
        return msgspec.structs.replace(self, due_ms=now_ms + delay_ms, delays=self.delays + 1)


Timers: TypeAlias = tuple[Timer, ...]


class Schedule(msgspec.Struct, frozen=True):
    """What a handler returns beside its events to set a timer: see `CommandContext.schedule`."""

    command: Any
    at: datetime | None = None
    after: Duration | None = None
    name: str | None = None
    aggregate: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """What a handler returns beside its events to cancel the timer of a name, if there is one."""

    name: str


def due_at_ms(at: datetime | None, after: Duration | None, *, now_ms: int) -> int:
    """Return when a timer is due. What lies in the past is due at once. Raises BadArgument."""
    if (at is None) == (after is None):
        raise BadArgument("timer", None, "it must have either a time (at=) or a delay (after=)")
    if after is not None:
        try:
            delay_ms = ttl_in_ms(after)
        except BadArgument as error:
            raise BadArgument("after", after, error.rule) from error
        if delay_ms < 0:
            raise BadArgument("after", after, "a delay is 0 or more")
        return now_ms + delay_ms
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise BadArgument("at", at, "it must be a datetime with a time zone")
    # Rounded up: a timer never fires before its time.
    return max(0, -((_EPOCH - at) // timedelta(milliseconds=1)))


def check_timer_name(name: object) -> str:
    """Return the name if a timer can have it. Raises BadArgument."""
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME:
        raise BadArgument("name", name, f"a timer's name is a text of 1 to {_MAX_NAME} characters")
    return name


def replaced(timers: Timers, name: str, timer: Timer | None = None) -> Timers:
    """Return the timers without the one of this name, and with another in its place."""
    others = tuple(each for each in timers if each.name != name)
    return others if timer is None else (*others, timer)


def first_due(timers: Sequence[Timer]) -> Timer | None:
    """Return the timer that is due first; of several at the same time, the one that was set first."""
    return min(timers, key=lambda each: each.due_ms, default=None)


class _TimersOnly(msgspec.Struct, frozen=True, array_like=True):
    """The record of an aggregate, of which only the timers are decoded."""

    format: int
    version: int
    state: msgspec.Raw
    ids: msgspec.Raw = msgspec.Raw()
    forgotten: msgspec.Raw = msgspec.Raw()
    timers: Timers = ()


_decode = msgspec.msgpack.Decoder(_TimersOnly).decode


class RecordTimers:
    """The values of the state topic as its index sees them: the timers of a record, and nothing else of it."""

    async def open(self) -> None:
        """There is nothing to get ready."""

    async def prepare(self, data: bytes) -> None:
        """There is nothing to get ready: the state inside stays as it is."""

    def encode(self, value: Timers) -> bytes:
        """Refuse: records are encoded as a whole."""
        raise BadArgument("timers", len(value), "they are written with the record of their aggregate")

    def decode(self, data: bytes) -> Timers:
        """Return the timers of a record. Raises NotReadable."""
        try:
            return _decode(data).timers
        except msgspec.MsgspecError as error:
            raise NotReadable("the record of an aggregate", repr(data[:40]), str(error)) from error

    @staticmethod
    def due_times(timers: Timers) -> list[int]:
        """Return what the index finds a record by."""
        return sorted({each.due_ms for each in timers}) if timers else []
