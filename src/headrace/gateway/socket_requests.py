"""What the client of a socket with many keys asks for, as JSON text; the layout is in docs/formats.md."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from headrace.errors import BadArgument

__all__ = ["MANY_KEYS", "Collect", "Publish", "SocketRequest", "Subscribe", "Unsubscribe", "asked_in", "socket_request"]

MANY_KEYS = "headrace.v1"


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
