"""Marks that let waiting events through: a Mark in an idle partition shows that time has passed there.

One Mark serves all queries that wait, in this process and in others. Queries name the partitions that hold them up.
After a short time for gathering, one Mark goes to each of these partitions that has not moved meanwhile. If several
processes wait for the same events, the one with the lowest rank writes at once, and the others write only what it
leaves out. In a steady flow of events most partitions move without Marks, so Marks have a budget: it grows with time
and with events, and when it is used up, queries wait a little longer.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from headrace.errors import HeadraceError, TimestampTooFarAhead
from headrace.log import Log
from headrace.model import NewRecord, Position, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Mark, encode_action
from headrace.tags.metrics import AHEAD, MARKS

__all__ = ["MARK_KEY", "MarkBudget", "Marker"]

MARK_KEY = b"headrace-tags"

_logger = get_logger(__name__)

_RANK_LENGTH = 16
# How long a process waits for the Marks of one with a lower rank, and for how long it expects that one to write them.
_LEAVE_S = 0.02
_LEAVE_FOR_S = 2.0
_LONGEST_WAIT_S = 0.1
_LOOK_AGAIN_S = 0.005
_NO_BOUND_MS = 1 << 62


class MarkBudget:
    """The budget of Marks: some for each second, and two for five events; what is not used is kept, up to a bound.

    It is pure: the caller gives the time.
    """

    def __init__(self, now_s: float, *, per_s: float = 240.0, per_event: float = 0.4, most: float = 300.0) -> None:
        self._per_s = per_s
        self._per_event = per_event
        self._most = most
        self._left = most
        self._at_s = now_s

    def earn(self, events: int) -> None:
        """Add the share of new events."""
        self._left = min(self._most, self._left + events * self._per_event)

    def allows(self, marks: int, now_s: float) -> bool:
        """Return True if this number of Marks can be written now."""
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left >= min(marks, self._most)

    def spend(self, marks: int) -> None:
        """Subtract Marks that were written."""
        self._left = max(-self._most, self._left - marks)


class Marker:
    """Writes the Marks for all queries of a process. With `is_reader` it writes none."""

    def __init__(self, log: Log, *, gather_s: float = 0.002, is_reader: bool = False) -> None:
        self.is_reader = is_reader
        self.rank = uuid.uuid4().hex[:_RANK_LENGTH]
        self._listeners: set[Callable[[Sequence[Position]], None]] = set()
        self._log = log
        self._gather_s = gather_s
        self._wanted: dict[TopicPartition, int] = {}
        self._reached_ms: dict[TopicPartition, int] = {}
        self._read_to: dict[TopicPartition, int] = {}
        self._round: asyncio.Task[None] | None = None
        self._budget: MarkBudget | None = None
        self._leaves_until_s = 0.0
        self._lead_ms: int | None = None
        self._ahead_ms: dict[str, int] = {}

    @property
    def latest_ms(self) -> int:
        """The latest time of a Mark that the log takes now, as far as is known."""
        return _NO_BOUND_MS if self._lead_ms is None else _now_ms() + self._lead_ms

    @property
    def leaves_to_others(self) -> bool:
        """True if another process has written Marks recently."""
        return asyncio.get_running_loop().time() < self._leaves_until_s

    def join(self, listener: Callable[[Sequence[Position]], None]) -> None:
        """Call a listener with all Marks that are written from now on."""
        self._listeners.add(listener)

    def leave(self, listener: Callable[[Sequence[Position]], None]) -> None:
        """Remove a listener. Without listeners no query waits for Marks either."""
        self._listeners.discard(listener)
        if not self._listeners:
            self._wanted.clear()

    def want(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        """Ask for Marks in partitions that hold up events until they reach a log time. Returns at once."""
        if self.is_reader:
            return
        reached, wanted = self._reached_ms, self._wanted
        if self._ahead_ms:
            self._note_in_time()
        for at in partitions:
            if reached.get(at, -1) < timestamp_ms and wanted.get(at, -1) < timestamp_ms:
                wanted[at] = timestamp_ms
        if wanted and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._write_on(), name="headrace-tag-marks")

    def waits_for_clock(self, topic: str, log_time_ms: int) -> None:
        """Show that events of a topic wait because the log takes no Marks that far in the future.

        A clock was ahead when the topic was written, and was set back. The events wait until the clock is there.
        """
        ahead_s = (log_time_ms - _now_ms()) / 1000
        AHEAD.labels(topic).set(ahead_s)
        if topic not in self._ahead_ms:
            _logger.warning(
                "queries by tag wait: the log time of a topic is ahead of the clock",
                topic=topic,
                ahead_s=round(ahead_s, 3),
                wait_s=round(ahead_s - (self._lead_ms or 0) / 1000, 3),
            )
        self._ahead_ms[topic] = log_time_ms

    def _note_in_time(self) -> None:
        latest_ms = self.latest_ms
        for topic in [topic for topic, ahead_ms in self._ahead_ms.items() if ahead_ms < latest_ms]:
            AHEAD.labels(topic).set(0)
            _logger.info("queries by tag go on: the clock has reached the log time", topic=topic)
            del self._ahead_ms[topic]

    def saw(self, at: TopicPartition, log_time_ms: int) -> None:
        """Note the log time up to which some query has read a partition: it needs no Mark up to there."""
        if log_time_ms > self._reached_ms.get(at, -1):
            self._reached_ms[at] = log_time_ms

    def earn(self, at: TopicPartition, offset: int, events: int) -> None:
        """Add the share of new events up to an offset; events that another query has added do not count again."""
        if offset > self._read_to.get(at, -1):
            self._read_to[at] = offset
            if self._budget is not None:
                self._budget.earn(events)

    def met(self, mark_id: str) -> None:
        """Note a Mark in the log. If its rank is lower, another process writes the Marks."""
        if mark_id[:_RANK_LENGTH] < self.rank:
            self._leaves_until_s = asyncio.get_running_loop().time() + _LEAVE_FOR_S

    def forget(self, topic: str) -> None:
        """Forget a topic that is gone: another one of the same name may come."""
        for known in (self._reached_ms, self._read_to, self._wanted):
            for at in [at for at in known if at.topic == topic]:
                del known[at]

    async def _write_on(self) -> None:
        while self._wanted:
            marks = await self._next_round()
            self._wanted = {}
            latest_ms = max(marks.values(), default=0)
            topics = {at.topic for at in marks}  # a topic that is gone must not hold up the others
            await asyncio.gather(*(self._write([at for at in marks if at.topic == t], latest_ms) for t in topics))

    async def _next_round(self) -> dict[TopicPartition, int]:
        """Wait for the gathering time and for the budget; return the Marks that are still wanted then."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._budget is None:
            self._budget = MarkBudget(began_s)
        leave_s = _LEAVE_S * (1 + random.random()) if self.leaves_to_others else 0.0  # noqa: S311
        await asyncio.sleep(self._gather_s + leave_s)
        while True:
            wanted = {at: ms for at, ms in self._wanted.items() if self._reached_ms.get(at, -1) < ms}
            now_s = loop.time()
            if not wanted or self._budget.allows(len(wanted), now_s) or now_s - began_s >= _LONGEST_WAIT_S:
                self._budget.spend(len(wanted))
                return wanted
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _write(self, marked: Sequence[TopicPartition], timestamp_ms: int) -> None:
        """Write one Mark into each partition, all with the latest time, so that they serve all queries."""
        try:
            positions = await self._log.append([self._record(at, timestamp_ms) for at in marked])
        except HeadraceError as error:
            if isinstance(error, TimestampTooFarAhead):
                self._lead_ms = error.bound_ms
                if timestamp_ms > self.latest_ms:  # queries wait for the clock, and say so
                    return
            _logger.warning("idle partitions not marked", partitions=len(marked), error=str(error))
            return
        for at in marked:
            MARKS.labels(at.topic).inc()
            self._reached_ms[at] = max(timestamp_ms, self._reached_ms.get(at, -1))
        written = [Position(p.topic, p.partition, p.offset, timestamp_ms) for p in positions]
        for listener in list(self._listeners):
            listener(written)

    def _record(self, at: TopicPartition, timestamp_ms: int) -> NewRecord:
        headers = encode_action(Mark(id=self.rank + uuid.uuid4().hex[_RANK_LENGTH:]))
        return NewRecord(at.topic, MARK_KEY, None, headers, partition=at.partition, timestamp_ms=timestamp_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
