"""The decisions about ownership, each with the facts that lead to it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.cluster.virtual_time import SimulatedNode, run_virtually

from headrace.cluster.epochs import (
    BATCH_HEADER,
    OWNERSHIP_KEY,
    Closure,
    Epoch,
    Identity,
    OwnershipRecord,
    Release,
    batch_of,
    note_record,
    ownership_in,
    ownership_records,
    with_batch,
)
from headrace.cluster.lease import NodeLease
from headrace.cluster.lease_length import LeaseLength, LeaseTerms
from headrace.cluster.owner import _first
from headrace.cluster.ownership import (
    Outcome,
    OwnershipClaim,
    PartitionView,
    ReadToEnd,
    Serve,
    StandBy,
    Step,
    TakeId,
    TakeLease,
    WriteEpoch,
    after_failure,
    check_record,
    due_s,
    earlier_lease_s,
    next_step,
    outcome_of,
    wait_until_s,
)
from headrace.cluster.tail import seconds, sleep_until
from headrace.errors import ForeignCluster, PartitionClosed, UnreadableRecord
from headrace.model import NewRecord, Record, TopicPartition
from headrace.state import BatchName, is_reserved

AT = TopicPartition("state", 3)
ME = Identity("c", "me", "p1")
ME_BEFORE = Identity("c", "me", "p0")
OTHER = Identity("c", "other", "p2")
TERMS = LeaseTerms()
D = TERMS.patience_s(TERMS.lease_s)


def _record(new: NewRecord, offset: int = 0) -> Record:
    return Record(new.topic, new.partition or 0, offset, 1, new.key, new.value, new.headers)


def _view(*records: tuple[OwnershipRecord, int, float]) -> PartitionView:
    """Read ownership records, each with the number of its batch and the time of its arrival."""
    view = PartitionView([AT], since_s=100.0)
    for n, (record, number, now_s) in enumerate(records):
        (new,) = ownership_records(record, [AT], name=BatchName(record.epoch, number))
        view.take(_record(new, n), now_s)
    return view


def _data(view: PartitionView, name: BatchName, now_s: float = 101.0) -> None:
    (new,) = with_batch([NewRecord(AT.topic, b"k", b"v", partition=AT.partition)], name)
    view.take(_record(new, 7), now_s)


def _due(view: PartitionView, rank: int = 0, renewed_s: float | None = None, since_s: float = 100.0) -> float:
    return due_s(view, ME, TERMS, rank=rank, renewal_s=lambda _: renewed_s, watching_since_s=since_s, own_lease_s=0.5)


def _step(claim: OwnershipClaim) -> Step:
    return next_step(claim, ME, lease_id="mine", lease_s=2.0)


def test_a_live_owner_is_left_alone_until_its_lease_was_silent_for_long() -> None:
    """C15: renewals that arrived count; a watch that began later has heard no silence; others in line wait longer."""
    view = _view((Epoch(1, OTHER, "l"), 0, 103.0))
    assert _due(view, renewed_s=110.0) == 110.0 + D
    assert _due(view) == 103.0 + D
    assert _due(view, since_s=120.0) == 120.0 + D
    assert _due(view, rank=2, renewed_s=110.0) == 110.0 + D + 2 * TERMS.rank_step_s


@pytest.mark.parametrize(
    ("records", "due"),
    [
        ([], 100.0),
        ([(Epoch(1, OTHER, "l"), 0, 103.0), (Release(1, OTHER, "l"), 4, 104.0)], 104.0),
        ([(Epoch(1, ME, "l"), 0, 103.0)], 103.0),
        ([(Epoch(1, ME_BEFORE, "l"), 0, 103.0)], 103.0 + D),
    ],
)
def test_nobody_waits_for_who_released_or_was_never_there(
    records: list[tuple[OwnershipRecord, int, float]], due: float
) -> None:
    """A partition without an owner, or with a Release, is due at once; this node's last process is another owner."""
    assert _due(_view(*records)) == due


