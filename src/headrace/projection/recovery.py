"""What happens when a handler fails: stop there, pass over the event, or set it aside as a dead letter. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from headrace.errors import BadArgument
from headrace.runtime import Backoff
from headrace.tags import TaggedEvent, TagOffset

__all__ = ["DeadLetter", "Outcome", "Recovery", "letter_of", "reason_of"]

_REASON_LENGTH = 1000


class Outcome(enum.StrEnum):
    """What becomes of an event that could not be handled."""

    RETRY = "retry"
    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Recovery:
    """What a projection does about an event that its handler can't handle.

    It is tried `retries` times more, after the waits of `backoff`. `then` is what follows: `"fail"` stops the
    projection before the event (a running worker starts again after a while), `"skip"` passes over it, and
    `"dead-letter"` stores where it is, its error and the number of attempts, and goes on. The events behind it wait
    meanwhile, so that a journal's events stay in order.
    """

    then: Outcome | str = Outcome.FAIL
    retries: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.1, limit_s=10.0))

    def __post_init__(self) -> None:
        allowed = [str(outcome) for outcome in Outcome if outcome is not Outcome.RETRY]
        if self.then not in allowed:
            raise BadArgument("then", self.then, f"it is one of {', '.join(allowed)}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise BadArgument("retries", self.retries, "it is a whole number, 0 or more")

    def outcome(self, attempts: int) -> Outcome:
        """Return what to do after so many attempts have failed."""
        return Outcome.RETRY if attempts <= self.retries else Outcome(self.then)


class DeadLetter(msgspec.Struct, frozen=True):
    """An event that was set aside: where it is, why, and after how many attempts. `offset` is its tag offset."""

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
        """The event's place under its tag."""
        return TagOffset.parse(self.offset)

    @property
    def place_before(self) -> TagOffset:
        """The place before the event's record, from where a query of its tag gives it.

        The event's number under the tag is not needed for it: with several tags the offset does not tell that.
        """
        return self.tag_offset._replace(seq_nr=self.seq_nr - 1).before_record

    def is_of(self, event: TaggedEvent) -> bool:
        """Say whether it is the letter of an event, whatever number that has by now."""
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
    """Return an error as a line of text that a database takes."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    # A handler's message may quote anything: PostgreSQL takes no NUL, and nothing takes half a surrogate pair.
    plain = " ".join(text.split()).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= _REASON_LENGTH else f"{plain[:_REASON_LENGTH]}…"
