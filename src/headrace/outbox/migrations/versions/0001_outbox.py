"""The outbox's tables: messages, leases, dead letters, and the consumers' inbox."""

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from headrace.outbox.migration_steps import create_index, create_table
from headrace.outbox.tables import now_ms

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _named(rest: str) -> str:
    return f"{context.config.attributes['table_prefix']}{rest}"


def _name(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _bytes() -> TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text() -> TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


def _message_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("topic", _name(249), nullable=False),
        sa.Column("message", _bytes()),
        sa.Column("key", _bytes()),
        sa.Column("partition_key", _bytes()),
        sa.Column("headers", _text()),
        sa.Column("event_id", _name(64), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("event_time", sa.BigInteger),
    ]


def upgrade() -> None:
    """Make the tables."""
    create_table(
        _named("messages"),
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        *_message_columns(),
        sa.Column("created_at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
    )
    create_index(_named("messages_topic_bucket_id"), _named("messages"), ["topic", "bucket", "id"])
    create_table(
        _named("topic_info"),
        sa.Column("topic", _name(249), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("locked_by", _name(36)),
        sa.Column("locked_at", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("error", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("retries", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("retry_at", sa.BigInteger),
        sa.Column("last_error", _text()),
        sa.Column("last_processed_at", sa.BigInteger),
        sa.Column("progress_offset", sa.BigInteger),
        sa.PrimaryKeyConstraint("topic", "bucket"),
        mysql_engine="InnoDB",
    )
    create_table(
        _named("dead_messages"),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        *_message_columns(),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("error", _text(), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("dead_at", sa.BigInteger, nullable=False, server_default=now_ms()),
        mysql_engine="InnoDB",
    )
    create_index(_named("dead_messages_topic_bucket_id"), _named("dead_messages"), ["topic", "bucket", "id"])
    create_table(
        _named("inbox"),
        sa.Column("consumer", _name(100), nullable=False),
        sa.Column("event_id", _name(400), nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sa.PrimaryKeyConstraint("consumer", "event_id"),
        mysql_engine="InnoDB",
    )
    create_index(_named("inbox_received_at"), _named("inbox"), ["received_at"])


def downgrade() -> None:
    """Remove them, with all they hold."""
    for table in (_named("inbox"), _named("dead_messages"), _named("topic_info"), _named("messages")):
        op.drop_table(table)
