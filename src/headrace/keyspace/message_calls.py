"""Messages on their way to a keyspace: which handler is for one, what routes it, and the call that travels."""

from __future__ import annotations

import itertools
import uuid
from typing import NamedTuple

from headrace.errors import BadArgument, UnknownMessage
from headrace.keyspace.declaration import HandlerSpec, KeyspaceSpec
from headrace.keyspace.messages import Call, Entry, MessageCodecs, encode, key_bytes, longer_chain
from headrace.protocol import is_utf8

__all__ = ["KeyedCall", "MessageCalls"]

_ID_AT_MOST = 300


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

    def asked(self, message: object, chain: tuple[Entry, ...], message_id: str | None) -> KeyedCall:
        """Return the call of a message whose reply is waited for. Raises UnknownMessage, BadArgument, AskCycle."""
        handler = self.handler_of(message)
        routing, key = _key_of(handler, message)
        if message_id is not None and not _is_id(message_id):
            raise BadArgument("message_id", message_id, f"an id is a text of 1 to {_ID_AT_MOST} characters")
        if not isinstance(chain, tuple):
            raise BadArgument("chain", chain, "it must be a tuple of keyspaces and keys")
        longer_chain(chain, (self._spec.name, key))  # before it waits behind the request that it would wait for
        return KeyedCall(handler, routing, self._call(message, key, chain))

    def told(self, message: object) -> tuple[bytes, bytes]:
        """Return what routes a message that nobody waits for, and what travels. Raises UnknownMessage, BadArgument."""
        routing, key = _key_of(self.handler_of(message), message)
        return routing, encode(self._call(message, key))

    def scattered(self, message: object) -> tuple[HandlerSpec, bytes]:
        """Return the handler of a message to all partitions, and what travels. Raises UnknownMessage, BadArgument."""
        handler = self.handler_of(message)
        if handler.key_of is not None:
            raise BadArgument("message", message, f"{handler.name} handles it by key; mark it @handles(scatter=True)")
        return handler, encode(self._call(message, None))

    def _call(self, message: object, key: bytes | None, chain: tuple[Entry, ...] = ()) -> Call:
        """Return a call with an id that no other request has."""
        request = f"{self._requests_of}-{next(self._requests)}"
        return Call(type(message).__name__, self._codecs.message_bytes(message), key, request, chain)


def _is_id(message_id: object) -> bool:
    """Return True for a text that a kept reply can be found by."""
    if not isinstance(message_id, str) or not 1 <= len(message_id) <= _ID_AT_MOST:
        return False
    return message_id.isascii() or is_utf8(message_id)


def _key_of(handler: HandlerSpec, message: object) -> tuple[bytes, bytes]:
    """Return the bytes that decide the partition, and the key's own."""
    if handler.key_of is None:
        raise BadArgument("message", message, f"{handler.name} is for all partitions; use scatter")
    return key_bytes(handler.key_of(message))
