"""What the owner of a partition promises, on whichever log it stands."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from headrace.cluster import (
    Identity,
    LeaseKeeper,
    LeaseTerms,
    OwnedPartition,
    Owner,
    batch_of,
    ensure_lease_topic,
    lease_topic,
    new_process,
)
from headrace.errors import (
    BadArgument,
    DuplicateNode,
    ForeignCluster,
    NotPartitionOwner,
    OperationFailed,
    RecordTooLarge,
    TransactionFailed,
)
from headrace.log import Log, TransactionalProducer
from headrace.model import Batch, NewRecord, Position, Record, TopicPartition
from headrace.state import BatchName, is_reserved
from headrace.testing.conformance.log_setting import LogSetting, OpenAnother, eventually, new_topic, values
from headrace.testing.plugin import Size
from headrace.testing.processes import ChildProcess, running_function

StartNode = Callable[..., Any]


class Node:
    """One node with its lease, and the partitions it takes part in."""

    def __init__(
        self, log: Log, prefix: str, name: str, *, cluster_id: str = "cluster", terms: LeaseTerms | None = None
    ) -> None:
        self.log = log
        self.prefix = prefix
        self.keeper = LeaseKeeper(log, prefix, Identity(cluster_id, name, new_process()), terms=terms)
        self.epochs: list[int] = []
        self.losses = 0
        self.tasks = [asyncio.create_task(self.keeper.run())]

    def replica(self, *changelogs: TopicPartition, rank: int | None = 0, log: Any = None) -> Owner:
        owner = Owner(log or self.log, OwnedPartition(self.prefix, changelogs), self.keeper, self)
        owner.propose(rank)
        self.tasks.append(asyncio.create_task(owner.run()))
        return owner

    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        self.epochs.append(epoch)

    async def lost(self) -> None:
        self.losses += 1

    async def stop(self) -> None:
        """End without a word, as a crash would; what is still on its way is dropped."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def owned(owner: Owner) -> Owner:
    async def is_owner() -> bool:
        return owner.epoch is not None

    await eventually(is_owner, every_s=0.01, what="becoming the owner")
    return owner


async def _records(log: Log, at: TopicPartition) -> list[Record]:
    """Return the application's records: to the high watermark, because commits are answered before they are marked."""
    bounds = await log.bounds(at)
    batches = log.read(at, bounds.start, bounds.high_watermark, timeout_s=20)
    return [record async for batch in batches for record in batch.records if not is_reserved(record.key)]


