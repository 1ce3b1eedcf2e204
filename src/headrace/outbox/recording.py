"""Catching messages instead of storing or sending them, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from headrace.outbox.messages import EncodedMessage, Message

__all__ = ["Recorded", "record", "recording_messages"]

Recorded = list[tuple[Message, EncodedMessage]]

_recording: ContextVar[Recorded | None] = ContextVar("headrace.outbox.recording", default=None)


def record(messages: Sequence[Message], encoded: Sequence[EncodedMessage]) -> bool:
    """Keep the messages if somebody records; returns whether somebody does."""
    into = _recording.get()
    if into is None:
        return False
    into.extend(zip(messages, encoded, strict=True))
    return True


@contextmanager
def recording_messages() -> Iterator[Recorded]:
    """Gather what is published in this context, encoded and checked as ever; nothing is stored or sent."""
    caught: Recorded = []
    token = _recording.set(caught)
    try:
        yield caught
    finally:
        _recording.reset(token)
