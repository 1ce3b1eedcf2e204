"""The topology of a topic: which partition holds a key, by the published layout, and for how long that is certain.

The store keeps the layout for all processes. A client trusts the layout that it read for the length of a lease. After
that it reads the layout again before it writes. So one lease after a topic began to grow, no client writes to it.
Leases may differ: each client stores its own before it trusts a layout, and growth waits for the longest. While the
store does not answer, a client goes on with the layout it has, as long as the log has as many partitions as it says.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import msgspec

from headrace.errors import TimedOut, TopicClaimed, TopicExists, Unavailable, UnknownTopic
from headrace.journal.marks import layout_from_log
from headrace.journal.retention import JOURNAL_TOPIC, check_topic, read_terms
from headrace.log import Log
from headrace.model import Topic, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Layout, layout_key
from headrace.store import SharedSettings

__all__ = ["JOURNAL_TOPIC", "LEASE_S", "PartitionEnd", "Route", "Routed", "Topology", "layout_key", "longest_lease_s"]

LEASE_S = 5.0

_logger = get_logger(__name__)

_ROUTES_KEPT = 65_536
_GROWTH_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 1.0

_decode = msgspec.json.Decoder(Layout).decode


class Route(NamedTuple):
    """The partition that a key's records go to, and its generation."""

    at: TopicPartition
    generation: int


class PartitionEnd:
    """The highest offset of a partition that this client knows.

    An offset that is answered later is higher. If it is not, the topic was deleted and created again, which a client
    would otherwise notice a lease later: it would route by the partitions of the old topic, and take offsets of the new
    one for replicated ones.
    """

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = -1

    def rises(self, before: int, offset: int) -> bool:
        """Note an offset; return False if it is not above `before`, which was the end when it was asked for."""
        if offset > self.offset:
            self.offset = offset
        return offset > before


class Routed(NamedTuple):
    """A route, the time until which no boundary can have been written in its partition, and that partition's end."""

    route: Route
    safe_until_s: float
    end: PartitionEnd


def lease_key(topic: str) -> str:
    """Return the name of the setting that holds the longest lease of a topic's writers."""
    return f"lease/{topic}"


async def longest_lease_s(settings: SharedSettings, topic: str) -> float:
    """Return the longest time for which a writer may still trust a layout that it read before."""
    return float(await settings.get(lease_key(topic)) or 0.0)


