"""The registry in the log: a compacted topic of one partition that every node reads, without another server.

An entry says what it adds, and its number `nr`: one more than that of the last entry its writer had seen. The first
entry with a number counts, in the order of the log; later ones with the same number are void, and their writers try
again. So nodes that register at the same time agree on every id without a lock. The fold only counts numbers, so nodes
with different versions of the compatibility rules agree too.

Every entry has a key of its own, so compaction never removes one that counts and never reorders entries. Void entries
are removed by a tombstone.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import IncompatibleData, OffsetOutOfRange, OperationFailed, TimedOut, Unavailable
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.serde.compatibility import Level
from headrace.serde.ports import Version
from headrace.serde.registries.memory import RegistryContents
from headrace.serde.schemas import Schema

__all__ = ["Entries", "LogRegistry", "entry_of_level", "entry_of_version"]

ATTEMPTS = 100
FORMAT = 1

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


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """An entry as a record of the log."""

    key: bytes
    value: bytes


def entry_of_version(nr: int, version: Version) -> RegistryEntry:
    """Return the entry that adds a version."""
    content = {"subject": version.subject, "version": version.version, "id": version.schema_id}
    return _entry(nr, {**content, "schema": version.schema.text})


def entry_of_level(nr: int, subject: str | None, level: Level) -> RegistryEntry:
    """Return the entry that sets a level."""
    return _entry(nr, {"subject": subject, "level": level})


class Entries:
    """Folds entries, in the order of the log, into the contents."""

    def __init__(self, contents: RegistryContents) -> None:
        self._contents = contents
        self._last_nr = 0
        self._counted: set[bytes | None] = set()

    @property
    def next_nr(self) -> int:
        """The number that the next entry must have to count."""
        return self._last_nr + 1

    def counts(self, key: bytes) -> bool:
        """Return True if the entry with this key counts."""
        return key in self._counted

    def apply(self, record: Record) -> None:
        """Apply the entry of a record, if it counts. Raises IncompatibleData."""
        if record.value is None:
            return
        content = _content(record)
        if content["nr"] < self.next_nr:
            return
        if content["nr"] > self.next_nr:
            # The writer had seen the entry before it, so that entry was in the log.
            found = f"entry {content['nr']} without entry {self.next_nr}"
            raise IncompatibleData(_where(record), found, "topics that were never truncated")
        if "level" in content:
            self._contents.set_level(content["subject"], Level(content["level"]))
        else:
            schema = Schema(content["schema"])
            self._contents.add(Version(content["subject"], content["version"], content["id"], schema))
        self._last_nr = content["nr"]
        self._counted.add(record.key)


def _entry(nr: int, content: dict[str, Any]) -> RegistryEntry:
    value = json.dumps({"format": FORMAT, "nr": nr, **content}, ensure_ascii=False)
    return RegistryEntry(f"{nr}/{uuid.uuid4().hex}".encode(), value.encode())


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}] offset {record.offset}"


def _content(record: Record) -> dict[str, Any]:
    where = _where(record)
    try:
        content: dict[str, Any] = json.loads(record.value or b"")
        found = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleData(where, "no entry of a schema registry", f"format {FORMAT}") from error
    if found != FORMAT:
        raise IncompatibleData(where, f"format {found}", f"format {FORMAT}")
    return content
