"""Keys: one canonical byte form for each value, without a schema id.

The bytes of a key decide its partition, so they must not change when its schema gets another id. Text is UTF-8, bytes
are unchanged, a whole number is 8 bytes big-endian (as in Kafka's LongSerializer), a UUID is its text, and a class is
its Avro body without framing. Every Kafka client that writes the same bytes chooses the same partition.
"""

from __future__ import annotations

import uuid
from typing import Any, Generic, TypeVar, cast

from headrace.errors import HeadraceError, NoSchemaFor, NotDecodable, NotEncodable
from headrace.model import partition_of
from headrace.serde.codecs import Codec
from headrace.serde.framing import HEADER_BYTES, schema_id_of
from headrace.serde.hints import infer
from headrace.serde.shapes import ArrayShape, MapShape, RecordShape, Shape, UnionShape

__all__ = ["KeyCodec", "framed_key_partition"]

T = TypeVar("T")


class KeyCodec(Generic[T]):
    """Encodes and decodes keys of one type.

    Raises NoSchemaFor for types without a canonical form: maps, sets, and types that contain them.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind: Any = kind
        self._codec: Codec[T] | None = None
        if kind not in (str, bytes, int, uuid.UUID):
            _check_canonical(infer(kind), str(getattr(kind, "__qualname__", kind)))
            self._codec = Codec(kind)

    def encode(self, key: T) -> bytes:
        """Return the key's bytes. Raises NotEncodable."""
        if self._codec is not None:
            return self._codec.encode(key)
        if not isinstance(key, self._kind) or isinstance(key, bool):
            raise NotEncodable("key", "key", f"it must be {self._kind.__name__}, not {key!r}")
        try:
            return _to_bytes(key)
        except (ValueError, OverflowError) as error:
            raise NotEncodable("key", "key", str(error)) from error

    def decode(self, data: bytes) -> T:
        """Return the key. Raises NotDecodable."""
        if self._codec is not None:
            return self._codec.decode(data)
        try:
            return cast("T", _from_bytes(self._kind, data))
        except HeadraceError:
            raise
        except ValueError as error:
            raise NotDecodable("key", "key", str(error)) from error

    def partition(self, key: T, partitions: int) -> int:
        """Return the partition that the key belongs to."""
        return partition_of(self.encode(key), partitions)


def framed_key_partition(data: bytes, partitions: int) -> int:
    """Return the partition of a framed key: its body decides, so that all versions of a schema agree."""
    schema_id_of(data)
    return partition_of(data[HEADER_BYTES:], partitions)


def _to_bytes(key: Any) -> bytes:  # noqa: ANN401
    if isinstance(key, int):
        return key.to_bytes(8, "big", signed=True)
    return key if isinstance(key, bytes) else str(key).encode()


def _from_bytes(kind: type, data: bytes) -> Any:  # noqa: ANN401
    if kind is int:
        if len(data) != 8:
            raise NotDecodable("key", "key", f"a whole number is 8 bytes, not {len(data)}")
        return int.from_bytes(data, "big", signed=True)
    return data if kind is bytes else kind(data.decode())


def _check_canonical(shape: Shape, owner: str, where: str = "key", seen: frozenset[int] = frozenset()) -> None:
    """Raise NoSchemaFor for maps and sets: the order of their members is in the bytes, but not part of the value."""
    if id(shape) in seen:
        return
    match shape:
        case MapShape():
            raise NoSchemaFor(owner, where, "a map in a key has no canonical form")
        case ArrayShape() if shape.make in (set, frozenset):
            raise NoSchemaFor(owner, where, "a set in a key has no canonical form; use a tuple")
        case ArrayShape():
            _check_canonical(shape.items, owner, where, seen | {id(shape)})
        case UnionShape():
            for branch in shape.branches:
                _check_canonical(branch, owner, where, seen | {id(shape)})
        case RecordShape():
            for field in shape.fields:
                _check_canonical(field.shape, owner, field.name, seen | {id(shape)})
