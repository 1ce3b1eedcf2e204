"""How long a lease is: each one has a length of its own, which follows how fast its process and the log are.

On starved processors a short lease never holds: its renewals come late, and its owner is deposed again and again. So
the length doubles when leases run out repeatedly, and is halved after each calm time, down to the configured one.
Decisions only: times are handed in.
"""

from __future__ import annotations

import msgspec

from headrace.cluster.epochs import UNNAMED_LEASE_S
from headrace.errors import BadArgument

__all__ = ["LeaseLength", "LeaseTerms"]

_RENEWALS_PER_LEASE = 3
# A lease that runs out once may be due to a process that was frozen, or to a broker that was restarted. It is a matter
# of its length only if it happens again before so many renewals came in time.
_RENEWALS_TO_TRUST = 5
# A renewal that takes less of the configured length than this leaves no doubt that the length is enough.
_CALM_SHARE = 1 / 6


class LeaseTerms(msgspec.Struct, frozen=True):
    """How long leases last, how long they may become, and how others wait for them.

    `patience` is how many times longer others wait, because clocks don't run equally fast. The next in line for a
    partition waits `rank_step_s` longer than the one before it. After `calm_s` a lease that had grown is shortened.
    """

    lease_s: float = UNNAMED_LEASE_S
    longest_s: float = 4.0
    patience: float = 1.1
    rank_step_s: float = 0.25
    calm_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise BadArgument("lease_s", self.lease_s, "a lease is longer than 0 s")

    def patience_s(self, lease_s: float) -> float:
        """Return how long after the arrival of a renewal a lease of this length is over on any clock."""
        return lease_s * self.patience

    def step_s(self, lease_s: float) -> float:
        """Return how much longer each next in line waits, on a node whose own lease is this long.

        Where leases had to grow, taking a partition is as slow as renewing a lease. Who comes too early only fences
        the one before it.
        """
        return self.rank_step_s * max(1.0, lease_s / self.lease_s / 2)


class LeaseLength:
    """The length that this process' next lease has."""

    def __init__(self, terms: LeaseTerms) -> None:
        self.lease_s = terms.lease_s
        self._terms = terms
        self._renewals_in_time = _RENEWALS_TO_TRUST
        self._calm_since_s: float | None = None

    @property
    def slowness(self) -> float:
        """How many times longer than configured it is."""
        return self.lease_s / self._terms.lease_s

    def came_in_time(self, took_s: float, *, now_s: float) -> bool:
        """Note a renewal that was answered while the lease was valid; returns True if the length changed.

        `took_s` counts from when it was due, so that a process that was late to begin it counts as slow, too.
        """
        self._renewals_in_time += 1
        if self._calm_since_s is None or took_s >= self._terms.lease_s * _CALM_SHARE:
            self._calm_since_s = now_s
        if self.lease_s <= self._terms.lease_s or now_s - self._calm_since_s < self._terms.calm_s:
            return False
        self.lease_s = max(self._terms.lease_s, self.lease_s / 2)
        self._calm_since_s = now_s
        return True

    def ran_out(self) -> bool:
        """Note that a lease was over before its renewal was answered; returns True if the length changed."""
        is_repeated = self._renewals_in_time < _RENEWALS_TO_TRUST
        self._renewals_in_time, self._calm_since_s = 0, None
        longest_s = max(self._terms.longest_s, self._terms.lease_s)
        if not is_repeated or self.lease_s >= longest_s:
            return False
        self.lease_s = min(longest_s, self.lease_s * 2)
        return True


def renew_every_s(lease_s: float) -> float:
    """Return how often a lease of this length is renewed."""
    return lease_s / _RENEWALS_PER_LEASE
