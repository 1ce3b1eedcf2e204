"""Projections: a handler is fed every event of a tag, and its offset is stored together with what it writes.

Promises: with a SQL handler each event has its effect exactly once, also over crashes, restarts, rival workers and
rebuilds: the offset is stored in the handler's own transaction, and a worker that was overtaken is rolled back.
Without a database each event is handled at least once. Workers share a tag by journal, so that the events of a journal
are handled in order. An event that can't be handled stops its worker, is skipped, or becomes a dead letter, as the
projection says.
Does not promise: an order between journals that are handled by different workers, or between a dead letter that is
replayed and what its journal wrote after it.

A database needs the extra `projection`, and the driver's own.
"""

from headrace.projection.delivery import Delivery, EventFailed, current_delivery, delivering
from headrace.projection.operations import (
    Lag,
    Rebuilt,
    Replayed,
    catch_up_with_others,
    lag_of,
    next_event,
    rebuild,
    replay_letters,
    skip_event,
    wait_until_handled,
    wait_until_passed,
)
from headrace.projection.ports import DeadLetters, Offsets, Target
from headrace.projection.projection import DeadLetter, HandlerOutcome, Projection, Recovery
from headrace.projection.run import ProjectionRunner
from headrace.projection.slots import check_not_ahead, earliest, slot_of
from headrace.projection.store_target import open_target
from headrace.projection.workers import Attendance, Control, Pause, SlotShare, WorkerReport

__all__ = [
    "Attendance",
    "Control",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "EventFailed",
    "HandlerOutcome",
    "Lag",
    "Offsets",
    "Pause",
    "Projection",
    "ProjectionRunner",
    "Rebuilt",
    "Recovery",
    "Replayed",
    "SlotShare",
    "Target",
    "WorkerReport",
    "catch_up_with_others",
    "check_not_ahead",
    "current_delivery",
    "delivering",
    "earliest",
    "lag_of",
    "next_event",
    "open_target",
    "rebuild",
    "replay_letters",
    "skip_event",
    "slot_of",
    "wait_until_handled",
    "wait_until_passed",
]
