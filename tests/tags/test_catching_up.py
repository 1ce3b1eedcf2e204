"""Bringing replication to a place from beside it."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.config import TagSettings
from headrace.journal import JOURNAL_TOPIC
from headrace.model import Event, TopicPartition
from headrace.tags.repair import CatchingUp


async def test_offsets_of_a_topic_that_is_gone_are_not_taken_for_those_of_the_next(tmp_path: Path) -> None:
    """E18: a topic that was deleted and made again is replicated, though the one before was further on."""
    at = TopicPartition("t", 0)
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        catching_up = CatchingUp(hr.log, hr.store, TagSettings())
        await hr.log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        for number in range(1, 10):
            await hr.journal("t").append("k", [Event(number)])
        await catching_up.reach({at: 8})
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        catching_up = CatchingUp(hr.log, hr.store, TagSettings())
        await hr.log.admin.delete("t")
        await hr.log.admin.create("t", partitions=1, config=JOURNAL_TOPIC)
        last = await hr.journal("t").append("new", [Event(1)])
        assert await catching_up.missing({at: last.offset}) == 1
        await catching_up.reach({at: last.offset})
        assert await catching_up.missing({at: last.offset}) == 0
        known = await hr.store.reader.replicated(at)
        assert known is not None
        assert (known.generation, known.offset) == (1, last.offset)
        assert await hr.store.reader.meta("t", "new") is not None
