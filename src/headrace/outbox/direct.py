"""The backends `kafka` and `kafka_async`: past the database, straight into the log."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Sequence

from headrace.errors import BadArgument
from headrace.log import Log
from headrace.observe import get_logger
from headrace.outbox.messages import EncodedMessage, PendingMessage
from headrace.outbox.metrics import ASYNC_FAILURES
from headrace.outbox.placing import Placing

__all__ = ["Direct"]

_logger = get_logger(__name__)


class Direct:
    """Sends at once, from coroutines and from blocking code; the log lives on the loop it was made on."""

    def __init__(self, log: Log | None, loop: asyncio.AbstractEventLoop | None) -> None:
        self._log = log
        self._loop = loop
        self._placing = None if log is None else Placing(log)
        self._on_their_way: set[concurrent.futures.Future[None]] = set()

    async def send(self, messages: Sequence[EncodedMessage]) -> None:
        """Append, and wait for the acknowledgements."""
        await asyncio.wrap_future(self._start(messages))

    def send_blocking(self, messages: Sequence[EncodedMessage]) -> None:
        """The same for blocking code, which must not run on the log's own loop."""
        loop = self._loop_of_log()
        if _running_loop() is loop:
            rule = "on the log's event loop use async_producer, or it would wait for itself"
            raise BadArgument("producer", "blocking", rule)
        self._start(messages).result()

    def send_later(self, messages: Sequence[EncodedMessage]) -> None:
        """Append without waiting; what fails is counted and logged."""
        sending = self._start(messages)
        self._on_their_way.add(sending)
        sending.add_done_callback(lambda done: self._landed(messages, done))

    async def flush(self) -> None:
        """Wait for all that was sent without waiting."""
        waiting = [asyncio.wrap_future(each) for each in self._on_their_way]
        await asyncio.gather(*waiting, return_exceptions=True)

    def _landed(self, messages: Sequence[EncodedMessage], done: concurrent.futures.Future[None]) -> None:
        self._on_their_way.discard(done)
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            for message in messages:
                ASYNC_FAILURES.labels(message.topic).inc()
            _logger.error("messages were not sent", topic=messages[0].topic, count=len(messages), error=str(error))

    def _start(self, messages: Sequence[EncodedMessage]) -> concurrent.futures.Future[None]:
        return asyncio.run_coroutine_threadsafe(self._append(messages), self._loop_of_log())

    def _loop_of_log(self) -> asyncio.AbstractEventLoop:
        if self._log is None or self._loop is None:
            raise BadArgument("log", None, "the backends kafka and kafka_async need one: Outbox(…, log=log)")
        return self._loop

    async def _append(self, messages: Sequence[EncodedMessage]) -> None:
        if self._log is None or self._placing is None or not messages:
            return
        now_ms = time.time_ns() // 1_000_000
        rows = [
            PendingMessage(0, m.message, m.key, m.partition_key, m.headers, m.event_id, m.event_time, now_ms)
            for m in messages
        ]
        await self._log.append(await self._placing.records(messages[0].topic, rows))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
