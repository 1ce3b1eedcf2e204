"""Projections as applications define them, and their recovery when the handler fails."""

from __future__ import annotations

import enum
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headrace.errors import BadArgument
from headrace.protocol import check_tag, is_utf8
from headrace.runtime import Backoff
from headrace.tags import TaggedEvent, TagOffset

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = [
    "Database",
    "DeadLetter",
    "Handler",
    "HandlerOutcome",
    "Projection",
    "Recovery",
    "Reset",
    "letter_of",
    "reason_of",
]

_REASON_LENGTH = 1000


class HandlerOutcome(enum.StrEnum):
    """What to do with an event after the handler has failed."""

    RETRY = "retry"
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Recovery:
    """What a projection does with an event that its handler can't handle.

    The event is tried `retries` more times, after the delays of `backoff`. `then` says what follows: `"fail"` stops
    the projection before the event (a running worker tries again later), `"skip"` goes on without it, and
    `"dead-letter"` stores its offset, its error and the number of attempts, and goes on. Later events wait meanwhile,
    so that a journal's events stay in order.
    """

    then: HandlerOutcome | str = HandlerOutcome.FAIL
    retries: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, limit_s=10.0))

    def __post_init__(self) -> None:
        allowed = [str(outcome) for outcome in HandlerOutcome if outcome is not HandlerOutcome.RETRY]
        if self.then not in allowed:
            raise BadArgument("then", self.then, f"it must be one of {', '.join(allowed)}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise BadArgument("retries", self.retries, "it must be a whole number, 0 or more")

    def outcome(self, attempts: int) -> HandlerOutcome:
        """Return what to do after this number of failed attempts."""
        return HandlerOutcome.RETRY if attempts <= self.retries else HandlerOutcome(self.then)


class DeadLetter(msgspec.Struct, frozen=True):
    """An event that was set aside, with its error and the number of attempts. `offset` is its tag offset."""

    tag: str
    topic: str
    id: str
    seq_nr: int
    offset: str
    error: str
    attempts: int
    failed_ms: int

    @property
    def tag_offset(self) -> TagOffset:
        """The event's tag offset."""
        return TagOffset.parse(self.offset)

    @property
    def place_before(self) -> TagOffset:
        """The offset before the event's record; a query of its tag gives the event after it.

        It does not need the event's number under the tag, which an offset of several tags does not have.
        """
        return self.tag_offset._replace(seq_nr=self.seq_nr - 1).before_record

    def is_of(self, event: TaggedEvent) -> bool:
        """Return True if this is the letter of an event, whatever number the event has by now."""
        return event.tag_offset.time == self.tag_offset.time and event.seq_nr == self.seq_nr


def letter_of(event: TaggedEvent, error: BaseException, *, attempts: int, now_ms: int) -> DeadLetter:
    """Return the dead letter of an event."""
    return DeadLetter(
        tag=event.tag,
        topic=event.topic,
        id=event.id,
        seq_nr=event.seq_nr,
        offset=str(event.tag_offset),
        error=reason_of(error),
        attempts=attempts,
        failed_ms=now_ms,
    )


def reason_of(error: BaseException) -> str:
    """Return an error as a line of text that every database accepts."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    # A handler's message may contain anything: PostgreSQL refuses NUL, and all databases refuse half a surrogate pair.
    plain = " ".join(text.split()).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= _REASON_LENGTH else f"{plain[:_REASON_LENGTH]}…"


Database: TypeAlias = "str | URL | Engine | AsyncEngine"

# With a database: handler(connection, event), reset(connection). Without: handler(event), reset(). Both may be
# coroutine functions if the engine is asynchronous or if there is no database. A grouped handler gets a list of events
# instead of one.
Handler: TypeAlias = Callable[..., Any]
Reset: TypeAlias = Callable[..., Any]

_NAME_LENGTH = 200
_LONGEST_LEASE_S = 86_400
_SOURCE_LENGTH = 500


def _no_handler() -> None:
    """The default of `handler`, which is refused."""


@dataclass(frozen=True)
class Projection:
    """A handler that is fed from a tag, or from several `tags`: their events in one order, each once.

    `reset` empties what the handler wrote, for rebuilds. The work is shared in `slots`, whose number is fixed once the
    projection has run. A transaction has at most `batch_size` events. `recovery` says what happens to an event that
    the handler can't handle. With `grouped` the handler gets lists of up to `batch_size` events.

    Without a database the offset is stored after every `save_every` events (None: after each batch), before a worker
    stops, and before an event that fails. After a crash at most `save_every` events come again, and the dead worker
    keeps its slots for `lease_s`.
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
        """The tags that the handler is fed from, each once, sorted: their order has no meaning."""
        return (self.tag,) if self.tag else tuple(sorted(set(self.tags)))

    @property
    def source(self) -> str:
        """The tags as one text, which is stored with the offsets, because these are valid only for the same tags.

        The text of one tag is the tag. A text that is too long for a database column is replaced by a digest, and a tag
        with a NUL, which PostgreSQL refuses, is written as JSON.
        """
        if len(self.sources) == 1 and len(self.sources[0]) <= _SOURCE_LENGTH and "\0" not in self.sources[0]:
            return self.sources[0]
        text = json.dumps(self.sources, ensure_ascii=False)
        if len(text) <= _SOURCE_LENGTH:
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"{len(self.sources)} {'tag' if len(self.sources) == 1 else 'tags'}, {digest}"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= _NAME_LENGTH:
            raise BadArgument("name", self.name, f"a projection's name has 1 to {_NAME_LENGTH} characters")
        if "\0" in self.name or not is_utf8(self.name):
            raise BadArgument("name", self.name, "a projection's name is text that UTF-8 can carry, without NUL")
        if self.name != self.name.strip():  # MariaDB takes "a" and "a " for one name
            raise BadArgument("name", self.name, "a projection's name has no blanks around it")
        self._check_tags()
        if not callable(self.handler) or self.handler is _no_handler:
            raise BadArgument("handler", self.handler, "it must be a function that takes an event")
        for name, function in (("handler", self.handler), ("reset", self.reset)):
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise BadArgument(name, function, "it is a generator function, whose code would never run")
        for name in ("slots", "batch_size", "save_every"):
            self._check_count(name)
        if not 0 < self.lease_s < _LONGEST_LEASE_S:
            raise BadArgument("lease_s", self.lease_s, f"it lies between 0 and {_LONGEST_LEASE_S} s")

    def _check_tags(self) -> None:
        if not isinstance(self.tag, str):
            raise BadArgument("tag", self.tag, "it must be one tag, a text; several are given as tags=(…)")
        if isinstance(self.tags, str | bytes) or not isinstance(self.tags, Sequence):
            raise BadArgument("tags", self.tags, "it must be a tuple of tags; one tag is given as tag=…")
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
            raise BadArgument(name, value, "it must be a whole number, at least 1")
