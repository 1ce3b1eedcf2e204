"""The tables of a file: created once, checked at every later open."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import FolderUnusable, IncompatibleData
from headrace.sqlite.connections import connect

__all__ = ["prepare_file"]


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
