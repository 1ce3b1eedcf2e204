"""Tries of an inbox that the database cut off, counted apart from those that failed."""

import sqlalchemy as sa
from alembic import context, op

from headrace.outbox.migration_steps import keeps_each_step

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMN = "interruptions"


def _table() -> str:
    return f"{context.config.attributes['table_prefix']}inbox_failures"


def upgrade() -> None:
    """Add the count, unless an interrupted run has added it."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(_table())}
    if not (keeps_each_step() and _COLUMN in there):
        op.add_column(_table(), sa.Column(_COLUMN, sa.Integer, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    """Take it away again."""
    with op.batch_alter_table(_table()) as table:
        table.drop_column(_COLUMN)
