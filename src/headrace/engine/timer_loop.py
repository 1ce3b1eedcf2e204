"""Timers that are due: their owner puts them among the commands of their aggregates, some at a time.

The index of the state topic says what is due, so an owner that has just begun knows it as well as the one before. A
timer that was cancelled or replaced meanwhile is found so when its turn comes, and then nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headrace.engine import metrics
from headrace.engine.batches import NOTHING_DONE, NOTHING_HANDLED, BatchWork, PendingCommand, WorkOutcome
from headrace.engine.commands import Answer, CommandRequest, FailedReply, SuccessReply, error_of
from headrace.engine.context import Decision
from headrace.engine.handling import CommandHandling, HandledCommand
from headrace.engine.records import AggregateRecord
from headrace.engine.timers import TIMERS_INDEX, RecordTimers, Timer, first_due, replaced
from headrace.errors import CommandFailed, NotPartitionOwner
from headrace.observe import get_logger
from headrace.runtime import OWNERS_TRIED, Backoff, Clock, is_suspect, is_tried_alone
from headrace.state import RESERVED_PREFIX, BatchName, StateReplica, index_range

__all__ = ["PartitionTime", "SubmitWork", "TimerLoop"]

SubmitWork: TypeAlias = Callable[[str, BatchWork, bool], PendingCommand]
"""Puts work into an aggregate's lane; True if it is to be alone in its batch."""

# How many fire at once: the commands of callers are handled between them.
_AT_ONCE = 100
_PAGE = 2 * _AT_ONCE
# A wall clock that was put forward is noticed after so long.
_LOOK_AGAIN_S = 1.0
_WHILE_FIRING_S = 0.1
_AFTER_NOTHING_S = 0.05
_ATTEMPTS_KEY = RESERVED_PREFIX + b".timers"
_LANE = _ATTEMPTS_KEY.decode()
_BACKOFF = Backoff(first_s=1.0, limit_s=10.0)

_logger = get_logger(__name__)


