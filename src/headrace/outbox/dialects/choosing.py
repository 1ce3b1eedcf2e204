"""Which speech a database understands."""

from __future__ import annotations

from headrace.errors import UnknownBackend
from headrace.outbox.dialects.dialect import Speech
from headrace.outbox.dialects.mysql import MYSQL
from headrace.outbox.dialects.postgresql import POSTGRESQL
from headrace.outbox.dialects.sqlite import SQLITE

__all__ = ["speech_of"]

_SPEECHES = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def speech_of(dialect: str) -> Speech:
    """Return the speech of a SQLAlchemy dialect, by its name."""
    if dialect not in _SPEECHES:
        raise UnknownBackend("outbox", f"{dialect}:", tuple(f"{name}:" for name in _SPEECHES))
    return _SPEECHES[dialect]
