"""What a projection is, as an application says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import BadArgument

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["Database", "Handler", "Projection", "Reset"]

Database: TypeAlias = "str | URL | Engine | AsyncEngine"

# With a database: handler(connection, event), reset(connection). Without: handler(event), reset(). Either may be
# a coroutine function where the engine is asynchronous, or where there is no database.
Handler: TypeAlias = Callable[..., Any]
Reset: TypeAlias = Callable[..., Any]

_NAME_LENGTH = 200


@dataclass(frozen=True)
class Projection:
    """Feeds a handler from a tag.

    `reset` empties what the handler made, for rebuilds. `slots` is how finely the work can be shared, fixed once the
    projection has run; `batch_size` is the most events of one transaction.
    """

    name: str
    tag: str
    handler: Handler
    database: Database | None = None
    reset: Reset | None = None
    slots: int = 32
    batch_size: int = 500

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= _NAME_LENGTH:
            raise BadArgument("name", self.name, f"a projection's name has 1 to {_NAME_LENGTH} characters")
        if self.slots < 1 or self.batch_size < 1:
            raise BadArgument("slots and batch_size", (self.slots, self.batch_size), "both are at least 1")
