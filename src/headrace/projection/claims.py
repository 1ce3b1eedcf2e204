"""Who is alive, as others see it: without a database's locks, workers say what they are at, and others wait for them.

A claim counts as long as its number keeps rising. Who waits watches it by the own clock, so that clocks of different
machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

__all__ = ["BeatWatch", "Claim", "ClaimWatch"]


class BeatWatch:
    """What one process has seen of the beats of others."""

    def __init__(self, lease_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._now_s = now_s
        self._seen: dict[str, tuple[int, float]] = {}

    def living(self, beats: Mapping[str, int]) -> set[str]:
        """Return those whose beat has changed within a lease; who is seen for the first time counts as alive."""
        now_s = self._now_s()
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == beat else (beat, now_s)
            for name, beat in beats.items()
        }
        return {name for name, (_, since_s) in self._seen.items() if now_s - since_s < self._lease_s}


class Claim(msgspec.Struct, frozen=True):
    """The slots that a worker is working on; `beat` rises while it is alive."""

    slots: tuple[int, ...]
    beat: int = 0


class ClaimWatch:
    """What one who waits for slots has seen of the claims of others."""

    def __init__(self, lease_s: float) -> None:
        self._beats = BeatWatch(lease_s)

    def living(self, claims: Mapping[str, Claim], slots: Iterable[int]) -> set[str]:
        """Return who works on some of these slots, without those whose claim has not changed for a whole lease."""
        wanted = set(slots)
        alive = self._beats.living({worker: claim.beat for worker, claim in claims.items()})
        return {worker for worker in alive if wanted.intersection(claims[worker].slots)}
