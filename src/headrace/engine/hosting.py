"""How a node serves an engine: its topics, its copies of the state topic, its partitions, and the way of commands.

While an engine is paused, commands for it wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headrace.cluster import GroupSpec, HostedGroup, HostingNode, PartitionHost, Router
from headrace.engine.client import EngineClient
from headrace.engine.commands import Answer, CommandRequest, decode_answer, encode_request
from headrace.engine.handling import CommandHandling
from headrace.engine.models import Engine
from headrace.engine.partition import EnginePartition
from headrace.engine.pausing import is_served, layout_key
from headrace.engine.records import AggregateValues
from headrace.engine.tokens import PartitionTokens
from headrace.engine.topics import RecordLimits, check_state_there, ensure_topics, make_topics, state_spec
from headrace.errors import BadArgument, TimedOut
from headrace.keyspace import KeyspaceLayouts
from headrace.log import Log
from headrace.model import TopicPartition, partition_of
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock, Lookout
from headrace.serde import Registry
from headrace.state import KeyValueStore, StatePartition, StateSpec, open_state_store
from headrace.store import SharedSettings, StoreReader

__all__ = ["EngineHosting", "OpenFolder", "open_partition"]

S = TypeVar("S")
OpenFolder = Callable[[], Path]

_logger = get_logger(__name__)
_LOOK_EVERY_S = 0.02


async def open_partition(
    log: Log,
    engine: Engine[S],
    partition: int,
    limits: RecordLimits,
    *,
    node: str,
    registry: Registry | None = None,
    folder: OpenFolder | None = None,
    clock: Clock = SYSTEM_CLOCK,
    store: Callable[[], StoreReader] | None = None,
) -> EnginePartition[S]:
    """Open one partition of an engine on a node. Without a folder its copy is in memory. Raises WrongEngineTopic."""
    await check_state_there(log, engine, partition)
    values = AggregateValues(engine.state_codec(registry))
    await values.open()

    async def open_store(spec: StateSpec[Any, Any]) -> KeyValueStore:
        if folder is None:
            return await open_state_store("memory:")
        return await open_state_store(f"rocksdb:{folder() / 'engines' / spec.name / str(partition)}")

    states = await StatePartition.open(
        log, [state_spec(engine)], partition, open_store=open_store, registry=registry, clock=clock
    )
    journal = TopicPartition(engine.journal_topic, partition) if engine.journal_topic is not None else None
    tokens = PartitionTokens(states.replicas[engine.name], log, journal)
    handling = CommandHandling(engine, values, partition, limits)
    return EnginePartition(handling, states, node=node, log=log, clock=clock, tokens=tokens, store=store)


class EngineHosting:
    """Opens partitions of engines for a node, and makes the clients that send them commands."""

    def __init__(
        self,
        log: Log,
        settings: Callable[[], SharedSettings],
        registry: Registry | None,
        *,
        replicas: int,
        folder: OpenFolder | None = None,
        clock: Clock = SYSTEM_CLOCK,
        layouts: KeyspaceLayouts | None = None,
        store: Callable[[], StoreReader] | None = None,
    ) -> None:
        self._store = store
        self._layouts = layouts
        self._served: dict[str, tuple[Engine[Any], bool]] = {}
        self._log = log
        self._settings = settings
        self._registry = registry
        self._replicas = replicas
        self._folder = folder
        self._clock = clock
        self._node: HostingNode | None = None
        self._clients: dict[str, EngineClient[Any]] = {}
        self._limits: dict[str, RecordLimits] = {}

    def attach(self, node: HostingNode) -> None:
        """Say which node the groups of this hosting are part of."""
        self._node = node

    async def prepare(self, engine: Engine[Any]) -> None:
        """Make and claim the engine's topics, before the node starts. Raises WrongEngineTopic, WrongStateTopic."""
        settings = self._settings() if engine.journal_topic is not None else None
        # The state of an engine that is not served may be about to be rebuilt.
        ensure = ensure_topics if self._is_served(engine) else make_topics
        self._limits[engine.name] = await ensure(self._log, settings, engine)

    def groups(self, engines: Sequence[Engine[Any]]) -> list[HostedGroup]:
        """Return the groups that a node takes part in from its start on: those of engines that are not paused."""
        self._served = {each.name: (each, self._is_served(each)) for each in engines}
        return [self.group(each) for each, is_served in self._served.values() if is_served]

    async def follow_pauses(self) -> None:
        """Withdraw from engines that are paused, and serve them again when they are resumed; until cancelled."""
        while self._layouts is not None:
            version = self._layouts.version
            for name, (engine, was_served) in list(self._served.items()):
                is_served = self._is_served(engine)
                if is_served == was_served:
                    continue
                _logger.info("an engine changes", engine=name, is_served=is_served)
                if is_served:
                    self._attached().serve(self.group(engine))
                else:
                    await self._attached().withdraw(name)
                self._served[name] = (engine, is_served)
            await self._layouts.changed(version)

    def _is_served(self, engine: Engine[Any]) -> bool:
        return self._layouts is None or is_served(self._layouts, engine.name)

    def group(self, engine: Engine[Any]) -> HostedGroup:
        """Return the group of an engine, for a node to take part in."""

        async def open_host(partition: int) -> PartitionHost:
            return await open_partition(
                self._log,
                engine,
                partition,
                self._limits[engine.name],
                node=self._attached().id,
                registry=self._registry,
                folder=self._folder,
                clock=self._clock,
                store=self._store,
            )

        spec = GroupSpec(name=engine.name, partitions=engine.partitions, replicas=self._replicas)
        return HostedGroup(spec, open_host)

    def client(self, engine: Engine[S]) -> EngineClient[S]:
        """Return the client of an engine, which any node of the cluster may serve."""
        found = self._clients.get(engine.name)
        if found is None:
            route = _EngineRoute(
                engine, lambda: self._attached().router, self._layouts, partial(self._own_partition, engine.name)
            )
            found = EngineClient(engine, lambda: route, registry=self._registry)
            self._clients[engine.name] = found
        if found.engine is not engine:
            raise BadArgument("engine", engine.name, "another engine of this name is declared already")
        return found

    def _own_partition(self, engine: str, partition: int) -> EnginePartition[Any] | None:
        """Return this node's own partition of an engine; None if it has none that is open."""
        host = self._attached().host(engine, partition)
        return host if isinstance(host, EnginePartition) else None

    def _attached(self) -> HostingNode:
        if self._node is None:
            raise BadArgument("engine", None, "no node runs in this process; use `async with hr.node(…):`")
        return self._node


