"""The port of a SQL database: its SQL, its driver, its connections and its error codes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import URL, Engine
from sqlalchemy.engine import Connection

__all__ = ["CONNECT_S", "READS", "Condition", "Dialect", "Translation", "ignored", "unasked", "whole_s"]

Condition: TypeAlias = tuple[str, dict[str, Any]]
"""A piece of SQL and its parameters."""

Translation: TypeAlias = Callable[[str], dict[str, str]]
"""Turns the value of another driver's URL argument into arguments of ours."""

READS = "headrace_reads"
"""The execution option of a connection that writes nothing."""

CONNECT_S = 10


class Dialect(ABC):
    """What the outbox must know about one database.

    SQL: `key` is the column of that name, which is a reserved word for some. `now_ms` is the server's clock.
    `pending_lanes` selects topic and bucket of all lanes with messages, each once, without reading every row where the
    database can be made to skip. `delete_messages` ends before the condition on the ids. `lock_rows` ends a select
    whose rows nobody else may change. `row_bytes` is the size of a message of the table called m. `migration_lock`
    has the statements that take and free a lock between processes that migrate.
    Connections: `driver` is the blocking driver that the relay uses, and `extra` installs it. `translations` has, by
    the name of another driver, the URL arguments that only that one knows.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    now_ms: ClassVar[str]
    insert_or_ignore: ClassVar[tuple[str, str]]
    pending_lanes: ClassVar[str] = "SELECT DISTINCT topic, bucket FROM kafka_messages"
    delete_messages: ClassVar[str] = "DELETE FROM kafka_messages WHERE "
    lock_rows: ClassVar[str] = "FOR UPDATE"
    row_bytes: ClassVar[str]
    migration_lock: ClassVar[tuple[str, str] | None] = None
    driver: ClassVar[str | None] = None
    extra: ClassVar[str] = "outbox"
    translations: ClassVar[Mapping[str, Mapping[str, Translation]]] = {}

    def insert_ignoring(self, table: str, columns: Sequence[str]) -> str:
        """Return an insert of one row that does nothing when the row is there already."""
        before, after = self.insert_or_ignore
        names, values = ", ".join(columns), ", ".join(f":{column}" for column in columns)
        return f"{before} INTO {table} ({names}) VALUES ({values}) {after}"

    @abstractmethod
    def with_ids(self, ids: Sequence[int]) -> Condition:
        """Return the condition that the id is one of these."""

    @abstractmethod
    def without_ids(self, ids: Sequence[int]) -> Condition:
        """Return the condition that the id is none of these, written so that no index is chosen by it."""

    @abstractmethod
    def with_messages(self, event_ids: Mapping[int, str]) -> Condition:
        """Return the condition that both the id and the event id are among these.

        A database that was restored, or made again, may have given the id to another message.
        """

    @abstractmethod
    def session_options(self, url: URL, *, patience_s: float | None) -> dict[str, Any]:
        """Return the arguments of create_engine. What the URL's query asks for wins over them.

        With `patience_s` the server ends a transaction that stands still for longer.
        """

    @abstractmethod
    def prepare(self, engine: Engine, *, relaxed: bool, patience_s: float | None) -> None:
        """Add listeners that set what can't be set while a session connects, for each session or transaction."""

    def options_of_reads(self, connection: Connection) -> dict[str, Any]:
        """Return the execution options of a connection, in no transaction yet, that is to read only."""
        return {}

    @abstractmethod
    def cut(self, connection: Any) -> None:  # noqa: ANN401 - the driver's own
        """Cut a driver's connection under the thread that waits for its answer. May raise what the driver raises."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool | None:
        """Return True if a driver's error is the database's own fault, by its code; None if it has no such code."""

    @abstractmethod
    def is_about_sql(self, error: BaseException) -> bool:
        """Return True for an operational error that the database gave to a statement, and not to the connection."""


def ignored(_value: str) -> dict[str, str]:
    """Leave the argument out."""
    return {}


def unasked(url: URL, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of our arguments that the URL's query does not have."""
    return {name: value for name, value in ours.items() if name not in url.query}


def whole_s(patience_s: float) -> int:
    """Return the patience in whole seconds, 2 at least: MySQL counts so."""
    return max(2, math.ceil(patience_s))
