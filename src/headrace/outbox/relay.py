"""The relay: workers that send what applications have committed."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from types import TracebackType

from sqlalchemy.exc import DBAPIError

from headrace.errors import BadArgument, HeadraceError, TimedOut
from headrace.log import Log
from headrace.observe import Health, get_logger
from headrace.outbox.databases import Database
from headrace.outbox.dispatching import Dispatcher
from headrace.outbox.engines import DatabaseAddress, url_of
from headrace.outbox.exactly_once import ExactlyOnce
from headrace.outbox.leases import LaneLeases, LeaseTimes
from headrace.outbox.log_lines import Showing, tell_unheard
from headrace.outbox.places import Lanes
from headrace.outbox.ports import MessageDecoder
from headrace.outbox.rows import MessageRows
from headrace.outbox.schema import need_newest, version_in
from headrace.outbox.send import AtLeastOnce, Sender
from headrace.outbox.sent import forget_sent
from headrace.outbox.settings import OutboxSettings
from headrace.outbox.stats import is_empty, pending, show_pending
from headrace.outbox.turns import Parts, Turn
from headrace.outbox.wake import listen, listening, listening_url, stop_listening
from headrace.runtime import Backoff, Supervisor

__all__ = ["Relay", "checked_threads"]

_logger = get_logger(__name__)

_FORGETTING_S = 60.0
_RESTARTS = Backoff(first_s=0.1, limit_s=5.0)


class Relay:
    """Sends the messages of one database to one log, while it runs.

    Promises: a committed message reaches the log at least once (exactly once, for readers of committed records, where
    the settings say so), those of one key in the order of their ids; nothing is deleted that was not acknowledged.
    A crash, of a worker or of the process, and a database or a log that is away are followed by going on.
    Does not promise: an order between keys.
    """

    def __init__(
        self,
        database: DatabaseAddress,
        log: Log,
        *,
        settings: OutboxSettings | None = None,
        decoder: MessageDecoder | None = None,
        health: Health | None = None,
    ) -> None:
        self.settings = settings = settings or OutboxSettings()
        self._threads = checked_threads(settings)
        self._url = url_of(database)
        self._database = Database(
            database,
            threads=2 * self._threads + 2,
            patience_s=settings.lease_s,
            table_prefix=settings.table_prefix,
        )
        self._is_stopping = False
        self.workers = tuple(str(uuid.uuid4()) for _ in range(self._threads))
        times = LeaseTimes.of(settings.lease_s, max(settings.first_retry_s, settings.max_retry_s))
        rows = MessageRows(
            self._database,
            batch_size=settings.batch_size,
            batch_bytes=settings.batch_bytes,
            keeps_sent=settings.keeps_sent,
        )
        self._parts = Parts(
            LaneLeases(self._database, lease_s=settings.lease_s, owners=self.workers, times=times),
            rows,
            _sender(log, rows, settings),
            settings,
            Showing(settings.log_topics, decoder),
            lambda: self._is_stopping,
        )
        self._dispatcher = Dispatcher(
            Lanes(self._database),
            poll_interval_s=settings.poll_interval_s,
            times=times,
            owners=self.workers,
        )
        self.health = health or Health("outbox")
        self._working = Supervisor("outbox-workers", health=self.health)
        self._helping = Supervisor("outbox-helpers", health=self.health)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Begin to send. Does not wait for the database: when it is away the relay waits for it."""
        self._loop = asyncio.get_running_loop()
        for worker in self.workers:
            turn = Turn(self._parts, worker)
            self._working.add(f"outbox-{worker[:8]}", lambda turn=turn: self._work(turn), backoff=_RESTARTS)  # type: ignore[misc]
        self._helping.add("outbox-dispatcher", self._dispatch, backoff=_RESTARTS)
        self._helping.add("outbox-metrics", self._measure, backoff=_RESTARTS)
        if self.settings.keep_sent_topics:
            self._helping.add("outbox-forgetting", self._forget_sent, backoff=_RESTARTS)
        if self._url.get_backend_name() == "postgresql":
            self._helping.add("outbox-listener", lambda: listen(self._url, self._dispatcher.wake), backoff=_RESTARTS)
        listening(listening_url(self._url), self.wake)
        await self._working.start()
        await self._helping.start()

    def wake(self) -> None:
        """Look for messages now; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._dispatcher.wake)

    async def stop(self, timeout_s: float = 3.0) -> None:
        """Finish the batches in hand, or abandon them when time is up; give the leases back."""
        if self._is_stopping:
            return
        self._is_stopping = True
        stop_listening(listening_url(self._url), self.wake)
        await self._helping.stop()
        await self._dispatcher.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._working.wait()
        except TimeoutError:
            _logger.warning("batches in hand are abandoned", after_s=timeout_s)
        await self._working.stop()
        await self._parts.sender.close()
        await self._database.close()

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Wait until nothing is pending. Raises TimedOut. For tests, scripts and shutdowns."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._database.read(is_empty):
                    self.wake()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise TimedOut("draining the outbox", timeout_s) from None

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def _work(self, turn: Turn) -> None:
        while (place := await self._dispatcher.next()) is not None:
            more = False
            try:
                more = await turn.run(place)
            finally:
                await self._dispatcher.done(place, more=more)

    async def _dispatch(self) -> None:
        try:
            await self._need_tables(only_if_known=True)
            await self._dispatcher.run()
        except DBAPIError as error:
            # Every database names the table that it misses; only then is it worth asking.
            if f"{self.settings.table_prefix}messages" in str(error.orig):
                tell_unheard(f"the relay can't read its tables: {error.orig}")
                await self._need_tables()
            tell_unheard(f"the relay can't reach its database: {error.orig}")
            raise
        except HeadraceError as error:
            tell_unheard(f"the relay stands still: {error}")
            raise

    async def _need_tables(self, *, only_if_known: bool = False) -> None:
        """Raise what to run unless the tables are new enough; those an application made itself have no version."""
        version = await self._database.read(partial(version_in, table_prefix=self.settings.table_prefix))
        if version is not None or not only_if_known:
            need_newest(self._url, version, table_prefix=self.settings.table_prefix)

    async def _forget_sent(self) -> None:
        while True:
            await self._database.write_relaxed(partial(forget_sent, older_than_s=self.settings.keep_sent_s))
            await asyncio.sleep(min(_FORGETTING_S, self.settings.keep_sent_s))

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(self.settings.metrics_interval_s)
            show_pending(await self._database.read(pending))


def checked_threads(settings: OutboxSettings) -> int:
    """Return how many workers a relay has, if it could work with these settings. Raises BadArgument."""
    if not settings.threads or settings.threads < 1:
        raise BadArgument("threads", settings.threads, "a relay needs at least 1; set outbox.threads or --threads")
    if settings.backend != "db":
        rule = "a relay sends what the backend 'db' stored; set outbox.backend to db, or start no relay"
        raise BadArgument("backend", settings.backend, rule)
    if settings.delivery == "exactly_once" and not settings.source:
        rule = "exactly_once needs a name for this database that no other outbox of the log has; set outbox.source"
        raise BadArgument("source", settings.source, rule)
    return settings.threads


def _sender(log: Log, rows: MessageRows, settings: OutboxSettings) -> Sender:
    if settings.delivery == "exactly_once":
        return ExactlyOnce(log, rows, source=settings.source)
    return AtLeastOnce(log, timeout_s=settings.send_timeout_s)
