"""A node that keeps the partitions which the plan gives it: their copies, their ownership, their requests.

What a partition is, a keyspace's states or an engine's aggregates, is its `PartitionHost`. This file decides when one
is opened and closed, runs its `Owner`, tells it where in line it is, and releases it when the plan wants another owner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from headrace.cluster.claimant import OwnedPartition
from headrace.cluster.epochs import Identity
from headrace.cluster.lease import LeaseKeeper, LeaseTerms, ensure_lease_topic, new_process
from headrace.cluster.members import ClusterView, GroupSpec, Holding
from headrace.cluster.node import Node
from headrace.cluster.owner import Owner, OwnerListener
from headrace.cluster.routing import PartitionRequest, Router
from headrace.cluster.tail import seconds
from headrace.config import HeadraceSettings
from headrace.errors import Closed, HeadraceError, Misconfigured, NotPartitionOwner, TimedOut
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.observe import gauge, get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, Clock

__all__ = ["HostedGroup", "HostingNode", "OpenHost", "PartitionHost", "is_to_hand_over", "rank_in_line"]

HOSTED = gauge("cluster", "hosted_partitions", "count", "Partitions that this node has a replica of.", ["group"])
OWNED = gauge("cluster", "owned_partitions", "count", "Partitions that this node owns.", ["group"])

_logger = get_logger(__name__)
_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)
_LOOK_EVERY_S = 0.1
_RELEASE_S = 10.0
# Whoever a partition was handed over to has so long to take it, before the last owner takes it back.
_STAND_BACK_S = 2.0
# Changelogs whose values all have a time to live drop what is older than that and a day, Epochs too.
_REFRESH_S = 600.0


class PartitionHost(Protocol):
    """What a group does with one partition on this node: it follows as a standby, and serves while it owns it.

    `owns` and `lost` take turns; between them requests may write. What `owns` raises means that the partition can't be
    served here: it is closed, and opened again after a pause.
    """

    @property
    def changelogs(self) -> tuple[TopicPartition, ...]:
        """The topics of the partition; the first gives it its name."""
        ...

    @property
    def ownership_read_from(self) -> Mapping[TopicPartition, int]:
        """From where on the changelogs say who owns the partition; the beginning where it is not known."""
        ...

    @property
    def offset(self) -> int:
        """How far the copy has come, of all its changelogs together: more is further."""
        ...

    @property
    def is_online(self) -> bool:
        """True if the copy has read all that was there when it began."""
        ...

    def begin(self, owner: Owner) -> None:
        """Begin to follow; `owner` is what commits and gates go through while this node owns the partition."""
        ...

    async def owns(self, epoch: int) -> None:
        """Get ready to write: read everything, then take requests."""
        ...

    async def lost(self) -> None:
        """Stop: requests that were not committed are refused; then follow again."""
        ...

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        """Answer a request of a caller. Raises NotPartitionOwner, only for what was never put into a commit."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


OpenHost: TypeAlias = Callable[[int], Awaitable[PartitionHost]]


class HostedGroup(NamedTuple):
    """A group that a node takes part in, and how it opens one of its partitions."""

    spec: GroupSpec
    open: OpenHost


def rank_in_line(view: ClusterView, group: str, partition: int, node: str, *, is_online: bool) -> int | None:
    """Return where in line for a partition this node is; None if it is not to take it.

    A copy that has not caught up takes it only if no other one has, and a node that drains only if it is alone.
    """
    placements = view.placements.get(group, ())
    replicas = placements[partition].replicas if partition < len(placements) else ()
    if node not in replicas:
        return None
    others = [each for each in replicas if each != node and each in view.members]
    if others and node in view.draining:
        return None
    if not is_online and any(_is_online(view, group, partition, each) for each in others):
        return None
    return replicas.index(node)


def is_to_hand_over(
    view: ClusterView, group: str, partition: int, node: str, epoch: int, *, is_alive: Callable[[str], bool]
) -> bool:
    """Return True if the plan, made when this node's ownership was known, wants another owner that is there.

    The coordinator learns of a death by the end of a session, which takes seconds; renewals of leases tell it at once.
    """
    placements = view.placements.get(group, ())
    if partition >= len(placements) or view.is_old:
        return False
    placement = placements[partition]
    first = placement.replicas[0] if placement.replicas else node
    return first != node and first in view.members and placement.epoch >= epoch and is_alive(first)


