"""Poison: messages that can't be sent, how they differ from a log that is away, and what they hold back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.errors import BadArgument, RecordTooLarge, TimestampTooFarAhead, TransactionFailed
from headrace.outbox.messages import PendingMessage
from headrace.outbox.ports import PoisonPolicy
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["is_about_a_record", "not_behind", "refused_by_broker"]

# A time that is refused and is older than this may be too old for its topic.
_RECENT_MS = 3_600_000

# What a log says to one record and not to the batch. Everything else may pass, or an operator may fix it:
# a broker that is away, a topic that is missing, a permission that was taken.
_ABOUT_A_RECORD = (BadArgument, RecordTooLarge, TimestampTooFarAhead)


def is_about_a_record(error: Exception, *, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Return True if one of the records is at fault, whatever the state of the log.

    No record has a time later than this machine's clock. So if one with a recent time is refused for it, the clocks
    are apart, and all other records would be refused as well.
    """
    if isinstance(error, TimestampTooFarAhead) and (error.timestamp_ms or 0) > clock.now_ms() - _RECENT_MS:
        return False
    return isinstance(error, _ABOUT_A_RECORD)


def refused_by_broker(error: Exception) -> Exception | None:
    """Return what a broker said to one of a transaction's records, where the transaction failed by it."""
    reason = error.__cause__ if isinstance(error, TransactionFailed) else error
    return reason if isinstance(reason, Exception) and is_about_a_record(reason) else None


def not_behind(
    refused: Mapping[int, str], rows: Sequence[PendingMessage], policy: PoisonPolicy
) -> Callable[[PendingMessage], bool]:
    """Return the claim that a message is not held back by one of the refused ones."""
    if not refused or policy == "skip":
        return lambda row: True
    if policy == "block_topic":
        first = min(refused)
        return lambda row: row.id < first
    blocked: dict[bytes, int] = {}
    for row in rows:
        if row.id in refused and row.order_key is not None:
            blocked.setdefault(row.order_key, row.id)
    return lambda row: row.order_key is None or row.id < blocked.get(row.order_key, row.id + 1)
