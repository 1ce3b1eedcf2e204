"""Buckets: how much time of a tag one partition of its view holds."""

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
    "ViewsBegunAnew",
    "check_epoch",
    "check_filled",
    "check_use",
    "decode_registry",
    "reopened",
]


class Bucket(Enum):
    """The size of a bucket; chosen by volume, and fixed once events are there."""

    DAY = 24 * 60 * 60 * 1000
    HOUR = 60 * 60 * 1000
    MINUTE = 60 * 1000

    def start_of(self, log_time_ms: int) -> int:
        """Return when the bucket of a log time begins."""
        return log_time_ms - log_time_ms % int(self.value)


class FillState(StrEnum):
    """How far a fill is. While it is closing, replication waits at the cut."""

    BUILDING = "building"
    CLOSING = "closing"
    READY = "ready"


class PlacesOfTopic(msgspec.Struct, frozen=True):
    """A place in each partition of a topic, all of one generation. One that `is_gone` gets no more records."""

    generation: int
    offsets: Mapping[int, int]
    is_gone: bool = False


class TagFill(msgspec.Struct, frozen=True):
    """One tag's fill; `function` names what chooses the events, `close_id` an attempt to close it."""

    id: str
    function: str
    state: FillState = FillState.BUILDING
    close_id: str = ""
    since: Mapping[str, PlacesOfTopic] = {}
    cut: Mapping[str, PlacesOfTopic] = {}

    @property
    def is_ready(self) -> bool:
        """Whether history is counted."""
        return self.state is FillState.READY

    def since_of(self, at: TopicPartition) -> Place:
        """Return the place that all which was written before the fill lies below."""
        places = self.since.get(at.topic)
        return Place(-1, -1) if places is None else Place(places.generation, places.offsets.get(at.partition, -1))

    def home_of(self, layout: Layout, id_: str, partition: int) -> TopicPartition:
        """Return where a journal lives as long as the fill lasts, whose records, or rows, are in a partition.

        In a topic that has never grown that is where they are, also if their producer does not go by the key.
        """
        places = self.since.get(layout.topic)
        if places is None or places.generation <= 0:
            return TopicPartition(layout.topic, partition)
        return TopicPartition(
            layout.topic, partition_of(id_.encode(), layout.generations[places.generation].partitions)
        )

    def cut_of(self, at: TopicPartition) -> Place | None:
        """Return the last place that the fill decides about; None where it decides about nothing."""
        places = self.cut.get(at.topic)
        if places is None or at.partition not in places.offsets:
            return None
        return Place(places.generation, places.offsets[at.partition])

    def leaves_out(self, at: TopicPartition, place: Place) -> bool:
        """Say whether replication has to leave an event's row to the fill."""
        cut = self.cut_of(at)
        return not self.is_ready or (cut is not None and place <= cut)

    def last_offset(self, at: TopicPartition, start: int) -> int | None:
        """Return the last offset that replication, which stands at `start`, may go to; None: any."""
        if self.state is not FillState.CLOSING:
            return None
        cut = self.cut_of(at)
        return start if cut is None else cut.offset


def check_filled(fills: Mapping[str, TagFill], tag: str, before: Mapping[str, TagFill] | None = None) -> None:
    """Raise TagBuilding if history is not counted yet, or was counted anew since `before`."""
    fill = fills.get(tag)
    if fill is None:
        return
    is_same = before is None or (tag in before and before[tag].id == fill.id)
    if not fill.is_ready or not is_same:
        raise TagBuilding(tag, fill.function)


REGISTRY_KEY = "tags"
NUMBERS_TABLE = "tag_views_progress"


class TagUse(StrEnum):
    """Whether a store keeps views by tag. While they are being built nothing is replicated, with or without them."""

    ON = "on"
    BUILDING = "building"
    OFF = "off"


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic in the order of tagged events. It was announced; with a `floor_ms` it is open.

    No record of it has a log time below the floor. `generations` has the floors of later generations, by number.
    A topic that was deleted and made again joins anew: its generation is `announced` before its floor is looked for,
    and lies above `last_ms`, the highest log time that queries had read when the old one was gone.
    """

    number: int
    floor_ms: int | None = None
    generations: Mapping[str, int] = {}
    announced: int = 0
    last_ms: int = 0

    @property
    def latest(self) -> int:
        """The latest generation that is announced or open."""
        return max(self.announced, *map(int, self.generations), 0)

    @property
    def is_open(self) -> bool:
        """Whether the floors of all that was announced are settled."""
        return self.floor_ms is not None and (not self.announced or str(self.announced) in self.generations)


class TagFacts(msgspec.Struct, frozen=True):
    """The shared facts."""

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
        """Return the least log time of a generation's records; None if that was not settled yet."""
        entry = self.topics.get(topic)
        if entry is None or entry.floor_ms is None:
            return None
        return entry.floor_ms if generation == 0 else entry.generations.get(str(generation))


decode_registry = msgspec.json.Decoder(TagFacts).decode
_decode_layout = msgspec.json.Decoder(Layout).decode


def check_use(registry: TagFacts) -> TagFacts:
    """Return the facts of a store that keeps views. Raises TagsIncomplete."""
    if registry.use is not TagUse.ON:
        raise TagsIncomplete
    return registry


class ViewsBegunAnew(Exception):
    """The tables of events by tag are others than those a query began with. Caught within this room."""


def check_epoch(registry: TagFacts, *, before: TagFacts) -> None:
    """Raise ViewsBegunAnew if the views have been written again since `before`: numbers may be others."""
    if registry.epoch != before.epoch:
        raise ViewsBegunAnew


