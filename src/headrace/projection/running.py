"""Running a projection: from where it is, for ever, started again after each failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from headrace.errors import Fenced
from headrace.observe import get_logger, span
from headrace.projection.batching import batches
from headrace.projection.definitions import Projection
from headrace.projection.metrics import BEHIND, HANDLED
from headrace.projection.ports import Offsets, Target
from headrace.projection.slots import earliest, fresh, moved, owned
from headrace.runtime import SYSTEM_CLOCK, Backoff, Clock, Supervisor, crash_point
from headrace.tags import TaggedEvent, TagOffset, TagQueries

__all__ = ["ProjectionRunner"]

_logger = get_logger(__name__)

# Events of other workers move the offset too, but need not be stored at once.
_PASSED_AT_MOST = 5000


class ProjectionRunner:
    """Feeds a projection's handler. Worker number `worker` of `workers` takes its share of the journals."""

    def __init__(
        self,
        projection: Projection,
        queries: TagQueries,
        target: Target,
        *,
        worker: int = 0,
        workers: int = 1,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.projection = projection
        self._queries = queries
        self._target = target
        self._slots = owned(worker, workers, projection.slots)
        self._clock = clock
        self._offsets: Offsets = {}
        self._last = TagOffset.at(0)
        self._passed = 0

    async def run(self, *, backoff: Backoff | None = None) -> None:
        """Run for ever; whatever fails is logged, counted, and tried again after a while."""
        supervisor = Supervisor(f"projection {self.projection.name}")
        supervisor.add(self.projection.name, self.run_once, backoff=backoff or Backoff())
        async with supervisor:
            await supervisor.wait()

    async def run_once(self) -> None:
        """Run from where the projection is until something fails. Being overtaken by a rival is no failure."""
        while True:
            try:
                await self.catch_up(live=True)
            except Fenced:
                _logger.warning("another worker moved a projection's slots", projection=self.projection.name)

    async def catch_up(self, *, live: bool = False) -> int:
        """Handle what is there, or with `live` all that comes; returns how many events were handled."""
        stored = await self._target.load()
        self._offsets = {slot: stored[slot] for slot in self._slots}
        events = self._queries.events(self.projection.tag, after=earliest(self._offsets), live=live)
        count = 0
        async with aclosing(batches(events, size=self.projection.batch_size)) as found:
            async for batch in found:
                count += await self._take(batch)
        await self._store_passed()
        return count

    async def _take(self, batch: Sequence[TaggedEvent]) -> int:
        mine = fresh(batch, self._offsets, self.projection.slots)
        self._passed += len(batch)
        self._last = batch[-1].tag_offset
        if mine or self._passed >= _PASSED_AT_MOST:
            await self._handle(mine)
        return len(mine)

    async def _handle(self, events: Sequence[TaggedEvent]) -> None:
        name = self.projection.name
        with span("projection.handle", projection=name, events=str(len(events))):
            await self._target.handle(events, self._offsets, self._last)
        crash_point("projection.handled")
        self._offsets = moved(self._offsets, self._last)
        self._passed = 0
        HANDLED.labels(name).inc(len(events))
        BEHIND.labels(name).set(max(0.0, (self._clock.now_ms() - self._last.log_time_ms) / 1000))

    async def _store_passed(self) -> None:
        if self._passed:
            await self._handle([])
