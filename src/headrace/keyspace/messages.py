"""What callers send to a partition of a keyspace, and what comes back: the bytes inside of a cluster's requests.

Keys and values travel as the bytes that the changelog has, messages and replies in the codec that follows from their
classes, so nodes of different versions understand one another as far as their schemas do. `MessageCalls` finds the
handler that is for a message, what routes it, and the call that travels.
"""

from __future__ import annotations

import itertools
import types
import typing
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headrace.errors import (
    AskCycle,
    BadArgument,
    HeadraceError,
    NotStorable,
    ReplyNotReadable,
    RequestFailed,
    UnknownMessage,
)
from headrace.keyspace.declaration import HandlerSpec, KeyspaceSpec
from headrace.model import ConsistencyToken, TokenPlace
from headrace.observe import inject
from headrace.protocol import is_utf8
from headrace.runtime import error_text, own_text
from headrace.serde import Registry
from headrace.state import JsonValues, OrderedKeys, ValueCodec, values_of

__all__ = [
    "PUT_CONFLICT",
    "Call",
    "ChangesPage",
    "CountKeys",
    "Entry",
    "FindByIndex",
    "GetValue",
    "KeyedCall",
    "MessageCalls",
    "MessageCodecs",
    "Operation",
    "PlacedReply",
    "PollChanges",
    "PutValue",
    "RawItem",
    "RawPage",
    "RawRead",
    "ReadPage",
    "decode_operation",
    "encode",
    "key_bytes",
    "longer_chain",
    "traced",
]

_ID_AT_MOST = 300


