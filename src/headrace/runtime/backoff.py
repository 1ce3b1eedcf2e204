"""Waiting: how long before a retry, and for a condition that can only be asked, which one task asks for all."""

from __future__ import annotations

import asyncio
import math
import random as random_source
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import BadArgument

__all__ = ["Backoff", "Lookout"]

SHORTEST_S = 1e-6
LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow by `factor` from `first_s` up to `limit_s`.

    `jitter` is the share of a wait that chance takes away (0 none, 1 all), so that many callers that fail
    together don't retry together.
    """

    first_s: float = 0.1
    factor: float = 2.0
    limit_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.first_s != 0 and not SHORTEST_S <= self.first_s <= LONGEST_S:
            raise BadArgument("first_s", self.first_s, f"the first wait is 0 s, or {SHORTEST_S:g} to {LONGEST_S:g} s")
        if not 1 <= self.factor < math.inf:
            raise BadArgument("factor", self.factor, "waits grow: it must be at least 1")
        if not self.first_s <= self.limit_s <= LONGEST_S:
            raise BadArgument("limit_s", self.limit_s, f"it lies between first_s ({self.first_s:g}) and {LONGEST_S:g}")
        if not 0 <= self.jitter <= 1:
            raise BadArgument("jitter", self.jitter, "it must be a share: 0 to 1")

    def delay_s(self, attempt: int, random: Callable[[], float] = random_source.random) -> float:
        """Return the wait before retry number `attempt`, counted from 1; `random` gives numbers in [0, 1)."""
        if attempt < 1:
            raise BadArgument("attempt", attempt, "retries are counted from 1")
        return self._whole_delay_s(attempt) * (1 - self.jitter * random())

    def _whole_delay_s(self, attempt: int) -> float:
        if self.first_s == 0 or self.factor == 1:
            return self.first_s
        # Compared by logarithms first: factor ** attempt overflows when something stays down for days.
        if (attempt - 1) * math.log(self.factor) >= math.log(self.limit_s / self.first_s):
            return self.limit_s
        return float(min(self.limit_s, self.first_s * self.factor ** (attempt - 1)))


class Lookout:
    """Lets any number of tasks wait for a condition that nobody tells them of.

    Promises: however many wait, the condition is asked once in `every_s`. If each asked for itself, a thousand requests
    that wait for a busy node would keep it from ever being ready.
    """

    def __init__(self, is_so: Callable[[], bool], *, every_s: float) -> None:
        self._is_so = is_so
        self._every_s = every_s
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, timeout_s: float) -> None:
        """Return when the condition held, or the time is up; it may hold no more by then, so look again."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="headrace-lookout")
        await asyncio.wait([self._asking], timeout=timeout_s)

    def close(self) -> None:
        """Let all go on."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        while not self._is_so():  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(self._every_s)
