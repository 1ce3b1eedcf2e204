"""The tables of projections in the application's database. All functions run inside the caller's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from headrace.errors import (
    BadArgument,
    HandlerCommitted,
    ProjectionChanged,
    ProjectionRebuilding,
    SlotsMoved,
    TransactionLost,
)
from headrace.outbox import handler_name
from headrace.projection.ports import COMMITTED_EARLY, REBUILDING, Offsets
from headrace.projection.projection import DeadLetter, Projection
from headrace.projection.slots import check_slots, come_again, furthest
from headrace.tags import TagOffset

__all__ = ["DEAD_LETTERS", "OFFSETS", "ProjectionTables"]


_UNICODE = "utf8mb4"
_BYTE_BY_BYTE = f"{_UNICODE}_bin"


def _exact(length: int) -> String:
    """Return a text type that is compared byte by byte: for MariaDB "Totals" and "totals" would be one name.

    It takes every character, which a column of a database with the character set latin1 or utf8mb3 does not.
    """
    exact = mysql.VARCHAR(length, charset=_UNICODE, collation=_BYTE_BY_BYTE)
    return String(length).with_variant(exact, "mysql", "mariadb")


def _exact_text() -> Text:
    """Return a text type as `_exact` does, without a length."""
    return Text().with_variant(mysql.TEXT(charset=_UNICODE, collation=_BYTE_BY_BYTE), "mysql", "mariadb")


_metadata = MetaData()

OFFSETS = Table(
    "headrace_projections",
    _metadata,
    Column("name", _exact(200), primary_key=True),
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("tag", _exact(500), nullable=False),
    Column("tag_offset", String(120)),
    Column("updated_ms", BigInteger, nullable=False),
    Column("replay_to", String(120)),
)

DEAD_LETTERS = Table(
    "headrace_dead_letters",
    _metadata,
    Column("name", _exact(200), primary_key=True),
    Column("offset", String(120), primary_key=True),
    Column("tag", _exact_text(), nullable=False),
    Column("topic", _exact_text(), nullable=False),
    Column("id", _exact_text(), nullable=False),
    Column("seq_nr", BigInteger, nullable=False),
    Column("error", _exact_text(), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("failed_ms", BigInteger, nullable=False),
)


class ProjectionTables:
    """The rows of one projection."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._mine: ColumnElement[bool] = OFFSETS.c.name == projection.name
        self._carried = CarriedTexts()

    def make(self, connection: Connection) -> None:
        """Create the tables where they are missing, and the column that version 0.1 did not have."""
        self._check_transactions(connection)
        known = inspect(connection)
        for table in (OFFSETS, DEAD_LETTERS):  # without the right to create tables, existing ones can be used
            if not known.has_table(table.name):
                connection.execute(CreateTable(table, if_not_exists=True))
        columns = {column["name"] for column in inspect(connection).get_columns(OFFSETS.name)}
        if "replay_to" not in columns:
            connection.execute(text(f"ALTER TABLE {OFFSETS.name} ADD COLUMN replay_to VARCHAR(120)"))
        self._carried = carried_texts(connection)

    def add_rows(self, connection: Connection) -> None:
        """Add a row for each slot if the projection has none."""
        if connection.execute(select(OFFSETS.c.slot).where(self._mine)).first() is not None:
            return
        rows = [
            {"name": self._projection.name, "slot": slot, "tag": self._projection.source, "updated_ms": _now_ms()}
            for slot in range(self._projection.slots)
        ]
        connection.execute(insert(OFFSETS), rows)

    def load(self, connection: Connection) -> tuple[Offsets, Offsets]:
        """Return the offset of each slot, and the offset up to which its events are replays."""
        query = select(OFFSETS.c.slot, OFFSETS.c.tag, OFFSETS.c.tag_offset, OFFSETS.c.replay_to).where(self._mine)
        rows = connection.execute(query).all()
        self._check(len(rows), {row.tag for row in rows}, {row.tag_offset for row in rows})
        return {row.slot: _parse(row.tag_offset) for row in rows}, {row.slot: _parse(row.replay_to) for row in rows}

    def move(self, connection: Connection, moving: Offsets, to: TagOffset, at_ms: int | None = None) -> None:
        """Move slots up to an offset, those with the same offset together. Raises SlotsMoved if a rival has moved some.

        This comes before the handlers are called. It locks the rows, so that a rival or a rebuild waits and then sees
        everything that was written, and a worker that was overtaken stops before it has done anything. So does a
        worker with other tags: the offsets may be those it knows, but in another order of events. `at_ms` is noted
        with the offsets, so that `stop` knows them again.
        """
        self._lock(connection, moving)
        for place in set(moving.values()):
            slots = [slot for slot, at in moving.items() if at == place]
            is_there = OFFSETS.c.tag_offset.is_(None) if place is None else OFFSETS.c.tag_offset == str(place)
            at = self._mine & (OFFSETS.c.tag == self._projection.source) & OFFSETS.c.slot.in_(slots) & is_there
            values = {"tag_offset": str(_new(place, to)), "updated_ms": at_ms or _now_ms()}
            change = update(OFFSETS).where(at).values(values)
            if connection.execute(change).rowcount != len(slots):
                raise SlotsMoved(self._projection.name)

    def stop(self, connection: Connection, moving: Offsets, to: TagOffset, at_ms: int) -> HandlerCommitted | None:
        """Take the offsets of a `move` away if it was committed although its batch was not; None if it was not.

        No worker can go on then, as after a rebuild that was killed: what is stored of the batch is not known.
        """
        self._lock(connection, moving)
        stopped = 0
        for slot, at, replay_to, written_ms in self._places(connection):
            if slot in moving and written_ms == at_ms and at == str(_new(moving[slot], to)):
                values = {"tag_offset": COMMITTED_EARLY, "replay_to": replay_to, "updated_ms": _now_ms()}
                connection.execute(update(OFFSETS).where(self._mine & (OFFSETS.c.slot == slot)).values(values))
                stopped += 1
        return self._committed() if stopped else None

    def take_all(self, connection: Connection) -> None:
        """Take all slots from the workers, and remember their offsets: events up to there will be replays.

        Raises BadArgument if the projection has run with another number of slots.
        """
        self._lock(connection, range(self._projection.slots))
        found = self._places(connection)
        check_slots(self._projection, len(found))
        for slot, _, replay_to, _ in found:
            values = {"tag_offset": REBUILDING, "replay_to": replay_to, "updated_ms": _now_ms()}
            connection.execute(update(OFFSETS).where(self._mine & (OFFSETS.c.slot == slot)).values(values))

    def put_all(self, connection: Connection, at: TagOffset | None) -> None:
        """Set all slots to an offset, under the tags that the projection has now; remove letters behind the offset.

        Raises TransactionLost if `take_all` was rolled back meanwhile: what the handler wrote is not reset then.
        """
        values = {"tag_offset": _text(at), "tag": self._projection.source, "updated_ms": _now_ms()}
        taken = self._mine & (OFFSETS.c.tag_offset == REBUILDING)
        done = connection.execute(update(OFFSETS).where(taken).values(values)).rowcount
        if done != self._projection.slots and (reset := self._projection.reset) is not None:
            raise TransactionLost(handler_name(reset), was_committed=False)
        self.remove(connection, [each for each in self.letters(connection) if at is None or each.tag_offset > at])

    def put(self, connection: Connection, places: Offsets) -> None:
        """Set some slots to other offsets, wherever they are; all slots get the tags that the projection has now.

        Dead letters of events that come again are removed.
        """
        self._lock(connection, range(self._projection.slots))
        found = self._places(connection)
        check_slots(self._projection, len(found))
        if any(at == REBUILDING for _, at, _, _ in found):
            raise ProjectionRebuilding(self._projection.name)
        before = {slot: replay_to for slot, _, replay_to, _ in found}
        for slot, place in places.items():
            values = {"tag_offset": _text(place), "replay_to": before.get(slot), "updated_ms": _now_ms()}
            connection.execute(update(OFFSETS).where(self._mine & (OFFSETS.c.slot == slot)).values(values))
        if len(places) == self._projection.slots:
            connection.execute(update(OFFSETS).where(self._mine).values(tag=self._projection.source))
        self.remove(connection, come_again(self.letters(connection), places, self._projection.slots))

    def lock_slot(self, connection: Connection, slot: int) -> None:
        """Keep a slot's worker from committing until the transaction ends.

        Raises BadArgument if the projection has run with another number of slots: it would be another worker's slot;
        and ProjectionRebuilding while a rebuild resets the handler's work.
        """
        here = self._mine & (OFFSETS.c.slot == slot)
        connection.execute(update(OFFSETS).where(here).values(updated_ms=_now_ms()))
        found = self._places(connection)
        check_slots(self._projection, len(found))
        if any(at == REBUILDING for _, at, _, _ in found):
            raise ProjectionRebuilding(self._projection.name)

    def letters(self, connection: Connection) -> list[DeadLetter]:
        """Return the dead letters in the order of their events."""
        columns = [DEAD_LETTERS.c[name] for name in DeadLetter.__struct_fields__]
        rows = connection.execute(select(*columns).where(DEAD_LETTERS.c.name == self._projection.name))
        found = (DeadLetter(**self._carried.read(row._asdict())) for row in rows)
        return sorted(found, key=lambda letter: letter.tag_offset)

    def add_letter(self, connection: Connection, letter: DeadLetter) -> None:
        """Store a dead letter; one of the same event is replaced."""
        self.remove(connection, [letter])
        values = {"name": self._projection.name, **self._carried.written(msgspec.structs.asdict(letter))}
        connection.execute(insert(DEAD_LETTERS).values(values))

    def remove(self, connection: Connection, letters: Iterable[DeadLetter]) -> int:
        """Remove dead letters; return the number removed."""
        mine, count = DEAD_LETTERS.c.name == self._projection.name, 0
        for letter in letters:
            count += connection.execute(
                delete(DEAD_LETTERS).where(mine & (DEAD_LETTERS.c.offset == letter.offset))
            ).rowcount
        return count

    def _check_transactions(self, connection: Connection) -> None:
        levels = {
            connection.get_execution_options().get("isolation_level"),
            connection.engine.get_execution_options().get("isolation_level"),
            getattr(connection.dialect, "_on_connect_isolation_level", None),  # from create_engine(isolation_level=…)
        }
        if "AUTOCOMMIT" in levels:
            rule = "the handler's work and the offset need one transaction; use an engine that is not on AUTOCOMMIT"
            raise BadArgument("database", "an AUTOCOMMIT engine", rule)

    def _lock(self, connection: Connection, slots: Iterable[int]) -> None:
        """Lock rows in a fixed order, so that workers with overlapping slots can't deadlock."""
        here = self._mine & OFFSETS.c.slot.in_(list(slots))
        if connection.dialect.name == "sqlite":  # has no row locks: the first write locks the whole database
            connection.execute(update(OFFSETS).where(here).values(updated_ms=OFFSETS.c.updated_ms))
            return
        connection.execute(select(OFFSETS.c.slot).where(here).order_by(OFFSETS.c.slot).with_for_update()).all()

    def _places(self, connection: Connection) -> Sequence[tuple[int, str | None, str | None, int]]:
        """Return slot, offset, the offset up to which events are replays, and when they were written.

        Replays include what was handled by now.
        """
        columns = (OFFSETS.c.slot, OFFSETS.c.tag_offset, OFFSETS.c.replay_to, OFFSETS.c.updated_ms)
        found = []
        for slot, at, replay_to, written_ms in connection.execute(select(*columns).where(self._mine)).all():
            handled = None if at in {REBUILDING, COMMITTED_EARLY} else _parse(at)
            found.append((slot, at, _text(furthest(handled, _parse(replay_to))), written_ms))
        return found

    def _committed(self) -> HandlerCommitted:
        return HandlerCommitted(self._projection.name, handler_name(self._projection.handler))

    def _check(self, rows: int, tags: set[str], offsets: set[str | None]) -> None:
        name = self._projection.name
        if REBUILDING in offsets:
            raise ProjectionRebuilding(name)
        if COMMITTED_EARLY in offsets:
            raise self._committed()
        check_slots(self._projection, rows)
        if tags != {self._projection.source}:
            raise ProjectionChanged(name, ", ".join(sorted(tags - {self._projection.source})), self._projection.source)


