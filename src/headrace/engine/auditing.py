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

    def read_many(self, ids: Collection[str]) -> AsyncIterator[tuple[str, AsyncIterator[StoredEvent]]]:
        """Yield each id with its events; what is not replicated is read once for all of them."""
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


class _Look(NamedTuple):
    """How an aggregate differs from its journal; `grown_to` is the version of a journal that grew during the look."""

    difference: AggregateDifference | None
    grown_to: int | None = None


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
        stored = await self.stored(ids)
        wanted = set(stored) | (set(ids) if ids is not None else await self._journals())
        found = await self._settled(await self._looked({id_: stored.get(id_) for id_ in sorted(wanted)}))
        return EngineAudit(self._engine.name, len(wanted), len(found), found)

    async def confirmed(self, suspects: Mapping[str, Suspect]) -> list[AggregateDifference]:
        """Return the differences that are real, of those that one pass over state topic and journals has found.

        State and journal were read side by side. A record that has not changed since is at least as new as the journal
        was, so that it is wrong unless it is ahead; only the others need their journals read again.
        """
        now = await self.stored(suspects)
        real: list[AggregateDifference] = []
        unsure: list[str] = []
        for id_, (value, difference) in suspects.items():
            is_ahead = (difference.stored_version or 0) > (difference.folded_version or 0)
            if now.get(id_) == value and not is_ahead:
                real.append(difference)
            else:
                unsure.append(id_)
        looked = await self._looked({id_: now.get(id_) for id_ in unsure})
        return real + await self._settled(looked)

    async def _settled(self, found: Mapping[str, AggregateDifference]) -> list[AggregateDifference]:
        """Look again at what differs, and return what does so for good: an aggregate may only be being changed.

        It differs if two looks in a row show the same difference, or if every look shows one.
        """
        real: dict[str, AggregateDifference] = {}
        for _ in range(_LOOKS):
            if not found:
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
            stored = await self.stored(found)
            again = await self._looked({id_: stored.get(id_) for id_ in found})
            real |= {id_: each for id_, each in again.items() if each == found[id_]}
            found = {id_: each for id_, each in again.items() if id_ not in real}
        return [each for _, each in sorted((real | dict(found)).items())]

    async def _looked(self, stored: Mapping[str, bytes | None]) -> dict[str, AggregateDifference]:
        """Compare records with the journals, which are read after them and may have grown since."""
        found: dict[str, AggregateDifference] = {}
        grown: dict[str, int] = {}
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def look(id_: str, events: AsyncIterator[StoredEvent]) -> None:
            try:
                look = await self._look(StoredAggregate(id_, stored[id_]), events)
            finally:
                turn.release()
            if look.difference is not None:
                found[id_] = look.difference
                if look.grown_to is not None:
                    grown[id_] = look.grown_to

        looks: list[asyncio.Task[None]] = []
        try:
            async for id_, events in self._journal.read_many(stored):
                await turn.acquire()
                looks.append(asyncio.create_task(look(id_, events)))
            await asyncio.gather(*looks)
        finally:
            for each in looks:
                each.cancel()
        for id_ in await self._reached(grown):
            del found[id_]
        return found

    async def _look(self, stored: StoredAggregate, events: AsyncIterator[StoredEvent]) -> _Look:
        version = await self._version(stored.value)
        at_version: AggregateDifference | None = None
        fold = AggregateFold(self._engine, stored.id)
        try:
            async for event in events:
                if fold.version == version and event.seq_nr > version:
                    at_version = difference_of(self._values, stored, fold)
                fold.add(event)
        except ReadAgain:  # it was purged during the read, and is looked at again
            return _Look(AggregateDifference(id=stored.id, kind="version", problem="the journal changes"))
        except (Refused, JournalHeld) as error:
            return _Look(difference_of(self._values, stored, error))
        difference = difference_of(self._values, stored, fold)
        if difference is None or at_version is not None or not 0 < version < fold.version:
            return _Look(at_version or difference)
        return _Look(difference, grown_to=fold.version)

    async def _reached(self, grown: Mapping[str, int]) -> list[str]:
        """Return the aggregates whose records have reached the events that came after the first look."""
        if not grown:
            return []
        now = await self.stored(grown)
        return [id_ for id_, version in grown.items() if await self._version(now.get(id_)) >= version]

    async def stored(self, ids: Collection[str] | None) -> dict[str, bytes | None]:
        """Return the records of these aggregates, or of all, in one pass over their partitions of the state topic."""
        stored: dict[str, bytes | None] = {}
        for partition in _partitions_of(self._engine, ids):
            stored |= await stored_values(self._log, self._engine, partition, ids)
        return stored

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
