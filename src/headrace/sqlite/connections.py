"""Connections to SQLite files that several processes share, and their tables: created once, checked at later opens."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headrace.errors import (
    Closed,
    FileUnusable,
    FolderUnusable,
    HeadraceError,
    IncompatibleData,
    OperationFailed,
    TimedOut,
)

__all__ = ["Readers", "begin_immediate", "connect", "explain", "prepare_file"]

T = TypeVar("T")

_RETRY_S = 0.0003
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNREADABLE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
_UNUSABLE = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)


def connect(path: Path, *, fsync: bool = True, busy_timeout_s: float = 30.0) -> sqlite3.Connection:
    """Open `path` in WAL mode, creating it if need be. With `fsync` a commit is on disk when it returns."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=busy_timeout_s)
    except sqlite3.Error as error:
        raise explain(error, path, "opening the file") from error
    try:
        # SQLite does not wait here: of several processes that open a new file at once, some are refused immediately.
        _execute_when_free(db, "PRAGMA journal_mode = WAL", timeout_s=busy_timeout_s)
        db.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        db.execute("PRAGMA cache_size = -16384")
        db.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error as error:
        db.close()
        raise explain(error, path, "opening the file", timeout_s=busy_timeout_s) from error
    return db


def begin_immediate(db: sqlite3.Connection, *, timeout_s: float) -> None:
    """Take the write lock, or raise sqlite3.OperationalError after `timeout_s`.

    SQLite's own busy handler sleeps up to 100 ms between tries, which lets a busy process starve the others.
    """
    db.execute("PRAGMA busy_timeout = 0")
    _execute_when_free(db, "BEGIN IMMEDIATE", timeout_s=timeout_s)


def _execute_when_free(db: sqlite3.Connection, statement: str, *, timeout_s: float) -> None:
    """Execute a statement, again and again while another connection is in the way, for `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            db.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def explain(
    error: sqlite3.Error, path: Path, operation: str, *, timeout_s: float = 30.0, outcome_known: bool = True
) -> HeadraceError:
    """Translate a SQLite error into one of ours, by what the caller can do."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary in _BUSY:
        return TimedOut(f"{operation} in {path} (another process holds the write lock)", timeout_s, outcome_known)
    if primary in _UNREADABLE:
        return IncompatibleData(str(path), f"an unreadable file ({error})", "SQLite 3 files")
    if primary in _UNUSABLE:
        return FileUnusable(str(path), f"{operation}: {error}", outcome_known)
    return OperationFailed(f"{operation} in {path}", str(error), outcome_known)


class Readers:
    """A few threads, each with its own connection, that run read transactions for the event loop."""

    def __init__(self, path: Path, *, threads: int = 4) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-sqlite-read")
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._is_closed = False

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query` inside one read transaction: all its statements see one state of the file."""
        if self._is_closed:
            raise Closed(str(self._path))
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run_here, query)

    def run_here(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Do the same in the calling thread."""
        db = self._connection()
        try:
            db.execute("BEGIN")
            try:
                return query(db)
            finally:
                db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise explain(error, self._path, "reading") from error

    def close(self) -> None:
        """Wait for running reads, then close every connection."""
        self._is_closed = True
        self._pool.shutdown(wait=True)
        while self._opened:
            self._opened.pop().close()

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self._path)
            db.execute("PRAGMA query_only = ON")
            self._opened.append(db)
        return db


def _is_busy(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _BUSY


def prepare_file(
    path: Path, tables: str, *, file_format: int, fsync: bool, upgrades: Mapping[int, str] | None = None
) -> None:
    """Create the folder, the file and its tables, or check that the file is one we can read.

    `upgrades` has, for each older format, the statements that upgrade it to the next one. Several processes may run it
    at once. Raises IncompatibleData for another program's file or another format.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnusable(str(path.parent), str(error.strerror)) from error
    db = connect(path, fsync=fsync)
    try:
        _prepare(db, path, tables, file_format, upgrades or {})
    finally:
        db.close()


def _prepare(db: sqlite3.Connection, path: Path, tables: str, file_format: int, upgrades: Mapping[int, str]) -> None:
    if _format(db) == 0 or _format(db) in upgrades:
        db.execute("BEGIN IMMEDIATE")
        try:
            if _format(db) == 0:
                _create(db, path, tables, file_format)
            while _format(db) in upgrades:
                _run(db, upgrades[_format(db)], file_format=_format(db) + 1)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    if _format(db) != file_format:
        raise IncompatibleData(str(path), f"format {_format(db)}", f"format {file_format}")


def _create(db: sqlite3.Connection, path: Path, tables: str, file_format: int) -> None:
    if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise IncompatibleData(str(path), "a file of another program", f"an empty file or format {file_format}")
    _run(db, tables, file_format=file_format)


def _run(db: sqlite3.Connection, statements: str, *, file_format: int) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {file_format}")


def _format(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
