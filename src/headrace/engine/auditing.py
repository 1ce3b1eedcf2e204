"""The audit of an engine: the state of each aggregate is the fold of its journal, and the versions are equal.

State and journal are written in one transaction, and read one after the other. So an aggregate that seems wrong is
looked at again, and is reported only if it stays as it is: the engine may be at work meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.engine.folding import AggregateDifference, AggregateFold, StoredAggregate, difference_of
from headrace.engine.models import Engine
from headrace.engine.records import AggregateValues
from headrace.errors import BadArgument, HeadraceError, JournalHeld, ReadAgain, Refused, UnknownTopic
from headrace.log import Log
from headrace.model import StoredEvent, TopicPartition, partition_of
from headrace.protocol import Append, Purge, decode_action
from headrace.serde import Registry
from headrace.state import is_reserved

__all__ = [
    "EngineAudit",
    "EngineAuditor",
    "JournalEvents",
    "Suspect",
    "audit_engine",
    "journal_ids",
    "journal_topic_of",
    "stored_values",
]

S = TypeVar("S")

_LOOKS = 5
_LOOK_AGAIN_S = 0.2
_SIDE_BY_SIDE = 8


class JournalEvents(Protocol):
    """What an audit needs of a Journal."""

    def read(self, id_: str, from_seq_nr: int = 1, *, to_seq_nr: int | None = None) -> AsyncIterator[StoredEvent]:
        """Yield the events of an aggregate."""
        ...

    def ids(self) -> AsyncIterator[str]:
        """Yield the ids of journals that are replicated."""
        ...


class EngineAudit(NamedTuple):
    """What an audit found: how many aggregates it looked at, how many differ, and the first of those."""

    engine: str
    aggregates: int
    found: int = 0
    differences: Sequence[AggregateDifference] = ()

    @property
    def is_clean(self) -> bool:
        """True if every state is the fold of its journal."""
        return self.found == 0


class Suspect(NamedTuple):
    """An aggregate that seems to differ, with the record that it was compared by."""

    value: bytes | None
    difference: AggregateDifference


class EngineAuditor(Generic[S]):
    """Compares aggregates with their journals, in this process. The codec of `values` is open."""

    def __init__(self, log: Log, journal: JournalEvents, engine: Engine[S], values: AggregateValues) -> None:
        journal_topic_of(engine)
        self._log = log
        self._journal = journal
        self._engine = engine
        self._values = values

    async def audit(self, ids: Collection[str] | None = None) -> EngineAudit:
        """Look at these aggregates, or at all that the state topic, the log or the store know."""
        stored: dict[str, bytes | None] = {}
        for partition in _partitions_of(self._engine, ids):
            stored |= await stored_values(self._log, self._engine, partition, ids)
        wanted = set(stored) | (set(ids) if ids is not None else await self._journals())
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def look(id_: str) -> AggregateDifference | None:
            async with turn:
                found = await self._look(id_, stored.get(id_))
                return None if found is None else await self.look_again(id_, found)

        looks = await asyncio.gather(*(look(id_) for id_ in sorted(wanted)))
        found = [each for each in looks if each is not None]
        return EngineAudit(self._engine.name, len(wanted), len(found), found)

    async def confirmed(self, suspects: Mapping[str, Suspect]) -> list[AggregateDifference]:
        """Return the differences that are real, of those that one pass over state topic and journals has found.

        State and journal were read side by side. A record that has not changed since is at least as new as the journal
        was, so that it is wrong unless it is ahead; only the others need their journals read again.
        """
        now: dict[str, bytes | None] = {}
        for partition in _partitions_of(self._engine, suspects):
            now |= await stored_values(self._log, self._engine, partition, suspects)
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def settled(id_: str, suspect: Suspect) -> AggregateDifference | None:
            difference = suspect.difference
            is_ahead = (difference.stored_version or 0) > (difference.folded_version or 0)
            if now.get(id_) == suspect.value and not is_ahead:
                return difference
            async with turn:
                return await self.look_again(id_)

        real = await asyncio.gather(*(settled(id_, suspect) for id_, suspect in suspects.items()))
        return [each for each in real if each is not None]

    async def look_again(self, id_: str, found: AggregateDifference | None = None) -> AggregateDifference | None:
        """Return how an aggregate differs; None if it does not, or if it is only being changed.

        It differs if two looks in a row show the same difference, or if every look shows one.
        """
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_AGAIN_S if found is not None else 0)
            again = await self._look(id_, await self.stored(id_))
            if again is None or again == found:
                return again
            found = again
        return found

    async def stored(self, id_: str) -> bytes | None:
        """Return an aggregate's record in the state topic; None if it has none."""
        (partition,) = _partitions_of(self._engine, [id_])
        return (await stored_values(self._log, self._engine, partition, [id_])).get(id_)

    async def _look(self, id_: str, value: bytes | None) -> AggregateDifference | None:
        """Compare a record with the journal, which is read after it and may have grown since."""
        stored = StoredAggregate(id_, value)
        version = await self._version(value)
        at_version: AggregateDifference | None = None
        fold = AggregateFold(self._engine, id_)
        try:
            async for event in self._journal.read(id_):
                if fold.version == version and event.seq_nr > version:
                    at_version = difference_of(self._values, stored, fold)
                fold.add(event)
        except ReadAgain:  # it was purged during the read, and is looked at again
            return AggregateDifference(id=id_, kind="version", problem="the journal changes")
        except (Refused, JournalHeld) as error:
            return difference_of(self._values, stored, error)
        difference = difference_of(self._values, stored, fold)
        if difference is None or at_version is not None or not 0 < version < fold.version:
            return at_version or difference
        return await self._unless_moved_on(difference, fold.version)

    async def _unless_moved_on(self, difference: AggregateDifference, reached: int) -> AggregateDifference | None:
        """Return the difference unless the record has reached the events that came after the first look."""
        return None if await self._version(await self.stored(difference.id)) >= reached else difference

    async def _version(self, value: bytes | None) -> int:
        """Return the version in a record, and get ready to decode its state; 0 if there is none, or it is damaged."""
        if value is None:
            return 0
        try:
            await self._values.prepare(value)
            return self._values.decode(value).version
        except HeadraceError:
            return 0  # the comparison says what is wrong with it

    async def _journals(self) -> set[str]:
        found = {id_ async for id_ in self._journal.ids()}
        for partition in range(self._engine.partitions):
            found |= await journal_ids(self._log, TopicPartition(journal_topic_of(self._engine), partition))
        return found


