"""Whether a request that failed is sent again: pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import HeadraceError, NotPartitionOwner, Unavailable
from headrace.runtime import Backoff

__all__ = ["Attempts", "RetryVerdict", "Trail", "judge"]

_BACKOFF = Backoff(first_s=0.01, factor=1.6, limit_s=0.2, jitter=0.5)


class Attempts(NamedTuple):
    """What happened to a request so far.

    `number` is 1 more than the attempts whose outcome is unknown; `failures` counts all that failed.
    """

    number: int = 1
    failures: int = 0

    def after(self, *, is_unknown: bool) -> Attempts:
        """Return what it is after one more failure."""
        return Attempts(self.number + is_unknown, self.failures + 1)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next attempt."""
        return _BACKOFF.delay_s(self.failures) if self.failures else 0.0


class Trail:
    """The members that one request has asked: the likely owner whenever it is a new one, else the others in turn."""

    def __init__(self) -> None:
        self._likely: str | None = None
        self._asked: str | None = None

    def next(self, candidates: Sequence[str]) -> str:
        """Return whom to ask now; `candidates` begin with the likely owner and are not empty."""
        at = 0
        if candidates[0] == self._likely and self._asked in candidates:
            at = (candidates.index(self._asked) + 1) % len(candidates)
        self._likely, self._asked = candidates[0], candidates[at]
        return self._asked


class RetryVerdict(NamedTuple):
    """What to do after an attempt failed: whether to send again, and whether it may have been done already."""

    retries: bool
    is_unknown: bool


def judge(error: HeadraceError, *, is_repeatable: bool) -> RetryVerdict:
    """Return what to do after an attempt failed.

    A node that does not own the partition, and anything else that says that nothing was done, is tried again. What may
    have been done is repeated only if that is safe: a read, or a command with an id. A refusal is never repeated.
    """
    if isinstance(error, NotPartitionOwner):
        return RetryVerdict(retries=True, is_unknown=False)
    if not isinstance(error, Unavailable):
        return RetryVerdict(retries=False, is_unknown=not getattr(error, "outcome_known", True))
    is_unknown = not error.outcome_known
    return RetryVerdict(retries=is_repeatable or not is_unknown, is_unknown=is_unknown)
