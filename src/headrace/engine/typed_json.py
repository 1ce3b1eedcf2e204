"""Commands, events and states as JSON, with the name of their class beside them where there are several classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.errors import BadArgument, NotReadable, NotStorable
from headrace.protocol import check_finite
from headrace.runtime import error_text

__all__ = ["TypedJson"]

# Sorted, so that equal commands are equal bytes, whichever version of a class wrote them.
_encode = msgspec.json.Encoder(order="sorted").encode


class TypedJson:
    """The classes of an engine's commands, or of its events, by their names."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._kinds: dict[str, type] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return tuple(sorted(self._kinds))

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def add(self, kind: type) -> None:
        """Add a class. Raises BadArgument if JSON can't carry it, or if another class has its name."""
        if not isinstance(kind, type):
            raise BadArgument(self._what, kind, "it is a class: a dataclass, a msgspec Struct or a NamedTuple")
        try:
            is_strange = isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
        except TypeError as error:
            raise BadArgument(self._what, kind.__name__, f"JSON must be able to carry it: {error}") from error
        if is_strange:
            raise BadArgument(self._what, kind.__name__, "JSON must be able to carry it: use a dataclass or a Struct")
        if self._kinds.setdefault(kind.__name__, kind) is not kind:
            raise BadArgument(self._what, kind.__name__, "another class of this name is declared already")

    def payload(self, value: Any, *, is_sorted: bool = False) -> Mapping[str, Any]:  # noqa: ANN401
        """Return the value as an event's payload in a journal; sorted ones of equal events are equal bytes.

        Raises NotStorable.
        """
        return {"type": type(value).__name__, "data": self._builtins(value, is_sorted=is_sorted)}

    def of_payload(self, payload: Any) -> Any:  # noqa: ANN401
        """Return the value of a payload. Raises NotReadable."""
        if not isinstance(payload, Mapping) or payload.keys() < {"type", "data"}:
            raise NotReadable(f"the {self._what}", repr(payload)[:60], 'it is not of the form {"type": …, "data": …}')
        return self._value(payload["type"], payload["data"])

    def encode(self, value: Any) -> tuple[str, bytes]:  # noqa: ANN401
        """Return the class's name and the value's JSON. Raises NotStorable."""
        builtins = self._builtins(value, is_sorted=True)
        try:
            data = _encode(builtins)
            if b"null" in data:
                check_finite(builtins)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._not_storable(value, error) from error
        return type(value).__name__, data

    def decode(self, name: str, data: bytes) -> Any:  # noqa: ANN401
        """Return the value. Raises NotReadable."""
        try:
            return self._value(name, msgspec.json.decode(data))
        except msgspec.DecodeError as error:
            raise NotReadable(f"the {self._what}", name, str(error)) from error

    def kinds(self, names: Iterable[str]) -> list[type]:
        """Return the classes of these names that are known."""
        return [self._kinds[name] for name in names if name in self._kinds]

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
