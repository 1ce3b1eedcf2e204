"""Who is alive, as others see it: without a database's locks, workers say what they are at, and others wait for them.

A claim counts as long as its number keeps rising. Who waits watches it by the own clock, so that clocks of different
machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

__all__ = ["BeatWatch", "Claim", "ClaimWatch"]


_LOOKS_PER_LEASE = 4


class BeatWatch:
    """What one process has seen of the beats of others.

    Time counts only while we look: a long while between two looks, in which we ourselves stood still, says nothing
    about others.
    """

    def __init__(self, lease_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._now_s = now_s
        self._looked_s = now_s()
        self._silent_s: dict[str, tuple[int, float]] = {}

    def living(self, beats: Mapping[str, int]) -> set[str]:
        """Return those whose beat has changed within a lease; who is seen for the first time counts as alive."""
        now_s = self._now_s()
        passed_s = min(now_s - self._looked_s, self._lease_s / _LOOKS_PER_LEASE)
        self._looked_s = now_s
        before, self._silent_s = self._silent_s, {}
        for name, beat in beats.items():
            known, silent_s = before.get(name, (None, 0.0))
            self._silent_s[name] = (beat, silent_s + passed_s if beat == known else 0.0)
        return {name for name, (_, silent_s) in self._silent_s.items() if silent_s < self._lease_s}


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
