"""How many partitions each keyspace has, and in which topics: a compacted topic that all nodes of a cluster follow.

A keyspace keeps its number of partitions until it is resized: then its values are copied to new topics, under a new
generation, and the old ones are closed for good.

Beside a layout is what the states were written as: a release that can't read it is refused. An index is no part of
that: it is made of the values, and built again. Nor is a schema: the registry says what fits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.errors import BadArgument, StateRedeclared, TimedOut, UnknownTopic, WrongGroupSize
from headrace.keyspace.declaration import KeyspaceSpec
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, NewRecord, Record, Topic, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff
from headrace.state import ChangelogWriter, OrderedKeys, StatePartition, StateSpec, kind_of

__all__ = [
    "KeyspaceLayout",
    "KeyspaceLayouts",
    "KeyspacePhase",
    "StateShape",
    "StateShapes",
    "change_phase",
    "group_of",
    "layouts_topic",
    "topic_of",
]

KeyspacePhase: TypeAlias = Literal["serving", "paused", "copying"]

_logger = get_logger(__name__)
_BACKOFF = Backoff(first_s=0.05, limit_s=2.0)
_SEEN_S = 30.0


class KeyspaceLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One keyspace's present layout. While it is paused, or copied to a later one, nobody serves it.

    `revision` counts the changes of one generation, `copies` how often it was begun to be copied: each copy has topics
    of its own. `earlier` are the numbers of partitions in earlier generations.
    """

    partitions: int
    generation: int = 1
    phase: KeyspacePhase = "serving"
    revision: int = 0
    earlier: tuple[int, ...] = ()
    copies: int = 0

    def in_phase(self, phase: KeyspacePhase) -> KeyspaceLayout:
        """Return the next revision of this layout."""
        return msgspec.structs.replace(self, phase=phase, revision=self.revision + 1)

    def in_copy(self) -> KeyspaceLayout:
        """Return the next revision of this layout, of which one more copy is made."""
        return msgspec.structs.replace(self.in_phase("copying"), copies=self.copies + 1)


class StateShape(msgspec.Struct, frozen=True):
    """What the bytes of a state are: the type of its keys, and the kind of its values, in which topic."""

    topic: str
    topic_id: str
    key: str
    value: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeyspaceLayout).decode
_decode_shape = msgspec.json.Decoder(StateShape).decode
_SHAPES = "states/"


def layouts_topic(cluster: str) -> str:
    """Return the name of the topic that holds the layouts."""
    return f"{cluster}-keyspaces"


def group_of(keyspace: str, generation: int) -> str:
    """Return the name of the group that serves one generation of a keyspace."""
    return keyspace if generation == 1 else f"{keyspace}.{generation}"


def topic_of(topic: str, generation: int) -> str:
    """Return the name of a changelog in one generation."""
    return topic if generation == 1 else f"{topic}.{generation}"


