"""The renewals of all nodes' leases: the topic that holds them, and when each of them arrived here."""

from __future__ import annotations

import collections
import zlib

import msgspec

from headrace.cluster.epochs import UNNAMED_LEASE_S, Identity
from headrace.cluster.tail import Tail, seconds, together
from headrace.errors import DuplicateNode, UnreadableRecord
from headrace.log import Log, ensure_topic
from headrace.model import Cleanup, Record, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Clock

__all__ = [
    "LEASE_PARTITIONS",
    "SIGNS_OF_LIFE",
    "LeaseWatch",
    "Renewal",
    "encode_renewal",
    "ensure_lease_topic",
    "lease_topic",
    "partition_of",
]

_logger = get_logger(__name__)
# A process that died may have had one renewal on its way; two after our first one mean that it lives.
SIGNS_OF_LIFE = 2
_LEASES_KEPT = 4096
# Leases are spread, because a process that dies while it renews hides what others write after it in its partition.
LEASE_PARTITIONS = 16
_RETENTION_MS = 60 * 60 * 1000
_LOOK_BACK = 500
_LOOK_TIMEOUT_S = 10.0


class Renewal(msgspec.Struct, frozen=True):
    """What a renewal says. `number` counts those of one lease, from 1; `lease_s` is how long that lease is."""

    lease_id: str
    by: Identity
    number: int
    lease_s: float = UNNAMED_LEASE_S


encode_renewal = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Renewal).decode


def lease_topic(prefix: str) -> str:
    """Return the name of the topic that holds the renewals of all nodes."""
    return f"{prefix}-leases"


async def ensure_lease_topic(log: Log, prefix: str, *, partitions: int = LEASE_PARTITIONS) -> None:
    """Make the topic of the renewals if it is not there yet. Raises WrongPartitionCount."""
    config = TopicConfig(cleanup=Cleanup.DELETE, retention_ms=_RETENTION_MS)
    await ensure_topic(log.admin, lease_topic(prefix), partitions=partitions, config=config)


def partition_of(node: str, partitions: int) -> int:
    """Return the partition of the topic that a node renews its leases in: all in one, so that they have an order."""
    return zlib.crc32(node.encode()) % partitions


class LeaseWatch:
    """When the renewals of all leases arrived here, as far as they were seen since `since_s`.

    `predecessor` is the last renewal of another process with this node's id, from before this one's first, and
    `predecessor_leases` are the leases that this process renewed, the last one at the end.
    """

    def __init__(self, log: Log, prefix: str, me: Identity, *, clock: Clock) -> None:
        self.since_s = seconds(clock)
        self._log = log
        self._prefix = prefix
        self._me = me
        self._clock = clock
        self._tails: list[Tail] = []
        self._arrived_s: dict[str, float] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        self.predecessor: Renewal | None = None
        self.predecessor_leases: list[str] = []
        self._is_renewing = False
        self._later: set[str] = set()
        self._seen: collections.Counter[str] = collections.Counter()

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return len(self._tails)

    def arrived_s(self, lease_id: str) -> float | None:
        """Return when the last renewal of a lease arrived; None if none did since the watch began."""
        return self._arrived_s.get(lease_id)

    def heard(self, node: str) -> tuple[float, float] | None:
        """Return when a node was last heard of, by a renewal of any of its leases, and how long that lease is."""
        return self._heard.get(node)

    async def open(self) -> None:
        """Begin at the end of the topic, and for this node's own partition a little before. Raises UnknownTopic."""
        topic = lease_topic(self._prefix)
        partitions = (await self._log.admin.describe(topic)).partitions
        own = partition_of(self._me.node, partitions)
        for at in [TopicPartition(topic, partition) for partition in range(len(self._tails), partitions)]:
            bounds = await self._log.bounds(at)
            start = max(bounds.start, bounds.end - _LOOK_BACK) if at.partition == own else bounds.end
            self._tails.append(Tail(self._log, at, start=start, clock=self._clock, sink=self._saw))
        await self.look(self._me.node, timeout_s=_LOOK_TIMEOUT_S)

    async def run(self) -> None:
        """Follow the renewals until cancelled. Raises DuplicateNode."""
        await together(*(tail.follow() for tail in self._tails))

    async def look(self, node: str, *, timeout_s: float = _LOOK_TIMEOUT_S) -> bool:
        """See the renewals of a node's lease that can be read now; returns False if some may be hidden.

        A process that died while it renewed has left a transaction open, which hides all later renewals in its
        partition until another process takes the dead one's id.
        """
        tail = self._tails[partition_of(node, len(self._tails))]
        return await tail.read_committed(timeout_s=timeout_s)

    def _saw(self, record: Record, now_s: float) -> None:
        try:
            renewal = _renewal_in(record)
        except UnreadableRecord as error:  # no node has written it, and it renews nothing
            _logger.warning("a record is not a renewal of a lease", reason=str(error))
            return
        self._arrived_s.pop(renewal.lease_id, None)
        self._arrived_s[renewal.lease_id] = now_s
        self._heard[renewal.by.node] = (now_s, renewal.lease_s)
        if len(self._arrived_s) > _LEASES_KEPT:
            del self._arrived_s[next(iter(self._arrived_s))]  # the one that was silent for longest
        self._check_rival(renewal)

    def _note_predecessor(self, renewal: Renewal) -> None:
        if self.predecessor is None or self.predecessor.by != renewal.by:
            self.predecessor_leases.clear()
        if renewal.lease_id in self.predecessor_leases:
            self.predecessor_leases.remove(renewal.lease_id)
        self.predecessor_leases.append(renewal.lease_id)
        self.predecessor = renewal

    def _check_rival(self, renewal: Renewal) -> None:
        """Raise if another process with our node id was there first and still renews its lease."""
        rival = renewal.by.process
        if renewal.by == self._me:
            self._is_renewing = True
        elif not self._is_renewing and renewal.by.node == self._me.node:
            self._note_predecessor(renewal)
        elif renewal.by.node == self._me.node and rival not in self._later:
            if renewal.number == 1:
                self._later.add(rival)  # it came after us, and will stop when it sees our next renewal
                return
            self._seen[rival] += 1
            if self._seen[rival] >= SIGNS_OF_LIFE:
                raise DuplicateNode(self._me.node, self._me.process, rival)


def _renewal_in(record: Record) -> Renewal:
    try:
        return _decode(record.value or b"")
    except msgspec.MsgspecError as error:
        reason = f"a renewal of a lease: {error}"
        raise UnreadableRecord(record.topic, record.partition, record.offset, reason) from error
