"""Steps of migrations that can be repeated.

MySQL and MariaDB keep each table that a migration makes, also when it is interrupted before its end. The next run
finds what is there, and goes on behind it; a table with other columns is another application's, and stays as it is.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

__all__ = ["create_index", "create_table", "keeps_each_step"]


def keeps_each_step() -> bool:
    """Return True if the database ends the transaction with each statement that changes tables."""
    return op.get_bind().dialect.name in ("mysql", "mariadb")


def create_table(name: str, *parts: Any, **options: Any) -> None:  # noqa: ANN401 - as Alembic takes them
    """Make a table, unless an interrupted run has made it."""
    columns = [part.name for part in parts if isinstance(part, sa.Column)]
    if not (keeps_each_step() and _columns_of(name) == columns):
        op.create_table(name, *parts, **options)


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Make an index, unless an interrupted run has made it."""
    there = keeps_each_step() and name in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}
    if not there:
        op.create_index(name, table, columns)


def _columns_of(table: str) -> list[str] | None:
    look = sa.inspect(op.get_bind())
    return [column["name"] for column in look.get_columns(table)] if look.has_table(table) else None
