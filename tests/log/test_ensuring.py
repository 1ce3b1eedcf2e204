"""Topics that several processes make at once."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import TopicExists, UnknownTopic
from headrace.log import ensure_topic
from headrace.model import Topic, TopicConfig

TOPIC = Topic(name="t", topic_id="id", partitions=2, config=TopicConfig())


class SlowAdmin:
    """A cluster that has created a topic for another process, and does not show it to everybody yet."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    async def describe(self, topic: str) -> Topic:
        self.hidden -= 1
        if self.hidden >= 0:
            raise UnknownTopic(topic)
        return TOPIC

    async def create(self, topic: str, *, partitions: int, config: TopicConfig) -> Topic:
        raise TopicExists(topic)


async def test_a_topic_that_another_process_has_just_made_is_waited_for() -> None:
    """It exists, says the cluster that refuses to create it; so it will be shown in a moment."""
    admin: Any = SlowAdmin(hidden=4)
    assert await ensure_topic(admin, "t", partitions=2, config=TopicConfig()) == TOPIC


async def test_a_topic_that_is_never_shown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever."""
    monkeypatch.setattr("headrace.log.topics._LOOKS", 3)
    admin: Any = SlowAdmin(hidden=1000)
    with pytest.raises(UnknownTopic):
        await ensure_topic(admin, "t", partitions=2, config=TopicConfig())