class OwnerExam(LogSetting):
    """The tests; a tier says where its log is, and how long a fail-over may take."""

    @pytest_asyncio.fixture
    async def prefix(self, log: Log, topic: str) -> str:
        """Make the topic of the leases."""
        await ensure_lease_topic(log, f"p-{topic}", partitions=2)
        return f"p-{topic}"

    @pytest_asyncio.fixture
    async def start(self, another: OpenAnother, prefix: str) -> AsyncIterator[StartNode]:
        """Start nodes, each with a client of its own; they are stopped at the end."""
        nodes: list[Node] = []

        async def start_node(name: str, *, is_slow: bool = False, **more: Any) -> Node:
            log: Any = await another()
            nodes.append(Node(SlowLog(log) if is_slow else log, prefix, name, **more))
            return nodes[-1]

        yield start_node
        for node in nodes:
            await node.stop()

    async def test_every_record_carries_the_name_of_its_batch(self, log: Log, topic: str, start: StartNode) -> None:
        """C7: values and tombstones in all changelogs have the epoch and number of their batch as a header."""
        first, second = TopicPartition(topic, 0), TopicPartition(await new_topic(log), 0)
        owner = await owned((await start("a")).replica(first, second))
        await owner.commit([NewRecord(first.topic, b"k", b"1", partition=0)])
        done = await owner.commit([NewRecord(at.topic, b"k", None, partition=0) for at in (first, second)])
        assert done.batch == BatchName(1, 2)
        assert [batch_of(record) for record in await _records(log, first)] == [BatchName(1, 1), BatchName(1, 2)]
        found = await _records(log, second)
        assert [(batch_of(record), record.value) for record in found] == [(BatchName(1, 2), None)]
        assert [(p.topic, p.offset) for p in done.positions][1] == (second.topic, found[0].offset)

    async def test_a_successor_takes_over_and_the_old_owner_writes_nothing_more(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """C7: a stalled owner's late write is refused by the log, and no reader ever sees it."""
        at = TopicPartition(topic, 0)
        old_node, new_node = await start("old"), await start("new")
        old = await owned(old_node.replica(at, log=DeafLog(old_node.log)))
        await old.commit([NewRecord(topic, b"k", b"before", partition=0)])
        old_node.tasks[0].cancel()  # its lease is renewed no more
        new = await owned(new_node.replica(at))
        await new.commit([NewRecord(topic, b"k", b"after", partition=0)])
        assert old.epoch == 1, "it must not have heard of its successor"
        with pytest.raises(NotPartitionOwner, match="ask node 'new'"):
            await old.commit([NewRecord(topic, b"k", b"late", partition=0)])
        assert values(await _records(log, at)) == [b"before", b"after"]
        assert (old.epoch, new.epoch) == (None, 2)

    async def test_an_epoch_that_is_written_again_outlives_what_the_log_drops(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """C15: retention removed the owner's first Epoch; the next one goes on from the one written again."""
        at = TopicPartition(topic, 0)
        first = await start("a")
        owner = await owned(first.replica(at))
        epoch = owner.epoch
        assert epoch is not None
        before = (await log.bounds(at)).end
        await owner.refresh()
        assert owner.epoch == epoch
        await log.retention.truncate(at, before=before)
        await first.stop()
        second = await start("b")
        assert (await owned(second.replica(at))).epoch == epoch + 1

    async def test_nobody_waits_after_a_release(self, topic: str, start: StartNode) -> None:
        """The next owner serves at once, because the last one said that it had stopped; the last one refuses all."""
        at = TopicPartition(topic, 0)
        first_node, second_node = await start("first"), await start("second")
        first = await owned(first_node.replica(at))
        second = second_node.replica(at)
        await first.release()
        await owned(second)
        done = await second.commit([NewRecord(topic, b"k", b"1", partition=0)])
        assert done.leave_after_s == float("-inf")
        assert not first.may_serve()

        async def knows_the_next() -> bool:
            with pytest.raises(NotPartitionOwner) as refused:
                await first.commit([NewRecord(topic, b"k", b"2", partition=0)])
            return refused.value.owner == "second"

        await eventually(knows_the_next, every_s=0.01, what="reading the Epoch of the next owner")
        assert first_node.losses == 1

    async def test_who_waits_for_an_owner_that_ends_gets_an_error(self, topic: str, start: StartNode) -> None:
        """C17: its partition was closed for good while it handed over; that must not cancel the node's own work."""
        node = await start("a")
        owner = await owned(node.replica(TopicPartition(topic, 0)))
        async with owner._turn:  # whatever it is about to write takes its time
            writing = [
                asyncio.create_task(owner.commit([NewRecord(topic, b"k", b"v", partition=0)])),
                asyncio.create_task(owner.release()),
            ]
            await asyncio.sleep(0)
            node.tasks[-1].cancel()
            for each in writing:
                with pytest.raises(OperationFailed, match="takes part in it no more") as ended:
                    await each
                assert not ended.value.outcome_known

    async def test_a_release_during_a_claim_counts(self, topic: str, start: StartNode) -> None:
        """Who is told to give up the partition while it takes it has given it up in the end."""
        at = TopicPartition(topic, 0)
        owner = (await start("a")).replica(at)

        async def is_claiming() -> bool:
            return owner.takings > 0

        await eventually(is_claiming, every_s=0.001, what="the claim")
        await owner.release()
        assert owner.epoch is None
        await owned((await start("b")).replica(at))
        assert owner.epoch is None

    async def test_a_lease_that_was_taken_ends_all_reads_until_a_new_epoch(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """C14: each partition that the node still holds gets an Epoch that names the new lease; only then it reads."""
        node = await start("a")
        other = await new_topic(log)
        owners = [await owned(node.replica(TopicPartition(name, 0))) for name in (topic, other)]
        for owner in owners:
            await owner.serve_gate(timeout_s=20)
        before = node.keeper.lease
        assert before is not None
        await (await log.transactional(before.id)).close()

        async def is_lost() -> bool:
            return not before.is_valid(0.0) and node.keeper.lease is not before

        await eventually(is_lost, every_s=0.01, what="noticing that the lease was taken")
        for owner in owners:
            await owner.serve_gate(timeout_s=20)
            assert owner.epoch == 2
        assert not node.losses

    async def test_a_slow_log_is_served_under_a_longer_lease(self, topic: str, start: StartNode) -> None:
        """C14: a lease that is shorter than its own renewals take never holds; it grows until it does."""
        terms = LeaseTerms(lease_s=0.1, longest_s=3.0)
        node = await start("a", is_slow=True, terms=terms)
        node.log.commit_s = 0.15
        owner = await owned(node.replica(TopicPartition(topic, 0)))

        async def is_kept() -> bool:
            return owner.may_serve() and node.keeper.lease.renewals > 3

        await eventually(is_kept, every_s=0.01, what="a lease that holds")
        assert node.keeper.lease.lease_s >= 0.4
        await owner.commit([NewRecord(topic, b"k", b"1", partition=0)])
        await owner.serve_gate(timeout_s=20)

    async def test_a_node_waits_for_a_lease_that_is_longer_than_its_own(self, topic: str, start: StartNode) -> None:
        """C15: who takes over goes by the length that the log names; the owner before reads on until its end."""
        at = TopicPartition(topic, 0)
        old_node = await start("old", is_slow=True, terms=LeaseTerms(1.5))
        new_node = await start("new", terms=LeaseTerms(0.2, 0.2))
        old = await owned(old_node.replica(at, log=DeafLog(old_node.log)))
        await old.serve_gate(timeout_s=20)
        new = new_node.replica(at)
        old_node.log.commit_s = 60.0  # no renewal is answered any more
        old_s = 0.0
        while not new.may_serve():
            if old.may_serve():
                old_s = asyncio.get_running_loop().time()
            await asyncio.sleep(0.005)
        assert not old.may_serve(), "two nodes answer reads"
        assert old_s, "the old owner must have served while the new one waited"
        assert new.epoch == 2

    async def test_another_cluster_with_the_same_prefix_stops(self, topic: str, start: StartNode) -> None:
        """C16: the error names the cluster and the node that were there first, and that one goes on."""
        at = TopicPartition(topic, 0)
        owner = await owned((await start("a")).replica(at))
        stranger = await start("b", cluster_id="other")
        stranger.replica(at)
        with pytest.raises(ForeignCluster, match=r"node 'a' of cluster 'cluster'.*'other'"):
            await stranger.tasks[-1]
        await owner.commit([NewRecord(topic, b"k", b"1", partition=0)])

    async def test_a_second_node_of_the_same_id_stops(self, topic: str, start: StartNode) -> None:
        """C16: the process that came second ends with an error that names the first; the first keeps its lease."""
        first = await start("a")
        lease = await first.keeper.held()
        second = await start("a")
        with pytest.raises(DuplicateNode, match=f"'a' is in use by process '{first.keeper.me.process}'"):
            await asyncio.wait_for(second.tasks[0], 20)
        assert first.keeper.lease is lease
        assert not first.tasks[0].done()

    async def test_of_two_nodes_of_one_id_that_start_together_one_stops(self, start: StartNode) -> None:
        """C16: the order of their first renewals decides; the other one keeps its lease."""
        runs = [(await start("a")).tasks[0] for _ in range(2)]
        ended, running = await asyncio.wait(runs, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert [type(run.exception()) for run in ended] == [DuplicateNode]
        ended, _ = await asyncio.wait(running, timeout=1)
        assert not ended

    async def test_a_node_that_starts_again_is_no_second_node(self, topic: str, start: StartNode) -> None:
        """C16: a process that died does not keep its node from coming back."""
        first = await start("a")
        await first.keeper.held()
        await first.stop()
        again = await start("a")
        await asyncio.wait_for(again.keeper.held(), 20)

    @pytest.mark.parametrize("is_done", [True, False])
    async def test_a_commit_without_an_answer_is_settled_by_reading(
        self, log: Log, topic: str, start: StartNode, *, is_done: bool
    ) -> None:
        """The id is taken again, and the batch was committed if its name is there: then with its positions."""
        node, at = await start("a"), TopicPartition(topic, 0)
        unsure = UnsureLog(node.log)
        owner = await owned(node.replica(at, log=unsure))
        unsure.loses = "answer" if is_done else "commit"
        commit = owner.commit([NewRecord(topic, b"k", b"1", partition=0)])
        if is_done:
            done = await commit
            found = await _records(log, at)
            assert values(found) == [b"1"]
            assert [(p.topic, p.offset) for p in done.positions] == [(topic, found[0].offset)]
        else:
            with pytest.raises(TransactionFailed) as failed:
                await commit
            assert failed.value.outcome_known
            assert await _records(log, at) == []
        assert owner.epoch == 2
        await owner.commit([NewRecord(topic, b"k", b"2", partition=0)])

    async def test_a_batch_that_is_refused_leaves_the_owner_in_office(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """A record that is too large fails its batch alone, and nothing of that batch is written."""
        at = TopicPartition(topic, 0)
        owner = await owned((await start("a")).replica(at))
        small = NewRecord(topic, b"k", b"1", partition=0)
        with pytest.raises(RecordTooLarge):
            await owner.commit([small, NewRecord(topic, b"k", bytes(2_000_000), partition=0)])
        await owner.commit([small])
        assert values(await _records(log, at)) == [b"1"]
        assert owner.epoch == 1

    async def test_a_record_for_another_partition_of_a_changelog_is_refused(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """The partition is explicit: the owner of one partition must not write to another one's log."""
        owner = await owned((await start("a")).replica(TopicPartition(topic, 0)))
        for partition in (None, 1):
            with pytest.raises(BadArgument, match="partition"):
                await owner.commit([NewRecord(topic, b"k", b"1", partition=partition)])
        assert await _records(log, TopicPartition(topic, 0)) == []

    async def test_a_batch_without_changes_of_state_is_found_by_its_note(
        self, log: Log, topic: str, start: StartNode
    ) -> None:
        """What only goes to other topics can be settled too; its positions are those of its own records."""
        node, at, output = await start("a"), TopicPartition(topic, 0), await new_topic(log)
        unsure = UnsureLog(node.log)
        owner = await owned(node.replica(at, log=unsure))
        done = await owner.commit([NewRecord(output, b"k", b"1", partition=0)])
        assert [p.topic for p in done.positions] == [output]
        unsure.loses = "answer"
        assert (await owner.commit([NewRecord(output, b"k", b"2", partition=0)])).batch == BatchName(1, 2)
        assert values(await _records(log, TopicPartition(output, 0))) == [b"1", b"2"]
        assert await _records(log, at) == []

    async def test_renewals_hidden_by_a_dead_process_do_not_keep_a_successor_from_serving(
        self, log: Log, topic: str, prefix: str, start: StartNode
    ) -> None:
        """A transaction that nobody ends hides later renewals; then the wait counts from the taking of the lease."""
        stray = await log.transactional(f"stray-{topic}")
        await stray.begin()
        await stray.append([NewRecord(lease_topic(prefix), None, b"open", partition=n) for n in range(2)])
        at = TopicPartition(topic, 0)
        first_node, second_node = await start("first"), await start("second")
        await owned(first_node.replica(at))
        await first_node.stop()
        second = second_node.replica(at)
        await owned(second)
        await second.serve_gate(timeout_s=20)
        await stray.close()

    async def test_two_nodes_that_both_believe_to_be_first_do_not_duel(self, topic: str, start: StartNode) -> None:
        """C15: ten takings at most until one of them serves; the other one stands by."""
        at = TopicPartition(topic, 0)
        owners = [(await start(name)).replica(at) for name in ("a", "b")]

        async def is_served() -> bool:
            return sum(owner.may_serve() for owner in owners) == 1

        await eventually(is_served, every_s=0.01, what="one owner")
        assert sum(owner.takings for owner in owners) <= 10

    @pytest.mark.parametrize("harm", ["kill", "freeze"])
    async def test_a_real_owner_that_dies_or_freezes_under_load(
        self, log: Log, address: str, topic: str, prefix: str, size: Size, harm: str
    ) -> None:
        """C7, C14: no acknowledged write is lost or doubled, two owners never serve at a time, and one soon does."""
        at, side = TopicPartition(topic, 0), await new_topic(log)
        for round_ in range(size(1, 10)):
            owner = ("tests.cluster.owner_process:run_owner", address, prefix, topic)
            with running_function(*owner, f"old{round_}", 0) as old:
                await _line(old, "^serve")
                with running_function(*owner, f"new{round_}", 1) as new:
                    await _line(new, "^stands by")
                    await _harm(log, side, old, new, harm)
                    _check_serving(old, new)
                    told = _acknowledged(old) + _acknowledged(new)
            # The last owner was killed as well: taking its id ends what it had open, which would hide the rest.
            await (await log.transactional(OwnedPartition(prefix, (at,)).transactional_id)).close()
            written = [value.decode() for value in values(await _records(log, at)) if value is not None]
            assert len(set(written)) == len(written), "a write is there twice"
            assert set(told) <= set(written), "an acknowledged write was lost"


async def _harm(log: Log, side: str, old: ChildProcess, new: ChildProcess, harm: str) -> None:
    """Stop the owner under load, wait for its successor, and let a frozen one wake and find out."""
    await _line(old, "^ack")
    if harm == "kill":
        old.kill()
    else:
        await _freeze(log, side, old)
    await _line(new, "^serve")
    await _line(new, "^ack")
    if harm == "freeze":
        old.resume()
        await _line(old, "^lost")
        await _line(new, "^ack")


async def _freeze(log: Log, side: str, child: ChildProcess) -> None:
    """Freeze a process at a moment at which the log goes on without it.

    One that is stopped while it holds the write lock of the embedded log's file stops all others: nobody could take
    over before it goes on, or dies.
    """
    for _ in range(50):
        child.pause()
        try:
            async with asyncio.timeout(0.25):
                await log.append([NewRecord(side, b"k", b"v")])
            return
        except TimeoutError:
            child.resume()
            await _line(child, "^ack")
    pytest.fail("the process held the log's write lock whenever it was stopped")


async def _line(child: ChildProcess, pattern: str) -> None:
    await asyncio.to_thread(child.wait_for_line, pattern, 60)


def _acknowledged(child: ChildProcess) -> list[str]:
    return re.findall(r"^ack (\S+) at", child.stdout, re.MULTILINE)


def _check_serving(old: ChildProcess, new: ChildProcess) -> None:
    """The clock is the machine's: the last moment at which the old one served is before the new one's first."""
    served = [[int(ms) for ms in re.findall(r"^serve now at (\d+)", c.stdout, re.MULTILINE)] for c in (old, new)]
    assert served[0], "the first owner never served"
    assert max(served[0]) < min(served[1])


class DeafLog:
    """A log that tells nothing by itself, as if the connection of its followers hung; what is asked for it answers."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, at: TopicPartition, start: int, end: int | None = None, **more: Any) -> AsyncIterator[Batch]:
        if end is None:
            await asyncio.Event().wait()
        async for batch in self._log.read(at, start, end, **more):
            yield batch


class SlowLog:
    """A log whose commits take longer than they need to."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.commit_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        producer: Any = await self._log.transactional(transactional_id, timeout_s=timeout_s)
        commit = producer.commit

        async def slow() -> Sequence[Position]:
            await asyncio.sleep(self.commit_s)
            positions: Sequence[Position] = await commit()
            return positions

        producer.commit = slow
        return producer  # type: ignore[no-any-return]


class UnsureLog:
    """A log that loses one commit, or the answer to it, after some that go well, and says that it does not know."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.loses = ""
        self.skips = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        producer: Any = await self._log.transactional(transactional_id, timeout_s=timeout_s)
        commit = producer.commit

        async def unsure() -> Sequence[Position]:
            if self.skips:
                self.skips -= 1
                return await commit()
            loses, self.loses = self.loses, ""
            if loses == "commit":
                raise TransactionFailed(transactional_id, "no answer", outcome_known=False)
            positions: Sequence[Position] = await commit()
            if loses == "answer":
                raise TransactionFailed(transactional_id, "no answer", outcome_known=False)
            return positions

        producer.commit = unsure
        return producer  # type: ignore[no-any-return]
