"""The target that stores offsets in the handler's own SQL transaction: each event has its effect exactly once."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import HeadraceError, OperationFailed, TransactionLost
from headrace.outbox import HandlerTransaction, check_blocking, check_done, handler_name
from headrace.projection.delivery import Delivery, EventFailed, delivering, finished, to_the_end
from headrace.projection.ports import Offsets
from headrace.projection.projection import DeadLetter, Projection
from headrace.projection.slots import is_replay, moves, slot_of
from headrace.projection.sql_tables import OFFSETS, ProjectionTables
from headrace.runtime import Backoff, crash_point
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["OFFSETS", "SqlDeadLetters", "SqlTarget"]

T = TypeVar("T")

# Deadlocks, serialization failures and locks that were waited for too long, as PostgreSQL, MariaDB and MySQL report
# them. MariaDB reports 1020 if another transaction has changed a row since this one began (11.6, by default).
_MET_STATES = frozenset({"40001", "40P01", "55P03"})
_MET_CODES = frozenset({1213, 1205, 1020})
_ATTEMPTS = 8
_MET_AGAIN = Backoff(first_s=0.02, limit_s=1.0)


@dataclass(frozen=True)
class _Call:
    """A call of the application's function, which may be a coroutine function if the engine is asynchronous."""

    function: Callable[..., Any]
    arguments: tuple[object, ...] = ()
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def run(self, connection: Connection, owned: HandlerTransaction) -> None:
        """Make the call. Raises BadArgument if it returns work to be awaited: the event is not at fault."""
        with self.around(), owned.handling():
            returned = self.function(connection, *self.arguments)
        check_done(self.function, returned)

    async def run_async(self, connection: AsyncConnection, owned: HandlerTransaction) -> None:
        """Make the call, and await its result if it is awaitable."""
        with self.around(), owned.handling():
            done = self.function(connection, *self.arguments)
            if inspect.isawaitable(done):
                await finished(done)


@dataclass(frozen=True)
class _Transaction:
    """Work on our tables, the calls of the application, and more work on our tables.

    If the application may not end the transaction, `if_lost` says what to do when it did so past SQLAlchemy: it is run
    in another transaction, and returns the error to raise if `before` was committed alone.
    """

    before: Callable[[Connection], None]
    calls: Sequence[_Call] = ()
    after: Callable[[Connection], None] | None = None
    if_lost: Callable[[Connection], HeadraceError | None] | None = None

    def run(self, engine: Engine) -> None:
        """Do it all, or nothing. Raises _Lost if it is not known what was done."""
        with engine.begin() as connection:
            owned = self._begin(connection)
            try:
                for call in self.calls:
                    call.run(connection, owned)
            except Exception as error:
                self._check(owned, error)
                raise
            self._check(owned, None)
            self._end(connection)
            crash_point("projection.sql.before-commit")

    async def run_async(self, engine: AsyncEngine) -> None:
        """Do it all, or nothing. Raises _Lost if it is not known what was done."""
        async with engine.begin() as connection:
            owned = await connection.run_sync(self._begin)
            try:
                for call in self.calls:
                    await call.run_async(connection, owned)
            except Exception as error:
                failure = error
                await connection.run_sync(lambda _: self._check(owned, failure))
                raise
            await connection.run_sync(lambda _: self._check(owned, None))
            await connection.run_sync(self._end)
            crash_point("projection.sql.before-commit")

    def _begin(self, connection: Connection) -> HandlerTransaction:
        self.before(connection)
        owned = HandlerTransaction(connection, may_define_tables=self.if_lost is None)
        if self.calls and self.if_lost is not None:
            owned.mark()
        return owned

    def _check(self, owned: HandlerTransaction, error: Exception | None) -> None:
        is_marked = bool(self.calls) and self.if_lost is not None
        if is_marked and owned.is_lost(after_error=error is not None):
            raise _Lost(error) from error

    def _end(self, connection: Connection) -> None:
        if self.after is not None:
            self.after(connection)


