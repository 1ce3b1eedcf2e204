"""WebSockets on keys: the present value, then each change as it is committed.

A socket on one key is plain: frames are values, as framed Avro or as JSON. A socket of the sub-protocol `headrace.v1`
carries many keys, with the place to resume after in each push. The layout of all frames is in docs/formats.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from headrace.access import Caller
from headrace.errors import (
    BadArgument,
    Busy,
    HeadraceError,
    NotFound,
    Unauthenticated,
    Unavailable,
    UnknownSchema,
)
from headrace.gateway.feeds import KeyFeeds
from headrace.gateway.keyspaces import KeyspaceRoutes, ServedKeyspace
from headrace.gateway.limits import Slots
from headrace.gateway.metrics import REFUSED
from headrace.gateway.problems import problem_of
from headrace.gateway.socket_requests import (
    MANY_KEYS,
    Collect,
    Publish,
    SocketMessages,
    Subscribe,
    Unsubscribe,
    asked_in,
    send_collection,
    socket_request,
)
from headrace.gateway.socket_wire import (
    NO_SCHEMA,
    SIGN_OF_LIFE,
    VALUE,
    PushQueue,
    SocketLeft,
    SocketTypes,
    SocketWire,
    encode_push,
    schema_id_asked,
)
from headrace.gateway.state_forms import MessageForm, StateForm
from headrace.observe import get_logger
from headrace.serde import Registry, is_framed, schema_id_of
from headrace.state import StateChange

__all__ = ["AVRO_PROTOCOL", "JSON_PROTOCOL", "MANY_KEYS", "SocketTerms", "Sockets"]

JSON_PROTOCOL = "headrace.json"
AVRO_PROTOCOL = "headrace.avro"

RESTARTING, TRY_LATER, REFUSED_AT = 1012, 1013, 4000
_HEARTBEAT_S = 5.0
_FRAMES_AT_ONCE = 16

_logger = get_logger(__name__)


class SocketTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What all sockets of a gateway share."""

    slots: Slots
    closing: asyncio.Event
    max_subscriptions: int
    max_waiting: int
    is_closing_slow: bool


class Sockets:
    """Opens sockets. `serve_key` is for one key, `serve_many` for the sub-protocol with many."""

    def __init__(self, routes: KeyspaceRoutes, registry: Registry, terms: SocketTerms) -> None:
        self._routes = routes
        self._registry = registry
        self._terms = terms
        self._feeds = KeyFeeds()

    async def serve_key(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        caller: Caller,
        path: dict[str, str],
        after: str | None,
        *,
        charge: Callable[[], None],
    ) -> None:
        """Serve a socket on one key. Raises Forbidden, NotFound, BadArgument before it is accepted.

        `charge` counts a frame of the client as a request; it raises RateExceeded.
        """
        caller.check("read", "keyspace", path["keyspace"])
        served, state = self._routes.form(path["keyspace"], path["state"])
        key = state.key(path["key"])
        is_json = JSON_PROTOCOL in scope["subprotocols"] or not state.is_avro
        end = _SocketEnd(SocketWire(scope, receive, send), self._terms, caller, self._feeds, charge)
        socket = _KeySocket(end, served, state, key, self._types(served), is_json=is_json)
        # A browser that offers sub-protocols, because its token is one, gives up if none of them is chosen.
        protocol = next((each for each in (JSON_PROTOCOL, AVRO_PROTOCOL) if each in scope["subprotocols"]), None)
        with self._terms.slots.take():
            await socket.run(protocol, after)

    async def serve_many(
        self, scope: Scope, receive: Receive, send: Send, caller: Caller, *, charge: Callable[[], None]
    ) -> None:
        """Serve a socket of the sub-protocol `headrace.v1`. Raises BadArgument if the client does not speak it."""
        if MANY_KEYS not in scope["subprotocols"]:
            # What was offered instead is not shown: a token may be among it.
            raise BadArgument("sub-protocol", f"{len(scope['subprotocols'])} others", f"this socket speaks {MANY_KEYS}")
        end = _SocketEnd(SocketWire(scope, receive, send), self._terms, caller, self._feeds, charge)
        with self._terms.slots.take():
            types = [self._types(self._routes.served(name)) for name in self._routes.names if _may_read(caller, name)]
            await _ManySocket(end, self._routes, types).run(MANY_KEYS)

    def _types(self, served: ServedKeyspace) -> SocketTypes:
        return SocketTypes(self._registry, served, self._routes.messages(served.spec.name))


