"""Alembic's entry: runs the outbox's migrations on the connection that `headrace.outbox.migrate` hands over."""

from alembic import context

from headrace.outbox.tables import version_table

attributes = context.config.attributes
context.configure(connection=attributes["connection"], version_table=version_table(attributes["table_prefix"]))
with context.begin_transaction():
    context.run_migrations()
