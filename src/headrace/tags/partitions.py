"""Partitions as all queries of a process share them: one reader each, records decoded once, and recent actions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from headrace.errors import HeadraceError, Unavailable
from headrace.journal import Layout
from headrace.log import Log
from headrace.model import Batch, Position, Record, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Append, Entry, Head, Mark, Poison, Verdict, decode_append, entry_of
from headrace.runtime import Backoff
from headrace.store import FIRST_TAG_TIME, Store, TagTime
from headrace.tags.marks import MARK_KEY, Marker
from headrace.tags.seams import KnownSeam

__all__ = ["Cursor", "Decoded", "Found", "Meaning", "ServedHead", "SharedPartition", "SharedPartitions"]

_KEPT = 5000

_NO_TAGS: frozenset[str] = frozenset()
_Place: TypeAlias = tuple[str, int, int]


class Meaning(NamedTuple):
    """The decoded form of a record: its action, and the tags of its events. Poison stands for what can't be decoded."""

    entry: Entry | None
    tags: frozenset[str] = _NO_TAGS
    is_append: bool = False


class _Known(NamedTuple):
    record: Record
    generation: int
    log_time_ms: int
    meaning: Meaning


class Decoded:
    """A cache of decoded records by place: every query asks for the same records."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Place, _Known] = OrderedDict()

    def find(self, record: Record, generation: int, log_time_ms: int) -> Meaning:
        """Return the decoded form of a record, for the generation and log time of its place."""
        place = (record.topic, record.partition, record.offset)
        known = self._known.get(place)
        if known is not None and known[:3] == (record, generation, log_time_ms):
            return known.meaning
        meaning = _meaning(record, generation, log_time_ms)
        self._known[place] = _Known(record, generation, log_time_ms, meaning)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return meaning


def _meaning(record: Record, generation: int, log_time_ms: int) -> Meaning:
    entry = entry_of(record, generation, log_time_ms=log_time_ms)
    if entry is None or not isinstance(entry.action, Append):
        return Meaning(entry)
    try:
        events = decode_append(entry.action, record.value).events
    except ValueError as error:
        return Meaning(msgspec.structs.replace(entry, action=Poison(f"value: {error}")), is_append=True)
    return Meaning(entry, frozenset(tag for event in events for tag in event.tags), is_append=True)


_logger = get_logger(__name__)

_RESTART = Backoff(first_s=0.05, limit_s=5.0)
_MOST_ACTIONS = 200_000
_MOST_INDEXED = 2_000_000
_TRIM_FROM = 1000
_TRIM_EVERY_S = 2.0
_RECORDS_AT_ONCE = 500
_Name: TypeAlias = tuple[TopicPartition, str]
_NOTHING = Meaning(None)
_MARK_ID = MARK_KEY.decode()


@dataclass(slots=True)
class Cursor:
    """How far a partition has been read: the next offset, and the generation and log time there."""

    at: TopicPartition
    topic_number: int
    offset: int
    generation: int
    log_time_ms: int

    @classmethod
    def behind(cls, known: KnownSeam) -> Cursor:
        """Return the cursor behind what the views hold."""
        return cls(known.at, known.topic_number, known.place.offset + 1, known.place.generation, known.log_time_ms)

    @property
    def place(self) -> TagTime:
        """The lowest place that an event which has not been read can have."""
        return TagTime(self.log_time_ms, self.topic_number, self.at.partition, self.offset)

    def move(self, offset: int, log_time_ms: int) -> None:
        """Go on to an offset. Neither offsets nor log times go back."""
        self.offset = max(self.offset, offset)
        self.log_time_ms = max(self.log_time_ms, log_time_ms)


class Found(NamedTuple):
    """An action of the head, and the tags of its events."""

    entry: Entry
    tags: frozenset[str]


class ServedHead(Protocol):
    """A query's head in a partition, as the partition's reader uses it."""

    tag: str
    cursor: Cursor

    def offer(self, found: Sequence[Found]) -> None:
        """Take the actions that concern the tag. Those that need an answer of the store are queued."""
        ...

    def let_go(self, cursor: Cursor, error: Exception | None) -> None:
        """Read alone from a cursor on, or fail with an error."""
        ...

    def forget_below(self, offset: int) -> None:
        """Forget what the store has by now, at or below an offset."""
        ...


class SharedPartition:
    """One partition. Its `actions` are complete from the place that was replicated when the first head began.

    A head may begin before that place: then what it needs of a key is in the store, which is always asked afterwards.
    """

    def __init__(
        self,
        start: KnownSeam,
        log: Log,
        store: Store,
        decoded: Decoded,
        marker: Marker,
        *,
        count_members: Callable[[SharedPartition], None],
    ) -> None:
        self.at = start.at
        self._first_generation = start.place.generation
        self.actions = Head(start.place.offset + 1, start.place.generation, has_index=True)
        self.position = start.next
        self.marker = marker
        self._cursor = Cursor.behind(start)
        self._log = log
        self._store = store
        self._decoded = decoded
        self._count_members = count_members
        self._members: set[ServedHead] = set()
        self._served: dict[ServedHead, None] = {}
        self._watchers: dict[ServedHead, Callable[[], None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._alone_to = 0
        self._trimmed_s = 0.0

    @property
    def members(self) -> int:
        """The number of heads."""
        return len(self._members)

    @property
    def served(self) -> int:
        """The number of heads that the reader serves."""
        return len(self._served)

    def begin(self, start: KnownSeam) -> None:
        """Remember actions for a head that begins at a seam. If the seam has moved on, the store has all below it."""
        if start.place.offset >= self.actions.position:
            self.actions.replicated(start.place.offset, start.place.generation)

    def join(self, head: ServedHead) -> None:
        """Add a head."""
        self._members.add(head)
        self._count_members(self)

    async def leave(self, head: ServedHead) -> None:
        """Remove a head. If it was the last one, this returns after the reader has ended."""
        self._members.discard(head)
        self._drop(head)
        self._count_members(self)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def serve(self, head: ServedHead, layout: Layout, *, is_at_end: bool) -> bool:
        """Let the reader serve a head from now on; False if the head must first catch up alone."""
        cursor = head.cursor
        if cursor.offset < self._alone_to:
            return False
        if self._reader is None:
            if not is_at_end:
                return False
            self._cursor = Cursor(self.at, cursor.topic_number, cursor.offset, cursor.generation, cursor.log_time_ms)
            self.position = cursor.place
            self._reader = asyncio.create_task(self._read(layout), name=f"headrace-tag-reader-{self.at}")
        elif cursor.offset < self._cursor.offset:
            return False
        self._served[head] = None
        return True

    def release(self, head: ServedHead, error: Exception | None = None) -> None:
        """Stop serving a head: it reads alone from the reader's place on, or fails with an error."""
        if head in self._served:
            head.let_go(self._cursor, error)
            self._drop(head)

    def watch(self, head: ServedHead, moved: Callable[[], None]) -> None:
        """Call a function each time the reader has moved, until `unwatch`."""
        self._watchers[head] = moved

    def unwatch(self, head: ServedHead) -> None:
        """Stop calling a function."""
        self._watchers.pop(head, None)

    def marked(self, mark: Position) -> None:
        """Move the reader past a Mark of this process at once if it is the next record; else it is read in its turn."""
        if mark.offset == self._cursor.offset and self._reader is not None:
            self._cursor.move(mark.offset + 1, mark.timestamp_ms)
            self._moved()

    def meaning(self, record: Record, cursor: Cursor, layout: Layout) -> Meaning:
        """Return the decoded form of a record; an append in a partition that its key has left is nothing."""
        log_time_ms = max(cursor.log_time_ms, record.timestamp_ms)
        meaning = self._decoded.find(record, cursor.generation, log_time_ms)
        if not meaning.is_append or meaning.entry is None or layout.generation == 0:
            return meaning
        return meaning if layout.is_home(meaning.entry.id, cursor.generation, self.at) else _NOTHING

    def met(self, entry: Entry, mark: Mark) -> None:
        """Report a Mark that a query of this or another process wrote to the marker."""
        if entry.id == _MARK_ID:
            self.marker.met(mark.id)

    async def batches(self, cursor: Cursor) -> AsyncGenerator[Batch, None]:
        """Yield the records from a cursor on; if the log is unavailable, try again until it answers."""
        attempt = 0
        while True:
            batches = self._log.read(self.at, cursor.offset, max_records=_RECORDS_AT_ONCE)
            try:
                async for batch in batches:
                    attempt = 0
                    yield batch
            except Unavailable as error:
                attempt += 1
                delay_s = _RESTART.delay_s(attempt)
                _logger.warning(
                    "head of a tag query failed", partition=str(self.at), error=str(error), retry_in_s=delay_s
                )
                await asyncio.sleep(delay_s)
            finally:
                await batches.aclose()  # type: ignore[attr-defined]

    async def trim(self) -> None:
        """Forget actions that the store has by now, from time to time."""
        now_s = asyncio.get_running_loop().time()
        if self.actions.actions < _TRIM_FROM or now_s - self._trimmed_s < _TRIM_EVERY_S:
            return
        self._trimmed_s = now_s
        try:
            replicated = await self._store.reader.replicated(self.at)
        except HeadraceError as error:
            _logger.warning("head of a tag query not trimmed", partition=str(self.at), error=str(error))
            return
        if replicated is not None and replicated.generation >= self._first_generation:  # else of a topic that is gone
            offset = min(replicated.offset, self.actions.position - 1)
            self.actions.replicated(offset, replicated.generation)
            for head in self._members:
                head.forget_below(offset)
        self.actions.evict(_MOST_ACTIONS)
        if self.actions.indexed > _MOST_INDEXED:
            self.actions.drop_index()

    async def _read(self, layout: Layout) -> None:
        """Read for all served heads, until there is none or all must read alone."""
        error: Exception | None = None
        try:
            async with contextlib.aclosing(self.batches(self._cursor)) as batches:
                async for batch in batches:
                    if not self._take(batch, layout):
                        break
                    await self.trim()
        except Exception as failure:  # each query decides what to do about it
            error = failure
        if self._reader is asyncio.current_task():
            self._reader = None
            for head in list(self._served):
                self.release(head, error)

    def _take(self, batch: Batch, layout: Layout) -> bool:
        """Serve the records of a batch; False if the reader must end."""
        cursor = self._cursor
        found: list[Found] = []
        for record in batch.records:
            if record.offset < cursor.offset:
                continue
            entry, tags, _ = self.meaning(record, cursor, layout)
            if entry is not None and _concerns_all(entry, cursor.generation):
                self._alone_to = record.offset + 1
                self._serve(found)
                return False
            if entry is not None and isinstance(entry.action, Mark):
                self.met(entry, entry.action)
            elif entry is not None:
                found.append(Found(entry, tags))
            cursor.move(record.offset + 1, record.timestamp_ms)
        cursor.move(batch.next_offset, cursor.log_time_ms)
        self._serve(found)
        return bool(self._served)

    def _serve(self, found: Sequence[Found]) -> None:
        """Offer each head the actions that it wants. A failure ends the query of that head and no other."""
        self.actions.take([each.entry for each in found], self._cursor.offset)
        heads = list(self._served) if found else []
        tags = {head.tag for head in heads}
        tagged = [each.entry.offset for each in found if not tags.isdisjoint(each.tags)]
        if tagged:
            self.marker.earn(self.at, tagged[-1], len(tagged))
        for head in heads:
            try:
                head.offer(found)
            except Exception as error:
                self.release(head, error)
        self._moved()

    def _moved(self) -> None:
        self.position = self._cursor.place
        self.marker.saw(self.at, self._cursor.log_time_ms)
        for moved in list(self._watchers.values()):
            moved()

    def _drop(self, head: ServedHead) -> None:
        """Stop serving a head. A reader without heads ends."""
        self._served.pop(head, None)
        self._watchers.pop(head, None)
        reader = self._reader
        if not self._served and reader is not None:
            self._reader = None
            if reader is not asyncio.current_task():
                reader.cancel()
            self._ending.add(reader)
            reader.add_done_callback(self._ending.discard)


