"""The head of one partition for one query: a tag's events above the seam, in order.

A head reads the log alone until it reaches the end; then the reader that all queries share serves it. It pauses while
a page of events waits to be taken, so that a slow query costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.journal import Layout
from headrace.model import Batch, Position, TopicPartition
from headrace.protocol import Entry, HeadIndex, HeadKind, Mark, Verdict
from headrace.store import TagTime
from headrace.tags.events import TaggedEvent, TagOffset
from headrace.tags.key_states import KeyState
from headrace.tags.partitions import Cursor, Found, SharedPartition
from headrace.tags.seams import KnownSeam

__all__ = ["HeadCalls", "PartitionHead"]

_MOST_KEYS = 50_000


@dataclass(frozen=True, slots=True)
class HeadCalls:
    """The functions that a head needs of the query that it belongs to."""

    layout: Callable[[], Layout]
    """Return the topic's layout as it is known now."""
    end: Callable[[], int]
    """Return where the partition ended when the query began to follow it."""
    is_wanted: Callable[[TaggedEvent], bool]
    """Return True if an event comes after the offset that the query resumes from."""
    came: Callable[[], None]
    """Called when events have come, or are about to."""
    load: Callable[[Entry], Awaitable[KeyState]]
    """Return the state of a key before an action."""
    rows: Callable[[str, TagTime], Awaitable[list[TaggedEvent]]]
    """Return the events of a replicated record from the views. If there are none, the views are checked."""
    carried_out: Callable[[Entry], Awaitable[None]]
    """Wait until replication has carried out a verdict; then all heads forget its key."""
    grown: Callable[[int], Awaitable[int]]
    """Wait until a generation of the topic is published; return its lowest log time."""
    reached: Callable[[int], Awaitable[None]]
    """Wait until all heads of the topic have reached the boundaries of a generation."""
    check_topic: Callable[[], Awaitable[None]]
    """Raise UnknownTopic if the topic was deleted, even if there is another one of the same name."""


