"""How a node opens the partitions of a keyspace: their topics, their folders on disk, their code."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from headrace.cluster import GroupSpec, HostedGroup, HostingNode, PartitionHost, PartitionRequest
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, FolderUnusable, Unavailable
from headrace.keyspace.calls import REPLIES, CallRunner
from headrace.keyspace.client import KeyspaceClient
from headrace.keyspace.declaration import Keyspace, KeyspaceSpec
from headrace.keyspace.inputs import INPUTS, CommitUnit, InputPump
from headrace.keyspace.layouts import KeyspaceLayout, KeyspaceLayouts, StateShapes, group_of
from headrace.keyspace.messages import MessageCodecs, PollChanges, decode_operation
from headrace.keyspace.partition import KeyspacePartition
from headrace.keyspace.reads import CommittedValue
from headrace.keyspace.resizing import specs_of
from headrace.keyspace.routes import KeyspaceRoute
from headrace.log import Log
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock
from headrace.serde import Registry
from headrace.state import KeyValueStore, StatePartition, StateSpec, open_state_store

__all__ = ["KeyspaceHosting", "NodeCopies", "StateFolder"]

_SLOTS = 100

_logger = get_logger(__name__)


class StateFolder:
    """The folder in which one process keeps its copies, locked for as long as it lives.

    A node with an id has a folder of that name; one without takes the first that no living process uses, so that a
    program which is started again finds its data.
    """

    def __init__(self, base: Path, node_id: str | None) -> None:
        self.path, self._lock = _locked(base, node_id)

    def close(self) -> None:
        """Let another process have it."""
        self._lock.close()


def _locked(base: Path, node_id: str | None) -> tuple[Path, IO[str]]:
    names = [node_id.replace(":", "_")] if node_id else [f"slot-{n}" for n in range(_SLOTS)]
    for name in names:
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = (folder / "lock").open("a")
        except OSError as error:
            raise FolderUnusable(str(folder), error.strerror or str(error)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return folder, lock
    raise FolderUnusable(str(base / names[0]), "another process uses it; give each node an id of its own")


class NodeCopies:
    """This node's own copies, for reads that need not go to the owner: `LocalCopies`."""

    def __init__(self, node: Callable[[], HostingNode]) -> None:
        self._node = node

    async def answer(self, group: str, partition: int, payload: bytes) -> bytes | None:
        """Return the answer of this node's own copy; None if it has none that can give it."""
        host = self._node().host(group, partition)
        if host is None or not host.is_online:
            return None
        is_poll = isinstance(decode_operation(payload), PollChanges)
        if not is_poll and isinstance(host, KeyspacePartition) and host.is_owned:
            return None  # the owner's way has its own gate
        try:
            return await host.handle(PartitionRequest(group, partition, payload, is_read=True), 0.0)
        except Unavailable:  # it is too old, or the log that it asks does not answer; the owner may know
            return None

    def read_at_once(self, group: str, partition: int, state: str, key: bytes) -> CommittedValue | None:
        """Return a value that this node owns; None if it owns none, or has to wait for something."""
        host = self._node().host(group, partition)
        return host.read_at_once(state, key) if isinstance(host, KeyspacePartition) else None


