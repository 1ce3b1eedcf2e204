"""A node: a member of a cluster that serves requests of others and routes its own."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from headrace.cluster.client import Peer
from headrace.cluster.coordinator import Coordinator
from headrace.cluster.coordinators import open_coordinator
from headrace.cluster.members import ClusterView, GroupSpec, Holding, MemberFacts
from headrace.cluster.requests import PartitionHandler
from headrace.cluster.routing import ROUTED, Router
from headrace.cluster.routing_table import RoutingTable
from headrace.cluster.server import Handler, NodeServer
from headrace.config import ClusterSettings, HeadraceSettings
from headrace.errors import BadArgument, Closed, HeadraceError, TimedOut
from headrace.observe import gauge, get_logger
from headrace.runtime import process_name

__all__ = ["ConnectionPool", "Node"]

MEMBERS = gauge("cluster", "members", "count", "Members of the cluster that this node sees.")
IS_OLD = gauge("cluster", "view_is_old", "boolean", "1 while the coordinator does not answer.")

_log = get_logger(__name__)
_OFFSETS_EVERY_S = 1.0
_START_S = 60.0


class ConnectionPool:
    """The connections to the other nodes, one to each.

    A member that has left may still be answering what it was asked before: that comes to its end.
    """

    def __init__(self, node: str, settings: ClusterSettings) -> None:
        self._node = node
        self._settings = settings
        self._peers: dict[str, Peer] = {}
        self._leaving: dict[asyncio.Task[None], Peer] = {}

    def peer(self, member: str, address: str) -> Peer:
        """Return the connection to a member; one to an address that it had before is left."""
        found = self._peers.get(member)
        if found is None or found.address != address:
            if found is not None:
                self._leave(found)
            found = Peer(address, node=self._node, settings=self._settings, expected=member)
            self._peers[member] = found
        return found

    def keep(self, members: Collection[str]) -> None:
        """Leave all others."""
        for member in self._peers.keys() - set(members):
            self._leave(self._peers.pop(member))

    async def close(self) -> None:
        """Close all connections; what is in flight fails."""
        peers, leaving = [*self._peers.values(), *self._leaving.values()], list(self._leaving)
        self._peers.clear()
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in peers))

    def _leave(self, peer: Peer) -> None:
        task = asyncio.create_task(peer.finish(), name=f"headrace-leave-{peer.address}")
        self._leaving[task] = peer
        task.add_done_callback(lambda ended: self._leaving.pop(ended, None))


class Node:
    """Joins a cluster, keeps a view of it, serves requests and routes its own.

    What is above it tells what this node holds and owns (`hold`, `drop`), and follows `views` to learn what it shall
    hold. An id that another process has ends the node: `views` and `wait` raise DuplicateNode.
    """

    def __init__(
        self,
        groups: Sequence[tuple[GroupSpec, PartitionHandler]] = (),
        *,
        settings: HeadraceSettings | None = None,
        methods: Mapping[str, Handler] | None = None,
    ) -> None:
        self._settings = settings or HeadraceSettings()
        self._specs = tuple(spec for spec, _ in groups)
        self._partition_handlers = {spec.name: handler for spec, handler in groups}
        if len(self._partition_handlers) != len(self._specs):
            raise BadArgument("groups", [spec.name for spec in self._specs], "each group is served once")
        self._methods = dict(methods or {})
        self.incarnation = uuid.uuid4().hex
        self._process = process_name()
        self._holdings: dict[tuple[str, int], Holding] = {}
        self._table = RoutingTable()
        self._coordinator: Coordinator | None = None
        self._server: NodeServer | None = None
        self._pool: ConnectionPool | None = None
        self._router: Router | None = None
        self._follower: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self.id = ""

    @property
    def view(self) -> ClusterView:
        """Return the newest view of the cluster."""
        return self.coordinator.view

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator. Raises Closed unless the node was started."""
        if self._coordinator is None:
            raise Closed("the node")
        return self._coordinator

    @property
    def router(self) -> Router:
        """Return what sends requests to partitions. Raises Closed unless the node was started."""
        if self._router is None:
            raise Closed("the node")
        return self._router

    @property
    def address(self) -> str:
        """Return where other nodes reach this one."""
        return self._server.address if self._server is not None else ""

    async def start(self) -> None:
        """Listen, join, and return when there is a plan for the groups of this node.

        Raises DuplicateNode, WrongGroupSize, and Unavailable while the coordinator does not answer.
        """
        settings = self._settings.cluster
        try:
            await self._listen(settings)
            self._coordinator = await open_coordinator(settings=self._settings)
            await self._coordinator.join(self._facts(), timeout_s=_START_S)
            await self._wait_for_plan()
            self._follower = asyncio.create_task(self._follow(), name=f"headrace-node-{self.id}")
        except BaseException:
            await self.close()
            raise
        _log.info("node started", node=self.id, address=self.address, cluster=settings.name)

    async def views(self) -> AsyncIterator[ClusterView]:
        """Yield the view now, and each newer one; the router knows it by then."""
        async for view in self.coordinator.views():
            self._table.update(view)
            yield view

    async def wait(self) -> None:
        """Return never; raise the error that ends this node's membership."""
        async for _ in self.coordinator.views():
            pass

    def hold(self, holding: Holding) -> None:
        """Tell the others what this node has of a partition: how far, whether online, under which epoch it owns it.

        Progress is announced once in a second at most, everything else at once.
        """
        where = (holding.group, holding.partition)
        before = self._holdings.get(where)
        self._holdings[where] = holding
        if before is not None and msgspec.structs.replace(before, offset=holding.offset) == holding:
            self._publish_later()
        else:
            self._publish()

    def drop(self, group: str, partition: int) -> None:
        """Tell the others that this node has nothing of a partition any more."""
        if self._holdings.pop((group, partition), None) is not None:
            self._publish()

    async def drain(self, *, timeout_s: float = 60.0) -> None:
        """Hand over all that this node owns, and return when others own it. Raises TimedOut."""
        await self.coordinator.request_drain(self.id)
        try:
            async with asyncio.timeout(timeout_s):
                async for view in self.coordinator.views():
                    if self.id in view.draining and not any(each.epoch for each in self._holdings.values()):
                        return
        except TimeoutError as error:
            owned = sum(each.epoch > 0 for each in self._holdings.values())
            raise TimedOut(f"draining node {self.id!r}, which still owns {owned} partitions,", timeout_s) from error

    def serve(self, spec: GroupSpec, handler: PartitionHandler) -> None:
        """Take part in one more group."""
        self._specs = (*(each for each in self._specs if each.name != spec.name), spec)
        self._partition_handlers[spec.name] = handler
        self._publish()

    def withdraw(self, group: str) -> None:
        """Take part in a group no more; what this node held of it was dropped before."""
        self._specs = tuple(each for each in self._specs if each.name != group)
        self._partition_handlers.pop(group, None)
        self._publish()

    def stop_serving(self) -> None:
        """Answer further requests of other nodes as one that owns nothing: this node is about to leave."""
        if self._router is not None:
            self._router.stop_serving()

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Leave the cluster; requests of others that run get `grace_s` to end."""
        self.stop_serving()
        if self._later is not None:
            self._later.cancel()
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()
        if self._server is not None:
            await self._server.stop(grace_s=grace_s)
        router, self._router = self._router, None
        if router is not None:
            await router.close()
        if self._pool is not None:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _listen(self, settings: ClusterSettings) -> None:
        # The id may come from the port, which is known once the server listens; nobody calls before the node joins.
        server = NodeServer(settings.node_id or "", self._methods, settings)
        await server.start()
        self._server = server
        self.id = server.node = settings.node_id or server.address
        self._pool = ConnectionPool(self.id, settings)
        self._router = Router(
            self.id,
            self._table,
            self._pool,
            self._partition_handlers,
            timeout_s=settings.request_timeout_s,
            max_tells=settings.max_requests_in_flight,
        )
        self._methods[ROUTED] = self._router.serve

    async def _wait_for_plan(self) -> None:
        try:
            async with asyncio.timeout(_START_S):
                async for view in self.views():
                    if view.cluster_id and all(spec.name in view.placements for spec in self._specs):
                        return
        except TimeoutError as error:
            raise TimedOut(f"waiting for a plan for node {self.id!r}", _START_S) from error

    async def _follow(self) -> None:
        with contextlib.suppress(HeadraceError):  # `views` and `wait` raise it to those above
            async for view in self.views():
                MEMBERS.set(len(view.members))
                IS_OLD.set(view.is_old)
                if self._pool is not None:
                    self._pool.keep(self._table.addresses)

    def _facts(self) -> MemberFacts:
        return MemberFacts(
            id=self.id,
            incarnation=self.incarnation,
            address=self.address,
            weight=self._settings.cluster.weight,
            groups=self._specs,
            holdings=tuple(each for _, each in sorted(self._holdings.items())),
            process=self._process,
        )

    def _publish(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._coordinator is not None:
            self._coordinator.update(self._facts())

    def _publish_later(self) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(_OFFSETS_EVERY_S, self._publish)