async def audit_engine(
    log: Log,
    journal: JournalEvents,
    engine: Engine[Any],
    *,
    ids: Collection[str] | None = None,
    registry: Registry | None = None,
) -> EngineAudit:
    """Compare aggregates, these or all, with their journals. The engine may be at work meanwhile."""
    values = AggregateValues(engine.state_codec(registry))
    await values.open()
    return await EngineAuditor(log, journal, engine, values).audit(ids)


def journal_topic_of(engine: Engine[Any]) -> str:
    """Return the topic of the engine's journal. Raises BadArgument if it has none: its state follows from nothing."""
    if engine.journal_topic is None:
        raise BadArgument("engine", engine.name, "it has no journal that its state could be compared with or made from")
    return engine.journal_topic


async def stored_values(
    log: Log, engine: Engine[Any], partition: int, ids: Collection[str] | None = None
) -> dict[str, bytes | None]:
    """Return the records of a partition of the state topic by aggregate, of these or of all; none of deleted ones.

    A topic that does not exist has no records. Keys that are not text are no aggregate's, and are left out.
    """
    at = TopicPartition(engine.state_topic, partition)
    wanted = None if ids is None else {id_.encode() for id_ in ids}
    newest: dict[bytes, bytes | None] = {}
    try:
        bounds = await log.bounds(at)
    except UnknownTopic:
        return {}
    # Up to the high watermark: a commit is answered before its end can be read.
    async for batch in log.read(at, bounds.start, bounds.high_watermark):
        for record in batch.records:
            if record.key is not None and (record.key in wanted if wanted is not None else not is_reserved(record.key)):
                newest[record.key] = record.value
    return {id_: value for id_, value in _texts(newest).items() if value is not None}


def _texts(values: Mapping[bytes, bytes | None]) -> dict[str, bytes | None]:
    found = {}
    for key, value in values.items():
        try:
            found[key.decode()] = value
        except UnicodeDecodeError:
            continue
    return found


async def journal_ids(log: Log, at: TopicPartition) -> set[str]:
    """Return the ids of all journals that the log has appends or purges of, in one partition."""
    bounds = await log.bounds(at)
    found: set[bytes] = set()
    async for batch in log.read(at, bounds.start, bounds.high_watermark, headers_only=True):
        actions = ((record.key, decode_action(record)) for record in batch.records)
        found |= {key for key, action in actions if key is not None and isinstance(action, Append | Purge)}
    return set(_texts(dict.fromkeys(found)))


def _partitions_of(engine: Engine[Any], ids: Collection[str] | None) -> list[int]:
    if ids is None:
        return list(range(engine.partitions))
    return sorted({partition_of(id_.encode(), engine.partitions) for id_ in ids})
