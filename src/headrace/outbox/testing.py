"""Assertions for tests of applications: what was published, and what was not.

with published() as sent:
    place_order(session, ...)
sent.assert_sent("orders", {"id": 1}, key="order-1")
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.outbox.messages import EncodedMessage, Message
from headrace.outbox.producers import Recorded, recording_messages

__all__ = ["PublishedMessages", "published"]

_ANY: Any = object()


@contextmanager
def published() -> Iterator[PublishedMessages]:
    """Catch what is published in the block, by blocking code or coroutines; nothing is stored or sent."""
    with recording_messages() as recorded:
        yield PublishedMessages(recorded)


class PublishedMessages:
    """What was published, in order. A failed assertion shows the closest message."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    @property
    def messages(self) -> list[tuple[str, Message]]:
        """Topics and messages, as they were given."""
        return [(encoded.topic, message) for message, encoded in self._recorded]

    @property
    def encoded(self) -> list[EncodedMessage]:
        """The rows that would have been stored."""
        return [encoded for _, encoded in self._recorded]

    def assert_sent(self, topic: str, payload: Any, *, key: Any = _ANY) -> None:  # noqa: ANN401
        """Fail unless a message with exactly this payload, and key where given, was published to the topic."""
        if not any(_is_same(message, payload, key) for message in self._of(topic)):
            raise AssertionError(self._failure(topic, "with", payload, key))

    def assert_sent_including(self, topic: str, part: Mapping[str, Any], *, key: Any = _ANY) -> None:  # noqa: ANN401
        """Fail unless a message whose payload includes these fields was published to the topic."""
        if not any(_includes(message.payload, part) and _has_key(message, key) for message in self._of(topic)):
            raise AssertionError(self._failure(topic, "including", part, key))

    def assert_not_sent(self, topic: str, payload: Any = _ANY, *, key: Any = _ANY) -> None:  # noqa: ANN401
        """Fail if such a message, or without a payload any message at all, was published to the topic."""
        for message in self._of(topic):
            if _is_same(message, payload, key):
                raise AssertionError(f"this was published to {topic!r}, and should not: {_shown(message)}")

    def _of(self, topic: str) -> list[Message]:
        return [message for at, message in self.messages if at == topic]

    def _failure(self, topic: str, how: str, payload: object, key: object) -> str:
        wanted = _shown(Message(payload, None if key is _ANY else key))
        failure = f"no message {how} {wanted} was published to {topic!r}"
        candidates = self.messages
        if not candidates:
            return f"{failure}; nothing was published at all"
        here = [each for each in candidates if each[0] == topic]
        at, closest = max(here or candidates, key=lambda each: _likeness(_shown(each[1]), wanted))
        return f"{failure}; the closest of {len(here)} there and {len(candidates)} in all, on {at!r}: {_shown(closest)}"


def _is_same(message: Message, payload: object, key: object) -> bool:
    return (payload is _ANY or message.payload == payload) and _has_key(message, key)


def _has_key(message: Message, key: object) -> bool:
    return key is _ANY or message.key == key


def _includes(payload: object, part: Mapping[str, Any]) -> bool:
    def field(name: str) -> object:
        return payload.get(name, _ANY) if isinstance(payload, Mapping) else getattr(payload, name, _ANY)

    return all(
        _includes(field(name), value) if isinstance(value, Mapping) else field(name) == value
        for name, value in part.items()
    )


def _shown(message: Message) -> str:
    key = "" if message.key is None else f" under key {message.key!r}"
    return f"{message.payload!r}{key}"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
