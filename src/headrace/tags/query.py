"""Queries by tag: each event once, in order, from any offset on, with or without an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from headrace.config import TagSettings
from headrace.errors import BadArgument, OffsetOutOfRange, TagBuilding, Unavailable, UnknownTopic
from headrace.journal import wait_until_replicated
from headrace.log import Log, wait_for_token
from headrace.model import ConsistencyToken
from headrace.observe import get_logger
from headrace.protocol import check_tag
from headrace.runtime import SYSTEM_CLOCK, Backoff
from headrace.store import Store
from headrace.tags.events import After, TaggedEvent, TagOffset, after_of
from headrace.tags.floors import Floors
from headrace.tags.followed import MergeSources
from headrace.tags.gaps import GapSearch, Sequences, lowest_numbers
from headrace.tags.marks import Marker
from headrace.tags.merge import Merge
from headrace.tags.metrics import DELIVERED
from headrace.tags.partitions import SharedPartitions
from headrace.tags.registry import TagRegistry, ViewsReplaced, check_filled
from headrace.tags.seams import Announcements, QueryEnd, Seam, SeamOutdated, SeamReader
from headrace.tags.several import NO_WATCH, PlaceWatch, check_names_event, merge_tags
from headrace.tags.view_rows import ViewRows, check_not_trimmed, read_trimmed

__all__ = ["TagQueries"]

_logger = get_logger(__name__)

_DAY_MS = 86_400_000
_TOKEN_TIMEOUT_S = 70.0  # as for reads: how long a transaction lasts, and how often brokers look for expired ones
_AGAIN = Backoff(first_s=0.1, limit_s=5.0)


class TagQueries:
    """The queries of one process; they share the Marks they write and what they read of each partition.

    Promises: every event that counts, once, in the order (log time, topic, partition, offset); a query that resumes
    from an event's offset gets what comes after it, whatever was replicated, written or restarted meanwhile.
    Does not promise: anything above the place that every partition has been read up to.
    """

    def __init__(self, log: Log, store: Store, settings: TagSettings, *, read_only: bool = False) -> None:
        self._log = log
        self._store = store
        self._settings = settings
        self._registry = TagRegistry(store, settings)
        self._floors = Floors(store, self._registry, log)
        self._seams = SeamReader(log, store, self._registry, self._floors)
        self._marker = Marker(log, gather_s=settings.gather_ms / 1000, is_reader=read_only)
        self._silent_marker = Marker(log, is_reader=True)
        partitions = SharedPartitions(log, store, self._marker)
        announcements = Announcements(self._seams.announced, partitions.read_up_to)
        self._sources = MergeSources(
            log, store, self._seams, self._floors, partitions, announcements, self._registry.bucket, settings
        )

    def events(
        self,
        tag: str | Sequence[str],
        *,
        after: After = None,
        live: bool = False,
        read_only: bool = False,
        skip_trimmed: bool = False,
        at_least: str | None = None,
    ) -> AsyncGenerator[TaggedEvent, None]:
        """Yield a tag's events after an offset: those that exist now, or with `live` also all that come.

        With several tags, all their events come in one order, each once; `tag` and `number` of an event are those of
        the first of the given tags that it has.

        `after` is an event's `tag_offset`, its text, or a time (whose events are included); None gives all events.
        At most a page is fetched ahead. With `read_only` no Marks are written, and events wait until other processes
        write into idle partitions. A live query continues automatically after any outage of the log or the store.
        TagTrimmed is raised if events after the offset were removed because of their age; with `skip_trimmed` the
        query begins behind them. With the consistency token `at_least` it does not end before the records that the
        token names, also if open transactions hide them at first.
        Raises TagsDisabled, WrongBucketSize, TagViewsLost, TagGap, TagBuilding, TagTrimmed; for the token BadToken,
        TokenOfOtherTopic, TokenAhead, TimedOut.
        """
        if at_least is not None:
            found = self.events(tag, after=after, live=live, read_only=read_only, skip_trimmed=skip_trimmed)
            return self._once_visible(ConsistencyToken.parse(at_least), found)
        tags, start = _tags_of(tag), after_of(after)
        if len(tags) == 1:
            return self.watched(tags[0], start, NO_WATCH, live=live, read_only=read_only, skip_trimmed=skip_trimmed)
        check_names_event(start)
        query = partial(self.watched, live=live, read_only=read_only, skip_trimmed=skip_trimmed)
        return merge_tags(tags, start, query)

    def watched(
        self,
        tag: str,
        after: TagOffset | None,
        watch: PlaceWatch,
        *,
        live: bool,
        read_only: bool = False,
        skip_trimmed: bool = False,
    ) -> AsyncGenerator[TaggedEvent, None]:
        """Yield a tag's events for a query of several tags, which asks through the watch how far this one is."""
        marker = self._silent_marker if read_only else self._marker
        return _Query(self, tag, after, marker, is_live=live, watch=watch, skips_trimmed=skip_trimmed).events()

    async def _replicated(self, token: str | None) -> None:
        if token is not None:
            parsed = ConsistencyToken.parse(token)
            await wait_until_replicated(self._log, self._store, parsed, timeout_s=_TOKEN_TIMEOUT_S)

    async def _once_visible(
        self, token: ConsistencyToken, events: AsyncGenerator[TaggedEvent, None]
    ) -> AsyncGenerator[TaggedEvent, None]:
        """Yield the events of a query that begins, and so looks for the log's ends, when a token can be seen."""
        async with contextlib.aclosing(events):
            await wait_for_token(self._log, token, timeout_s=_TOKEN_TIMEOUT_S)
            async for event in events:
                yield event

    async def tags(self, *, at_least: str | None = None) -> list[str]:
        """Return all tags of replicated events; `at_least` is a token that is waited for until it is replicated."""
        await self._registry.open()
        await self._replicated(at_least)
        return list(await self._store.tags.views.tags())

    async def tags_of(self, topic: str, id_: str, *, at_least: str | None = None) -> dict[str, int]:
        """Return the tags of a journal's replicated events, with the number of events of each.

        `at_least` is a token that is waited for until it is replicated.
        """
        await self._registry.open()
        await self._replicated(at_least)
        numbers = await self._store.tags.numbers.of(topic, id_)
        return {tag: numbers[tag].number for tag in sorted(numbers)}


