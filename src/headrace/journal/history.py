"""The timeline of a journal, and the replication progress of a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.protocol import (
    Append,
    Delete,
    Entry,
    Mark,
    Poison,
    Purge,
    Stretch,
    Verdict,
    entries_of,
    step,
    stretches_of,
)
from headrace.store import JournalMeta, StoreReader

__all__ = ["Moment", "PartitionStats", "describe", "history", "partition_stats"]


@dataclass(frozen=True, slots=True)
class Moment:
    """One action of the timeline. If `offset` is None, it is known only from the store: its records left the log."""

    offset: int | None
    timestamp_ms: int | None
    what: str
    effect: str
    reason: str = ""
    partition: int | None = None


async def history(
    log: Log, store: StoreReader, topology: Topology, id_: str, *, with_marks: bool = False
) -> AsyncIterator[Moment]:
    """Yield the timeline of a journal in order: first what only the store has, then the actions in the log.

    A journal that moved when its topic grew has its earlier records in another partition.
    """
    stretches = await stretches_of(log, await topology.grown(), id_)
    meta = await _before(store, topology.topic, id_, stretches[0]) if stretches[0].is_cut else None
    if meta is not None:
        numbers = f"events {meta.delete_to + 1} to {meta.seq_nr}" if meta.seq_nr > meta.delete_to else "no events"
        yield Moment(None, meta.updated_ms, f"{numbers}, up to {meta.seq_nr}", "stored", "older than the log")
    async for entry in entries_of(log, stretches, id_):
        if isinstance(entry.action, Mark) and not with_marks:
            continue
        done = step(meta, entry)
        meta = done.meta
        at = (entry.offset, entry.timestamp_ms)
        yield Moment(*at, describe(entry), done.effect.value, done.reason, entry.partition)


def describe(entry: Entry) -> str:
    """Return a short description of an action."""
    match entry.action:
        case Append(first=first, last=last):
            return f"append event {first}" if first == last else f"append events {first} to {last}"
        case Delete(to=to):
            return f"delete events up to {to}"
        case Purge(last_append=None):
            return "purge"
        case Purge():
            return "purge if nothing was appended since"
        case Mark(id=mark_id):
            return f"mark {mark_id}"
        case Poison():
            return "a record that can't be decoded"
        case Verdict(is_skip=True, held_from=held_from):
            return f"skip the record at offset {held_from}"
        case Verdict(held_from=held_from):
            return f"release what is held from offset {held_from}"


async def _before(store: StoreReader, topic: str, id_: str, stretch: Stretch) -> JournalMeta | None:
    """Return the state before the first action in the log, as far as the rows show it; None if there was none."""
    stored, first = await store.meta(topic, id_), stretch.first
    if stored is None or stored.record_id is None:
        return None
    older = [0]
    async for page in store.rows(
        topic, id_, segment_size=stored.segment_size, first=stored.delete_to + 1, last=stored.seq_nr
    ):
        older += [row.seq_nr for row in page if row.place < first and row.record_id == stored.record_id]
    is_older = stored.place < first
    if not is_older and len(older) == 1:
        return None
    return JournalMeta(
        topic=topic,
        id=id_,
        generation=stored.generation,
        partition=stretch.at.partition,
        offset=stretch.start - 1,
        seq_nr=stored.seq_nr if is_older else max(older),
        delete_to=stored.delete_to if is_older else min(stored.delete_to, max(older)),
        segment_size=stored.segment_size,
        is_purged=stored.is_purged and is_older,
        record_id=stored.record_id,
        updated_ms=stored.updated_ms if is_older else None,
    )


class PartitionStats(NamedTuple):
    """One partition: the offsets that the log holds, and the last one that is replicated (None: none yet)."""

    partition: int
    start: int
    end: int
    replicated: int | None

    @property
    def lag(self) -> int:
        """The number of offsets that are not replicated yet."""
        return self.end - 1 - (self.replicated if self.replicated is not None else self.start - 1)


async def partition_stats(log: Log, store: StoreReader, topology: Topology) -> list[PartitionStats]:
    """Return what the log and the store have of every partition."""
    stats = []
    layout = await topology.layout()
    for partition in range(layout.partitions):
        at = TopicPartition(topology.topic, partition)
        bounds, replicated = await log.bounds(at), layout.of_topic(await store.replicated(at))
        offset = replicated.offset if replicated is not None else None
        stats.append(PartitionStats(partition, bounds.start, bounds.end, offset))
    return stats
