"""Blocking versions of the objects that `headrace.connect` gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from headrace.app import Headrace, NodePart, ProjectionHandle, ProjectionStatus
from headrace.app import connect as connect_async
from headrace.config import HeadraceSettings
from headrace.engine import Engine, EngineClient
from headrace.journal import AppendedEvents, Journal, JournalSnapshots, Moment, PartitionStats, Snapshot
from headrace.keyspace import Keyspace, KeyspaceClient
from headrace.log import Log
from headrace.model import (
    Batch,
    Bounds,
    Event,
    NewRecord,
    Payload,
    Position,
    StoredEvent,
    Topic,
    TopicConfig,
    TopicPartition,
    WrittenPosition,
)
from headrace.projection import Projection
from headrace.runtime import LoopThread
from headrace.serde import Registry, Schema, Version
from headrace.sync.nodes import SyncEngine, SyncKeyspace, SyncNode
from headrace.tags import After, TaggedEvent

__all__ = ["SyncHeadrace", "SyncJournal", "SyncLog", "SyncProjection", "SyncRegistry", "SyncSnapshots", "connect"]

S = TypeVar("S")
T = TypeVar("T")


class SyncLog:
    """The log, blocking."""

    def __init__(self, loop: LoopThread, log: Log) -> None:
        self._loop = loop
        self._log = log

    def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        """Create a topic."""
        return self._loop.run(self._log.admin.create(topic, partitions=partitions, config=config))

    def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Write records."""
        return self._loop.run(self._log.append(records))

    def read(self, at: TopicPartition, start: int, end: int | None = None, **options: Any) -> Iterator[Batch]:  # noqa: ANN401
        """Yield batches."""
        return self._loop.iterate(self._log.read(at, start, end, **options))

    def bounds(self, at: TopicPartition) -> Bounds:
        """Return the offsets that a partition holds."""
        return self._loop.run(self._log.bounds(at))


class SyncSnapshots:
    """Snapshots, blocking."""

    def __init__(self, loop: LoopThread, snapshots: JournalSnapshots) -> None:
        self._loop = loop
        self._snapshots = snapshots

    def save(self, id_: str, seq_nr: int, payload: Payload, *, timestamp_ms: int | None = None) -> None:
        """Save the state as of a seq_nr; its time is now, or the one that is given."""
        self._loop.run(self._snapshots.save(id_, seq_nr, payload, timestamp_ms=timestamp_ms))

    def load(self, id_: str, *, max_seq_nr: int | None = None, max_timestamp_ms: int | None = None) -> Snapshot | None:
        """Return the newest snapshot, within the limits if they are given."""
        return self._loop.run(self._snapshots.load(id_, max_seq_nr=max_seq_nr, max_timestamp_ms=max_timestamp_ms))

    def delete(self, id_: str, *, max_seq_nr: int | None = None, min_seq_nr: int | None = None) -> int:
        """Remove snapshots, within the limits if they are given; return their number."""
        return self._loop.run(self._snapshots.delete(id_, max_seq_nr=max_seq_nr, min_seq_nr=min_seq_nr))


