"""Which partition holds a key, by the topic's published layout.

The layout is kept in the store, for all processes. A client trusts what it read for the length of a lease and looks
again before it writes after that, so that a topic that began to grow one lease ago is written to by nobody. While the
store does not answer, a client goes on with the layout it has as long as the log has no partition more than that says.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import msgspec

from headrace.errors import TimedOut, TopicExists, Unavailable, UnknownTopic
from headrace.journal.layout import Generation, Layout
from headrace.log import Log
from headrace.model import Topic, TopicConfig, TopicPartition
from headrace.observe import get_logger
from headrace.store import Settings

__all__ = ["JOURNAL_TOPIC", "LEASE_S", "Route", "Routed", "Topology", "layout_key"]

# Old records go by time; the embedded log waits until the store has them.
JOURNAL_TOPIC = TopicConfig(keep_until_released=True)
LEASE_S = 5.0

_ROUTES_KEPT = 65_536
_GROWTH_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.1
_PATIENCE_S = 1.0

_logger = get_logger(__name__)

_decode = msgspec.json.Decoder(Layout).decode


class Route(NamedTuple):
    """Where a key's records go, and in which generation."""

    at: TopicPartition
    generation: int


class Routed(NamedTuple):
    """A route, and until when nobody can have written a boundary before it."""

    route: Route
    safe_until_s: float


def layout_key(topic: str) -> str:
    """Return the name of the setting that holds a topic's layout."""
    return f"topic/{topic}"


class Topology:
    """The layout of one topic.

    A topic that is not there is made, with `partitions`, unless that is None. With `is_reader` nothing is written.
    """

    def __init__(
        self,
        log: Log,
        settings: Settings,
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
        self._routes: dict[str, Routed] = {}  # of the layout, and for the lease, that we have
        self._reading = asyncio.Lock()
        self._loading: asyncio.Task[Layout] | None = None
        self._asked_s = 0.0

    async def layout(self) -> Layout:
        """Return the layout, at most a lease old. Who comes while it is being read waits for that reading."""
        if (known := self._fresh()) is not None:
            return known
        async with self._reading:
            if (known := self._fresh()) is not None:
                return known
            layout, trusted_until_s = await self._load_or_go_on()
            self._layout, self._trusted_until_s = layout, trusted_until_s
            self._routes = {}
            return layout

    async def _load_or_go_on(self) -> tuple[Layout, float]:
        """Return the layout, and until when it can be trusted. What is known is good for longer if the log says so.

        A store that does not answer is asked on meanwhile; nobody waits for it twice.
        """
        is_known = self._layout is not None
        patience_s = _PATIENCE_S if is_known else None
        if self._loading is None:
            self._asked_s = time.monotonic()
            self._loading = asyncio.get_running_loop().create_task(self._load(), name=f"headrace-layout-{self.topic}")
            self._loading.add_done_callback(_look)
        elif is_known:
            patience_s = 0.0
        loading, asked_s = self._loading, self._asked_s
        await asyncio.wait([loading], timeout=patience_s)
        if not loading.done():
            return await self._unchanged(TimedOut(f"reading the layout of topic {self.topic!r}", _PATIENCE_S))
        self._loading = None
        try:
            return loading.result(), asked_s + self._lease_s
        except Unavailable as error:
            return await self._unchanged(error)

    async def _unchanged(self, error: Unavailable) -> tuple[Layout, float]:
        """Return the known layout if the log has as many partitions as it says, else raise the error.

        Whoever grows a topic waits for a lease between adding partitions and the first mark of the new generation.
        Half of that is trusted here, the other half is for brokers that hear of partitions later.
        """
        layout, asked_s = self._layout, time.monotonic()
        if layout is None or layout.growing_to is not None:
            raise error
        topic = await self._log.admin.describe(self.topic)
        if (topic.topic_id, topic.partitions) != (layout.topic_id, layout.partitions):
            raise error
        _logger.warning("layout not read; the log says that it is unchanged", topic=self.topic, error=str(error))
        return layout, asked_s + self._lease_s / 2

    async def refresh(self) -> Layout:
        """Look again at once."""
        self._trusted_until_s = 0.0
        return await self.layout()

    def _fresh(self) -> Layout | None:
        return self._layout if time.monotonic() <= self._trusted_until_s else None

    def routed(self, id_: str) -> Routed | None:
        """Return where to write a key's records if that is known without waiting."""
        layout = self._layout
        if layout is None or layout.growing_to is not None or time.monotonic() > self._trusted_until_s:
            return None
        routed = self._routes.get(id_)
        if routed is None:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            routed = self._routes[id_] = Routed(Route(layout.route(id_), layout.generation), self._trusted_until_s)
        return routed

    async def find_route(self, id_: str) -> Routed:
        """Return where to write a key's records; waits while the topic is growing."""
        layout = await self.grown()
        return Routed(Route(layout.route(id_), layout.generation), self._trusted_until_s)

    async def is_stray(self, id_: str, routed: Routed, offset: int) -> bool:
        """Say whether an acknowledged record landed behind a boundary that moved its key: it counts for nothing there.

        That can be when it took longer than the lease to get into the log. Waits while the topic is growing.
        """
        if time.monotonic() <= routed.safe_until_s:
            return False
        layout = await self.grown()
        at, generation = routed.route
        if layout.first_generation(at.partition) > generation:  # the topic was deleted: nobody knows
            return False
        return not any(
            stay.at == at and stay.start <= offset and (stay.end is None or offset < stay.end)
            for stay in layout.stays(id_)
        )

    async def route(self, id_: str) -> Route:
        """Return where to write a key's records; waits while the topic is growing."""
        return (await self.find_route(id_)).route

    async def grown(self) -> Layout:
        """Return the layout, waiting until it is published if the topic is growing."""
        layout = await self.layout()
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

    async def _load(self) -> Layout:
        """Read the layout; write it where it is missing or of a topic that is gone."""
        while True:
            stored = await self._settings.get(layout_key(self.topic))
            topic = await self._describe()
            layout = _decode(stored) if stored is not None else None
            if layout is not None and layout.topic_id == topic.topic_id:
                return layout
            if layout is None:
                layout = Layout(self.topic, topic.topic_id, (Generation(topic.partitions),))
            else:
                layout = layout.made_anew(topic.topic_id, topic.partitions)
            encoded = msgspec.json.encode(layout).decode()
            if self._is_reader or await self._settings.put(layout_key(self.topic), encoded, expected=stored):
                return layout

    async def _describe(self) -> Topic:
        try:
            return await self._log.admin.describe(self.topic)
        except UnknownTopic:
            if self._wanted is None:
                raise
        try:
            return await self._log.admin.create(self.topic, partitions=self._wanted, config=JOURNAL_TOPIC)
        except TopicExists:  # another process was quicker
            return await self._log.admin.describe(self.topic)


def _look(loading: asyncio.Task[Layout]) -> None:
    """Look at the error of a reading that nobody waited for, so that asyncio does not report it."""
    if not loading.cancelled():
        loading.exception()
