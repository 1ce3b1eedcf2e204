"""The names of the tables: all begin with one prefix, which an application may choose.

SQL here is written with the names of the default prefix. A connection whose execution options name another one has
them replaced before a statement is run.
"""

from __future__ import annotations

import re

from sqlalchemy.engine import Connection

from headrace.errors import BadArgument

__all__ = ["DEFAULT_PREFIX", "PREFIX_OPTION", "checked_prefix", "prefix_of", "renamed", "version_table"]

DEFAULT_PREFIX = "kafka_"
PREFIX_OPTION = "headrace_table_prefix"
"""The execution option of a connection, or an engine, whose tables have another prefix."""

_NAMES = re.compile(r"\bkafka_(messages|topic_info|dead_messages|sent_messages|inbox|inbox_failures|outbox_identity)\b")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,29}")
_TAKEN = ("dead_", "sent_")  # kafka_dead_messages is there for the prefix kafka_


def checked_prefix(prefix: object) -> str:
    """Return the prefix if every database takes it as it stands, without quotes. Raises BadArgument."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        rule = "it is 1 to 30 small letters, digits and underscores, and begins with no digit"
        raise BadArgument("table_prefix", prefix, rule)
    if prefix.endswith(_TAKEN):
        rule = "the tables of another prefix have such names; it ends with neither 'dead_' nor 'sent_'"
        raise BadArgument("table_prefix", prefix, rule)
    return prefix


def prefix_of(connection: Connection) -> str:
    """Return the prefix of the tables that the connection uses."""
    return checked_prefix(connection.get_execution_options().get(PREFIX_OPTION, DEFAULT_PREFIX))


def renamed(sql: str, prefix: str) -> str:
    """Return the SQL with the names that the tables have under the prefix."""
    return sql if prefix == DEFAULT_PREFIX else _NAMES.sub(rf"{prefix}\1", sql)


def version_table(prefix: str) -> str:
    """Return the name of the table in which Alembic keeps the version."""
    return (
        "headrace_outbox_version" if prefix == DEFAULT_PREFIX else f"{prefix}outbox_migrations"
    )  # never the name above