class Topology:
    """The layout of one topic.

    A topic that does not exist is created with `partitions`, unless that is None, when something is to be written;
    whoever only looks gets UnknownTopic. An existing topic must keep its records as a new one would, or
    JournalTopicExpires is raised. With `is_reader` nothing is written.
    """

    def __init__(
        self,
        log: Log,
        settings: SharedSettings,
        topic: str,
        *,
        partitions: int | None = None,
        is_reader: bool = False,
        lease_s: float = LEASE_S,
    ) -> None:
        self.topic = topic
        self._log = log
        self._settings = settings
        self._wanted = None if is_reader else partitions
        self._is_reader = is_reader
        self._lease_s = lease_s
        self._layout: Layout | None = None
        self._trusted_until_s = 0.0
        self._routes: dict[str, Routed] = {}  # for the layout and the lease that we have
        self._ends: dict[int, PartitionEnd] = {}  # for the topic that we have
        self._reading = asyncio.Lock()
        self._is_warned = False
        self._is_writer = False
        self._is_lease_stored = False
        self._loading: asyncio.Task[Layout] | None = None
        self._asked_s = 0.0
        self._asked_as_writer = False
        self._asked_to_create = False
        self._from_log: tuple[tuple[Layout | None, str, int], Layout] | None = None
        self._is_shared = False
        self._shared_until_s = 0.0
        self._engine = ""

    @property
    def is_claimed(self) -> bool:
        """True if `check_unclaimed` would raise."""
        return self._engine != ""

    def check_unclaimed(self, operation: str) -> None:
        """Raise TopicClaimed if a command engine is the only writer of the topic, by what was read with the layout."""
        if self._engine:
            raise TopicClaimed(self.topic, self._engine, operation)

    @property
    def topic_id(self) -> str:
        """The topic's id as it was last read; empty before the layout was read."""
        return "" if self._layout is None else self._layout.topic_id

    async def layout(self, *, creates: bool = False) -> Layout:
        """Return the layout, at most a lease old. Calls that come while it is being read share that read.

        With `creates` a topic that does not exist is created, else UnknownTopic is raised.
        """
        if (known := self._fresh()) is not None:
            return known
        async with self._reading:
            if (known := self._fresh()) is not None:
                return known
            layout, trusted_until_s = await self._load_or_go_on(creates=creates)
            if layout.topic_id != self.topic_id:
                self._ends = {}
            self._layout, self._trusted_until_s = layout, trusted_until_s
            self._routes = {}
            return layout

    async def _load_or_go_on(self, *, creates: bool) -> tuple[Layout, float]:
        """Return the layout, and until when it can be trusted. The known one can be trusted longer if the log agrees.

        If the store does not answer in time, the read goes on in the background, and the next call joins it.
        """
        can_go_on = self._can_go_on()
        patience_s = _PATIENCE_S if can_go_on else None  # without another way the store has all its time
        if self._loading is not None and self._loading.done() and time.monotonic() > self._asked_s + self._lease_s:
            self._loading = None  # its caller was cancelled, or went on without it: the topic may have grown since
        if self._loading is None:
            self._asked_s, self._asked_as_writer, self._asked_to_create = time.monotonic(), self._is_writer, creates
            loading = self._load(creates=creates)
            self._loading = asyncio.get_running_loop().create_task(loading, name=f"headrace-layout-{self.topic}")
            self._loading.add_done_callback(_retrieve_error)
        elif can_go_on:
            patience_s = 0.0
        task, asked_s = self._loading, self._asked_s
        await asyncio.wait([task], timeout=patience_s)
        if not task.done():
            return await self._unchanged(TimedOut(f"reading the layout of topic {self.topic!r}", _PATIENCE_S))
        self._loading = None
        is_trusted = self._asked_as_writer or not self._is_writer  # else a call has asked for more than it reads
        try:
            return task.result(), asked_s + self._lease_s if is_trusted else 0.0
        except Unavailable as error:
            return await self._unchanged(error)
        except UnknownTopic:
            if not creates or self._asked_to_create:
                raise
        return await self._load_or_go_on(creates=creates)  # what was joined had been asked by one who only looks

    async def _unchanged(self, error: Unavailable) -> tuple[Layout, float]:
        """Return the known layout if the log has as many partitions as it says, else raise the error.

        Growth waits for the longest lease between adding partitions and the first mark of the new generation. Half of
        that time is trusted here; the other half is for brokers that learn of new partitions late. Growth does not
        wait for a writer whose lease is not stored yet, so such a writer gets the error too.
        """
        layout, asked_s = self._layout, time.monotonic()
        if layout is None or not self._can_go_on():
            raise error
        topic = await self._log.admin.describe(self.topic)
        if (topic.topic_id, topic.partitions) != (layout.topic_id, layout.partitions):
            raise error
        _logger.warning("layout not read; the log says that it is unchanged", topic=self.topic, error=str(error))
        return layout, asked_s + self._lease_s / 2

    def _can_go_on(self) -> bool:
        """Return True if the known layout may serve on while the store does not answer, as far as this client knows."""
        layout = self._layout
        return layout is not None and layout.growing_to is None and (not self._is_writer or self._is_lease_stored)

    async def refresh(self) -> Layout:
        """Read the layout again now."""
        self.doubt()
        return await self.layout()

    def doubt(self) -> None:
        """Trust nothing that is known: the topic may have grown, or may be another one of the same name."""
        self._trusted_until_s = 0.0
        self._ends = {}

    def end_of(self, at: TopicPartition) -> PartitionEnd:
        """Return what is known of a partition's end."""
        end = self._ends.get(at.partition)
        if end is None:
            end = self._ends[at.partition] = PartitionEnd()
        return end

    def _fresh(self) -> Layout | None:
        return self._layout if time.monotonic() <= self._trusted_until_s else None

    def routed(self, id_: str) -> Routed | None:
        """Return where to write a key's records if that is known without waiting, else None."""
        layout = self._layout
        if (
            not self._is_writer
            or layout is None
            or layout.growing_to is not None
            or time.monotonic() > self._trusted_until_s
        ):
            return None
        routed = self._routes.get(id_)
        if routed is None:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            routed = self._routes[id_] = self._route_of(id_, layout)
        return routed

    async def find_route(self, id_: str) -> Routed:
        """Return where to write a key's records; waits while the topic is growing."""
        if not self._is_writer:
            self._is_writer = True
            self._trusted_until_s = 0.0  # a layout is trusted for writing if the lease was stored before the read
        layout = await self.grown(creates=True)
        return self._route_of(id_, layout)

    def _route_of(self, id_: str, layout: Layout) -> Routed:
        at = layout.route(id_)
        return Routed(Route(at, layout.generation), self._trusted_until_s, self.end_of(at))

    async def is_stray(self, id_: str, routed: Routed, offset: int, *, before: int = -1) -> bool:
        """Return True if an acknowledged record does not count where it is.

        It lies behind a boundary that moved its key if the write took longer than the lease, or in a topic that was
        created again with other partitions. `before` is the partition's end that was known before the write. Waits
        while the topic is growing.
        """
        is_in_new_topic = not routed.end.rises(before, offset)
        if is_in_new_topic:
            self.doubt()
        elif time.monotonic() <= routed.safe_until_s:
            return False
        layout = await self.grown()
        at, generation = routed.route
        if layout.first_generation(at.partition) > generation:  # created again; where the record is may be unknown
            return is_in_new_topic and layout.route(id_) != at
        return not any(
            stay.at == at and stay.start <= offset and (stay.end is None or offset < stay.end)
            for stay in layout.stays(id_)
        )

    async def route(self, id_: str) -> Route:
        """Return where to write a key's records; waits while the topic is growing."""
        return (await self.find_route(id_)).route

    async def grown(self, *, creates: bool = False) -> Layout:
        """Return the layout, waiting until it is published if the topic is growing. `creates` is that of `layout`."""
        layout = await self.layout(creates=creates)
        deadline_s = time.monotonic() + _GROWTH_TIMEOUT_S
        while layout.growing_to is not None:
            if time.monotonic() > deadline_s:
                what = f"waiting for topic {self.topic!r} to grow to {layout.growing_to} partitions"
                raise TimedOut(f"{what} (is `headrace topic grow` still running?)", _GROWTH_TIMEOUT_S)
            await asyncio.sleep(_LOOK_AGAIN_S)
            layout = await self.refresh()
        return layout

    async def partitions(self) -> int:
        """Return the published number of partitions."""
        return (await self.layout()).partitions

    async def is_shared(self) -> bool:
        """Return True if the topic is declared as shared with other services; the answer is at most a lease old."""
        if (asked_s := time.monotonic()) > self._shared_until_s:
            self._is_shared = (await read_terms(self._settings, self.topic)).is_shared
            self._shared_until_s = asked_s + self._lease_s
        return self._is_shared

    async def _store_lease(self) -> None:
        """Store this client's lease, so that growth of the topic waits for it."""
        while self._lease_s > await longest_lease_s(self._settings, self.topic):
            stored = await self._settings.get(lease_key(self.topic))
            if self._lease_s > float(stored or 0.0):
                await self._settings.put(lease_key(self.topic), str(self._lease_s), expected=stored)

    async def _load(self, *, creates: bool) -> Layout:
        """Read the layout; store it if it is missing or if the topic was created again."""
        if self._is_writer and not self._is_reader:
            await self._store_lease()
            self._is_lease_stored = True
            self._engine = (await read_terms(self._settings, self.topic)).engine
        while True:
            stored = await self._settings.get(layout_key(self.topic))
            topic = await self._describe(creates=creates)
            await self._check(topic)
            known = _decode(stored) if stored is not None else None
            layout = await self._current(topic, known)
            if layout == known or self._is_reader:
                return layout
            encoded = msgspec.json.encode(layout).decode()
            if await self._settings.put(layout_key(self.topic), encoded, expected=stored):
                return layout

    async def _current(self, topic: Topic, known: Layout | None) -> Layout:
        """Return the layout of the topic as it is now; what the store lacks is read from the marks in the log."""
        if known is not None and known.topic_id != topic.topic_id:
            return known.recreated(topic.topic_id, topic.partitions)
        if known is not None and (known.growing_to is not None or known.partitions >= topic.partitions):
            return known
        asked = (known, topic.topic_id, topic.partitions)
        if self._from_log is None or self._from_log[0] != asked:  # this reads the whole log, so it is done once
            self._from_log = (asked, await layout_from_log(self._log, topic, known))
        return self._from_log[1]

    async def _check(self, topic: Topic) -> None:
        """Raise JournalTopicExpires for a topic that would lose records; log a warning, once, if it is shared."""
        reason = await check_topic(self._settings, topic) if self._wanted is not None else None
        if reason is not None and not self._is_warned:
            self._is_warned = True
            _logger.warning(
                "a shared journal topic drops records that are not replicated in time", topic=self.topic, reason=reason
            )

    async def _describe(self, *, creates: bool) -> Topic:
        try:
            return await self._log.admin.describe(self.topic)
        except UnknownTopic:
            if self._wanted is None or not creates:
                raise
        try:
            return await self._log.admin.create(self.topic, partitions=self._wanted, config=JOURNAL_TOPIC)
        except TopicExists:  # another process was faster
            return await self._log.admin.describe(self.topic)


def _retrieve_error(loading: asyncio.Task[Layout]) -> None:
    """Retrieve the error of a read that no call waits for, so that asyncio does not report it."""
    if not loading.cancelled():
        loading.exception()
