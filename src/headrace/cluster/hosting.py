"""A node that keeps the partitions which the plan gives it: their copies, their ownership, their requests.

What becomes of one of them is in `hosted_partition.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from headrace.cluster.claimant import OwnedPartition
from headrace.cluster.epochs import Identity
from headrace.cluster.hosted_partition import HostedGroup, HostedPartition, PartitionHost
from headrace.cluster.lease import LeaseKeeper, new_process
from headrace.cluster.lease_length import LeaseTerms
from headrace.cluster.lease_watch import ensure_lease_topic
from headrace.cluster.members import ClusterView
from headrace.cluster.node import Node
from headrace.cluster.owner import Owner, OwnerListener
from headrace.cluster.requests import PartitionRequest
from headrace.cluster.routing import Router
from headrace.cluster.tail import seconds
from headrace.config import HeadraceSettings
from headrace.errors import Closed, NotPartitionOwner, TimedOut
from headrace.log import Log
from headrace.observe import gauge, get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock

__all__ = ["HostingNode"]

HOSTED = gauge("cluster", "hosted_partitions", "count", "Partitions that this node has a replica of.", ["group"])
OWNED = gauge("cluster", "owned_partitions", "count", "Partitions that this node owns.", ["group"])

_logger = get_logger(__name__)
_LOOK_EVERY_S = 0.1


class HostingNode:
    """Joins the cluster, opens the partitions that the plan gives to this node, and serves those that it owns.

    Promises: what one partition suffers (a broken store, a topic of another size) leaves the others alone; it is tried
    again and shown in `failures`. `close` releases what this node owns, so that the next owners need not wait.
    """

    def __init__(
        self,
        log: Log,
        groups: Sequence[HostedGroup] = (),
        *,
        settings: HeadraceSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        terms: LeaseTerms | None = None,
    ) -> None:
        self._log = log
        self._settings = settings or HeadraceSettings()
        self._clock = clock
        cluster = self._settings.cluster
        self._terms = terms or LeaseTerms(cluster.lease_s, cluster.longest_lease_s)
        self._groups = {group.spec.name: group for group in groups}
        self.node = Node([(group.spec, self._handle) for group in groups], settings=self._settings)
        self.process = new_process()
        self._keeper: LeaseKeeper | None = None
        self._hosted: dict[tuple[str, int], HostedPartition] = {}
        self._going: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[Any]] = []
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> str:
        """This node's id."""
        return self.node.id

    @property
    def view(self) -> ClusterView:
        """The newest view of the cluster."""
        return self.node.view

    @property
    def router(self) -> Router:
        """What sends requests to partitions, wherever their owners are."""
        return self.node.router

    @property
    def keeper(self) -> LeaseKeeper:
        """What keeps this node's lease. Raises Closed unless the node was started."""
        if self._keeper is None:
            raise Closed("the node")
        return self._keeper

    @property
    def failures(self) -> dict[tuple[str, int], str]:
        """The partitions that could not be opened or served here, and why, until the next attempt succeeds."""
        return {where: hosted.failure for where, hosted in self._hosted.items() if hosted.failure}

    def host(self, group: str, partition: int) -> PartitionHost | None:
        """Return this node's own copy of a partition; None if it has none that is open."""
        hosted = self._hosted.get((group, partition))
        return None if hosted is None else hosted.host

    def hosts(self, group: str) -> dict[int, PartitionHost]:
        """Return this node's open copies of a group, by partition."""
        found = {partition: hosted.host for (of, partition), hosted in self._hosted.items() if of == group}
        return {partition: host for partition, host in sorted(found.items()) if host is not None}

    def owned(self) -> list[tuple[str, int]]:
        """Return the partitions that this node owns."""
        return sorted(where for where, hosted in self._hosted.items() if hosted.epoch)

    def missing(self, group: str) -> list[int]:
        """Return the partitions of a group that no living member is known to own."""
        spec = self.view.groups.get(group)
        owners = self.view.owners.get(group, {})
        return [n for n in range(spec.partitions if spec else 0) if n not in owners]

    def serve(self, group: HostedGroup) -> None:
        """Take part in one more group, from the next plan on."""
        self._groups[group.spec.name] = group
        self.node.serve(group.spec, self._handle)

    async def withdraw(self, name: str) -> None:
        """Release and close all that this node has of a group, and take part in it no more."""
        if self._groups.pop(name, None) is None:
            return
        for _, partition in [where for where in self._hosted if where[0] == name]:
            self._let_go(name, partition)
        try:
            await asyncio.gather(*self._going)
        finally:
            self.node.withdraw(name)

    async def start(self) -> None:
        """Join the cluster and begin to take part; partitions open in the background.

        Raises DuplicateNode, WrongGroupSize, and Unavailable while coordinator or log don't answer.
        """
        try:
            await self.node.start()
            await ensure_lease_topic(self._log, self._settings.cluster.name)
        except BaseException:
            await self.node.close()
            raise
        me = Identity(self.view.cluster_id, self.id, self.process)
        self._keeper = LeaseKeeper(self._log, self._settings.cluster.name, me, clock=self._clock, terms=self._terms)
        for work in (self._keeper.run(), self._follow_plan(), self._tell()):
            task = asyncio.create_task(work, name=f"headrace-hosting-{self.id}")
            task.add_done_callback(self._has_ended)
            self._tasks.append(task)

    async def wait(self) -> None:
        """Return when the node was closed; raise the error that ended it."""
        await asyncio.shield(self._ended)

    async def online(self, *groups: str, timeout_s: float = 60.0) -> None:
        """Wait until every partition of these groups, or of all that this node takes part in, has an owner."""
        names = groups or tuple(self._groups)
        try:
            async with asyncio.timeout(timeout_s):
                while any(name not in self.view.groups or self.missing(name) for name in names):
                    self._raise_if_ended()
                    await asyncio.sleep(_LOOK_EVERY_S / 5)
        except TimeoutError as error:
            missing = {name: self.missing(name) for name in names}
            reasons = "; ".join(f"{group}[{n}]: {why}" for (group, n), why in self.failures.items())
            what = f"waiting for the owners of {missing}" + (f" ({reasons})" if reasons else "")
            raise TimedOut(what, timeout_s) from error

    async def drain(self, *, timeout_s: float = 60.0) -> None:
        """Hand over all that this node owns, one partition after the other. Raises TimedOut."""
        await self.node.drain(timeout_s=timeout_s)

    async def close(self) -> None:
        """Release what this node owns, close its copies, and leave the cluster."""
        self.node.stop_serving()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        await asyncio.gather(*(hosted.stop() for hosted in self._hosted.values()), *self._going)
        self._hosted.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.node.close()
        if not self._ended.done():
            self._ended.set_result(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        hosted = self._hosted.get((request.group, request.partition))
        if hosted is None or hosted.host is None:
            raise NotPartitionOwner(request.group, request.partition, self.id, "")
        return await hosted.host.handle(request, deadline_s)

    async def _follow_plan(self) -> None:
        async for view in self.node.views():
            for name, group in list(self._groups.items()):
                self._follow(view, name, group)

    def _follow(self, view: ClusterView, name: str, group: HostedGroup) -> None:
        """Open what is new, close what is not ours any more, and say where in line this node is."""
        wanted = {n for n, each in enumerate(view.placements.get(name, ())) if self.id in each.replicas}
        for partition in [n for (of, n) in self._hosted if of == name and n not in wanted]:
            self._let_go(name, partition)
        for partition in wanted:
            hosted = self._hosted.get((name, partition))
            if hosted is None:
                hosted = self._hosted[name, partition] = HostedPartition(
                    self.node, group, partition, self._owner_of, self._is_alive, self._is_silent
                )
                hosted.start()
            hosted.follow(view)
        HOSTED.labels(name).set(len(wanted))

    def _let_go(self, name: str, partition: int) -> None:
        hosted = self._hosted.pop((name, partition))

        async def stop() -> None:
            await hosted.stop()
            self.node.drop(name, partition)

        task = asyncio.create_task(stop(), name=f"headrace-leave-{name}-{partition}")
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _tell(self) -> None:
        """Tell the others how far the copies are, and take note when one has caught up."""
        while True:
            for hosted in list(self._hosted.values()):
                hosted.tell(self.view)
                hosted.refresh_when_due()
            for name in list(self._groups):
                OWNED.labels(name).set(sum(of == name for of, _ in self.owned()))
            await asyncio.sleep(_LOOK_EVERY_S)

    def _owner_of(self, host: PartitionHost, listener: OwnerListener) -> Owner:
        partition = OwnedPartition(self._settings.cluster.name, host.changelogs)
        return Owner(self._log, partition, self.keeper, listener, clock=self._clock, start=host.ownership_read_from)

    def _is_alive(self, node: str) -> bool:
        """Return True if a renewal of a node's lease arrived a short time ago."""
        heard = None if self._keeper is None else self._keeper.watch.heard(node)
        return heard is not None and seconds(self._clock) - heard[0] < self._terms.patience_s(heard[1])

    def _is_silent(self, node: str) -> bool:
        """Return True if no renewal of a node's lease arrived for as long as a lease can last, and one would have."""
        if self._keeper is None:
            return False
        watch = self._keeper.watch
        heard_s, lease_s = watch.heard(node) or (watch.since_s, self._terms.lease_s)
        return seconds(self._clock) - max(heard_s, watch.since_s) > 2 * self._terms.patience_s(lease_s)

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self._ended.done():
            return
        error = task.exception()
        if error is not None:
            _logger.error("the node ends", node=self.id, error=str(error))
            self._ended.set_exception(error)
            self._ended.exception()  # `wait` raises it to those who ask

    def _raise_if_ended(self) -> None:
        if self._ended.done():
            self._ended.result()
            raise Closed("the node")
