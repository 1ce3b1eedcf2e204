"""A topic that was deleted and made again: offsets of the old one say nothing about the new one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.suites.journal_script import Script
from tests.suites.journal_setting import records_of, replicate

from headrace.app import Headrace, connect
from headrace.config import TagSettings
from headrace.journal import JOURNAL_TOPIC, Journal, Layout, Topology, grow_topic
from headrace.model import Event, NewRecord, TopicPartition
from headrace.protocol.entries import entry_of
from headrace.tags import TagWriter
from headrace.tags.floors import Floors
from headrace.tags.key_states import KeyLookup
from headrace.tags.registry import TagRegistry

AT = TopicPartition("t", 0)
AHEAD_MS = 40_000


@pytest_asyncio.fixture
async def hr(tmp_path: Path) -> AsyncIterator[Headrace]:
    async with connect(f"embedded:{tmp_path}") as headrace:
        yield headrace


async def make_again(hr: Headrace) -> None:
    """Replicate eight records of a topic, then delete it and make it again."""
    await hr.log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
    journal = Journal(hr.log, hr.store, "t", cache=None, lease_s=0.05)
    for n in range(1, 9):
        await journal.append("k", [Event(n, "x", ("vip",))])
    await replicate(hr.log, hr.store, "t", views=TagWriter(hr.store, TagSettings(), log=hr.log))
    await hr.log.admin.delete("t")
    await hr.log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)


async def layout_of(hr: Headrace) -> Layout:
    return await Topology(hr.log, hr.store.settings, "t").layout()


async def test_a_generation_begins_above_all_times_at_its_boundary(hr: Headrace) -> None:
    """The new topic grows before it is replicated: its records are looked at, though the old one had more of them."""
    await make_again(hr)
    ahead_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    record = Script("t").append("k", 9)
    await hr.log.append([NewRecord("t", record.key, record.value, record.headers, 0, ahead_ms)])
    grown = await grow_topic(hr.log, hr.store.settings, "t", partitions=2, lease_s=0.0)
    registry = TagRegistry(hr.store, TagSettings())
    _, floor_ms = await Floors(hr.store, registry, hr.log).generation(await registry.open(), grown, grown.generation)
    assert floor_ms > ahead_ms


async def test_the_head_of_the_new_topic_is_scanned_from_its_beginning(hr: Headrace) -> None:
    """A query that forgot a key finds the key's actions in the log, though the old topic was replicated further."""
    await make_again(hr)
    journal = Journal(hr.log, hr.store, "t", cache=None, lease_s=0.05)
    for n in range(9, 12):
        await journal.append("k", [Event(n, "x", ("vip",))])
    layout = await layout_of(hr)
    lookup = KeyLookup(hr.log, hr.store, "vip", layout_of={"t": layout}.__getitem__, heads={})
    last = entry_of((await records_of(hr.log, "t"))[-1], 1)
    assert last is not None
    found = await lookup.scan(last)
    assert [(entry.generation, entry.offset) for entry in found.entries] == [(1, 0), (1, 1)]
    assert list(found.counts.values()) == [1, 1]


async def test_a_query_with_an_end_gives_what_the_old_topic_had(hr: Headrace) -> None:
    """Eight events are in the views, and the new topic's log ends at offset 1 or 2: offsets of both don't compare."""
    await make_again(hr)
    journal = Journal(hr.log, hr.store, "t", cache=None, lease_s=0.05)
    await journal.append("untagged", [Event(1, "x")])
    assert [event.seq_nr async for event in hr.events_by_tag("vip")] == list(range(1, 9))
    await journal.append("other", [Event(1, "x", ("vip",))])
    given = [(event.id, event.seq_nr) async for event in hr.events_by_tag("vip")]
    assert given == [*(("k", n) for n in range(1, 9)), ("other", 1)]


async def test_a_query_with_an_end_gives_the_last_events_of_a_topic_that_is_gone(hr: Headrace) -> None:
    """The log has nothing of them, and nothing comes after them; they are in the views all the same."""
    await make_again(hr)
    await hr.log.admin.delete("t")
    given = [event.seq_nr async for event in hr.events_by_tag("vip")]
    assert given == list(range(1, 9))
    await hr.log.admin.create("other", partitions=1, config=JOURNAL_TOPIC)
    assert [event.seq_nr async for event in hr.events_by_tag("vip")] == given
