"""An application: keyspaces, streams and routes as one thing that a node runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import BadArgument
from headrace.keyspace.declaration import Keyspace, shared_topic_rule
from headrace.keyspace.streams import InputStream

__all__ = ["App"]


class App:
    """What a node serves. Apps are made of keyspaces and of other apps, so small pieces compose.

    `routes` are ASGI routes for the gateway; `streams` are run by every node, which share their partitions.
    """

    def __init__(
        self, *parts: type[Keyspace] | App, streams: Sequence[InputStream] = (), routes: Sequence[Any] = ()
    ) -> None:
        self.keyspaces: dict[str, type[Keyspace]] = {}
        self.streams: list[InputStream] = []
        self.routes: list[Any] = []
        for part in parts:
            self._add(part)
        self.streams += streams
        self.routes += routes
        _check_groups(self.streams)
        self.own_topics()

    def own_topics(self) -> dict[str, tuple[str, str]]:
        """Return the topics that the owners of the keyspaces write, each with its keyspace and state.

        Raises BadArgument if two keyspaces have one topic.
        """
        found: dict[str, tuple[str, str]] = {}
        for kind in self.keyspaces.values():
            for topic, name in kind.spec.own_topics().items():
                if topic in found:
                    raise BadArgument("topic", topic, shared_topic_rule(*found[topic]))
                found[topic] = (kind.spec.name, name)
        return found

    def _add(self, part: type[Keyspace] | App) -> None:
        if isinstance(part, App):
            for each in part.keyspaces.values():
                self._add(each)
            self.streams += part.streams
            self.routes += part.routes
        elif isinstance(part, type) and issubclass(part, Keyspace):
            known = self.keyspaces.setdefault(part.spec.name, part)
            if known is not part:
                rule = f"{known.__qualname__} and {part.__qualname__} have the same name; give one another"
                raise BadArgument("keyspace", part.spec.name, rule)
        else:
            raise BadArgument("app", part, "an application is made of classes that derive from Keyspace, and of Apps")


def _check_groups(streams: Sequence[InputStream]) -> None:
    """Refuse two streams of one group: each would get half of the records."""
    seen: set[str] = set()
    for group in _groups(streams):
        if group in seen:
            raise BadArgument("streams", group, "two streams have this group; give one of them another")
        seen.add(group)


def _groups(streams: Sequence[InputStream]) -> Iterator[str]:
    return (stream.group for stream in streams)