class SharedPartitions:
    """The partitions in which a query of the process has a head. A topic that was created again is another topic."""

    def __init__(self, log: Log, store: Store, marker: Marker) -> None:
        self._log = log
        self._store = store
        self._marker = marker
        self._decoded = Decoded()
        self._known: dict[_Name, SharedPartition] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def served(self) -> int:
        """The number of heads that are served by the reader of their partition."""
        return sum(shared.served for shared in self._known.values())

    def read_up_to(self) -> TagTime:
        """Return the highest place that any partition has been read up to."""
        return max((shared.position for shared in self._known.values()), default=FIRST_TAG_TIME)

    def get(self, start: KnownSeam, layout: Layout) -> SharedPartition:
        """Return the shared partition; it is made if it is new."""
        name = (start.at, layout.topic_id)
        shared = self._known.get(name)
        if shared is None:
            shared = SharedPartition(
                start,
                self._log,
                self._store,
                self._decoded,
                self._marker,
                count_members=lambda counted: self._keep(name, counted),
            )
            self._known[name] = shared
        shared.begin(start)
        return shared

    def _keep(self, name: _Name, shared: SharedPartition) -> None:
        """Keep a shared partition while it has heads. If two were made for one partition, the first is kept."""
        if shared.members:
            self._known.setdefault(name, shared)
        elif self._known.get(name) is shared:
            del self._known[name]


def _concerns_all(entry: Entry, generation: int) -> bool:
    """Return True if every head must handle an action: a verdict on a held journal, or the start of a generation."""
    action = entry.action
    return isinstance(action, Verdict) or (isinstance(action, Mark) and (action.generation or 0) > generation)