def _is_online(view: ClusterView, group: str, partition: int, member: str) -> bool:
    holdings = view.members[member].holdings
    return any(each.group == group and each.partition == partition and each.is_online for each in holdings)


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
        self._terms = terms or LeaseTerms()
        self._groups = {group.spec.name: group for group in groups}
        self.node = Node([(group.spec, self._handle) for group in groups], settings=self._settings)
        self.process = new_process()
        self._keeper: LeaseKeeper | None = None
        self._hosted: dict[tuple[str, int], _Hosted] = {}
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
        await asyncio.gather(*self._going)
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
                hosted = self._hosted[name, partition] = _Hosted(
                    self.node, group, partition, self._owner_of, self._is_alive
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
        heard_s = None if self._keeper is None else self._keeper.watch.heard_s(node)
        return heard_s is not None and seconds(self._clock) - heard_s < self._terms.patience_s

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


class _Hosted:
    """One partition on this node: its copy, its owner, and the task that keeps both alive."""

    def __init__(
        self,
        node: Node,
        group: HostedGroup,
        partition: int,
        owner_of: Callable[[PartitionHost, OwnerListener], Owner],
        is_alive: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._group = group
        self._partition = partition
        self._owner_of = owner_of
        self._is_alive = is_alive
        self._stands_back_until_s = 0.0
        self._refresh_at_s = asyncio.get_running_loop().time() + _REFRESH_S
        self._refreshing: asyncio.Task[None] | None = None
        self._owner: Owner | None = None
        self._task: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.host: PartitionHost | None = None
        self.epoch = 0
        self.failure = ""

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._group.spec.name

    def start(self) -> None:
        """Open the partition and take part, again and again."""
        self._task = asyncio.create_task(self._run(), name=f"headrace-host-{self.name}-{self._partition}")

    def follow(self, view: ClusterView) -> None:
        """Do what a new plan asks for: another place in line, or a hand-over."""
        owner = self._owner
        if owner is None or self._is_stopping or self.host is None:
            return
        if self.epoch and is_to_hand_over(
            view, self.name, self._partition, self._node.id, self.epoch, is_alive=self._is_alive
        ):
            self._release(owner)
            return
        if not self.epoch and asyncio.get_running_loop().time() < self._stands_back_until_s:
            return
        is_online = bool(self.epoch) or self.host.is_online
        if self._releasing is None:
            owner.propose(rank_in_line(view, self.name, self._partition, self._node.id, is_online=is_online))

    def tell(self, view: ClusterView) -> None:
        """Publish what this node has of the partition."""
        host = self.host
        if host is None or self._is_stopping:
            return
        is_online = bool(self.epoch) or host.is_online
        self._node.hold(
            Holding(
                group=self.name, partition=self._partition, offset=host.offset, is_online=is_online, epoch=self.epoch
            )
        )
        if not self.epoch:
            self.follow(view)

    def refresh_when_due(self) -> None:
        """Write the Epoch again now and then, so that it does not get old."""
        now_s = asyncio.get_running_loop().time()
        if not self.epoch or self._owner is None or now_s < self._refresh_at_s:
            return
        self._refresh_at_s = now_s + _REFRESH_S
        self._refreshing = asyncio.create_task(self._refresh(self._owner), name=f"headrace-refresh-{self.name}")

    async def stop(self) -> None:
        """Release the partition and close its copy."""
        self._is_stopping = True
        if self._owner is not None:
            try:
                async with asyncio.timeout(_RELEASE_S):
                    await self._owner.release()
            except (TimeoutError, HeadraceError) as error:
                _logger.warning("not released", group=self.name, partition=self._partition, error=str(error))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # What the Owner tells.

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        """Take note of a new epoch; of the first one in a row the copy is told."""
        del read_to  # the copy reads to the end itself
        if not self.epoch and self.host is not None:
            await self.host.owns(epoch)
        self.epoch = epoch
        self.failure = ""
        _logger.info("owns", group=self.name, partition=self._partition, epoch=epoch, node=self._node.id)
        self.tell(self._node.view)

    async def lost(self) -> None:
        """Take note that another node owns the partition, or nobody."""
        self.epoch = 0
        _logger.info("owns no more", group=self.name, partition=self._partition, node=self._node.id)
        if self.host is not None:
            await self.host.lost()
        with contextlib.suppress(Closed):  # the node may be about to leave
            self.tell(self._node.view)

    # How it is kept alive.

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with self._opened() as owner:
                    failures = 0
                    await owner.run()
            except Misconfigured as error:
                failures = max(failures + 1, 8)  # it stays wrong until somebody changes something
                self._failed(error)
            except Exception as error:
                failures += 1
                self._failed(error)
            await asyncio.sleep(_BACKOFF.delay_s(failures))

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Owner]:
        host = await self._group.open(self._partition)
        try:
            owner = self._owner_of(host, self)
            host.begin(owner)
            self.host, self._owner = host, owner
            yield owner
        finally:
            was_owned, self.epoch, self.host, self._owner = self.epoch, 0, None, None
            if was_owned:
                await host.lost()
            await host.close()

    async def _refresh(self, owner: Owner) -> None:
        try:
            await owner.refresh()
        except HeadraceError as error:
            _logger.warning(
                "an Epoch was not written again", group=self.name, partition=self._partition, error=str(error)
            )

    def _failed(self, error: Exception) -> None:
        self.failure = str(error) or repr(error)
        _logger.error(
            "a partition is not served", group=self.name, partition=self._partition, error=f"{error!r}", exc_info=error
        )
        with contextlib.suppress(Closed):
            self._node.drop(self.name, self._partition)

    def _release(self, owner: Owner) -> None:
        if self._releasing is not None:
            return

        async def release() -> None:
            try:
                await owner.release()
                self._stands_back_until_s = asyncio.get_running_loop().time() + _STAND_BACK_S
            except HeadraceError as error:
                _logger.warning("not released", group=self.name, partition=self._partition, error=str(error))
            finally:
                self._releasing = None

        self._releasing = asyncio.create_task(release(), name=f"headrace-release-{self.name}-{self._partition}")