class PartitionTime:
    """The time of a partition, which never goes back, and goes on while the wall clock is behind it."""

    def __init__(self, replica: StateReplica, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._last_ms = 0
        self._boot_ms = clock.boot_time().ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970: the wall clock's, unless it was put back since or the partition is ahead."""
        boot_ms = self._clock.boot_time().ms
        self._last_ms = max(self._replica.now_ms, self._last_ms + boot_ms - self._boot_ms)
        self._boot_ms = boot_ms
        return self._last_ms


class _Due(NamedTuple):
    timer: Timer
    record: AggregateRecord  # without the timer
    decision: Decision


class TimerFiring:
    """The first timer of an aggregate that is due, if there still is one when its turn comes."""

    has_aggregate = True

    def __init__(
        self, handling: CommandHandling[Any], aggregate: str, attempts: TimerAttempts, *, puts_off: bool
    ) -> None:
        self._handling = handling
        self._aggregate = aggregate
        self._attempts = attempts
        self._puts_off = puts_off

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> _Due | None:
        """Run the handler of the timer's command, unless it goes to the command topic or is put off."""
        del floor
        timer = first_due(record.timers) if record is not None else None
        if record is None or timer is None or timer.due_ms > now_ms:
            return None
        left = msgspec.structs.replace(record, timers=replaced(record.timers, timer.name))
        if timer.aggregate is not None or self._puts_off:
            return _Due(timer, left, Decision())
        request = CommandRequest(aggregate=self._aggregate, kind=timer.kind, data=timer.data)
        return _Due(timer, left, await self._handling.decide(left, request, now_ms=now_ms))

    def finish(
        self,
        record: AggregateRecord | None,
        decided: _Due | None,
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> WorkOutcome | None:
        """Return what the timer leads to. It leaves the record with it, also if its command is rejected or fails."""
        del record, floor
        if decided is None:
            return None
        timer, left, decision = decided
        unread = _unread_state(decision)
        if self._puts_off or unread is not None:
            handled = self._put_off(left, timer, now_ms)
        elif timer.aggregate is not None:
            handled = self._handling.sent_by_timer(left, timer, aggregate=self._aggregate)
        else:
            handled = self._handling.fired(left, timer, decision, aggregate=self._aggregate, batch=batch, now_ms=now_ms)
        self._report(timer, handled, unread)
        return WorkOutcome(handled, self._attempts.after_firing())

    def _put_off(self, left: AggregateRecord, timer: Timer, now_ms: int) -> HandledCommand:
        """Return the record with the timer at a later time. It is not dropped: the owners may have ended by chance."""
        record = msgspec.structs.replace(left, timers=(*left.timers, timer.put_off(now_ms)))
        return HandledCommand(SuccessReply(record.version, None, b"[]"), record, self._handling.values.encode(record))

    def _report(self, timer: Timer, handled: HandledCommand, unread: CommandFailed | None) -> None:
        """Count what became of the timer, and log what nobody else would hear of."""
        is_put_off = self._puts_off or unread is not None
        outcome = "put off" if is_put_off else "failed" if isinstance(handled.reply, FailedReply) else "fired"
        engine = self._handling.engine.name
        metrics.TIMERS.labels(engine, outcome).inc()
        named = {"engine": engine, "aggregate": self._aggregate, "timer": timer.name, "command": timer.kind}
        if isinstance(handled.reply, FailedReply):
            _logger.error("a timer failed", **named, error=str(error_of(handled.reply)))
        elif unread is not None:
            _logger.error("a timer was put off: its aggregate's state can't be read", **named, error=str(unread))
        elif self._puts_off:
            _logger.error("a timer was put off: owners ended while they handled it", **named, owners=OWNERS_TRIED)


def _unread_state(decision: Decision) -> CommandFailed | None:
    """Return the error of a command that was not tried because the state can't be read, as after a release."""
    error = decision.error
    return error if isinstance(error, CommandFailed) and error.is_of_state else None


class TimerAttempts:
    """How many owners in a row began with timers due and fired none: one of them may be what ends the process.

    The count is a record of the partition, written before the first timer fires, and with the first one that did.
    """

    has_aggregate = False

    def __init__(self, stored: Callable[[bytes], bytes | None]) -> None:
        self._stored = stored
        self.count = 0

    def begin(self) -> None:
        """Take what earlier owners have counted."""
        self.count = int(self._stored(_ATTEMPTS_KEY) or b"0") + 1

    def after_firing(self) -> dict[bytes, bytes]:
        """Return what is written with the first timer that has fired."""
        return {_ATTEMPTS_KEY: b"0"} if self.count else {}

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> None:
        """There is nothing to decide."""

    def finish(
        self, record: AggregateRecord | None, decided: None, *, batch: BatchName, floor: BatchName, now_ms: int
    ) -> WorkOutcome:
        """Return the record that counts this owner."""
        return WorkOutcome(NOTHING_HANDLED, {_ATTEMPTS_KEY: b"%d" % self.count})


class TimerLoop:
    """Fires the timers of one partition, while this node owns it."""

    def __init__(
        self,
        handling: CommandHandling[Any],
        replica: StateReplica,
        submit: SubmitWork,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._handling = handling
        self._replica = replica
        self._submit = submit
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._attempts = TimerAttempts(replica.reserved)
        self._firing: dict[bytes, PendingCommand] = {}
        self._changed = asyncio.Event()
        self._has_fired = False
        self._careful = 0
        self._failures: dict[bytes, int] = {}
        self._pausing: set[bytes] = set()

    def wake(self) -> None:
        """Look again: timers were set."""
        self._changed.set()

    async def run(self) -> None:
        """Fire what is due until cancelled."""
        self._firing, self._has_fired, self._careful = {}, False, 0
        self._failures, self._pausing = {}, set()
        while True:
            self._changed.clear()
            wait_s = self._until_next_s()
            if wait_s == 0:
                await self._count_attempt()
                self._fire()
                wait_s = _WHILE_FIRING_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _until_next_s(self) -> float | None:
        """Return how long nothing is due; 0 if something is, None if there are no timers."""
        first = self._rows(None, limit=1)
        if not first:
            return None
        if self._rows(self._now_ms(), limit=len(self._firing) + 1):
            return 0
        entry = self._replica.entry(first[0])
        timer = first_due(RecordTimers().decode(entry.value)) if entry is not None else None
        left_ms = timer.due_ms - self._now_ms() if timer is not None else 0
        return min(max(left_ms, 1) / 1000, _LOOK_AGAIN_S)

    def _rows(self, now_ms: int | None, *, limit: int) -> list[bytes]:
        """Return the keys of aggregates with timers, those that are due first; all that are due at `now_ms`."""
        return [key for _, key in self._replica.rows(*self._range(now_ms), limit=limit)]

    @staticmethod
    def _range(now_ms: int | None) -> tuple[bytes, bytes]:
        """Return where the rows of timers begin and end: of all, or of those that are due."""
        return index_range(TIMERS_INDEX, below=None if now_ms is None else now_ms + 1)

    async def _count_attempt(self) -> None:
        """Write down that this owner begins to fire, once, before it does."""
        if self._has_fired:
            return
        self._attempts.begin()
        counted = self._submit(_LANE, self._attempts, False)
        await asyncio.wait([counted.done])
        self._has_fired = True
        # One at a time, so that the one that ends the process, if one does, is the first for the next owner.
        self._careful = _AT_ONCE if is_tried_alone(self._attempts.count) else 0

    def _fire(self) -> None:
        is_careful = self._careful > 0
        at_once = 1 if is_careful else _AT_ONCE
        start, end = self._range(self._now_ms())
        while len(self._firing) < at_once and (page := self._replica.rows(start, end, limit=_PAGE)):
            for _, key in page:
                if key not in self._firing and key not in self._pausing and len(self._firing) < at_once:
                    self._fire_one(key, is_careful=is_careful)
            start = page[-1][0] + b"\x00"

    def _fire_one(self, key: bytes, *, is_careful: bool) -> None:
        aggregate = key.decode()
        puts_off = is_suspect(self._attempts.count)
        firing = TimerFiring(self._handling, aggregate, self._attempts, puts_off=puts_off)
        self._firing[key] = command = self._submit(aggregate, firing, is_careful)
        command.done.add_done_callback(lambda done: self._fired(key, done))

    def _fired(self, key: bytes, done: asyncio.Future[Answer]) -> None:
        """Go on with the aggregate's next timer.

        After a failure not before a pause, and neither if there was none: then the commit of what has removed it, by
        firing it or otherwise, is on its way, and until it is there the index shows the timer as due.
        """
        if done.cancelled() or done.exception() is not None:
            self._failed(key, done)
        elif done.result().reply is NOTHING_DONE:
            self._loop.call_later(_AFTER_NOTHING_S, self._forget, key)
        else:
            self._attempts.count = 0
            self._careful = max(0, self._careful - 1)
            self._failures.pop(key, None)
            self._forget(key)

    def _failed(self, key: bytes, done: asyncio.Future[Answer]) -> None:
        """Try again after a pause; one that fails again and again takes the turn of no other."""
        error = None if done.cancelled() else done.exception()
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = _BACKOFF.delay_s(failures)
        if not isinstance(error, NotPartitionOwner):
            named = {"engine": self._handling.engine.name, "aggregate": key.decode()}
            _logger.warning("a timer can't fire now", **named, error=str(error), retry_in_s=delay_s)
        self._firing.pop(key, None)
        self._pausing.add(key)
        self._loop.call_later(delay_s, self._forget, key)

    def _forget(self, key: bytes) -> None:
        self._firing.pop(key, None)
        self._pausing.discard(key)
        self._changed.set()
