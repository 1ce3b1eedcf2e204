"""Producers, and the Outbox that makes them: publish in the caller's transaction, to the log, or to a test's list."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, TypeAlias, get_args

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headrace.config import OutboxSettings
from headrace.errors import BadArgument
from headrace.log import Log
from headrace.observe import get_logger
from headrace.outbox.insert import announce_at_commit, insert, insert_async
from headrace.outbox.messages import EncodedMessage, GivenHeaders, Message, PendingMessage
from headrace.outbox.metrics import ASYNC_FAILURES
from headrace.outbox.payloads import RowEncoder
from headrace.outbox.ports import BackendName, Serializer
from headrace.outbox.send import RowPlacement
from headrace.outbox.staging import stage
from headrace.outbox.tables import DEFAULT_PREFIX

__all__ = [
    "AsyncProducer",
    "AsyncWhere",
    "Direct",
    "Outbox",
    "Producer",
    "Recorded",
    "Where",
    "record",
    "recording_messages",
]

_logger = get_logger(__name__)

Recorded = list[tuple[Message, EncodedMessage]]

_recording: ContextVar[Recorded | None] = ContextVar("headrace.outbox.producers", default=None)


def record(messages: Sequence[Message], encoded: Sequence[EncodedMessage]) -> bool:
    """Add the messages to the recording of this context; returns False if there is none."""
    into = _recording.get()
    if into is None:
        return False
    into.extend(zip(messages, encoded, strict=True))
    return True


@contextmanager
def recording_messages() -> Iterator[Recorded]:
    """Gather what is published in this context, encoded and checked as ever; nothing is stored or sent."""
    caught: Recorded = []
    token = _recording.set(caught)
    try:
        yield caught
    finally:
        _recording.reset(token)


class Direct:
    """Sends at once, from coroutines and from blocking code; the log lives on the loop it was made on."""

    def __init__(self, log: Log | None, loop: asyncio.AbstractEventLoop | None) -> None:
        self._log = log
        self._loop = loop
        self._placement = None if log is None else RowPlacement(log)
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
        if self._log is None or self._placement is None or not messages:
            return
        now_ms = time.time_ns() // 1_000_000
        rows = [
            PendingMessage(0, m.message, m.key, m.partition_key, m.headers, m.event_id, m.event_time, now_ms)
            for m in messages
        ]
        await self._log.append(await self._placement.records(messages[0].topic, rows))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


Where: TypeAlias = Session | scoped_session[Session] | Connection | None
AsyncWhere: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection | None


class Producer:
    """Publishes to one topic, from blocking code.

    `where` is the caller's session or connection: the messages are committed with it, or not at all. The backends
    `kafka` and `kafka_async` ignore it.
    """

    def __init__(
        self, encoding: RowEncoder, backend: BackendName, direct: Direct, *, table_prefix: str = DEFAULT_PREFIX
    ) -> None:
        self._encoding = encoding
        self._backend = backend
        self._direct = direct
        self._table_prefix = table_prefix

    def publish(
        self,
        where: Where,
        payload: Any,  # noqa: ANN401 - the serializer's business
        *,
        key: Any = None,  # noqa: ANN401
        partition_key: Any = None,  # noqa: ANN401
        headers: GivenHeaders = (),
        event_time: datetime | int | None = None,
        backend: BackendName | None = None,
    ) -> None:
        """Publish one message; `backend` overrides the setting for this call."""
        self.publish_list(where, [Message(payload, key, partition_key, headers, event_time)], backend=backend)

    def publish_list(self, where: Where, messages: Sequence[Message], *, backend: BackendName | None = None) -> None:
        """Publish messages, in order: all are encoded before the first is stored."""
        chosen = _checked_backend(self._backend if backend is None else backend)
        given, encoded = self._encoding.encode_given(messages)
        if not encoded or record(given, encoded):
            return
        match chosen:
            case "db":
                _store(where, encoded, self._table_prefix)
            case "kafka":
                self._direct.send_blocking(encoded)
            case "kafka_async":
                self._direct.send_later(encoded)


class AsyncProducer:
    """Publishes to one topic, from coroutines; the same names as Producer's."""

    def __init__(
        self, encoding: RowEncoder, backend: BackendName, direct: Direct, *, table_prefix: str = DEFAULT_PREFIX
    ) -> None:
        self._encoding = encoding
        self._backend = backend
        self._direct = direct
        self._table_prefix = table_prefix

    async def publish(
        self,
        where: AsyncWhere,
        payload: Any,  # noqa: ANN401 - the serializer's business
        *,
        key: Any = None,  # noqa: ANN401
        partition_key: Any = None,  # noqa: ANN401
        headers: GivenHeaders = (),
        event_time: datetime | int | None = None,
        backend: BackendName | None = None,
    ) -> None:
        """Publish one message; `backend` overrides the setting for this call."""
        await self.publish_list(where, [Message(payload, key, partition_key, headers, event_time)], backend=backend)

    async def publish_list(
        self, where: AsyncWhere, messages: Sequence[Message], *, backend: BackendName | None = None
    ) -> None:
        """Publish messages, in order: all are encoded before the first is stored."""
        chosen = _checked_backend(self._backend if backend is None else backend)
        given, encoded = self._encoding.encode_given(messages)
        if not encoded or record(given, encoded):
            return
        match chosen:
            case "db":
                await _store_async(where, encoded, self._table_prefix)
            case "kafka":
                await self._direct.send(encoded)
            case "kafka_async":
                self._direct.send_later(encoded)


def _checked_backend(backend: BackendName) -> BackendName:
    if backend not in get_args(BackendName):
        raise BadArgument("backend", backend, f"it must be one of {', '.join(get_args(BackendName))}")
    return backend


def _store(where: object, messages: list[EncodedMessage], table_prefix: str) -> None:
    if isinstance(where, scoped_session):
        where = where()
    if isinstance(where, Session):
        stage(where, messages, table_prefix)
    elif isinstance(where, Connection):
        insert(where, messages, table_prefix)
        announce_at_commit(where)
    else:
        raise BadArgument("where", where, "the backend db needs the Session or Connection of your transaction")


async def _store_async(where: object, messages: list[EncodedMessage], table_prefix: str) -> None:
    if isinstance(where, async_scoped_session):
        where = where()
    if isinstance(where, AsyncSession):
        # Staging may have to begin the transaction, which is the driver's business and so a greenlet's.
        await where.run_sync(stage, messages, table_prefix)
    elif isinstance(where, AsyncConnection):
        await insert_async(where, messages, table_prefix)
        if where.sync_connection is not None:
            announce_at_commit(where.sync_connection)
    else:
        rule = "the backend db needs the AsyncSession or AsyncConnection of your transaction"
        raise BadArgument("where", where, rule)


class Outbox:
    """Makes producers.

    `log` is for the backends kafka and kafka_async; `loop` is the event loop it was opened on,
    by default the running one.
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
