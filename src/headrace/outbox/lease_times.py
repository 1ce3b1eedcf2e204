"""How long leases and holds last at most.

A time in a lease's row that lies further ahead than these was written before the database's clock was set back. It
means nothing then: a place whose holder died, or that was held back for an instant, would stand still for as long as
the clock needs to come there again.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LeaseTimes"]

# Rounding, and statements of one transaction that read the clock one after the other.
_MARGIN_MS = 1000
# Longer than any relay waits after an error unless its settings say so.
_LONGEST_HOLD_S = 3600.0


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease lives without being renewed, and how long an error holds a place back at most."""

    lease_ms: int
    hold_ms: int

    @classmethod
    def of(cls, lease_s: float, longest_hold_s: float = _LONGEST_HOLD_S) -> LeaseTimes:
        """Return the times of a relay."""
        return cls(int(lease_s * 1000), int(longest_hold_s * 1000) + _MARGIN_MS)
