"""A partition in the hands of a tool: a bulk load or a rebuild owns it for as long as it writes.

It becomes the owner as any node would: it waits until the owner before has released the partition or its lease is over,
takes the transactional id, and writes its Epoch. From then on nobody else can write.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from headrace.cluster.claimant import OwnedPartition
from headrace.cluster.epochs import Identity, seed_records
from headrace.cluster.lease import LeaseKeeper, new_process
from headrace.cluster.lease_length import LeaseTerms
from headrace.cluster.owner import Committed, Owner
from headrace.errors import TimedOut
from headrace.log import Log
from headrace.model import NewRecord, TopicPartition

__all__ = ["PartitionTakeover"]

_LOOK_BACK = 100


class PartitionTakeover:
    """Owns one partition, until it is released or closed.

    `epoch` is the one under which it is owned, 0 while it is not; `began` is the first one without another owner in
    between, and `newest` the last one of all. `waits_for` tells, in an error, what may be the cause.
    """

    def __init__(
        self, log: Log, partition: OwnedPartition, cluster_id: str, *, name: str, waits_for: str, lease_s: float = 0.5
    ) -> None:
        self._me = Identity(cluster_id, f"{name}-{uuid.uuid4().hex[:12]}", new_process())
        self._partition = partition
        self._waits_for = waits_for
        self._log = log
        self._changed = asyncio.Event()
        self.epoch = self.began = self.newest = 0
        self._keeper = LeaseKeeper(log, partition.prefix, self._me, terms=LeaseTerms(lease_s))
        self._owner = Owner(log, partition, self._keeper, self)
        self._tasks: list[asyncio.Task[None]] = []

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        """Begin: everybody else is fenced."""
        self.epoch = self.newest = epoch
        self.began = self.began or epoch
        self._changed.set()

    async def lost(self) -> None:
        """Another node has the partition; the next commit says so."""
        self.epoch = self.began = 0

    async def take_over(self, *, timeout_s: float) -> None:
        """Wait until the partition is ours. Raises TimedOut, and what ends an owner, as ForeignCluster."""
        self._owner.propose(0)
        self._tasks = [asyncio.create_task(self._keeper.run()), asyncio.create_task(self._owner.run())]
        await self._wait(timeout_s, above=0)

    async def commit(self, records: Sequence[NewRecord]) -> Committed:
        """Write records in one transaction. Raises NotPartitionOwner, TransactionFailed, RecordTooLarge."""
        return await self._owner.commit(records)

    async def raise_epoch(self, least: int, *, timeout_s: float) -> None:
        """Own the partition under an epoch above `least`.

        The epochs of a changelog that was lost begin again with 1, and what others remember of the old ones must not
        seem to be newer.
        """
        if self.epoch > least:
            return
        await self._owner.wait_gate()  # a Release says that nobody else is reading
        seeds = seed_records(self._partition.changelogs, least, self._me)
        # A Release, which is ours: the partition is taken again at once, under the next epoch.
        await self.commit([msgspec.structs.replace(each, headers=()) for each in seeds])
        await self._wait(timeout_s, above=least)

    async def last_time_ms(self) -> int:
        """Return the time of the partition's last records: an owner never stamps earlier, so it is the highest."""
        bounds = await self._log.bounds(self._partition.at)
        start = max(bounds.start, bounds.end - _LOOK_BACK)
        batches = self._log.read(self._partition.at, start, bounds.end, headers_only=True)
        return max([record.timestamp_ms async for batch in batches for record in batch.records], default=0)

    async def release(self) -> None:
        """Give the partition up, so that the next owner need not wait."""
        await self._owner.release()

    async def close(self) -> None:
        """Stop; the lease of a partition that was not released expires."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, timeout_s: float, *, above: int) -> None:
        """Wait for an epoch above this one. Raises TimedOut, and what ended the owner."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.epoch <= above:
            self._changed.clear()
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimedOut(f"taking {self._partition.at} over from its owner ({self._waits_for})", timeout_s)
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait([changed, *self._tasks], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()  # raises what ended it
