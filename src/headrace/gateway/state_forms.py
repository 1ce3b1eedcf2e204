"""Keys and values of a state as text, JSON and Avro: how they stand in paths, bodies and frames."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_origin

import msgspec

from headrace.errors import BadArgument, NotDecodable, NotStorable, WrongMediaType
from headrace.gateway.routes import JSON
from headrace.serde import Codec, Encoder, Registry, Serde, codec_for, is_framed, subject_of
from headrace.state import AvroValues, OrderedKeys, StateSpec, values_of

__all__ = ["AVRO", "MessageForm", "StateForm", "json_of"]

AVRO = "avro/binary"
E = TypeVar("E", str, bytes)
_KEPT = 8
_MOST_STORED = 1_024
_MOST_STORED_BYTES = 4_096


class StateForm:
    """One state of a keyspace. Values of classes are Avro, and have the JSON form {"type", "data"}; others are JSON."""

    def __init__(self, spec: StateSpec[Any, Any], registry: Registry) -> None:
        self.name = spec.name
        self.indexes = sorted(spec.indexes)
        self._key = spec.key
        self._keys: OrderedKeys[Any] = OrderedKeys(spec.key)
        self._kind = spec.value
        is_codec = hasattr(spec.value, "prepare") and not isinstance(spec.value, type)
        is_avro = not is_codec and isinstance(values_of(spec.value, topic=spec.topic, registry=registry), AvroValues)
        self._hint = Any if is_codec else spec.value
        self._codec: Codec[Any] | None = codec_for(spec.value) if is_avro else None
        self._serde: Serde[Any] | None = Serde(registry, subject_of(spec.topic), spec.value) if is_avro else None
        self._encode: Encoder[Any] | None = None
        # Deltas are values of another type, under a subject of their own.
        self.deltas: StateForm | None = None
        if spec.delta is not None:
            deltas = spec.replaced(value=spec.delta, delta=None, topic=spec.delta_topic, index={}, unique={})
            self.deltas = StateForm(deltas, registry)
        self._pushed_json, self._pushed_avro = _Encoded[bytes](), _Encoded[bytes]()
        self._pushed_text = _Encoded[str]()
        self.media_types = (JSON, AVRO) if is_avro else (JSON,)
        self._stored_json: dict[bytes, bytes] = {}

    @property
    def is_avro(self) -> bool:
        """True if values have an Avro form."""
        return self._serde is not None

    @property
    def is_compound(self) -> bool:
        """True if keys have several parts."""
        return self._keys.is_compound

    @property
    def has_text_keys(self) -> bool:
        """True if a key is the text itself."""
        return self._key is str

    def key(self, text: str) -> Any:  # noqa: ANN401 - keys are of the type that the state declares
        """Return the key that a text stands for; one of several parts is a JSON list. Raises BadArgument."""
        if self._key is str:
            return self._checked(text)
        try:
            given = json.loads(text) if self.is_compound else text
            return self._checked(msgspec.convert(given, self._key, strict=False))
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise BadArgument("key", text[:60], f"it is no key of state {self.name!r}: {error}") from error

    def prefix(self, text: str) -> tuple[Any, ...]:
        """Return the first parts of a compound key, from a JSON list. Raises BadArgument."""
        rule = f"it must be a JSON list of the first parts of a key of state {self.name!r}"
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadArgument("prefix", text[:60], rule) from error
        kinds = getattr(self._key, "__args__", ())
        if get_origin(self._key) is not tuple or not isinstance(given, list) or not 1 <= len(given) <= len(kinds):
            raise BadArgument("prefix", text[:60], rule)
        try:
            return tuple(msgspec.convert(each, kind, strict=False) for each, kind in zip(given, kinds, strict=False))
        except msgspec.ValidationError as error:
            raise BadArgument("prefix", text[:60], rule) from error

    def bound(self, name: str, given: Any) -> Any:  # noqa: ANN401
        """Return an end of a collection: a key or, if keys have parts, the first parts of one. Raises BadArgument."""
        if given is None:
            return None
        if self.is_compound:
            return () if given == [] else self.prefix(json.dumps(given))
        try:
            return msgspec.convert(given, self._key, strict=False)
        except msgspec.ValidationError as error:
            raise BadArgument(name, str(given)[:60], f"it is no key of state {self.name!r}: {error}") from error

    def to_json(self, value: Any) -> Any:  # noqa: ANN401
        """Return a value as JSON values."""
        if value is None:
            return None
        return self._codec.to_json(value) if self._codec is not None else msgspec.to_builtins(value)

    def from_json(self, value: Any) -> Any:  # noqa: ANN401
        """Return the value that JSON stands for. Raises NotDecodable, BadArgument."""
        if self._codec is not None:
            return self._codec.from_json(value)
        try:
            return msgspec.convert(value, self._hint)
        except msgspec.ValidationError as error:
            raise BadArgument("value", "…", f"it is no value of state {self.name!r}: {error}") from error

    async def to_avro(self, value: Any) -> bytes:  # noqa: ANN401
        """Return a value as framed Avro. Raises WrongMediaType if values have no such form."""
        if self._serde is None:
            raise WrongMediaType("Accept", AVRO, ("application/json",))
        return await self._serde.encode(value) or b""

    def json_stored(self, data: bytes, decode: Callable[[bytes], Any]) -> bytes:
        """Return the text of the JSON of a value that is stored as these bytes.

        What is read often is written once: the same bytes are the same value, whichever key has them.
        """
        found = self._stored_json.get(data)
        if found is None:
            found = msgspec.json.encode(self.to_json(decode(data)))
            if len(data) <= _MOST_STORED_BYTES:
                self._stored_json[data] = found
            if len(self._stored_json) > _MOST_STORED:
                del self._stored_json[next(iter(self._stored_json))]
        return found

    def json_pushed(self, value: Any) -> bytes:  # noqa: ANN401
        """Return a value that goes to many sockets as the text of its JSON; it is written once."""
        found = self._pushed_json.get(value)
        return found or self._pushed_json.keep(value, msgspec.json.encode(self.to_json(value)))

    def text_pushed(self, value: Any) -> str:  # noqa: ANN401
        """Return what `json_pushed` does as a text: the same object for all sockets, so that it is framed once."""
        found = self._pushed_text.get(value)
        return found or self._pushed_text.keep(value, self.json_pushed(value).decode())

    async def open_avro(self) -> None:
        """Get ready for `avro_pushed`, of deltas too. Raises IncompatibleSchema, and what the registry raises."""
        if self._serde is not None:
            self._encode = await self._serde.encoder()
        if self.deltas is not None:
            await self.deltas.open_avro()

    def avro_pushed(self, value: Any) -> bytes:  # noqa: ANN401
        """Return a value that goes to many sockets as framed Avro; it is written once. `open_avro` comes before."""
        found = self._pushed_avro.get(value)
        if found is None:
            assert self._encode is not None, "open_avro was not called"  # noqa: S101
            found = self._pushed_avro.keep(value, self._encode(value) or b"")
        return found

    async def from_avro(self, data: bytes) -> Any:  # noqa: ANN401
        """Return the value of framed Avro. Raises WrongMediaType, NotFramed, UnknownSchema, NotDecodable."""
        if self._serde is None:
            raise WrongMediaType("Content-Type", AVRO, ("application/json",))
        return await self._serde.decode(data)

    def _checked(self, key: Any) -> Any:  # noqa: ANN401
        try:
            self._keys.encode(key)
        except NotStorable as error:
            raise BadArgument("key", str(key)[:60], str(error)) from error
        return key


class _Encoded(Generic[E]):
    """The encoded form of the last values. They are compared by identity: sockets on a key share its changes."""

    def __init__(self) -> None:
        self._last: deque[tuple[Any, E]] = deque(maxlen=_KEPT)

    def get(self, value: Any) -> E | None:  # noqa: ANN401
        """Return the encoded form of a value, if it is kept."""
        for kept, encoded in self._last:
            if kept is value:
                return encoded
        return None

    def keep(self, value: Any, encoded: E) -> E:  # noqa: ANN401
        """Keep the encoded form of a value, and return it."""
        self._last.appendleft((value, encoded))
        return encoded


class MessageForm:
    """One type of messages of a keyspace."""

    def __init__(self, kind: type[Any], registry: Registry) -> None:
        self.name = kind.__name__
        self.kind = kind
        self._codec: Codec[Any] = codec_for(kind)
        self._serde: Serde[Any] = Serde(registry, f"{kind.__name__}-value", kind, auto_register=False)

    @property
    def schema_name(self) -> str:
        """The name that the message's schema has."""
        return self._codec.schema.name

    def from_json(self, value: Any) -> Any:  # noqa: ANN401
        """Return the message that JSON stands for. Raises NotDecodable."""
        if not isinstance(value, dict):
            raise NotDecodable(self.name, "the top", "a message is a JSON object with its fields")
        return self._codec.from_json(value)

    async def from_avro(self, data: bytes) -> Any:  # noqa: ANN401
        """Return the message of framed Avro. Raises NotFramed, UnknownSchema, NotDecodable."""
        if not is_framed(data):
            raise BadArgument("body", f"{len(data)} bytes", "it must be framed Avro: 0, schema id, Avro")
        return await self._serde.decode(data)


def json_of(value: Any) -> Any:  # noqa: ANN401 - the reply of a handler is anything
    """Return a reply as JSON values: {"type", "data"} for classes that Avro can describe, else as msgspec has it."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [json_of(each) for each in value]
    if isinstance(value, dict):
        return {str(key): json_of(each) for key, each in value.items()}
    if hasattr(type(value), "__struct_fields__") or hasattr(type(value), "__dataclass_fields__"):
        return codec_for(type(value)).to_json(value)
    if hasattr(type(value), "model_fields"):
        return codec_for(type(value)).to_json(value)
    return msgspec.to_builtins(value)