class KeyspaceLayouts:
    """The layouts of a cluster, kept up to date."""

    def __init__(self, log: Log, cluster: str) -> None:
        self._log = log
        self._at = TopicPartition(layouts_topic(cluster), 0)
        self._position = 0
        self._layouts: dict[str, KeyspaceLayout] = {}
        self._shapes: dict[str, StateShape] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.version = 0

    async def open(self) -> None:
        """Read what is there, and follow."""
        config = TopicConfig(cleanup=Cleanup.COMPACT)
        await ensure_topic(self._log.admin, self._at.topic, partitions=1, config=config)
        bounds = await self._log.bounds(self._at)
        self._position = bounds.start
        async for batch in self._log.read(self._at, bounds.start, bounds.end):
            self._take(batch.records, batch.next_offset)
        self._task = asyncio.create_task(self._follow(), name="headrace-keyspace-layouts")

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def get(self, keyspace: str) -> KeyspaceLayout | None:
        """Return the layout of a keyspace; None if it was never served."""
        return self._layouts.get(keyspace)

    async def claim(self, keyspace: str, *, asked: int | None, default: int) -> KeyspaceLayout:
        """Return the layout of a keyspace; the first one to ask decides it.

        Raises WrongGroupSize if a number is asked for that the keyspace never had.
        """
        layout = self._layouts.get(keyspace)
        if layout is None:
            await self.put(keyspace, KeyspaceLayout(partitions=asked or default))
            layout = self._layouts[keyspace]
        if asked is not None and asked not in (layout.partitions, *layout.earlier):
            raise WrongGroupSize(keyspace, asked, layout.partitions)
        return layout

    async def put(self, keyspace: str, layout: KeyspaceLayout, writer: ChangelogWriter | None = None) -> None:
        """Store a layout, and return when it was read back, by when it may have been replaced.

        `writer` writes it, if whoever stores it may have been fenced meanwhile.
        """
        await self._write(keyspace, _encode(layout), writer)

    def shape(self, keyspace: str, state: str) -> StateShape | None:
        """Return what the bytes of a state are; None if it was never served."""
        return self._shapes.get(_shape_key(keyspace, state))

    def shapes(self, keyspace: str) -> Mapping[str, StateShape]:
        """Return what the bytes of all states are that a keyspace ever had, by name."""
        prefix = _shape_key(keyspace, "")
        return {key.removeprefix(prefix): each for key, each in self._shapes.items() if key.startswith(prefix)}

    async def put_shape(self, keyspace: str, state: str, shape: StateShape) -> None:
        """Store what the bytes of a state are."""
        await self._write(_shape_key(keyspace, state), _encode(shape), None)

    async def _write(self, key: str, value: bytes, writer: ChangelogWriter | None) -> None:
        write = self._log.append if writer is None else writer.commit
        (position,) = await write([NewRecord(self._at.topic, key.encode(), value, partition=0)])
        try:
            async with asyncio.timeout(_SEEN_S):
                while self._position <= position.offset:
                    await self.changed(self.version)
        except TimeoutError as error:
            raise TimedOut(f"reading {self._at} up to {position.offset}", _SEEN_S) from error

    async def changed(self, version: int) -> None:
        """Return when something was read since this version."""
        while self.version == version:
            await self._changed.wait()

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                async for batch in self._log.read(self._at, self._position):
                    failures = 0
                    self._take(batch.records, batch.next_offset)
            except Exception as error:  # the log is away, or gave up; nodes go on with what they know
                failures += 1
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("following the layouts failed", error=repr(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    def _take(self, records: Sequence[Record], next_offset: int) -> None:
        for record in records:
            if record.key is None or record.value is None:
                continue
            try:
                name = record.key.decode()
                if name.startswith(_SHAPES):
                    self._shapes[name] = _decode_shape(record.value)
                    continue
                layout = _decode(record.value)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # One record that nobody understands must not stop all keyspaces. It can't hide a resize from an owner:
                # the old partitions are closed in their own logs.
                _logger.warning("a record is not the layout of a keyspace", at=str(self._at), error=str(error))
                continue
            known = self._layouts.get(name)
            if known is None or _rank(layout) > _rank(known):  # of two first claims the log's first one counts
                self._layouts[name] = layout
        self._position = max(self._position, next_offset)
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _shape_key(keyspace: str, state: str) -> str:
    """Return the key of a state's shape; no keyspace can be called that."""
    return f"{_SHAPES}{keyspace}/{state}"


async def change_phase(log: Log, cluster: str, keyspace: str, phase: KeyspacePhase) -> KeyspaceLayout:
    """Pause a keyspace, or let it be served again. Raises BadArgument if it was never served, or is being resized."""
    layouts = KeyspaceLayouts(log, cluster)
    await layouts.open()
    try:
        layout = layouts.get(keyspace)
        if layout is None:
            raise BadArgument("keyspace", keyspace, f"no node of cluster {cluster!r} has served it yet")
        if layout.phase == "copying":
            raise BadArgument("keyspace", keyspace, "it is being resized; run that to its end first")
        if layout.phase != phase:
            layout = layout.in_phase(phase)
            await layouts.put(keyspace, layout)
        return layout
    finally:
        await layouts.close()


def _rank(layout: KeyspaceLayout) -> tuple[int, int]:
    """Return what orders layouts, whatever order they were written in."""
    return layout.generation, layout.revision


class StateShapes:
    """Compares the declarations of states with what is stored."""

    def __init__(self, log: Log, layouts: KeyspaceLayouts) -> None:
        self._log = log
        self._layouts = layouts
        self._claiming = asyncio.Lock()

    async def check(self, keyspace: KeyspaceSpec, specs: Mapping[str, StateSpec[Any, Any]]) -> None:
        """Refuse what can't read the values that are there. Raises StateRedeclared."""
        for name in keyspace.states:
            stored, spec = self._layouts.shape(keyspace.name, name), specs[name]
            if stored is None or spec.is_external or _is_as(stored, spec):
                continue
            try:
                topic = await self._log.admin.describe(spec.topic)
            except UnknownTopic:
                continue  # nothing is stored
            if _is_about(stored, topic):
                raise _redeclared(keyspace.name, stored, spec)

    async def undeclared(self, keyspace: KeyspaceSpec) -> Mapping[str, StateShape]:
        """Return the states that are stored and that this declaration does not have, by name."""
        found = {}
        for name, stored in self._layouts.shapes(keyspace.name).items():
            if name not in keyspace.states:
                with contextlib.suppress(UnknownTopic):
                    topic = await self._log.admin.describe(stored.topic)
                    if topic.topic_id == stored.topic_id:
                        found[name] = stored
        return found

    async def claim(self, keyspace: KeyspaceSpec, states: StatePartition) -> None:
        """Note what the states of a partition are written as, before anything is. Raises StateRedeclared."""
        async with self._claiming:
            for name in keyspace.states:
                replica = states.replica(name)
                if replica.spec.is_external:
                    continue
                stored, topic = self._layouts.shape(keyspace.name, name), replica.topic
                if stored is not None and _is_about(stored, topic) and not _is_as(stored, replica.spec):
                    raise _redeclared(keyspace.name, stored, replica.spec)
                if stored is None or stored.topic_id != topic.topic_id:
                    shape = StateShape(topic.name, topic.topic_id, *_kinds(replica.spec))
                    await self._layouts.put_shape(keyspace.name, name, shape)


def _kinds(spec: StateSpec[Any, Any]) -> tuple[str, str]:
    return OrderedKeys(spec.key).type_name, kind_of(spec.value)


def _is_as(stored: StateShape, spec: StateSpec[Any, Any]) -> bool:
    return (stored.key, stored.value) == _kinds(spec)


def _is_about(stored: StateShape, topic: Topic) -> bool:
    """Return False if the topic was deleted and made again. In another topic, after a resize, is what was copied."""
    return stored.topic != topic.name or stored.topic_id == topic.topic_id


def _redeclared(keyspace: str, stored: StateShape, spec: StateSpec[Any, Any]) -> StateRedeclared:
    key, value = _kinds(spec)
    if stored.key != key:
        return StateRedeclared(keyspace, spec.name, "keys", stored.key, key)
    return StateRedeclared(keyspace, spec.name, "values", stored.value, value)
