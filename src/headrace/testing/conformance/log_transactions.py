"""Transactions: all or nothing, over topics; one owner of an id at a time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import (
    Closed,
    Fenced,
    HeadraceError,
    NotOwner,
    RecordTooLarge,
    TransactionMisused,
    UnknownTopic,
)
from headrace.log import Log, transaction
from headrace.model import NewRecord, TopicPartition
from headrace.testing.conformance.log_setting import (
    LogSetting,
    OpenAnother,
    eventually,
    new_topic,
    numbered,
    read_all,
    values,
)

__all__ = ["Transactions"]


class Transactions(LogSetting):
    """The tests of `Log.transactional`."""

    async def test_a_commit_shows_all_records_of_all_topics(self, log: Log, topic: str) -> None:
        """Two topics, three partitions, one commit; positions come in the order of the appends."""
        other = await new_topic(log, partitions=2)
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append([NewRecord(topic, b"a", b"1"), NewRecord(other, b"b", b"2", partition=1)])
        await producer.append([NewRecord(other, b"c", b"3", partition=0), NewRecord(topic, b"d", b"4")])
        positions = await producer.commit()
        assert [(p.topic, p.partition) for p in positions] == [(topic, 0), (other, 1), (other, 0), (topic, 0)]
        assert values(await read_all(log, topic)) == [b"1", b"4"]
        assert values(await read_all(log, other, 0)) == [b"3"]
        assert values(await read_all(log, other, 1)) == [b"2"]
        assert [record.offset for record in await read_all(log, topic)] == [positions[0].offset, positions[3].offset]
        await producer.close()

    async def test_nothing_is_seen_before_the_commit(self, log: Log, topic: str, another: OpenAnother) -> None:
        """A reader of another client gets nothing while the transaction is open, and everything after."""
        reader = await another()
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append(numbered(topic, 5))
        assert await read_all(reader, topic) == []
        assert (await reader.bounds(TopicPartition(topic, 0))).end == 0
        await producer.commit()

        async def is_seen() -> bool:  # another client may hear of it a moment later
            return values(await read_all(reader, topic)) == [b"0", b"1", b"2", b"3", b"4"]

        await eventually(is_seen, within_s=5, what="the commit reaching another client")
        await producer.close()

    async def test_an_abort_leaves_nothing_but_a_gap(self, log: Log, topic: str) -> None:
        """Aborted records are never read, their offsets are never used, and readers get past them."""
        at = TopicPartition(topic, 0)
        producer = await log.transactional(f"id-{topic}")
        async with transaction(producer) as first:
            await first.append(NewRecord(topic, b"k", b"before"))
        await producer.begin()
        await producer.append(numbered(topic, 3))
        await producer.abort()
        bounds = await log.bounds(at)
        batches = [batch async for batch in log.read(at, 0, bounds.end, timeout_s=20)]
        assert values([record for batch in batches for record in batch.records]) == [b"before"]
        assert batches[-1].next_offset == bounds.end
        async with transaction(producer) as second:
            await second.append(NewRecord(topic, b"k", b"after"))
        assert second.positions[0].offset >= bounds.end > first.positions[0].offset + 3
        assert values(await read_all(log, topic)) == [b"before", b"after"]
        await producer.close()

    async def test_a_partition_that_holds_only_aborted_records_can_be_read_to_its_end(
        self, log: Log, topic: str
    ) -> None:
        """The position passes over them although no record is ever seen."""
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append(numbered(topic, 4))
        await producer.abort()
        bounds = await log.bounds(TopicPartition(topic, 0))
        assert bounds.end > 4
        batches = [batch async for batch in log.read(TopicPartition(topic, 0), 0, bounds.end, timeout_s=20)]
        assert [list(batch.records) for batch in batches if batch.records] == []
        assert batches[-1].next_offset == bounds.end
        await producer.close()

    async def test_a_new_owner_fences_the_old_one(self, log: Log, topic: str, another: OpenAnother) -> None:
        """What the old owner had open is gone, and it can never write again; the new one can."""
        old = await log.transactional(f"id-{topic}")
        await old.begin()
        await old.append([NewRecord(topic, b"k", b"old")])
        new = await (await another()).transactional(f"id-{topic}")
        async with transaction(new) as opened:
            await opened.append(NewRecord(topic, b"k", b"new"))
        with pytest.raises(Fenced, match=f"id-{topic}") as fenced:
            await old.commit()
        assert fenced.value.outcome_known in (True, False)
        with pytest.raises(Fenced) as late_fenced:
            async with transaction(old) as late:
                await late.append(NewRecord(topic, b"k", b"late"))
        assert late_fenced.value.outcome_known
        assert values(await read_all(log, topic)) == [b"new"]
        await old.close()
        await new.close()

    async def test_ids_do_not_disturb_one_another(self, log: Log, topic: str) -> None:
        """Owners of different ids write at once."""

        async def write(name: str) -> None:
            producer = await log.transactional(f"{name}-{topic}")
            for n in range(5):
                async with transaction(producer) as opened:
                    await opened.append(NewRecord(topic, name.encode(), b"%d" % n))
            await producer.close()

        await asyncio.gather(write("a"), write("b"), write("c"))
        found = await read_all(log, topic)
        for name in (b"a", b"b", b"c"):
            assert [r.value for r in found if r.key == name] == [b"0", b"1", b"2", b"3", b"4"]

    async def test_calls_out_of_order_are_refused(self, log: Log, topic: str) -> None:
        """append, commit and abort need begin; begin needs an end before it; nothing works after close."""
        producer = await log.transactional(f"id-{topic}")
        for call in (producer.commit(), producer.abort(), producer.append([NewRecord(topic, b"k")])):
            with pytest.raises(TransactionMisused, match="begin"):
                await call
        await producer.begin()
        with pytest.raises(TransactionMisused):
            await producer.begin()
        await producer.abort()
        await producer.close()
        with pytest.raises(Closed):
            await producer.begin()
        assert await read_all(log, topic) == []

    async def test_calls_that_overlap_take_turns(self, log: Log, topic: str) -> None:
        """What was begun before the commit is in it, and of two that begin at once one is refused."""
        producer = await log.transactional(f"id-{topic}")
        begun = await asyncio.gather(producer.begin(), producer.begin(), return_exceptions=True)
        assert [type(each) for each in begun] == [type(None), TransactionMisused]
        _, _, positions = await asyncio.gather(
            producer.append(numbered(topic, 3)), producer.append(numbered(topic, 2)), producer.commit()
        )
        assert len(positions) == 5
        assert len(await read_all(log, topic)) == 5
        await producer.close()

    async def test_an_empty_transaction_commits(self, log: Log, topic: str) -> None:
        """Nothing to write is no error."""
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        assert list(await producer.commit()) == []
        await producer.close()

    async def test_a_refused_record_can_be_left_out(self, log: Log, topic: str) -> None:
        """The refusal names the record's fault, the rest can be committed."""
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append([NewRecord(topic, b"k", b"1")])
        with pytest.raises(RecordTooLarge):
            await producer.append([NewRecord(topic, b"k", bytes(2_000_000))])
        with pytest.raises(UnknownTopic):
            await producer.append([NewRecord("t-nowhere", b"k")])
        await producer.append([NewRecord(topic, b"k", b"2")])
        await producer.commit()
        assert values(await read_all(log, topic)) == [b"1", b"2"]
        await producer.close()

    async def test_closing_aborts_what_is_open(self, log: Log, topic: str) -> None:
        """An owner that goes away leaves nothing half-done."""
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append(numbered(topic, 2))
        await producer.close()
        await log.append(numbered(topic, 1, first=9))
        assert values(await read_all(log, topic)) == [b"9"]

    async def test_a_transaction_left_open_is_aborted_by_the_log(self, log: Log, topic: str) -> None:
        """After its time-out nothing of it can be committed, and readers are not held back."""
        producer = await log.transactional(f"id-{topic}", timeout_s=1.0)
        await producer.begin()
        await producer.append(numbered(topic, 2))
        await asyncio.sleep(1.1)
        await log.append(numbered(topic, 1, first=9))

        async def is_passed() -> bool:
            return values(await read_all(log, topic)) == [b"9"]

        await eventually(is_passed, within_s=30, what="passing the abandoned transaction")
        with pytest.raises(HeadraceError) as failed:
            await producer.commit()
        assert getattr(failed.value, "outcome_known", True)
        assert values(await read_all(log, topic)) == [b"9"]
        await producer.close()

    async def test_the_block_aborts_when_it_raises(self, log: Log, topic: str) -> None:
        """An exception in the block is the caller's to see, and nothing is written."""
        producer = await log.transactional(f"id-{topic}")
        with pytest.raises(ZeroDivisionError):
            async with transaction(producer) as opened:
                await opened.append(NewRecord(topic, b"k", b"v"))
                raise ZeroDivisionError
        async with transaction(producer) as again:
            await again.append(NewRecord(topic, b"k", b"again"))
        assert values(await read_all(log, topic)) == [b"again"]
        await producer.close()

    async def test_offsets_are_committed_with_the_transaction_or_not_at_all(self, log: Log, topic: str) -> None:
        """Consume, process and produce in one step: an abort leaves the group's offsets where they were."""
        target = await new_topic(log)
        at = TopicPartition(topic, 0)
        await log.append(numbered(topic, 3))
        member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=10)
        while not (records := await member.poll()):
            pass
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append([NewRecord(target, b"k", b"dropped")])
        await producer.commit_offsets(member, {at: 2})
        await producer.abort()
        assert await log.groups.committed(f"g-{topic}", [at]) == {}
        async with transaction(producer) as opened:
            await opened.append(*(NewRecord(target, r.key, r.value) for r in records))
            await opened.commit_offsets(member, {at: records[-1].offset + 1})
        assert await log.groups.committed(f"g-{topic}", [at]) == {at: 3}
        assert values(await read_all(log, target)) == [b"0", b"1", b"2"]
        await member.leave()
        await producer.close()

    async def test_a_member_that_left_can_not_commit_through_a_transaction(self, log: Log, topic: str) -> None:
        """The group's offsets belong to its members; the records of the refused transaction are not written."""
        at = TopicPartition(topic, 0)
        target = await new_topic(log)
        await log.append(numbered(topic, 1))
        member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=10)
        while not await member.poll():
            pass
        producer = await log.transactional(f"id-{topic}")
        await member.leave()
        with pytest.raises((NotOwner, Closed)):
            async with transaction(producer) as opened:
                await opened.append(NewRecord(target, b"k", b"v"))
                await opened.commit_offsets(member, {at: 1})
        assert await read_all(log, target) == []
        assert await log.groups.committed(f"g-{topic}", [at]) == {}
        await producer.close()

    async def test_a_refused_commit_moves_the_offsets_of_no_group(self, log: Log, topic: str) -> None:
        """FL2: with offsets of two groups, one of which the member no longer owns, nothing of it is stored."""
        at, target = TopicPartition(topic, 0), await new_topic(log)
        await log.append(numbered(topic, 1))
        groups = [f"g{n}-{topic}" for n in range(2)]
        owner, leaver = [await log.groups.join(group, [topic], session_timeout_s=10) for group in groups]
        for member in (owner, leaver):
            while not await member.poll():
                pass
        producer = await log.transactional(f"id-{topic}")
        await producer.begin()
        await producer.append([NewRecord(target, b"k", b"v")])
        await producer.commit_offsets(owner, {at: 1})
        await leaver.leave()
        with pytest.raises((NotOwner, Closed)):  # where the group is asked at once, the commit is not reached
            await producer.commit_offsets(leaver, {at: 1})
            await producer.commit()
        await producer.close()
        assert await read_all(log, target) == []
        assert [await log.groups.committed(group, [at]) for group in groups] == [{}, {}]
        await owner.leave()