class _Operation(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


Entry: TypeAlias = tuple[str, bytes]
"""A keyspace and a key in it."""


class Call(_Operation, frozen=True):
    """Run the handler of a message. `chain` are the keys whose handlers wait for this one.

    With `wants_places` the reply says where in the log what the handler wrote and read is (`PlacedReply`).
    `trace` is the caller's span, as headers carry it.
    """

    message: str
    payload: bytes
    key: bytes | None
    request_id: str
    chain: tuple[Entry, ...] = ()
    wants_places: bool = False
    trace: tuple[tuple[str, bytes | None], ...] = ()


class GetValue(_Operation, frozen=True):
    """Read one key. With `max_staleness_s` a standby may answer. `token` is the text of a consistency token."""

    state: str
    key: bytes
    max_staleness_s: float | None = None
    at_least: int | None = None
    token: str | None = None


class ReadPage(_Operation, frozen=True):
    """Read a range of keys."""

    state: str
    start: bytes
    end: bytes | None
    limit: int
    reverse: bool = False
    max_staleness_s: float | None = None


class FindByIndex(_Operation, frozen=True):
    """Read what an index has under a value, from row `start` on."""

    state: str
    prefix: bytes
    start: bytes
    limit: int
    max_staleness_s: float | None = None


class CountKeys(_Operation, frozen=True):
    """Count the keys of a state in this partition."""

    state: str
    max_staleness_s: float | None = None


class PutValue(_Operation, frozen=True):
    """Write one key, or delete it. With `expected`, only if it has the value of that offset, or none for -1."""

    state: str
    key: bytes
    value: bytes | None
    ttl_ms: int | None = None
    expected: int | None = None


class PollChanges(_Operation, frozen=True):
    """Wait for changes of a key, or of all keys, after an offset; `topic_id` says which topic the offset is of.

    `token` is the text of a consistency token that the copy must have reached.
    """

    state: str
    key: bytes | None
    after: int | None
    topic_id: str | None
    wait_s: float
    limit: int
    token: str | None = None


Operation: TypeAlias = Call | GetValue | ReadPage | FindByIndex | CountKeys | PutValue | PollChanges

_operations: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(Operation)


class RawRead(msgspec.Struct, frozen=True, array_like=True):
    """A value, where it was written, and what the copy was worth that it was read from."""

    value: bytes | None
    written: int | None
    offset: int | None
    age_ms: int | None
    place: TokenPlace | None = None


class RawPage(msgspec.Struct, frozen=True, array_like=True):
    """Some pairs, and whether there are more; `offset` is the last one that the copy had when it was read."""

    items: list[tuple[bytes, bytes]]
    has_more: bool
    offset: int | None = None


class RawItem(msgspec.Struct, frozen=True, array_like=True):
    """A change, or the present value of a key."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int | None = None
    delta: bytes | None = None
    is_expiry: bool = False
    is_present: bool = False
    is_lagged: bool = False


class ChangesPage(msgspec.Struct, frozen=True, array_like=True):
    """Changes, and where to go on: nothing else has changed up to `offset` of the topic.

    If the copy had nothing to tell, topic and offset are those that the caller asked with; it asks again.
    """

    topic_id: str | None
    items: list[RawItem]
    offset: int | None
    age_ms: int | None = None


encode = msgspec.msgpack.Encoder().encode

PUT_CONFLICT = b"\x01"
"""The reply to a put that found another version than it expected; the reply to any other has places, or is empty."""

_PLACED = b"\x02"


class PlacedReply(msgspec.Struct, frozen=True, array_like=True):
    """A reply with the places of what it rests on, from which its consistency token is made."""

    places: tuple[TokenPlace, ...] = ()
    reply: bytes = b""

    def encode(self) -> bytes:
        """Return the reply's bytes."""
        return _PLACED + encode(self)

    @classmethod
    def decode(cls, data: bytes) -> PlacedReply:
        """Return the reply. A node of another version may have sent one without places."""
        return _placed.decode(data[1:]) if data[:1] == _PLACED else cls((), data)

    @property
    def token(self) -> str:
        """The consistency token."""
        return str(ConsistencyToken.of(self.places))


_placed = msgspec.msgpack.Decoder(PlacedReply)


def key_bytes(key: Any) -> tuple[bytes, bytes]:  # noqa: ANN401
    """Return the bytes that decide a key's partition, and the key's own."""
    hint: Any = tuple[tuple(map(type, key))] if isinstance(key, tuple) else type(key)  # type: ignore[misc]
    return _keys_of(hint).encode_routed(key)


@cache
def _keys_of(hint: Any) -> OrderedKeys[Any]:  # noqa: ANN401
    return OrderedKeys(hint)


def longer_chain(chain: tuple[Entry, ...], here: Entry) -> tuple[Entry, ...]:
    """Return the keys that wait for one another, this one last. Raises AskCycle if it waits already."""
    longer = (*chain, here)
    if here in chain:
        raise AskCycle(" → ".join(f"{name}/{key.decode(errors='replace')}" for name, key in longer))
    return longer


def traced(call: Call) -> Call:
    """Return the call with the current span in it, if there is one."""
    trace = inject()
    return msgspec.structs.replace(call, trace=trace) if trace else call


def decode_operation(payload: bytes) -> Operation:
    """Return what is asked. Raises BadArgument for a request of another version."""
    try:
        return _operations.decode(payload)
    except msgspec.MsgspecError as error:
        raise BadArgument("request", payload[:40], f"it is no request to a keyspace: {error}") from error


class _Codecs(NamedTuple):
    message: ValueCodec[Any]
    reply: ValueCodec[Any]
    is_optional: bool


class MessageCodecs:
    """The messages and replies of one keyspace as bytes."""

    def __init__(self, spec: KeyspaceSpec, registry: Registry | None) -> None:
        self._spec = spec
        self._registry = registry
        self._codecs: dict[str, _Codecs] = {}

    async def open(self) -> None:
        """Get ready: register the schemas of classes. Raises IncompatibleSchema."""
        for name, handler in self._spec.handlers.items():
            kind, is_optional = _without_none(handler.reply)
            message = await self._codec(handler.message, f"{self._spec.name}.{name}")
            reply = await self._codec(kind, f"{self._spec.name}.{name}.reply")
            self._codecs[name] = _Codecs(message, reply, is_optional)

    def message_bytes(self, message: object) -> bytes:
        """Return a message's bytes. Raises NotStorable, NotEncodable."""
        return self._codecs[type(message).__name__].message.encode(message)

    async def message(self, handler: HandlerSpec, payload: bytes) -> Any:  # noqa: ANN401
        """Return the message. Raises NotReadable, NotDecodable."""
        return await _decoded(self._codecs[handler.message.__name__].message, payload)

    def reply_bytes(self, handler: HandlerSpec, reply: object) -> bytes:
        """Return a reply's bytes; nothing stands for None. Raises NotStorable."""
        codecs = self._codecs[handler.message.__name__]
        if reply is None:
            if not codecs.is_optional:
                raise NotStorable("the reply of", handler.name, "it returned None, which its annotation does not allow")
            return b""
        return b"\x01" + codecs.reply.encode(reply)

    async def reply(self, handler: HandlerSpec, data: bytes) -> Any:  # noqa: ANN401
        """Return the reply. Raises ReplyNotReadable."""
        if not data:
            return None
        try:
            return await _decoded(self._codecs[handler.message.__name__].reply, data[1:])
        except Exception as error:  # the other side has another version of the class
            raise ReplyNotReadable(f"message {handler.message.__name__}", error_text(error)) from error

    async def _codec(self, kind: Any, subject: str) -> ValueCodec[Any]:  # noqa: ANN401
        plain = (types.NoneType, bool, float, int, tuple, set)
        is_plain = kind in plain or typing.get_origin(kind) in plain
        codec = JsonValues(kind) if is_plain else values_of(kind, topic=subject, registry=self._registry)
        await codec.open()
        return codec


async def _decoded(codec: ValueCodec[Any], data: bytes) -> Any:  # noqa: ANN401
    await codec.prepare(data)
    return codec.decode(data)


def _without_none(kind: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """Return the type without None, and whether None was part of it."""
    if kind in (None, types.NoneType, Any):
        return kind, True
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind, False
    parts = [part for part in typing.get_args(kind) if part is not types.NoneType]
    is_optional = len(parts) < len(typing.get_args(kind))
    return (parts[0] if len(parts) == 1 else typing.Union[tuple(parts)]), is_optional  # noqa: UP007


class KeyedCall(NamedTuple):
    """A call of a handler, and the bytes that decide its partition."""

    handler: HandlerSpec
    routing: bytes
    call: Call


class MessageCalls:
    """Makes the calls of one client. The codecs were opened before."""

    def __init__(self, spec: KeyspaceSpec, codecs: MessageCodecs) -> None:
        self._spec = spec
        self._codecs = codecs
        self._requests_of = uuid.uuid4().hex
        self._requests = itertools.count(1)

    def handler_of(self, message: object) -> HandlerSpec:
        """Return the handler of a message. Raises UnknownMessage."""
        handler = self._spec.handler_of(message)
        if handler is None:
            known = ", ".join(sorted(self._spec.handlers)) or "nothing"
            raise UnknownMessage(self._spec.name, type(message).__name__, known)
        return handler

    def key_of(self, message: object) -> Any:  # noqa: ANN401
        """Return the key that a message is for; None if it is for all partitions.

        Raises UnknownMessage, BadArgument, and RequestFailed for what the application's function for keys raises.
        """
        handler = self.handler_of(message)
        if handler.key_of is None:
            return None
        key = self._made_key(handler.key_of, message)
        key_bytes(key)  # it can be one
        return key

    def asked(self, message: object, chain: tuple[Entry, ...], message_id: str | None) -> KeyedCall:
        """Return the call of a message whose reply is waited for.

        Raises UnknownMessage, BadArgument, AskCycle, RequestFailed.
        """
        handler = self.handler_of(message)
        routing, key = self._key_bytes(handler, message)
        if message_id is not None and not _is_id(message_id):
            raise BadArgument("message_id", message_id, f"an id is a text of 1 to {_ID_AT_MOST} characters")
        if not isinstance(chain, tuple):
            raise BadArgument("chain", chain, "it must be a tuple of keyspaces and keys")
        longer_chain(chain, (self._spec.name, key))  # before it waits behind the request that it would wait for
        return KeyedCall(handler, routing, self._call(message, key, chain))

    def told(self, message: object) -> tuple[bytes, bytes]:
        """Return what routes a message that nobody waits for, and what travels. Raises as `asked`."""
        routing, key = self._key_bytes(self.handler_of(message), message)
        return routing, encode(self._call(message, key))

    def scattered(self, message: object) -> tuple[HandlerSpec, bytes]:
        """Return the handler of a message to all partitions, and what travels. Raises UnknownMessage, BadArgument."""
        handler = self.handler_of(message)
        if handler.key_of is not None:
            raise BadArgument("message", message, f"{handler.name} handles it by key; mark it @handles(scatter=True)")
        return handler, encode(self._call(message, None))

    def _key_bytes(self, handler: HandlerSpec, message: object) -> tuple[bytes, bytes]:
        """Return the bytes that decide the partition, and the key's own."""
        if handler.key_of is None:
            raise BadArgument("message", message, f"{handler.name} is for all partitions; use scatter")
        return key_bytes(self._made_key(handler.key_of, message))

    def _made_key(self, key_of: Callable[[Any], Any], message: object) -> Any:  # noqa: ANN401
        """Return the key of a message: the function is the application's, and fails as a handler does."""
        try:
            return key_of(message)
        except HeadraceError:
            raise
        except Exception as error:
            kind = type(message).__name__
            raise RequestFailed(self._spec.name, kind, type(error).__name__, own_text(error)) from error

    def _call(self, message: object, key: bytes | None, chain: tuple[Entry, ...] = ()) -> Call:
        """Return a call with an id that no other request has."""
        request = f"{self._requests_of}-{next(self._requests)}"
        return Call(type(message).__name__, self._codecs.message_bytes(message), key, request, chain)


def _is_id(message_id: object) -> bool:
    """Return True for a text that a kept reply can be found by."""
    if not isinstance(message_id, str) or not 1 <= len(message_id) <= _ID_AT_MOST:
        return False
    return message_id.isascii() or is_utf8(message_id)
