"""Events and payloads as JSON: how the gateway writes them, how it takes them, and how the console shows bytes.

Bytes are readable where they are text, JSON or framed Avro.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.errors import BadArgument
from headrace.model import MAX_SEQ_NR, StoredEvent
from headrace.serde import JsonRenderer, Registry, is_framed, schema_id_of
from headrace.tags import TaggedEvent

if TYPE_CHECKING:  # it needs the extra `outbox`
    from headrace.outbox import DeadMessage

__all__ = ["EVENT_SCHEMA", "NEW_EVENT_SCHEMA", "BytesRenderer", "EventRenderer", "NewEvent", "payload_of"]

_OPTIONS = ("metadata", "payload_metadata", "expire_after", "origin", "version")

_SEQ_NR = {"type": "integer", "minimum": 1, "maximum": MAX_SEQ_NR}
_TAGS = {"type": "array", "items": {"type": "string", "minLength": 1}}
EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["seq_nr", "payload_type", "tags", "partition", "offset", "timestamp_ms"],
    "properties": {
        "seq_nr": _SEQ_NR,
        "payload_type": {"enum": ["none", "json", "text", "binary", "avro"]},
        "payload": {"description": "Binary payloads are base64; Avro is {type, data}, if avro=json was asked for."},
        "schema_id": {"type": "integer"},
        "tags": _TAGS,
        "partition": {"type": "integer"},
        "offset": {"type": "integer"},
        "timestamp_ms": {"type": "integer"},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "tag": {"type": "string"},
        "tag_offset": {"type": "string"},
        "topic": {"type": "string"},
        "id": {"type": "string"},
        "number": {"type": "integer"},
    },
}
NEW_EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "payload": {"description": "Text is a text payload, null is none, anything else is JSON."},
        "payload_type": {"enum": ["json", "text", "binary"]},
        "tags": _TAGS,
        "seq_nr": _SEQ_NR,
    },
}
_BYTES_SHOWN = 4096


class NewEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event of an append, as callers send it."""

    payload: Any = None
    payload_type: Literal["json", "text", "binary"] | None = None
    tags: tuple[str, ...] = ()
    seq_nr: int | None = None


def payload_of(event: NewEvent) -> Any:  # noqa: ANN401 - a payload is anything
    """Return the payload of a new event. Raises BadArgument if it is not of the type that it says."""
    if event.payload_type == "binary":
        try:
            return base64.b64decode(event.payload, validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise BadArgument("payload", "…", "a binary payload is base64") from error
    if event.payload_type == "text" and not isinstance(event.payload, str):
        raise BadArgument("payload", type(event.payload).__name__, "a text payload is a JSON string")
    if event.payload_type == "json" and isinstance(event.payload, str | None):
        raise BadArgument("payload", event.payload and event.payload[:60], "as JSON it is an object, list or number")
    return event.payload


class EventRenderer:
    """Writes events as JSON values; with a renderer, binary payloads that are framed Avro as readable JSON."""

    def __init__(self, renderer: JsonRenderer | None = None) -> None:
        self._renderer = renderer

    async def write(self, event: StoredEvent) -> dict[str, Any]:
        """Return the JSON of an event, without what it does not have."""
        written: dict[str, Any] = {"seq_nr": event.seq_nr, **await self._payload(event.payload), "tags": event.tags}
        written |= {"partition": event.partition, "offset": event.offset, "timestamp_ms": event.timestamp_ms}
        written |= {name: value for name in _OPTIONS if (value := getattr(event, name)) is not None}
        if event.headers:
            written["headers"] = dict(event.headers)
        if isinstance(event, TaggedEvent):
            written |= {"tag": event.tag, "topic": event.topic, "id": event.id, "number": event.number}
            written["tag_offset"] = str(event.tag_offset)
            if event.is_redacted:
                written["is_redacted"] = True
        return written

    async def _payload(self, payload: Any) -> dict[str, Any]:  # noqa: ANN401
        if payload is None:
            return {"payload_type": "none"}
        if not isinstance(payload, bytes):
            return {"payload_type": "text" if isinstance(payload, str) else "json", "payload": payload}
        if self._renderer is not None and is_framed(payload):
            shown = await self._renderer.render(payload)
            if not (isinstance(shown, dict) and "error" in shown):
                return {"payload_type": "avro", "schema_id": schema_id_of(payload), "payload": shown}
        return {"payload_type": "binary", "payload": base64.b64encode(payload).decode()}


class BytesRenderer:
    """Turns bytes into what JSON can carry, cut to a length that a page can show."""

    def __init__(self, registry: Registry) -> None:
        self._renderer = JsonRenderer(registry)

    async def message(self, message: DeadMessage) -> dict[str, Any]:
        """Return a dead message with a readable key and payload."""
        return {**message._asdict(), "key": await self.shown(message.key), "message": await self.shown(message.message)}

    async def shown(self, content: bytes | None) -> dict[str, Any] | None:
        """Return the form of some bytes (avro, text or binary), their value, and their size; None for none."""
        if content is None:
            return None
        size = {"size_bytes": len(content), "is_cut": len(content) > _BYTES_SHOWN}
        if is_framed(content) and not size["is_cut"]:
            value = await self._renderer.render(content)
            if not (isinstance(value, dict) and "error" in value):
                return {"form": "avro", "value": value, **size}
        cut = content[:_BYTES_SHOWN]
        try:
            # A character that the cut went through is left out, and is no reason to take text for something else.
            text = codecs.getincrementaldecoder("utf-8")().decode(cut, final=not size["is_cut"])
            return {"form": "text", "value": text, **size}
        except UnicodeDecodeError:
            return {"form": "binary", "value": base64.b64encode(cut).decode(), **size}