class TagRegistry:
    """Reads and changes the shared facts; makes the tables when they are first needed."""

    def __init__(self, store: Store, settings: TagSettings) -> None:
        self._store = store
        self._settings = settings
        self._prepared_epoch = ""

    @property
    def bucket(self) -> Bucket:
        """The size of the buckets."""
        return Bucket[self._settings.bucket]

    async def open(self) -> TagFacts:
        """Return the facts, with the tables made and looked at.

        Raises TagsDisabled, TagsIncomplete, WrongBucketSize, TagViewsLost.
        """
        if not self._settings.enabled:
            raise TagsDisabled("use events by tag")
        registry = check_use(await self.settle(TagUse.ON))
        if registry.bucket != self._settings.bucket:
            raise WrongBucketSize(registry.bucket, self._settings.bucket)
        if not set(self._settings.redact) <= set(registry.redact):
            registry = await self.change(lambda known: _redacting(known, self._settings.redact))
        if not registry.is_ready:
            return await self._finish(registry)
        if registry.epoch != self._prepared_epoch:
            await self._store.tags.prepare()
            self._prepared_epoch = registry.epoch
        await self.check(registry)
        return registry

    async def settle(self, use: TagUse) -> TagFacts:
        """Return the facts, made as this process wants them where nothing was replicated yet.

        A store without facts that was replicated into got no views, from a version that did not say so.
        """
        registry = await self._read()
        if registry is None:
            registry = await self._make(TagUse.OFF if await self._is_replicated() else use)
        if registry.use is TagUse.OFF and use is TagUse.ON and not await self._is_replicated():
            registry = await self.change(lambda known: msgspec.structs.replace(known, use=use))
        return registry

    async def begin_building(self) -> TagFacts:
        """Let nobody replicate into a store that has no views until they are built, which `begin_epoch` says."""
        await self.settle(TagUse.OFF)
        return await self.change(_building)

    async def switch_off(self) -> bool:
        """Give the views up; False if there were none."""
        before = await self.settle(TagUse.OFF)
        await self.change(lambda known: msgspec.structs.replace(known, use=TagUse.OFF))
        return before.use is not TagUse.OFF

    async def read(self) -> TagFacts:
        """Return the facts as they are now; `open` must have been called before."""
        return await self._read() or await self.open()

    async def check(self, registry: TagFacts) -> None:
        """Raise TagViewsLost if a table does not carry the epoch: it was emptied, or is another one."""
        if lost := await self.lost_tables(registry):
            raise TagViewsLost(lost)

    async def lost_tables(self, registry: TagFacts) -> tuple[str, ...]:
        """Return the tables that don't carry the epoch."""
        epochs = await self._store.tags.epochs()
        return tuple(table for table, epoch in epochs.items() if epoch != registry.epoch)

    async def change(self, edit: Callable[[TagFacts], TagFacts]) -> TagFacts:
        """Change the facts; `edit` is called again when somebody else was quicker."""
        while True:
            stored = await self._store.settings.get(REGISTRY_KEY)
            if stored is None:
                await self.open()
                continue
            registry = decode_registry(stored)
            changed = edit(registry)
            if changed == registry:
                return registry
            if await self._store.settings.put(REGISTRY_KEY, _encode(changed), expected=stored):
                return changed

    async def begin_epoch(self) -> TagFacts:
        """Give the tables a new epoch, after they were emptied; for those who fill them again."""
        await self._store.tags.prepare()
        epoch = uuid.uuid4().hex
        await self._store.tags.put_epoch(epoch)
        return await self.change(lambda registry: _begun_anew(registry, epoch))

    async def _read(self) -> TagFacts | None:
        stored = await self._store.settings.get(REGISTRY_KEY)
        return None if stored is None else decode_registry(stored)

    async def _is_replicated(self) -> bool:
        """Say whether any partition of a journal's topic is replicated, however little."""
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

    async def _finish(self, registry: TagFacts) -> TagFacts:
        """Make the tables and write the epoch, before anybody relies on it; whoever comes may do it."""
        await self._store.tags.prepare()
        await self._store.tags.put_epoch(registry.epoch)
        self._prepared_epoch = registry.epoch
        return await self.change(lambda found: msgspec.structs.replace(found, is_ready=True))


def reopened(registry: TagFacts, tag: str, fill: TagFill) -> TagFacts:
    """Return the facts with a fill that was closing no more so; unchanged if it is another attempt, or done."""
    known = registry.fills.get(tag)
    if known is None or known.state is not FillState.CLOSING or known.close_id != fill.close_id:
        return registry
    return registry.with_fill(tag, msgspec.structs.replace(known, state=FillState.BUILDING, close_id="", cut={}))


def _building(registry: TagFacts) -> TagFacts:
    return registry if registry.use is TagUse.ON else msgspec.structs.replace(registry, use=TagUse.BUILDING)


def _redacting(registry: TagFacts, tags: Iterable[str]) -> TagFacts:
    return msgspec.structs.replace(registry, redact=tuple(sorted({*registry.redact, *tags})))


def _begun_anew(registry: TagFacts, epoch: str) -> TagFacts:
    """Return the facts of new tables. What tags were filled with is gone: journals don't know of it."""
    fills = {tag: TagFill(fill.id, fill.function) for tag, fill in registry.fills.items()}
    return msgspec.structs.replace(registry, epoch=epoch, is_ready=True, fills=fills, use=TagUse.ON)


def _encode(registry: TagFacts) -> str:
    return msgspec.json.encode(registry).decode()
