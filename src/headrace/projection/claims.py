"""Claims: without a database's locks, a worker says which slots it is working on, and others wait for it.

A claim counts as long as its number keeps rising. Who waits watches it by the own clock, so that clocks of different
machines are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["Claim", "ClaimWatch"]


class Claim(msgspec.Struct, frozen=True):
    """The slots that a worker is working on; `beat` rises while it is alive."""

    slots: tuple[int, ...]
    beat: int = 0


class ClaimWatch:
    """What one who waits has seen of the claims of others."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[int, float]] = {}

    def living(self, claims: Mapping[str, Claim], slots: Iterable[int]) -> set[str]:
        """Return who works on some of these slots, without those whose claim has not changed for a whole lease."""
        wanted, now_s = set(slots), time.monotonic()
        found = set()
        for worker, claim in claims.items():
            beat, since_s = self._seen.get(worker, (claim.beat, now_s))
            if beat != claim.beat:
                since_s = now_s
            self._seen[worker] = (claim.beat, since_s)
            if now_s - since_s < self._lease_s and wanted.intersection(claim.slots):
                found.add(worker)
        return found
