"""Checks of a body before it is decoded, for schemas whose data can be much larger in memory than in bytes.

A recursive record can be nested as deeply as its body is long, and the Avro reader, which is written in C, then crashes
the whole process. An array of items that take no bytes can have any number of them. Such bodies are refused when they
are read and when they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.serde.shapes import (
    ArrayShape,
    FixedShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
)

__all__ = ["MAX_DEPTH", "MAX_DEPTH_READ", "MAX_EMPTY_ITEMS", "skimmer_of"]

MAX_DEPTH = 250  # when writing; the reader allows a little more, depending on the depth of its caller's stack
MAX_DEPTH_READ = 1000
MAX_EMPTY_ITEMS = 100_000

Skim: TypeAlias = Callable[[bytes, int], None]
_Skip: TypeAlias = Callable[["_Walk", int], int]

_MOST_NUMBER_BYTES = 10
_LEAST_NUMBER = -(1 << 63)
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def skimmer_of(shape: Shape, *, max_depth: int) -> Skim | None:
    """Return the function that checks a body from an offset on; None if the schema needs no check.

    It raises ValueError, or RecursionError if Python's own limit is lower. It reads bodies exactly as the reader does:
    numbers that the reader would cut or interpret differently are refused.
    """
    if not _Risks().is_risky(shape):
        return None
    skip = _Skippers().of(shape)

    def skim(data: bytes, start: int) -> None:
        try:
            skip(_Walk(data, max_depth), start)
        except IndexError:
            return  # the body is cut off before it is too deep; the reader reports where

    return skim


class _Walk:
    """The state of one check of a body."""

    __slots__ = ("data", "depth_left", "empty_items")

    def __init__(self, data: bytes, max_depth: int) -> None:
        self.data = data
        self.depth_left = max_depth
        self.empty_items = 0

    def number(self, at: int) -> tuple[int, int]:
        """Return the number at an offset, and the offset behind it. Raises IndexError at the end."""
        raw = 0
        for nr in range(_MOST_NUMBER_BYTES):
            byte = self.data[at + nr]
            raw |= (byte & 0x7F) << 7 * nr
            if byte < 0x80 and raw < 1 << 64:
                return (raw >> 1) ^ -(raw & 1), at + nr + 1
        raise ValueError(f"a number at byte {at} has more than 64 bits")


class _Skippers:
    """One compilation. Records are remembered, because they may be recursive."""

    def __init__(self) -> None:
        self._records: dict[int, list[_Skip]] = {}

    def of(self, shape: Shape) -> _Skip:
        match shape:
            case PrimitiveShape() if shape.kind in _SIZES:
                return _fixed(_SIZES[shape.kind])
            case PrimitiveShape() if shape.kind in ("bytes", "string"):
                return _sized
            case FixedShape():
                return _fixed(shape.size)
            case ArrayShape():
                return _blocks(self.of(shape.items))
            case MapShape():
                values = self.of(shape.values)
                return _blocks(lambda walk, at: values(walk, _sized(walk, at)))
            case UnionShape():
                return _one_of([self.of(branch) for branch in shape.branches])
            case RecordShape():
                return self._record(shape)
        return _number

    def _record(self, shape: RecordShape) -> _Skip:
        fields = self._records.get(id(shape))
        if fields is None:
            fields = self._records[id(shape)] = []
            fields.extend([self.of(field.shape) for field in shape.fields])
        return _all_of(fields)


def _number(walk: _Walk, at: int) -> int:
    return walk.number(at)[1]


def _sized(walk: _Walk, at: int) -> int:
    size, at = walk.number(at)
    return _inside(walk, at, size)


def _fixed(size: int) -> _Skip:
    return lambda walk, at: _inside(walk, at, size)


def _inside(walk: _Walk, at: int, size: int) -> int:
    if size < 0 or at + size > len(walk.data):
        raise IndexError
    return at + size


def _one_of(branches: list[_Skip]) -> _Skip:
    def skip(walk: _Walk, at: int) -> int:
        index, at = walk.number(at)
        if index < 0:
            raise ValueError(f"a union has no branch {index}")
        return branches[index](walk, at)

    return skip


def _all_of(fields: list[_Skip]) -> _Skip:
    def skip(walk: _Walk, at: int) -> int:
        walk.depth_left -= 1
        if walk.depth_left < 0:
            raise ValueError(f"records are nested too deeply; they may be nested at most {MAX_DEPTH} deep")
        for skip_field in fields:
            at = skip_field(walk, at)
        walk.depth_left += 1
        return at

    return skip


def _blocks(skip_item: _Skip) -> _Skip:
    def skip(walk: _Walk, at: int) -> int:
        count, at = walk.number(at)
        while count:
            if count == _LEAST_NUMBER:
                raise ValueError(f"a block has no {-count} items")
            if count < 0:
                count, (_, at) = -count, walk.number(at)
            for _ in range(count):
                before, at = at, skip_item(walk, at)
                if at == before:
                    _count_empty(walk)
            count, at = walk.number(at)
        return at

    return skip


def _count_empty(walk: _Walk) -> None:
    walk.empty_items += 1
    if walk.empty_items > MAX_EMPTY_ITEMS:
        raise ValueError(f"arrays hold more than {MAX_EMPTY_ITEMS} items that take no bytes")


class _Risks:
    """One check of a schema. Each record is checked once, however often it is used."""

    def __init__(self) -> None:
        self._around: set[int] = set()
        self._harmless: set[int] = set()
        self._may_be_empty: dict[int, bool] = {}

    def is_risky(self, shape: Shape) -> bool:
        """Return True if a small body may decode to a large value."""
        match shape:
            case ArrayShape():
                return self.may_be_empty(shape.items) or self.is_risky(shape.items)
            case MapShape():
                return self.is_risky(shape.values)
            case UnionShape():
                return any(self.is_risky(branch) for branch in shape.branches)
            case RecordShape() if id(shape) not in self._harmless:
                return self._is_risky_record(shape)
        return False

    def _is_risky_record(self, shape: RecordShape) -> bool:
        if id(shape) in self._around:
            return True  # it is recursive
        self._around.add(id(shape))
        if any(self.is_risky(field.shape) for field in shape.fields):
            return True
        self._around.remove(id(shape))
        self._harmless.add(id(shape))
        return False

    def may_be_empty(self, shape: Shape) -> bool:
        """Return True if a value may take no bytes at all."""
        match shape:
            case PrimitiveShape():
                return shape.kind == "null"
            case FixedShape():
                return shape.size == 0
            case RecordShape():
                if id(shape) not in self._may_be_empty:
                    self._may_be_empty[id(shape)] = False  # inside of itself
                    self._may_be_empty[id(shape)] = all(self.may_be_empty(field.shape) for field in shape.fields)
                return self._may_be_empty[id(shape)]
        return False
