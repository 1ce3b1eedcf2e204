"""Offsets inside the handler's own SQL transaction: each event has its effect exactly once."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, String, Table, insert, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateTable

from headrace.errors import BadArgument, Fenced, OperationFailed
from headrace.projection.definitions import Projection
from headrace.projection.ports import Offsets
from headrace.projection.slots import below
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["OFFSETS", "SqlTarget"]

T = TypeVar("T")

OFFSETS = Table(
    "headrace_projections",
    MetaData(),
    Column("name", String(200), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("tag", String(500), nullable=False),
    Column("tag_offset", String(120)),
    Column("updated_ms", BigInteger, nullable=False),
)


class SqlTarget:
    """Calls the handler and moves the offsets in one transaction. `is_ours`: the engine was made for us."""

    def __init__(self, engine: Engine | AsyncEngine, projection: Projection, *, is_ours: bool) -> None:
        self._engine = engine
        self._projection = projection
        self._is_ours = is_ours

    async def load(self) -> Offsets:
        """Return how far each slot is, with the table and its rows made where they are missing."""
        for function in (_make_table, self._add_rows):
            try:
                await self._run(function)
            except DBAPIError:  # another worker was quicker: then it is there now
                await self._run(function)
        return await self._run(self._load)

    async def handle(self, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset) -> None:
        """Handle events and move on, or nothing of it."""
        try:
            if isinstance(self._engine, AsyncEngine):
                await self._handle_async(self._engine, events, known, to)
            else:
                await asyncio.to_thread(self._handle, self._engine, events, known, to)
        except DBAPIError as error:
            operation = f"writing projection {self._projection.name!r}"
            raise OperationFailed(operation, str(error.orig), outcome_known=not error.connection_invalidated) from error

    async def begin_again(self, at: TagOffset | None) -> None:
        """Reset the handler's work and the offsets in one transaction."""
        await self.load()
        place, reset = str(at) if at is not None else None, self._projection.reset
        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                if reset is not None:
                    await _maybe_awaited(reset(connection))
                await connection.run_sync(self._put_all, place)
        else:
            await asyncio.to_thread(self._begin_again, self._engine, place)

    async def close(self) -> None:
        """Let go of an engine of our own."""
        if not self._is_ours:
            return
        if isinstance(self._engine, AsyncEngine):
            await self._engine.dispose()
        else:
            await asyncio.to_thread(self._engine.dispose)

    async def _run(self, function: Callable[[Connection], T]) -> T:
        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                return await connection.run_sync(function)
        return await asyncio.to_thread(self._in_transaction, self._engine, function)

    @staticmethod
    def _in_transaction(engine: Engine, function: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            return function(connection)

    def _handle(self, engine: Engine, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset) -> None:
        with engine.begin() as connection:
            for event in events:
                self._projection.handler(connection, event)
            self._move(connection, known, to)

    async def _handle_async(
        self, engine: AsyncEngine, events: Sequence[TaggedEvent], known: Offsets, to: TagOffset
    ) -> None:
        async with engine.begin() as connection:
            for event in events:
                await self._call(connection, event)
            await connection.run_sync(self._move, known, to)

    async def _call(self, connection: AsyncConnection, event: TaggedEvent) -> None:
        await _maybe_awaited(self._projection.handler(connection, event))

    def _begin_again(self, engine: Engine, place: str | None) -> None:
        with engine.begin() as connection:
            if self._projection.reset is not None:
                self._projection.reset(connection)
            self._put_all(connection, place)

    def _add_rows(self, connection: Connection) -> None:
        found = connection.execute(select(OFFSETS.c.slot).where(OFFSETS.c.name == self._projection.name)).all()
        if found:
            return
        rows = [
            {"name": self._projection.name, "slot": slot, "tag": self._projection.tag, "updated_ms": _now_ms()}
            for slot in range(self._projection.slots)
        ]
        connection.execute(insert(OFFSETS), rows)

    def _load(self, connection: Connection) -> dict[int, TagOffset | None]:
        query = select(OFFSETS.c.slot, OFFSETS.c.tag_offset).where(OFFSETS.c.name == self._projection.name)
        found = {slot: TagOffset.parse(text) if text else None for slot, text in connection.execute(query)}
        if len(found) != self._projection.slots:
            rule = f"projection {self._projection.name!r} has run with {len(found)}; keep that, or rename it"
            raise BadArgument("slots", self._projection.slots, rule)
        return found

    def _move(self, connection: Connection, known: Offsets, to: TagOffset) -> None:
        """Move slots, those from one place together. Raises Fenced, and so rolls back, if a rival has moved some."""
        moving = below(known, to)
        for place in set(moving.values()):
            slots = [slot for slot, at in moving.items() if at == place]
            mine = (OFFSETS.c.name == self._projection.name) & OFFSETS.c.slot.in_(slots)
            where = OFFSETS.c.tag_offset.is_(None) if place is None else OFFSETS.c.tag_offset == str(place)
            change = update(OFFSETS).where(mine & where).values(tag_offset=str(to), updated_ms=_now_ms())
            if connection.execute(change).rowcount != len(slots):
                raise Fenced(f"projection {self._projection.name}")

    def _put_all(self, connection: Connection, place: str | None) -> None:
        mine = OFFSETS.c.name == self._projection.name
        connection.execute(update(OFFSETS).where(mine).values(tag_offset=place, updated_ms=_now_ms()))


def _make_table(connection: Connection) -> None:
    connection.execute(CreateTable(OFFSETS, if_not_exists=True))


async def _maybe_awaited(done: object) -> None:
    if inspect.isawaitable(done):
        await done


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
