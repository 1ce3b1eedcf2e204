"""The relay: its tasks and their start and stop; with a log of its own; on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType

from sqlalchemy.exc import DBAPIError

from headrace.config import LogSettings, OutboxSettings
from headrace.errors import BadArgument, HeadraceError, TimedOut
from headrace.log import Log, open_log
from headrace.observe import Health, get_logger
from headrace.outbox.engines import Database, DatabaseAddress, url_of
from headrace.outbox.exactly_once import ExactlyOnce
from headrace.outbox.leases import LaneLeases, Lanes, LeaseTimes
from headrace.outbox.log_lines import MessageLog, warn_without_logging
from headrace.outbox.ports import MessageDecoder
from headrace.outbox.relay_loop import RelayLoop
from headrace.outbox.rows import MessageRows, forget_sent
from headrace.outbox.schema import need_newest, version_in
from headrace.outbox.send import AtLeastOnce, Sender
from headrace.outbox.stats import is_empty, pending, show_pending
from headrace.outbox.wake import add_listener, listen, listening_name, remove_listener
from headrace.runtime import Backoff, Supervisor

__all__ = ["BackgroundRelay", "Relay", "checked_threads", "opened_relay"]

_logger = get_logger(__name__)

_FORGET_SENT_EVERY_S = 60.0
_RESTARTS = Backoff(first_s=0.1, limit_s=5.0)
# A record that times out in the producer's queue while those behind it get through would break the order of its key.
# So the producer waits for long, and the relay, which waits less, asks again for what is still on its way.
_DELIVERY_S = 300.0
_CLOSE_LOG_S = 2.0


class Relay:
    """Sends the messages of one database to one log, while it runs.

    Promises: a committed message reaches the log at least once (exactly once, for readers of committed records, where
    the settings say so), those of one key in the order of their ids; nothing is deleted that was not acknowledged.
    A crash, of a worker or of the process, and a database or a log that is away do not stop it for good.
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
        self.workers = tuple(str(uuid.uuid4()) for _ in range(self._threads))
        self._relay_loop = self._make_loop(log, decoder)
        self.health = health or Health("outbox")
        self._working = Supervisor("outbox-workers", health=self.health)
        self._helping = Supervisor("outbox-helpers", health=self.health)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False

    def _make_loop(self, log: Log, decoder: MessageDecoder | None) -> RelayLoop:
        settings, database = self.settings, self._database
        times = LeaseTimes.of(settings.lease_s, max(settings.first_retry_s, settings.max_retry_s))
        rows = MessageRows(
            database,
            batch_size=settings.batch_size,
            batch_bytes=settings.batch_bytes,
            keeps_sent=settings.keeps_sent,
        )
        return RelayLoop(
            Lanes(database),
            LaneLeases(database, lease_s=settings.lease_s, owners=self.workers, times=times),
            rows,
            _sender(log, rows, settings),
            MessageLog(settings.log_topics, decoder),
            settings,
        )

    async def start(self) -> None:
        """Begin to send. Does not wait for the database: when it is away the relay waits for it."""
        self._event_loop = asyncio.get_running_loop()
        for worker in self.workers:
            self._working.add(f"outbox-{worker[:8]}", partial(self._relay_loop.work, worker), backoff=_RESTARTS)
        self._helping.add("outbox-dispatcher", self._find_lanes, backoff=_RESTARTS)
        self._helping.add("outbox-metrics", self._measure, backoff=_RESTARTS)
        if self.settings.keep_sent_topics:
            self._helping.add("outbox-forgetting", self._forget_sent, backoff=_RESTARTS)
        if self._url.get_backend_name() == "postgresql":
            self._helping.add("outbox-listener", partial(listen, self._url, self._relay_loop.wake), backoff=_RESTARTS)
        add_listener(listening_name(self._url), self.wake)
        await self._working.start()
        await self._helping.start()

    def wake(self) -> None:
        """Look for messages now; from any thread."""
        if self._event_loop is not None and not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._relay_loop.wake)

    async def stop(self, timeout_s: float = 3.0) -> None:
        """Finish the batches in hand, or abandon them when time is up; give the leases back."""
        if self._is_stopping:
            return
        self._is_stopping = True
        remove_listener(listening_name(self._url), self.wake)
        await self._relay_loop.stop()
        await self._helping.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._working.wait()
        except TimeoutError:
            _logger.warning("batches in hand are abandoned", after_s=timeout_s)
        await self._working.stop()
        await self._relay_loop.sender.close()
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

    async def _find_lanes(self) -> None:
        try:
            await self._need_tables(only_if_known=True)
            await self._relay_loop.find_lanes()
        except DBAPIError as error:
            # Every database names the table that it misses; only then is it worth asking.
            if f"{self.settings.table_prefix}messages" in str(error.orig):
                warn_without_logging(f"the relay can't read its tables: {error.orig}")
                await self._need_tables()
            warn_without_logging(f"the relay can't reach its database: {error.orig}")
            raise
        except HeadraceError as error:
            warn_without_logging(f"the relay can't work: {error}")
            raise

    async def _need_tables(self, *, only_if_known: bool = False) -> None:
        """Raise what to run unless the tables are new enough; those an application made itself have no version."""
        version = await self._database.read(partial(version_in, table_prefix=self.settings.table_prefix))
        if version is not None or not only_if_known:
            need_newest(self._url, version, table_prefix=self.settings.table_prefix)

    async def _forget_sent(self) -> None:
        while True:
            await self._database.write_relaxed(partial(forget_sent, older_than_s=self.settings.keep_sent_s))
            await asyncio.sleep(min(_FORGET_SENT_EVERY_S, self.settings.keep_sent_s))

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


