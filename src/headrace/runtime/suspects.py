"""Work that may end its process: how many owners try it, and when it is tried alone.

Owners count in the log, before they begin, that they do; whoever gets past the work sets the count back. So the count
is that of the owners that ended, or lost their partition, while they were at it.
"""

from __future__ import annotations

__all__ = ["OWNERS_TRIED", "is_suspect", "is_tried_alone", "suspect_text"]

OWNERS_TRIED = 3
"""How many owners try what may end its process."""


def is_tried_alone(owners: int) -> bool:
    """Return True if an owner that is the n-th to begin tries one thing at a time, to find the one that is wrong."""
    return owners > 1


def is_suspect(owners: int) -> bool:
    """Return True if the n-th owner to begin must not try the first thing: it ended those before."""
    return owners > OWNERS_TRIED


def suspect_text(owners: int = OWNERS_TRIED) -> str:
    """Return the reason to give for work that is suspect."""
    return f"its process ended {owners} times while it was handled"
