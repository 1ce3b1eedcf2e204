"""The read side of the embedded store: short read transactions in threads, counted and timed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.errors import Closed
from headrace.model import TopicPartition
from headrace.runtime import Clock
from headrace.sqlite import Readers
from headrace.store.embedded.columns import EVENT, HEAD, REPLICATED, Values, event_of, head_of, replicated_of
from headrace.store.embedded.schema import MAX_SEQ_NR
from headrace.store.limits import check_paging, check_share
from headrace.store.metrics import PAGES, REQUEST_SECONDS, REQUESTS
from headrace.store.rows import EventRow, HeadShare, JournalMeta, ReplicatedOffset, segment_of

__all__ = ["Access", "EmbeddedReader", "number_of"]

T = TypeVar("T")


class Access:
    """The readers of one open store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers = Readers(path)
        self.is_closed = False

    def check(self) -> None:
        """Raise Closed after the store was closed."""
        if self.is_closed:
            raise Closed(f"the store in {self._path.parent}")

    async def ask(self, operation: str, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query. It sees all that was committed before."""
        self.check()
        started_s, outcome = time.perf_counter(), "failed"
        try:
            answer = await self._readers.run(query)
            outcome = "done"
            return answer
        finally:
            REQUESTS.labels("embedded", operation, outcome).inc()
            REQUEST_SECONDS.labels("embedded", operation).observe(time.perf_counter() - started_s)

    def close(self) -> None:
        """Wait for running reads, then close the connections."""
        self._readers.close()


_REPLICATED = f"SELECT {', '.join(REPLICATED)} FROM replicated WHERE topic = ? AND partition = ?"  # noqa: S608
# An expired purge marker is kept for a while, to refuse late writers, but is not returned any more.
_HEADS = (
    f"SELECT id, number, {', '.join(HEAD)} FROM journals JOIN heads ON journal = number "  # noqa: S608
    "WHERE topic = ? AND (expires_ms IS NULL OR expires_ms > ?)"
)
_HEAD = f"{_HEADS} AND id = ?"
_IDS_AT_ONCE = 500
_HEADS_OF = f"{_HEADS} AND id IN ({', '.join('?' * _IDS_AT_ONCE)})"
_HEADS_PAGE = f"{_HEADS} AND id > ? AND partition = ifnull(?, partition) ORDER BY id LIMIT ?"
# The plus keeps SQLite from using the index of topics: it would go through all heads of the topic for each block.
_HEADS_OF_BLOCK = (
    f"{_HEADS.replace('topic =', '+topic =')} "
    "AND number BETWEEN ? AND ? AND partition = ifnull(?, partition) ORDER BY number"
)
_LAST_NUMBER = "SELECT ifnull(max(number), 0) FROM journals"
_EVENTS_PAGE = (
    f"SELECT {', '.join(EVENT)} FROM events "  # noqa: S608
    "WHERE journal = ? AND (segment, seq_nr, timestamp_ms) > (?, ?, ?) AND segment <= ? "
    "AND seq_nr BETWEEN ? AND ? AND segment = (seq_nr - 1) / ? "
    "ORDER BY segment, seq_nr, timestamp_ms LIMIT ?"
)

_NO_TIME_LATER = (1 << 63) - 1
# Shares take turns at blocks of this many journals, so that it does not matter which journals are added meanwhile.
_BLOCK = 1000


class EmbeddedReader:
    """The embedded store's StoreReader."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock

    async def replicated(self, at: TopicPartition) -> ReplicatedOffset | None:
        """Return a partition's replicated offset."""
        row = await self._access.ask("read replicated", lambda db: db.execute(_REPLICATED, at).fetchone())
        return None if row is None else replicated_of(row)

    async def meta(self, topic: str, id_: str) -> JournalMeta | None:
        """Return a journal's head, or its purge marker."""
        asked = (topic, self._clock.now_ms(), id_)
        row = await self._access.ask("read meta", lambda db: db.execute(_HEAD, asked).fetchone())
        return None if row is None else head_of(topic, id_, row[2:])

    async def metas_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, JournalMeta]:
        """Return the heads or purge markers of many journals, all from one state of the file."""
        query = partial(_heads_of, topic=topic, ids=ids, now_ms=self._clock.now_ms())
        found = await self._access.ask("read metas of", query) if ids else ()
        return {row[0]: head_of(topic, row[0], row[2:]) for row in found}

    async def rows(
        self, topic: str, id_: str, *, segment_size: int, first: int, last: int, page_size: int = 500
    ) -> AsyncIterator[Sequence[EventRow]]:
        """Yield pages of rows, ascending."""
        check_paging(segment_size=segment_size, page_size=page_size)
        first, last = max(first, 1), min(last, MAX_SEQ_NR)
        after = (segment_of(first, segment_size), first - 1, _NO_TIME_LATER)
        bounds = (segment_of(last, segment_size), first, last, segment_size, page_size)
        while True:
            asked = (*after, *bounds)
            page = await self._access.ask("read rows", partial(_events, topic=topic, id_=id_, asked=asked))
            PAGES.labels("embedded", "journal").inc()
            if page:
                yield page
            if len(page) < page_size:
                return
            after = (page[-1].segment, page[-1].seq_nr, page[-1].timestamp_ms)

    async def topics(self) -> Sequence[str]:
        """List the topics with a replicated offset."""
        query = "SELECT DISTINCT topic FROM replicated ORDER BY topic"
        rows = await self._access.ask("read topics", lambda db: db.execute(query).fetchall())
        return [topic for (topic,) in rows]

    async def metas(
        self, topic: str, *, partition: int | None = None, share: HeadShare | None = None, page_size: int = 500
    ) -> AsyncIterator[Sequence[JournalMeta]]:
        """Yield pages of heads."""
        check_paging(segment_size=1, page_size=page_size)
        check_share(share)
        found = self._all_heads(topic, partition, page_size)
        if share is not None:
            found = self._heads_of(share, topic, partition)
        async for rows in found:
            PAGES.labels("embedded", "metajournal").inc()
            for start in range(0, len(rows), page_size):
                yield [head_of(topic, row[0], row[2:]) for row in rows[start : start + page_size]]

    async def _all_heads(self, topic: str, partition: int | None, page_size: int) -> AsyncIterator[list[Values]]:
        after = ""
        while True:
            asked = (topic, self._clock.now_ms(), after, partition, page_size)
            found = await self._access.ask("read metas", partial(_heads, query=_HEADS_PAGE, asked=asked))
            yield found
            if len(found) < page_size:
                return
            after = found[-1][0]

    async def _heads_of(self, share: HeadShare, topic: str, partition: int | None) -> AsyncIterator[list[Values]]:
        last = await self._access.ask("read metas", lambda db: db.execute(_LAST_NUMBER).fetchone()[0])
        for first in range(share.number * _BLOCK, last + 1, share.of * _BLOCK):
            asked = (topic, self._clock.now_ms(), first, first + _BLOCK - 1, partition)
            yield await self._access.ask("read metas", partial(_heads, query=_HEADS_OF_BLOCK, asked=asked))


def number_of(db: sqlite3.Connection, topic: str, id_: str) -> int | None:
    """Return a journal's number, if it has one."""
    row = db.execute("SELECT number FROM journals WHERE topic = ? AND id = ?", (topic, id_)).fetchone()
    return None if row is None else int(row[0])


def _events(db: sqlite3.Connection, topic: str, id_: str, asked: tuple[int, ...]) -> list[EventRow]:
    number = number_of(db, topic, id_)
    return [] if number is None else [event_of(row) for row in db.execute(_EVENTS_PAGE, (number, *asked))]


def _heads_of(db: sqlite3.Connection, topic: str, ids: Sequence[str], now_ms: int) -> list[Values]:
    found: list[Values] = []
    for start in range(0, len(ids), _IDS_AT_ONCE):
        some = ids[start : start + _IDS_AT_ONCE]
        found += db.execute(_HEADS_OF, (topic, now_ms, *some, *[None] * (_IDS_AT_ONCE - len(some))))
    return found


def _heads(db: sqlite3.Connection, query: str, asked: tuple[object, ...]) -> list[Values]:
    return db.execute(query, asked).fetchall()
