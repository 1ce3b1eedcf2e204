"""The inbox of a consumer that writes with Django's connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from headrace.model import Record
from headrace.outbox.django.publish import need_transaction, outbox_settings
from headrace.outbox.inbox import Inbox

__all__ = ["DjangoInbox"]

_PARAMETER = re.compile(r"(?<!:):(\w+)")


class DjangoInbox:
    """Remembers which events a consumer has handled, in the transaction that is open on a database of Django's.

    Promises: of all deliveries of an event to one consumer exactly one `accept` that is committed returned True. The
    table is that of `headrace.outbox.Inbox`. Does not promise: to count failures, as `Inbox.handle` does.
    """

    def __init__(self, consumer: str, *, table_prefix: str | None = None) -> None:
        prefix = outbox_settings().table_prefix if table_prefix is None else table_prefix
        self._inbox = Inbox(consumer, table_prefix=prefix)

    def accept(self, record: Record, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Return True if the event is new to the consumer, and remember it with the transaction.

        Raises BadArgument outside of a transaction.
        """
        connection = connections[using]
        need_transaction(connection, using, "accept")
        return _execute(connection, *self._inbox.accepting(connection.vendor, record)) == 1

    def forget(self, *, older_than_s: float, using: str = DEFAULT_DB_ALIAS) -> int:
        """Forget events that came longer ago than any duplicate could take; returns how many."""
        connection = connections[using]
        return _execute(connection, *self._inbox.forgetting(connection.vendor, older_than_s))


def _execute(connection: Any, sql: str, parameters: Mapping[str, Any]) -> int:  # noqa: ANN401 - Django's, untyped
    """Run a statement whose parameters are written :name, and return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(_PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%")), dict(parameters))
        return int(cursor.rowcount)
