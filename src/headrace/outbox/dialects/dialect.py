"""The port of a database's dialect, and which dialect a database speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Condition", "Dialect"]

Condition: TypeAlias = tuple[str, dict[str, Any]]
"""A piece of SQL and its parameters."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """SQL in pieces.

    `now_ms` is the server's clock, `key` the column of that name, which some take for a word of their own.
    `pending_lanes` selects topic and bucket of what waits, each once, without reading every row where the database
    can be made to skip. `delete_messages` ends before the condition on the ids. `row_bytes` is what a message of the
    table called m takes. `with_messages` finds messages by id and event id: a database that was restored, or made
    again, may have given the id to another message. `without_ids` is written so that no index is chosen by it.
    """

    name: str
    key: str
    now_ms: str
    insert_or_ignore: tuple[str, str]
    pending_lanes: str
    delete_messages: str
    lock_rows: str
    row_bytes: str
    with_ids: Callable[[Sequence[int]], Condition]
    without_ids: Callable[[Sequence[int]], Condition]
    with_messages: Callable[[Mapping[int, str]], Condition]

    def insert_ignoring(self, table: str, columns: Sequence[str]) -> str:
        """Return an insert of one row that does nothing when the row is there already."""
        before, after = self.insert_or_ignore
        names, values = ", ".join(columns), ", ".join(f":{column}" for column in columns)
        return f"{before} INTO {table} ({names}) VALUES ({values}) {after}"
