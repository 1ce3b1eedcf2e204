"""A journal's timeline: every action that concerned it, what each did, and why some did nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from headrace.journal.actions import Append, Delete, Mark, Poison, Purge, Verdict
from headrace.journal.folding import Entry, step
from headrace.journal.partition_batch import entry_of
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.store import JournalMeta, StoreReader

__all__ = ["Moment", "describe", "history"]


@dataclass(frozen=True, slots=True)
class Moment:
    """One action of the timeline. `offset` None: it left the log long ago, and the store tells of it."""

    offset: int | None
    timestamp_ms: int | None
    what: str
    effect: str
    reason: str = ""


async def history(
    log: Log, store: StoreReader, topology: Topology, id_: str, *, with_marks: bool = False
) -> AsyncIterator[Moment]:
    """Yield the timeline of a journal: what only the store has of it, then what the log holds, in order."""
    route = await topology.route(id_)
    bounds = await log.bounds(route.at)
    meta = await _before(store, route.at, id_, bounds.start)
    if meta is not None:
        numbers = f"events {meta.delete_to + 1} to {meta.seq_nr}" if meta.seq_nr > meta.delete_to else "no events"
        yield Moment(None, meta.updated_ms, f"{numbers}, up to {meta.seq_nr}", "stored", "older than the log")
    async for batch in log.read(route.at, bounds.start, bounds.end):
        for record in batch.records:
            entry = entry_of(record, route.generation) if record.key == id_.encode() else None
            if entry is None or (isinstance(entry.action, Mark) and not with_marks):
                continue
            done = step(meta, entry)
            meta = done.meta
            yield Moment(entry.offset, entry.timestamp_ms, describe(entry), done.effect.value, done.reason)


def describe(entry: Entry) -> str:
    """Say in a few words what an action asks for."""
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


async def _before(store: StoreReader, at: TopicPartition, id_: str, start: int) -> JournalMeta | None:
    """Return the state from which the log goes on, as far as the rows tell; None if the log has everything."""
    stored = await store.meta(at.topic, id_)
    if start == 0 or stored is None or stored.record_id is None:
        return None
    older = [0]
    async for page in store.rows(
        at.topic, id_, segment_size=stored.segment_size, first=stored.delete_to + 1, last=stored.seq_nr
    ):
        older += [row.seq_nr for row in page if row.offset < start and row.record_id == stored.record_id]
    is_older = stored.offset < start
    if not is_older and len(older) == 1:
        return None
    return JournalMeta(
        topic=at.topic,
        id=id_,
        generation=stored.generation,
        partition=at.partition,
        offset=start - 1,
        seq_nr=stored.seq_nr if is_older else max(older),
        delete_to=stored.delete_to if is_older else min(stored.delete_to, max(older)),
        segment_size=stored.segment_size,
        is_purged=stored.is_purged and is_older,
        record_id=stored.record_id,
        updated_ms=stored.updated_ms if is_older else None,
    )
