"""Errors of the outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused

__all__ = ["MissingTables", "OutdatedTables", "PublishedTooLate"]


@dataclass(eq=False)
class PublishedTooLate(Refused):
    """A message was published too late for its transaction; the commit fails, so that the message is not lost."""

    topic: str
    count: int
    reason: str
    says: ClassVar[str] = (
        "{count} message(s) for topic {topic!r} were published too late for the transaction: {reason}; "
        "publish before the commit, at the latest in a before_commit or mapper event"
    )


def _migrate(database: str, table_prefix: str) -> str:
    variable = "" if table_prefix == "kafka_" else f"HEADRACE__OUTBOX__TABLE_PREFIX={table_prefix} "
    return f"{variable}headrace outbox migrate --database '{database}'"


@dataclass(eq=False)
class MissingTables(Misconfigured):
    """The database has no outbox tables."""

    database: str
    table_prefix: str = "kafka_"

    def __str__(self) -> str:
        return (
            f"there is no outbox with tables {self.table_prefix}… in {self.database}; "
            f"run: {_migrate(self.database, self.table_prefix)}"
        )


@dataclass(eq=False)
class OutdatedTables(Misconfigured):
    """The outbox tables are of an earlier version, and lack what a relay needs."""

    database: str
    version: str
    needed: str
    table_prefix: str = "kafka_"

    def __str__(self) -> str:
        return (
            f"the outbox with tables {self.table_prefix}… in {self.database} is at version {self.version}, "
            f"this relay needs {self.needed}; run: {_migrate(self.database, self.table_prefix)}"
        )
