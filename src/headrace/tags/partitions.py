"""What the last records of the log mean: found out once, for all queries of a process that follow the same feed."""

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
    """The action that a record stands for, and the tags of its events. What can't be decoded holds its key."""

    entry: Entry | None
    tags: frozenset[str] = _NO_TAGS
    is_append: bool = False


class _Known(NamedTuple):
    record: Record
    generation: int
    log_time_ms: int
    meaning: Meaning


class Decoded:
    """Remembers some records by their place. It is asked about the same record as often as there are queries."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Place, _Known] = OrderedDict()

    def find(self, record: Record, generation: int, log_time_ms: int) -> Meaning:
        """Return what a record means where a partition has that generation and log time."""
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
    """How far a partition was read: the next offset, and the generation and log time there."""

    at: TopicPartition
    topic_number: int
    offset: int
    generation: int
    log_time_ms: int

    @classmethod
    def behind(cls, known: KnownSeam) -> Cursor:
        """Return the place behind what the views hold."""
        return cls(known.at, known.topic_number, known.place.offset + 1, known.place.generation, known.log_time_ms)

    @property
    def place(self) -> TagTime:
        """The lowest place that an event can have which was not read yet."""
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
    """A query's head in a partition, as its reader sees it."""

    tag: str
    cursor: Cursor

    def offer(self, found: Sequence[Found]) -> None:
        """Take the actions that concern the tag. Those that need more than is at hand are put into a queue."""
        ...

    def let_go(self, cursor: Cursor, error: Exception | None) -> None:
        """Read alone from there on, or fail."""
        ...

    def forget_below(self, offset: int) -> None:
        """Forget what the store has by now."""
        ...


class SharedPartition:
    """One partition. Its `actions` are complete from a place on that was replicated when the first head began.

    A head may be behind that place: what it needs of a key is in the store then, which is always asked afterwards.
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
        """How many heads there are."""
        return len(self._members)

    @property
    def served(self) -> int:
        """How many of them the reader serves."""
        return len(self._served)

    def begin(self, start: KnownSeam) -> None:
        """Remember actions for a head that begins at a seam. If that is further on, the store has all below it."""
        if start.place.offset >= self.actions.position:
            self.actions.replicated(start.place.offset, start.place.generation)

    def join(self, head: ServedHead) -> None:
        """Do what is done for a head from now on."""
        self._members.add(head)
        self._count_members(self)

    async def leave(self, head: ServedHead) -> None:
        """Do nothing more for a head; returns when the reader has ended, if it was the last."""
        self._members.discard(head)
        self._drop(head)
        self._count_members(self)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def serve(self, head: ServedHead, layout: Layout, *, is_at_end: bool) -> bool:
        """Let the reader serve a head from now on. Returns False if the head has to read on alone first."""
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
        """Let a head read alone from where the reader is, or fail."""
        if head in self._served:
            head.let_go(self._cursor, error)
            self._drop(head)

    def watch(self, head: ServedHead, moved: Callable[[], None]) -> None:
        """Call a function each time the reader has moved, until `unwatch`."""
        self._watchers[head] = moved

    def unwatch(self, head: ServedHead) -> None:
        """Call it no more."""
        self._watchers.pop(head, None)

    def marked(self, mark: Position) -> None:
        """Move the reader past a Mark of our own at once, if it is the next record; else it is met in its turn."""
        if mark.offset == self._cursor.offset and self._reader is not None:
            self._cursor.move(mark.offset + 1, mark.timestamp_ms)
            self._moved()

    def meaning(self, record: Record, cursor: Cursor, layout: Layout) -> Meaning:
        """Return what a record means; an append that is not where its key lives means nothing."""
        log_time_ms = max(cursor.log_time_ms, record.timestamp_ms)
        meaning = self._decoded.find(record, cursor.generation, log_time_ms)
        if not meaning.is_append or meaning.entry is None or layout.generation == 0:
            return meaning
        return meaning if layout.is_home(meaning.entry.id, cursor.generation, self.at) else _NOTHING

    def met(self, entry: Entry, mark: Mark) -> None:
        """Tell the marker of a Mark that a query wrote, here or in another process."""
        if entry.id == _MARK_ID:
            self.marker.met(mark.id)

    async def batches(self, cursor: Cursor) -> AsyncGenerator[Batch, None]:
        """Yield what the log holds from a cursor on; a log that can't be reached is asked again and again."""
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
                _logger.warning("head of a tag query failed", partition=str(self.at), error=str(error), retry_s=delay_s)
                await asyncio.sleep(delay_s)
            finally:
                await batches.aclose()  # type: ignore[attr-defined]

    async def trim(self) -> None:
        """Every now and then forget actions that the store has by now."""
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
        """Read for all heads that are served, until none is, or all have to read alone."""
        error: Exception | None = None
        try:
            async with contextlib.aclosing(self.batches(self._cursor)) as batches:
                async for batch in batches:
                    if not self._take(batch, layout):
                        break
                    await self.trim()
        except Exception as failure:  # each query decides by itself what to do about it
            error = failure
        if self._reader is asyncio.current_task():
            self._reader = None
            for head in list(self._served):
                self.release(head, error)

    def _take(self, batch: Batch, layout: Layout) -> bool:
        """Serve what a batch holds. Returns False if the reader has to end."""
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
        """Offer each head what it wants. One that fails ends its own query, and no other."""
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
        """Serve a head no more. A reader that serves nobody ends."""
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
    """The partitions that some query of the process has a head in. A topic that was made again is another topic."""

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
        """How many heads are served by the reader of their partition."""
        return sum(shared.served for shared in self._known.values())

    def read_up_to(self) -> TagTime:
        """Return the highest place that a partition has been read to."""
        return max((shared.position for shared in self._known.values()), default=FIRST_TAG_TIME)

    def get(self, start: KnownSeam, layout: Layout) -> SharedPartition:
        """Return what is shared of a partition."""
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
        """Keep a partition while it has heads. Of two that were made for the same one the first is kept."""
        if shared.members:
            self._known.setdefault(name, shared)
        elif self._known.get(name) is shared:
            del self._known[name]


def _concerns_all(entry: Entry, generation: int) -> bool:
    """Return True for what every head has to wait for: a verdict on a held journal, the start of a generation."""
    action = entry.action
    return isinstance(action, Verdict) or (isinstance(action, Mark) and (action.generation or 0) > generation)
