"""Groups: each partition has one member at a time; the next member continues from the commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.errors import BadArgument, Closed, HeadraceError, NotOwner, UnknownTopic
from headrace.log import Log, Member
from headrace.model import Record, TopicPartition
from headrace.testing.conformance.log_setting import LogSetting, OpenAnother, new_topic, numbered

__all__ = ["GroupMembers", "Recorder"]

SESSION_S = 10.0


class Recorder:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))

    def all(self, kind: str) -> frozenset[TopicPartition]:
        """Return the partitions of all calls of one kind."""
        return frozenset().union(*(partitions for called, partitions in self.calls if called == kind))


async def poll_until(
    is_done: Callable[[], bool], *members: Member, within_s: float = 40.0
) -> list[tuple[Member, Record]]:
    """Poll the members in turn until the claim holds; returns what they got."""
    got: list[tuple[Member, Record]] = []
    async with asyncio.timeout(within_s):
        while not is_done():
            for member in members:
                got += [(member, record) for record in await member.poll(timeout_s=0.1)]
    return got


async def drain(member: Member, count: int) -> list[Record]:
    """Poll until `count` records came."""
    got: list[Record] = []
    async with asyncio.timeout(40):
        while len(got) < count:
            got += await member.poll(timeout_s=0.5)
    return got


class GroupMembers(LogSetting):
    """The tests of `Log.groups`."""

    async def test_a_lone_member_gets_everything_in_order(self, log: Log) -> None:
        """All partitions are assigned to it, and each partition's records come in order."""
        topic = await new_topic(log, partitions=3)
        await log.append(numbered(topic, 90))
        listener = Recorder()
        member = await log.groups.join(f"g-{topic}", [topic], listener=listener, session_timeout_s=SESSION_S)
        got = await drain(member, 90)
        assert member.assignment == {TopicPartition(topic, n) for n in range(3)}
        assert listener.all("assigned") == member.assignment
        assert sorted(int(record.value or b"") for record in got) == list(range(90))
        for partition in range(3):
            offsets = [record.offset for record in got if record.partition == partition]
            assert offsets == sorted(offsets)
        await member.leave()

    async def test_a_member_can_start_at_the_end(self, log: Log, topic: str) -> None:
        """With start_at latest only what comes after is seen."""
        await log.append(numbered(topic, 3))
        member = await log.groups.join(f"g-{topic}", [topic], start_at="latest", session_timeout_s=SESSION_S)
        await poll_until(lambda: bool(member.assignment), member)
        await member.poll(timeout_s=0.5)
        await log.append(numbered(topic, 2, first=3))
        assert [record.value for record in await drain(member, 2)] == [b"3", b"4"]
        await member.leave()

    async def test_the_next_member_goes_on_after_the_last_commit(self, log: Log, topic: str) -> None:
        """What was committed is not delivered again; what was not, is."""
        at = TopicPartition(topic, 0)
        await log.append(numbered(topic, 10))
        first = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await drain(first, 10)
        await first.commit({at: 6})
        assert await log.groups.committed(f"g-{topic}", [at, TopicPartition(topic, 1)]) == {at: 6}
        await first.leave()
        second = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        assert [record.value for record in await drain(second, 4)] == [b"6", b"7", b"8", b"9"]
        await second.leave()

    async def test_members_share_partitions_and_take_over_from_one_another(
        self, log: Log, another: OpenAnother
    ) -> None:
        """Two members own disjoint halves; when one leaves, the other owns all, and generations have grown."""
        topic = await new_topic(log, partitions=4)
        everything = {TopicPartition(topic, n) for n in range(4)}
        listener = Recorder()
        first = await log.groups.join(f"g-{topic}", [topic], listener=listener, session_timeout_s=SESSION_S)
        await poll_until(lambda: first.assignment == everything, first)
        generation = first.generation
        second = await (await another()).groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await poll_until(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
        assert first.assignment | second.assignment == everything
        assert listener.all("revoked") == second.assignment
        assert first.generation > generation
        await log.append(numbered(topic, 100))
        got: list[tuple[Member, Record]] = []
        async with asyncio.timeout(40):
            while len(got) < 100:
                for member in (first, second):
                    got += [(member, record) for record in await member.poll(timeout_s=0.1)]
        assert len({record.value for _, record in got}) == len(got) == 100
        assert all(TopicPartition(r.topic, r.partition) in member.assignment for member, r in got)
        await second.leave()
        await poll_until(lambda: first.assignment == everything, first)
        await first.leave()

    async def test_only_the_owner_commits(self, log: Log, another: OpenAnother) -> None:
        """A commit of a partition that belongs to another member, or to no member of the group, is refused."""
        topic = await new_topic(log, partitions=2)
        first = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        second = await (await another()).groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await poll_until(lambda: len(first.assignment) == len(second.assignment) == 1, first, second)
        (theirs,) = second.assignment
        with pytest.raises(NotOwner, match=f"g-{topic}"):
            await first.commit({theirs: 0})
        await second.commit({theirs: 0})
        await first.leave()
        await second.leave()

    async def test_a_paused_partition_is_not_fetched(self, log: Log) -> None:
        """Pausing keeps the ownership; resuming goes on without loss."""
        topic = await new_topic(log, partitions=2)
        member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await poll_until(lambda: len(member.assignment) == 2, member)
        paused = TopicPartition(topic, 0)
        await member.pause([paused], paused=True)
        await log.append([*numbered(topic, 3, partition=0), *numbered(topic, 3, partition=1, first=3)])
        assert {record.partition for record in await drain(member, 3)} == {1}
        assert list(await member.poll(timeout_s=0.3)) == []
        assert paused in member.assignment
        await member.pause([paused], paused=False)
        assert [record.value for record in await drain(member, 3)] == [b"0", b"1", b"2"]
        await member.leave()

    async def test_leaving_tells_the_listener_and_ends_the_membership(self, log: Log, topic: str) -> None:
        """What it owned is revoked first, so that commits in the listener still count."""
        at = TopicPartition(topic, 0)

        class CommitOnRevoke(Recorder):
            async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
                await super().revoked(partitions)
                await member.commit({at: 1})

        listener = CommitOnRevoke()
        await log.append(numbered(topic, 2))
        member = await log.groups.join(f"g-{topic}", [topic], listener=listener, session_timeout_s=SESSION_S)
        await drain(member, 2)
        await member.leave()
        assert listener.calls[-1] == ("revoked", frozenset({at}))
        assert await log.groups.committed(f"g-{topic}", [at]) == {at: 1}
        with pytest.raises(Closed):
            await member.poll()

    async def test_groups_do_not_disturb_one_another(self, log: Log, topic: str) -> None:
        """Each group gets every record."""
        await log.append(numbered(topic, 5))
        members = [await log.groups.join(f"g{n}-{topic}", [topic], session_timeout_s=SESSION_S) for n in range(2)]
        for member in members:
            assert len(await drain(member, 5)) == 5
            await member.leave()

    async def test_bad_input_is_refused(self, log: Log, topic: str) -> None:
        """A group without name, a member without topics, a topic that isn't there, an offset below 0."""
        for group, topics, error in (("", [topic], BadArgument), ("g", [], BadArgument), ("g", ["t-no"], UnknownTopic)):
            with pytest.raises(error):
                await log.groups.join(group, topics)
        member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await poll_until(lambda: bool(member.assignment), member)
        with pytest.raises(BadArgument):
            await member.commit({TopicPartition(topic, 0): -1})
        await member.leave()

    async def test_a_committed_offset_that_retention_removed_is_an_error(self, log: Log, topic: str) -> None:
        """A group that comes back too late gets an error for lost records instead of skipping them."""
        at = TopicPartition(topic, 0)
        await log.append(numbered(topic, 10))
        first = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        await drain(first, 10)
        await first.commit({at: 2})
        await first.leave()
        await log.retention.truncate(at, before=5)
        late = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=SESSION_S)
        with pytest.raises(HeadraceError, match=r"offset 2 of .*\[5, 10\)"):
            await drain(late, 1)
        await late.leave()