class SyncJournal:
    """The journals of one topic, blocking."""

    def __init__(self, loop: LoopThread, journal: Journal) -> None:
        self._loop = loop
        self._journal = journal
        self.topic = journal.topic
        self.snapshots = SyncSnapshots(loop, journal.snapshots)

    def append(self, id_: str, events: Iterable[Event], **options: Any) -> WrittenPosition:  # noqa: ANN401
        """Write events, all of them or none. Options as in Journal.append."""
        return self._loop.run(self._journal.append(id_, events, **options))

    def append_next(self, id_: str, payloads: Iterable[Payload], **options: Any) -> AppendedEvents:  # noqa: ANN401
        """Append payloads as the next events; returns them with their numbers. Options as in Journal.append_next."""
        return self._loop.run(self._journal.append_next(id_, payloads, **options))

    def prepare(self, id_: str) -> str:
        """Prepare an append that must happen at most once; give the returned text to each try as `attempt`."""
        return self._loop.run(self._journal.prepare(id_))

    def read(
        self,
        id_: str,
        from_seq_nr: int = 1,
        *,
        to_seq_nr: int | None = None,
        live: bool = False,
        at_least: str | None = None,
    ) -> Iterator[StoredEvent]:
        """Yield the events from a seq_nr on, up to and including `to_seq_nr` if that is given; with `live` for good."""
        found = self._journal.read(id_, from_seq_nr, to_seq_nr=to_seq_nr, live=live, at_least=at_least)
        return self._loop.iterate(found)

    def pointer(self, id_: str, *, at_least: str | None = None) -> int | None:
        """Return the journal's last seq_nr."""
        return self._loop.run(self._journal.pointer(id_, at_least=at_least))

    def delete(self, id_: str, *, to: int) -> WrittenPosition | None:
        """Delete the events up to a seq_nr; MAX_SEQ_NR deletes all events."""
        return self._loop.run(self._journal.delete(id_, to=to))

    def purge(self, id_: str) -> WrittenPosition:
        """Remove the whole journal."""
        return self._loop.run(self._journal.purge(id_))

    def token_of(self, event: StoredEvent) -> str:
        """Return the consistency token of an event that was read."""
        return self._loop.run(self._journal.token_of(event))

    def mark(self, id_: str, mark_id: str) -> int:
        """Write a Mark."""
        return self._loop.run(self._journal.mark(id_, mark_id))

    def ids(self, *, unreplicated: bool = False, live: bool = False) -> Iterator[str]:
        """Yield the ids of all journals that are replicated at least in part, or of all, or without an end."""
        return self._loop.iterate(self._journal.ids(unreplicated=unreplicated, live=live))

    def history(self, id_: str, *, with_marks: bool = False) -> Iterator[Moment]:
        """Yield the journal's timeline: every action, what it did, and the reason if it did nothing."""
        return self._loop.iterate(self._journal.history(id_, with_marks=with_marks))

    def stats(self) -> Sequence[PartitionStats]:
        """Return what the log holds of each partition, and how far it is replicated."""
        return self._loop.run(self._journal.stats())


class SyncRegistry:
    """The schema registry, blocking."""

    def __init__(self, loop: LoopThread, registry: Registry) -> None:
        self._loop = loop
        self._registry = registry

    def register(self, subject: str, schema: Schema) -> Version:
        """Return the schema's version under the subject, or create it; refused if it is incompatible."""
        return self._loop.run(self._registry.register(subject, schema))

    def schema(self, schema_id: int) -> Schema:
        """Return the schema of an id."""
        return self._loop.run(self._registry.schema(schema_id))

    def versions(self, subject: str) -> Sequence[Version]:
        """Return a subject's versions, oldest first."""
        return self._loop.run(self._registry.versions(subject))

    def subjects(self) -> Sequence[str]:
        """Return all subjects."""
        return self._loop.run(self._registry.subjects())


class SyncProjection:
    """The handle of a projection, blocking."""

    def __init__(self, loop: LoopThread, handle: ProjectionHandle) -> None:
        self._loop = loop
        self._handle = handle
        self.health = handle.health

    def handled(self, topic: str, id_: str, *, seq_nr: int | None = None, timeout_s: float = 30.0) -> None:
        """Wait until what was written to a journal before the call, or up to a seq_nr, is handled. Raises TimedOut."""
        self._loop.run(self._handle.handled(topic, id_, seq_nr=seq_nr, timeout_s=timeout_s))

    def caught_up(self, *, timeout_s: float = 30.0) -> None:
        """Wait until everything written before the call is handled. Raises TimedOut."""
        self._loop.run(self._handle.caught_up(timeout_s=timeout_s))

    def wait_for(self, token: str, *, timeout_s: float = 30.0) -> None:
        """Wait until what a consistency token names is handled, as ProjectionHandle.wait_for does."""
        self._loop.run(self._handle.wait_for(token, timeout_s=timeout_s))

    def pause(self, reason: str = "") -> bool:
        """Pause all workers until `resume`; False if they are paused already."""
        return self._loop.run(self._handle.pause(reason))

    def resume(self) -> bool:
        """Let the workers go on; False if there was no pause."""
        return self._loop.run(self._handle.resume())

    def status(self, *, count_up_to: int = 100_000) -> ProjectionStatus:
        """Return the status of the projection."""
        return self._loop.run(self._handle.status(count_up_to=count_up_to))


