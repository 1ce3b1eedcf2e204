"""What an owner does beside commands: idle aggregates leave the memory, records that say nothing leave the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.engine.command_queue import CommandQueue
from headrace.engine.handling import CommandHandling
from headrace.engine.records import pruned
from headrace.errors import HeadraceError, NotReadable
from headrace.observe import Health, get_logger
from headrace.runtime import Clock, moment_of
from headrace.state import StatePartition

__all__ = ["EngineHousekeeping"]

_logger = get_logger(__name__)

_EVERY_S = 1.0
_SWEPT_AT_ONCE = 500


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
            await asyncio.sleep(_EVERY_S)
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
