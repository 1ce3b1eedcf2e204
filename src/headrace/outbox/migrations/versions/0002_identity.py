"""The database's identity, the format of notes, sent messages, and an inbox that takes any text and counts failures."""

import uuid

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from headrace.outbox.migration_steps import create_index, create_table, keeps_each_step
from headrace.outbox.tables import now_ms

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INBOX = {"consumer": 100, "event_id": 400}


def _named(rest: str) -> str:
    return f"{context.config.attributes['table_prefix']}{rest}"


def upgrade() -> None:
    """Give the database an identity; what was noted in the log until now is in the first format."""
    create_table(
        _named("outbox_identity"),
        sa.Column("nr", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("database_id", _ascii(36), nullable=False),
        mysql_engine="InnoDB",
    )
    identity = sa.table(_named("outbox_identity"), sa.column("nr"), sa.column("database_id"))
    if op.get_bind().execute(sa.select(sa.func.count()).select_from(identity)).scalar_one() == 0:
        op.bulk_insert(identity, [{"nr": 1, "database_id": str(uuid.uuid4())}])
    _add_note_format()
    create_table(
        _named("sent_messages"),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("topic", _ascii(249), nullable=False),
        sa.Column("message", _bytes()),
        sa.Column("key", _bytes()),
        sa.Column("partition_key", _bytes()),
        sa.Column("headers", _text()),
        sa.Column("event_id", _ascii(64), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("event_time", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("sent_at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sa.PrimaryKeyConstraint("event_id"),
        mysql_engine="InnoDB",
    )
    create_index(_named("sent_messages_sent_at"), _named("sent_messages"), ["sent_at"])
    _change_inbox("utf8mb4", "utf8mb4_bin")
    create_table(
        _named("inbox_failures"),
        sa.Column("consumer", _words(100), nullable=False),
        sa.Column("event_id", _words(400), nullable=False),
        sa.Column("topic", _ascii(249), nullable=False),
        sa.Column("partition_nr", sa.Integer, nullable=False),
        sa.Column("offset_nr", sa.BigInteger, nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger, nullable=False),
        sa.Column("key", _bytes()),
        sa.Column("message", _bytes()),
        sa.Column("headers", _text()),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("is_poison", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("last_error", _text(), nullable=False),
        sa.Column("failed_at", sa.BigInteger, nullable=False, server_default=now_ms()),
        sa.PrimaryKeyConstraint("consumer", "event_id"),
        mysql_engine="InnoDB",
    )


def downgrade() -> None:
    """Take it away again."""
    _change_inbox("ascii", "ascii_bin")
    op.drop_table(_named("inbox_failures"))
    op.drop_table(_named("sent_messages"))
    with op.batch_alter_table(_named("topic_info")) as table:
        table.drop_column("note_format")
    op.drop_table(_named("outbox_identity"))


def _add_note_format() -> None:
    """Places that are there get the first format, later ones the second."""
    table = _named("topic_info")
    if not keeps_each_step():
        op.add_column(table, sa.Column("note_format", sa.Integer, nullable=False, server_default=sa.text("2")))
        op.execute(f"UPDATE {table} SET note_format = 1")  # noqa: S608
        return
    # In one step, so that a run that ends behind it leaves no place with the wrong one.
    if "note_format" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, sa.Column("note_format", sa.Integer, nullable=False, server_default=sa.text("1")))
    op.alter_column(
        table, "note_format", existing_type=sa.Integer, existing_nullable=False, server_default=sa.text("2")
    )


def _change_inbox(charset: str, collation: str) -> None:
    if not keeps_each_step():
        return
    for name, length in _INBOX.items():
        changed = mysql.VARCHAR(length, charset=charset, collation=collation)
        op.alter_column(_named("inbox"), name, type_=changed, existing_nullable=False)


def _ascii(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _words(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _bytes() -> TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text() -> TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")
