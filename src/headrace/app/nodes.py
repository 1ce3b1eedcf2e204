"""A node in an application's process: the keyspaces and engines that it serves, and those that it calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from headrace.cluster import ClusterView, HostingNode
from headrace.config import GrpcSettings, HeadraceSettings
from headrace.engine import Engine, EngineClient, EngineHosting
from headrace.errors import BadArgument, TimedOut
from headrace.keyspace import App, Keyspace, KeyspaceClient, KeyspaceHosting, KeyspaceLayouts, StateFolder
from headrace.log import Log
from headrace.observe import Health, HealthState, get_logger
from headrace.runtime import Supervisor
from headrace.serde import Registry
from headrace.store import Store

__all__ = ["MissingPartitions", "NodePart", "RunningNode", "running_node"]

S = TypeVar("S")
NodePart: TypeAlias = type[Keyspace] | App | Engine[Any]


@runtime_checkable
class HostWithHealth(Protocol):
    """A partition that says itself how it is."""

    @property
    def health(self) -> Health:
        """The state of the partition's background work."""
        ...


_logger = get_logger(__name__)
_ONLINE_S = 30.0


class RunningNode:
    """A node of the cluster, while it runs in this process."""

    def __init__(
        self, hosting: HostingNode, keyspaces: KeyspaceHosting, engines: EngineHosting, background: Health
    ) -> None:
        self._hosting = hosting
        self._keyspaces = keyspaces
        self._engines = engines
        self._background = background
        self.grpc_address: str | None = None
        """Where this node takes commands over gRPC; None if it takes none."""

    @property
    def id(self) -> str:
        """This node's id."""
        return self._hosting.id

    @property
    def address(self) -> str:
        """Where other nodes reach this one."""
        return self._hosting.node.address

    @property
    def view(self) -> ClusterView:
        """What this node knows of its cluster."""
        return self._hosting.view

    @property
    def layouts_version(self) -> int:
        """Another number whenever a keyspace was resized, paused or resumed."""
        return self._keyspaces.layouts_version

    @property
    def owned(self) -> list[tuple[str, int]]:
        """The partitions that this node owns: group and number."""
        return self._hosting.owned()

    @property
    def failures(self) -> dict[tuple[str, int], str]:
        """The partitions that can't be opened or served here, and why."""
        return self._hosting.failures

    @property
    def health(self) -> Health:
        """The node as a tree of keyspaces and engines, their partitions, and the node's work in the background.

        A partition is down where it can't be served here, or its own work fails, and starting while nobody owns it.
        Whatever is down makes everything above it down.
        """
        tree = Health(f"node {self.id}")
        tree.adopt(self._background)
        for group in self.view.groups:
            partitions = tree.child(group, state=HealthState.UP)
            for partition, host in self._hosting.hosts(group).items():
                if isinstance(host, HostWithHealth):
                    partitions.child(str(partition), state=HealthState.UP).adopt(host.health)
            for partition in self._hosting.missing(group):
                partitions.child(str(partition)).starting("nobody owns it")
        for (group, partition), reason in self.failures.items():
            tree.child(group, state=HealthState.UP).child(str(partition)).down(reason)
        return tree

    def missing(self, keyspace: str) -> list[int]:
        """Return the partitions of a keyspace that nobody owns at the moment."""
        return self._hosting.missing(self._keyspaces.group_name(keyspace))

    def find_missing(self, keyspaces: Sequence[str], engines: Sequence[str]) -> dict[str, list[int] | None]:
        """Return, by name, the partitions that nobody owns; None for all of those that no node serves.

        A keyspace that was paused, or that is being resized, is not missing: its callers wait for it.
        """
        groups = {name: self._keyspaces.group_name(name) for name in keyspaces if self._keyspaces.is_to_be_served(name)}
        groups |= {name: name for name in engines}
        known = self.view.groups
        missing = {name: self._hosting.missing(group) if group in known else None for name, group in groups.items()}
        return {name: parts for name, parts in missing.items() if parts != []}

    def keyspace(self, kind: type[Keyspace]) -> KeyspaceClient:
        """Return the client of a keyspace, which any node of the cluster may serve."""
        return self._keyspaces.client(kind)

    def engine(self, engine: Engine[S]) -> EngineClient[S]:
        """Return the client of an engine, which any node of the cluster may serve."""
        return self._engines.client(engine)

    async def online(self, *keyspaces: str, timeout_s: float = 60.0) -> None:
        """Wait until every partition of these keyspaces and engines, or of all served here, has an owner.

        Raises TimedOut.
        """
        await self._hosting.online(*map(self._keyspaces.group_name, keyspaces), timeout_s=timeout_s)

    async def drain(self, *, timeout_s: float = 60.0) -> None:
        """Hand over all that this node owns, before it is stopped. Raises TimedOut."""
        await self._hosting.drain(timeout_s=timeout_s)

    async def wait(self) -> None:
        """Wait until the node ends; raises the error that ended it."""
        await self._hosting.wait()


