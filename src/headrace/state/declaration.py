"""What an application declares about a state: types, topic, store, time to live, indexes."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as shown
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.errors import BadArgument, NotStorable
from headrace.model import TopicConfig, check_topic_name
from headrace.runtime import error_text
from headrace.state.changelog import changelog_config
from headrace.state.expiry import Duration, ttl_in_ms
from headrace.state.keys import encode_part, encode_parts
from headrace.state.table import FORMAT, INDEX_FORMAT, IndexRow, index_prefix
from headrace.state.values import ValueCodec

__all__ = ["IndexFunction", "StateSpec", "index_range", "index_row"]

K = TypeVar("K")
V = TypeVar("V")

# Of a value, what it is found by: a part of a key or a tuple of these, a list of them, or None for nothing.
IndexFunction: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class StateSpec(Generic[K, V]):
    """A state by key. Every partition of it is one partition of its changelog topic.

    `value` is a type (str, bytes and int are plain, dict and list JSON, classes Avro) or a `ValueCodec`.
    `ttl` holds for every value; `ttl_of` returns one for a key and a value at each write, and a write can have its own.
    If all have one, `longest_ttl` (or else `ttl`) bounds them, and the topic drops what is older.
    `index` and `unique` name functions of a value. Rows are built again when the names, or the functions' own code,
    change; a change in what such a function calls needs another name.
    `is_external` marks a topic that others write: it is read only, and its settings are left alone.
    Nobody can subscribe to a state without `is_followed`: its copies keep no changes, which makes commits cheaper.
    """

    name: str
    topic: str
    key: type[K] | Any
    value: type[V] | ValueCodec[V] | Any
    delta: type[Any] | ValueCodec[Any] | Any = None
    partitions: int = 1
    ttl: Duration | None = None
    ttl_of: Callable[[K, V], Duration | None] | None = None
    longest_ttl: Duration | None = None
    index: Mapping[str, IndexFunction] = field(default_factory=dict)
    unique: Mapping[str, IndexFunction] = field(default_factory=dict)
    is_external: bool = False
    is_followed: bool = True
    topic_config: TopicConfig | None = None

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        for name in self.indexes:
            if not name.isidentifier():
                raise BadArgument("index", name, "an index is named like a variable")
        if self.index.keys() & self.unique.keys():
            raise BadArgument("unique", sorted(self.unique), "an index and a unique key can't have the same name")
        for what in ("ttl", "longest_ttl"):
            value = getattr(self, what)
            if value is not None and ttl_in_ms(value) < 1:
                raise BadArgument(what, value, "values would be due before they are written; it must be above 0")
        if self.longest_ttl is not None and self.ttl is None:
            raise BadArgument("longest_ttl", self.longest_ttl, "it bounds times to live; give a ttl for all values too")

    def replaced(self, **changes: Any) -> StateSpec[K, V]:  # noqa: ANN401
        """Return the same state with other fields."""
        return replace(self, **changes)

    @property
    def delta_topic(self) -> str:
        """The topic that the schema of deltas is named after: their type is another one than that of values."""
        return f"{self.topic}.delta"

    @property
    def indexes(self) -> Mapping[str, IndexFunction]:
        """All indexes, unique ones included."""
        return {**self.index, **self.unique}

    @property
    def ttl_ms(self) -> int | None:
        """The time to live of a value that has none of its own."""
        return None if self.ttl is None else ttl_in_ms(self.ttl)

    @property
    def longest_ttl_ms(self) -> int | None:
        """The longest time to live; None if values may stay forever."""
        longest = self.longest_ttl if self.longest_ttl is not None else self.ttl
        return None if longest is None else ttl_in_ms(longest)

    def ttl_ms_of(self, key: K, value: V, ttl: Duration | None = None) -> int | None:
        """Return the time to live of a write; None if it has none of its own. Raises BadArgument if it is too long."""
        if ttl is None and self.ttl_of is not None:
            ttl = self.ttl_of(key, value)
        if ttl is None:
            return None
        ttl_ms = ttl_in_ms(ttl)
        if self.longest_ttl_ms is not None and ttl_ms > self.longest_ttl_ms:
            rule = f"the longest in state {self.name!r} is {self.longest_ttl_ms} ms; declare a longer longest_ttl"
            raise BadArgument("ttl", ttl, rule)
        return ttl_ms

    @functools.cached_property
    def layout(self) -> str:
        """Names all that the rows of a copy depend on besides the log; another one means: build them again."""
        indexes = ",".join(f"{name}:{_digest_of(self.indexes[name])}" for name in sorted(self.indexes))
        return f"{FORMAT} ttl={self.ttl_ms} indexes={indexes and f'{INDEX_FORMAT}/{indexes}'}"

    @property
    def config(self) -> TopicConfig:
        """The settings of the changelog topic."""
        return changelog_config(longest_ttl_ms=self.longest_ttl_ms, base=self.topic_config)

    def index_rows(self, value: V) -> list[IndexRow]:
        """Return the rows of all indexes that point to a value."""
        declared = (*self.index.items(), *self.unique.items())
        return [row for name, function in declared for row in _rows(name, function(value))]

    def check_indexes(self, value: V) -> None:
        """Refuse a value for which the function of an index fails, or returns what no index holds. Raises NotStorable.

        Applying it would fail after it is committed, at every copy.
        """
        for name, function in self.indexes.items():
            try:
                _rows(name, function(value))
            except Exception as error:  # whatever the application raises
                raise NotStorable(
                    "the value", shown(value), f"index {name!r} fails for it: {error_text(error)}"
                ) from error

    def rows_of(self, index: str, value: V) -> list[IndexRow]:
        """Return the rows of one index that point to a value."""
        return _rows(index, self.indexes[index](value))


def _digest_of(function: IndexFunction) -> str:
    """Return what changes with the code of a function, whatever file and line it stands in."""
    code = getattr(function, "__code__", None)
    seen = _code_parts(code) if isinstance(code, types.CodeType) else (type(function).__name__,)
    cells = (repr(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ())
    parts = (*seen, *(each for each in cells if " at 0x" not in each))
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=6).hexdigest()


def _code_parts(code: types.CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        elif not isinstance(constant, frozenset):  # whose order changes from process to process
            yield repr(constant)


def _rows(index: str, found: Any) -> list[IndexRow]:  # noqa: ANN401
    """Return the rows of what an index's function returned."""
    if found is None:
        return []
    return [index_row(index, each) for each in (found if isinstance(found, list) else [found])]


def index_row(index: str, value: Any) -> IndexRow:  # noqa: ANN401
    """Return the row of an indexed value."""
    parts: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    return index.encode() + b"\x00" + encode_parts(tuple(parts)) + b"\x00"


def index_range(index: str, *, below: Any = None) -> tuple[bytes, bytes]:  # noqa: ANN401
    """Return where the rows of an index begin and end: of all values, or of those below one."""
    name = index.encode()
    end = name + b"\x01" if below is None else name + b"\x00" + encode_part(below)
    return index_prefix(name + b"\x00"), index_prefix(end)
