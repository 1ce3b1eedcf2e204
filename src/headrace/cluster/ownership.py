"""Who owns a partition, and what to do next about it: decisions only, made from what was read and when.

`PartitionView` gathers what the partition's changelogs say. `due_s` tells when this node should try to become the
owner. `next_step` leads through one attempt, and `after_failure` says whether it is worth another one. `outcome_of`
tells what became of a batch whose commit was not answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NamedTuple, TypeAlias, TypeGuard

import msgspec

from headrace.cluster.epochs import (
    Closure,
    Epoch,
    Identity,
    OwnershipRecord,
    batch_of,
    ownership_in,
    rank_of,
)
from headrace.cluster.lease_length import LeaseTerms
from headrace.errors import ForeignCluster, PartitionClosed
from headrace.model import Position, Record, TopicPartition
from headrace.state import OWNERSHIP_KEY, BatchName, batch_header_of

__all__ = [
    "Outcome",
    "OwnershipClaim",
    "PartitionView",
    "ReadToEnd",
    "Serve",
    "StandBy",
    "Step",
    "TakeId",
    "TakeLease",
    "WriteEpoch",
    "after_failure",
    "check_record",
    "due_s",
    "earlier_lease_s",
    "next_step",
    "outcome_of",
    "wait_until_s",
]

# How many epochs back batches can still be looked up: takings of one partition that follow each other closely.
_EPOCHS_KEPT = 64


class Outcome(Enum):
    """What became of a batch."""

    COMMITTED = auto()
    NOT_COMMITTED = auto()
    UNKNOWN = auto()


class PartitionView:
    """What the changelogs of one partition say, as far as they were read.

    `last` is the newest ownership record, `last_s` when it arrived. `record_s` is when the last record of any kind
    arrived. `watch` names the batch whose positions are gathered, in case its commit is not answered.
    """

    def __init__(self, changelogs: Iterable[TopicPartition], *, since_s: float) -> None:
        self.since_s = since_s
        self.last: OwnershipRecord | None = None
        self.last_s = since_s
        self.record_s: float | None = None
        self.watch: BatchName | None = None
        self.watched: list[Position] = []
        self._noted: tuple[str, int, bytes | None] | None = None
        self._name: BatchName | None = None
        self._numbers: dict[int, int] = {}
        self._epochs = dict.fromkeys(changelogs, 0)

    def take(self, record: Record, now_s: float) -> bool:
        """Note a record that arrived; returns True if it changed who owns the partition."""
        self.record_s = now_s
        noted = (record.topic, record.partition, batch_header_of(record.headers))
        if noted != self._noted:  # records of one batch follow one another
            self._noted, self._name = noted, batch_of(record)
            if self._name is not None:
                self._note(self._name, record)
        if self.watch is not None and self._name == self.watch:
            self.watched.append(Position(record.topic, record.partition, record.offset, record.timestamp_ms))
        found = ownership_in(record) if record.key == OWNERSHIP_KEY else None
        if found is None or (self.last is not None and rank_of(found) <= rank_of(self.last)):
            return False
        self.last, self.last_s = found, now_s
        return True

    def highest_in(self, epoch: int) -> int | None:
        """Return the highest number of a batch of this epoch that was read; None if none was."""
        return self._numbers.get(epoch)

    def first_after(self, epoch: int) -> int | None:
        """Return the first epoch after this one that was read."""
        return min((later for later in self._numbers if later > epoch), default=None)

    def is_past(self, epoch: int) -> bool:
        """Return True if every changelog was read beyond the last record of this epoch.

        They are read side by side: one may show the next Epoch while another one still holds back the last batch.
        """
        return all(newest > epoch for newest in self._epochs.values())

    def _note(self, name: BatchName, record: Record) -> None:
        at = TopicPartition(record.topic, record.partition)
        self._epochs[at] = max(name.epoch, self._epochs[at])
        self._numbers[name.epoch] = max(name.number, self._numbers.get(name.epoch, name.number))
        if len(self._numbers) > _EPOCHS_KEPT:
            del self._numbers[min(self._numbers)]


def check_record(record: OwnershipRecord | None, at: TopicPartition, me: Identity) -> None:
    """Raise ForeignCluster for a record of another cluster, PartitionClosed for a topic that was replaced."""
    if record is None:
        return
    if record.by.cluster_id != me.cluster_id:
        raise ForeignCluster(at.topic, at.partition, me.cluster_id, record.by.cluster_id, record.by.node)
    if isinstance(record, Closure):
        raise PartitionClosed(at.topic, at.partition, record.epoch)


def due_s(
    view: PartitionView,
    me: Identity,
    terms: LeaseTerms,
    *,
    rank: int,
    renewal_s: Callable[[str], float | None],
    watching_since_s: float,
    own_lease_s: float,
) -> float:
    """Return from when on this node, the `rank`-th in line, should take the partition, as far as is known now.

    The owner must have released it, or no renewal of its lease may have arrived for as long as that lease can last on
    any clock. What arrived before anybody watched does not count as silence. `own_lease_s` is how long this node's own
    leases are.
    """
    later_s = rank * terms.step_s(own_lease_s)
    last = view.last
    if last is None:
        return view.since_s + later_s
    if not isinstance(last, Epoch):
        return view.last_s + later_s
    if last.by == me:
        return view.last_s
    heard_s = max(renewal_s(last.lease_id) or watching_since_s, watching_since_s, view.last_s)
    return heard_s + terms.patience_s(last.lease_s) + later_s


class TakeId(NamedTuple):
    """Take the partition's transactional id: no earlier owner can commit any more."""


class ReadToEnd(NamedTuple):
    """Read all changelogs of the partition to their end."""


class TakeLease(NamedTuple):
    """Take the lease id of the last owner, so that it can't renew, and read the last of its renewals."""

    lease_id: str
    node: str


