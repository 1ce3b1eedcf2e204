"""A schema registry in one SQLite file: `sqlite:./schemas.db`.

A small backend of another package. Headrace finds it by its entry point (see pyproject.toml), and
`headrace.testing.conformance.RegistryConformance` tests it (see test_sqlite_registry.py).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from headrace.config import RegistrySettings
from headrace.errors import BadArgument, OperationFailed, UnknownSchema, UnknownSubject
from headrace.log import Log
from headrace.serde import Level, Schema, Version, check_compatible, check_subject

__all__ = ["SqliteLevels", "SqliteRegistry", "open_registry"]

T = TypeVar("T")

_BUSY_S = 30.0
_EVERY_SUBJECT = ""  # no subject has this name, so it stands for the level of subjects without one of their own
_TABLES = (
    "CREATE TABLE IF NOT EXISTS schemas (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS versions (subject TEXT, version INTEGER, schema_id INTEGER, UNIQUE (subject, version))",
    "CREATE TABLE IF NOT EXISTS levels (subject TEXT PRIMARY KEY, level TEXT NOT NULL)",
)


async def open_registry(address: str, settings: RegistrySettings, log: Log | None) -> SqliteRegistry:
    """Open the registry at `sqlite:PATH`. This is the entry point; a registry in a file has no use for the log."""
    path = address.partition(":")[2]
    if not path:
        raise BadArgument("registry", address, "a file has a path: sqlite:./schemas.db")
    file = SchemaFile(Path(path))
    await file.run("opening", lambda db: [db.execute(statement) for statement in _TABLES])
    return SqliteRegistry(file, level=Level(settings.level))


class SchemaFile:
    """Runs one transaction at a time, in a thread, on a connection of its own: nothing stays open in between."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def run(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the work in a transaction that no other process writes beside. Raises OperationFailed."""
        return await asyncio.to_thread(self._run, operation, work)

    def _run(self, operation: str, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._transaction() as db:
                return work(db)
        except sqlite3.Error as error:
            # A commit that failed may have reached the disk. Asking again is safe: registering twice changes nothing.
            raise OperationFailed(f"{operation} {self.path}", str(error), outcome_known=False) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            db.execute(
                "BEGIN IMMEDIATE"
            )  # SQLite refuses a transaction that reads first and writes after another one did
            yield db
            db.execute("COMMIT")
        finally:
            db.close()  # without a COMMIT this rolls back


class SqliteRegistry:
    """Schemas, versions and levels as rows."""

    def __init__(self, file: SchemaFile, *, level: Level) -> None:
        self._file = file
        self.levels = SqliteLevels(file, level)

    async def register(self, subject: str, schema: Schema) -> Version:
        """Return the version that holds the schema, added if it is new. Raises IncompatibleSchema."""
        check_subject(subject)

        def add(db: sqlite3.Connection) -> Version:
            earlier = _versions(db, subject)
            found = next((each for each in earlier if each.schema == schema), None)
            if found is not None:
                return found
            check_compatible(schema, earlier, self.levels.read(db, subject), subject=subject)
            db.execute("INSERT OR IGNORE INTO schemas (text) VALUES (?)", [schema.text])
            (schema_id,) = db.execute("SELECT id FROM schemas WHERE text = ?", [schema.text]).fetchone()
            made = Version(subject, len(earlier) + 1, schema_id, schema)
            db.execute("INSERT INTO versions VALUES (?, ?, ?)", [subject, made.version, schema_id])
            return made

        return await self._file.run("registering in", add)

    async def schema(self, schema_id: int) -> Schema:
        """Return the schema of an id. Raises UnknownSchema."""
        query = "SELECT text FROM schemas WHERE id = ?"
        row = await self._file.run("reading", lambda db: db.execute(query, [schema_id]).fetchone())
        if row is None:
            raise UnknownSchema(schema_id, str(self._file.path))
        return Schema(row[0])

    async def versions(self, subject: str) -> Sequence[Version]:
        """Return a subject's versions, in order. Raises UnknownSubject."""
        found = await self._file.run("reading", lambda db: _versions(db, subject))
        if not found:
            raise UnknownSubject(subject, str(self._file.path))
        return found

    async def subjects(self) -> Sequence[str]:
        """Return the names of all subjects, sorted."""
        query = "SELECT DISTINCT subject FROM versions"
        return sorted(
            subject for (subject,) in await self._file.run("reading", lambda db: db.execute(query).fetchall())
        )

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


class SqliteLevels:
    """Compatibility levels as rows."""

    def __init__(self, file: SchemaFile, default: Level) -> None:
        self._file = file
        self._default = default

    async def get(self, subject: str | None) -> Level:
        """Return the level in force for a subject."""
        return await self._file.run("reading", lambda db: self.read(db, subject))

    async def put(self, subject: str | None, level: Level) -> None:
        """Set the level of a subject, or with None of all that have none of their own."""
        row = [subject or _EVERY_SUBJECT, level.value]
        await self._file.run("writing", lambda db: db.execute("INSERT OR REPLACE INTO levels VALUES (?, ?)", row))

    def read(self, db: sqlite3.Connection, subject: str | None) -> Level:
        """Return the level inside a transaction, so that a registration is checked at the level it is made under."""
        for name in (subject or _EVERY_SUBJECT, _EVERY_SUBJECT):
            row = db.execute("SELECT level FROM levels WHERE subject = ?", [name]).fetchone()
            if row is not None:
                return Level(row[0])
        return self._default


def _versions(db: sqlite3.Connection, subject: str) -> list[Version]:
    query = """SELECT version, schema_id, text FROM versions JOIN schemas ON schemas.id = schema_id
               WHERE subject = ? ORDER BY version"""
    rows = db.execute(query, [subject]).fetchall()
    return [Version(subject, version, schema_id, Schema(text)) for version, schema_id, text in rows]
