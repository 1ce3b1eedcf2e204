"""The un-replicated head of one partition, for one query: a tag's events above the seam, in order.

It reads on by itself until a few events wait to be taken; then it waits too, so that a slow reader costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from headrace.errors import HeadraceError, Unavailable
from headrace.journal.actions import Mark, Verdict
from headrace.journal.folding import Entry
from headrace.journal.head import Head, HeadKind
from headrace.journal.head_index import HeadIndex
from headrace.model import Batch, Position, Record, TopicPartition
from headrace.observe import get_logger
from headrace.runtime import Backoff
from headrace.store import Place, TagTime
from headrace.tags.decoded import Meaning
from headrace.tags.events import TaggedEvent
from headrace.tags.head_context import HeadContext
from headrace.tags.key_states import KeyState, load_key, rows_of
from headrace.tags.marking import MARK_KEY
from headrace.tags.seams import Known

__all__ = ["PartitionHead"]

_logger = get_logger(__name__)

_RESTART = Backoff(first_s=0.05, limit_s=5.0)
_MOST_KEYS = 50_000
_MOST_ACTIONS = 200_000
_MOST_INDEXED = 2_000_000
_TRIM_FROM = 1000
_TRIM_EVERY_S = 2.0
NOWHERE = Place(-1, -1)
_NOTHING = Meaning(None)
_MARK_ID = MARK_KEY.decode()


class _Found(NamedTuple):
    """An action of the head, and whether some of its events carry the tag."""

    entry: Entry
    is_tagged: bool


class PartitionHead:
    """Follows one partition from the seam on."""

    def __init__(self, context: HeadContext, start: Known) -> None:
        self.at: TopicPartition = start.at
        self.events: deque[TaggedEvent] = deque()
        self.position = start.next
        self.sighted: TagTime | None = None
        self._context = context
        self._topic_number = start.topic_number
        self._log_time_ms = start.log_time_ms
        self._actions = Head(start.place.offset + 1, start.place.generation, has_index=True)
        self._keys: OrderedDict[str, KeyState] = OrderedDict()
        self._left: dict[str, KeyState] = {}
        self._forgotten = HeadIndex()
        self._room = asyncio.Event()
        self._trimmed_s = 0.0

    @property
    def generation(self) -> int:
        """The partition's generation at the position."""
        return self._actions.generation

    async def run(self) -> None:
        """Follow for ever; trouble of the log that may pass is waited out.

        Raises what does not, as OffsetOutOfRange; and the store's trouble: the query begins anew from where it is.
        """
        await self._context.reached(self.at.topic, self.generation)
        async with contextlib.aclosing(self._batches()) as batches:
            async for batch in batches:
                await self._take(batch)

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        """Yield what the log holds from the position on; a log that can't be reached is asked again and again."""
        attempt = 0
        while True:
            batches = self._context.log.read(self.at, self.position.offset, max_records=500)
            try:
                async for batch in batches:
                    attempt = 0
                    yield batch
            except Unavailable as error:
                attempt += 1
                delay_s = _RESTART.delay_s(attempt)
                _logger.warning("head of a tag query failed", partition=str(self.at), error=str(error), retry_s=delay_s)
                await asyncio.sleep(delay_s)
            finally:
                await batches.aclose()  # type: ignore[attr-defined]

    def pop(self) -> TaggedEvent:
        """Take the next event."""
        event = self.events.popleft()
        if len(self.events) < self._context.page_size:
            self._room.set()
        return event

    def marked(self, mark: Position) -> None:
        """Move past a Mark of our own at once, if it is the next record; else it is met in its turn."""
        if mark.offset == self.position.offset:
            self._move(mark.offset + 1, mark.timestamp_ms)

    def tracked(self, entry: Entry) -> KeyState | None:
        """Return the state of a key that was followed here, and lives elsewhere or here since its topic grew."""
        return self._left.get(entry.id) if entry.topic == self.at.topic else None

    def forget(self, id_: str) -> None:
        """Forget the state of a key that was followed here: the store knows better."""
        self._left.pop(id_, None)

    def ask(self, id_: str, up_to: int | None) -> Sequence[Entry] | None:
        """Return a key's actions from the head's start up to an offset; None if that is not known any more.

        None also if the key was forgotten here: its events under the tag were not counted on.
        """
        if self._forgotten.of(id_, after=-1, up_to=self._actions.position):
            return None
        last = self._actions.position - 1 if up_to is None else up_to
        answer = self._actions.ask(id_, after=self._actions.start - 1, up_to=last)
        return answer.entries if answer.kind is HeadKind.KNOWN else None

    async def _take(self, batch: Batch) -> None:
        found: list[_Found] = []
        for record in batch.records:
            if record.offset < self.position.offset:
                continue
            log_time_ms = max(self._log_time_ms, record.timestamp_ms)
            entry, tags, _ = self._meaning(record, log_time_ms)
            if entry is None:
                self._move(record.offset + 1, log_time_ms, quietly=True)
            elif isinstance(entry.action, Mark):
                await self._pass_mark(entry, entry.action, found)
                found = []
            elif isinstance(entry.action, Verdict):
                await self._pass_verdict(entry, found)
                found = []
            else:
                found.append(_Found(entry, self._context.tag in tags))
                self._move(record.offset + 1, log_time_ms, quietly=True)
        await self._deliver(found)
        self._move(max(batch.next_offset, self.position.offset), self._log_time_ms)
        await self._wait_for_room()
        await self._trim()

    def _meaning(self, record: Record, log_time_ms: int) -> Meaning:
        """Return what a record means here; an append that is not where its key lives means nothing."""
        meaning = self._context.decoded.find(record, self.generation, log_time_ms)
        if meaning.is_append and meaning.entry is not None and not self._context.is_home(meaning.entry):
            return _NOTHING
        return meaning

    async def _pass_mark(self, entry: Entry, mark: Mark, before: list[_Found]) -> None:
        await self._deliver(before)
        if entry.id == _MARK_ID:
            self._context.marker.met(mark.id)
        log_time_ms = max(self._log_time_ms, entry.timestamp_ms)
        if (mark.generation or 0) <= self.generation:
            self._actions.take([entry], entry.offset + 1)
            self._move(entry.offset + 1, log_time_ms)
            return
        floor_ms = await self._context.grown(self.at.topic, mark.generation or 0)
        self._actions.take([entry], entry.offset + 1)
        self._move(entry.offset + 1, max(log_time_ms, floor_ms))
        self._left |= self._keys
        self._keys.clear()
        await self._context.reached(self.at.topic, self.generation)

    async def _pass_verdict(self, entry: Entry, before: list[_Found]) -> None:
        """Wait until replication has carried a verdict out: it alone has the records that were held."""
        await self._deliver(before)
        context = self._context
        await context.replicated(self.at, entry.place)
        self._keys.pop(entry.id, None)
        for head in context.heads.values():
            head.forget(entry.id)
        events = await rows_of(context.store, context.bucket, context.tag, entry.id, self._time_of(entry))
        if not events:
            await context.check_views()
        self.events.extend(event for event in events if context.is_wanted(event))
        self._actions.take([entry], entry.offset + 1)
        self._move(entry.offset + 1, entry.log_time_ms)

    async def _deliver(self, found: Sequence[_Found]) -> None:
        """Fold the actions of keys that matter, and put the tag's events up for taking.

        They are `sighted` while the store is asked about their keys: partitions that will hold them up can be marked
        meanwhile. Most records of a busy log are of no concern to a query, and only remembered.
        """
        if not found:
            return
        self._actions.take([each.entry for each in found], found[-1].entry.offset + 1)
        tagged = [each.entry for each in found if each.is_tagged]
        if not tagged and not any(each.entry.id in self._keys for each in found):
            return
        if tagged:
            self._context.marker.earn(self.at, tagged[-1].offset, len(tagged))
            self.sighted = self._time_of(tagged[-1])
            self._context.moved.set()
        try:
            await self._number(found)
        finally:
            self.sighted = None

    async def _number(self, found: Sequence[_Found]) -> None:
        first = {each.entry.id: each.entry for each in reversed(found) if each.is_tagged}
        new = [entry for id_, entry in first.items() if id_ not in self._keys]
        loaded = await asyncio.gather(*(self._load(entry) for entry in new))
        states = dict(zip((entry.id for entry in new), loaded, strict=True))
        for entry, is_tagged in found:
            state = self._keys.get(entry.id)
            if state is None and entry.id in states and entry.offset >= first[entry.id].offset:
                state = self._keys[entry.id] = states[entry.id]
            if state is not None:
                events = await self._apply(state, entry, is_tagged=is_tagged)
                self.events.extend(event for event in events if self._context.is_wanted(event))
                self._keys.move_to_end(entry.id)
        while len(self._keys) > _MOST_KEYS:
            id_, _ = self._keys.popitem(last=False)
            self._forgotten.add(id_, self._actions.position - 1)

    async def _apply(self, state: KeyState, entry: Entry, *, is_tagged: bool) -> list[TaggedEvent]:
        counts = state.counts(entry)
        if not is_tagged:
            return []
        time = self._time_of(entry)
        if state.is_replicated(entry):
            rows = await rows_of(self._context.store, self._context.bucket, state.tag, entry.id, time)
            if not rows:  # it was void, or replicated while no views were kept
                await self._context.check_views()
            return rows
        return state.number_events(entry, time) if counts else []

    async def _load(self, entry: Entry) -> KeyState:
        """Return a key's state before an action: where it was before it moved; else the store's and the heads'."""
        context = self._context
        found = context.before(entry) or await context.scan(entry)
        stored = await load_key(context.store, context.tag, entry.topic, entry.id)
        followed = [state for head in context.heads.values() if (state := head.tracked(entry)) is not None]
        latest = max((stored, *followed), key=lambda state: state.meta.place if state.meta is not None else NOWHERE)
        state = dataclasses.replace(latest)
        state.carry_on(found.entries, found.counts)
        return state

    def _time_of(self, entry: Entry) -> TagTime:
        return TagTime(entry.log_time_ms, self._topic_number, entry.partition, entry.offset)

    def _move(self, offset: int, log_time_ms: int, *, quietly: bool = False) -> None:
        self._log_time_ms = max(self._log_time_ms, log_time_ms)
        if not quietly:
            place = TagTime(self._log_time_ms, self._topic_number, self.at.partition, offset)
            self.position = max(self.position, place)
            self._context.marker.saw(self.at, self._log_time_ms)
            if self.events or self._context.is_waiting:
                self._context.moved.set()

    async def _wait_for_room(self) -> None:
        while len(self.events) >= self._context.page_size:
            self._room.clear()
            await self._room.wait()

    async def _trim(self) -> None:
        """Forget actions that the store has by now."""
        now_s = asyncio.get_running_loop().time()
        if self._actions.actions < _TRIM_FROM or now_s - self._trimmed_s < _TRIM_EVERY_S:
            return
        self._trimmed_s = now_s
        try:
            layout = self._context.layouts[self.at.topic]
            replicated = layout.of_topic(await self._context.store.reader.replicated(self.at))
        except HeadraceError as error:
            _logger.warning("head of a tag query not trimmed", partition=str(self.at), error=str(error))
            return
        if replicated is not None:
            self._actions.replicated(min(replicated.offset, self.position.offset - 1), replicated.generation)
            self._forgotten.cut(min(replicated.offset, self.position.offset - 1))
        self._actions.evict(_MOST_ACTIONS)
        if self._actions.indexed > _MOST_INDEXED:
            self._actions.drop_index()
