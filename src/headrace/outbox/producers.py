"""Producers: publish in the caller's own transaction, or straight to the log where the settings say so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias, get_args

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headrace.errors import BadArgument
from headrace.outbox.committing import announce_at_commit
from headrace.outbox.direct import Direct
from headrace.outbox.encoding import Encoding
from headrace.outbox.headers import GivenHeaders
from headrace.outbox.inserting import insert, insert_async
from headrace.outbox.messages import EncodedMessage, Message
from headrace.outbox.ports import BackendName
from headrace.outbox.recording import record
from headrace.outbox.staging import stage
from headrace.outbox.table_names import DEFAULT_PREFIX

__all__ = ["AsyncProducer", "AsyncWhere", "Producer", "Where"]

Where: TypeAlias = Session | scoped_session[Session] | Connection | None
AsyncWhere: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection | None


class Producer:
    """Publishes to one topic, from blocking code.

    `where` is the caller's session or connection: the messages are committed with it, or not at all. The backends
    `kafka` and `kafka_async` ignore it.
    """

    def __init__(
        self, encoding: Encoding, backend: BackendName, direct: Direct, *, table_prefix: str = DEFAULT_PREFIX
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
        self, encoding: Encoding, backend: BackendName, direct: Direct, *, table_prefix: str = DEFAULT_PREFIX
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
        raise BadArgument("backend", backend, f"it is one of {', '.join(get_args(BackendName))}")
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
