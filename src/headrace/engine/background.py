"""What an owner does beside the commands of callers: it fires timers, reads inputs, runs sagas, and keeps house.

Housekeeping means that idle aggregates leave the memory, and that records that say nothing leave the log.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.engine.command_queue import CommandQueue
from headrace.engine.handling import CommandHandling
from headrace.engine.inputs import CommandSource, command_inputs
from headrace.engine.places import InputPlaces
from headrace.engine.pump import InputSource, TopicPump
from headrace.engine.records import pruned
from headrace.engine.sagas import SagaSource
from headrace.engine.timer_loop import SubmitWork, TimerLoop
from headrace.errors import HeadraceError, NotReadable
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.observe import Health, get_logger
from headrace.runtime import Backoff, Clock, moment_of
from headrace.state import StatePartition
from headrace.store import StoreReader

__all__ = ["EngineHousekeeping", "OwnerWork"]

_BACKOFF = Backoff(first_s=0.1, limit_s=5.0)
_LOOK_FOR_PARTITIONS_S = 30.0

_logger = get_logger(__name__)
_HOUSEKEEPING_EVERY_S = 1.0
_SWEPT_AT_ONCE = 500


class OwnerWork:
    """Runs beside the commands of callers while a node owns a partition. Without a log there is nothing to read."""

    def __init__(
        self,
        handling: CommandHandling[Any],
        log: Log | None,
        timers: TimerLoop,
        places: InputPlaces,
        submit: SubmitWork,
        store: Callable[[], StoreReader] | None = None,
    ) -> None:
        self._store = store
        self._handling = handling
        self._engine = handling.engine
        self._partition = handling.state_at.partition
        self._log = log
        self._places = places
        self._submit = submit
        self._tasks: list[asyncio.Task[None]] = []
        self.timers = timers

    def start(self) -> None:
        """Begin; the node has just become the owner."""
        self._run("timers", self._fire())
        if self._log is None:
            return
        for topic in command_inputs(self._engine):
            self._run(topic, self._read(self._log, topic))
        for name, saga in self._engine.sagas.items():
            at = TopicPartition(str(self._engine.journal_topic), self._partition)
            source = SagaSource(saga, self._engine, self._places, at, self._store)
            self._run(name, self._pump(self._log, source, at))

    def stop(self) -> None:
        """Stop; the next owner goes on from what is committed."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop, and wait until all has ended."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.create_task(work, name=f"headrace-engine-{self._engine.name}-{what}"))

    async def _fire(self) -> None:
        """Fire timers; an error of the store is reported, and it is tried again."""
        failures = 0
        while True:
            try:
                await self.timers.run()
            except HeadraceError as error:
                failures += 1
                await self._pause("timers", failures, error)

    async def _read(self, log: Log, topic: str) -> None:
        """Read those partitions of a topic that fall to this one, also those that it gets later.

        All of them are shared among the engine's. What is written to a partition that was not there before is new.
        """
        spec = command_inputs(self._engine)[topic]
        pumps: dict[int, asyncio.Task[None]] = {}
        try:
            for look in itertools.count():
                count = await self._partitions_of(log, topic)
                for partition in range(self._partition, count, self._engine.partitions):
                    if partition not in pumps:
                        at, new = TopicPartition(topic, partition), spec._replace(start="earliest")
                        source = CommandSource(new if look else spec, at, self._handling, self._places)
                        pumps[partition] = asyncio.create_task(self._pump(log, source, at))
                await asyncio.sleep(_LOOK_FOR_PARTITIONS_S)
        finally:
            for pump in pumps.values():
                pump.cancel()
            await asyncio.gather(*pumps.values(), return_exceptions=True)

    async def _partitions_of(self, log: Log, topic: str) -> int:
        failures = 0
        while True:
            try:
                return (await log.admin.describe(topic)).partitions
            except HeadraceError as error:
                failures += 1
                await self._pause(topic, failures, error)

    async def _pump(self, log: Log, source: InputSource, at: TopicPartition) -> None:
        await TopicPump(source, at, log, self._places, self._submit).run()

    async def _pause(self, what: str, failures: int, error: HeadraceError) -> None:
        delay_s = _BACKOFF.delay_s(failures)
        _logger.warning(
            "an owner's work pauses", engine=self._engine.name, what=what, error=str(error), retry_in_s=delay_s
        )
        await asyncio.sleep(delay_s)


class EngineHousekeeping:
    """Keeps one partition in order. `may_confirm` tells whether the copy is whole now, with nothing on its way."""

    def __init__(
        self,
        handling: CommandHandling[Any],
        states: StatePartition,
        queue: CommandQueue[Any],
        *,
        clock: Clock,
        may_confirm: Callable[[], bool],
    ) -> None:
        self._handling = handling
        self._engine = handling.engine
        self._states = states
        self._replica = states.replicas[self._engine.name]
        self._queue = queue
        self._clock = clock
        self._may_confirm = may_confirm
        self._sweep_after = b""
        self.health = Health("housekeeping")

    async def run(self) -> None:
        """Look after the partition every second, until cancelled."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_EVERY_S)
            self._queue.live.passivate(before_s=asyncio.get_running_loop().time() - self._engine.limits.idle_s)
            try:
                self.confirm()
                self.sweep()
                self.health.up()
            except HeadraceError as error:
                at = str(self._replica.at)
                self.health.down(str(error))
                _logger.warning("housekeeping failed", engine=self._engine.name, at=at, error=str(error))

    def confirm(self) -> None:
        """Note that the copy is whole now, so that it stays young while no commands come."""
        moment = moment_of(self._clock)
        if self._may_confirm():
            self._states.confirm(moment)

    def sweep(self, *, limit: int = _SWEPT_AT_ONCE) -> int:
        """Turn records that say nothing any more into tombstones: no state, ids, timers, or numbers to go on from.

        Each call looks at the next records, and returns how many; 0 if this node may not write at the moment.
        """
        if not self._may_confirm():
            return 0
        entries = self._replica.entries(self._sweep_after, None, limit=limit)
        self._sweep_after = entries[-1][0] + b"\x00" if len(entries) == limit else b""
        for key, entry in entries:
            self._sweep_one(key, entry.value)
        return len(entries)

    def _sweep_one(self, key: bytes, value: bytes) -> None:
        try:
            aggregate, record = key.decode(), self._handling.values.decode(value)
        except (UnicodeDecodeError, NotReadable) as error:
            # No engine wrote it. Commands for that aggregate raise the error; the others are swept.
            _logger.warning("a record is no aggregate's", at=str(self._replica.at), key=repr(key), error=str(error))
            return
        if record.state is None and record.version == 0 and not record.timers:
            bare = pruned(record, self._engine.limits, self._replica.now_ms)
            if not bare.ids:
                self._queue.forget(aggregate, bare.forgotten)
