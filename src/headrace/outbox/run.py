"""Relays with a log of their own: for the command, and for applications without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from types import TracebackType

from headrace.config import LogSettings
from headrace.log import Log, open_log
from headrace.outbox.engines import DatabaseAddress
from headrace.outbox.ports import MessageDecoder
from headrace.outbox.relay import Relay
from headrace.outbox.settings import OutboxSettings

__all__ = ["BackgroundRelay", "opened_relay", "patient"]

# A record that times out in the producer's queue while those behind it get through would break the order of its key.
# So the producer waits for long, and the relay, which waits less, asks again for what is still on its way.
_DELIVERY_S = 300.0
_CLOSE_S = 2.0


def patient(settings: LogSettings) -> LogSettings:
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
    log = await open_log(log_address, settings=patient(log_settings or LogSettings()))
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
        await asyncio.wait_for(asyncio.shield(log.close()), _CLOSE_S)


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