def _patient(settings: LogSettings) -> LogSettings:
    """Return the settings with a producer that keeps records through an outage."""
    kafka = settings.kafka
    longer = kafka.model_copy(update={"delivery_timeout_s": max(_DELIVERY_S, kafka.delivery_timeout_s)})
    return settings.model_copy(update={"kafka": longer})


@contextlib.asynccontextmanager
async def opened_relay(
    database: DatabaseAddress,
    log_address: str,
    *,
    settings: OutboxSettings | None = None,
    log_settings: LogSettings | None = None,
    decoder: MessageDecoder | None = None,
) -> AsyncIterator[Relay]:
    """Open the log, run a relay while the block runs, and close both within seconds, whatever is away."""
    log = await open_log(log_address, settings=_patient(log_settings or LogSettings()))
    try:
        relay = Relay(database, log, settings=settings, decoder=decoder)
        await relay.start()
        try:
            yield relay
        finally:
            await relay.stop()
    finally:
        await _close(log)


async def _close(log: Log) -> None:
    with contextlib.suppress(TimeoutError):
        # Shielded: the close goes on in its thread. What it can't flush is in the table, and will be sent again.
        await asyncio.wait_for(asyncio.shield(log.close()), _CLOSE_LOG_S)


class BackgroundRelay:
    """A relay on a thread of its own, for blocking applications: `with BackgroundRelay(url, "kafka://…"): …`"""

    def __init__(
        self,
        database: DatabaseAddress,
        log_address: str,
        *,
        settings: OutboxSettings | None = None,
        log_settings: LogSettings | None = None,
    ) -> None:
        self._relay = opened_relay(database, log_address, settings=settings, log_settings=log_settings)
        self._thread = threading.Thread(target=self._run, name="headrace-outbox-relay", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> BackgroundRelay:
        """Begin to send. Raises what the opening of the log raises."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Finish what is in hand and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> BackgroundRelay:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._send())
        except BaseException as failure:  # raised again by start()
            self._failure = failure
        finally:
            self._loop.close()
            self._started.set()

    async def _send(self) -> None:
        async with self._relay:
            self._started.set()
            await self._stop.wait()