def test_an_attempt_takes_the_lease_before_it_writes_its_epoch() -> None:
    """C15: the id, all that was written, the lease of the last owner, the Epoch, and all up to it, in this order."""
    before = Epoch(4, OTHER, "old")
    claim = OwnershipClaim(expected=before, wait_until_s=0.0)
    assert _step(claim) == TakeId()
    claim.taken_s = 1.0
    assert _step(claim) == ReadToEnd()
    claim.is_read, claim.before = True, before
    assert _step(claim) == TakeLease("old", "other")
    claim.lease_s = 2.0
    epoch = Epoch(5, ME, "mine", 2.0)
    assert _step(claim) == WriteEpoch(epoch)
    claim.epoch, claim.is_written, claim.wait_until_s = epoch, True, 9.0
    assert _step(claim) == ReadToEnd()
    claim.is_complete = True
    assert _step(claim) == Serve(epoch, 9.0)


@pytest.mark.parametrize("before", [None, Release(4, OTHER, "old"), Epoch(4, ME, "mine-before")])
def test_no_lease_is_taken_where_nobody_else_can_be_reading(before: OwnershipRecord | None) -> None:
    """After a Release, in a new partition, and where the last Epoch is of this very process."""
    claim = OwnershipClaim(expected=before, wait_until_s=0.0, taken_s=1.0, is_read=True, before=before)
    last = before.epoch if before is not None else 0
    assert _step(claim) == WriteEpoch(Epoch(last + 1, ME, "mine", 2.0))


def test_an_attempt_ends_when_another_node_became_the_owner_meanwhile() -> None:
    """C15: an Epoch that is newer than the one that was suspected is of a live owner."""
    claim = OwnershipClaim(expected=Epoch(4, OTHER, "old"), wait_until_s=0.0, taken_s=1.0, is_read=True)
    claim.before = Epoch(5, Identity("c", "third", "p3"), "new")
    assert _step(claim) == StandBy()


def test_an_owner_that_takes_its_partition_again_notices_who_had_it_meanwhile() -> None:
    """C7: if another node owned and released it in between, this one lost it; what it wrote must be read first."""
    mine, released = Epoch(4, ME, "mine"), Release(5, OTHER, "new")
    claim = OwnershipClaim(expected=mine, wait_until_s=0.0, taken_s=1.0, is_read=True, before=released)
    assert _step(claim) == StandBy()
    claim = OwnershipClaim(expected=Epoch(4, OTHER, "old"), wait_until_s=0.0, taken_s=1.0, is_read=True)
    claim.before = released
    assert _step(claim) == WriteEpoch(Epoch(6, ME, "mine", 2.0)), "a standby takes what is free"


@pytest.mark.parametrize(
    ("before", "record_s", "renewal_s", "until_s"),
    [
        (None, None, None, float("-inf")),
        (Release(4, OTHER, "l"), 50.0, None, float("-inf")),
        (Epoch(4, OTHER, "l"), 50.0, 60.0, 60.0 + D),
        (Epoch(4, OTHER, "l"), 70.0, 60.0, 70.0 + D),
        (Epoch(4, ME, "l", earlier_lease_s=0.5), 70.0, None, 33.0),
    ],
)
def test_nothing_leaves_before_the_last_lease_is_over(
    before: OwnershipRecord | None, record_s: float | None, renewal_s: float | None, until_s: float
) -> None:
    """C15: it counts from the last renewal or record that arrived; taken again by one process, the old wait runs on."""
    claim = OwnershipClaim(expected=before, wait_until_s=33.0, before=before, renewal_s=renewal_s)
    assert wait_until_s(claim, ME, TERMS, record_s=record_s, last_s=45.0) == until_s