class PartitionHead:
    """Follows one partition from the seam on."""

    def __init__(
        self, start: KnownSeam, tag: str, shared: SharedPartition, calls: HeadCalls, *, page_size: int
    ) -> None:
        self.at: TopicPartition = start.at
        self.cursor = Cursor.behind(start)
        self.events: deque[TaggedEvent] = deque()
        self.sighted: TagTime | None = None
        self.tag = tag
        self._shared = shared
        self._calls = calls
        self._page_size = page_size
        self._position = start.next
        self._keys: OrderedDict[str, KeyState] = OrderedDict()
        self._left: dict[str, KeyState] = {}
        self._forgotten = HeadIndex()
        self._had: frozenset[TagOffset] = frozenset()
        self._room = asyncio.Event()
        self._queue: list[Found] = []
        self._queued: set[str] = set()
        self._called = asyncio.Event()
        self._is_served = False
        self._is_busy = False
        self._error: Exception | None = None
        self._watcher: Callable[[], None] | None = None

    @property
    def position(self) -> TagTime:
        """The lowest place that a later event of this head can have."""
        if self._is_served and not self._is_busy:
            return max(self._position, self._shared.position)
        return self._position

    async def run(self) -> None:
        """Follow the partition forever; while the log is unavailable, it waits.

        Raises other errors of the log, such as OffsetOutOfRange, and all errors of the store: the query starts again
        from where it is.
        """
        self._begin()
        try:
            await self._calls.reached(self.cursor.generation)
            while True:
                await self._read_alone()
                await self._be_served()
                await self._calls.check_topic()
        finally:
            self._position = self.position
            self._is_served = False
            await self._shared.leave(self)

    def pop(self) -> TaggedEvent:
        """Take the next event."""
        event = self.events.popleft()
        if len(self.events) < self._page_size:
            self._room.set()
        return event

    def marked(self, mark: Position) -> None:
        """Move past a Mark of this process at once if it is the next record; otherwise it is read in its turn."""
        if self._is_served:
            self._shared.marked(mark)
        elif mark.offset == self._position.offset == self.cursor.offset:
            self.cursor.move(mark.offset + 1, mark.timestamp_ms)
            self._move()

    def watch(self, moved: Callable[[], None] | None) -> None:
        """Call a function each time the head has moved; None ends that."""
        self._watcher = moved
        self._let_watch()

    def tracked(self, entry: Entry) -> KeyState | None:
        """Return the state that a key of this partition had when its topic grew."""
        return self._left.get(entry.id) if entry.topic == self.at.topic else None

    def forget(self, id_: str) -> None:
        """Forget the state of a key, because the store has a newer one."""
        self._left.pop(id_, None)

    def forget_below(self, offset: int) -> None:
        """Forget the evicted keys whose events the store has by now."""
        self._forgotten.cut(min(offset, self._position.offset - 1))

    def ask(self, id_: str, up_to: int | None) -> Sequence[Entry] | None:
        """Return a key's actions from the head's start up to an offset; None if they are not known any more.

        They are not known either if the key was evicted here, because its events under the tag were not counted.
        """
        actions = self._shared.actions
        if self._forgotten.of(id_, after=-1, up_to=actions.position):
            return None
        last = actions.position - 1 if up_to is None else up_to
        answer = actions.ask(id_, after=actions.start - 1, up_to=last)
        return answer.entries if answer.kind is HeadKind.KNOWN else None

    def offer(self, found: Sequence[Found]) -> None:
        """Take actions from the reader. Those of unknown keys wait until the store has answered."""
        mine = self._choose(found)
        if not mine:
            return
        if self._is_busy or not all(map(self._is_at_hand, mine)):
            self._put_off(mine)
        else:
            for each in mine:
                self._take_known(each)
        if len(self.events) >= self._page_size or len(self._queue) >= self._page_size:
            self._shared.release(self)
        self._calls.came()

    def let_go(self, cursor: Cursor, error: Exception | None) -> None:
        """Read alone from the reader's place on, after the queue is done; or fail with an error."""
        self._position = self.position
        self._is_served = False
        self._error = error
        if cursor.offset > self.cursor.offset:
            self.cursor.generation = cursor.generation
            self.cursor.move(cursor.offset, cursor.log_time_ms)
        self._called.set()

    def _begin(self) -> None:
        """Start at the position. A head that was stopped reads again what it had not finished."""
        self.cursor.offset = self._position.offset
        self.cursor.log_time_ms = self._position.log_time_ms
        self._had = frozenset(event.tag_offset for event in self.events)
        self._queue, self._queued = [], set()
        self._is_busy = False
        self._error = self.sighted = None
        self._shared.join(self)

    async def _read_alone(self) -> None:
        """Read until the partition's reader can serve this head."""
        if self._is_taken_over():
            return
        async with contextlib.aclosing(self._shared.batches(self.cursor)) as batches:
            async for batch in batches:
                await self._take(batch)
                await self._wait_for_room()
                await self._shared.trim()
                if self._is_taken_over():
                    return

    def _is_taken_over(self) -> bool:
        is_at_end = self.cursor.offset >= self._calls.end()
        self._is_served = self._shared.serve(self, self._calls.layout(), is_at_end=is_at_end)
        self._let_watch()
        return self._is_served

    async def _be_served(self) -> None:
        """Work through what the reader has queued, until it serves this head no longer."""
        while True:
            await self._called.wait()
            self._called.clear()
            await self._empty_queue()
            if self._error is not None:
                raise self._error
            if not self._is_served:
                self._move()
                await self._wait_for_room()
                return

    async def _empty_queue(self) -> None:
        while self._queue:
            found, self._queue = self._queue, []
            await self._number(found)
            last = found[-1].entry
            self._position = max(self._position, self._time_of(last)._replace(offset=last.offset + 1))
            self._calls.came()
        self._queued.clear()
        self._is_busy = False
        self.sighted = None
        self._calls.came()

    def _choose(self, found: Sequence[Found]) -> list[Found]:
        """Return the actions that carry the tag or whose key has events under it, also in the queue.

        A head that was ahead of the reader has seen some already.
        """
        mine = []
        for each in found:
            id_ = each.entry.id
            is_tagged = self.tag in each.tags
            if each.entry.offset < self.cursor.offset or not (is_tagged or id_ in self._keys or id_ in self._queued):
                continue
            if is_tagged and id_ not in self._keys:
                self._queued.add(id_)
            mine.append(each)
        return mine

    def _put_off(self, found: Sequence[Found]) -> None:
        """Queue actions; the position stays before them. Meanwhile Marks can be written for their events."""
        if not self._is_busy:
            self._position = self.position
            self._is_busy = True
        self._queue.extend(found)
        tagged = [each.entry for each in found if self.tag in each.tags]
        if tagged:
            self.sighted = self._time_of(tagged[-1])
        self._called.set()

    def _is_at_hand(self, found: Found) -> bool:
        """Return True if an action can be folded without asking the store."""
        state = self._keys.get(found.entry.id)
        return state is not None and not (self.tag in found.tags and state.is_replicated(found.entry))

    def _take_known(self, found: Found) -> None:
        entry = found.entry
        state = self._keys[entry.id]
        counts = state.counts(entry)
        if counts and self.tag in found.tags:
            self._put_up(state.number_events(entry, self._time_of(entry)))
        self._keys.move_to_end(entry.id)

    async def _take(self, batch: Batch) -> None:
        """Take records that the head has read alone."""
        found: list[Found] = []
        for record in batch.records:
            if record.offset < self.cursor.offset:
                continue
            entry, tags, _ = self._shared.meaning(record, self.cursor, self._calls.layout())
            if entry is not None and isinstance(entry.action, Mark):
                await self._deliver(found)
                await self._pass_mark(entry, entry.action)
                found = []
            elif entry is not None and isinstance(entry.action, Verdict):
                await self._deliver(found)
                await self._pass_verdict(entry)
                found = []
            else:
                if entry is not None:
                    found.append(Found(entry, tags))
                self.cursor.move(record.offset + 1, record.timestamp_ms)
        await self._deliver(found)
        self.cursor.move(batch.next_offset, self.cursor.log_time_ms)
        self._move()

    async def _pass_mark(self, entry: Entry, mark: Mark) -> None:
        self._shared.met(entry, mark)
        generation = mark.generation or 0
        if generation <= self.cursor.generation:
            self._pass(entry)
            return
        floor_ms = await self._calls.grown(generation)
        self.cursor.generation = generation
        self.cursor.move(entry.offset + 1, floor_ms)
        self._left |= self._keys
        self._keys.clear()
        self._pass(entry)
        await self._calls.reached(generation)

    async def _pass_verdict(self, entry: Entry) -> None:
        """Wait until replication has carried out a verdict: only the store has the held records."""
        await self._calls.carried_out(entry)
        self._keys.pop(entry.id, None)
        self._put_up(await self._calls.rows(entry.id, self._time_of(entry)))
        self._pass(entry)

    def _pass(self, entry: Entry) -> None:
        self._shared.actions.take([entry], entry.offset + 1)
        self.cursor.move(entry.offset + 1, entry.timestamp_ms)
        self._move()

    async def _deliver(self, found: Sequence[Found]) -> None:
        """Remember the actions, and make the tag's events ready to be taken.

        Events are `sighted` while the store is asked about their keys, so that Marks can be written for them
        meanwhile. Most records of a busy log do not concern the query; they are only remembered.
        """
        if not found:
            return
        self._shared.actions.take([each.entry for each in found], found[-1].entry.offset + 1)
        tagged = [each.entry for each in found if self.tag in each.tags]
        if not tagged and not any(each.entry.id in self._keys for each in found):
            return
        if tagged:
            self._shared.marker.earn(self.at, tagged[-1].offset, len(tagged))
            self.sighted = self._time_of(tagged[-1])
            self._calls.came()
        try:
            await self._number(found)
        finally:
            self.sighted = None

    async def _number(self, found: Sequence[Found]) -> None:
        """Fold actions in order and number the events of those that count."""
        first = {each.entry.id: each.entry for each in reversed(found) if self.tag in each.tags}
        new = [entry for id_, entry in first.items() if id_ not in self._keys]
        loaded = await asyncio.gather(*(self._calls.load(entry) for entry in new))
        states = dict(zip((entry.id for entry in new), loaded, strict=True))
        for each in found:
            entry = each.entry
            if entry.id in states and entry.offset >= first[entry.id].offset:
                self._keys[entry.id] = states.pop(entry.id)
            state = self._keys.get(entry.id)
            if state is None:
                continue
            if self.tag in each.tags and state.is_replicated(entry):
                state.counts(entry)
                self._put_up(await self._calls.rows(entry.id, self._time_of(entry)))
                self._keys.move_to_end(entry.id)
            else:
                self._take_known(each)
        while len(self._keys) > _MOST_KEYS:
            id_, _ = self._keys.popitem(last=False)
            self._forgotten.add(id_, self._shared.actions.position - 1)

    def _put_up(self, events: Sequence[TaggedEvent]) -> None:
        for event in events:
            if self._calls.is_wanted(event) and event.tag_offset not in self._had:
                self.events.append(event)

    def _time_of(self, entry: Entry) -> TagTime:
        return TagTime(entry.log_time_ms, self.cursor.topic_number, entry.partition, entry.offset)

    def _move(self) -> None:
        """Move the position to the cursor: all events before it are ready."""
        self._position = max(self._position, self.cursor.place)
        self._shared.marker.saw(self.at, self.cursor.log_time_ms)
        if self._watcher is not None:
            self._watcher()
        if self.events:
            self._calls.came()

    def _let_watch(self) -> None:
        if self._watcher is not None and self._is_served:
            self._shared.watch(self, self._watcher)
        else:
            self._shared.unwatch(self)

    async def _wait_for_room(self) -> None:
        while len(self.events) >= self._page_size:
            self._room.clear()
            await self._room.wait()
