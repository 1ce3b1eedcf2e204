"""Command engines: aggregates that decide on commands, with their events in a journal and their state in a topic.

Promises: one writer for each aggregate, anywhere in the cluster; the events and the state of a command are in the log
together or not at all; a reply means that they are there; a command that is sent again with its id is done once, and
gets the same reply, within the bounds of `EngineLimits`; what can't be told is said to be unknown, never "not done".
A timer fires once, at or after its time; a record of a command topic, and an event that a saga reacts to, has its
effect once, whichever owner dies.
Does not promise: that a handler runs once. It may run again until its commit succeeds, so it has no effects of its own.
"""

from headrace.engine.client import Aggregate, AggregateState, EngineClient
from headrace.engine.commands import Answer, CommandRequest, result_of
from headrace.engine.context import CommandContext
from headrace.engine.handling import CommandHandling, Decision, RecordLimits, Repeated
from headrace.engine.hosting import EngineHosting, open_partition
from headrace.engine.models import CommandInput, Engine, EngineLimits
from headrace.engine.partition import EnginePartition
from headrace.engine.records import AggregateRecord, AggregateValues
from headrace.engine.results import CommandResult, Failed, Reject, Rejected, Success
from headrace.engine.sagas import Saga, SagaContext, saga
from headrace.engine.timers import Cancel, Schedule, Timer
from headrace.engine.topics import ensure_topics

__all__ = [
    "Aggregate",
    "AggregateRecord",
    "AggregateState",
    "AggregateValues",
    "Answer",
    "Cancel",
    "CommandContext",
    "CommandHandling",
    "CommandInput",
    "CommandRequest",
    "CommandResult",
    "Decision",
    "Engine",
    "EngineClient",
    "EngineHosting",
    "EngineLimits",
    "EnginePartition",
    "Failed",
    "RecordLimits",
    "Reject",
    "Rejected",
    "Repeated",
    "Saga",
    "SagaContext",
    "Schedule",
    "Success",
    "Timer",
    "ensure_topics",
    "open_partition",
    "result_of",
    "saga",
]
