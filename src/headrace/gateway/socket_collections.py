"""Collections on a socket: the frames of a snapshot in pages and of the changes after it.

Frames are sent as they are made, so a slow client makes the collection wait, and memory is bounded: a client that falls
too far behind gets a new snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from headrace.errors import BadArgument
from headrace.gateway.keyspaces import ServedKeyspace
from headrace.gateway.pushes import encode_pair
from headrace.gateway.socket_requests import Collect
from headrace.gateway.socket_wire import Say
from headrace.gateway.state_forms import StateForm, json_of
from headrace.keyspace import CollectionEvent
from headrace.state import StateChange

__all__ = ["CollectionFrames", "send_collection"]


async def send_collection(say: Say, served: ServedKeyspace, state: StateForm, request: Collect) -> None:
    """Send a collection until cancelled. Raises BadArgument, and what ends the subscription."""
    found = served.client.collection(
        state.name,
        prefix=state.bound("prefix", request.prefix),
        start=state.bound("start", request.start),
        end=state.bound("end", request.end),
        after=request.places(),
    )
    frames = CollectionFrames(request, state)
    async with contextlib.aclosing(found) as events:  # type: ignore[type-var]
        async for event in events:
            async for frame in frames.of(event):
                await say(frame)


class CollectionFrames:
    """The frames of a collection's events, in the format that the subscription asked for."""

    def __init__(self, request: Collect, state: StateForm) -> None:
        if request.format == "avro" and not state.is_avro:
            raise BadArgument("format", "avro", f"values of state {state.name!r} have no Avro form; use json")
        self._number = request.id
        self._is_avro = request.format == "avro"
        self._has_deltas = request.deltas
        self._state = state

    async def of(self, event: CollectionEvent) -> AsyncIterator[str | bytes]:
        """Yield the frames of an event: one, or one for each pair of a page in Avro."""
        if event.kind == "begin":
            yield self._text("begin", partitions=event.partitions)
        elif event.kind == "reset":
            yield self._text("reset", partition=event.partition, **({"is_lagged": True} if event.is_lagged else {}))
        elif event.kind == "ready":
            yield self._text("ready", partition=event.partition, offset=event.token)
        elif event.change is not None:
            yield await self._change(event.partition, event.change)
        elif self._is_avro:
            for key, value in event.pairs:
                pair = StateChange(key, value, 0, "", is_present=True)
                yield encode_pair(self._number, event.partition, _key(key), pair, await self._state.to_avro(value))
        elif event.pairs:
            pairs = [{"key": json_of(key), "value": self._state.to_json(value)} for key, value in event.pairs]
            yield self._text("pairs", partition=event.partition, pairs=pairs)

    async def _change(self, partition: int, change: StateChange[Any, Any]) -> str | bytes:
        form, value = self._state, change.value
        is_delta = self._has_deltas and change.delta is not None and form.deltas is not None
        if is_delta and form.deltas is not None:
            form, value = form.deltas, change.delta
        if self._is_avro and form.is_avro:
            avro = b"" if value is None else await form.to_avro(value)
            return encode_pair(self._number, partition, _key(change.key), change, avro, is_delta=is_delta)
        content: dict[str, Any] = {"partition": partition, "offset": change.token, "key": json_of(change.key)}
        content["delta" if is_delta else "value"] = form.to_json(value)
        if change.is_expiry:
            content["is_expiry"] = True
        return self._text("change", **content)

    def _text(self, op: str, **content: Any) -> str:  # noqa: ANN401
        return msgspec.json.encode({"op": op, "id": self._number, **content}).decode()


def _key(key: Any) -> bytes:  # noqa: ANN401
    return msgspec.json.encode(json_of(key))