def test_a_lease_is_waited_for_by_the_length_that_its_epoch_names() -> None:
    """C15: whatever this node's own leases are; a record that names no length is of the time when all had half a s."""
    view = _view((Epoch(1, OTHER, "l", 4.0), 0, 103.0))
    assert _due(view, renewed_s=110.0) == pytest.approx(110.0 + 4.4)
    (old,) = ownership_records(Epoch(1, OTHER, "l"), [AT], name=BatchName(1, 0))
    unnamed = (old.value or b"").replace(b',"lease_s":0.5,"earlier_lease_s":0.0', b"")
    assert ownership_in(_record(msgspec.structs.replace(old, value=unnamed))) == Epoch(1, OTHER, "l", 0.5, 0.0)


def _claim(before: OwnershipRecord | None, *, wait_until_s: float = float("inf")) -> OwnershipClaim:
    return OwnershipClaim(expected=before, wait_until_s=wait_until_s, before=before, renewal_s=60.0)


def _wait(before: OwnershipRecord | None, *, last_s: float) -> float:
    return wait_until_s(_claim(before), ME, TERMS, record_s=50.0, last_s=last_s)


def test_the_leases_of_owners_deposed_in_a_row_are_all_waited_for() -> None:
    """C15: the last owner died while it waited for a longer lease; that one counts from the last owner's Epoch."""
    assert _wait(Epoch(4, OTHER, "l", 0.5, 4.0), last_s=58.0) == pytest.approx(58.0 + 4.4)
    assert _wait(Epoch(4, OTHER, "l", 0.5, 4.0), last_s=20.0) == pytest.approx(60.0 + 0.55)
    assert _wait(Epoch(4, ME, "l", 0.5, 4.0), last_s=58.0) == pytest.approx(58.0 + 4.4), "opened again in the wait"


@pytest.mark.parametrize(
    ("before", "wait_until", "now_s", "named_s"),
    [
        (None, float("-inf"), 60.0, 0.0),
        (Release(4, OTHER, "l"), float("-inf"), 60.0, 0.0),
        (Epoch(4, OTHER, "l", 2.0), 62.2, 61.0, 2.0),
        (Epoch(4, OTHER, "l", 2.0), 62.2, 63.0, 0.0),
        (Epoch(4, OTHER, "l", 0.5, 4.0), 62.4, 61.0, 4.0),
        (Epoch(4, OTHER, "l", 2.0, 1.0), 62.2, 61.0, 2.0),
        (Epoch(4, OTHER, "l", 4.0, 2.0), 64.4, 62.0, 4.0),
        (Epoch(4, ME, "l", 0.5, 4.0), 62.4, 61.0, 4.0),
        (Epoch(4, ME, "l", 8.0, 4.0), 62.4, 63.0, 0.0),
    ],
)
def test_an_epoch_names_the_longest_lease_that_may_still_be_valid(
    before: OwnershipRecord | None, wait_until: float, now_s: float, named_s: float
) -> None:
    """C15: none after a Release, nor when the wait is over; a process does not wait for its own leases."""
    claim = _claim(before, wait_until_s=wait_until)
    assert earlier_lease_s(claim, ME, TERMS, last_s=58.0, now_s=now_s) == named_s


def test_a_lease_that_runs_out_once_keeps_its_length() -> None:
    """A process that was frozen, again and again but with calm in between, is replaced as fast as before."""
    length = LeaseLength(TERMS)
    for _ in range(5):
        assert not length.ran_out()
        for n in range(5):
            assert not length.came_in_time(0.01, now_s=float(n))
    assert length.lease_s == 0.5


def test_a_lease_that_runs_out_repeatedly_doubles_up_to_the_limit() -> None:
    """C14: until renewals come in time, and never beyond what was configured."""
    length = LeaseLength(LeaseTerms(longest_s=3.0))
    assert [(length.ran_out(), length.lease_s) for _ in range(5)] == [
        (False, 0.5), (True, 1.0), (True, 2.0), (True, 3.0), (False, 3.0)
    ]  # fmt: skip
    assert length.slowness == 6.0
    never = LeaseLength(LeaseTerms(2.0, longest_s=0.5))
    assert [never.ran_out() for _ in range(3)] == [False] * 3


