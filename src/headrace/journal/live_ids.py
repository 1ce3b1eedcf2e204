"""The ids of a topic's journals without an end: those that exist, and then each new one as it is begun.

A journal that was not given yet does not exist at the place that was read: the list shows all that existed when it was
made, and everything behind it is read in order. So an append that expects no number begins the journal, and neither the
store nor the rest of the log must be asked, unless the append was first tried before the list began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping

from headrace.errors import JournalHeld, OffsetOutOfRange, Unavailable, UnknownTopic
from headrace.journal.ids import JournalIds
from headrace.journal.read import JournalReader
from headrace.journal.topology import Topology
from headrace.log import Log
from headrace.model import Batch, TopicPartition
from headrace.observe import get_logger
from headrace.protocol import Append, Delete, Entry, Layout, Mark, Purge, bare_entries, exists, next_generation
from headrace.runtime import Backoff
from headrace.store import Place

__all__ = ["LiveIds"]

_logger = get_logger(__name__)

_AGAIN = Backoff(first_s=0.05, limit_s=5.0)
_NO_TOPIC = Backoff(first_s=0.05, limit_s=1.0)
_AHEAD = 100


class LiveIds:
    """Lists the journals of one topic, and continues with new ones."""

    def __init__(self, log: Log, topology: Topology, ids: JournalIds, reader: JournalReader) -> None:
        self._log = log
        self._topology = topology
        self._ids = ids
        self._reader = reader

    async def all(self) -> AsyncGenerator[str, None]:
        """Yield each id once, forever; outages of the log and the store are waited for."""
        given: set[str] = set()
        attempt = 0
        while True:
            try:
                async with contextlib.aclosing(self._list_and_follow(given)) as found:
                    async for id_ in found:
                        attempt = 0
                        yield id_
                await self._topology.refresh()
                delay_s = 0.0
            except UnknownTopic:
                delay_s = _NO_TOPIC.delay_s(attempt + 1)
            except Unavailable as error:
                delay_s = _AGAIN.delay_s(attempt + 1)
                _logger.warning(
                    "live list of journals goes on later",
                    topic=self._topology.topic,
                    error=str(error),
                    retry_in_s=delay_s,
                )
            attempt += 1
            await asyncio.sleep(delay_s)

    async def _list_and_follow(self, given: set[str]) -> AsyncGenerator[str, None]:
        """Yield the ids that were not given yet; ends if they must be listed again."""
        layout = await self._topology.grown()
        places = [TopicPartition(layout.topic, partition) for partition in range(layout.partitions)]
        starts = {at: (await self._log.bounds(at)).high_watermark for at in places}
        if await self._topology.refresh() != layout:  # the starts may lie behind boundaries, which show the growth
            return
        async with contextlib.aclosing(self._ids.all()) as listed:
            async for id_ in listed:
                if id_ not in given:
                    given.add(id_)
                    yield id_
        queue: asyncio.Queue[Entry | BaseException | None] = asyncio.Queue(_AHEAD)
        tasks = [
            asyncio.create_task(self._follow(layout, at, starts[at], given, queue), name=f"headrace-live-ids-{at}")
            for at in places
        ]
        begun = _Begun(layout, starts)
        try:
            while (entry := await queue.get()) is not None:
                if isinstance(entry, BaseException):
                    raise entry
                if entry.id not in given and await self._is_begun(entry, begun):
                    given.add(entry.id)
                    yield entry.id
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_begun(self, entry: Entry, begun: _Begun) -> bool:
        """Return True if an action of a journal that does not exist begins it."""
        if begun.knows(entry):
            return begun.take(entry)
        with contextlib.suppress(JournalHeld):
            return exists((await self._reader.view(entry.id)).meta)
        return begun.take(entry)

    async def _follow(
        self,
        layout: Layout,
        at: TopicPartition,
        start: int,
        given: set[str],
        queue: asyncio.Queue[Entry | BaseException | None],
    ) -> None:
        """Put the actions of journals that were not given into the queue, in order; None if the topic has grown."""
        try:
            async for batch in self._log.read(at, start, headers_only=True):
                for entry in _candidates(batch, layout, at, given):
                    await queue.put(entry)
                    if entry is None:
                        return
        except OffsetOutOfRange:  # retention was faster than the caller: the store has it
            await queue.put(None)
        except Exception as error:
            await queue.put(error)


class _Begun:
    """Finds out which actions begin a journal, among those of journals that do not exist.

    A purge makes an append void that was first tried before it. All purges since `starts` are seen here.
    """

    def __init__(self, layout: Layout, starts: Mapping[TopicPartition, int]) -> None:
        self._layout = layout
        self._starts = starts
        self._purged: dict[str, Place] = {}

    def knows(self, entry: Entry) -> bool:
        """Return False if a purge that was not seen here may have made the action void."""
        action = entry.action
        if not isinstance(action, Append) or action.since is None:
            return True
        start = self._starts[TopicPartition(entry.topic, entry.partition)]
        return action.since >= Place(self._layout.generation, start)

    def take(self, entry: Entry) -> bool:
        """Return True if the action begins its journal."""
        action = entry.action
        if isinstance(action, Purge):
            self._purged[entry.id] = entry.place
            return False
        if not isinstance(action, Append):
            return True
        purged = self._purged.get(entry.id)
        is_purged_since = action.since is not None and purged is not None and purged >= action.since
        return action.expected in (None, 0) and not is_purged_since


def _candidates(batch: Batch, layout: Layout, at: TopicPartition, given: set[str]) -> list[Entry | None]:
    """Return the actions that may begin a journal; None at the end if the keys move to other partitions there."""
    found: list[Entry | None] = []
    generation = layout.generation
    for entry in bare_entries(batch.records, generation):
        action = entry.action
        if isinstance(action, Mark):
            if next_generation(generation, action) > generation:
                return [*found, None]
        elif _may_begin(entry) and entry.id not in given and layout.is_home(entry.id, generation, at):
            found.append(entry)
    return found


def _may_begin(entry: Entry) -> bool:
    action = entry.action
    return isinstance(action, Append | Purge) or (isinstance(action, Delete) and action.incarnation is None)
