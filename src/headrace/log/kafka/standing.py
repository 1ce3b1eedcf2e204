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
    UNSETTLED = auto()  # a commit ran out of time; only another commit can tell
    ABORTING = auto()  # an abort ran out of time; it comes before anything else
    DEAD = auto()
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
        self._was_fenced = False

    def expect(self, call: str, *states: State) -> None:
        """Raise what is wrong with `call` now."""
        if self.state in states:
            return
        if self.state is State.CLOSED:
            raise Closed(f"transactional producer {self._transactional_id!r}")
        if self.state is State.DEAD:
            raise self._dead()
        if self.state is State.EXPIRED and call != "begin":
            raise self.expired()
        raise TransactionMisused(self._transactional_id, f"{call} {_PROBLEMS[self.state]}")

    def die(self, outcome: str) -> None:
        """Note that the producer can do no more, and count why, once."""
        if self.state is not State.DEAD:
            count_outcome(outcome)
        self.state = State.DEAD
        self._was_fenced = outcome == "fenced"

    def expired(self) -> TransactionFailed:
        """Return what to tell the owner of a transaction that was open for too long."""
        reason = f"it was open for longer than its {self._timeout_s:g} s and was aborted"
        return TransactionFailed(self._transactional_id, reason)

    def _dead(self) -> HeadraceError:
        if self._was_fenced:
            return Fenced(self._transactional_id)
        return TransactionMisused(self._transactional_id, "this producer has failed for good; take the id again")


_PROBLEMS = {
    State.READY: "without a transaction; begin one first",
    State.OPEN: "while a transaction is open; commit or abort it first",
    State.EXPIRED: "while a transaction is open; commit or abort it first",
    State.UNSETTLED: "while the outcome of a commit is not known; commit again to learn it, or take the id again",
    State.ABORTING: "after a failed transaction that is not aborted yet; abort it, or begin the next one",
}
