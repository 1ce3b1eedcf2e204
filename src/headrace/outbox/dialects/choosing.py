"""Which dialect a database understands."""

from __future__ import annotations

from headrace.errors import UnknownBackend
from headrace.outbox.dialects.dialect import Dialect
from headrace.outbox.dialects.mysql import MYSQL
from headrace.outbox.dialects.postgresql import POSTGRESQL
from headrace.outbox.dialects.sqlite import SQLITE

__all__ = ["dialect_of"]

_DIALECTS = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def dialect_of(dialect: str) -> Dialect:
    """Return the dialect of a SQLAlchemy dialect, by its name."""
    if dialect not in _DIALECTS:
        raise UnknownBackend("outbox", f"{dialect}:", tuple(f"{name}:" for name in _DIALECTS))
    return _DIALECTS[dialect]