def test_a_lease_goes_back_to_its_configured_length_in_calm_times() -> None:
    """Each half needs 30 s without a slow renewal; one that is late to begin is slow, too."""
    length = LeaseLength(TERMS)
    for _ in range(3):
        length.ran_out()
    assert length.lease_s == 2.0
    took_s = {20: 0.09}
    changes = [(n, length.lease_s) for n in range(120) if length.came_in_time(took_s.get(n, 0.08), now_s=float(n))]
    assert changes == [(50, 1.0), (80, 0.5)]


def test_the_next_in_line_waits_longer_where_leases_have_grown() -> None:
    """Taking a partition is as slow there as renewing a lease, and who comes too early only fences the one before."""
    assert [TERMS.step_s(lease_s) for lease_s in (0.5, 1.0, 4.0)] == [0.25, 0.25, 1.0]
    assert LeaseTerms(4.0).step_s(4.0) == 0.25


def test_an_attempt_is_repeated_only_while_nobody_else_came() -> None:
    """The last Epoch is ours, or is still the one that the attempt was made to follow."""
    old, mine, foreign = Epoch(4, OTHER, "l"), Epoch(5, ME, "m"), Epoch(5, Identity("c", "third", "p3"), "n")
    tried = OwnershipClaim(expected=old, wait_until_s=0.0, is_read=True, before=old)
    early = OwnershipClaim(expected=old, wait_until_s=0.0)
    assert after_failure(tried, old, ME) == TakeId()
    assert after_failure(tried, mine, ME) == TakeId()
    assert after_failure(None, mine, ME) == TakeId()
    assert after_failure(tried, foreign, ME) == StandBy()
    assert after_failure(None, foreign, ME) == StandBy()
    assert after_failure(early, old, ME) == StandBy()
    assert after_failure(None, Release(5, ME, "m"), ME) == StandBy()


def test_a_batch_was_committed_if_its_name_lies_before_the_next_epoch() -> None:
    """Without its name it was not; without the next Epoch, or when compaction may have been there, nobody knows."""
    view = _view((Epoch(1, ME, "l"), 0, 100.0))
    _data(view, BatchName(1, 1))
    assert outcome_of(BatchName(1, 1), view, is_sure=True) is Outcome.COMMITTED
    assert outcome_of(BatchName(1, 2), view, is_sure=True) is Outcome.UNKNOWN
    (new,) = ownership_records(Epoch(2, OTHER, "l"), [AT], name=BatchName(2, 0))
    view.take(_record(new, 9), 102.0)
    assert outcome_of(BatchName(1, 2), view, is_sure=True) is Outcome.NOT_COMMITTED
    assert outcome_of(BatchName(1, 2), view, is_sure=False) is Outcome.UNKNOWN
    gap = _view((Epoch(1, ME, "l"), 0, 100.0), (Epoch(3, OTHER, "l"), 0, 102.0))
    assert outcome_of(BatchName(1, 2), gap, is_sure=True) is Outcome.UNKNOWN


def test_a_batch_is_not_given_up_before_every_changelog_was_read_past_it() -> None:
    """Changelogs are read side by side: one shows the next Epoch while another one still holds back the batch."""
    side = TopicPartition("side", 3)
    view = PartitionView([AT, side], since_s=100.0)
    for offset, epoch in enumerate((Epoch(1, ME, "l"), Epoch(2, OTHER, "l"))):
        news = ownership_records(epoch, [AT, side], name=BatchName(epoch.epoch, 0))
        for new in news[: 2 - offset]:  # the second Epoch was read from the first changelog only
            view.take(_record(new, offset), 101.0)
    assert outcome_of(BatchName(1, 1), view, is_sure=True) is Outcome.UNKNOWN
    (late,) = with_batch([NewRecord(side.topic, b"k", b"v", partition=side.partition)], BatchName(1, 1))
    view.take(_record(late, 1), 102.0)
    assert outcome_of(BatchName(1, 1), view, is_sure=True) is Outcome.COMMITTED


