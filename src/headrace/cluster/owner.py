"""One replica's part in the ownership of a partition: stand by, take over, commit, serve, release."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from prometheus_client import Counter

from headrace.cluster.claimant import FAILED, Claimant, OwnedPartition
from headrace.cluster.epochs import Closure, Epoch, Release, epoch_records, is_same_tenure, note_record, with_batch
from headrace.cluster.lease import LeaseKeeper
from headrace.cluster.ownership import Outcome, Serve, due_s, outcome_of
from headrace.cluster.tail import CLOCK_STEP_S, seconds, sleep_until, together
from headrace.errors import BadArgument, NotPartitionOwner, OperationFailed, TimedOut, TransactionFailed
from headrace.log import Log
from headrace.model import NewRecord, Position, SoundRecords, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import SYSTEM_CLOCK, Clock, Lookout
from headrace.state import BatchName

__all__ = ["Committed", "OwnedPartition", "Owner", "OwnerListener"]

T = TypeVar("T")

_logger = get_logger(__name__)
_LOOK_AGAIN_S = 0.01
_LOG_AWAY_S = 0.2

BATCHES = Counter(
    "headrace_cluster_batches_total",
    "Batches of owners by how they ended: committed, not_committed, unknown.",
    ["outcome"],
)


class Committed(NamedTuple):
    """A batch that is in the log for good.

    `positions` are those of its records, in order. If the commit's answer was lost and the batch was found by reading,
    they are those in the partition's changelogs only. Nothing that follows from the batch may leave the node before
    `leave_after_s` (see `Owner.reply_gate`).
    """

    batch: BatchName
    positions: tuple[Position, ...]
    leave_after_s: float


class OwnerListener(Protocol):
    """Called when a replica becomes the owner, and when it stops being the owner."""

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        """Get ready: all that earlier owners committed lies below `read_to`. Commits and reads begin afterwards."""
        ...

    async def lost(self) -> None:
        """Stop: another node owns the partition, or this one released it."""
        ...


class _Tenure:
    """What this node has as the owner of one epoch."""

    def __init__(self, serve: Serve) -> None:
        self.epoch = serve.epoch
        self.wait_until_s = serve.wait_until_s
        self.number = 0
        self.is_ending = False

    def next_name(self) -> BatchName:
        self.number += 1
        return BatchName(self.epoch.epoch, self.number)


class Owner:
    """A replica of one partition that may become its owner.

    Promises: at any time at most one node's commits count, and what it commits follows all that was committed before.
    A read that `may_serve` allowed sees every write that was acknowledged before it was asked.
    Does not promise: that there is an owner; after a crash the next one begins within about two leases.
    """

    def __init__(
        self,
        log: Log,
        partition: OwnedPartition,
        keeper: LeaseKeeper,
        listener: OwnerListener,
        *,
        clock: Clock = SYSTEM_CLOCK,
        start: Mapping[TopicPartition, int] | None = None,
        compaction_lag_s: float = 60.0,
        read_timeout_s: float = 10.0,
        dice: random.Random | None = None,
    ) -> None:
        """Make a replica; `run` starts it.

        `start` says where to begin reading the changelogs, where not at their beginning: at or before the last
        ownership record. `compaction_lag_s` is for how long the log surely keeps a record that was replaced.
        """
        self._keeper = keeper
        self._listener = listener
        self._clock = clock
        self._start = start or {}
        self._compaction_lag_s = compaction_lag_s
        self._topics = {at.topic for at in partition.changelogs}
        self._rank: int | None = None
        self._tenure: _Tenure | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()
        self._lookout = Lookout(self._is_worth_a_look, every_s=_LOOK_AGAIN_S)
        self._claimant = Claimant(
            log,
            partition,
            keeper,
            clock=clock,
            on_change=self._changed.set,
            read_timeout_s=read_timeout_s,
            dice=dice or random.Random(),  # noqa: S311 - it spreads retries
        )

    @property
    def epoch(self) -> int | None:
        """The epoch under which this node owns the partition; None if it does not."""
        return self._tenure.epoch.epoch if self._tenure is not None else None

    @property
    def owner(self) -> str:
        """The node that the log names as the owner, as far as it was read; empty if there is none."""
        last = self._claimant.view.last
        return last.by.node if isinstance(last, Epoch) else ""

    @property
    def takings(self) -> int:
        """How often this node took the partition's id."""
        return self._claimant.takings

    def propose(self, rank: int | None) -> None:
        """Say where in line for the partition this node is, as the coordinator sees it: 0 is first, None is not.

        It is about the next owner. This node, if it is the owner, goes on until `release` is called.
        """
        self._rank = rank
        self._changed.set()

    async def run(self) -> None:
        """Take part until cancelled. Raises ForeignCluster, PartitionClosed; what the listener raises ends it too."""
        self._keeper.on_new_lease.append(self._changed.set)
        try:
            await self._claimant.open(self._start)
            await together(self._claimant.follow(), self._live())
        finally:
            self._keeper.on_new_lease.remove(self._changed.set)
            await self._end()

    async def commit(self, records: Sequence[NewRecord]) -> Committed:
        """Write a batch in one transaction; it goes to its end even if the caller is cancelled.

        Raises NotPartitionOwner or TransactionFailed: nothing was written, unless `outcome_known` is False. What the
        log refuses (BadArgument, RecordTooLarge …) is raised as it is, and nothing was written.
        """
        self._expect_tenure()
        return await self._to_its_end(self._commit(records))

    def _is_worth_a_look(self) -> bool:
        """Return True if those who wait to read may do so, or need not wait any longer."""
        return self._tenure is None or self._tenure.is_ending or self.may_serve()

    def may_serve(self) -> bool:
        """Return True if a read that has arrived may be answered at this moment."""
        tenure = self._tenure
        if tenure is None or tenure.is_ending or not is_same_tenure(self._claimant.view.last, tenure.epoch):
            return False
        now_s = seconds(self._clock)
        if now_s < tenure.wait_until_s or not self._keeper.is_valid(tenure.epoch.lease_id, now_s=now_s):
            return False
        # While another Epoch is being written, a successor takes the lease of this one or that of the next.
        named = self._claimant.named
        return not named or all(self._keeper.is_valid(each, now_s=now_s) for each in named)

    async def serve_gate(self, *, timeout_s: float) -> None:
        """Wait until a read may be answered. Raises NotPartitionOwner, TimedOut."""
        deadline_s = seconds(self._clock) + timeout_s
        while not self.may_serve():
            self._expect_tenure()
            left_s = deadline_s - seconds(self._clock)
            if left_s <= 0:
                raise TimedOut(f"waiting to read {self._claimant.partition.at}", timeout_s)
            await self._lookout.wait(max(left_s, CLOCK_STEP_S))

    def may_reply(self, committed: Committed) -> bool:
        """Return True if the answers to a committed batch may leave the node at this moment."""
        return seconds(self._clock) >= committed.leave_after_s

    async def reply_gate(self, committed: Committed) -> None:
        """Wait until the answers to a committed batch may leave the node."""
        if not self.may_reply(committed):
            await sleep_until(self._clock, committed.leave_after_s)

    async def release(self) -> None:
        """Give the partition up in an orderly way: the next owner need not wait. Does nothing if it is not ours.

        A claim that is under way comes to its end first, and is given up then.
        """
        self._rank = None
        if self._tenure is not None:
            self._tenure.is_ending = True
        await self._to_its_end(self._release())

    async def wait_gate(self) -> None:
        """Wait until no owner before can be answering reads any more. Raises NotPartitionOwner."""
        await sleep_until(self._clock, self._expect_tenure().wait_until_s)

    async def refresh(self) -> None:
        """Write this owner's Epoch once more, for changelogs that drop what is old. Raises what `commit` raises."""
        epoch = self._expect_tenure().epoch
        await self.commit(epoch_records(epoch, self._claimant.partition.changelogs))

    async def close_partition(self) -> None:
        """Close the partition for good: nobody owns it again. Raises NotPartitionOwner, TransactionFailed."""
        await self.wait_gate()
        async with self._turn:
            tenure = self._expect_tenure()
            epoch = tenure.epoch
            record = Closure(epoch.epoch, epoch.by, epoch.lease_id)
            await self._claimant.write_ownership(record, tenure.next_name())
            tenure.is_ending = True

    async def _live(self) -> None:
        """Look at what has changed, do what follows from it, and wait for the next change."""
        await self._keeper.held()
        while True:
            self._changed.clear()
            if self._tenure is not None:
                wait_s = await self._mind_tenure(self._tenure)
            else:
                wait_s = await self._mind_standby()
            if wait_s != 0:
                await _first(self._changed, wait_s)

    async def _mind_tenure(self, tenure: _Tenure) -> float | None:
        """Give up what another node took; renew the Epoch if the lease that it names is not ours any more."""
        if not self._is_to_change(tenure):
            return None
        async with self._turn:
            if self._tenure is not tenure or not self._is_to_change(tenure):
                return 0
            if is_same_tenure(self._claimant.view.last, tenure.epoch):
                await self._claim()
            else:
                await self._lose()
        return 0

    def _is_to_change(self, tenure: _Tenure) -> bool:
        """Return True if another record follows the tenure's Epoch, or its lease is not the present one."""
        if not is_same_tenure(self._claimant.view.last, tenure.epoch):
            return True
        lease = self._keeper.lease
        return not tenure.is_ending and lease is not None and lease.id != tenure.epoch.lease_id

    async def _mind_standby(self) -> float | None:
        """Take the partition if that is due; returns how long to wait otherwise."""
        left_s = self._left_s()
        if left_s is None or left_s > 0:
            return left_s
        if not await self._claimant.look_again():
            return _LOG_AWAY_S
        async with self._turn:
            left_s = self._left_s()
            if left_s is None or left_s > 0:
                return left_s
            await self._claim()
        return 0

    def _left_s(self) -> float | None:
        """Return how long to wait before the partition is to be taken; None if it is not for this node to take."""
        if self._rank is None:
            return None
        due = due_s(
            self._claimant.view,
            self._keeper.me,
            self._keeper.terms,
            rank=self._rank,
            renewal_s=self._keeper.watch.arrived_s,
            watching_since_s=self._keeper.watch.since_s,
            own_lease_s=self._keeper.length.lease_s,
        )
        return due - seconds(self._clock)

    async def _claim(self) -> None:
        """Become the owner, or find that another node is."""
        serve = await self._claimant.claim()
        if serve is None:
            await self._lose()
            return
        tenure = _Tenure(serve)
        try:
            await self._listener.owns(serve.epoch.epoch, self._claimant.read_to())
        except Exception:
            await self._give_back(tenure)
            raise
        self._tenure = tenure
        self._claimant.named.clear()
        self._changed.set()

    async def _give_back(self, tenure: _Tenure) -> None:
        """Release what can't be served here: this node's lease goes on, and so nobody else would ever take it."""
        await sleep_until(self._clock, tenure.wait_until_s)
        epoch = tenure.epoch
        try:
            await self._claimant.write_ownership(Release(epoch.epoch, epoch.by, epoch.lease_id), tenure.next_name())
        except FAILED as error:  # another node has it, or this one tries again
            _logger.warning("not released", partition=str(self._claimant.partition.at), error=str(error))

    async def _lose(self) -> None:
        had, self._tenure = self._tenure, None
        self._claimant.named.clear()
        self._changed.set()
        await self._claimant.leave_producer()
        if had is not None:
            await self._listener.lost()

    async def _commit(self, records: Sequence[NewRecord]) -> Committed:
        async with self._turn:
            tenure = self._expect_tenure()
            name = tenure.next_name()
            batch = self._batch(records, name)
            view = self._claimant.view
            view.watch, view.watched = name, []
            sent_s = seconds(self._clock)
            try:
                positions = await self._claimant.write(batch)
            except FAILED as error:
                return await self._settle(tenure, name, sent_s, error)
            view.watch = None  # its records need not be gathered any more
            BATCHES.labels("committed").inc()
            return Committed(name, tuple(positions[: len(records)]), tenure.wait_until_s)

    def _batch(self, records: Sequence[NewRecord], name: BatchName) -> Sequence[NewRecord]:
        """Return what to write. At least one record goes to a changelog, so that the batch can be found there."""
        changelogs, topics, is_noted = self._claimant.partition.changelogs, self._topics, False
        for record in records:
            if record.topic in topics:
                is_noted = True
                if (record.topic, record.partition) not in changelogs:
                    rule = f"records for {record.topic!r} go to {changelogs[0]}"
                    raise BadArgument("partition", record.partition, rule)
        batch = with_batch(records, name)
        if not is_noted:
            batch.append(note_record(changelogs[0], name))
        return SoundRecords(batch) if type(records) is SoundRecords else batch

    async def _settle(self, tenure: _Tenure, name: BatchName, sent_s: float, error: Exception) -> Committed:
        """Take the id again after a commit that failed, and find out what became of it."""
        view = self._claimant.view
        if await self._claimant.is_worth_another(None, 1):
            await self._claim()
        else:
            await self._lose()
        if not _is_known(error):
            await self._claimant.read_past(name.epoch)
        is_sure = seconds(self._clock) - sent_s < self._compaction_lag_s
        outcome = Outcome.NOT_COMMITTED if _is_known(error) else outcome_of(name, view, is_sure=is_sure)
        BATCHES.labels(outcome.name.lower()).inc()
        if outcome is Outcome.COMMITTED:
            return Committed(name, tuple(view.watched), tenure.wait_until_s)
        if outcome is Outcome.UNKNOWN:
            raise TransactionFailed(self._claimant.partition.transactional_id, str(error), outcome_known=False)
        self._expect_tenure()
        raise TransactionFailed(self._claimant.partition.transactional_id, str(error)) from error

    async def _release(self) -> None:
        async with self._turn:
            while (tenure := self._tenure) is not None:
                tenure.is_ending = True
                await sleep_until(self._clock, tenure.wait_until_s)
                epoch = tenure.epoch
                record = Release(epoch.epoch, epoch.by, epoch.lease_id)
                try:
                    await self._claimant.write_ownership(record, tenure.next_name())
                    await self._lose()
                except FAILED:
                    if await self._claimant.is_worth_another(None, 1):
                        await self._claim()
                    else:
                        await self._lose()

    def _expect_tenure(self) -> _Tenure:
        if self._tenure is None or self._tenure.is_ending:
            at = self._claimant.partition.at
            owner = self.owner if self.owner != self._keeper.me.node else ""
            raise NotPartitionOwner(at.topic, at.partition, self._keeper.me.node, owner)
        return self._tenure

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end what must not stop half-way, whatever happens to the caller. Raises OperationFailed.

        If this owner ends meanwhile, that ends the work, and not its caller.
        """
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ran)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            what = f"writing to {self._claimant.partition.at}"
            raise OperationFailed(what, "this node takes part in it no more", outcome_known=False) from None

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it when the caller is gone

    async def _end(self) -> None:
        """Leave without a Release: the next owner waits for the lease to end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._tenure = None
        self._lookout.close()
        await self._claimant.leave_producer()


def _is_known(error: Exception) -> bool:
    return bool(getattr(error, "outcome_known", True))


async def _first(changed: asyncio.Event, wait_s: float | None) -> None:
    """Wait for the event, or for so long."""
    try:
        async with asyncio.timeout(wait_s if wait_s is None else max(wait_s, CLOCK_STEP_S)):
            await changed.wait()
    except TimeoutError:
        return