class MissingPartitions:
    """The partitions of some keyspaces and engines that nobody owns, found again when the cluster has changed."""

    def __init__(self, node: RunningNode, keyspaces: Sequence[str], engines: Sequence[str]) -> None:
        self._node = node
        self._keyspaces = keyspaces
        self._engines = engines
        self._seen: tuple[ClusterView, int] | None = None
        self._missing: Mapping[str, Sequence[int] | None] = {}

    def __call__(self) -> Mapping[str, Sequence[int] | None]:
        """Return them, by name; None for all of those that no node serves."""
        seen = (self._node.view, self._node.layouts_version)
        if self._seen is None or seen[0] is not self._seen[0] or seen[1] != self._seen[1]:
            self._seen, self._missing = seen, self._node.find_missing(self._keyspaces, self._engines)
        return self._missing


@contextlib.asynccontextmanager
async def running_node(
    log: Log,
    registry: Registry,
    settings: HeadraceSettings,
    parts: tuple[NodePart, ...],
    store: Callable[[], Store],
) -> AsyncIterator[RunningNode]:
    """Run a node while the block runs; it starts when every partition has an owner, or after half a minute.

    `store` returns the one in which engines claim their journals, and which keeps the events that left the log.
    """
    served = list(dict.fromkeys(part for part in parts if isinstance(part, Engine)))
    app = App(*(part for part in parts if not isinstance(part, Engine)))
    _check_parts(app, served)
    async with contextlib.AsyncExitStack() as stack:
        folders: list[StateFolder] = []

        def folder() -> Path:
            if not folders:
                folders.append(StateFolder(_base_of(settings), settings.cluster.node_id))
                stack.callback(folders[0].close)
            return folders[0].path

        layouts = KeyspaceLayouts(log, settings.cluster.name)
        await layouts.open()
        stack.push_async_callback(layouts.close)
        keyspaces = KeyspaceHosting(log, registry, settings, folder, layouts)
        engines = EngineHosting(
            log,
            lambda: store().settings,
            registry,
            replicas=settings.keyspace.replicas,
            folder=folder,
            layouts=layouts,
            store=lambda: store().reader,
        )
        for engine in served:
            await engines.prepare(engine)
        hosting = HostingNode(log, engines.groups(served), settings=settings)
        keyspaces.attach(hosting)
        engines.attach(hosting)
        for each in app.keyspaces.values():
            await keyspaces.client(each).open()
            await keyspaces.serve(each)
        background = Supervisor("background")
        async with hosting:
            node = RunningNode(hosting, keyspaces, engines, background.health)
            try:
                await node.online(timeout_s=_ONLINE_S)
            except TimedOut as error:
                _logger.warning("the node starts without all partitions", node=node.id, reason=str(error))
            background.add("keyspaces", keyspaces.follow_layouts)
            background.add("engines", engines.follow_pauses)
            for stream in app.streams:
                background.add(f"stream-{stream.group}", partial(stream.run, log, registry, keyspaces.client))
            async with background, _grpc(node, served, settings.grpc):
                await asyncio.sleep(0)  # the work has begun, and its health says so
                yield node


def _check_parts(app: App, engines: Sequence[Engine[Any]]) -> None:
    """Refuse parts that share a name, by which requests find them, or a topic that each would take for its own."""
    names: set[str] = set()
    owners = {
        topic: f"state {state!r} of keyspace {keyspace!r}" for topic, (keyspace, state) in app.own_topics().items()
    }
    for engine in engines:
        if engine.name in names:
            raise BadArgument("engine", engine.name, "two engines have this name; give one another")
        if engine.name in app.keyspaces:
            raise BadArgument("engine", engine.name, "an engine and a keyspace have this name; give one another")
        names.add(engine.name)
        for topic, use in engine.own_topics.items():
            if topic in owners:
                rule = f"{owners[topic]} has it; engine {engine.name!r} can't use it as {use}"
                raise BadArgument("topic", topic, rule)
            owners[topic] = f"engine {engine.name!r}"


@contextlib.asynccontextmanager
async def _grpc(node: RunningNode, engines: list[Engine[Any]], settings: GrpcSettings) -> AsyncIterator[None]:
    """Take commands over gRPC while the block runs, if the settings name an address and the node serves engines."""
    if settings.listen is None or not engines:
        yield
        return
    from headrace.rpc import serving_commands  # it needs the extra `grpc`

    clients = [node.engine(engine) for engine in engines]
    async with serving_commands(clients, settings, lambda: node.health.state) as running:
        node.grpc_address = running.address
        yield


def _base_of(settings: HeadraceSettings) -> Path:
    """Return the folder of all copies: the one in the settings, or beside the embedded log, or here."""
    if settings.keyspace.state_dir is not None:
        base = Path(settings.keyspace.state_dir)
    elif settings.log.address.startswith("embedded:"):
        base = Path(settings.log.address.partition(":")[2]) / "state"
    else:
        base = Path("headrace-state")
    return base / settings.cluster.name
