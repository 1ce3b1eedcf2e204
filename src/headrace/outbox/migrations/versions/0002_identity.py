"""The database's identity, the format of notes in the log, and an inbox that takes any text."""

import uuid

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INBOX = {"consumer": 100, "event_id": 400}


def _named(rest: str) -> str:
    return f"{context.config.attributes['table_prefix']}{rest}"


def upgrade() -> None:
    """Give the database an identity; what was noted in the log until now is in the first format."""
    identity = op.create_table(
        _named("outbox_identity"),
        sa.Column("nr", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("database_id", _ascii(36), nullable=False),
        mysql_engine="InnoDB",
    )
    op.bulk_insert(identity, [{"nr": 1, "database_id": str(uuid.uuid4())}])
    op.add_column(
        _named("topic_info"), sa.Column("note_format", sa.Integer, nullable=False, server_default=sa.text("2"))
    )
    op.execute(f"UPDATE {_named('topic_info')} SET note_format = 1")  # noqa: S608
    _change_inbox("utf8mb4", "utf8mb4_bin")


def downgrade() -> None:
    """Take it away again."""
    _change_inbox("ascii", "ascii_bin")
    with op.batch_alter_table(_named("topic_info")) as table:
        table.drop_column("note_format")
    op.drop_table(_named("outbox_identity"))


def _change_inbox(charset: str, collation: str) -> None:
    if op.get_bind().dialect.name not in ("mysql", "mariadb"):
        return
    for name, length in _INBOX.items():
        changed = mysql.VARCHAR(length, charset=charset, collation=collation)
        op.alter_column(_named("inbox"), name, type_=changed, existing_nullable=False)


def _ascii(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")
