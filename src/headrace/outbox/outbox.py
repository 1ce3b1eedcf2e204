"""The application's side: settings once, producers for topics."""

from __future__ import annotations

import asyncio

from headrace.log import Log
from headrace.outbox.payloads import RowEncoder
from headrace.outbox.ports import Serializer
from headrace.outbox.producers import AsyncProducer, Direct, Producer
from headrace.outbox.settings import OutboxSettings

__all__ = ["Outbox"]


class Outbox:
    """Makes producers.

    `log` is for the backends kafka and kafka_async; `loop` is the one it was opened on, the running one unless told.
    """

    def __init__(
        self,
        settings: OutboxSettings | None = None,
        *,
        log: Log | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.settings = settings or OutboxSettings()
        self._direct = Direct(log, loop or _running_loop() if log is not None else None)

    def producer(
        self, topic: str, *, serializer: Serializer | None = None, key_serializer: Serializer | None = None
    ) -> Producer:
        """Return a producer for blocking code. Without a serializer payloads are bytes, text or None."""
        encoding = self._encoding(topic, serializer, key_serializer)
        return Producer(encoding, self.settings.backend, self._direct, table_prefix=self.settings.table_prefix)

    def async_producer(
        self, topic: str, *, serializer: Serializer | None = None, key_serializer: Serializer | None = None
    ) -> AsyncProducer:
        """Return a producer for coroutines."""
        encoding = self._encoding(topic, serializer, key_serializer)
        return AsyncProducer(encoding, self.settings.backend, self._direct, table_prefix=self.settings.table_prefix)

    async def flush(self) -> None:
        """Wait for what kafka_async has on its way."""
        await self._direct.flush()

    def _encoding(self, topic: str, serializer: Serializer | None, key_serializer: Serializer | None) -> RowEncoder:
        return RowEncoder(topic, self.settings, serializer=serializer, key_serializer=key_serializer)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
