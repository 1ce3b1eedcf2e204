"""One partition on one node: its copy, its owner, and when it stands in line, hands over, and is closed.

What a partition is, a keyspace's states or an engine's aggregates, is its `PartitionHost`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from headrace.cluster.members import ClusterView, GroupSpec, Holding
from headrace.cluster.node import Node
from headrace.cluster.owner import Owner, OwnerListener
from headrace.cluster.requests import PartitionRequest
from headrace.errors import Closed, HeadraceError, Misconfigured
from headrace.model import TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff

__all__ = ["HostedGroup", "HostedPartition", "OpenHost", "PartitionHost", "is_to_hand_over", "rank_in_line"]

_logger = get_logger(__name__)
_BACKOFF = Backoff(first_s=0.1, limit_s=10.0)
_RELEASE_S = 10.0
# Whoever a partition was handed over to has so long to take it, before the last owner takes it back; and so has any
# other node, if one has taken it and can't serve it.
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


def rank_in_line(
    view: ClusterView,
    group: str,
    partition: int,
    node: str,
    *,
    is_online: bool,
    is_silent: Callable[[str], bool] = lambda _: False,
) -> int | None:
    """Return where in line for a partition this node is; None if it is not to take it.

    A copy that has not caught up takes it only if no other one has, and a node that drains only if all others do. Who
    is silent, and does not renew its lease, counts for nothing, though the coordinator does not miss it yet.
    """
    placements = view.placements.get(group, ())
    replicas = placements[partition].replicas if partition < len(placements) else ()
    if node not in replicas:
        return None
    others = [each for each in replicas if each != node and each in view.members and not is_silent(each)]
    if node in view.draining and any(each not in view.draining for each in others):
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


class HostedPartition:
    """One partition on this node: its copy, its owner, and the task that keeps both alive."""

    def __init__(
        self,
        node: Node,
        group: HostedGroup,
        partition: int,
        owner_of: Callable[[PartitionHost, OwnerListener], Owner],
        is_alive: Callable[[str], bool],
        is_silent: Callable[[str], bool],
    ) -> None:
        self._is_silent = is_silent
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
        if not self.epoch and self._stands_back(owner):
            return
        is_online = bool(self.epoch) or self.host.is_online
        if self._releasing is None:
            rank = rank_in_line(
                view, self.name, self._partition, self._node.id, is_online=is_online, is_silent=self._is_silent
            )
            owner.propose(rank)

    def _stands_back(self, owner: Owner) -> bool:
        """Return True while others are to take the partition first. Once one has, this node is next in line again."""
        is_time = asyncio.get_running_loop().time() < self._stands_back_until_s
        return is_time and owner.owner in ("", self._node.id)

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
        """Take note of a new epoch; the copy gets the first one in a row."""
        del read_to  # the copy reads to the end itself
        if not self.epoch and self.host is not None:
            try:
                await self.host.owns(epoch)
            except Exception:  # another copy may be better; this one is closed, and opened again
                self._stands_back_until_s = asyncio.get_running_loop().time() + _STAND_BACK_S
                raise
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
                failures = max(failures + 1, 8)  # it stays wrong until an operator changes something
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
