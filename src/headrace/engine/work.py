"""Work of a batch that no caller has sent: records of topics, timers. It is handled in its place among the commands.

What it decides and writes is part of a batch like what commands do: it is handled again when its batch was not
committed, and it is there once when the batch was. Nobody has to remember an id for that: the same batch holds the
proof that the work is done, such as the place in a topic or a record without its timer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from headrace.engine.commands import SuccessReply
from headrace.engine.handling import HandledCommand
from headrace.engine.records import AggregateRecord
from headrace.state import BatchName

__all__ = ["NOTHING_DONE", "NOTHING_HANDLED", "BatchWork", "WorkOutcome"]

NOTHING_DONE = SuccessReply(0, None, b"[]")
"""The reply to work that had nothing to do, or that concerns no aggregate."""

NOTHING_HANDLED = HandledCommand(NOTHING_DONE)
"""Work that changes no aggregate and writes no records."""


class WorkOutcome(NamedTuple):
    """What work leads to, and the partition's own records that change with it."""

    handled: HandledCommand
    states: Mapping[bytes, bytes] = {}


class BatchWork(Protocol):
    """One piece of work. `decide` may wait and may run again; `finish` decides for the batch that is open."""

    @property
    def has_aggregate(self) -> bool:
        """True if it needs the record of the aggregate in whose lane it waits."""
        ...

    async def decide(self, record: AggregateRecord | None, *, floor: BatchName, now_ms: int) -> Any:  # noqa: ANN401
        """Return what `finish` needs. Raises HeadraceError if the work can't be done now."""
        ...

    def finish(
        self,
        record: AggregateRecord | None,
        decided: Any,  # noqa: ANN401
        *,
        batch: BatchName,
        floor: BatchName,
        now_ms: int,
    ) -> WorkOutcome | None:
        """Return what goes into the batch; None if there is nothing to do."""
        ...
