"""What states were written as, kept beside the layout of their keyspace: a release that can't read it is refused.

An index is no part of it: it is made of the values, and built again. Nor is a schema: the registry says what fits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.errors import StateRedeclared, UnknownTopic
from headrace.keyspace.declaration import KeyspaceSpec
from headrace.keyspace.layouts import KeyspaceLayouts, StateShape
from headrace.log import Log
from headrace.model import Topic
from headrace.state import OrderedKeys, StatePartition, StateSpec, kind_of

__all__ = ["StateShapes"]


class StateShapes:
    """Compares the declarations of states with what is stored."""

    def __init__(self, log: Log, layouts: KeyspaceLayouts) -> None:
        self._log = log
        self._layouts = layouts
        self._claiming = asyncio.Lock()

    async def check(self, keyspace: KeyspaceSpec, specs: Mapping[str, StateSpec[Any, Any]]) -> None:
        """Refuse what can't read the values that are there. Raises StateRedeclared."""
        for name in keyspace.states:
            stored, spec = self._layouts.shape(keyspace.name, name), specs[name]
            if stored is None or spec.is_external or _is_as(stored, spec):
                continue
            try:
                topic = await self._log.admin.describe(spec.topic)
            except UnknownTopic:
                continue  # nothing is stored
            if _is_about(stored, topic):
                raise _redeclared(keyspace.name, stored, spec)

    async def claim(self, keyspace: KeyspaceSpec, states: StatePartition) -> None:
        """Note what the states of a partition are written as, before anything is. Raises StateRedeclared."""
        async with self._claiming:
            for name in keyspace.states:
                replica = states.replica(name)
                if replica.spec.is_external:
                    continue
                stored, topic = self._layouts.shape(keyspace.name, name), replica.topic
                if stored is not None and _is_about(stored, topic) and not _is_as(stored, replica.spec):
                    raise _redeclared(keyspace.name, stored, replica.spec)
                if stored is None or stored.topic_id != topic.topic_id:
                    shape = StateShape(topic.name, topic.topic_id, *_kinds(replica.spec))
                    await self._layouts.put_shape(keyspace.name, name, shape)


def _kinds(spec: StateSpec[Any, Any]) -> tuple[str, str]:
    return OrderedKeys(spec.key).type_name, kind_of(spec.value)


def _is_as(stored: StateShape, spec: StateSpec[Any, Any]) -> bool:
    return (stored.key, stored.value) == _kinds(spec)


def _is_about(stored: StateShape, topic: Topic) -> bool:
    """Return False if the topic was deleted and made again. In another topic, after a resize, is what was copied."""
    return stored.topic != topic.name or stored.topic_id == topic.topic_id


def _redeclared(keyspace: str, stored: StateShape, spec: StateSpec[Any, Any]) -> StateRedeclared:
    key, value = _kinds(spec)
    if stored.key != key:
        return StateRedeclared(keyspace, spec.name, "keys", stored.key, key)
    return StateRedeclared(keyspace, spec.name, "values", stored.value, value)
