"""The runner of a projection: it feeds the handler without an end, and starts again after each failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from headrace.errors import HandlerFailed, SlotsMoved, TagGap
from headrace.observe import Health, get_logger, linked_span
from headrace.projection.commits import PassedEvents, batches
from headrace.projection.delivery import EventFailed
from headrace.projection.metrics import BEHIND, FAILURES, HANDLED, SET_ASIDE
from headrace.projection.ports import Offsets, Target
from headrace.projection.projection import HandlerOutcome, Projection, letter_of, reason_of
from headrace.projection.slots import check_not_ahead, earliest, fresh, late, moved, owned
from headrace.projection.workers import Attendance
from headrace.runtime import SYSTEM_CLOCK, Backoff, Clock, crash_point
from headrace.tags import TaggedEvent, TagOffset, TagQueries

__all__ = ["ProjectionRunner", "Situation"]

_logger = get_logger(__name__)

_QUIET_S = 60.0


class Situation:
    """The progress of a projection's worker, and its current failure. Changes are logged; all failures are counted."""

    def __init__(self, projection: str, health: Health) -> None:
        self.projection = projection
        self.health = health
        self.error: str | None = None
        self._kind: tuple[str, str] | None = None
        self._place: TagOffset | None = None
        self._overtaken_s: float | None = None

    def event_fails(self, event: TaggedEvent, error: BaseException, *, attempts: int, next_step: str) -> None:
        """Count a failure of the handler at an event; log it if it is a new one."""
        FAILURES.labels(self.projection).inc()
        offset = str(event.tag_offset)
        if self._is_new((type(error).__name__, offset), error, event.tag_offset):
            _logger.error(
                "a projection's handler failed",
                projection=self.projection,
                tag=event.tag,
                topic=event.topic,
                id=event.id,
                seq_nr=event.seq_nr,
                offset=offset,
                attempts=attempts,
                next_step=next_step,
                exc_info=error,
            )

    def run_fails(self, error: BaseException) -> None:
        """Count a failure outside the handler, such as one of the database; log it if it is a new one."""
        if isinstance(error, HandlerFailed):  # counted and logged when it happened
            self.health.down(str(error))
            return
        FAILURES.labels(self.projection).inc()
        if self._is_new((type(error).__name__, ""), error, None):
            _logger.error("a projection stopped and is tried again", projection=self.projection, exc_info=error)

    def set_aside(self, event: TaggedEvent, error: BaseException, *, attempts: int, outcome: str) -> None:
        """Log an event that is given up. The handler will not see it, so each one is logged."""
        _logger.warning(
            "a projection gave up an event",
            projection=self.projection,
            tag=event.tag,
            topic=event.topic,
            id=event.id,
            seq_nr=event.seq_nr,
            offset=str(event.tag_offset),
            attempts=attempts,
            outcome=outcome,
            error=reason_of(error),
        )

    def overtaken(self) -> None:
        """Log that another worker or a command moved the slots; not each time, because rivals may do it constantly."""
        now_s = time.monotonic()
        if self._overtaken_s is None or now_s - self._overtaken_s >= _QUIET_S:
            _logger.info("a projection's slots were moved; loading them again", projection=self.projection)
            self._overtaken_s = now_s

    def gets_on(self, to: TagOffset) -> None:
        """Note the offset that the projection has reached; log that it works again if that is past the failure."""
        if self._kind is None or (self._place is not None and to < self._place):
            return
        _logger.info("a projection works again", projection=self.projection, offset=str(to))
        self._kind = self._place = self.error = None
        self.health.up()

    def _is_new(self, kind: tuple[str, str], error: BaseException, place: TagOffset | None) -> bool:
        is_new = kind != self._kind
        self._kind, self._place, self.error = kind, place, reason_of(error)
        self.health.down(self.error)
        return is_new


# The worker that moved the slots is handling their events: there is no hurry to try again.
_AFTER_RIVALS_S = 0.05
# A worker that ran for this long starts with the first delay again when it fails.
_STEADY_S = 60.0


def _nothing(_: int) -> None:
    """Do nothing."""