class WriteEpoch(NamedTuple):
    """Write this Epoch to all changelogs, in one transaction."""

    epoch: Epoch


class Serve(NamedTuple):
    """This node is the owner; nothing leaves it before `wait_until_s`."""

    epoch: Epoch
    wait_until_s: float


class StandBy(NamedTuple):
    """Another node is the owner."""


Step: TypeAlias = TakeId | ReadToEnd | TakeLease | WriteEpoch | Serve | StandBy


class OwnershipClaim(msgspec.Struct):
    """How far one attempt to become the owner has come. Times are those of the answers.

    `expected` is the last ownership record when the attempt was decided on, `before` the last one that was read after
    the id had been taken. `lease_s` is when the lease it names was taken, `renewal_s` when the last renewal of that
    lease arrived. `wait_until_s` is carried over from the attempt before; if there was none, it is infinite.
    """

    expected: OwnershipRecord | None
    wait_until_s: float
    taken_s: float | None = None
    is_read: bool = False
    before: OwnershipRecord | None = None
    lease_s: float | None = None
    renewal_s: float | None = None
    epoch: Epoch | None = None
    is_written: bool = False
    is_complete: bool = False


def next_step(claim: OwnershipClaim, me: Identity, *, lease_id: str, lease_s: float) -> Step:
    """Return what comes next in an attempt; `lease_id` is this node's own lease, and `lease_s` its length."""
    if claim.taken_s is None:
        return TakeId()
    if not claim.is_read:
        return ReadToEnd()
    if _is_overtaken(claim, me):
        return StandBy()
    if claim.lease_s is None and _has_lease_to_end(claim.before, me):
        return TakeLease(claim.before.lease_id, claim.before.by.node)
    if claim.epoch is None or not claim.is_written:
        last = claim.before.epoch if claim.before is not None else 0
        return WriteEpoch(claim.epoch or Epoch(last + 1, me, lease_id, lease_s))
    if not claim.is_complete:
        return ReadToEnd()
    return Serve(claim.epoch, claim.wait_until_s)


def _is_overtaken(claim: OwnershipClaim, me: Identity) -> bool:
    """Return True if another node became the owner after the attempt was decided on.

    If it has not released, it is alive. If it has, and the attempt was to go on as the owner, what it wrote meanwhile
    must not pass unnoticed: this node lost the partition, and may take it as any other would.
    """
    before, expected = claim.before, claim.expected
    if before is None or before.by == me or before == expected:
        return False
    return isinstance(before, Epoch) or (isinstance(expected, Epoch) and expected.by == me)


def _has_lease_to_end(before: OwnershipRecord | None, me: Identity) -> TypeGuard[Epoch]:
    """Return True if the owner before may still be answering reads: it is another process, and did not release."""
    return isinstance(before, Epoch) and before.by != me


def wait_until_s(
    claim: OwnershipClaim, me: Identity, terms: LeaseTerms, *, record_s: float | None, last_s: float
) -> float:
    """Return until when nothing may leave, by what is known when the last owner's lease has been taken.

    The last owner may answer reads for as long as its lease lasts, counted from the begin of its last renewal, which
    was before that renewal arrived here. It may itself have been waiting for owners before it, for as long as the
    longest of their leases lasts after its Epoch, which arrived at `last_s`.
    """
    before = claim.before
    if not isinstance(before, Epoch):
        return float("-inf")
    earlier_s = _earlier_until_s(before, terms, last_s)
    if before.by == me:
        return min(claim.wait_until_s, earlier_s)  # the same wait, as it was known then and as the record names it
    known_s = [moment_s for moment_s in (record_s, claim.renewal_s) if moment_s is not None]
    return max(max(known_s) + terms.patience_s(before.lease_s), earlier_s)


def earlier_lease_s(claim: OwnershipClaim, me: Identity, terms: LeaseTerms, *, last_s: float, now_s: float) -> float:
    """Return the length of the longest lease of an owner before that may still be valid, for the Epoch to name it.

    If this process dies while it waits for that lease, the next owner must wait for it as well.
    """
    before = claim.before
    if not isinstance(before, Epoch) or now_s >= claim.wait_until_s:
        return 0.0
    if before.by == me:
        return before.earlier_lease_s
    is_over = now_s >= _earlier_until_s(before, terms, last_s)
    return max(before.lease_s, 0.0 if is_over else before.earlier_lease_s)


def _earlier_until_s(before: Epoch, terms: LeaseTerms, last_s: float) -> float:
    """Return when the leases are over that were valid before this Epoch, which arrived at `last_s`."""
    return last_s + terms.patience_s(before.earlier_lease_s)


def after_failure(claim: OwnershipClaim | None, last: OwnershipRecord | None, me: Identity) -> TakeId | StandBy:
    """Return whether to take the id again after an attempt, or a commit, failed: `last` was read after that.

    It is worth another attempt while the last record is an Epoch of this process, or is still the one that the attempt
    was made to follow: nobody else came in between.
    """
    if isinstance(last, Epoch) and last.by == me:
        return TakeId()
    if claim is not None and claim.is_read and last == claim.before:
        return TakeId()
    return StandBy()


def outcome_of(name: BatchName, view: PartitionView, *, is_sure: bool) -> Outcome:
    """Return what became of a batch that was sent, after an Epoch later than its own was read.

    `is_sure` says that compaction can't have removed the batch's records meanwhile.
    """
    highest = view.highest_in(name.epoch)
    if highest is not None and highest >= name.number:
        return Outcome.COMMITTED
    if not view.is_past(name.epoch) or view.first_after(name.epoch) != name.epoch + 1 or not is_sure:
        return Outcome.UNKNOWN
    return Outcome.NOT_COMMITTED
