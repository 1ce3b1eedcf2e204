"""The registry in the log: a compacted topic of one partition that every node reads, without another server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.errors import OffsetOutOfRange, OperationFailed, TimedOut, Unavailable
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.serde.compatibility import Level
from headrace.serde.ports import Version
from headrace.serde.registries.entries import Entries, RegistryContents, RegistryEntry, entry_of_level, entry_of_version
from headrace.serde.schemas import Schema

__all__ = ["LogRegistry"]

ATTEMPTS = 100

_log = get_logger(__name__)


class LogRegistry:
    """A registry in a topic. It keeps what it has read, and reads further when it is asked for something unknown."""

    def __init__(self, log: Log, topic: str, *, level: Level = Level.FULL_TRANSITIVE, timeout_s: float = 30.0) -> None:
        self._log = log
        self._at = TopicPartition(topic, 0)
        self._timeout_s = timeout_s
        self._contents = RegistryContents(f"topic {topic!r}", level)
        self._entries = Entries(self._contents)
        self._position = 0
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._is_made = False
        self._is_there = False
        self.levels = LogLevels(self)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Find the schema's version, or write a new one."""
        known = self._contents.find(subject, schema)
        if known is not None:
            return known

        def decide() -> RegistryEntry | None:
            if self._contents.find(subject, schema) is not None:
                return None
            return entry_of_version(self._entries.next_nr, self._contents.next_version(subject, schema))

        await self.write(decide)
        found = self._contents.find(subject, schema)
        if found is None:
            raise OperationFailed(f"registering under {subject!r}", "the topic lost what was just written")
        return found

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema, reading further if it is not known yet."""
        if not self._contents.holds(schema_id):
            await self.read_on()
        return self._contents.schema(schema_id)

    async def versions(self, subject: str) -> Sequence[Version]:
        """Read to the end of the topic, and return the versions."""
        await self.read_on()
        return self._contents.versions(subject)

    async def subjects(self) -> Sequence[str]:
        """Read to the end of the topic, and return the subjects."""
        await self.read_on()
        return self._contents.subjects()

    async def close(self) -> None:
        """Do nothing: the log is closed by its owner."""

    async def level(self, subject: str | None) -> Level:
        """Read to the end of the topic, and return the level."""
        await self.read_on()
        return self._contents.level(subject)

    async def set_level(self, subject: str | None, level: Level) -> None:
        """Write the level."""

        def decide() -> RegistryEntry | None:
            return entry_of_level(self._entries.next_nr, subject, level)

        await self.write(decide)

    async def write(self, decide: Callable[[], RegistryEntry | None]) -> None:
        """Read, decide, write the entry, and check that it counts; if another writer was faster, try again."""
        async with self._writing:
            await self._make_topic()
            for _ in range(ATTEMPTS):
                await self.read_on()
                entry = decide()
                if entry is None or await self._append(entry):
                    return
        raise TimedOut("writing to the schema registry", self._timeout_s)

    async def _append(self, entry: RegistryEntry) -> bool:
        record = NewRecord(self._at.topic, entry.key, entry.value, partition=0)
        try:
            (position,) = await self._log.append([record])
        except Unavailable as error:
            if error.outcome_known:
                raise
            # The entry may be in the log, which reading will show. A second entry with the same number would be void.
            return False
        await self.read_on(past=position.offset)
        if self._entries.counts(entry.key):
            return True
        await self._give_back(entry.key)
        return False

    async def _give_back(self, key: bytes) -> None:
        """Write a tombstone, so that compaction removes a void entry. If that fails, the entry stays, without harm."""
        try:
            await self._log.append([NewRecord(self._at.topic, key, None, partition=0)])
        except Unavailable:
            _log.warning("a void registry entry stays in the topic", topic=self._at.topic, exc_info=True)

    async def read_on(self, *, past: int = -1) -> None:
        """Read and apply new entries up to the present end of the topic, if the topic exists."""
        async with self._reading:
            if not await self._has_topic():
                return
            bounds = await self._log.bounds(self._at)
            start, end = max(self._position, bounds.start), max(bounds.end, past + 1)
            if end < self._position:
                raise OffsetOutOfRange(*self._at, self._position, bounds.start, bounds.end)
            async for batch in self._log.read(self._at, start, end, timeout_s=self._timeout_s):
                for record in batch.records:
                    self._entries.apply(record)
                self._position = batch.next_offset

    async def _has_topic(self) -> bool:
        if not (self._is_made or self._is_there):
            self._is_there = self._at.topic in await self._log.admin.topics()
        return self._is_made or self._is_there

    async def _make_topic(self) -> None:
        if not self._is_made:
            config = TopicConfig(cleanup=Cleanup.COMPACT, retention_ms=None)
            await ensure_topic(self._log.admin, self._at.topic, partitions=1, config=config)
            self._is_made = True


class LogLevels:
    """Levels of subjects, as entries of the same topic."""

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry

    async def get(self, subject: str | None) -> Level:
        """Look it up."""
        return await self._registry.level(subject)

    async def put(self, subject: str | None, level: Level) -> None:
        """Write it."""
        await self._registry.set_level(subject, level)
