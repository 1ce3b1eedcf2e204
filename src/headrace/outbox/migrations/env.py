"""Alembic's entry: runs the outbox's migrations on the connection that `headrace.outbox.migrate` hands over."""

from alembic import context

from headrace.outbox.migrating import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