class ProjectionRunner:
    """Feeds a projection's handler. Worker number `worker` of `workers` takes its share of the journals.

    With an attendance, `run` follows its plan: the share of the worker, and pauses. `on_done` gets the number of events
    that were handled, or given up, whenever some were.
    """

    def __init__(
        self,
        projection: Projection,
        queries: TagQueries,
        target: Target,
        *,
        worker: int = 0,
        workers: int = 1,
        clock: Clock = SYSTEM_CLOCK,
        health: Health | None = None,
        attendance: Attendance | None = None,
        on_done: Callable[[int], None] = _nothing,
    ) -> None:
        self.projection = projection
        self.health = health or Health(f"projection {projection.name}")
        self.situation = Situation(projection.name, self.health)
        self._queries = queries
        self._target = target
        self._slots = owned(worker, workers, projection.slots)
        self._clock = clock
        self._attendance = attendance
        self._on_done = on_done
        self._offsets: Offsets = {}
        self._began: Offsets = {}
        self._last = TagOffset.at(0)
        self._passed = PassedEvents(clock.monotonic_s)

    async def run(self, *, backoff: Backoff | None = None) -> None:
        """Run forever; each failure is counted, logged once, and tried again after a delay."""
        waits = backoff or Backoff()
        if self._attendance is None:
            await self._keep_on(self.run_once, waits)
        else:
            await self._keep_on(partial(self._attend, self._attendance, waits), waits)

    async def _keep_on(self, work: Callable[[], Awaitable[None]], waits: Backoff) -> None:
        in_a_row = 0
        while True:
            started_s = self._clock.monotonic_s()
            try:
                await work()
            except Exception as error:
                self.situation.run_fails(error)
            in_a_row = 1 if self._clock.monotonic_s() - started_s >= _STEADY_S else in_a_row + 1
            await asyncio.sleep(waits.delay_s(in_a_row))

    async def _attend(self, attendance: Attendance, waits: Backoff) -> None:
        """Run while the worker reports to the others, also when it fails."""
        async with attendance.open(lambda: self.situation.error):
            await self._keep_on(partial(self._run_plans, attendance), waits)

    async def _run_plans(self, attendance: Attendance) -> None:
        """Run the worker's own slots, except during a pause."""
        while True:
            attendance.changed.clear()
            plan = attendance.plan
            if plan.is_paused or not plan.slots:
                await attendance.changed.wait()
            else:
                self._slots = list(plan.slots)
                await self._run_plan(attendance)

    async def _run_plan(self, attendance: Attendance) -> None:
        try:
            await _until(attendance.changed, self.run_once())
        except TagGap as gap:
            # Events of other journals have moved the slots past the missing one: a new start would skip it.
            await attendance.pause(f"{gap}, then headrace projection rebuild; or accept the loss with resume")
            raise

    async def run_once(self) -> None:
        """Run from where the projection is until something fails. It is no failure if a rival is faster."""
        while True:
            try:
                await self.catch_up(live=True)
            except SlotsMoved:
                self.situation.overtaken()
                await asyncio.sleep(_AFTER_RIVALS_S)

    async def catch_up(self, *, live: bool = False) -> int:
        """Handle the events that exist, or with `live` all that come; return the number of handled events.

        Raises HandlerFailed for an event that can't be handled if the projection's recovery is to fail; SlotsMoved if
        another worker moved the same slots.
        """
        stored = await self._target.load()
        check_not_ahead(self.projection.name, stored, self._clock.now_ms())
        self._offsets = self._began = {slot: stored[slot] for slot in self._slots}
        self._last = earliest(self._offsets) or TagOffset.at(0)
        events = self._queries.events(self.projection.sources, after=earliest(self._offsets), live=live)
        count = 0
        self._passed.stored()
        async with aclosing(
            batches(events, size=self.projection.batch_size, idle_s=self._passed.store_after_s)
        ) as found:
            async for batch in found:
                count += await self._take(batch)
        await self._store_passed()
        return count

    async def _take(self, batch: Sequence[TaggedEvent]) -> int:
        mine = self._mine(batch)
        self._passed.add(len(batch))
        self._last = max([self._last, *(event.tag_offset for event in batch)])
        if mine or self._passed.is_commit_due:
            await self._handle(mine, self._last)
        return len(mine)

    def _mine(self, batch: Sequence[TaggedEvent]) -> list[TaggedEvent]:
        """Return the events of a batch that this worker must handle, in their order."""
        mine, read_up_to = [], self._last
        for event in batch:
            found = fresh([event], self._offsets, self.projection.slots)
            mine += found or late([event], self._began, read_up_to, self.projection.slots)
            read_up_to = max(read_up_to, event.tag_offset)
        return mine

    async def _store_passed(self) -> None:
        if self._passed.is_any:
            await self._move([], self._last)

    async def _handle(self, events: Sequence[TaggedEvent], to: TagOffset) -> None:
        """Handle events together. If one fails: those before it together, then it alone, then the rest."""
        rest = events
        while True:
            try:
                await self._move(rest, to)
                return
            except EventFailed as failed:
                if failed.index is None:  # a group does not show which one failed: try them one by one
                    await self._handle_one_by_one(rest)
                    rest = []
                    continue
                before, failing, rest = rest[: failed.index], rest[failed.index], rest[failed.index + 1 :]
                await self._settle(before)
                await self._recover(failing, failed.error)

    async def _settle(self, events: Sequence[TaggedEvent]) -> None:
        """Store the events before a failing one: they are done without transactions, and rolled back with them."""
        if not events:
            return
        if not self._target.is_transactional:
            self._note_moved(events, events[-1].tag_offset)
            return
        try:  # an event that was missing may come after its place
            await self._move(events, max(event.tag_offset for event in events))
        except EventFailed:  # another one fails now: handle them one by one
            await self._handle_one_by_one(events)

    async def _handle_one_by_one(self, events: Sequence[TaggedEvent]) -> None:
        for event in events:
            try:
                await self._move([event], event.tag_offset)
            except EventFailed as failed:
                await self._recover(event, failed.error)

    async def _recover(self, event: TaggedEvent, error: BaseException) -> None:
        """Apply the projection's recovery to an event that failed once. Raises HandlerFailed."""
        recovery, attempts = self.projection.recovery, 1
        while True:
            outcome = recovery.outcome(attempts)
            self.situation.event_fails(event, error, attempts=attempts, next_step=outcome.value)
            if outcome is not HandlerOutcome.RETRY:
                await self._give_up(event, error, attempts, outcome)
                return
            await asyncio.sleep(recovery.backoff.delay_s(attempts))
            attempts += 1
            try:
                await self._move([event], event.tag_offset, attempt=attempts)
                return
            except EventFailed as failed:
                error = failed.error

    async def _give_up(self, event: TaggedEvent, error: BaseException, attempts: int, outcome: HandlerOutcome) -> None:
        if outcome is HandlerOutcome.FAIL:
            raise HandlerFailed(
                self.projection.name,
                event.tag,
                event.topic,
                event.id,
                event.seq_nr,
                str(event.tag_offset),
                attempts,
                reason_of(error),
            ) from error
        if outcome is HandlerOutcome.DEAD_LETTER:
            letter = letter_of(event, error, attempts=attempts, now_ms=self._clock.now_ms())
            await self._target.bury(letter, self._offsets, event.tag_offset)
            self._note_moved([], event.tag_offset)
        else:
            await self._move([], event.tag_offset)
        SET_ASIDE.labels(self.projection.name, outcome.value).inc()
        self._on_done(1)
        self.situation.set_aside(event, error, attempts=attempts, outcome=outcome.value)

    async def _move(self, events: Sequence[TaggedEvent], to: TagOffset, *, attempt: int = 1) -> None:
        records = (event.headers for event in events)
        named = {"projection": self.projection.name, "events": str(len(events))}
        with linked_span("projection.handle", records, **named):
            await self._target.handle(events, self._offsets, to, attempt=attempt)
        crash_point("projection.handled")
        self._note_moved(events, to)

    def _note_moved(self, events: Sequence[TaggedEvent], to: TagOffset) -> None:
        name = self.projection.name
        self._offsets = moved(self._offsets, to)
        self._passed.stored()
        HANDLED.labels(name).inc(len(events))
        self._on_done(len(events))
        BEHIND.labels(name).set(max(0.0, (self._clock.now_ms() - to.log_time_ms) / 1000))
        self.situation.gets_on(to)


async def _until(changed: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Work until the plan changes; the current batch is finished. Raises what the work raises."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
