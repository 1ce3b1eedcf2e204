"""The tables and their names, for SQLAlchemy: what migrations make, and applications can have in their metadata.

Times are milliseconds since 1970, UTC, and those set here come from the database's clock. All names begin with one
prefix, which an application may choose. SQL is written with the names of the default prefix here; where the execution
options of a connection have another one, the names are replaced before a statement is run.
"""

from __future__ import annotations

import re

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DDLElement
from sqlalchemy.sql import expression
from sqlalchemy.types import TypeEngine

from headrace.errors import BadArgument

__all__ = [
    "DEAD_MESSAGES",
    "DEFAULT_PREFIX",
    "IDENTITY",
    "INBOX",
    "INBOX_FAILURES",
    "MESSAGES",
    "PREFIX_OPTION",
    "SENT_MESSAGES",
    "TOPIC_INFO",
    "checked_prefix",
    "kafka_dead_messages",
    "kafka_inbox",
    "kafka_inbox_failures",
    "kafka_messages",
    "kafka_outbox_identity",
    "kafka_sent_messages",
    "kafka_topic_info",
    "metadata",
    "now_ms",
    "prefix_of",
    "renamed",
    "version_table",
]

MESSAGES = "kafka_messages"
TOPIC_INFO = "kafka_topic_info"
DEAD_MESSAGES = "kafka_dead_messages"
INBOX = "kafka_inbox"
INBOX_FAILURES = "kafka_inbox_failures"
IDENTITY = "kafka_outbox_identity"
SENT_MESSAGES = "kafka_sent_messages"

metadata = MetaData()


class now_ms(expression.FunctionElement[int]):  # noqa: N801 - reads like SQL
    """The database's clock in milliseconds, at this very moment and not at the transaction's start."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms)
def _default(element: DDLElement, compiler: object, **kw: object) -> str:
    # Not UNIX_TIMESTAMP(NOW()): that goes through the session's time zone, which has an hour twice a year.
    return "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)"


@compiles(now_ms, "postgresql")
def _postgresql(element: DDLElement, compiler: object, **kw: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"


@compiles(now_ms, "sqlite")
def _sqlite(element: DDLElement, compiler: object, **kw: object) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


def _id() -> TypeEngine[int]:
    # SQLite numbers rows, and never again with the same number, only in a column of exactly this type.
    return BigInteger().with_variant(Integer, "sqlite")


def _name(length: int) -> TypeEngine[str]:
    # MySQL's default collations take "Orders" and "orders" for one topic.
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def _words(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def _bytes() -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text() -> TypeEngine[str]:
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _message_columns() -> list[Column[object]]:
    return [
        Column("topic", _name(249), nullable=False),
        Column("message", _bytes()),
        Column("key", _bytes()),
        Column("partition_key", _bytes()),
        Column("headers", _text()),
        Column("event_id", _name(64), nullable=False),
        Column("bucket", Integer, nullable=False),
        Column("event_time", BigInteger),
    ]


kafka_messages = Table(
    MESSAGES,
    metadata,
    Column("id", _id(), primary_key=True, autoincrement=True),
    *_message_columns(),
    Column("created_at", BigInteger, nullable=False, server_default=now_ms()),
    Index("kafka_messages_topic_bucket_id", "topic", "bucket", "id"),
    sqlite_autoincrement=True,
    mysql_engine="InnoDB",
)

kafka_topic_info = Table(
    TOPIC_INFO,
    metadata,
    Column("topic", _name(249), nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("locked_by", _name(36)),
    Column("locked_at", BigInteger),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("error", Boolean, nullable=False, server_default=expression.false()),
    Column("retries", Integer, nullable=False, server_default=text("0")),
    Column("retry_at", BigInteger),
    Column("last_error", _text()),
    Column("last_processed_at", BigInteger),
    Column("progress_offset", BigInteger),
    Column("note_format", Integer, nullable=False, server_default=text("2")),
    PrimaryKeyConstraint("topic", "bucket"),
    mysql_engine="InnoDB",
)

kafka_dead_messages = Table(
    DEAD_MESSAGES,
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    *_message_columns(),
    Column("created_at", BigInteger, nullable=False),
    Column("error", _text(), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("dead_at", BigInteger, nullable=False, server_default=now_ms()),
    Index("kafka_dead_messages_topic_bucket_id", "topic", "bucket", "id"),
    mysql_engine="InnoDB",
)

kafka_inbox = Table(
    INBOX,
    metadata,
    Column("consumer", _words(100), nullable=False),
    Column("event_id", _words(400), nullable=False),
    Column("received_at", BigInteger, nullable=False, server_default=now_ms()),
    PrimaryKeyConstraint("consumer", "event_id"),
    Index("kafka_inbox_received_at", "received_at"),
    mysql_engine="InnoDB",
)

kafka_outbox_identity = Table(
    IDENTITY,
    metadata,
    Column("nr", Integer, primary_key=True, autoincrement=False),
    Column("database_id", _name(36), nullable=False),
    mysql_engine="InnoDB",
)

kafka_sent_messages = Table(
    SENT_MESSAGES,
    metadata,
    Column("id", BigInteger, nullable=False),
    *_message_columns(),
    Column("created_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger, nullable=False, server_default=now_ms()),
    PrimaryKeyConstraint("event_id"),
    Index("kafka_sent_messages_sent_at", "sent_at"),
    mysql_engine="InnoDB",
)

kafka_inbox_failures = Table(
    INBOX_FAILURES,
    metadata,
    Column("consumer", _words(100), nullable=False),
    Column("event_id", _words(400), nullable=False),
    Column("topic", _name(249), nullable=False),
    Column("partition_nr", Integer, nullable=False),
    Column("offset_nr", BigInteger, nullable=False),
    Column("timestamp_ms", BigInteger, nullable=False),
    Column("key", _bytes()),
    Column("message", _bytes()),
    Column("headers", _text()),
    Column("attempts", Integer, nullable=False),
    Column("is_poison", Boolean, nullable=False, server_default=expression.false()),
    Column("last_error", _text(), nullable=False),
    Column("failed_at", BigInteger, nullable=False, server_default=now_ms()),
    Column("interruptions", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("consumer", "event_id"),
    mysql_engine="InnoDB",
)


DEFAULT_PREFIX = "kafka_"
PREFIX_OPTION = "headrace_table_prefix"
"""The execution option of a connection, or an engine, whose tables have another prefix."""

_NAMES = re.compile(r"\bkafka_(messages|topic_info|dead_messages|sent_messages|inbox|inbox_failures|outbox_identity)\b")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,29}")
_TAKEN = ("dead_", "sent_")  # kafka_dead_messages is there for the prefix kafka_


def checked_prefix(prefix: object) -> str:
    """Return the prefix if every database takes it as it stands, without quotes. Raises BadArgument."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        rule = "it must be 1 to 30 small letters, digits and underscores, and begins with no digit"
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
