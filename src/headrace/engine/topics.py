"""The topics of an engine: made and checked, and the journal claimed, so that nobody else writes to it."""

from __future__ import annotations

from typing import Any

from headrace.engine.handling import RecordLimits
from headrace.engine.models import Engine
from headrace.engine.timers import TIMERS_INDEX, RecordTimers, Timers
from headrace.errors import UnknownTopic, WrongEngineTopic
from headrace.journal import JOURNAL_TOPIC, Topology, claim_for_engine, why_records_expire
from headrace.log import Admin, Log, ensure_topic
from headrace.model import Topic, TopicConfig
from headrace.state import StateSpec, changelog_config, ensure_changelog
from headrace.store import SharedSettings

__all__ = ["COMMAND_TOPIC", "ensure_command_topic", "ensure_topics", "state_spec"]

COMMAND_TOPIC = TopicConfig()
"""The settings of a command topic: what was not read within its retention is gone, and is reported as lost."""


def state_spec(engine: Engine[Any]) -> StateSpec[str, Timers]:
    """Return the declaration of the engine's state topic. Its index finds the aggregates whose timers are due."""
    return StateSpec(
        name=engine.name,
        topic=engine.state_topic,
        key=str,
        value=RecordTimers(),
        index={TIMERS_INDEX: RecordTimers.due_times},
        partitions=engine.partitions,
    )


async def ensure_topics(log: Log, settings: SharedSettings | None, engine: Engine[Any]) -> RecordLimits:
    """Make the topics that are missing, claim the journal, and return how large records may be.

    Without `settings` the journal is not claimed, for tests that have no store. Raises WrongEngineTopic,
    WrongStateTopic, and UnknownTopic for an output that does not exist.
    """
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
