"""The topics of an engine: made and checked, and the journal claimed, so that nobody else writes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.engine.models import Engine
from headrace.engine.timers import TIMERS_INDEX, RecordTimers, Timers
from headrace.errors import UnknownPartition, UnknownTopic, WrongEngineTopic
from headrace.journal import JOURNAL_TOPIC, Topology, claim_for_engine, why_records_expire
from headrace.log import Admin, Log, ensure_topic
from headrace.model import Topic, TopicConfig, TopicPartition
from headrace.state import StateSpec, batch_header_of, changelog_config, ensure_changelog
from headrace.store import SharedSettings

__all__ = [
    "COMMAND_TOPIC",
    "RecordLimits",
    "check_state_there",
    "ensure_command_topic",
    "ensure_topics",
    "make_topics",
    "state_spec",
]

COMMAND_TOPIC = TopicConfig()
"""The settings of a command topic: what was not read within its retention is gone, and is reported as lost."""


class RecordLimits(NamedTuple):
    """How large a record may be, by topic."""

    state_bytes: int
    journal_bytes: int
    outputs_bytes: Mapping[str, int] = {}


def state_spec(engine: Engine[Any]) -> StateSpec[str, Timers]:
    """Return the declaration of the engine's state topic. Its index finds the aggregates whose timers are due."""
    return StateSpec(
        name=engine.name,
        topic=engine.state_topic,
        key=str,
        value=RecordTimers(),
        index={TIMERS_INDEX: RecordTimers.due_times},
        partitions=engine.partitions,
        is_followed=False,
    )


async def ensure_topics(log: Log, settings: SharedSettings | None, engine: Engine[Any]) -> RecordLimits:
    """Make the topics that are missing, claim the journal, and return how large records may be.

    Without `settings` the journal is not claimed, for tests that have no store. Raises WrongEngineTopic,
    WrongStateTopic, and UnknownTopic for an output that does not exist.
    """
    for partition in range(engine.partitions):
        await check_state_there(log, engine, partition)
    return await make_topics(log, settings, engine)


async def make_topics(log: Log, settings: SharedSettings | None, engine: Engine[Any]) -> RecordLimits:
    """Do as `ensure_topics` does, also if the state topic is lost and is about to be rebuilt."""
    state = await _state_topic(log.admin, engine)
    journal_bytes = 0
    if engine.journal_topic is not None:
        journal = await _journal_topic(log.admin, engine, engine.journal_topic)
        journal_bytes = journal.config.max_record_bytes
        if settings is not None:
            await claim_for_engine(log, settings, journal, engine.name)
            # Stores the topic's layout, by which readers, queries by tag and replication find the journals.
            await Topology(log, settings, journal.name, partitions=engine.partitions).layout()
    outputs = {topic: (await log.admin.describe(topic)).config.max_record_bytes for topic in engine.outputs}
    if engine.command_topic is not None:
        commands = await ensure_command_topic(log.admin, engine, engine.command_topic)
        outputs[commands.name] = commands.config.max_record_bytes
    return RecordLimits(state.config.max_record_bytes, journal_bytes, outputs)


async def check_state_there(log: Log, engine: Engine[Any], partition: int) -> None:
    """Refuse to serve a partition whose state is lost while its journal has events. Raises WrongEngineTopic.

    Its aggregates would seem to be new, and their next events, which begin with number 1 again, would be void.
    """
    if engine.journal_topic is None:
        return
    try:
        has_state = (await log.bounds(TopicPartition(engine.state_topic, partition))).high_watermark > 0
    except (UnknownTopic, UnknownPartition):
        has_state = False
    if not has_state and await _has_batches(log, TopicPartition(engine.journal_topic, partition)):
        problem = f"partition {partition} of it is empty, and its journal {engine.journal_topic!r} has events"
        step = "run `headrace engine rebuild MODULE:NAME`"
        raise WrongEngineTopic(engine.name, engine.state_topic, problem, step)


async def _has_batches(log: Log, at: TopicPartition) -> bool:
    """Return True if an engine has written to a partition of its journal."""
    try:
        bounds = await log.bounds(at)
    except (UnknownTopic, UnknownPartition):
        return False
    if bounds.start > 0:
        return True  # what was replicated was removed from the log
    async for batch in log.read(at, bounds.start, bounds.end, headers_only=True):
        if any(batch_header_of(record.headers) is not None for record in batch.records):
            return True
    return False


async def _state_topic(admin: Admin, engine: Engine[Any]) -> Topic:
    config = changelog_config(longest_ttl_ms=None)
    return await ensure_changelog(admin, engine.state_topic, partitions=engine.partitions, config=config)


async def ensure_command_topic(admin: Admin, engine: Engine[Any], name: str) -> Topic:
    """Return the command topic, made if it is missing. It has as many partitions as the engine, as its keys need."""
    try:
        topic = await admin.describe(name)
    except UnknownTopic:
        topic = await ensure_topic(admin, name, partitions=engine.partitions, config=COMMAND_TOPIC)
    if topic.partitions != engine.partitions:
        problem = f"it has {topic.partitions} partitions, the engine is declared with {engine.partitions}"
        raise WrongEngineTopic(engine.name, name, problem, f"name another one, and use commands_from({name!r})")
    return topic


async def _journal_topic(admin: Admin, engine: Engine[Any], name: str) -> Topic:
    """Return the journal's topic. It has as many partitions as the state topic: one owner writes both."""
    try:
        topic = await admin.describe(name)
    except UnknownTopic:
        topic = await ensure_topic(admin, name, partitions=engine.partitions, config=JOURNAL_TOPIC)
    if topic.partitions != engine.partitions:
        problem = f"it has {topic.partitions} partitions, the engine is declared with {engine.partitions}"
        raise WrongEngineTopic(engine.name, name, problem, f"declare {topic.partitions}, or name another topic")
    reason = why_records_expire(topic.config)
    if reason is not None:
        raise WrongEngineTopic(engine.name, name, reason, f"run `headrace topic create {name} --journal`")
    return topic
