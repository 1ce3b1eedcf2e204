"""The registry of events by tag: facts that all processes share, about topics, buckets, back-fills and tables.

A tag that is being filled is left out by replication, and queries of it wait. In each partition a fill has two places.
Events up to `since` may have been written under the tag before any process knew of the fill, and are replaced. Up to
`cut` the fill decides which events have the tag; above it events carry the tag themselves, and replication continues
the numbering. Both are places of Marks, written after the facts: a process that has read so far in the log finds the
facts. A place counts in its own partition only.

What one process redacts, all redact: one with other settings must not bring back what another removed.
Whether there are views at all is a fact too: the first process that replicates decides it, and an operator changes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum

import msgspec

from headrace.config import TagSettings
from headrace.errors import TagBuilding, TagsDisabled, TagsIncomplete, TagViewsLost, WrongBucketSize
from headrace.journal import Layout, layout_key
from headrace.model import TopicPartition, partition_of
from headrace.store import Place, Store

__all__ = [
    "NUMBERS_TABLE",
    "REGISTRY_KEY",
    "Bucket",
    "FillState",
    "PlacesOfTopic",
    "TagFacts",
    "TagFill",
    "TagRegistry",
    "TagUse",
    "TopicEntry",
    "ViewsReplaced",
    "check_epoch",
    "check_filled",
    "check_use",
    "decode_registry",
    "reopened",
]


class Bucket(Enum):
    """The size of a bucket. It is chosen by volume and fixed with the first event."""

    DAY = 24 * 60 * 60 * 1000
    HOUR = 60 * 60 * 1000
    MINUTE = 60 * 1000

    def start_of(self, log_time_ms: int) -> int:
        """Return the start of the bucket that a log time is in."""
        return log_time_ms - log_time_ms % int(self.value)


class FillState(StrEnum):
    """The state of a fill. While it is closing, replication waits at the cut."""

    BUILDING = "building"
    CLOSING = "closing"
    READY = "ready"


class PlacesOfTopic(msgspec.Struct, frozen=True):
    """A place in each partition of a topic, all of one generation. A topic that `is_gone` gets no more records."""

    generation: int
    offsets: Mapping[int, int]
    is_gone: bool = False


class TagFill(msgspec.Struct, frozen=True):
    """The fill of one tag; `function` names the one that chooses the events, `close_id` an attempt to close it."""

    id: str
    function: str
    state: FillState = FillState.BUILDING
    close_id: str = ""
    since: Mapping[str, PlacesOfTopic] = {}
    cut: Mapping[str, PlacesOfTopic] = {}

    @property
    def is_ready(self) -> bool:
        """True if all history is numbered."""
        return self.state is FillState.READY

    def since_of(self, at: TopicPartition) -> Place:
        """Return the place below which everything was written before the fill."""
        places = self.since.get(at.topic)
        return Place(-1, -1) if places is None else Place(places.generation, places.offsets.get(at.partition, -1))

    def home_of(self, layout: Layout, id_: str, partition: int) -> TopicPartition:
        """Return the partition of a journal during the fill; `partition` is where its records, or rows, are.

        In a topic that has never grown it is the same one, even if their producer ignores the key.
        """
        places = self.since.get(layout.topic)
        if places is None or places.generation <= 0:
            return TopicPartition(layout.topic, partition)
        return TopicPartition(
            layout.topic, partition_of(id_.encode(), layout.generations[places.generation].partitions)
        )

    def cut_of(self, at: TopicPartition) -> Place | None:
        """Return the last place that the fill decides about; None if it decides about nothing there."""
        places = self.cut.get(at.topic)
        if places is None or at.partition not in places.offsets:
            return None
        return Place(places.generation, places.offsets[at.partition])

    def leaves_out(self, at: TopicPartition, place: Place) -> bool:
        """Return True if replication must leave an event's row to the fill."""
        cut = self.cut_of(at)
        return not self.is_ready or (cut is not None and place <= cut)

    def last_offset(self, at: TopicPartition, start: int) -> int | None:
        """Return the last offset that replication may apply after `start`; None means any."""
        if self.state is not FillState.CLOSING:
            return None
        cut = self.cut_of(at)
        return start if cut is None else cut.offset


def check_filled(fills: Mapping[str, TagFill], tag: str, before: Mapping[str, TagFill] | None = None) -> None:
    """Raise TagBuilding if history is not numbered yet, or was numbered again since `before`."""
    fill = fills.get(tag)
    if fill is None:
        return
    is_same = before is None or (tag in before and before[tag].id == fill.id)
    if not fill.is_ready or not is_same:
        raise TagBuilding(tag, fill.function)