class SyncHeadrace:
    """An open connection, blocking."""

    def __init__(self, loop: LoopThread, opened: Headrace) -> None:
        self._loop = loop
        self._opened = opened
        self.settings = opened.settings
        self.log = SyncLog(loop, opened.log)
        self.registry = SyncRegistry(loop, opened.registry)

    def journal(
        self, topic: str, *, read_only: bool = False, origin: str | None = None, partitions: int | None = None
    ) -> SyncJournal:
        """Return the journals of a topic. The topic is created, with `partitions`, when it is first written to."""

        async def make() -> Journal:
            return self._opened.journal(topic, read_only=read_only, origin=origin, partitions=partitions)

        return SyncJournal(self._loop, self._loop.run(make()))

    def events_by_tag(
        self,
        tag: str | Sequence[str],
        *,
        after: After = None,
        live: bool = False,
        read_only: bool = False,
        skip_trimmed: bool = False,
        at_least: str | None = None,
    ) -> Iterator[TaggedEvent]:
        """Yield a tag's events, as Headrace.events_by_tag does."""
        return self._loop.iterate(
            self._opened.events_by_tag(
                tag, after=after, live=live, read_only=read_only, skip_trimmed=skip_trimmed, at_least=at_least
            )
        )

    @contextlib.contextmanager
    def project(
        self, projection: Projection, *, worker: int | None = None, workers: int | None = None
    ) -> Iterator[SyncProjection]:
        """Run a projection in this process while the block runs, as Headrace.project does."""
        with self._entered(lambda: self._opened.project(projection, worker=worker, workers=workers)) as handle:
            yield SyncProjection(self._loop, handle)

    @contextlib.contextmanager
    def projection(self, projection: Projection) -> Iterator[SyncProjection]:
        """Open a projection that runs elsewhere, as Headrace.projection does."""
        with self._entered(lambda: self._opened.projection(projection)) as handle:
            yield SyncProjection(self._loop, handle)

    @contextlib.contextmanager
    def node(self, *parts: NodePart) -> Iterator[SyncNode]:
        """Be a node of the cluster while the block runs, and serve these keyspaces and engines.

        Handlers run on the connection's own event loop: one that blocks stops all of them.
        """
        with self._entered(lambda: self._opened.node(*parts)) as node:
            yield SyncNode(self._loop, node)

    def keyspace(self, kind: type[Keyspace]) -> SyncKeyspace:
        """Return the client of a keyspace; a node runs in this process (`hr.node`). Raises BadArgument."""

        async def make() -> KeyspaceClient:
            return self._opened.keyspace(kind)

        return SyncKeyspace(self._loop, self._loop.run(make()))

    def engine(self, engine: Engine[S]) -> SyncEngine[S]:
        """Return the client of an engine; a node runs in this process (`hr.node`). Raises BadArgument."""

        async def make() -> EngineClient[S]:
            return self._opened.engine(engine)

        return SyncEngine(self._loop, self._loop.run(make()))

    @contextlib.contextmanager
    def _entered(self, make: Callable[[], contextlib.AbstractAsyncContextManager[T]]) -> Iterator[T]:
        stack = contextlib.AsyncExitStack()

        async def enter() -> T:
            return await stack.enter_async_context(make())

        entered = self._loop.run(enter())
        try:
            yield entered
        finally:
            self._loop.run(stack.aclose())


@contextlib.contextmanager
def connect(
    address: str | None = None, *, store: str | None = None, settings: HeadraceSettings | None = None
) -> Iterator[SyncHeadrace]:
    """Open a connection while the block runs, as `headrace.connect` does."""
    loop = LoopThread()
    stack = contextlib.AsyncExitStack()
    try:
        opened = loop.run(stack.enter_async_context(connect_async(address, store=store, settings=settings)))
        try:
            yield SyncHeadrace(loop, opened)
        finally:
            loop.finish()  # half-read iterators are closed before what they read from
            loop.run(stack.aclose())
    finally:
        loop.close()
