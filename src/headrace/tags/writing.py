"""Writing the views by tag of a batch: rows first, then the numbers, so that a crash in between is made good.

This is what replication calls as its `Views`. A process keeps the numbers of the pids it saw for as long as its
batches follow one another; who finds the replicated offset elsewhere than it left it, or a journal further than that,
forgets them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.config import TagSettings
from headrace.journal import Layout
from headrace.journal.key_writes import KeyFold
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.runtime import crash_point
from headrace.store import Place, ReplicatedOffset, Store, TagNumber
from headrace.tags.fills import FillState, TagFill
from headrace.tags.floors import Floors
from headrace.tags.metrics import ROWS
from headrace.tags.numbering import Numbered, Numbering
from headrace.tags.redacting import Redaction
from headrace.tags.registry import Registry, TagRegistry, check_use, reopened

__all__ = ["TagWriter"]

T = TypeVar("T")

_PIDS_AT_ONCE = 64
_ROWS_AT_ONCE = 20_000
_REMEMBERED = 100_000
_CHECK_EVERY_S = 1.0
_WAIT_FOR_FILL_S = 60.0
_NOWHERE = Place(-1, -1)


@dataclass(slots=True)
class _Followed:
    """A partition whose batches this process applies: where the last one ended, and the numbers it left."""

    end: int = -2
    start: Place = _NOWHERE
    numbers: OrderedDict[str, dict[str, TagNumber]] = field(default_factory=OrderedDict)
    facts: Registry | None = None


class TagWriter:
    """Writes the views by tag of replicated batches.

    Promises: an event that counts has one row under each of its tags, with the next number of its (pid, tag), however
    often and by whomever its batch is applied. Raises TagViewsLost where the tables were emptied.
    """

    def __init__(self, store: Store, settings: TagSettings, *, log: Log | None = None) -> None:
        self._store = store
        self._registry = TagRegistry(store, settings)
        self._floors = Floors(store, self._registry, log)
        self._facts: Registry | None = None
        self._checked_s = 0.0
        self._held_since_s: dict[str, float] = {}
        self._followed: dict[TopicPartition, _Followed] = {}

    async def open_topic(self, layout: Layout) -> None:
        """Settle all that writing a topic needs the log for. Workers without a log rely on it."""
        facts = await self._open()
        self._facts, _ = await self._floors.generation(facts, layout, layout.generation)

    async def log_time_ms(self, layout: Layout, start: ReplicatedOffset) -> int:
        """Return the log time that the partition goes on from.

        The facts are read anew for each batch: a fill's are written before the Marks that stand for them.
        """
        followed = self._followed.setdefault(start.at, _Followed())
        await self._open()
        facts = check_use(await self._registry.read())
        facts, log_time_ms = await self._floors.log_time_ms(facts, layout, start)
        if followed.end != start.offset or followed.facts is None or not _is_same_numbering(followed.facts, facts):
            followed.numbers.clear()
        self._facts = followed.facts = facts
        followed.start = Place(start.generation, start.offset)
        return log_time_ms

    async def last_offset(self, start: ReplicatedOffset) -> int | None:
        """Return where the partition has to wait for history to be counted under a tag; None: nowhere."""
        facts = self._followed[start.at].facts or await self._open()
        limits = [
            limit
            for tag, fill in facts.fills.items()
            if (limit := fill.last_offset(start.at, start.offset)) is not None and not await self._gives_up(tag, fill)
        ]
        return min(limits, default=None)

    async def _gives_up(self, tag: str, fill: TagFill) -> bool:
        """Open a fill again that holds replication up for too long: who closes it is dead, or closes it again."""
        now_s = time.monotonic()
        since_s = self._held_since_s.setdefault(fill.close_id, now_s)
        if now_s - since_s < _WAIT_FOR_FILL_S:
            return False
        facts = await self._registry.change(lambda known: reopened(known, tag, fill))
        return facts.fills[tag].state is FillState.BUILDING

    async def write(self, at: TopicPartition, folds: Mapping[str, KeyFold], *, up_to: int) -> None:
        """Write rows, then numbers, of all events that count; then redact what the batch deletes."""
        followed = self._followed.setdefault(at, _Followed())
        facts = followed.facts or await self._open()
        followed.end = -2  # until this batch is through
        _forget_rivals(followed, folds)
        numbering = Numbering(at.topic, facts.topics[at.topic].number, self._registry.bucket, facts.fills)
        for pids in _slices(folds):
            await self._write_some(at.topic, pids, folds, numbering, followed)
        await Redaction(self._store, facts).apply(at.topic, folds, numbering)
        followed.end = up_to
        while len(followed.numbers) > _REMEMBERED:
            followed.numbers.popitem(last=False)

    async def _write_some(
        self, topic: str, pids: Sequence[str], folds: Mapping[str, KeyFold], numbering: Numbering, followed: _Followed
    ) -> None:
        async def number(pid: str) -> Numbered:
            known = followed.numbers.get(pid)
            if known is None:
                known = followed.numbers[pid] = dict(await self._store.tags.numbers.of(topic, pid))
            followed.numbers.move_to_end(pid)
            return numbering.number(pid, folds[pid].tagged, known)

        done = await _each(pids, number)
        rows = [row for one in done for row in one.rows]
        if not rows:
            return
        await self._store.tags.views.write(rows)
        crash_point("tags.before-progress")
        await self._store.tags.numbers.write([progress for one in done for progress in one.numbers.values()])
        crash_point("tags.after-progress")
        for pid, one in zip(pids, done, strict=True):
            followed.numbers[pid].update(one.numbers)
        ROWS.labels(topic).inc(len(rows))

    async def _open(self) -> Registry:
        """Return the facts; look at the tables' epochs every now and then."""
        if self._facts is None or time.monotonic() - self._checked_s > _CHECK_EVERY_S:
            self._facts = await self._registry.open()
            self._checked_s = time.monotonic()
        return self._facts


def _forget_rivals(followed: _Followed, folds: Mapping[str, KeyFold]) -> None:
    """Forget the numbers of pids that somebody else has taken further, and died before the offset was moved.

    Their records are not folded again, so nothing would tell that they were numbered.
    """
    for pid, fold in folds.items():
        if fold.stored is not None and fold.stored > followed.start:
            followed.numbers.pop(pid, None)


def _is_same_numbering(one: Registry, other: Registry) -> bool:
    """Say whether numbers that were right with the one facts are right with the other."""
    return (one.epoch, one.fills) == (other.epoch, other.fills)


def _slices(folds: Mapping[str, KeyFold]) -> Iterable[list[str]]:
    """Yield the pids that have tagged events, in slices of bounded size."""
    pids: list[str] = []
    size = 0
    for pid, fold in folds.items():
        if not fold.tagged:
            continue
        pids.append(pid)
        size += sum(len(row.tags) for row in fold.tagged)
        if size >= _ROWS_AT_ONCE:
            yield pids
            pids, size = [], 0
    if pids:
        yield pids


async def _each(pids: Sequence[str], do: Callable[[str], Awaitable[T]]) -> list[T]:
    limit = asyncio.Semaphore(_PIDS_AT_ONCE)

    async def one(pid: str) -> T:
        async with limit:
            return await do(pid)

    return list(await asyncio.gather(*(one(pid) for pid in pids)))
