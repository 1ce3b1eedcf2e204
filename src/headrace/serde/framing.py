"""Framed values: Confluent's wire format, and what writes and reads it.

The format is a zero, the schema's id as four bytes, big-endian, then the Avro body. `Encoder` and `Decoder` don't wait;
`Serde` gets their schemas from a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from headrace.errors import BadArgument, NotFramed, NotRegistered, UnknownSchema, UnknownSubject
from headrace.serde.codecs import Codec, GenericCodec, codec_for
from headrace.serde.compatibility import namesake
from headrace.serde.ports import Registry, Version
from headrace.serde.schemas import Schema
from headrace.serde.shapes import RecordShape

__all__ = ["HEADER_BYTES", "Decoder", "Encoder", "Serde", "body_of", "frame_header", "is_framed", "schema_id_of"]

HEADER_BYTES = 5
_MAX_ID = (1 << 32) - 1

T = TypeVar("T")


def frame_header(schema_id: int) -> bytes:
    """Return the five bytes in front of the body."""
    if not 0 <= schema_id <= _MAX_ID:
        raise BadArgument("schema id", schema_id, "ids are 32 bits")
    return b"\x00" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int:
    """Return the id of the schema that `data` was written with. Raises NotFramed."""
    if len(data) < HEADER_BYTES:
        raise NotFramed(len(data), f"they need at least {HEADER_BYTES}")
    if data[0] != 0:
        raise NotFramed(len(data), f"they begin with {data[0]:#04x}, not 0x00")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def body_of(data: bytes) -> bytes:
    """Return the bytes behind the header. Raises NotFramed."""
    schema_id_of(data)
    return data[HEADER_BYTES:]


def is_framed(data: bytes) -> bool:
    """Return True if the bytes could be framed Avro."""
    return len(data) >= HEADER_BYTES and data[0] == 0


class Encoder(Generic[T]):
    """Encodes values as framed bytes. It has its schema's id, so it never waits. `Serde.encoder` makes it."""

    def __init__(self, codec: Codec[T], schema_id: int) -> None:
        self.schema_id = schema_id
        self._encode = codec.writer_of(frame_header(schema_id))

    def __call__(self, value: T | None) -> bytes | None:
        """Return the framed bytes; None for None, which is a tombstone. Raises NotEncodable."""
        return None if value is None else self._encode(value)


class Decoder(Generic[T]):
    """Decodes framed bytes of any version of their schema. Readers are compiled once for each schema id.

    `kinds` are the classes of records, chosen by name; records of other names become GenericRecords. With `is_strict`
    there is a single kind, and every record must match it.
    """

    def __init__(self, registry: Registry, kinds: Iterable[Any] = (), *, is_strict: bool = False) -> None:
        self._registry = registry
        self._codecs: list[Codec[Any]] = [codec_for(kind) for kind in kinds]
        self._is_strict = is_strict
        self._readers: dict[bytes, Callable[[bytes, int], Any]] = {}

    def __call__(self, data: bytes | None) -> T | None:
        """Return the value without waiting. Raises NotFramed, or UnknownSchema for an id that was not loaded."""
        if data is None:
            return None
        read = self._readers.get(data[:HEADER_BYTES])
        if read is None:
            raise UnknownSchema(schema_id_of(data), "this decoder, which has not loaded it")
        return read(data, HEADER_BYTES)  # type: ignore[no-any-return]

    async def decode(self, data: bytes | None) -> T | None:
        """Return the value; an unknown schema id is fetched. Raises UnknownSchema, NotDecodable."""
        if data is not None and not self.has_loaded(data):
            await self.load(schema_id_of(data))
        return self(data)

    def has_loaded(self, data: bytes) -> bool:
        """Return True if the schema of these bytes was loaded."""
        return data[:HEADER_BYTES] in self._readers

    async def load(self, schema_id: int) -> None:
        """Fetch a schema and compile its reader, so that later calls don't wait."""
        schema = await self._registry.schema(schema_id)
        self._readers[frame_header(schema_id)] = self._codec_of(schema).reader_of(schema)

    def _codec_of(self, schema: Schema) -> Codec[Any]:
        if self._is_strict:
            return self._codecs[0]
        return _codec_called(schema, self._codecs) or GenericCodec(schema)


class Serde(Generic[T]):
    """Encodes and decodes values of one subject.

    `kind` is a class, a hint such as `Opened | Closed`, or a Schema for generic records. With `auto_register=False`
    the schema must be registered already, by another process.
    """

    def __init__(
        self,
        registry: Registry,
        subject: str,
        kind: type[T] | Any,  # noqa: ANN401
        *,
        auto_register: bool = True,
    ) -> None:
        self._registry = registry
        self._auto_register = auto_register
        self._subject = subject
        self._codec: Codec[T] = codec_for(kind)
        self._encoder: Encoder[T] | None = None
        self.decoder: Decoder[T] = Decoder(registry, [kind], is_strict=True)

    async def encoder(self) -> Encoder[T]:
        """Register the schema and return the encoder. Raises IncompatibleSchema, or NotRegistered."""
        if self._encoder is None:
            version = await self._version()
            await self.decoder.load(version.schema_id)
            self._encoder = Encoder(self._codec, version.schema_id)
        return self._encoder

    async def _version(self) -> Version:
        if self._auto_register:
            return await self._registry.register(self._subject, self._codec.schema)
        try:
            versions = await self._registry.versions(self._subject)
        except UnknownSubject:
            versions = ()
        for version in versions:
            if version.schema == self._codec.schema:
                return version
        raise NotRegistered(self._subject, self._codec.schema.name)

    async def encode(self, value: T | None) -> bytes | None:
        """Return the framed bytes; None for None."""
        return (self._encoder or await self.encoder())(value)

    async def decode(self, data: bytes | None) -> T | None:
        """Return the value; None for None."""
        return await self.decoder.decode(data)


def _codec_called(schema: Schema, codecs: Iterable[Codec[Any]]) -> Codec[Any] | None:
    """Return the codec whose record matches the schema by name; None if there is none, or two match equally well."""
    by_shape = {id(codec.shape): codec for codec in codecs}
    records = [codec.shape for codec in by_shape.values() if isinstance(codec.shape, RecordShape)]
    found = namesake(schema.shape, records) if isinstance(schema.shape, RecordShape) else None
    return None if found is None else by_shape[id(found)]
