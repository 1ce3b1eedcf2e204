"""Projections: a handler is fed every event of a tag, and where it is is kept with what it made of them.

Promises: with a SQL handler each event has its effect exactly once, crashes, restarts and rival workers included: the
offset is stored in the handler's own transaction, and a worker that was overtaken is rolled back. Without a database
at least once. Workers share a tag by journal, so that one journal's events are handled in order.
Does not promise: an order between journals that are handled by different workers.

A database needs the extra `projection`, and the driver's own.
"""

from headrace.projection.definitions import Projection
from headrace.projection.rebuilding import Rebuilt, rebuild
from headrace.projection.running import ProjectionRunner
from headrace.projection.slots import slot_of
from headrace.projection.targets import open_target

__all__ = ["Projection", "ProjectionRunner", "Rebuilt", "open_target", "rebuild", "slot_of"]
