"""Typed payloads of journals: objects as framed Avro, with one subject for each type of event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import BadArgument
from headrace.model import Event, StoredEvent
from headrace.serde.classes import instance_class
from headrace.serde.framing import Decoder, Encoder, Serde, is_framed
from headrace.serde.ports import Registry
from headrace.serde.schemas import schema_of
from headrace.serde.subjects import record_subject_of

__all__ = ["Payloads"]


class Payloads:
    """Encodes and decodes the events of a topic, with a class for each type of event.

        payloads = Payloads(registry, "accounts", [Opened, Deposited])
        await accounts.append("acc-1", await payloads.events(1, [Opened("Ann"), Deposited(20)]))
        async for stored in accounts.read("acc-1"):
            event = await payloads.decode(stored.payload)

    A journal stores such payloads as binary. Payloads that are not framed Avro (none, text, JSON, other bytes) are
    returned unchanged, and records of other types are returned as GenericRecords. With `auto_register=False` schemas
    must be registered already.
    """

    def __init__(self, registry: Registry, topic: str, types: Sequence[type], *, auto_register: bool = True) -> None:
        self._serdes = {cls: _serde(registry, topic, kind, auto_register) for cls, kind in _by_class(types).items()}
        self._encoders: dict[type, Encoder[Any]] = {}
        self._decoder: Decoder[Any] = Decoder(registry, types)

    async def encode(self, value: object) -> bytes:
        """Return the payload of an event. Its schema is registered before the first event of its type."""
        encoder = self._encoders.get(type(value)) or await self._encoder(type(value))
        payload = encoder(value)
        assert payload is not None  # noqa: S101 - only None is encoded as None, and it is not among the types
        return payload

    async def decode(self, payload: Any) -> Any:  # noqa: ANN401
        """Return the event of a payload. Raises NotDecodable, UnknownSchema."""
        if not isinstance(payload, bytes) or not is_framed(payload):
            return payload
        return await self._decoder.decode(payload)

    async def events(self, first_seq_nr: int, values: Sequence[object], tags: Sequence[str] = ()) -> list[Event]:
        """Return events to append, numbered from `first_seq_nr` on."""
        payloads = [await self.encode(value) for value in values]
        return [Event(first_seq_nr + nr, payload, tuple(tags)) for nr, payload in enumerate(payloads)]

    async def decoded(self, stored: StoredEvent) -> StoredEvent:
        """Return the event with its payload decoded."""
        return msgspec.structs.replace(stored, payload=await self.decode(stored.payload))

    async def _encoder(self, kind: type) -> Encoder[Any]:
        if kind not in self._serdes:
            known = ", ".join(each.__name__ for each in self._serdes)
            raise BadArgument("event", kind.__name__, f"the payloads are of {known}; add its class to them")
        self._encoders[kind] = await self._serdes[kind].encoder()
        return self._encoders[kind]


def _by_class(types: Sequence[type]) -> dict[type, type]:
    """Return the types by the class of their events. Raises BadArgument for two TypedDicts, whose events are dicts."""
    found: dict[type, type] = {}
    for kind in types:
        other = found.setdefault(instance_class(kind), kind)
        if other is not kind:
            rule = f"its events are dicts, as those of {other.__name__} are; make one of them a dataclass"
            raise BadArgument("types", kind.__name__, rule)
    return found


def _serde(registry: Registry, topic: str, kind: type, auto_register: bool) -> Serde[Any]:
    subject = record_subject_of(topic, schema_of(kind).name)
    return Serde(registry, subject, kind, auto_register=auto_register)
