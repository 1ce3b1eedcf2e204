"""A topic that is deleted and created again under clients that know the old one, and would trust it for a lease."""

from __future__ import annotations

import pytest
from tests.suites.journal_setting import JournalSetting, new_topic, read, replicate

from headrace.errors import HeadraceError, WrongSeqNr
from headrace.journal import JOURNAL_TOPIC, HeadCache, Journal
from headrace.log import Log
from headrace.model import Event
from headrace.store import Store
from headrace.testing.conformance.log_setting import eventually

__all__ = ["TopicsMadeAgain"]

LEASE_S = 60.0
IDS = [f"k{n}" for n in range(8)]


class TopicsMadeAgain(JournalSetting):
    """The first offset that a client is told of the new topic is below what it knows of the old one."""

    @pytest.mark.parametrize("kind", ["plain", "tagged", "checked", "next"])
    async def test_what_is_acknowledged_is_in_the_new_topic(self, log: Log, store: Store, kind: str) -> None:
        """Events that are routed by the partitions of the old topic are written again, where their journals are."""
        topic = await new_topic(log)
        journal = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        for id_ in IDS:
            await journal.append(id_, [Event(1, b"old"), Event(2, b"old")])
        await make_again(log, topic, partitions=4)
        for id_ in IDS:
            await write(journal, id_, kind)
        later = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        for id_ in IDS:
            assert [(event.seq_nr, event.payload) for event in await read(later, id_)] == [(1, b"new")], id_
            assert [(event.seq_nr, event.payload) for event in await read(journal, id_)] == [(1, b"new")], id_

    @pytest.mark.parametrize("is_replicated", [False, True])
    async def test_a_read_shows_no_mixture_of_two_topics(self, log: Log, store: Store, is_replicated: bool) -> None:
        """What the store and the head cache have of the old topic's records is not taken for the new one's."""
        topic = await new_topic(log)
        cache = HeadCache(log, store.reader)
        journal = Journal(log, store, topic, cache=cache, lease_s=LEASE_S)
        for n in range(1, 9):
            await journal.append("a", [Event(n, b"old")])
            await journal.append("b", [Event(n, b"old")])
        assert len(await read(journal, "a")) == 8
        if is_replicated:
            await replicate(log, store, topic)
        await make_again(log, topic, partitions=1)
        other = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        old = [(n, b"old") for n in range(1, 9)] if is_replicated else []
        first = len(old) + 1
        await other.append("a", [Event(first, b"new")], expected=first - 1)
        many = {id_: [event.seq_nr async for event in events] async for id_, events in journal.read_many(["a", "b"])}
        assert many == {"a": list(range(1, first + 1)), "b": list(range(1, first))}
        assert [(event.seq_nr, event.payload) for event in await read(journal, "a")] == [*old, (first, b"new")]
        assert await journal.pointer("a") == first
        with pytest.raises(WrongSeqNr):
            await journal.append("a", [Event(9, b"void")], expected=first + 3)
        await journal.append("a", [Event(first + 1, b"new")], expected=first)
        assert await other.pointer("a") == first + 1
        await cache.close()

    async def test_a_delete_and_a_purge_go_where_the_journal_is(self, log: Log, store: Store) -> None:
        """They are routed by the partitions of the old topic first, as appends are."""
        topic = await new_topic(log)
        journal = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        for id_ in IDS:
            await journal.append(id_, [Event(1, b"old")])
        await make_again(log, topic, partitions=4)
        other = Journal(log, store, topic, cache=None, lease_s=LEASE_S)
        for id_ in IDS:
            await other.append(id_, [Event(1, b"new"), Event(2, b"new")])
        for id_ in IDS[::2]:
            await journal.purge(id_)
        for id_ in IDS[1::2]:
            await journal.delete(id_, to=1)
        assert [await other.pointer(id_) for id_ in IDS] == [None, 2] * 4
        assert [[event.seq_nr for event in await read(other, id_)] for id_ in IDS] == [[], [2]] * 4


async def write(journal: Journal, id_: str, kind: str) -> None:
    """Write the first event of a journal, in one of the ways there are."""
    match kind:
        case "plain":
            await journal.append(id_, [Event(1, b"new")])
        case "tagged":
            await journal.append(id_, [Event(1, b"new", ("a",))])
        case "checked":
            await journal.append(id_, [Event(1, b"new")], expected=None)
        case _:
            await journal.append_next(id_, [b"new"])


async def make_again(log: Log, topic: str, *, partitions: int) -> None:
    """Delete a topic and create it again; a broker needs a moment to let go of the name."""
    await log.admin.delete(topic)

    async def is_made() -> bool:
        try:
            await log.admin.create(topic, partitions=partitions, config=JOURNAL_TOPIC)
        except HeadraceError:
            return False
        return True

    await eventually(is_made)