class SqlTarget:
    """Moves the offsets and calls the handler in one transaction. `is_ours`: the target created the engine."""

    def __init__(self, engine: Engine | AsyncEngine, projection: Projection, *, is_ours: bool) -> None:
        if isinstance(engine, Engine):
            check_blocking("handler", projection.handler)
            if projection.reset is not None:
                check_blocking("reset", projection.reset)
        self._engine = engine
        self._projection = projection
        self._is_ours = is_ours
        self._tables = ProjectionTables(projection)
        self._replay_to: Offsets = {}
        self._is_prepared = False

    @property
    def is_transactional(self) -> bool:
        """True: the handler's work and the offsets are one transaction."""
        return True

    @property
    def letters(self) -> SqlDeadLetters:
        """The dead letters, in a table of the same database."""
        return SqlDeadLetters(self, self._tables, self._projection)

    async def load(self) -> Offsets:
        """Return the offset of each slot; create missing tables and rows first."""
        await self.prepare()
        offsets, self._replay_to = await self.read(self._tables.load)
        return offsets

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset, *, attempt: int = 1) -> None:
        """Move the slots and handle events, all or nothing."""
        moved: dict[str, Any] = {"moving": moves(known, to, events, self._projection.slots), "to": to}
        moved["at_ms"] = time.time_ns() // 1_000_000
        move, stop = partial(self._tables.move, **moved), partial(self._tables.stop, **moved)
        await self.transact(_Transaction(move, self._calls(events, attempt), if_lost=stop))

    async def bury(self, letter: DeadLetter, known: Offsets, to: TagOffset) -> None:
        """Move the slots and store the letter, all or nothing."""
        moving = moves(known, to, (), self._projection.slots)
        add = partial(self._tables.add_letter, letter=letter)
        await self.transact(_Transaction(partial(self._tables.move, moving=moving, to=to), after=add))

    async def begin_again(self, at: TagOffset | None) -> None:
        """Take the slots, reset the handler's work, and set the slots to their new offset, in one transaction.

        Taking the slots comes first: it waits for workers in the middle of a batch, whose work is then reset too. Until
        the end the slots have an offset that no worker knows, because some databases commit at a TRUNCATE or CREATE.
        """
        await self.prepare()
        reset = self._projection.reset
        calls = [_Call(reset)] if reset is not None else []
        await self.transact(_Transaction(self._tables.take_all, calls, partial(self._tables.put_all, at=at)))

    async def put(self, places: Offsets) -> None:
        """Set some slots to other offsets."""
        await self.prepare()
        await self.transact(_Transaction(partial(self._tables.put, places=places)))

    async def close(self) -> None:
        """Dispose of the engine if the target created it."""
        if not self._is_ours:
            return
        if isinstance(self._engine, AsyncEngine):
            await self._engine.dispose()
        else:
            await to_the_end(self._engine.dispose)

    async def prepare(self) -> None:
        """Create missing tables and rows. Raises BadArgument for an engine that commits each statement."""
        if self._is_prepared:
            return
        for function in (self._tables.make, self._tables.add_rows):
            try:
                await self.read(function)
            except OperationFailed:  # another worker was faster: now they exist
                await self.read(function)
        self._is_prepared = True

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction that does not call the application. Raises OperationFailed."""
        try:
            if isinstance(self._engine, AsyncEngine):
                async with self._engine.begin() as connection:
                    return await connection.run_sync(work)
            return await to_the_end(_run, self._engine, work)
        except DBAPIError as error:
            raise self._failed(error, outcome_known=not error.connection_invalidated) from error

    async def transact(self, transaction: _Transaction) -> None:
        """Run a transaction; retry it some times after a conflict with another one.

        Raises EventFailed, SlotsMoved, and OperationFailed for failures of the database.
        """
        for attempt in itertools.count(1):
            try:
                await self._run(transaction)
                return
            except EventFailed as failed:
                cause = _database_error(failed.error)
                if cause is None or not (cause.connection_invalidated or is_conflict(cause)):
                    raise
                error = cause
                failure = self._failed(error, outcome_known=True)  # the event is not the cause
            except DBAPIError as failed:
                error, failure = failed, self._failed(failed, outcome_known=not failed.connection_invalidated)
            if error.connection_invalidated or not is_conflict(error) or attempt >= _ATTEMPTS:
                raise failure from error
            await asyncio.sleep(_MET_AGAIN.delay_s(attempt))

    async def _run(self, transaction: _Transaction) -> None:
        """Run a transaction once. If the handler ended it, find out what was stored, and raise that."""
        try:
            if isinstance(self._engine, AsyncEngine):
                await transaction.run_async(self._engine)
            else:
                await to_the_end(transaction.run, self._engine)
        except _Lost as lost:
            committed = None if transaction.if_lost is None else await self.read(transaction.if_lost)
            if committed is not None:
                raise committed from lost.error
            if lost.error is not None:  # the handler's own error is why all is rolled back
                raise lost.error from None
            rolled_back = TransactionLost(handler_name(self._projection.handler), was_committed=False)
            index = 0 if len(transaction.calls) == 1 and not self._projection.grouped else None
            raise EventFailed(index, rolled_back) from rolled_back

    def _failed(self, error: DBAPIError, *, outcome_known: bool) -> OperationFailed:
        operation = f"writing projection {self._projection.name!r}"
        return OperationFailed(operation, str(error.orig), outcome_known=outcome_known)

    def _calls(self, events: Sequence[TaggedEvent], attempt: int) -> list[_Call]:
        handler = self._projection.handler
        if self._projection.grouped and events:
            around = partial(delivering, None, self._delivery(events[-1], attempt))
            return [_Call(handler, (list(events),), around)]
        return [
            _Call(handler, (event,), partial(delivering, index, self._delivery(event, attempt)))
            for index, event in enumerate(events)
        ]

    def _delivery(self, event: TaggedEvent, attempt: int) -> Delivery:
        return Delivery(is_replay(event, self._replay_to, self._projection.slots), attempt)


class SqlDeadLetters:
    """Dead letters in the projection's own database."""

    def __init__(self, target: SqlTarget, tables: ProjectionTables, projection: Projection) -> None:
        self._target = target
        self._tables = tables
        self._projection = projection

    async def all(self) -> Sequence[DeadLetter]:
        """Return them in the order of their events."""
        await self._target.prepare()
        return await self._target.read(self._tables.letters)

    async def replay(self, letter: DeadLetter, event: TaggedEvent) -> bool:
        """Handle the event and remove the letter in one transaction; the journal's worker waits meanwhile."""
        argument = [event] if self._projection.grouped else event
        around = partial(delivering, 0, Delivery(is_replay=False, attempt=letter.attempts + 1))
        take = partial(self._take, letter=letter)
        try:
            call = _Call(self._projection.handler, (argument,), around)
            await self._target.transact(_Transaction(take, [call], if_lost=partial(self._put_back, letter=letter)))
        except _LetterGone:
            return False
        except TransactionLost as lost:
            raise EventFailed(0, lost) from lost
        return True

    async def remove(self, letters: Sequence[DeadLetter]) -> int:
        """Remove letters; return the number removed."""
        await self._target.prepare()
        return await self._target.read(partial(self._tables.remove, letters=letters))

    def _take(self, connection: Connection, letter: DeadLetter) -> None:
        self._tables.lock_slot(connection, slot_of(letter.topic, letter.id, self._projection.slots))
        if not self._tables.remove(connection, [letter]):
            raise _LetterGone

    def _put_back(self, connection: Connection, letter: DeadLetter) -> TransactionLost | None:
        """Store the letter again if the handler committed its removal; None if it did not."""
        if any(each.offset == letter.offset for each in self._tables.letters(connection)):
            return None
        self._tables.add_letter(connection, letter)
        return TransactionLost(handler_name(self._projection.handler), was_committed=True)


def is_conflict(error: DBAPIError) -> bool:
    """Return True if the database rolled back a transaction because of another one: a retry may succeed."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    code = next(iter(getattr(error.orig, "args", ())), None)
    return state in _MET_STATES or (isinstance(code, int) and code in _MET_CODES)


def _database_error(error: BaseException | None) -> DBAPIError | None:
    """Return the error of the database, also if the handler raised one of its own from it; None if there is none."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, DBAPIError):
            return error
        seen.add(id(error))  # "raise error from error" makes a circle
        error = error.__cause__
    return None


class _Lost(Exception):
    """The application ended the transaction past SQLAlchemy; `error` is what it raised besides."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(error)
        self.error = error


class _LetterGone(Exception):
    """Another process replayed or removed the letter first."""


def _run(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)
