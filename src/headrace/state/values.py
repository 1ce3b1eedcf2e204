"""Values of a state as bytes: text, bytes, whole numbers, JSON, or Avro from a class."""

from __future__ import annotations

from reprlib import repr as shown
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from headrace.errors import BadArgument, NotReadable, NotStorable
from headrace.protocol import check_finite, checked_json
from headrace.serde import Registry, Serde, schema_id_of, subject_of

__all__ = [
    "AvroValues",
    "BytesValues",
    "IntValues",
    "JsonValues",
    "PlainValues",
    "TextValues",
    "ValueCodec",
    "codec_of",
    "is_prepared",
    "kind_of",
    "values_of",
]

V = TypeVar("V")


class ValueCodec(Protocol[V]):
    """Values to bytes and back. What has to be fetched first, as a schema, is fetched in `open` and `prepare`."""

    async def open(self) -> None:
        """Get ready to encode. Called once, before anything else."""
        ...

    async def prepare(self, data: bytes) -> None:
        """Get ready to decode these bytes."""
        ...

    def encode(self, value: V) -> bytes:
        """Return the value's bytes. Raises NotStorable."""
        ...

    def decode(self, data: bytes) -> V:
        """Return the value. Raises NotReadable."""
        ...


class PlainValues:
    """A codec that needs nothing from anybody."""

    async def open(self) -> None:
        """There is nothing to get ready."""

    async def prepare(self, data: bytes) -> None:
        """There is nothing to get ready."""


class TextValues(PlainValues):
    """Text as UTF-8."""

    kind = "text"

    def encode(self, value: str) -> bytes:
        """Return the text's bytes."""
        _check(value, str)
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise NotStorable("the text", shown(value), str(error)) from error

    def decode(self, data: bytes) -> str:
        """Return the text."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise NotReadable("a text", shown(data), str(error)) from error


class BytesValues(PlainValues):
    """Bytes as they are."""

    kind = "bytes"

    def encode(self, value: bytes) -> bytes:
        """Return the bytes."""
        _check(value, bytes)
        return value

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data


class IntValues(PlainValues):
    """Whole numbers in 8 bytes, big-endian, as Kafka's LongSerializer has them."""

    kind = "int"

    def encode(self, value: int) -> bytes:
        """Return the number's bytes."""
        _check(value, int)
        try:
            return value.to_bytes(8, "big", signed=True)
        except OverflowError as error:
            raise NotStorable("the number", str(value), "it does not fit into 8 bytes") from error

    def decode(self, data: bytes) -> int:
        """Return the number."""
        if len(data) != 8:
            raise NotReadable("a whole number", shown(data), f"it has 8 bytes, not {len(data)}")
        return int.from_bytes(data, "big", signed=True)


class JsonValues(PlainValues, Generic[V]):
    """Anything that JSON carries; with a type, checked and built as msgspec does."""

    kind = "json"

    def __init__(self, kind: type[V] | Any = Any) -> None:  # noqa: ANN401
        self._encoder = msgspec.json.Encoder(order="sorted")
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def encode(self, value: V) -> bytes:
        """Return the value as JSON, the fields of objects sorted.

        What could not be read back is refused: a dataclass does not check its fields itself.
        """
        try:
            data = self._encoded(value)
            self._decoder.decode(checked_json(data))
            if b"null" in data:
                check_finite(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise NotStorable("the value", shown(value), f"JSON does not take it: {error}") from error
        return data

    def _encoded(self, value: V) -> bytes:
        try:
            return self._encoder.encode(value)
        except TypeError:  # keys that are numbers become texts, as the sorted form needs them
            return self._encoder.encode(msgspec.to_builtins(value, str_keys=True))

    def decode(self, data: bytes) -> V:
        """Return the value."""
        try:
            return cast("V", self._decoder.decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotReadable("JSON", shown(data), str(error)) from error


class AvroValues(Generic[V]):
    """Avro, framed as Confluent's serializers frame it; the schema comes from the class and goes to a registry."""

    kind = "avro"

    def __init__(self, registry: Registry, topic: str, kind: type[V] | Any) -> None:  # noqa: ANN401
        self._serde: Serde[V] = Serde(registry, subject_of(topic), kind)

    async def open(self) -> None:
        """Register the schema. Raises IncompatibleSchema."""
        self._encode = await self._serde.encoder()

    def has_schema_of(self, data: bytes) -> bool:
        """Return True if the schema that the bytes were written with was fetched before."""
        return self._serde.decoder.has_loaded(data)

    async def prepare(self, data: bytes) -> None:
        """Fetch the schema that the bytes were written with."""
        if not self.has_schema_of(data):
            await self._serde.decoder.load(schema_id_of(data))

    def encode(self, value: V) -> bytes:
        """Return the framed value."""
        data = self._encode(value)
        if data is None:
            raise NotStorable("the value", "None", "it is no value")
        return data

    def decode(self, data: bytes) -> V:
        """Return the value."""
        return cast("V", self._serde.decoder(data))


_PLAIN: dict[Any, type[Any]] = {str: TextValues, bytes: BytesValues, int: IntValues}


def values_of(kind: Any, *, topic: str, registry: Registry | None) -> ValueCodec[Any]:  # noqa: ANN401
    """Return the codec of a type: plain for str, bytes and int, JSON for dict, list and Any, Avro for classes."""
    if kind in _PLAIN:
        return cast("ValueCodec[Any]", _PLAIN[kind]())
    if _is_json(kind):
        return JsonValues(kind)
    if registry is None:
        rule = "a class becomes Avro, which needs a registry: give one, or a codec such as JsonValues(…)"
        raise BadArgument("value", kind, rule)
    return AvroValues(registry, topic, kind)


def kind_of(value: Any) -> str:  # noqa: ANN401
    """Return the kind of bytes that values of a type, or of a codec, become. A codec says it in `kind`, or by its name.

    Bytes of one kind can be read as long as the type changes as its format allows; those of another kind can't.
    """
    if _is_codec(value):
        kind = getattr(value, "kind", None)
        return kind if isinstance(kind, str) else type(value).__name__
    if value in _PLAIN:
        return str(_PLAIN[value].kind)
    return JsonValues.kind if _is_json(value) else AvroValues.kind


def _is_json(kind: Any) -> bool:  # noqa: ANN401
    return kind is Any or getattr(kind, "__origin__", kind) in (dict, list)


def _is_codec(value: Any) -> bool:  # noqa: ANN401
    return hasattr(value, "encode") and hasattr(value, "prepare") and not isinstance(value, type)


def is_prepared(codec: ValueCodec[Any], data: bytes) -> bool:
    """Return True if the codec decodes these bytes without `prepare`; of one that is the application's nobody knows."""
    return isinstance(codec, PlainValues) or (isinstance(codec, AvroValues) and codec.has_schema_of(data))


async def codec_of(kind: Any, topic: str, registry: Registry | None) -> ValueCodec[Any]:  # noqa: ANN401
    """Return the codec of a type, or the codec itself, ready to be used."""
    codec: ValueCodec[Any] = kind if _is_codec(kind) else values_of(kind, topic=topic, registry=registry)
    await codec.open()
    return codec


def _check(value: Any, kind: type) -> None:  # noqa: ANN401
    if type(value) is not kind:
        raise NotStorable("the value", shown(value), f"values of this state are {kind.__name__}")
