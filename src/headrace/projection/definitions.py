"""What a projection is, as an application says it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import BadArgument
from headrace.journal.limits import check_tag
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
_SOURCE_LENGTH = 500


def _no_handler() -> None:
    """Stand for a handler that was forgotten."""


@dataclass(frozen=True)
class Projection:
    """Feeds a handler from a tag, or with `tags` from several: their events in one order, each once.

    `reset` empties what the handler made, for rebuilds. `slots` is how finely the work can be shared, fixed once the
    projection has run; `batch_size` is the most events of one transaction. `recovery` says what happens to an event
    that the handler can't handle. With `grouped` the handler gets lists of events, up to `batch_size` at once.

    Without a database the offset is stored after every `save_every` events (None: after each batch), before a worker
    stops, and before an event that fails; after a crash at most so many events come again. `lease_s` is how long a
    worker that died keeps its slots then.
    """

    name: str
    tag: str = ""
    handler: Handler = _no_handler
    database: Database | None = None
    reset: Reset | None = None
    slots: int = 32
    batch_size: int = 500
    recovery: Recovery = field(default_factory=Recovery)
    grouped: bool = False
    save_every: int | None = None
    lease_s: float = 10.0
    tags: Sequence[str] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The tags that the handler is fed from, each once, sorted: their order means nothing."""
        return (self.tag,) if self.tag else tuple(sorted(set(self.tags)))

    @property
    def source(self) -> str:
        """The tags as one text, which is stored with the offsets: they mean nothing for other tags.

        One tag is its own text. Texts that a database's column does not hold are told apart by a digest.
        """
        if len(self.sources) == 1:
            return self.sources[0]
        text = json.dumps(self.sources, ensure_ascii=False)
        if len(text) <= _SOURCE_LENGTH:
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"{len(self.sources)} tags, {digest}"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= _NAME_LENGTH:
            raise BadArgument("name", self.name, f"a projection's name has 1 to {_NAME_LENGTH} characters")
        if self.name != self.name.strip():  # MariaDB takes "a" and "a " for one name
            raise BadArgument("name", self.name, "a projection's name has no blanks around it")
        self._check_tags()
        if not callable(self.handler) or self.handler is _no_handler:
            raise BadArgument("handler", self.handler, "it is a function that takes an event")
        for name in ("slots", "batch_size", "save_every"):
            self._check_count(name)
        if not 0 < self.lease_s < _LONGEST_LEASE_S:
            raise BadArgument("lease_s", self.lease_s, f"it lies between 0 and {_LONGEST_LEASE_S} s")

    def _check_tags(self) -> None:
        if not isinstance(self.tag, str):
            raise BadArgument("tag", self.tag, "it is one tag, a text; several are given as tags=(…)")
        if isinstance(self.tags, str | bytes) or not isinstance(self.tags, Sequence):
            raise BadArgument("tags", self.tags, "it is a tuple of tags; one tag is given as tag=…")
        if bool(self.tag) == bool(self.tags):
            raise BadArgument("tag", self.tag or "", "a projection is fed from one `tag`, or from several `tags`")
        for tag in self.tags:
            check_tag(tag, "tags")
        if self.tag:
            check_tag(self.tag)

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if name == "save_every" and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadArgument(name, value, "it is a whole number, at least 1")