REGISTRY_KEY = "tags"
NUMBERS_TABLE = "tag_views_progress"


class TagUse(StrEnum):
    """Whether a store keeps views by tag. While they are BUILDING nothing is replicated."""

    ON = "on"
    BUILDING = "building"
    OFF = "off"


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic in the order of tagged events. It is announced; with a `floor_ms` it is open.

    No record of it has a log time below the floor. `generations` has the floors of later generations, by number.
    A topic that was deleted and created again joins again: its generation is `announced` before its floor is
    determined. That floor lies above `last_ms`, the highest log time that queries had read of the old topic.
    """

    number: int
    floor_ms: int | None = None
    generations: Mapping[str, int] = {}
    announced: int = 0
    last_ms: int = 0

    @property
    def latest(self) -> int:
        """The latest generation, announced or open."""
        return max(self.announced, *map(int, self.generations), 0)

    @property
    def is_open(self) -> bool:
        """True if the floors of all announced generations are known."""
        return self.floor_ms is not None and (not self.announced or str(self.announced) in self.generations)


class TagFacts(msgspec.Struct, frozen=True):
    """The facts that all processes share."""

    bucket: str
    epoch: str
    is_ready: bool = False
    topics: Mapping[str, TopicEntry] = {}
    fills: Mapping[str, TagFill] = {}
    redact: tuple[str, ...] = ()
    use: TagUse = TagUse.ON

    def with_fill(self, tag: str, fill: TagFill) -> TagFacts:
        """Return the facts with a tag's fill changed."""
        return msgspec.structs.replace(self, fills={**self.fills, tag: fill})

    def with_topic(self, topic: str, entry: TopicEntry) -> TagFacts:
        """Return the facts with a topic's entry changed."""
        return msgspec.structs.replace(self, topics={**self.topics, topic: entry})

    def floor_ms(self, topic: str, generation: int) -> int | None:
        """Return the lowest log time of a generation; None if that is not determined yet."""
        entry = self.topics.get(topic)
        if entry is None or entry.floor_ms is None:
            return None
        return entry.floor_ms if generation == 0 else entry.generations.get(str(generation))


decode_registry = msgspec.json.Decoder(TagFacts).decode
_decode_layout = msgspec.json.Decoder(Layout).decode


def check_use(facts: TagFacts) -> TagFacts:
    """Return the facts of a store that keeps views. Raises TagsIncomplete."""
    if facts.use is not TagUse.ON:
        raise TagsIncomplete
    return facts


class ViewsReplaced(Exception):
    """The views were written again since a query began. Caught within this room."""


def check_epoch(facts: TagFacts, *, before: TagFacts) -> None:
    """Raise ViewsReplaced if the views have been written again since `before`: numbers may have changed."""
    if facts.epoch != before.epoch:
        raise ViewsReplaced