def test_the_newest_record_counts_whichever_changelog_it_is_read_from() -> None:
    """Changelogs are read side by side: an older Epoch may come later, and a Release follows its own Epoch."""
    view = _view((Epoch(2, OTHER, "l"), 0, 101.0), (Epoch(1, ME, "l"), 0, 102.0))
    assert (view.last, view.last_s) == (Epoch(2, OTHER, "l"), 101.0)
    later = _view((Release(2, OTHER, "l"), 5, 101.0), (Epoch(2, OTHER, "l"), 0, 102.0))
    assert later.last == Release(2, OTHER, "l")


def test_another_cluster_and_a_closed_partition_are_errors() -> None:
    """C16: both clusters are named."""
    with pytest.raises(ForeignCluster, match=r"'n' of cluster 'theirs', and this is cluster 'c'"):
        check_record(Epoch(1, Identity("theirs", "n", "p"), "l"), AT, ME)
    with pytest.raises(PartitionClosed, match=r"state\[3\] was closed after epoch 7"):
        check_record(Closure(7, OTHER, "l"), AT, ME)


def test_the_format_of_ownership_records() -> None:
    """What is on the wire is a contract: key, header and JSON."""
    (new,) = ownership_records(Epoch(5, ME, "l-1"), [AT], name=BatchName(5, 0))
    assert (new.key, new.topic, new.partition) == (b"\x00hr.owner", "state", 3)
    assert new.headers == (("headrace.batch", b"5:0"),)
    by = b'"by":{"cluster_id":"c","node":"me","process":"p1"}'
    lengths = b',"lease_s":0.5,"earlier_lease_s":0.0}'
    assert new.value == b'{"kind":"epoch","epoch":5,' + by + b',"lease_id":"l-1"' + lengths
    assert ownership_in(_record(new)) == Epoch(5, ME, "l-1")
    for record in (Release(5, ME, "l"), Closure(5, ME, "l")):
        (other,) = ownership_records(record, [AT], name=BatchName(5, 1))
        assert ownership_in(_record(other)) == record
    assert is_reserved(OWNERSHIP_KEY)
    assert is_reserved(note_record(AT, BatchName(1, 1)).key)
    assert not is_reserved(b"hr.owner")
    assert not is_reserved(None)


@pytest.mark.parametrize(
    "record",
    [
        Record("t", 0, 9, 1, OWNERSHIP_KEY, b"{}"),
        Record("t", 0, 9, 1, b"k", b"v", ((BATCH_HEADER, b"one:two"),)),
    ],
)
def test_a_record_that_can_not_be_read_is_an_error_with_its_place(record: Record) -> None:
    """Nobody guesses who owns a partition."""
    with pytest.raises(UnreadableRecord, match=r"offset 9 of t\[0\]"):
        PartitionView([TopicPartition("t", 0)], since_s=0.0).take(record, 1.0)
    assert batch_of(Record("t", 0, 9, 1, b"k", b"v")) is None


def test_a_lease_counts_from_the_begin_of_its_renewal() -> None:
    """C14: however late the answer came; once lost it is never valid again."""
    lease = NodeLease("l", TERMS.lease_s)
    assert not lease.is_valid(0.0)
    lease.renewed(begun_s=10.0)
    assert lease.is_valid(10.0 + TERMS.lease_s - 0.001)
    assert not lease.is_valid(10.0 + TERMS.lease_s)
    lease.renewed(begun_s=10.2)
    lease.lose()
    assert not lease.is_valid(10.3)


def test_nobody_waits_for_less_than_a_step_of_the_clock() -> None:
    """A wait that is shorter would ask the clock again and again, and in virtual time forever."""

    async def waits() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        node, began_s = SimulatedNode("n"), loop.time()
        await sleep_until(node, seconds(node) + 1e-13)
        slept_s = loop.time() - began_s
        await _first(asyncio.Event(), 1e-13)
        return slept_s, loop.time() - began_s - slept_s

    assert min(run_virtually(waits)) >= 0.0009
