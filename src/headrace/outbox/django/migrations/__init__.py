"""Migrations of the Django app: each brings the tables to the newest version, in one of Django's databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from headrace.outbox.django.publish import database_url, outbox_settings
from headrace.outbox.schema import migrate
from headrace.outbox.tables import metadata, renamed

__all__ = ["drop_tables", "make_tables"]


def make_tables(_apps: object, schema_editor: Any) -> None:  # noqa: ANN401 - Django's, which has no types
    """Bring the tables to the newest version, over a connection of their own, as `headrace outbox migrate` does."""
    connection, prefix = schema_editor.connection, outbox_settings().table_prefix
    if not _is_in_memory(connection):
        migrate(database_url(connection.alias), table_prefix=prefix)
        return
    with connection.cursor() as cursor:
        for sql in _statements():
            cursor.execute(renamed(sql, prefix))


def drop_tables(_apps: object, schema_editor: Any) -> None:  # noqa: ANN401
    """Take the tables away, with the messages that wait in them."""
    connection, prefix = schema_editor.connection, outbox_settings().table_prefix
    if not _is_in_memory(connection):
        migrate(database_url(connection.alias), to="base", table_prefix=prefix)
        return
    with connection.cursor() as cursor:
        for table in metadata.sorted_tables:
            cursor.execute(renamed(f"DROP TABLE {table.name}", prefix))


def _is_in_memory(connection: Any) -> bool:  # noqa: ANN401
    """Return True for a database that no other connection can see, as Django's tests make them; no relay can either."""
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _statements() -> list[str]:
    dialect = sqlite.dialect()
    tables = [str(CreateTable(table).compile(dialect=dialect)) for table in metadata.sorted_tables]
    indexes = [
        str(CreateIndex(index).compile(dialect=dialect)) for table in metadata.sorted_tables for index in table.indexes
    ]
    return [*tables, *indexes]
