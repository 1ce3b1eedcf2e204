"""Where a transactional producer stands, and what may be called there."""

from __future__ import annotations

from enum import Enum, auto

from headrace.errors import Closed, Fenced, HeadraceError, TransactionFailed, TransactionMisused
from headrace.log.metrics import TRANSACTIONS

__all__ = ["Standing", "State", "count_outcome"]


class State(Enum):
    """Where a producer stands between two calls."""

    READY = auto()
    OPEN = auto()
    EXPIRED = auto()  # aborted because it was open for too long; its owner does not know yet
    SPENT = auto()  # never to be used again
    CLOSED = auto()


def count_outcome(outcome: str) -> None:
    """Count how a transaction ended."""
    TRANSACTIONS.labels("kafka", outcome).inc()


class Standing:
    """The state of one producer, and the errors for calls that don't fit it."""

    def __init__(self, transactional_id: str, timeout_s: float) -> None:
        self.state = State.READY
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._reason = ""
        self._was_fenced = False
        self._commit_is_known = True

    @property
    def is_spent(self) -> bool:
        """Whether the producer must not be used again."""
        return self.state is State.SPENT

    def expect(self, call: str, *states: State) -> None:
        """Raise what is wrong with `call` now."""
        if self.state in states:
            return
        if self.state is State.CLOSED:
            raise Closed(f"transactional producer {self._transactional_id!r}")
        if self.state is State.SPENT:
            raise self.spent(outcome_known=self._commit_is_known or call != "commit")
        if self.state is State.EXPIRED and call != "begin":
            raise self.expired()
        raise TransactionMisused(self._transactional_id, f"{call} {_PROBLEMS[self.state]}")

    def spend(self, reason: str, *, fenced: bool = False, commit_is_known: bool = True) -> None:
        """Note that the producer must not be used again, and why; the first reason counts."""
        if self.state is State.SPENT:
            return
        self.state = State.SPENT
        self._reason, self._was_fenced, self._commit_is_known = reason, fenced, commit_is_known

    def spent(self, *, outcome_known: bool) -> HeadraceError:
        """Return what to tell somebody who uses a producer that is spent."""
        if self._was_fenced:
            return Fenced(self._transactional_id, outcome_known)
        return TransactionFailed(self._transactional_id, f"{self._reason}; take the id again", outcome_known)

    def expired(self) -> TransactionFailed:
        """Return what to tell the owner of a transaction that was open for too long."""
        reason = f"it was open for longer than its {self._timeout_s:g} s and was aborted"
        return TransactionFailed(self._transactional_id, reason)


_PROBLEMS = {
    State.READY: "without a transaction; begin one first",
    State.OPEN: "while a transaction is open; commit or abort it first",
    State.EXPIRED: "while a transaction is open; commit or abort it first",
}
