"""Telling a fault of the database from a fault of what it was told, alike for all drivers.

Drivers put the same event into different classes: PyMySQL calls an unknown column an OperationalError, asyncpg a
deadlock a plain DBAPIError. So the database's own codes decide, and the class only where there is no code.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

__all__ = ["is_transient"]

# Lost connections, rolled back for others' sake, out of memory, disk or connections, ended by an operator or a
# time-out, I/O errors.
_SQLSTATE_CLASSES = ("08", "40", "53", "57", "58")
# Locks and objects in use, a replica that takes no writes, transactions that were ended for their age.
_SQLSTATES = {"55P03", "55006", "25006", "25P03", "25P04"}
_SQLSTATES_OF_STATEMENTS = {"40002"}  # a constraint that was checked at the commit

_MYSQL_NUMBERS = {
    *(1205, 1213, 1206, 1614, 1020, 3572),  # lock time-out, deadlock, too many locks, a row that was changed meanwhile
    *(1927, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 4031),  # killed, shutting down, cut off
    *(2002, 2003, 2006, 2012, 2013, 2014, 2045, 2055),  # the client's own: no connection, or none any more
    *(1317, 1028, 1969, 3024),  # the statement was ended, by somebody or by its time
    *(1040, 1203, 1226, 1037, 1038, 1041, 1135, 1637),  # too many connections, or out of memory
    *(1021, 1030, 1114, 1026, 3),  # no room on the disk, or an error of it
    *(1290, 1792, 1836, 1047, 1180),  # read-only for now, a cluster that is not ready, a commit that failed
}
_SQLITE_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}


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
        return error.connection_invalidated or _is_wordless(error)
    if isinstance(error, SQLAlchemyError):
        return False
    code = _code(error)
    if isinstance(code, str):
        return (code.startswith(_SQLSTATE_CLASSES) or code in _SQLSTATES) and code not in _SQLSTATES_OF_STATEMENTS
    return code is not None and code in (_SQLITE_CODES if isinstance(error, sqlite3.Error) else _MYSQL_NUMBERS)


def _is_wordless(error: DBAPIError) -> bool:
    """Return True for an error of the connection, for which no server gave a code.

    Not for an InterfaceError, which drivers also raise for a parameter of the wrong type; where it is about a lost
    connection SQLAlchemy knows.
    """
    return isinstance(error, OperationalError) and error.orig is not None and _code(error.orig) is None


def _code(error: BaseException) -> str | int | None:
    """Return the SQLSTATE, or the number that SQLite (without its details) or MySQL gave; None if there is none."""
    if isinstance(error, sqlite3.Error):
        number = getattr(error, "sqlite_errorcode", None)
        return None if number is None else number & 0xFF
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str) and sqlstate:
        return sqlstate
    first = error.args[0] if error.args else None
    is_of_driver = type(error).__module__.partition(".")[0] in _MYSQL_DRIVERS
    return first if is_of_driver and isinstance(first, int) and first > 0 else None


_MYSQL_DRIVERS = ("pymysql", "aiomysql", "asyncmy", "MySQLdb", "mariadb")
