"""Requests of a socket with many keys: what its client asks for, as JSON text, its collections, and its messages.

The layout is in docs/formats.md. The frames of a collection are those of a snapshot in pages and of the changes after
it. They are sent as they are made, so a slow client makes the collection wait, and memory is bounded: a client that
falls too far behind gets a new snapshot. Messages to one key are handled in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeAlias

import msgspec

from headrace.access import Caller
from headrace.errors import BadArgument, Busy, HeadraceError, NotFound
from headrace.gateway.keyspaces import KeyspaceRoutes, ServedKeyspace
from headrace.gateway.problems import problem_of
from headrace.gateway.socket_wire import Say, encode_pair
from headrace.gateway.state_forms import StateForm, json_of
from headrace.keyspace import CollectionEvent, KeyspaceClient
from headrace.protocol import check_text
from headrace.state import StateChange

__all__ = [
    "MANY_KEYS",
    "Collect",
    "CollectionFrames",
    "Publish",
    "SocketMessages",
    "SocketRequest",
    "Subscribe",
    "Unsubscribe",
    "asked_in",
    "send_collection",
    "socket_request",
]

MANY_KEYS = "headrace.v1"
_MOST_ID_CHARS = 255


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe", tag_field="op", forbid_unknown_fields=True):
    """Follow one key. With `deltas` a change that has an increment is pushed as that alone."""

    id: int
    keyspace: str
    state: str
    key: str
    after: str | None = None
    format: Literal["json", "avro"] = "json"
    deltas: bool = False
    token: str | None = None


class Collect(msgspec.Struct, frozen=True, tag="collect", tag_field="op", forbid_unknown_fields=True):
    """Follow a collection: all keys of a state, or those of a prefix, from `start` on and before `end`.

    `after` are places by partition, whose numbers are texts in JSON.
    """

    id: int
    keyspace: str
    state: str
    prefix: Any = None
    start: Any = None
    end: Any = None
    after: dict[str, str] = {}
    format: Literal["json", "avro"] = "json"
    deltas: bool = False

    def places(self) -> dict[int, str]:
        """Return the places by partition. Raises BadArgument."""
        wrong = [each for each in self.after if not (each.isascii() and each.isdigit() and len(each) < 7)]
        if wrong:
            raise BadArgument("after", wrong[0][:60], "it must have the numbers of partitions")
        return {int(partition): place for partition, place in self.after.items()}


class Unsubscribe(msgspec.Struct, frozen=True, tag="unsubscribe", tag_field="op", forbid_unknown_fields=True):
    """End a subscription, of a key or of a collection."""

    id: int


class Publish(msgspec.Struct, frozen=True, tag="publish", tag_field="op", forbid_unknown_fields=True):
    """Send a message to its handler. With a `message_id` it may be sent again: it is handled once."""

    id: int
    keyspace: str
    message: str
    data: dict[str, Any]
    message_id: str | None = None


SocketRequest: TypeAlias = Subscribe | Collect | Unsubscribe | Publish
_requests: msgspec.json.Decoder[SocketRequest] = msgspec.json.Decoder(SocketRequest)


class _Numbered(msgspec.Struct, frozen=True):
    id: int
    op: str = ""


def asked_in(frame: str | bytes) -> tuple[int, str] | None:
    """Return the number and the kind of a request that is wrong in another part; None if it has no number.

    An error of one request is sent for that request alone: the others of the socket go on.
    """
    try:
        found = msgspec.json.decode(frame, type=_Numbered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found.id, found.op


def socket_request(frame: str | bytes) -> SocketRequest:
    """Return what a frame asks for. Raises BadArgument."""
    try:
        return _requests.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadArgument("frame", f"{len(frame)} characters", f"it is no request of {MANY_KEYS}: {error}") from error


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
                yield encode_pair(self._number, event.partition, _key_json(key), pair, await self._state.to_avro(value))
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
            return encode_pair(self._number, partition, _key_json(change.key), change, avro, is_delta=is_delta)
        content: dict[str, Any] = {"partition": partition, "offset": change.token, "key": json_of(change.key)}
        content["delta" if is_delta else "value"] = form.to_json(value)
        if change.is_expiry:
            content["is_expiry"] = True
        return self._text("change", **content)

    def _text(self, op: str, **content: Any) -> str:  # noqa: ANN401
        return msgspec.json.encode({"op": op, "id": self._number, **content}).decode()


def _key_json(key: Any) -> bytes:  # noqa: ANN401
    return msgspec.json.encode(json_of(key))


class SocketMessages:
    """The messages of one socket that are on their way. Each is answered with its reply, or with a problem."""

    def __init__(self, say: Say, caller: Caller, routes: KeyspaceRoutes, *, limit: int) -> None:
        self._say = say
        self._caller = caller
        self._routes = routes
        self._limit = limit
        self._last: dict[tuple[str, Any], asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """What runs, to be cancelled when the socket ends."""
        return self._running

    async def take(self, request: Publish) -> None:
        """Begin to send a message, behind those to the same key; a refusal is sent to the client."""
        try:
            client, message, key = self._checked(request)
        except HeadraceError as error:
            await self.refuse(request.id, error)
            return
        place = (request.keyspace, key)
        task = asyncio.ensure_future(self._send(self._last.get(place), client, message, request))
        self._last[place] = task
        self._running.add(task)
        task.add_done_callback(lambda done: self._forget(place, done))

    def _checked(self, request: Publish) -> tuple[KeyspaceClient, Any, Any]:
        """Return the message and its key.

        Raises Forbidden, NotFound, NotDecodable, BadArgument, Busy, RequestFailed.
        """
        self._caller.check("command", "keyspace", request.keyspace)
        if len(self._running) >= self._limit:
            raise Busy("this socket (messages)", self._limit)
        if request.message_id is not None:
            check_text("message_id", request.message_id, least=1, most=_MOST_ID_CHARS)
        served = self._routes.served(request.keyspace)
        form = self._routes.messages(request.keyspace).get(request.message)
        if form is None:
            raise NotFound(f"message {request.message[:60]!r} of keyspace {request.keyspace!r}")
        message = form.from_json(request.data)
        key = served.client.key_of(message)
        if key is None:
            raise NotFound(f"message {request.message!r} to a single key; it is for all partitions: send it by HTTP")
        return served.client, message, key

    async def _send(
        self,
        before: asyncio.Task[None] | None,
        client: KeyspaceClient,
        message: Any,  # noqa: ANN401
        request: Publish,
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            reply = await client.ack(message, message_id=request.message_id)
        except Exception as error:  # what a handler raises is an answer, as over HTTP
            await self.refuse(request.id, error)
            return
        await self._say(msgspec.json.encode({"op": "published", "id": request.id, "reply": json_of(reply)}).decode())

    async def refuse(self, number: int, error: BaseException) -> None:
        """Tell the client that a message was not handled, and why."""
        refused = {"op": "refused", "id": number, "problem": problem_of(error).to_json("")}
        await self._say(msgspec.json.encode(refused).decode())

    def _forget(self, place: tuple[str, Any], done: asyncio.Task[None]) -> None:
        self._running.discard(done)
        if self._last.get(place) is done:
            del self._last[place]
        if not done.cancelled():
            done.exception()  # the wire is gone; the socket ends for the same reason
