"""Generic records and enum symbols, for data without Python classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["GenericRecord", "Symbol"]


class GenericRecord(Mapping[str, Any]):
    """A record that was read without a class: a mapping of its fields, with its full name.

    Two are equal if their names and fields are. It can be written again, unchanged or changed by `with_fields`.
    """

    __slots__ = ("_fields", "name")

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.name = name
        self._fields = dict(fields)

    def __getitem__(self, field: str) -> Any:  # noqa: ANN401
        return self._fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GenericRecord):
            return self.name == other.name and self._fields == other._fields
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def with_fields(self, **changes: Any) -> GenericRecord:  # noqa: ANN401
        """Return a copy with some fields changed."""
        return GenericRecord(self.name, {**self._fields, **changes})

    def __repr__(self) -> str:
        return f"GenericRecord({self.name!r}, {self._fields!r})"


class Symbol(str):
    """A symbol of an enum that was read without a class: text, with its enum's full name."""

    __slots__ = ("enum",)
    enum: str

    def __new__(cls, enum: str, symbol: str) -> Symbol:
        """Make a symbol of an enum."""
        made = super().__new__(cls, symbol)
        made.enum = enum
        return made

    def __reduce__(self) -> tuple[type[Symbol], tuple[str, str]]:
        return Symbol, (self.enum, str(self))
