"""A journal topic that belongs to a command engine: the engine is its only writer, and all others are refused.

The claim is one of the topic's terms in the store. Writers read it with the topic's layout, and trust both for the
length of a lease; so an engine that claims a topic waits for the longest lease before it writes.
"""

from __future__ import annotations

import asyncio

import msgspec

from headrace.errors import WrongEngineTopic
from headrace.journal.retention import TopicTerms, change_terms, read_terms
from headrace.journal.topology import longest_lease_s
from headrace.log import Log
from headrace.model import Topic, TopicPartition
from headrace.protocol import Mark, decode_action
from headrace.store import SharedSettings

__all__ = ["claim_for_engine", "release_from_engine"]


async def claim_for_engine(log: Log, settings: SharedSettings, topic: Topic, engine: str) -> None:
    """Make an engine the only writer of a topic's journals. Raises WrongEngineTopic.

    The topic must be another engine's neither, nor shared, nor hold events: the engine would not know them.
    """
    terms = await read_terms(settings, topic.name)
    if terms.engine == engine:
        return
    _check_free(terms, topic.name, engine)
    await _check_empty(log, topic, engine)

    def claim(found: TopicTerms) -> TopicTerms:
        _check_free(found, topic.name, engine)
        return msgspec.structs.replace(found, engine=engine)

    await change_terms(settings, topic.name, claim)
    await asyncio.sleep(await longest_lease_s(settings, topic.name))  # from now on nobody trusts the old terms
    try:
        await _check_empty(log, topic, engine)
    except WrongEngineTopic:
        await release_from_engine(settings, topic.name, engine)
        raise


async def release_from_engine(settings: SharedSettings, topic: str, engine: str) -> None:
    """Let others write to a topic again, if this engine has claimed it."""

    def release(found: TopicTerms) -> TopicTerms:
        return msgspec.structs.replace(found, engine="") if found.engine == engine else found

    await change_terms(settings, topic, release)


def _check_free(terms: TopicTerms, topic: str, engine: str) -> None:
    if terms.engine not in ("", engine):
        raise WrongEngineTopic(engine, topic, f"it is the journal of engine {terms.engine!r}", "choose another topic")
    if terms.is_shared:
        raise WrongEngineTopic(engine, topic, "it is shared with other services", "choose a topic of its own")


async def _check_empty(log: Log, topic: Topic, engine: str) -> None:
    for partition in range(topic.partitions):
        at = TopicPartition(topic.name, partition)
        bounds = await log.bounds(at)
        if bounds.start > 0 and bounds.start == bounds.end:
            raise _has_events(engine, topic.name)  # they are in the store
        async for batch in log.read(at, bounds.start, bounds.end, headers_only=True):
            actions = map(decode_action, batch.records)
            if any(action is not None and not isinstance(action, Mark) for action in actions):
                raise _has_events(engine, topic.name)


def _has_events(engine: str, topic: str) -> WrongEngineTopic:
    problem = "it has journals that others wrote, and that the engine's state does not know"
    return WrongEngineTopic(engine, topic, problem, "name a topic of its own (journal=…)")