class _Query:
    """One query: where it is, and which numbers it has seen."""

    def __init__(
        self,
        queries: TagQueries,
        tag: str,
        after: TagOffset | None,
        marker: Marker,
        *,
        is_live: bool,
        watch: PlaceWatch = NO_WATCH,
        skips_trimmed: bool = False,
    ) -> None:
        self._watch = watch
        self._skips_trimmed = skips_trimmed
        self._log = queries._log  # noqa: SLF001 - a part of it
        self._store = queries._store  # noqa: SLF001
        self._settings = queries._settings  # noqa: SLF001
        self._seams = queries._seams  # noqa: SLF001
        self._sources = queries._sources  # noqa: SLF001
        self._marker = marker
        self._bucket = queries._registry.bucket  # noqa: SLF001
        self._tag = tag
        self._after = after
        self._is_live = is_live
        self._sequences = Sequences(from_start=after is None)
        self._gaps = GapSearch(self._store.tags, self._bucket, tag, self._settings, self._sequences)
        self._end: QueryEnd | None = None
        self._seam: Seam | None = None  # the last one that was read

    async def events(self) -> AsyncGenerator[TaggedEvent, None]:
        """Yield events. A live query waits until the log and the store are back, however long that takes."""
        attempt = 0
        while True:
            try:
                async with contextlib.aclosing(self._events()) as events:
                    async for event in events:
                        attempt = 0
                        yield event
                return
            except (Unavailable, UnknownTopic) as error:
                if not self._is_live or isinstance(error, TagBuilding):
                    raise
                attempt += 1
                delay_s = _AGAIN.delay_s(attempt)
                _logger.warning("query by tag goes on later", tag=self._tag, error=str(error), retry_in_s=delay_s)
            await asyncio.sleep(delay_s)

    async def _events(self) -> AsyncGenerator[TaggedEvent, None]:
        """Yield events: from the views while there are many, then from the views and the log together."""
        async with contextlib.aclosing(self._batches()) as batches:
            async for batch in batches:
                for event in batch:
                    if self._sequences.follows(event):
                        self._after = event.tag_offset
                        yield event
                        continue
                    async for each in self._gaps.in_sequence(event):
                        if each.tag_offset < event.tag_offset and (not self._after or each.tag_offset > self._after):
                            self._after = each.tag_offset  # a query that starts again must not give it twice
                        yield each
                    self._after = event.tag_offset

    async def _batches(self) -> AsyncGenerator[list[TaggedEvent], None]:
        if self._seam is None:
            seam = await self._begin()
            await self._check_after(seam)
        else:
            seam = await self._next_seam(self._seam)
        self._seam = seam
        while True:
            rows = self._rows(seam)
            async with contextlib.aclosing(rows):
                count = 0
                while batch := await rows.take(seam.horizon):
                    count += len(batch)
                    DELIVERED.labels("views").inc(len(batch))
                    yield batch
                if not self._watch.keeps_query and self._is_complete(seam) and not await rows.has_due():
                    return
                if count <= self._settings.page_size:  # else the seam has moved on meanwhile
                    try:
                        async with contextlib.aclosing(self._merge(seam, rows).batches()) as merged:
                            async for batch in merged:
                                DELIVERED.labels("merged").inc(len(batch))
                                yield batch
                        return
                    except OffsetOutOfRange as error:
                        if error.offset >= error.start and await self._seams.is_there(seam.layouts[error.topic]):
                            raise
                        _logger.info("retention overtook a query by tag; back to the views", tag=self._tag)
                    except (ViewsReplaced, SeamOutdated) as reason:
                        _logger.info("a query by tag goes back to the views", tag=self._tag, why=type(reason).__name__)
            seam = self._seam = await self._next_seam(seam)

    async def _read_seam(self) -> Seam:
        """Read the seam. If the tag was back-filled, the views hold everything up to the cut, so the seam must too."""
        while True:
            seam = await self._seams.read()
            check_filled(seam.facts.fills, self._tag)
            fill = seam.facts.fills.get(self._tag)
            if fill is None or all(known.place >= (fill.cut_of(known.at) or known.place) for known in seam.live):
                return seam

    async def _check_after(self, seam: Seam) -> None:
        """Raise BadArgument for an offset of an event that the log never held: the events below it would be missed."""
        after = self._after
        if after is None or after.partition < 0:  # a time
            return
        latest_ms = max(seam.highest_ms, SYSTEM_CLOCK.now_ms()) + _DAY_MS  # clocks differ
        if after.log_time_ms > latest_ms or not await self._was_held(seam, after):
            raise BadArgument(
                "after", str(after), "it is not of an event that this log has held; give one that it gave"
            )

    async def _was_held(self, seam: Seam, after: TagOffset) -> bool:
        """Return True if the log can have held the record of an offset; also if the topic was created again since."""
        at = seam.place_of(after)
        if at is None or at.topic in seam.gone or seam.layouts[at.topic].generation > 0:
            return at is not None
        end = await self._seams.end(at) if at in seam.partitions else 0
        return end is None or after.offset < end

    async def _next_seam(self, before: Seam) -> Seam:
        """Read the seam again. If the views were replaced, forget the numbers that were seen in the old ones."""
        seam = await self._read_seam()
        check_filled(seam.facts.fills, self._tag, before=before.facts.fills)
        if seam.facts.epoch != before.facts.epoch:
            self._sequences.restart()
            await self._find_place(seam)
        await self._check_trimmed(self._after)
        return seam

    async def _find_place(self, seam: Seam) -> None:
        """Find the event that the query resumes from: its number may have changed since it was given.

        Only rows that the seam covers count: others may not be written yet.
        """
        after = self._after
        if after is not None and after.number > 0:
            start_ms = self._bucket.start_of(after.log_time_ms)
            pages = self._store.tags.views.read(self._tag, start_ms, first=after.time, last=after.time)
            rows = [row async for page in pages for row in page if seam.covers(row)]
            self._after = after.renumbered((row.number, row.seq_nr) for row in rows)

    async def _begin(self) -> Seam:
        """Read the seam and, for a query with an end, the ends; scan if the offset is in the current bucket."""
        seam = await self._read_seam()
        await self._find_place(seam)
        if self._skips_trimmed:
            await self._skip_trimmed()
        await self._check_trimmed(self._after)
        if not self._is_live:
            ends = {known.at: (await self._log.bounds(known.at)).end for known in seam.live}
            self._end = QueryEnd(ends, seam)
        after, now_ms = self._after, seam.highest_ms
        if after is not None and self._bucket.start_of(after.log_time_ms) >= self._bucket.start_of(now_ms):
            async with contextlib.aclosing(self._rows(seam)) as rows:
                self._sequences.expect(await lowest_numbers(rows))
        return seam

    def _rows(self, seam: Seam) -> ViewRows:
        return ViewRows(
            self._store.tags.views,
            self._bucket,
            self._tag,
            seam,
            after=self._after,
            end=self._end,
            page_size=self._settings.page_size,
            check=self._check_trimmed,
        )

    async def _check_trimmed(self, place: TagOffset | None) -> None:
        """Raise TagTrimmed if events after a place, from which a page was just read, have been removed."""
        check_not_trimmed(await read_trimmed(self._store.settings, self._tag), self._tag, place)

    async def _skip_trimmed(self) -> None:
        """Begin behind what was removed if the caller wants that; numbers of removed events are not expected."""
        known = await read_trimmed(self._store.settings, self._tag)
        if known is not None and (self._after is None or not self._after.covers(known.place)):
            self._after = known.place
            self._sequences.restart()

    def _is_complete(self, seam: Seam) -> bool:
        """Return True if the views hold everything that a query with an end should give."""
        end = self._end
        return end is not None and all(known.place.offset + 1 >= end.offset_of(known.at, seam) for known in seam.live)

    def _merge(self, seam: Seam, rows: ViewRows) -> Merge:
        end = self._end
        until = None if end is None else {known.at: end.offset_of(known.at, seam) for known in seam.live}
        return Merge(
            self._sources, self._tag, self._marker, seam, rows, after=self._after, until=until, watch=self._watch
        )


def _tags_of(tag: str | Sequence[str]) -> list[str]:
    """Return the given tags, each once. Raises BadArgument."""
    tags = [tag] if isinstance(tag, str) or not isinstance(tag, Sequence) else list(tag)
    if not tags:
        raise BadArgument("tag", tag, "a query needs a tag, or several")
    return list(dict.fromkeys(check_tag(each) for each in tags))
