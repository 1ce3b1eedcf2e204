"""The compacted topic that a cluster's nodes share when the log is their coordinator.

    beat/<id>        [incarnation, joined, address], again and again: `joined` is the offset of the first one
    member/<id>      [incarnation, facts]
    request/<key>    what operators asked for
    plan             what the leader proposed last; its version is its offset + 1

Of several records of a key the last one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec

from headrace.errors import HeadraceError, OffsetOutOfRange, Unavailable, Unreachable, UnreadableRecord
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Clock

__all__ = ["Beat", "ClusterTopic", "MemberRecord", "Seen"]

T = TypeVar("T")

_log = get_logger(__name__)
_RETRY_S = 0.2
# Beats are many and small; brokers compact closed segments only, and a node that starts reads what is left.
_SEGMENTS = {"segment.ms": "600000", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.1"}
CONFIG = TopicConfig(cleanup=Cleanup.COMPACT, tombstone_retention_ms=600_000, extra=_SEGMENTS)


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """A sign of life; `joined` is -1 in an incarnation's first one."""

    incarnation: str
    joined: int
    address: str


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a member tells of itself."""

    incarnation: str
    facts: bytes


class Seen(msgspec.Struct):
    """The last beat of a member, where it is, and for how long the member has been silent since."""

    beat: Beat
    offset: int
    silent_s: float = 0.0


_beats = msgspec.msgpack.Decoder(Beat)
_records = msgspec.msgpack.Decoder(MemberRecord)


class ClusterTopic:
    """What the topic holds, as far as it was read; `follow` reads on."""

    def __init__(self, log: Log, topic: str, *, session_s: float, clock: Clock) -> None:
        self.at = TopicPartition(topic, 0)
        self.beats: dict[str, Seen] = {}
        self.records: dict[str, MemberRecord] = {}
        self.requests: dict[str, bytes] = {}
        self.plan: tuple[int, bytes | None] = (0, None)
        self.failure: HeadraceError | None = None
        self.changed = asyncio.Event()
        self.on_beat: Callable[[str, Beat], None] = lambda member, beat: None
        self._log = log
        self._session_s = session_s
        self._clock = clock
        self._next_offset = 0
        self._heard_s = self._looked_s = clock.monotonic_s()
        self._advanced = asyncio.Condition()

    async def make(self) -> None:
        """Make the topic, or configure it."""
        await ensure_topic(self._log.admin, self.at.topic, partitions=1, config=CONFIG)

    async def follow(self) -> None:
        """Read the topic, and go on after every outage."""
        while True:
            try:
                async for batch in self._log.read(self.at, self._next_offset):
                    self.failure = None
                    await self._take(batch.records, batch.next_offset)
            except OffsetOutOfRange as error:  # the topic was made again
                self.beats, self.records, self.requests, self.plan = {}, {}, {}, (0, None)
                self._next_offset = error.start
            except UnreadableRecord as error:
                _log.warning("a record of the cluster's topic can't be read", reason=str(error))
                self._next_offset = error.offset + 1
            except HeadraceError as error:
                self.failure = error
                self.changed.set()
                await asyncio.sleep(_RETRY_S)

    async def put(self, key: str, value: bytes | None) -> int:
        """Append a record; returns its offset."""
        record = NewRecord(self.at.topic, key.encode(), value, partition=0)
        (position,) = await self._in_time(self._log.append([record]), f"appending {key!r}")
        return position.offset

    async def read_to(self, offset: int) -> None:
        """Return when everything below the offset was read."""

        async def advance() -> None:
            async with self._advanced:
                await self._advanced.wait_for(lambda: self._next_offset >= offset)

        await self._in_time(advance(), f"reading up to offset {offset}")

    async def read_to_the_end(self) -> None:
        """Return when all that is there now was read."""
        bounds = await self._in_time(self._log.bounds(self.at), "asking for the end")
        await self.read_to(bounds.end)

    async def look(self) -> None:
        """Let the members' silence grow by the time that has passed. Raises what keeps the topic from being read.

        A pause of this process, or of the log, counts as one short moment: nobody could be heard then.
        """
        if self.failure is not None and not isinstance(self.failure, Unavailable):
            raise self.failure
        if self.failure is not None or self._clock.monotonic_s() - self._heard_s > self._session_s / 2:
            # Living members are never silent for so long. Is nobody there, or does the log not answer? After an outage
            # there may be nothing new to read that would show its end.
            await self.read_to_the_end()
            self.failure = None
            self._heard_s = self._clock.monotonic_s()
        now_s = self._clock.monotonic_s()
        passed_s = min(now_s - self._looked_s, self._session_s / 4)
        self._looked_s = now_s
        for seen in self.beats.values():
            seen.silent_s += passed_s

    def facts(self) -> dict[str, bytes]:
        """Return the facts of the members that were heard within a session."""
        return {
            name: record.facts
            for name, record in self.records.items()
            if (seen := self.beats.get(name)) is not None
            and seen.silent_s < self._session_s
            and seen.beat.incarnation == record.incarnation
        }

    async def _take(self, records: Iterable[Record], next_offset: int) -> None:
        for record in records:
            try:
                self._take_one(record)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("a record is not one of a cluster", topic=self.at.topic, reason=str(error))
        self._next_offset = next_offset
        self._heard_s = self._clock.monotonic_s()
        async with self._advanced:
            self._advanced.notify_all()

    def _take_one(self, record: Record) -> None:
        kind, _, name = (record.key or b"").decode().partition("/")
        if kind == "beat":
            self._take_beat(name, record)
            return
        if kind == "plan":
            self.plan = (record.offset + 1, record.value)
        elif kind == "member":
            _put(self.records, name, None if record.value is None else _records.decode(record.value))
        elif kind == "request":
            _put(self.requests, name, record.value)
        self.changed.set()

    def _take_beat(self, name: str, record: Record) -> None:
        beat = None if record.value is None else _beats.decode(record.value)
        before = self.beats.get(name)
        _put(self.beats, name, None if beat is None else Seen(beat, record.offset))
        # Most beats say nothing new, and wake nobody.
        if beat is None or before is None or before.beat != beat or before.silent_s >= self._session_s:
            self.changed.set()
        if beat is not None:
            self.on_beat(name, beat)

    async def _in_time(self, work: Awaitable[T], operation: str) -> T:
        """Give the log no longer than a session; by then this node is missed anyway."""
        try:
            async with asyncio.timeout(self._session_s):
                return await work
        except TimeoutError as error:
            reason = f"{operation} took longer than {self._session_s:g} s"
            raise Unreachable(str(self.at), reason, outcome_known=False) from error


def _put(values: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
