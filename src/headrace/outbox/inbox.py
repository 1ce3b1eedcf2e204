"""The inbox of a consumer: each event once, in its own transaction; failures are counted, poison is set aside."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from headrace.errors import BadArgument, TransactionLost
from headrace.model import Record
from headrace.outbox.dialects import DIALECTS, dialect_of
from headrace.outbox.engines import execute, storable
from headrace.outbox.handler_transactions import HandlerTransaction, check_blocking, check_done, handler_name
from headrace.outbox.insert import begun, need_transaction
from headrace.outbox.messages import dump_headers, event_id_of, load_headers
from headrace.outbox.tables import DEFAULT_PREFIX, checked_prefix, renamed

__all__ = [
    "FailureCounts",
    "FailureKind",
    "Failures",
    "Handling",
    "Inbox",
    "Limits",
    "Outcome",
    "PoisonEvent",
    "is_transient",
]

Outcome: TypeAlias = Literal["handled", "known", "failed", "poison"]

FailureKind: TypeAlias = Literal["attempts", "interruptions"]
"""Tries that failed through the event or its handler, and tries that the database cut off."""

InTransaction: TypeAlias = Session | scoped_session[Session] | Connection
AsyncInTransaction: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
BlockingWhere: TypeAlias = Engine | sessionmaker[Session]
AsyncWhere: TypeAlias = AsyncEngine | async_sessionmaker[AsyncSession]

_MOST_CONSUMER = 100
_MOST_EVENT_ID = 400
_MOST_AGE_S = 10_000_000_000
_OF_EVENT = "consumer = :consumer AND event_id = :event_id"
_COLUMNS = ("topic", "partition_nr", "offset_nr", "timestamp_ms", "key", "message", "headers")


class Handling(NamedTuple):
    """What became of a record: handled now, known from before, failed (try again), or poison (given up, go on)."""

    outcome: Outcome
    attempts: int = 0
    error: str | None = None


class PoisonEvent(NamedTuple):
    """An event that was given up, whole, so that it can be handled later."""

    event_id: str
    record: Record
    attempts: int
    last_error: str
    failed_at: int
    interruptions: int = 0


class FailureCounts(NamedTuple):
    """How many tries of an event failed, and how many more the database cut off."""

    attempts: int
    interruptions: int


class Limits(NamedTuple):
    """How many failures of each kind make an event poison."""

    attempts: int
    interruptions: int

    def are_reached_by(self, failures: FailureCounts) -> bool:
        """Return True if the event is to be given up."""
        return failures.attempts >= self.attempts or failures.interruptions >= self.interruptions


class Failures:
    """The failures of one consumer."""

    def __init__(self, consumer: str, *, table_prefix: str) -> None:
        self._consumer = consumer
        self._table_prefix = table_prefix

    def note(
        self, db: Connection, event_id: str, record: Record, error: str, *, limits: Limits, kind: FailureKind
    ) -> FailureCounts | None:
        """Count a failure of the event; returns how many there are. The last that is allowed makes it poison.

        Returns None if the event is poison already, by another delivery that failed at the same time. It is locked
        until the transaction ends.
        """
        event = {"consumer": self._consumer, "event_id": event_id}
        failure = {**event, "last_error": storable(error)}
        while not self._count(db, {**failure, **_columns(record)}, kind):
            if self._is_poison(db, event):
                return None
            # Another delivery has handled the event, or it was released, between the two statements.
        asked = f"SELECT attempts, interruptions FROM kafka_inbox_failures WHERE {_OF_EVENT}"  # noqa: S608
        counts = FailureCounts._make(self._execute(db, asked, event).one())
        if limits.are_reached_by(counts):
            self._execute(db, f"UPDATE kafka_inbox_failures SET is_poison = TRUE WHERE {_OF_EVENT}", event)  # noqa: S608
        return counts

    def _count(self, db: Connection, failure: Mapping[str, Any], kind: FailureKind) -> bool:
        """Count a failure; returns False if the event is poison, or its failures were deleted meanwhile."""
        now = dialect_of(db.dialect.name).now_ms
        self._execute(db, self._insert(db), failure)
        counted = f"{kind} = {kind} + 1, last_error = :last_error, failed_at = {now}"
        sql = f"UPDATE kafka_inbox_failures SET {counted} WHERE {_OF_EVENT} AND is_poison = FALSE"  # noqa: S608
        asked = {name: failure[name] for name in ("consumer", "event_id", "last_error")}
        return bool(self._execute(db, sql, asked).rowcount == 1)

    def _is_poison(self, db: Connection, event: Mapping[str, Any]) -> bool:
        lock = dialect_of(db.dialect.name).lock_rows
        sql = f"SELECT is_poison FROM kafka_inbox_failures WHERE {_OF_EVENT} {lock}"  # noqa: S608
        return bool(self._execute(db, sql, event).scalar())

    def forget(self, db: Connection, event_id: str) -> bool:
        """Forget the failures of an event; returns whether there were any."""
        asked = {"consumer": self._consumer, "event_id": event_id}
        return bool(self._execute(db, f"DELETE FROM kafka_inbox_failures WHERE {_OF_EVENT}", asked).rowcount == 1)  # noqa: S608

    def poison(self, db: Connection, *, limit: int) -> list[PoisonEvent]:
        """Return events that were given up, the oldest first."""
        key = dialect_of(db.dialect.name).key
        columns = f"event_id, topic, partition_nr, offset_nr, timestamp_ms, {key}, message, headers"
        rows = self._execute(
            db,
            f"SELECT {columns}, attempts, last_error, failed_at, interruptions FROM kafka_inbox_failures "  # noqa: S608
            "WHERE consumer = :consumer AND is_poison = TRUE ORDER BY failed_at, event_id LIMIT :most",
            {"consumer": self._consumer, "most": limit},
        )
        return [_poison(row) for row in rows]

    def _insert(self, db: Connection) -> str:
        dialect = dialect_of(db.dialect.name)
        before, after = dialect.insert_or_ignore
        names = ("consumer", "event_id", "last_error", "attempts", *_COLUMNS)
        values = ", ".join("0" if name == "attempts" else f":{name}" for name in names)
        columns = ", ".join(dialect.key if name == "key" else name for name in names)
        return f"{before} INTO kafka_inbox_failures ({columns}) VALUES ({values}) {after}"

    def _execute(self, db: Connection, sql: str, parameters: Mapping[str, Any]) -> Any:  # noqa: ANN401 - rows
        return execute(db, renamed(sql, self._table_prefix), parameters)


def _columns(record: Record) -> dict[str, Any]:
    at = (record.topic, record.partition, record.offset, record.timestamp_ms)
    return dict(zip(_COLUMNS, (*at, record.key, record.value, dump_headers(record.headers)), strict=True))


def _poison(row: Any) -> PoisonEvent:  # noqa: ANN401 - a row
    event_id, topic, partition, offset, timestamp_ms, key, message, headers, *failures = row
    record = Record(topic, partition, offset, timestamp_ms, key, message, load_headers(headers))
    return PoisonEvent(event_id, record, *failures)


class Inbox:
    """Remembers which events a consumer has handled, in the table kafka_inbox of the consumer's database.

    Promises: of all deliveries of an event to one consumer exactly one `accept` that is committed returned True.
    The consumer handles the event in the same transaction, and skips it when `accept` returns False.
    """

    def __init__(
        self,
        consumer: str,
        *,
        max_attempts: int = 5,
        max_interruptions: int = 100,
        table_prefix: str = DEFAULT_PREFIX,
    ) -> None:
        self.consumer = _checked_consumer(consumer)
        self._limits = Limits(
            _checked_limit("max_attempts", max_attempts), _checked_limit("max_interruptions", max_interruptions)
        )
        self._table_prefix = checked_prefix(table_prefix)
        self._failures = Failures(self.consumer, table_prefix=self._table_prefix)

    def accept(self, where: InTransaction, record: Record) -> bool:
        """Return True if the event is new to the consumer, and remember it with the transaction.

        Raises BadArgument for a connection that commits each statement at once: an event whose handler fails would be
        known, and never be handled.
        """
        db = begun(_connection(where))
        need_transaction(db, "accept")
        return execute(db, *self.accepting(db.dialect.name, record)).rowcount == 1

    async def accept_async(self, where: AsyncInTransaction, record: Record) -> bool:
        """The same for coroutines."""
        if isinstance(where, async_scoped_session):
            where = where()
        if not isinstance(where, AsyncSession | AsyncConnection):
            raise BadArgument("where", where, "it must be the AsyncSession or AsyncConnection of your transaction")
        return await where.run_sync(self.accept, record)

    def handle(self, where: BlockingWhere, record: Record, handler: Callable[[Any, Record], object]) -> Handling:
        """Handle the record in a transaction of its own, once; count what the handler raises.

        `where` is an Engine or a sessionmaker; the handler gets its Connection or Session, and the record. After
        `max_attempts` failures the event is poison: it is set aside, whole, and counts as known from then on. What
        the database raises through its own fault (see `is_transient`) is raised, and is no failure of the event; but
        after `max_interruptions` of them, by a database that is there to count them, the event is poison too. Whatever
        happens before the handler is called is raised and not counted.

        A handler that commits or rolls back has failed (TransactionEnded). If it committed past SQLAlchemy, the event
        counts as known with a part of the work: it is poison at once (TransactionLost). Raises BadArgument for a
        coroutine function, which needs `handle_async`.
        """
        check_blocking("handler", handler)
        tried = _Try(handler_name(handler))
        try:
            with where.begin() as db:
                if not self.accept(db, record):
                    return Handling("known")
                owned = tried.begin(_connection(db))
                try:
                    with owned.handling():
                        check_done(handler, handler(db, record))
                except Exception:
                    tried.check(owned, after_error=True)
                    raise
                tried.check(owned, after_error=False)
                self._failures.forget(_connection(db), self._event_id(record))
            return Handling("handled")
        except Exception as error:
            tried.failed(error)
            with where.begin() as db:
                handling = self._failed(_connection(db), record, tried)
            if handling is None:
                raise
        return handling

    async def handle_async(
        self, where: AsyncWhere, record: Record, handler: Callable[[Any, Record], Awaitable[object]]
    ) -> Handling:
        """The same for coroutines: `where` is an AsyncEngine or an async_sessionmaker."""
        tried = _Try(handler_name(handler))
        try:
            async with where.begin() as db:
                if not await self.accept_async(db, record):
                    return Handling("known")
                owned = await db.run_sync(lambda own: tried.begin(_connection(own)))
                try:
                    with owned.handling():
                        await handler(db, record)
                except Exception:
                    await db.run_sync(lambda _: tried.check(owned, after_error=True))
                    raise
                await db.run_sync(lambda _: tried.check(owned, after_error=False))
                await db.run_sync(lambda own: self._failures.forget(_connection(own), self._event_id(record)))
            return Handling("handled")
        except Exception as error:
            tried.failed(error)
            async with where.begin() as db:
                handling = await db.run_sync(lambda own: self._failed(_connection(own), record, tried))
            if handling is None:
                raise
        return handling

    def poison(self, where: InTransaction, *, limit: int = 1000) -> list[PoisonEvent]:
        """Return the events that were given up, the oldest first."""
        return self._failures.poison(_connection(where), limit=limit)

    def release(self, where: InTransaction, event_id: str) -> bool:
        """Let a poison event be handled again, for which `handle` takes its record; returns whether it was there."""
        db = _connection(where)
        if not self._failures.forget(db, event_id):
            return False
        sql = renamed("DELETE FROM kafka_inbox WHERE consumer = :consumer AND event_id = :id", self._table_prefix)
        execute(db, sql, {"consumer": self.consumer, "id": event_id})
        return True

    def _failed(self, db: Connection, record: Record, tried: _Try) -> Handling | None:
        """Count the failure, and give the event up if it was the last that is allowed; None for an interruption."""
        event_id = self._event_id(record)
        if tried.is_lost and self._is_known(db, record):
            error = tried.committed()
            failures = self._failures.note(db, event_id, record, error, limits=Limits(1, 1), kind="attempts")
            return Handling("known") if failures is None else Handling("poison", failures.attempts, error)
        failures = self._failures.note(db, event_id, record, tried.error, limits=self._limits, kind=tried.kind)
        if failures is None:
            return Handling("known")
        if not self._limits.are_reached_by(failures):
            return Handling("failed", failures.attempts, tried.error) if tried.kind == "attempts" else None
        if not self.accept(db, record):  # it was handled meanwhile, where it was delivered again
            self._failures.forget(db, event_id)
            return Handling("known")
        return Handling("poison", failures.attempts, tried.error)

    def forget(self, where: InTransaction, *, older_than_s: float) -> int:
        """Forget events that came longer ago than any duplicate could take; returns how many."""
        db = _connection(where)
        return execute(db, *self.forgetting(db.dialect.name, older_than_s)).rowcount

    def _is_known(self, db: Connection, record: Record) -> bool:
        sql = f"SELECT 1 FROM kafka_inbox WHERE {_OF_EVENT}"  # noqa: S608
        return execute(db, renamed(sql, self._table_prefix), self._row(record)).first() is not None

    def accepting(self, dialect: str, record: Record) -> tuple[str, dict[str, Any]]:
        """Return the statement that remembers an event, unless it is known, with its parameters."""
        sql = dialect_of(dialect).insert_ignoring("kafka_inbox", ("consumer", "event_id"))
        return renamed(sql, self._table_prefix), self._row(record)

    def forgetting(self, dialect: str, older_than_s: float) -> tuple[str, dict[str, Any]]:
        """Return the statement that forgets old events, with its parameters. Raises BadArgument."""
        asked = {"consumer": self.consumer, "age_ms": int(_checked_age(older_than_s) * 1000)}
        now = dialect_of(dialect).now_ms
        sql = f"DELETE FROM kafka_inbox WHERE consumer = :consumer AND received_at < {now} - :age_ms"  # noqa: S608
        return renamed(sql, self._table_prefix), asked

    def _event_id(self, record: Record) -> str:
        return str(self._row(record)["event_id"])

    def _row(self, record: Record) -> dict[str, Any]:
        """An event from elsewhere has no id; its place in the log is as good, though not across a re-send."""
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        return {"consumer": self.consumer, "event_id": _storable(event_id_of(record.headers) or place)}


class _Try:
    """One try of a handler: whether it came to be called, how it failed, and whether it ended the transaction."""

    has_begun = False
    is_lost = False
    kind: FailureKind = "attempts"
    error = ""
    _is_own = False

    def __init__(self, handler: str) -> None:
        self._handler = handler

    def begin(self, connection: Connection) -> HandlerTransaction:
        """Mark the transaction in which the handler is called next."""
        owned = HandlerTransaction(connection)
        owned.mark()
        self.has_begun = True
        return owned

    def check(self, owned: HandlerTransaction, *, after_error: bool) -> None:
        """Note it if the handler ended the transaction past SQLAlchemy. Raises TransactionLost, unless it raised."""
        self.is_lost = owned.is_lost(after_error=after_error)
        if self.is_lost and not after_error:
            raise TransactionLost(self._handler, was_committed=False)

    def failed(self, error: Exception) -> None:
        """Note the error and its kind. Raises it again if the handler was not even called."""
        if not self.has_begun:
            raise error
        self.kind = "interruptions" if is_transient(error) else "attempts"
        self._is_own = not isinstance(error, TransactionLost)
        self.error = f"{type(error).__name__}: {error}"

    def committed(self) -> str:
        """Return the error of a try that committed its transaction, and what the handler raised besides."""
        lost = f"{TransactionLost.__name__}: {TransactionLost(self._handler, was_committed=True)}"
        return f"{lost}; and then it raised {self.error}" if self._is_own else lost


def _checked_limit(name: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadArgument(name, limit, "an event is tried once at least")
    return limit


def _checked_age(age_s: object) -> float:
    if isinstance(age_s, bool) or not isinstance(age_s, int | float) or not 0 <= age_s <= _MOST_AGE_S:
        raise BadArgument("older_than_s", age_s, f"it must be a number of seconds, from 0 to {_MOST_AGE_S}")
    return age_s


def _connection(where: InTransaction) -> Connection:
    if isinstance(where, Session | scoped_session):
        return where.connection()
    if not isinstance(where, Connection):
        raise BadArgument("where", where, "it must be the session or connection of your transaction")
    return where


def _checked_consumer(consumer: object) -> str:
    rule = (
        f"a consumer's name is text of 1 to {_MOST_CONSUMER} characters that can be printed, without blanks at its ends"
    )
    if not isinstance(consumer, str) or not 1 <= len(consumer) <= _MOST_CONSUMER or not _is_storable(consumer):
        raise BadArgument("consumer", consumer, rule)
    return consumer


def _storable(event_id: str) -> str:
    """Return the id if every database keeps it apart from all others, else a digest of it.

    Ids from elsewhere may be of any length; MySQL would cut them, and takes a blank at the end for nothing.
    """
    if len(event_id) <= _MOST_EVENT_ID and _is_storable(event_id):
        return event_id
    return f"sha256:{hashlib.sha256(event_id.encode(errors='surrogatepass')).hexdigest()}"


def _is_storable(words: str) -> bool:
    return words == words.strip() and words.isprintable()


def is_transient(error: BaseException) -> bool:
    """Return True if the database is at fault: the same statements may well succeed when they are tried again.

    An error that was raised from such a one counts too, as does one of a driver that was used past SQLAlchemy.
    """
    return any(_is_transient(each) for each in _origins(error))


def _origins(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it was made from."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        origins = (getattr(each, "orig", None), each.__cause__)
        waiting.extend(origin for origin in origins if isinstance(origin, BaseException))


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, PoolTimeout):
        return True
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or _has_no_code(error)
    if isinstance(error, SQLAlchemyError):
        return False
    return _verdict(error) is True


def _has_no_code(error: DBAPIError) -> bool:
    """Return True for an error of the connection, for which no server gave a code.

    Not for an InterfaceError, which drivers also raise for a parameter of the wrong type; where it is about a lost
    connection SQLAlchemy knows.
    """
    return isinstance(error, OperationalError) and error.orig is not None and _verdict(error.orig) is None


def _verdict(error: BaseException) -> bool | None:
    """Return the judgement of the database whose driver raised the error; None if the error has no code."""
    verdicts = (dialect.is_transient(error) for dialect in DIALECTS)
    return next((verdict for verdict in verdicts if verdict is not None), None)
