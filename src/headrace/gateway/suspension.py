"""The gateway while partitions are missing: requests that need their owners are held in order, or refused.

A request to a keyspace or an engine can't be answered before its partition has an owner. If such requests simply went
on, each would wait on its own, and those that gave up would leave their order to chance. So they wait here, outside of
the places for requests in flight, and go on together when the last missing partition has an owner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from headrace.errors import Busy, GatewaySuspended
from headrace.gateway.metrics import HELD, REFUSED
from headrace.observe import get_logger

__all__ = ["FindMissing", "Suspension", "SuspensionMode"]

SuspensionMode: TypeAlias = Literal["hold", "refuse", "ignore"]
FindMissing: TypeAlias = Callable[[], Mapping[str, Sequence[int] | None]]
"""Returns, by keyspace and engine, the partitions that nobody owns; None stands for all of them."""

_LOOK_EVERY_S = 0.02
_logger = get_logger(__name__)


class Suspension:
    """Lets requests through while nothing is missing.

    Promises: requests that were held go on in the order in which they came, before any that comes later. Beyond the
    limit they are refused at once.
    """

    def __init__(self, find_missing: FindMissing | None, *, mode: SuspensionMode, limit: int) -> None:
        self._find_missing = find_missing
        self._mode = mode
        self._limit = limit
        self._held: deque[asyncio.Future[None]] = deque()
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_suspended(self) -> bool:
        """True if a request would have to wait."""
        return bool(self._held) or bool(self._missing())

    async def wait(self) -> None:
        """Return when nothing is missing. Raises GatewaySuspended, or Busy if too many wait already."""
        if self._mode == "refuse":
            REFUSED.labels("suspended").inc()
            raise GatewaySuspended(_shown(self._missing()))
        if len(self._held) >= self._limit:
            REFUSED.labels("held").inc()
            raise Busy("the gateway, which waits for missing partitions,", self._limit)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(turn)
        self._look()
        with HELD.track_inprogress():
            try:
                await turn
            finally:
                if turn in self._held:  # its client gave up, or its time is over
                    self._held.remove(turn)

    def close(self) -> None:
        """Refuse all that are held: the gateway is about to stop."""
        error = GatewaySuspended(_shown(self._missing()))
        for turn in self._held:
            if not turn.done():
                turn.set_exception(error)
        self._held.clear()

    def _missing(self) -> Mapping[str, Sequence[int] | None]:
        if self._find_missing is None or self._mode == "ignore":
            return {}
        return self._find_missing()

    def _look(self) -> None:
        if self._looking is None or self._looking.done():
            _logger.warning("requests are held", missing=_shown(self._missing()))
            self._looking = asyncio.create_task(self._resume(), name="headrace-gateway-suspension")

    async def _resume(self) -> None:
        """Let all go on, in order, when nothing is missing any more."""
        while self._held and self._missing():  # noqa: ASYNC110 - the view of the cluster is only looked at
            await asyncio.sleep(_LOOK_EVERY_S)
        _logger.info("requests go on", held=len(self._held))
        while self._held:
            turn = self._held.popleft()
            if not turn.done():
                turn.set_result(None)


def _shown(missing: Mapping[str, Sequence[int] | None]) -> str:
    """Return what is missing, as in `accounts[0, 3], orders`."""
    return ", ".join(name if parts is None else f"{name}{list(parts)}" for name, parts in sorted(missing.items()))
