"""The lease of a node: for how long it may answer reads without asking the log.

A node renews its lease by committing a record under a transactional id of its own. Who takes over one of its partitions
takes that id too, and so ends the lease: the next renewal is refused. The lease counts from the *begin* of the last
renewal that was answered, so it is over for the node before it can be over for anybody who saw that renewal arrive.
Each lease has a length of its own, which its renewals and the Epochs under it name: whoever waits for it goes by that.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import Counter

from headrace.cluster.epochs import Identity
from headrace.cluster.lease_length import LeaseLength, LeaseTerms, renew_every_s
from headrace.cluster.lease_watch import SIGNS_OF_LIFE, LeaseWatch, Renewal, encode_renewal, lease_topic, partition_of
from headrace.cluster.tail import seconds, sleep_until, together
from headrace.errors import DuplicateNode, Fenced, HeadraceError, TimedOut, Unavailable
from headrace.log import Log, TransactionalProducer
from headrace.model import NewRecord
from headrace.observe import counter, gauge, get_logger
from headrace.runtime import SYSTEM_CLOCK, Backoff, Clock

__all__ = ["LeaseKeeper", "NodeLease", "new_process"]

_logger = get_logger(__name__)
_BACKOFF = Backoff(first_s=0.05, factor=1.5, limit_s=1.0)
_LEASES_AT_ONCE = 3
# For how long a lease is renewed after one of another length has followed it: until the Epochs that name it are
# replaced, reads go on under it.
_OVERLAP_S = 10.0

LENGTH = gauge("cluster", "lease", "seconds", "Length of this process' lease; it grows on a slow machine.")
RAN_OUT = counter("cluster", "leases_run_out", "Times that a lease was over before its renewal was answered.")
LOST = Counter(
    "headrace_cluster_leases_lost_total", "Leases of this process that were refused or not answered in time."
)


def new_process() -> str:
    """Return a name for this process that no other one ever has."""
    return uuid.uuid4().hex[:16]


class NodeLease:
    """One lease id, from its first renewal until it is lost: always of the same length. Pure: times are handed in."""

    def __init__(self, lease_id: str, lease_s: float) -> None:
        self.id = lease_id
        self.lease_s = lease_s
        self.renewals = 0
        self._valid_until_s = float("-inf")
        self._is_lost = False

    def renewed(self, *, begun_s: float) -> None:
        """Note a renewal that was answered; it counts from when it was begun."""
        self.renewals += 1
        self._valid_until_s = max(self._valid_until_s, begun_s + self.lease_s)

    def ends_s(self, *, begun_s: float) -> float:
        """Return when it is over unless a renewal that was begun then is answered."""
        return self._valid_until_s if self.is_begun else begun_s + self.lease_s

    @property
    def is_begun(self) -> bool:
        """Whether it was renewed at least once."""
        return self._valid_until_s > float("-inf")

    def lose(self) -> None:
        """Note that a renewal was refused or not answered: the id is never used again."""
        self._is_lost = True

    def is_valid(self, now_s: float) -> bool:
        """Return True if reads may be answered at this moment."""
        return not self._is_lost and now_s < self._valid_until_s


def _may_be_open(leases: Sequence[str]) -> list[str]:
    """Return the leases that a dead process may have been renewing: the last ones, and the one that came after them.

    While its length changes, a process renews two, and no renewal of the newest one may have been seen.
    """
    stem = leases[-1].rpartition(".")[0]
    numbers = [each.rpartition(".")[2] for each in leases]
    newest = max((int(number) for number in numbers if number.isdigit()), default=0)
    return list(dict.fromkeys((*leases[-_LEASES_AT_ONCE:], f"{stem}.{newest + 1}")))


class LeaseKeeper:
    """Keeps the lease of this process: renews it, and begins another one whenever it was lost."""

    def __init__(
        self, log: Log, prefix: str, me: Identity, *, clock: Clock = SYSTEM_CLOCK, terms: LeaseTerms | None = None
    ) -> None:
        self.me = me
        self.terms = terms or LeaseTerms()
        self.watch = LeaseWatch(log, prefix, me, clock=clock)
        self.on_new_lease: list[Callable[[], None]] = []
        self._log = log
        self._prefix = prefix
        self._clock = clock
        self._length = LeaseLength(self.terms)
        self._lease: NodeLease | None = None
        self._renewed: dict[str, NodeLease] = {}
        self._incarnations = 0
        self._partition = 0
        self._has_lease = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def lease(self) -> NodeLease | None:
        """The present lease; None before the first one, and from the loss of one to the next."""
        return self._lease

    @property
    def length(self) -> LeaseLength:
        """How long the next lease is."""
        return self._length

    def is_valid(self, lease_id: str, *, now_s: float) -> bool:
        """Return True if this is a lease of this process under which reads may be answered at this moment."""
        lease = self._renewed.get(lease_id)
        return lease is not None and lease.is_valid(now_s)

    async def held(self) -> NodeLease:
        """Return the present lease, when there is one."""
        while self._lease is None:
            await self._has_lease.wait()
        return self._lease

    async def run(self) -> None:
        """Watch all leases and keep one until cancelled; while the log is away, there is none. Raises DuplicateNode."""
        await self._again_and_again(self._open)
        await self._again_and_again(self._succeed)
        await together(self.watch.run(), self._keep_on())

    async def _open(self) -> None:
        await self.watch.open()
        self._partition = partition_of(self.me.node, self.watch.partitions)

    async def _succeed(self) -> None:
        """End the lease of the process that was this node before. Raises DuplicateNode if it is alive.

        If it died while it renewed, what it left open would hide our own renewals from the other nodes.
        """
        last, signs = self.watch.predecessor, 0
        while last is not None and signs < SIGNS_OF_LIFE:
            await asyncio.sleep(self.terms.patience_s(last.lease_s))
            await self.watch.look(self.me.node)
            if self.watch.predecessor == last:
                await together(*(self._take(each) for each in _may_be_open(self.watch.predecessor_leases)))
                return
            last, signs = self.watch.predecessor, signs + 1
        if last is not None:
            raise DuplicateNode(self.me.node, self.me.process, last.by.process)

    async def _take(self, lease_id: str) -> None:
        await (await self._log.transactional(lease_id)).close()

    async def _again_and_again(self, call: Callable[[], Awaitable[None]]) -> None:
        """Do it when the log is there."""
        for failures in itertools.count(1):
            try:
                await call()
                break
            except (Unavailable, Fenced) as error:
                delay_s = _BACKOFF.delay_s(failures)
                _logger.warning("no lease yet", node=self.me.node, error=str(error), retry_in_s=delay_s)
                await asyncio.sleep(delay_s)

    async def _keep_on(self) -> None:
        failures = 0
        try:
            while True:
                self._incarnations += 1
                lease_id = f"{self._prefix}-lease-{self.me.process}.{self._incarnations}"
                lease = NodeLease(lease_id, self._length.lease_s)
                try:
                    await self._keep(lease)
                except (Unavailable, Fenced) as error:
                    failures = 1 if lease.is_begun else failures + 1
                    LOST.inc()
                    delay_s = _BACKOFF.delay_s(failures)
                    _logger.warning("lease lost", node=self.me.node, error=str(error), retry_in_s=delay_s)
                    await asyncio.sleep(delay_s)
        finally:
            for task in self._retiring:
                task.cancel()

    async def _keep(self, lease: NodeLease) -> None:
        """Take the lease's id and renew under it until that fails, or until the next one is to be of another length."""
        producer = await self._log.transactional(lease.id)
        due_s = seconds(self._clock)
        try:
            while self._length.lease_s == lease.lease_s:
                due_s = await self._renew_and_judge(lease, producer, due_s)
                if lease.renewals == 1:
                    self._begin(lease)
                await sleep_until(self._clock, due_s)
        except BaseException:
            self._end(lease, producer)
            raise
        task = asyncio.create_task(self._retire(lease, producer))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _renew_and_judge(self, lease: NodeLease, producer: TransactionalProducer, due_s: float) -> float:
        """Renew the lease, and look whether its length still fits; returns when the next renewal is due."""
        begun_s = seconds(self._clock)
        ends_s = lease.ends_s(begun_s=begun_s)
        try:
            await self._renew(lease, producer)
        except (Unavailable, Fenced) as error:
            # A time-out is late by its name: the timers' clock need not agree with ours to the millisecond.
            if isinstance(error, TimedOut) or seconds(self._clock) >= ends_s:
                self._note_ran_out(lease)
            raise
        lease.renewed(begun_s=begun_s)
        now_s = seconds(self._clock)
        if now_s >= ends_s:
            self._note_ran_out(lease)
        elif self._length.came_in_time(now_s - due_s, now_s=now_s):
            self._note_length(lease, "renewals have been fast again for some time")
        return begun_s + renew_every_s(lease.lease_s)

    async def _retire(self, lease: NodeLease, producer: TransactionalProducer) -> None:
        """Renew a lease until some time after the next one has begun: reads go on under it until the next Epochs."""
        until_s = float("inf")
        try:
            while (now_s := seconds(self._clock)) < until_s:
                await self._renew(lease, producer)
                lease.renewed(begun_s=now_s)
                await sleep_until(self._clock, now_s + renew_every_s(lease.lease_s))
                if until_s == float("inf") and self._lease is not lease:
                    until_s = seconds(self._clock) + _OVERLAP_S
        except (Unavailable, Fenced) as error:
            _logger.info("an earlier lease has ended", node=self.me.node, lease_id=lease.id, error=str(error))
        finally:
            self._end(lease, producer)

    async def _renew(self, lease: NodeLease, producer: TransactionalProducer) -> None:
        """Commit one record, never an empty transaction: that one works for producers that are fenced, too."""
        renewal = Renewal(lease.id, self.me, lease.renewals + 1, lease.lease_s)
        record = NewRecord(lease_topic(self._prefix), None, encode_renewal(renewal), partition=self._partition)
        try:
            async with asyncio.timeout(lease.lease_s):
                await producer.begin()
                await producer.append([record])
                await producer.commit()
        except TimeoutError as error:
            raise TimedOut(f"renew lease {lease.id!r}", lease.lease_s, outcome_known=False) from error

    def _note_ran_out(self, lease: NodeLease) -> None:
        RAN_OUT.inc()
        if self._length.ran_out():
            self._note_length(lease, "renewals were not answered before the lease was over")

    def _note_length(self, lease: NodeLease, reason: str) -> None:
        log = _logger.warning if self._length.lease_s > lease.lease_s else _logger.info
        node, to_s = self.me.node, self._length.lease_s
        log("the next lease has another length", node=node, reason=reason, from_s=lease.lease_s, to_s=to_s)

    def _begin(self, lease: NodeLease) -> None:
        LENGTH.set(lease.lease_s)
        self._renewed[lease.id] = self._lease = lease
        self._has_lease.set()
        for call in self.on_new_lease:
            call()

    def _end(self, lease: NodeLease, producer: TransactionalProducer) -> None:
        """Read under this lease no more, and never use its id again."""
        lease.lose()
        self._renewed.pop(lease.id, None)
        if self._lease is lease:
            self._lease = None
            self._has_lease.clear()
        self._leave(producer)

    def _leave(self, producer: TransactionalProducer) -> None:
        """Close a producer that may hang for long, without waiting for it: its id is never used again."""
        task = asyncio.create_task(_closed(producer))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _closed(producer: TransactionalProducer) -> None:
    try:
        await producer.close()
    except HeadraceError as error:
        _logger.warning("closing failed", transactional_id=producer.transactional_id, error=str(error))