class KeyspaceHosting:
    """Opens partitions of keyspaces for a node, and makes the clients that its handlers use."""

    def __init__(
        self,
        log: Log,
        registry: Registry | None,
        settings: HeadraceSettings,
        folder: Callable[[], Path],
        layouts: KeyspaceLayouts,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._layouts = layouts
        self._shapes = StateShapes(log, layouts)
        self._served: dict[str, tuple[type[Keyspace], int | None]] = {}
        self._log = log
        self._registry = registry
        self._settings = settings
        self._folder = folder
        self._clock = clock
        self._node: HostingNode | None = None
        self._clients: dict[str, KeyspaceClient] = {}

    def attach(self, node: HostingNode) -> None:
        """Say which node the groups of this hosting are part of."""
        self._node = node

    async def serve(self, kind: type[Keyspace]) -> None:
        """Serve a keyspace with the attached node, in the layout that it has.

        Raises WrongGroupSize, and StateRedeclared for a state that can't read what is stored.
        """
        spec = kind.spec
        for hidden in {REPLIES, INPUTS} & spec.states.keys():
            raise BadArgument("state", hidden, f"keyspace {spec.name!r} has a state of that name of its own")
        settings = self._settings.keyspace
        layout = await self._layouts.claim(spec.name, asked=spec.partitions, default=settings.partitions)
        await self._shapes.check(spec, specs_of(spec, layout, replies_kept_s=settings.replies_kept_s))
        self._served[spec.name] = (kind, None)
        await self._serve_as_laid_out(spec.name)

    async def follow_layouts(self) -> None:
        """Do as the layouts say whenever a keyspace was resized, paused or resumed; until cancelled."""
        while True:
            version = self._layouts.version
            self._close_replaced()
            for name in list(self._served):
                await self._serve_as_laid_out(name)
            await self._layouts.changed(version)

    async def _serve_as_laid_out(self, name: str) -> None:
        """Serve the generation of a keyspace that is to be served, and no other; none while it is paused or copied."""
        kind, serving = self._served[name]
        layout = self._layouts.get(name)
        if layout is None:
            return
        wanted = layout.generation if layout.phase == "serving" else None
        if wanted == serving:
            return
        _logger.info("a keyspace changes", keyspace=name, generation=layout.generation, phase=layout.phase)
        if serving is not None:
            await self._attached().withdraw(group_of(name, serving))
        if wanted is not None:
            self._attached().serve(self._group(kind.spec, layout))
        self._served[name] = (kind, wanted)

    def _close_replaced(self) -> None:
        """Let requests to generations that are gone go on to the next one, also those of keyspaces served elsewhere."""
        for name in self._clients:
            layout = self._layouts.get(name)
            for generation in range(1, layout.generation if layout is not None else 1):
                self._attached().router.close_group(group_of(name, generation))

    def _group(self, spec: KeyspaceSpec, layout: KeyspaceLayout) -> HostedGroup:
        size = GroupSpec(
            name=group_of(spec.name, layout.generation),
            partitions=layout.partitions,
            replicas=spec.replicas or self._settings.keyspace.replicas,
        )

        async def open_partition(partition: int) -> PartitionHost:
            return await self._open(spec, layout, partition)

        return HostedGroup(size, open_partition)

    @property
    def layouts_version(self) -> int:
        """Another number whenever a keyspace was resized, paused or resumed."""
        return self._layouts.version

    def is_to_be_served(self, keyspace: str) -> bool:
        """Return False while a keyspace is paused, or being resized."""
        layout = self._layouts.get(keyspace)
        return layout is None or layout.phase == "serving"

    def group_name(self, keyspace: str) -> str:
        """Return the name of the group that serves a keyspace now."""
        layout = self._layouts.get(keyspace)
        return group_of(keyspace, 1 if layout is None else layout.generation)

    def client(self, kind: type[Keyspace]) -> KeyspaceClient:
        """Return the client of a keyspace, which any node of the cluster may serve."""
        spec = kind.spec
        if spec.name not in self._clients:
            route = KeyspaceRoute(spec.name, lambda: self._attached().router, self._layouts)
            copies = NodeCopies(self._attached)
            self._clients[spec.name] = KeyspaceClient(spec, route, registry=self._registry, local=copies)
        return self._clients[spec.name]

    def _attached(self) -> HostingNode:
        if self._node is None:
            raise BadArgument("keyspace", None, "no node runs in this process; use `async with hr.node(…):`")
        return self._node

    async def _open(self, spec: KeyspaceSpec, layout: KeyspaceLayout, partition: int) -> KeyspacePartition:
        settings = self._settings.keyspace
        specs = specs_of(spec, layout, replies_kept_s=settings.replies_kept_s)
        group = group_of(spec.name, layout.generation)

        async def open_store(state: StateSpec[Any, Any]) -> KeyValueStore:
            declared = spec.states.get(state.name)
            scheme = (declared[0].store if declared else None) or spec.store
            if scheme == "memory":
                return await open_state_store("memory:")
            return await open_state_store(f"{scheme}:{self._folder() / group / state.name / str(partition)}")

        codecs = MessageCodecs(spec, self._registry)
        await codecs.open()
        states = await StatePartition.open(
            self._log,
            list(specs.values()),
            partition,
            open_store=open_store,
            registry=self._registry,
            clock=self._clock,
        )

        try:
            await self._shapes.claim(spec, states)
        except BaseException:
            await states.close()
            raise

        def pumps(runner: CallRunner, commit: CommitUnit) -> list[InputPump]:
            return [
                InputPump(spec, each, states, runner, self._log, self._registry, commit)
                for each in spec.inputs.values()
            ]

        return KeyspacePartition(
            spec,
            states,
            codecs,
            self.client,
            node=self._attached().id,
            settings=settings,
            pumps=pumps,
            clock=self._clock,
        )