class TagRegistry:
    """Reads and changes the shared facts; creates the tables when they are first needed."""

    def __init__(self, store: Store, settings: TagSettings) -> None:
        self._store = store
        self._settings = settings
        self._prepared_epoch = ""

    @property
    def bucket(self) -> Bucket:
        """The size of the buckets."""
        return Bucket[self._settings.bucket]

    async def open(self) -> TagFacts:
        """Return the facts, after creating and checking the tables.

        Raises TagsDisabled, TagsIncomplete, WrongBucketSize, TagViewsLost.
        """
        if not self._settings.enabled:
            raise TagsDisabled("use events by tag")
        facts = check_use(await self.settle(TagUse.ON))
        if facts.bucket != self._settings.bucket:
            raise WrongBucketSize(facts.bucket, self._settings.bucket)
        if not set(self._settings.redact) <= set(facts.redact):
            facts = await self.change(lambda known: _redacting(known, self._settings.redact))
        if not facts.is_ready:
            return await self._finish(facts)
        if facts.epoch != self._prepared_epoch:
            await self._store.tags.prepare()
            self._prepared_epoch = facts.epoch
        await self.check(facts)
        return facts

    async def settle(self, use: TagUse) -> TagFacts:
        """Return the facts. If nothing was replicated yet, they are made as this process wants them.

        If a store has replicated journals but no facts, it has no views: an older version replicated without them.
        """
        facts = await self._read()
        if facts is None:
            facts = await self._make(TagUse.OFF if await self._is_replicated() else use)
        if facts.use is TagUse.OFF and use is TagUse.ON and not await self._is_replicated():
            facts = await self.change(lambda known: msgspec.structs.replace(known, use=use))
        return facts

    async def begin_building(self) -> TagFacts:
        """Stop replication into a store without views until they are built and `begin_epoch` is called."""
        await self.settle(TagUse.OFF)
        return await self.change(_building)

    async def switch_off(self) -> bool:
        """Keep no views from now on; False if there were none."""
        before = await self.settle(TagUse.OFF)
        await self.change(lambda known: msgspec.structs.replace(known, use=TagUse.OFF))
        return before.use is not TagUse.OFF

    async def read(self) -> TagFacts:
        """Return the facts as they are now; call `open` first."""
        return await self._read() or await self.open()

    async def check(self, facts: TagFacts) -> None:
        """Raise TagViewsLost if a table does not have the epoch: it was emptied, or is another table."""
        if lost := await self.lost_tables(facts):
            raise TagViewsLost(lost)

    async def lost_tables(self, facts: TagFacts) -> tuple[str, ...]:
        """Return the tables that do not have the epoch."""
        epochs = await self._store.tags.epochs()
        return tuple(table for table, epoch in epochs.items() if epoch != facts.epoch)

    async def change(self, edit: Callable[[TagFacts], TagFacts]) -> TagFacts:
        """Change the facts; `edit` is called again if another process was faster."""
        while True:
            stored = await self._store.settings.get(REGISTRY_KEY)
            if stored is None:
                await self.open()
                continue
            facts = decode_registry(stored)
            changed = edit(facts)
            if changed == facts:
                return facts
            if await self._store.settings.put(REGISTRY_KEY, _encode(changed), expected=stored):
                return changed

    async def begin_epoch(self) -> TagFacts:
        """Give the tables a new epoch after they were emptied and written again."""
        await self._store.tags.prepare()
        epoch = uuid.uuid4().hex
        await self._store.tags.put_epoch(epoch)
        return await self.change(lambda facts: _with_new_tables(facts, epoch))

    async def _read(self) -> TagFacts | None:
        stored = await self._store.settings.get(REGISTRY_KEY)
        return None if stored is None else decode_registry(stored)

    async def _is_replicated(self) -> bool:
        """Return True if any partition of a journal's topic is replicated at all."""
        for stored in (await self._store.settings.all(layout_key(""))).values():
            layout = _decode_layout(stored)
            for partition in range(layout.partitions):
                if await self._store.reader.replicated(TopicPartition(layout.topic, partition)) is not None:
                    return True
        return False

    async def _make(self, use: TagUse) -> TagFacts:
        made = TagFacts(self._settings.bucket, uuid.uuid4().hex, use=use)
        await self._store.settings.put(REGISTRY_KEY, _encode(made), expected=None)
        return await self._read() or made

    async def _finish(self, facts: TagFacts) -> TagFacts:
        """Create the tables and write the epoch before any process relies on it; every process may do this."""
        await self._store.tags.prepare()
        await self._store.tags.put_epoch(facts.epoch)
        self._prepared_epoch = facts.epoch
        return await self.change(lambda found: msgspec.structs.replace(found, is_ready=True))


def reopened(facts: TagFacts, tag: str, fill: TagFill) -> TagFacts:
    """Return the facts with a closing fill open again; unchanged if it is another attempt or done."""
    known = facts.fills.get(tag)
    if known is None or known.state is not FillState.CLOSING or known.close_id != fill.close_id:
        return facts
    return facts.with_fill(tag, msgspec.structs.replace(known, state=FillState.BUILDING, close_id="", cut={}))


def _building(facts: TagFacts) -> TagFacts:
    return facts if facts.use is TagUse.ON else msgspec.structs.replace(facts, use=TagUse.BUILDING)


def _redacting(facts: TagFacts, tags: Iterable[str]) -> TagFacts:
    return msgspec.structs.replace(facts, redact=tuple(sorted({*facts.redact, *tags})))


def _with_new_tables(facts: TagFacts, epoch: str) -> TagFacts:
    """Return the facts of new tables. Back-filled tags are lost, because journals do not have them."""
    fills = {tag: TagFill(fill.id, fill.function) for tag, fill in facts.fills.items()}
    return msgspec.structs.replace(facts, epoch=epoch, is_ready=True, fills=fills, use=TagUse.ON)


def _encode(facts: TagFacts) -> str:
    return msgspec.json.encode(facts).decode()
