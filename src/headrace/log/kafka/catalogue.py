"""What topics are, remembered for a while, so that appends and reads need not ask each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.errors import UnknownPartition
from headrace.model import Topic, TopicPartition

__all__ = ["Catalogue"]


class Catalogue:
    """Descriptions of topics, each trusted for `max_age_s`; many askers of one topic share one request."""

    def __init__(self, describe: Callable[[str], Awaitable[Topic]], *, max_age_s: float) -> None:
        self._describe = describe
        self._max_age_s = max_age_s
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[float, Topic]] = {}
        self._asking: dict[str, asyncio.Task[Topic]] = {}

    def fresh(self, name: str) -> Topic | None:
        """Return the topic if its description is young enough."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] > self._loop.time() else None

    async def get(self, name: str) -> Topic:
        """Return the topic, asking the brokers if need be. Raises UnknownTopic."""
        known = self.fresh(name)
        return known if known is not None else await asyncio.shield(self._ask(name))

    async def check(self, at: TopicPartition) -> None:
        """Raise UnknownTopic or UnknownPartition unless the partition is there; a small count is asked for again."""
        topic = await self.get(at.topic)
        if at.partition >= topic.partitions:
            self.forget(at.topic)
            topic = await self.get(at.topic)
        if not 0 <= at.partition < topic.partitions:
            raise UnknownPartition(at.topic, at.partition, topic.partitions)

    def remember(self, topic: Topic) -> Topic:
        """Take a description that was just made."""
        self._known[topic.name] = (self._loop.time() + self._max_age_s, topic)
        return topic

    def forget(self, name: str) -> None:
        """Ask again next time: something went wrong with the topic, or it was changed."""
        self._known.pop(name, None)
        self._asking.pop(name, None)

    async def close(self) -> None:
        """Stop asking."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _ask(self, name: str) -> asyncio.Task[Topic]:
        task = self._asking.get(name)
        if task is None:
            task = self._loop.create_task(self._refresh(name), name=f"headrace-describe-{name}")
            task.add_done_callback(_look)
            self._asking[name] = task
        return task

    async def _refresh(self, name: str) -> Topic:
        asking = asyncio.current_task()
        try:
            topic = await self._describe(name)
        except BaseException:
            self._known.pop(name, None)
            raise
        else:
            # Forgotten meanwhile means that the answer may be older than the change.
            return self.remember(topic) if self._asking.get(name) is asking else topic
        finally:
            if self._asking.get(name) is asking:
                del self._asking[name]


def _look(task: asyncio.Task[Topic]) -> None:
    """Look at the error of a request whose askers are all gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