class _OwnCommand:
    """A command whose owner is in this process: a `TypedRequest`."""

    __slots__ = ("_host", "_request")

    def __init__(self, host: EnginePartition[Any], request: CommandRequest) -> None:
        self._host = host
        self._request = request

    def here(self, deadline_s: float) -> Awaitable[Answer]:
        """Put it into the queue of its partition."""
        return self._host.submit_until(self._request, deadline_s)

    def payload(self) -> bytes:
        """Return the command as it travels."""
        return encode_request(self._request)

    def decoded(self, reply: bytes) -> Answer:
        """Return the answer of an owner elsewhere."""
        return decode_answer(reply)


class _EngineRoute:
    """The requests of one client to one engine: an `EngineRouter`. `host` returns this process's own partitions."""

    def __init__(
        self,
        engine: Engine[Any],
        router: Callable[[], Router],
        layouts: KeyspaceLayouts | None,
        host: Callable[[int], EnginePartition[Any] | None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._host = host
        self._router = router
        self._layouts = layouts
        self._lookout = Lookout(self._is_served, every_s=_LOOK_EVERY_S)

    def partition(self, group: str, key: bytes) -> int:
        """Return the partition of a key."""
        return partition_of(key, self._engine.partitions)

    async def ask(
        self,
        group: str,
        key: bytes,
        payload: bytes,
        *,
        command_id: str | None = None,
        is_read: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the owner's reply. Raises TimedOut if the engine is paused for longer than the request may take."""
        left_s = await self._time_left(timeout_s)
        return await self._router().ask(group, key, payload, command_id=command_id, is_read=is_read, timeout_s=left_s)

    async def send(self, partition: int, request: CommandRequest, *, timeout_s: float | None) -> Answer:
        """Return the owner's answer to a command; one whose owner is in this process goes straight to its queue."""
        router, name, key = self._router(), self._engine.name, request.aggregate.encode()
        left_s = router.time_for(timeout_s) if self._is_served() else await self._time_left(timeout_s)
        host, command_id = self._host(partition), request.command_id
        if host is None or not router.is_here(name, partition):
            payload = encode_request(request)
            return decode_answer(await router.ask(name, key, payload, command_id=command_id, timeout_s=left_s))
        asked = _OwnCommand(host, request)
        return await router.ask_here(name, key, partition, asked, command_id=command_id, timeout_s=left_s)

    async def _time_left(self, timeout_s: float | None) -> float:
        """Wait until the engine is served; return how long the request may take from then on. Raises TimedOut."""
        loop, given_s = asyncio.get_running_loop(), self._router().time_for(timeout_s)
        deadline_s = loop.time() + given_s
        while not self._is_served():
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise TimedOut(f"waiting for engine {self._engine.name!r}, which is paused or being rebuilt,", given_s)
            await self._lookout.wait(left_s)
        return max(deadline_s - loop.time(), 0.001)

    def _is_served(self) -> bool:
        """Return True if requests can be sent, or never could: then sending one says why."""
        if self._layouts is None or self._layouts.get(layout_key(self._engine.name)) is None:
            return True
        return is_served(self._layouts, self._engine.name) and self._router().knows(self._engine.name)
