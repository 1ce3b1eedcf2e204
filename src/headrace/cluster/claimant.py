"""Becoming the owner of a partition: the takings, reads and writes of one attempt, in the order of `next_step`."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import Counter

from headrace.cluster.epochs import Epoch, OwnershipRecord, ownership_records
from headrace.cluster.lease import LeaseKeeper
from headrace.cluster.ownership import (
    OwnershipClaim,
    PartitionView,
    ReadToEnd,
    Serve,
    StandBy,
    TakeId,
    TakeLease,
    WriteEpoch,
    after_failure,
    check_record,
    earlier_lease_s,
    next_step,
    wait_until_s,
)
from headrace.cluster.tail import Tail, seconds, together
from headrace.errors import BadArgument, Fenced, HeadraceError, Unavailable
from headrace.log import Log, TransactionalProducer
from headrace.model import NewRecord, Position, Record, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff, Clock, crash_point
from headrace.state import BatchName

__all__ = ["FAILED", "Claimant", "OwnedPartition"]

_logger = get_logger(__name__)

# What ends an attempt or a commit without saying that it was wrong: the id is taken again, or it is another node's.
FAILED = (Fenced, Unavailable)
# Ten to thirty round trips, and more each time: a rival that took the id meanwhile needs that long to write its Epoch.
_BACKOFF = Backoff(first_s=0.15, factor=1.5, limit_s=2.0, jitter=0.67)
_LOOK_AGAIN_S = 0.01

TAKINGS = Counter("headrace_cluster_takings_total", "Times that this process took the id of a partition.")


class OwnedPartition(msgspec.Struct, frozen=True):
    """One partition of a group: its changelogs, the first of which gives it its name."""

    prefix: str
    changelogs: tuple[TopicPartition, ...]

    def __post_init__(self) -> None:
        if not self.changelogs:
            raise BadArgument("changelogs", self.changelogs, "a partition has at least one changelog")

    @property
    def at(self) -> TopicPartition:
        """The changelog that names the partition."""
        return self.changelogs[0]

    @property
    def transactional_id(self) -> str:
        """The id under which its owner writes."""
        return f"{self.prefix}-{self.at.topic}-{self.at.partition}"


class Claimant:
    """Reads the changelogs of one partition, and takes it over. One call at a time, except for `follow`.

    `named` are the leases of Epochs that were sent since the last one that is served under: any of them may be the last
    in the log, and its lease the one that a successor takes.
    """

    def __init__(
        self,
        log: Log,
        partition: OwnedPartition,
        keeper: LeaseKeeper,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        read_timeout_s: float,
        dice: random.Random,
    ) -> None:
        self.partition = partition
        self.view = PartitionView(partition.changelogs, since_s=seconds(clock))
        self.takings = 0
        self.named: set[str] = set()
        self._log = log
        self._keeper = keeper
        self._watch = keeper.watch
        self._clock = clock
        self._on_change = on_change
        self._read_timeout_s = read_timeout_s
        self._dice = dice
        self._producer: TransactionalProducer | None = None
        self._wait_until_s = float("inf")  # no attempt has found out yet
        self._tails: list[Tail] = []

    async def open(self, start: Mapping[TopicPartition, int]) -> None:
        """Read the changelogs from `start`, or else their beginning, as far as can be read.

        While the log is away, it is asked again. Raises ForeignCluster, PartitionClosed.
        """
        failures = 0
        while True:
            try:
                for at in self.partition.changelogs[len(self._tails) :]:
                    first = start.get(at, (await self._log.bounds(at)).start)
                    self._tails.append(Tail(self._log, at, start=first, clock=self._clock, sink=self._saw))
                return await self._read_committed()
            except Unavailable as error:
                failures += 1
                _logger.info("opening failed", partition=str(self.partition.at), error=str(error), attempt=failures)
                await asyncio.sleep(_BACKOFF.delay_s(failures, self._dice.random))

    async def follow(self) -> None:
        """Follow all changelogs until cancelled. Raises ForeignCluster, PartitionClosed."""
        await together(*(tail.follow() for tail in self._tails))

    def read_to(self) -> dict[TopicPartition, int]:
        """Return how far each changelog was read."""
        return {tail.at: tail.position for tail in self._tails}

    async def claim(self) -> Serve | None:
        """Take the partition, again and again while nobody else does. Returns None if another node has it."""
        failures = 0
        while True:
            claim = OwnershipClaim(expected=self.view.last, wait_until_s=self._wait_until_s)
            try:
                return await self._attempt(claim)
            except FAILED as error:
                failures += 1
                _logger.info("claim failed", partition=str(self.partition.at), error=str(error), attempt=failures)
                if not await self.is_worth_another(claim, failures):
                    return None

    async def look_again(self) -> bool:
        """Read all that has arrived, also while this process was not running; returns False if the log is away.

        Only as far as can be read: a dead owner has left transactions open, which end when its ids are taken.
        """
        try:
            await self._read_committed()
            if self.view.last is not None:
                await self._watch.look(self.view.last.by.node, timeout_s=self._read_timeout_s)
        except Unavailable as error:
            _logger.info("reading failed", partition=str(self.partition.at), error=str(error))
            return False
        return True

    async def is_worth_another(self, claim: OwnershipClaim | None, failures: int) -> bool:
        """Leave the producer, back off, read what is there; return True if the id may be taken again."""
        await self.leave_producer()
        while True:
            # Where leases had to grow, so must the time in which a rival can write its Epoch.
            slowness = math.sqrt(self._keeper.length.slowness)
            await asyncio.sleep(slowness * _BACKOFF.delay_s(failures, self._dice.random))
            try:
                await self._read_committed()
                return isinstance(after_failure(claim, self.view.last, self._keeper.me), TakeId)
            except Unavailable as error:
                failures += 1
                _logger.info("reading failed", partition=str(self.partition.at), error=str(error), attempt=failures)

    async def read_past(self, epoch: int) -> None:
        """Read until every changelog shows that this epoch is over, or for as long as a read may take."""
        deadline_s = seconds(self._clock) + self._read_timeout_s
        while not self.view.is_past(epoch) and seconds(self._clock) < deadline_s:
            await asyncio.sleep(_LOOK_AGAIN_S)
            try:
                await self._read_committed()
            except Unavailable as error:
                _logger.info("reading failed", partition=str(self.partition.at), error=str(error))

    async def write(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        """Commit records under the partition's id. What is refused is aborted, and nothing of it was written."""
        if self._producer is None:
            raise Fenced(self.partition.transactional_id)
        await self._producer.begin()
        try:
            await self._producer.append(records)
        except FAILED:
            raise
        except HeadraceError:
            await self._producer.abort()
            raise
        crash_point("cluster.before-commit")
        positions = await self._producer.commit()
        crash_point("cluster.after-commit")
        return positions

    async def write_ownership(self, record: OwnershipRecord, name: BatchName) -> None:
        """Write an ownership record to all changelogs, in one transaction."""
        await self.write(ownership_records(record, self.partition.changelogs, name=name))

    async def leave_producer(self) -> None:
        """Close the producer: after a failure it is never used again, because its late requests may still arrive."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            await producer.close()
        except HeadraceError as error:
            _logger.warning("closing failed", transactional_id=producer.transactional_id, error=str(error))

    async def _read_committed(self) -> None:
        await together(*(tail.read_committed(timeout_s=self._read_timeout_s) for tail in self._tails))

    async def _attempt(self, claim: OwnershipClaim) -> Serve | None:
        lease = await self._keeper.held()
        while True:
            match next_step(claim, self._keeper.me, lease_id=lease.id, lease_s=lease.lease_s):
                case TakeId():
                    await self._take_id(claim)
                case ReadToEnd():
                    await self._read(claim)
                case TakeLease(lease_id, node):
                    await self._take_lease(claim, lease_id, node)
                case WriteEpoch(epoch):
                    await self._write_epoch(claim, epoch)
                case StandBy():
                    return None
                case Serve() as done:
                    return done

    async def _take_id(self, claim: OwnershipClaim) -> None:
        await self.leave_producer()
        self.takings += 1
        TAKINGS.inc()
        self._producer = await self._log.transactional(self.partition.transactional_id)
        claim.taken_s = seconds(self._clock)
        crash_point("cluster.after-taking")

    async def _read(self, claim: OwnershipClaim) -> None:
        await together(*(tail.read_to_end(timeout_s=self._read_timeout_s) for tail in self._tails))
        claim.is_complete = claim.is_written
        if not claim.is_read:
            check_record(self.view.last, self.partition.at, self._keeper.me)
            claim.is_read, claim.before = True, self.view.last

    async def _take_lease(self, claim: OwnershipClaim, lease_id: str, node: str) -> None:
        """End the last owner's lease, and find out when its last renewal arrived.

        If renewals may be hidden, or none was seen, the end of the lease itself is the latest that it can have been.
        """
        taken = await self._log.transactional(lease_id)
        claim.lease_s = claim.renewal_s = seconds(self._clock)
        await taken.close()
        if await self._watch.look(node, timeout_s=self._read_timeout_s):
            claim.renewal_s = self._watch.arrived_s(lease_id) or claim.lease_s

    async def _write_epoch(self, claim: OwnershipClaim, epoch: Epoch) -> None:
        me, terms, last_s = self._keeper.me, self._keeper.terms, self.view.last_s
        claim.wait_until_s = wait_until_s(claim, me, terms, record_s=self.view.record_s, last_s=last_s)
        # Kept here too: if the answer to this write is lost, the next attempt finds the Epoch to be its own.
        self._wait_until_s = claim.wait_until_s
        now_s = seconds(self._clock)
        earlier_s = earlier_lease_s(claim, me, terms, last_s=last_s, now_s=now_s)
        claim.epoch = epoch = msgspec.structs.replace(epoch, earlier_lease_s=earlier_s)
        self.named.add(epoch.lease_id)
        await self.write_ownership(epoch, BatchName(epoch.epoch, 0))
        claim.is_written = True
        crash_point("cluster.after-epoch")

    def _saw(self, record: Record, now_s: float) -> None:
        if self.view.take(record, now_s):
            check_record(self.view.last, self.partition.at, self._keeper.me)
            self._on_change()