class CarriedTexts:
    """The texts of dead letters as the columns can hold them; what they can't hold is written as JSON in ASCII.

    A letter that could not be stored would stop its projection at the event that it was to set aside.
    """

    def __init__(self, *, is_unicode: bool = False, has_nul: bool = False) -> None:
        self._is_unicode = is_unicode
        self._has_nul = has_nul

    def written(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to store."""
        return {name: self._written(value) if name in _FREE_TEXTS else value for name, value in values.items()}

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that were stored."""
        return {name: _unquoted(value) if name in _FREE_TEXTS else value for name, value in values.items()}

    def _written(self, value: str) -> str:
        is_held = (self._is_unicode or value.isascii()) and (self._has_nul or "\0" not in value)
        return value if is_held and not value.startswith(_QUOTED) else _QUOTED + json.dumps(value)


_FREE_TEXTS = frozenset({"tag", "topic", "id", "error"})
_QUOTED = "json:"


def _unquoted(value: str) -> str:
    if not value.startswith(f'{_QUOTED}"'):
        return value
    try:
        return str(json.loads(value.removeprefix(_QUOTED)))
    except ValueError:  # an older version stored it as it was
        return value


def carried_texts(connection: Connection) -> CarriedTexts:
    """Return what a database can hold: tables that an older version made have the database's own character set."""
    kind = connection.dialect.name
    if kind == "sqlite":
        return CarriedTexts(is_unicode=True, has_nul=True)
    if kind == "postgresql":
        return CarriedTexts(is_unicode=connection.execute(text("SHOW server_encoding")).scalar() == "UTF8")
    if kind in {"mysql", "mariadb"}:
        sets = "SELECT DISTINCT character_set_name FROM information_schema.columns WHERE character_set_name IS NOT NULL"
        here = "table_schema = DATABASE() AND table_name = :name AND column_name IN ('tag', 'topic', 'id', 'error')"
        found = connection.execute(text(f"{sets} AND {here}"), {"name": DEAD_LETTERS.name}).scalars().all()
        return CarriedTexts(is_unicode=set(found) == {_UNICODE}, has_nul=True)
    return CarriedTexts()


def _new(place: TagOffset | None, to: TagOffset) -> TagOffset:
    """Return where a slot is after a move."""
    return to if place is None or not place.covers(to) else place


def _parse(place: str | None) -> TagOffset | None:
    return TagOffset.parse(place) if place else None


def _text(place: TagOffset | None) -> str | None:
    return str(place) if place is not None else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
