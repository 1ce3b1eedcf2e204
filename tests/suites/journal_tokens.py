"""Consistency tokens of journals: what writes return, reads accept, whatever topic, partition or offset they name."""

from __future__ import annotations

import pytest
from tests.suites.journal_setting import JournalSetting, new_topic, replicate

from headrace.errors import BadToken, TimedOut, TokenAhead, TokenOfOtherTopic
from headrace.journal import JOURNAL_TOPIC, Journal, wait_until_replicated
from headrace.log import Log
from headrace.model import ConsistencyToken, Event, NewRecord, TokenPlace, WrittenPosition, combine_tokens
from headrace.store import Store

__all__ = ["JournalTokens"]


class JournalTokens(JournalSetting):
    """The tests of tokens."""

    async def test_every_write_returns_a_token_that_reads_accept(self, log: Log, journal: Journal) -> None:
        """Appends of all kinds, deletes and purges name the place of their record."""
        written = [
            await journal.append("k", [Event(1)]),
            await journal.append("k", [Event(2)], expected=1),
            await journal.append("k", [Event(3)], append_id="once"),
            (await journal.append_next("k", ["x"])).position,
            await journal.delete("k", to=1),
        ]
        topic_id = (await log.admin.describe(journal.topic)).topic_id
        for position in written:
            assert position is not None
            assert ConsistencyToken.parse(position.token).places == (
                TokenPlace(*position[:1], topic_id, *position[1:3]),
            )
            assert [event.seq_nr async for event in journal.read("k", at_least=position.token)] == [2, 3, 4]
        assert await journal.pointer("k", at_least=(await journal.purge("k")).token) is None

    async def test_a_token_of_something_else_is_refused(self, log: Log, store: Store, journal: Journal) -> None:
        """A partition or an offset that the log lacks, a topic that it lacks, and garbage are told apart, at once."""
        written = await journal.append("k", [Event(1)])
        (place,) = ConsistencyToken.parse(written.token).places
        for wrong, error in (
            (place._replace(offset=place.offset + 1000), TokenAhead),
            (place._replace(partition=1), BadToken),
            (place._replace(topic_id="of-another-cluster"), TokenOfOtherTopic),
            (place._replace(topic="no-such-topic"), TokenOfOtherTopic),
            (place._replace(topic="no topic / can be called so"), TokenOfOtherTopic),
        ):
            with pytest.raises(error):
                await journal.pointer("k", at_least=str(ConsistencyToken.of([wrong])))
        with pytest.raises(BadToken):
            await anext(journal.read("k", at_least=written.token[:-2]))
        other = Journal(log, store, await new_topic(log), cache=None)
        also = await other.append("k", [Event(1)])
        assert await journal.pointer("k", at_least=combine_tokens(also.token, written.token)) == 1

    async def test_a_token_of_a_topic_that_was_created_again_is_refused(self, log: Log, store: Store) -> None:
        """The new topic never had the record, although it may have one at the same offset."""
        topic = await new_topic(log)
        before = await Journal(log, store, topic, cache=None).append("k", [Event(1)])
        await log.admin.delete(topic)
        journal = Journal(log, store, topic, cache=None, read_only=True)
        with pytest.raises(TokenOfOtherTopic, match="there is no such topic"):
            await journal.pointer("k", at_least=before.token)
        await log.admin.create(topic, partitions=1, config=JOURNAL_TOPIC)
        with pytest.raises(TokenOfOtherTopic, match="deleted since"):
            await journal.pointer("k", at_least=before.token)

    async def test_a_token_is_waited_for_until_it_is_replicated(self, log: Log, store: Store, journal: Journal) -> None:
        """What the store shows, such as heads and counts by tag, has the record; other topics do not count."""
        other = await new_topic(log)
        (position,) = await log.append([NewRecord(other, b"k")])
        elsewhere = WrittenPosition.at(position, (await log.admin.describe(other)).topic_id)
        written = await journal.append("k", [Event(1)])
        token = ConsistencyToken.parse(combine_tokens(written.token, elsewhere.token))
        with pytest.raises(TimedOut, match=f"{journal.topic}\\[0\\] is replicated"):
            await wait_until_replicated(log, store, token, timeout_s=0.05)
        await replicate(log, store, journal.topic)
        await wait_until_replicated(log, store, token, timeout_s=20)

    async def test_a_replicated_offset_of_an_earlier_topic_does_not_count(self, log: Log, store: Store) -> None:
        """The topic was created again: the store had more of the old one than the token names of the new one."""
        topic = await new_topic(log)
        before = Journal(log, store, topic, cache=None)
        await before.append("k", [Event(n) for n in range(1, 4)])
        await before.append("k", [Event(4)])
        await replicate(log, store, topic)
        await log.admin.delete(topic)
        await log.admin.create(topic, partitions=1, config=JOURNAL_TOPIC)
        written = await Journal(log, store, topic, cache=None).append("j", [Event(1)])
        with pytest.raises(TimedOut):
            await wait_until_replicated(log, store, ConsistencyToken.parse(written.token), timeout_s=0.05)
