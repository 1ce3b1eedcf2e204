"""What a projection is, as an application says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import BadArgument
from headrace.projection.recovery import Recovery

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["Database", "Handler", "Projection", "Reset"]

Database: TypeAlias = "str | URL | Engine | AsyncEngine"

# With a database: handler(connection, event), reset(connection). Without: handler(event), reset(). Either may be
# a coroutine function where the engine is asynchronous, or where there is no database. A handler that is grouped gets
# a list of events in place of one.
Handler: TypeAlias = Callable[..., Any]
Reset: TypeAlias = Callable[..., Any]

_NAME_LENGTH = 200
_LONGEST_LEASE_S = 86_400


@dataclass(frozen=True)
class Projection:
    """Feeds a handler from a tag.

    `reset` empties what the handler made, for rebuilds. `slots` is how finely the work can be shared, fixed once the
    projection has run; `batch_size` is the most events of one transaction. `recovery` says what happens to an event
    that the handler can't handle. With `grouped` the handler gets lists of events, up to `batch_size` at once.

    Without a database the offset is stored after every `save_every` events (None: after each batch), before a worker
    stops, and before an event that fails; after a crash at most so many events come again. `lease_s` is how long a
    worker that died keeps its slots then.
    """

    name: str
    tag: str
    handler: Handler
    database: Database | None = None
    reset: Reset | None = None
    slots: int = 32
    batch_size: int = 500
    recovery: Recovery = field(default_factory=Recovery)
    grouped: bool = False
    save_every: int | None = None
    lease_s: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= _NAME_LENGTH:
            raise BadArgument("name", self.name, f"a projection's name has 1 to {_NAME_LENGTH} characters")
        if self.name != self.name.strip():  # MariaDB takes "a" and "a " for one name
            raise BadArgument("name", self.name, "a projection's name has no blanks around it")
        if not isinstance(self.tag, str) or not self.tag:
            raise BadArgument("tag", self.tag, "a projection is fed from one tag, a text that is not empty")
        if not callable(self.handler):
            raise BadArgument("handler", self.handler, "it is a function that takes an event")
        for name in ("slots", "batch_size", "save_every"):
            self._check_count(name)
        if not 0 < self.lease_s < _LONGEST_LEASE_S:
            raise BadArgument("lease_s", self.lease_s, f"it lies between 0 and {_LONGEST_LEASE_S} s")

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if name == "save_every" and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadArgument(name, value, "it is a whole number, at least 1")
