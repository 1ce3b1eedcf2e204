"""Dialects: everything that one SQL database does differently, one module for each database.

Promises: one `Dialect` for each of PostgreSQL, MySQL/MariaDB and SQLite, equal in meaning.
"""

from headrace.errors import UnknownBackend
from headrace.outbox.dialects.dialect import READS, Dialect
from headrace.outbox.dialects.mysql import MySQL
from headrace.outbox.dialects.postgresql import PostgreSQL
from headrace.outbox.dialects.sqlite import SQLite

__all__ = ["DIALECTS", "READS", "Dialect", "dialect_of"]

_SQLITE, _POSTGRESQL, _MYSQL = SQLite(), PostgreSQL(), MySQL()

DIALECTS: tuple[Dialect, ...] = (_SQLITE, _POSTGRESQL, _MYSQL)
"""All of them, in the order in which they judge an error: a driver of MySQL may give it a SQLSTATE as well."""

_BY_NAME: dict[str, Dialect] = {"postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL, "sqlite": _SQLITE}


def dialect_of(backend: str) -> Dialect:
    """Return the dialect of a database, by SQLAlchemy's name for it. Raises UnknownBackend."""
    if backend not in _BY_NAME:
        raise UnknownBackend("outbox", f"{backend}:", tuple(f"{name}:" for name in _BY_NAME))
    return _BY_NAME[backend]