class _SocketEnd(NamedTuple):
    """This end of a socket: its connection, who is at the other end, and what all sockets share."""

    wire: SocketWire
    terms: SocketTerms
    caller: Caller
    feeds: KeyFeeds
    charge: Callable[[], None]


class _Socket:
    """What both kinds of sockets do: read, write, and end together."""

    def __init__(self, end: _SocketEnd) -> None:
        self.wire, self.terms, self.caller, self.feeds, self.charge = end
        self.queue = PushQueue(self.terms.max_waiting, is_closing=self.terms.is_closing_slow)
        self.following: dict[int, asyncio.Task[None]] = {}
        self.pushing = asyncio.Lock()

    async def live(self, receiving: Awaitable[None]) -> None:
        """Run until the client leaves, the gateway stops, the token ends, or something fails; then close.

        Nothing is pushed after the reason was sent: a client that is slow to read must not go on getting values.
        """
        tasks = {
            asyncio.ensure_future(receiving),
            asyncio.ensure_future(self._write()),
            asyncio.ensure_future(self._expire()),
        }
        stop = asyncio.ensure_future(self.terms.closing.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled({*tasks, stop, *self.following.values(), *self.working()})
        for task in done - {stop}:
            await self._end(task.exception())
        if stop in done:
            await self.wire.close(RESTARTING, "the gateway stops; connect again")

    def working(self) -> Iterable[asyncio.Task[None]]:
        """Return further tasks, which end with the socket."""
        return ()

    async def follow(
        self,
        number: int,
        served: ServedKeyspace,
        state: StateForm,
        key: Any,  # noqa: ANN401
        after: str | None,
        token: str | None = None,
        *,
        is_avro: bool,
    ) -> None:
        """Push the changes of a key, until cancelled. Raises what ends the subscription."""
        if is_avro:
            await state.open_avro()

        def source(after: str | None) -> AsyncIterator[StateChange[Any, Any]]:
            return served.client.changes(state.name, key, after=after, heartbeat_s=_HEARTBEAT_S, at_least=token)

        name = (served.spec.name, state.name, key)
        await self.feeds.follow(name, source, after, partial(self.push, number))

    def push(self, number: int, change: StateChange[Any, Any]) -> None:
        """Write a change at once if nothing is on its way to a client that takes it; otherwise it waits in the queue.

        A frame that can't be made waits there, too: this socket's writer finds that out again, and ends it alone.
        """
        if not self.queue.waiting and self.wire.is_ready() and not self.pushing.locked():
            try:
                frame = self.frame_of(number, change)
                if frame is not None:
                    self.wire.write(frame)
            except Exception as error:  # of this socket: all others on the key get the change from the same caller
                _logger.info("a frame can't be made or written", error=repr(error))
            else:
                return
        self.queue.put(number, change)

    def frame_of(self, number: int, change: StateChange[Any, Any]) -> str | bytes | None:
        """Return the frame of a change; None if the client has it already."""
        raise NotImplementedError

    async def _write(self) -> None:
        while True:
            await self.queue.wait()
            # What a subscription still sends goes out before the news that it has ended, which is sent by `say`.
            async with self.pushing:
                frames: list[str | bytes] = []
                while len(frames) < _FRAMES_AT_ONCE and (taken := self.queue.take()) is not None:
                    frame = self.frame_of(*taken)
                    if frame is not None:
                        frames.append(frame)
                await self.wire.send(*frames)

    async def say(self, frame: str | bytes) -> None:
        """Send a frame that is no push, behind a push that is on its way: its subscription may end with this one."""
        async with self.pushing:
            await self.wire.send(frame)

    async def _expire(self) -> None:
        if self.caller.expires_s is None:
            await asyncio.Event().wait()
            return
        await asyncio.sleep(max(0.0, self.caller.expires_s - time.time()))
        raise Unauthenticated("the token has expired; connect again with a new one")

    async def _end(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, SocketLeft):
            return  # nobody is left to tell
        if isinstance(error, Unavailable):
            reason = "too slow" if isinstance(error, Busy) else problem_of(error).detail
            await self.wire.close(TRY_LATER, reason)
            return
        problem = problem_of(error)
        if problem.status == 500:
            _logger.error("socket failed", error=repr(error), exc_info=error)
        REFUSED.labels("frame").inc()
        await self.wire.close(REFUSED_AT + problem.status, problem.detail)


class _KeySocket(_Socket):
    """A socket on one key."""

    def __init__(
        self,
        end: _SocketEnd,
        served: ServedKeyspace,
        state: StateForm,
        key: Any,  # noqa: ANN401
        types: SocketTypes,
        *,
        is_json: bool,
    ) -> None:
        super().__init__(end)
        self._served = served
        self._state = state
        self._key = key
        self._types = types
        self._is_json = is_json
        self._last: str | bytes | None = None

    async def run(self, protocol: str | None, after: str | None) -> None:
        """Serve the socket to its end."""
        await self.wire.accept(protocol)
        await self.live(self._both(after))

    def frame_of(self, number: int, change: StateChange[Any, Any]) -> str | bytes | None:
        """Return the value: empty if there is none.

        After a fail-over the present value comes again. Frames of this socket have no offsets, so a client could not
        tell it from a change: it is left out if it is what the client got last.
        """
        frame = self._frame_of_value(change.value)
        is_known = change.is_present and frame == self._last
        self._last = frame
        return None if is_known else frame

    def _frame_of_value(self, value: Any) -> str | bytes:  # noqa: ANN401
        if self._is_json:
            return "{}" if value is None else self._state.text_pushed(value)
        return b"" if value is None else self._state.avro_pushed(value)

    async def _both(self, after: str | None) -> None:
        """Follow the key and take frames, until either ends."""
        following = self.follow(0, self._served, self._state, self._key, after, is_avro=not self._is_json)
        follow = asyncio.ensure_future(following)
        take = asyncio.ensure_future(self._take())
        try:
            done, _ = await asyncio.wait({follow, take}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancelled({follow, take})

    async def _take(self) -> None:
        async for frame in self.wire.frames():
            self.charge()
            if isinstance(frame, str):
                await self._take_text(frame)
            elif (asked := schema_id_asked(frame)) is not None:
                await self.say(SIGN_OF_LIFE if asked == NO_SCHEMA else await self._types.by_id(asked, self.caller))
            elif is_framed(frame) and frame[0] == VALUE:
                await self._take_message(frame)
            else:
                raise BadArgument("frame", f"{len(frame)} bytes", "it must be 123 and a schema id, or framed Avro")

    async def _take_text(self, text: str) -> None:
        if not text.startswith("{"):
            await self.say(await self._types.by_name(text))
            return
        try:
            sent = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadArgument("frame", text[:60], "it must be JSON, or the name of a type") from error
        name = sent.get("type")
        form = self._message(name if isinstance(name, str) else "")
        await self._send_message(form.from_json(sent))

    async def _take_message(self, frame: bytes) -> None:
        name = (await self._types.schema(schema_id_of(frame))).name
        await self._send_message(await self._message(name).from_avro(frame))

    def _message(self, name: str) -> MessageForm:
        found = [form for full, form in self._types.messages.items() if name in (full, form.name)]
        if not found:
            raise NotFound(f"message {name[:60]!r} of keyspace {self._served.spec.name!r}")
        return found[0]

    async def _send_message(self, message: Any) -> None:  # noqa: ANN401
        """Hand a message to the key's handler. Raises Forbidden, RequestFailed; BadArgument if it has another key."""
        self.caller.check("command", "keyspace", self._served.spec.name)
        if self._served.client.key_of(message) != self._key:
            raise BadArgument("message", type(message).__name__, "it must be for the key of this socket")
        await self._served.client.ack(message)


class _ManySocket(_Socket):
    """A socket with many keys, each a subscription with a number that the client chooses."""

    def __init__(self, end: _SocketEnd, routes: KeyspaceRoutes, types: Sequence[SocketTypes]) -> None:
        super().__init__(end)
        self._routes = routes
        self._types = types
        self._asked: dict[int, tuple[Subscribe, StateForm]] = {}
        self._messages = SocketMessages(self.say, self.caller, routes, limit=self.terms.max_waiting)

    async def run(self, protocol: str) -> None:
        """Serve the socket to its end."""
        await self.wire.accept(protocol)
        await self.live(self._take())

    def working(self) -> Iterable[asyncio.Task[None]]:
        """Return the messages that are on their way."""
        return self._messages.tasks

    def frame_of(self, number: int, change: StateChange[Any, Any]) -> str | bytes | None:
        """Return the push of a change, in the format that the subscription asked for; None if that has ended."""
        if number not in self._asked:
            return None
        asked, form = self._asked[number]
        value, is_delta = change.value, asked.deltas and change.delta is not None
        if is_delta and form.deltas is not None:
            form, value = form.deltas, change.delta
        if asked.format == "avro" and form.is_avro:
            avro = b"" if value is None else form.avro_pushed(value)
            return encode_push(number, change, avro, is_delta=is_delta)
        push: dict[str, Any] = {"op": "lagged" if change.is_lagged else "value", "id": number, "offset": change.token}
        push["delta" if is_delta else "value"] = None if value is None else msgspec.Raw(form.json_pushed(value))
        if change.is_present:
            push["is_present"] = True
        if change.is_expiry:
            push["is_expiry"] = True
        return msgspec.json.encode(push).decode()

    async def _take(self) -> None:
        async for frame in self.wire.frames():
            if isinstance(frame, bytes) and (asked := schema_id_asked(frame)) is not None:
                self.charge()
                await self.say(SIGN_OF_LIFE if asked == NO_SCHEMA else await self._schema(asked))
                continue
            try:
                await self._take_request(frame)
            except HeadraceError as error:
                await self._refuse_request(frame, error)

    async def _take_request(self, frame: str | bytes) -> None:
        """Do what a frame asks for. Raises what refuses it."""
        self.charge()
        request = socket_request(frame)
        if isinstance(request, Publish):
            await self._messages.take(request)
        elif isinstance(request, Unsubscribe):
            await self._unsubscribe(request.id)
        else:
            self._subscribe(request)

    async def _refuse_request(self, frame: str | bytes, error: HeadraceError) -> None:
        """Tell a request that it is refused. Raises the error if it has no number: that ends the socket."""
        asked = asked_in(frame)
        if asked is None:
            raise error
        number, kind = asked
        if kind == "publish":
            await self._messages.refuse(number, error)
        else:
            await self._tell(number, error)

    async def _schema(self, schema_id: int) -> bytes:
        """Return the frame with a schema of a keyspace that the caller may read. Raises UnknownSchema."""
        for types in self._types:
            with contextlib.suppress(UnknownSchema):
                return await types.by_id(schema_id, self.caller)
        raise UnknownSchema(schema_id, "")

    def _subscribe(self, request: Subscribe | Collect) -> None:
        """Begin to follow a key or a collection. Raises BadArgument, Forbidden, NotFound, Busy."""
        if not 0 <= request.id < 2**31 or request.id in self.following:
            raise BadArgument("id", request.id, "it must be a number below 2**31 that no other subscription has")
        if len(self.following) >= self.terms.max_subscriptions:
            raise Busy("this socket (subscriptions)", self.terms.max_subscriptions)
        self.caller.check("read", "keyspace", request.keyspace)
        served, state = self._routes.form(request.keyspace, request.state)
        if isinstance(request, Collect):
            follow = send_collection(self.say, served, state, request)
        else:
            follow = self._follow_key(request, served, state)
        self.following[request.id] = asyncio.ensure_future(self._followed(request.id, follow))

    def _follow_key(self, request: Subscribe, served: ServedKeyspace, state: StateForm) -> Coroutine[Any, Any, None]:
        key = state.key(request.key)
        if request.format == "avro" and not state.is_avro:
            raise BadArgument("format", "avro", f"values of state {state.name!r} have no Avro form; use json")
        self._asked[request.id] = (request, state)
        is_avro = request.format == "avro"
        return self.follow(request.id, served, state, key, request.after, request.token, is_avro=is_avro)

    async def _followed(self, number: int, follow: Coroutine[Any, Any, None]) -> None:
        """Follow a key or a collection. Whatever ends that is sent to the client, unless it has left."""
        try:
            await follow
        except SocketLeft:
            self._forget(number)
        except Exception as error:
            if not isinstance(error, HeadraceError):
                _logger.exception("subscription failed", error=repr(error))
            self._forget(number)
            with contextlib.suppress(SocketLeft):
                await self._tell(number, error)

    async def _unsubscribe(self, number: int) -> None:
        task = self.following.get(number)
        if task is None:
            raise NotFound(f"subscription {number}")
        await _cancelled({task})
        self._forget(number)
        await self.say(_json_frame({"op": "unsubscribed", "id": number}))

    def _forget(self, number: int) -> None:
        self.queue.drop(number)
        self.following.pop(number, None)
        self._asked.pop(number, None)

    async def _tell(self, number: int, error: Exception) -> None:
        await self.say(_json_frame({"op": "problem", "id": number, "problem": problem_of(error).to_json("")}))


def _json_frame(frame: dict[str, Any]) -> str:
    return msgspec.json.encode(frame).decode()


def _may_read(caller: Caller, keyspace: str) -> bool:
    return caller.may("read", "keyspace", keyspace)


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
