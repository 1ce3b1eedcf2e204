"""Command engines: aggregates that decide on commands, with their events in a journal and their state in a topic.

Promises: one writer for each aggregate, anywhere in the cluster; the events and the state of a command are in the log
together or not at all; a reply means that they are there; a command that is sent again with its id is done once, and
gets the same reply, within the bounds of `EngineLimits`; an outcome that is not known is never reported as "not done".
A timer fires once, at or after its time; a record of a command topic, and an event that a saga reacts to, has its
effect once, whichever owner dies.
Does not promise: that a handler runs once. It may run again until its commit succeeds, so it has no effects of its own.
"""

from headrace.engine.auditing import (
    EngineAudit,
    EngineAuditor,
    Suspect,
    audit_engine,
    journal_topic_of,
    stored_values,
)
from headrace.engine.client import Aggregate, AggregateState, EngineClient
from headrace.engine.commands import Answer, CommandRequest, result_of
from headrace.engine.context import CommandContext, Decision, Repeated
from headrace.engine.folding import AggregateDifference, AggregateFold, StoredAggregate, difference_of
from headrace.engine.handling import CommandHandling
from headrace.engine.hosting import EngineHosting, open_partition
from headrace.engine.models import CommandInput, Engine, EngineLimits
from headrace.engine.partition import EnginePartition
from headrace.engine.pausing import EnginePhase, change_engine_phase, engine_phase
from headrace.engine.rebuild_runs import RebuildPlan, begin_rebuild, end_rebuild, rebuild_some
from headrace.engine.rebuilding import (
    EngineGroup,
    PartitionRebuild,
    RebuildWriter,
    RebuiltAggregate,
    fence_partition,
    in_batches,
    rebuild_aggregates,
)
from headrace.engine.records import AggregateRecord, AggregateValues
from headrace.engine.replaying import (
    AggregateReplay,
    EngineReplay,
    ReplayDifference,
    ReplayTally,
    add_replay,
    appends_in,
    replay_some,
    state_difference,
)
from headrace.engine.results import CommandResult, Failed, Reject, Rejected, Success
from headrace.engine.sagas import Saga, SagaContext, saga
from headrace.engine.timers import Cancel, Schedule, Timer
from headrace.engine.topics import RecordLimits, ensure_topics, make_topics
from headrace.engine.upcasting import OldEvent

__all__ = [
    "Aggregate",
    "AggregateDifference",
    "AggregateFold",
    "AggregateRecord",
    "AggregateReplay",
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
    "EngineAudit",
    "EngineAuditor",
    "EngineClient",
    "EngineGroup",
    "EngineHosting",
    "EngineLimits",
    "EnginePartition",
    "EnginePhase",
    "EngineReplay",
    "Failed",
    "OldEvent",
    "PartitionRebuild",
    "RebuildPlan",
    "RebuildWriter",
    "RebuiltAggregate",
    "RecordLimits",
    "Reject",
    "Rejected",
    "Repeated",
    "ReplayDifference",
    "ReplayTally",
    "Saga",
    "SagaContext",
    "Schedule",
    "StoredAggregate",
    "Success",
    "Suspect",
    "Timer",
    "add_replay",
    "appends_in",
    "audit_engine",
    "begin_rebuild",
    "change_engine_phase",
    "difference_of",
    "end_rebuild",
    "engine_phase",
    "ensure_topics",
    "fence_partition",
    "in_batches",
    "journal_topic_of",
    "make_topics",
    "open_partition",
    "rebuild_aggregates",
    "rebuild_some",
    "replay_some",
    "result_of",
    "saga",
    "state_difference",
    "stored_values",
]
