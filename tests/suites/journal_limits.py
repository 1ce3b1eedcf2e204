"""Limits that every tier keeps: what lies above is refused before it is written, what lies at them is stored and read.

The names are as long as they can be where they share a key of the store: id, topic, tag.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from tests.suites.journal_setting import JournalSetting, numbers, read, records_of, replicate

from headrace.config import TagSettings
from headrace.errors import BadArgument, JournalHeld
from headrace.journal import JOURNAL_TOPIC, Journal
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicConfig, TopicPartition
from headrace.protocol.limits import (
    MAX_EVENTS,
    MAX_EXPIRY,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_ID_BYTES,
    MAX_METADATA_BYTES,
    MAX_TAG_BYTES,
    MAX_TAGS,
    MAX_TEXT_BYTES,
    MAX_TIMESTAMP_MS,
    MAX_VALUE_BYTES,
)
from headrace.store import Store, open_store
from headrace.tags import TagQueries, TagWriter

__all__ = ["Limits"]

TOPIC_LETTERS = 249


def padded(size_bytes: int) -> str:
    """Return a unique text of `size` bytes, with some letters that take two bytes."""
    text = f"{uuid.uuid4().hex}-é"
    return text + "x" * (size_bytes - len(text.encode()))


async def long_topic(log: Log) -> str:
    """Make a topic whose name is as long as Kafka takes it."""
    name = f"j-{uuid.uuid4().hex}".ljust(TOPIC_LETTERS, "x")
    await log.admin.create(name, partitions=1, config=TopicConfig())
    return name


class Limits(JournalSetting):
    """The tests of sizes."""

    @pytest.mark.parametrize(
        "event",
        [
            Event(1, None, ("",)),
            Event(1, None, ("good", "x" * (MAX_TAG_BYTES + 1))),
            Event(1, None, ("é" * (MAX_TAG_BYTES // 2 + 1),)),
            Event(1, None, ("\0epoch",)),
            Event(1, None, tuple(map(str, range(MAX_TAGS + 1)))),
            Event(1, bytes(MAX_VALUE_BYTES)),
        ],
        ids=["empty tag", "long tag", "long tag in bytes", "our own tag", "many tags", "large payload"],
    )
    async def test_an_event_that_some_tier_could_not_store_is_refused(
        self, log: Log, journal: Journal, topic: str, event: Event
    ) -> None:
        """FT2: an empty tag, or one that is too long, would stop replication of its partition; it is never written."""
        for options in ({}, {"expected": 0}, {"append_id": "a"}):
            with pytest.raises(BadArgument) as refused:
                await journal.append("k", [event], **options)
            assert len(str(refused.value)) < 500
        assert await records_of(log, topic) == []

    async def test_an_id_that_some_tier_could_not_store_is_refused(
        self, log: Log, journal: Journal, topic: str
    ) -> None:
        """FT2: by every call, and nothing is written, not even a mark."""
        for id_ in ("x" * (MAX_ID_BYTES + 1), "é" * (MAX_ID_BYTES // 2 + 1)):
            for call in (
                journal.append(id_, [Event(1)]),
                journal.prepare(id_),
                journal.pointer(id_),
                journal.delete(id_, to=1),
                journal.purge(id_),
                journal.mark(id_, "m"),
                journal.snapshots.save(id_, 1, None),
                read(journal, id_),
            ):
                with pytest.raises(BadArgument, match=f"all tiers can store {MAX_ID_BYTES}"):
                    await call
        assert await records_of(log, topic) == []

    @pytest.mark.parametrize(
        "options",
        [
            {"headers": {"x" * (MAX_TEXT_BYTES + 1): "v"}},
            {"headers": {"": "v"}},
            {"headers": {str(n): "" for n in range(MAX_HEADERS + 1)}},
            {"origin": "x" * (MAX_TEXT_BYTES + 1)},
            {"append_id": "x" * (MAX_TEXT_BYTES + 1)},
            {"expire_after": MAX_EXPIRY * 1.1},
            {"expire_after": "999999999 days"},
            {"metadata": {"note": "x" * 2 * MAX_METADATA_BYTES}},
            {"payload_metadata": {"note": "x" * 2 * MAX_METADATA_BYTES}},
        ],
        ids=[
            "header name",
            "no header name",
            "headers",
            "origin",
            "append id",
            "expiry",
            "expiry as text",
            "metadata",
            "payload metadata",
        ],
    )
    async def test_what_goes_with_events_has_limits(
        self, log: Log, journal: Journal, topic: str, options: dict[str, Any]
    ) -> None:
        """FT2: headers, origin, append id, expiry and metadata, too, are checked before anything is written."""
        with pytest.raises(BadArgument):
            await journal.append("k", [Event(1)], **options)
        with pytest.raises(BadArgument):
            await journal.append("k", (Event(n) for n in range(1, MAX_EVENTS + 2)))
        assert await records_of(log, topic) == []

    async def test_the_largest_append_is_stored(self, log: Log, store: Store) -> None:
        """A topic that takes large records: events, metadata and headers at their limits end up in one row."""
        topic = f"j-{uuid.uuid4().hex}"
        config = msgspec.structs.replace(JOURNAL_TOPIC, max_record_bytes=16 * 1024 * 1024)
        await log.admin.create(topic, partitions=1, config=config)
        journal = Journal(log, store, topic, cache=None)
        note, header = "m" * (MAX_METADATA_BYTES - 2), "h" * (MAX_HEADERS_BYTES - 1)
        with pytest.raises(BadArgument, match="metadata is '1048577 bytes'"):
            await journal.append("k", [Event(1, b"")], metadata=f"{note}m")
        payload = bytes(MAX_VALUE_BYTES - 1024)
        await journal.append("k", [Event(1, payload)], metadata=note, headers={"h": header})
        await replicate(log, store, topic)
        await log.retention.truncate(TopicPartition(topic, 0), before=1)
        (event,) = await read(journal, "k")
        assert (event.payload, event.metadata, event.headers) == (payload, note, {"h": header})

    async def test_what_lies_at_the_limits_is_stored(self, log: Log, store_address: str) -> None:
        """FT2: the longest id, tag and header name in a topic with the longest name: replicated, read, found by tag."""
        store = await open_store(f"{store_address}_limits")  # of its own: other tests replicate without views by tag
        try:
            await self.store_what_lies_at_the_limits(log, store)
        finally:
            await store.close()

    async def store_what_lies_at_the_limits(self, log: Log, store: Store) -> None:
        """Append, replicate, read, query, snapshot and delete."""
        topic = await long_topic(log)
        journal = Journal(log, store, topic, cache=None)
        id_, tag = padded(MAX_ID_BYTES), padded(MAX_TAG_BYTES)
        await journal.append(
            id_,
            [Event(1, "x", (tag, "\t\n\0")), Event(2, None, (tag,))],
            headers={padded(MAX_TEXT_BYTES): "v", **{str(n): "" for n in range(MAX_HEADERS - 1)}},
            origin=padded(MAX_TEXT_BYTES),
            version=padded(MAX_TEXT_BYTES),
            append_id=padded(MAX_TEXT_BYTES),
            expire_after=MAX_EXPIRY,
        )
        from_log = await read(journal, id_)
        settings = TagSettings()
        await replicate(log, store, topic, views=TagWriter(store, settings, log=log))
        assert await read(journal, id_) == from_log
        assert [event.tags for event in from_log] == [(tag, "\t\n\0"), (tag,)]
        found = [event.seq_nr async for event in TagQueries(log, store, settings).events(tag)]
        assert found == [1, 2]
        await journal.snapshots.save(id_, 2, "state", timestamp_ms=MAX_TIMESTAMP_MS)
        saved = await journal.snapshots.load(id_)
        assert saved is not None
        assert saved.timestamp_ms == MAX_TIMESTAMP_MS
        await journal.delete(id_, to=1)
        await replicate(log, store, topic)
        assert await numbers(journal, id_) == [2]
        await log.admin.delete(topic)

    async def test_a_journal_at_the_limits_can_be_held(self, log: Log, store: Store) -> None:
        """FT2: the side table of held records has a longer name than the topic; an id of full length fits there."""
        topic = await long_topic(log)
        journal = Journal(log, store, topic, cache=None)
        id_ = padded(MAX_ID_BYTES)
        await log.append([NewRecord(topic, id_.encode(), None, (("journal.action", b"{"),), partition=0)])
        await replicate(log, store, topic)
        replicated = await store.reader.replicated(TopicPartition(topic, 0))
        assert replicated is not None
        with pytest.raises(JournalHeld):
            await journal.pointer(id_)
        await log.admin.delete(topic)
