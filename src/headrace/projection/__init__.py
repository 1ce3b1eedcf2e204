"""Projections: a handler is fed every event of a tag, and where it is is kept with what it made of them.

Promises: with a SQL handler each event has its effect exactly once, crashes, restarts, rival workers and rebuilds
included: the offset is stored in the handler's own transaction, and a worker that was overtaken is rolled back.
Without a database at least once. Workers share a tag by journal, so that one journal's events are handled in order.
An event that can't be handled stops its worker, is passed over, or is set aside, as the projection says.
Does not promise: an order between journals that are handled by different workers, or between a dead letter that is
replayed and what its journal wrote after it.

A database needs the extra `projection`, and the driver's own.
"""

from headrace.projection.definitions import Projection
from headrace.projection.delivery import Delivery, current_delivery
from headrace.projection.operating import Lag, Replayed, lag_of, replay_letters, wait_until_handled
from headrace.projection.rebuilding import Rebuilt, rebuild
from headrace.projection.recovery import DeadLetter, Outcome, Recovery
from headrace.projection.running import ProjectionRunner
from headrace.projection.slots import slot_of
from headrace.projection.targets import open_target

__all__ = [
    "DeadLetter",
    "Delivery",
    "Lag",
    "Outcome",
    "Projection",
    "ProjectionRunner",
    "Rebuilt",
    "Recovery",
    "Replayed",
    "current_delivery",
    "lag_of",
    "open_target",
    "rebuild",
    "replay_letters",
    "slot_of",
    "wait_until_handled",
]
