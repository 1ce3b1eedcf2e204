"""Predicates of a query on a table, derived from the filters that Spark pushes down. Pure.

They may match more than the query needs, never less; Spark checks every row again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["EVERYTHING", "Predicates", "Span", "predicates_of"]

T = TypeVar("T")


class Span(NamedTuple):
    """Whole numbers from `low` to `high`, both included; None is no bound."""

    low: int | None = None
    high: int | None = None

    def __contains__(self, number: object) -> bool:
        return (
            isinstance(number, int)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
        )

    def narrowed(self, low: int | None, high: int | None) -> Span:
        """Return the intersection with another span."""
        lows = [bound for bound in (self.low, low) if bound is not None]
        highs = [bound for bound in (self.high, high) if bound is not None]
        return Span(max(lows, default=None), min(highs, default=None))

    def widened(self, other: Span) -> Span:
        """Return the smallest span that contains both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Span(low, high)


_ANY = Span()


@dataclass(frozen=True, slots=True)
class Predicates:
    """What a query may match. None matches every name. `time_ms` refers to the timestamps of records."""

    topics: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    seq_nr: Span = _ANY
    offset: Span = _ANY
    time_ms: Span = _ANY

    def has(self, *, seq_nr: int, offset: int, timestamp_ms: int) -> bool:
        """Return True if the event may match."""
        return seq_nr in self.seq_nr and offset in self.offset and timestamp_ms in self.time_ms

    def or_(self, other: Predicates) -> Predicates:
        """Return predicates that match whatever either of the two matches."""
        return Predicates(
            _either(self.topics, other.topics),
            _either(self.keys, other.keys),
            _either(self.partitions, other.partitions),
            self.seq_nr.widened(other.seq_nr),
            self.offset.widened(other.offset),
            self.time_ms.widened(other.time_ms),
        )


EVERYTHING = Predicates()


def _either(names: frozenset[T] | None, others: frozenset[T] | None) -> frozenset[T] | None:
    return None if names is None or others is None else names | others


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# By column: the field of Predicates, and the type of its values.
_NAMES = {"topic": ("topics", str), "key": ("keys", str), "partition": ("partitions", int)}
_SPANS = {"seq_nr": "seq_nr", "offset": "offset", "timestamp": "time_ms"}


def predicates_of(filters: Iterable[Filter]) -> Predicates:
    """Return the predicates that all these filters imply together."""
    predicates = EVERYTHING
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) == 1 and path[0] in _NAMES:
            predicates = _named(predicates, path[0], each)
        elif len(path) == 1 and path[0] in _SPANS:
            predicates = _spanned(predicates, path[0], each)
    return predicates


def _named(predicates: Predicates, column: str, each: Filter) -> Predicates:
    field, kind = _NAMES[column]
    match type(each).__name__, getattr(each, "value", None):
        case (("EqualTo" | "EqualNullSafe"), value) if isinstance(value, kind):
            values: frozenset[Any] = frozenset({value})
        case "In", (tuple() | list()) as listed:
            values = frozenset(value for value in listed if isinstance(value, kind))
        case _:
            return predicates
    known: frozenset[Any] | None = getattr(predicates, field)
    changed: dict[str, Any] = {field: values if known is None else known & values}
    return replace(predicates, **changed)


def _spanned(predicates: Predicates, column: str, each: Filter) -> Predicates:
    bounds = _bounds(type(each).__name__, getattr(each, "value", None))
    if bounds is None:
        return predicates
    field = _SPANS[column]
    span: Span = getattr(predicates, field)
    changed: dict[str, Any] = {field: span.narrowed(*bounds)}
    return replace(predicates, **changed)


def _bounds(kind: str, value: Any) -> tuple[int | None, int | None] | None:  # noqa: ANN401 - any literal
    """Return the bounds that a filter sets on whole numbers; None if it sets none."""
    low, high = _down(value), _up(value)
    match kind:
        case "In" if isinstance(value, tuple | list):
            lows = [low for each in value if (low := _down(each)) is not None]
            highs = [high for each in value if (high := _up(each)) is not None]
            return (min(lows), max(highs)) if len(lows) == len(value) > 0 else None
        case _ if low is None or high is None:
            return None
        case "EqualTo" | "EqualNullSafe":
            return low, high
        case "GreaterThan":
            return low + 1, None
        case "GreaterThanOrEqual":
            return high, None
        case "LessThan":
            return None, high - 1
        case "LessThanOrEqual":
            return None, low
    return None


def _down(value: object) -> int | None:
    """Return the greatest whole number that is not above a literal; times are in milliseconds."""
    if isinstance(value, datetime):
        return _micros(value) // 1000
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _up(value: object) -> int | None:
    """Return the least whole number that is not below a literal."""
    return -(-_micros(value) // 1000) if isinstance(value, datetime) else _down(value)


def _micros(time: datetime) -> int:
    """Return a time in microseconds. A time without a zone is in the session's zone, which is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
