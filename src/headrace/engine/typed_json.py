"""Commands, events and states as JSON, with the name of their class beside them where there are several classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from headrace.errors import BadArgument, NotReadable, NotStorable
from headrace.protocol import MAX_JSON_DEPTH, check_finite, checked_depth
from headrace.runtime import error_text

__all__ = ["TypedJson"]

_plain_encode = msgspec.json.Encoder().encode
_sorted_encode = msgspec.json.Encoder(order="sorted").encode


def _encode_sorted(value: Any) -> bytes:  # noqa: ANN401
    """Return sorted JSON, so that equal commands are equal bytes, whichever version of a class wrote them."""
    try:
        return _sorted_encode(value)
    except TypeError:  # the sorted form needs keys that are texts
        return _sorted_encode(_sorted_builtins(value))


class TypedJson:
    """The classes of an engine's commands, or of its events, by their names."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._kinds: dict[str, type] = {}
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}
        self._heads: dict[str, bytes] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return tuple(sorted(self._kinds))

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def add(self, kind: type) -> None:
        """Add a class. Raises BadArgument if JSON can't carry it, or if another class has its name."""
        if not isinstance(kind, type):
            raise BadArgument(self._what, kind, "it must be a class: a dataclass, a msgspec Struct or a NamedTuple")
        try:
            is_strange = isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
        except TypeError as error:
            raise BadArgument(self._what, kind.__name__, f"JSON must be able to carry it: {error}") from error
        if is_strange:
            raise BadArgument(self._what, kind.__name__, "JSON must be able to carry it: use a dataclass or a Struct")
        if self._kinds.setdefault(kind.__name__, kind) is not kind:
            raise BadArgument(self._what, kind.__name__, "another class of this name is declared already")
        self._decoders[kind.__name__] = msgspec.json.Decoder(kind)
        self._heads[kind.__name__] = b'{"type":' + msgspec.json.encode(kind.__name__) + b',"data":'

    def payload(self, value: Any, *, is_sorted: bool = False) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the value as an event's payload in a journal; sorted ones of equal events are equal bytes.

        Raises NotStorable.
        """
        return {"type": type(value).__name__, "data": self._builtins(value, is_sorted=is_sorted)}

    def carried_payload(self, value: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the sorted payload of an event that a caller sends. Raises NotStorable for what JSON would change."""
        self._checked(value, type(value).__name__, _encode_sorted)
        return self.payload(value, is_sorted=True)

    def of_payload(self, payload: Any) -> Any:  # noqa: ANN401
        """Return the value of a payload. Raises NotReadable."""
        if not isinstance(payload, Mapping) or payload.keys() < {"type", "data"}:
            raise NotReadable(f"the {self._what}", repr(payload)[:60], 'it is not of the form {"type": …, "data": …}')
        return self._value(payload["type"], payload["data"])

    def payload_json(self, value: Any) -> bytes:  # noqa: ANN401
        """Return the payload of a value as JSON. Raises NotStorable."""
        name = type(value).__name__
        head = self._heads.get(name)
        if head is None:
            return _plain_encode(self.payload(value))
        return head + self._checked(value, name, _plain_encode) + b"}"

    def encode(self, value: Any) -> tuple[str, bytes]:  # noqa: ANN401
        """Return the class's name and the value's JSON. Raises NotStorable."""
        name = type(value).__name__
        return name, self._checked(value, name, _encode_sorted)

    def decode(self, name: str, data: bytes) -> Any:  # noqa: ANN401
        """Return the value. Raises NotReadable."""
        decoder = self._decoders.get(name)
        try:
            return self._value(name, msgspec.json.decode(data)) if decoder is None else decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotReadable(f"the {self._what}", name, str(error)) from error
        except NotReadable:
            raise
        except Exception as error:  # the class itself may check its fields, and raise anything
            raise NotReadable(f"the {self._what}", name, error_text(error)) from error

    def kinds(self, names: Iterable[str]) -> list[type]:
        """Return the classes of these names that are known."""
        return [self._kinds[name] for name in names if name in self._kinds]

    def _checked(self, value: Any, name: str, encode: Callable[[Any], bytes]) -> bytes:  # noqa: ANN401
        """Return the value's JSON after it was read back: a dataclass does not check its fields itself."""
        try:
            data = checked_depth(encode(value), MAX_JSON_DEPTH - 1)  # with its class around it, it is a payload
            decoder = self._decoders.get(name)
            if decoder is not None:
                decoder.decode(data)
            if b"null" in data:
                check_finite(value)
        except Exception as error:  # the class itself may check its fields, and raise anything
            raise self._not_storable(value, error) from error
        return data

    def _builtins(self, value: Any, *, is_sorted: bool = False) -> Any:  # noqa: ANN401
        """Return the value as plain objects that can be read back: a dataclass does not check its fields itself."""
        try:
            builtins = _sorted_builtins(value) if is_sorted else msgspec.to_builtins(value, str_keys=True)
            msgspec.convert(builtins, self._kinds.get(type(value).__name__, Any), str_keys=True)
        except Exception as error:  # the class itself may check its fields, and raise anything
            raise self._not_storable(value, error) from error
        return builtins

    def _not_storable(self, value: Any, error: Exception) -> NotStorable:  # noqa: ANN401
        return NotStorable(f"the {self._what}", type(value).__name__, f"JSON does not take it: {error}")

    def _value(self, name: Any, data: Any) -> Any:  # noqa: ANN401
        kind = self._kinds.get(name)
        if kind is None:
            raise NotReadable(f"the {self._what}", str(name), f"its class is not one of {', '.join(self.names)}")
        try:
            return msgspec.convert(data, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise NotReadable(f"the {self._what}", str(name), str(error)) from error
        except Exception as error:  # the class itself may check its fields, and raise anything
            raise NotReadable(f"the {self._what}", str(name), error_text(error)) from error


def _sorted_builtins(value: Any) -> Any:  # noqa: ANN401
    """Return the value as plain objects. Sets are sorted, which have another order in each process, if they can be."""
    try:
        return msgspec.to_builtins(value, str_keys=True, order="deterministic")
    except TypeError:  # a set of things that have no order
        return msgspec.to_builtins(value, str_keys=True)
