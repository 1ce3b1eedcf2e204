"""Scans of a table: the predicates of a query, options, counts, and the predicates of all scans of one frame.

Predicates are derived from the filters that Spark pushes down. They may match more than the query needs, never less;
Spark checks every row again.

Spark 4.2 keeps one reader for each frame, and the scan that is planned last replaces it: two uses of a frame in one
statement would both read with the last filter. So each scan reads what all earlier scans of its frame match, too;
Spark applies the filters of each scan to its rows again. Scans are planned in short-lived processes, so the predicates
are kept in a file on the driver's machine, one for each frame. It can't be known which scans are still in use, so the
predicates only ever widen, up to everything if they take too much space.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from headrace.errors import BadArgument

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = [
    "EVERYTHING",
    "MOST_BYTES",
    "Counts",
    "Predicates",
    "ReadOptions",
    "Span",
    "counted",
    "predicates_of",
    "predicates_of_all_scans",
    "total",
]

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


class ReadOptions(msgspec.Struct, frozen=True):
    """Options for reading journals. `held` says what to do with a held one.

    `skew_ms` is the greatest difference between producers' clocks; None means any. Journals whose first and last
    record are further than that from the filtered times are not read.
    """

    held: Literal["raise", "skip"] = "raise"
    skew_ms: int | None = 3_600_000


class Counts(msgspec.Struct):
    """Counts of what one task read: heads and rows of the store, records of the log without and with values."""

    topic: str
    partition: int
    metas: int = 0
    rows: int = 0
    headers: int = 0
    values: int = 0
    given: int = 0

    def write(self, folder: str | None) -> None:
        """Write the counts to a file in the folder, if there is one."""
        if folder:
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_bytes(msgspec.json.encode(self))


def counted(folder: Path) -> list[Counts]:
    """Return the counts that tasks have written to the folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Counts) for path in sorted(folder.glob("*.json"))]


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, without a topic and a partition."""
    added = Counts("", -1)
    for each in counts:
        for field in ("metas", "rows", "headers", "values", "given"):
            setattr(added, field, getattr(added, field) + getattr(each, field))
    return added


MOST_BYTES = 256 * 1024
"""The most bytes kept for the predicates of one frame, about ten thousand keys. Beyond it all keys match."""

_KEPT_S = 7 * 24 * 3600.0
_NEW = ".new"


def predicates_of_all_scans(frame: str, predicates: Predicates) -> Predicates:
    """Add the predicates of one more scan of the frame, and return predicates that cover all its scans."""
    folder = _folder()
    with _one_at_a_time(folder):
        path = folder / frame
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=Predicates)
            together = _bounded(known.or_(predicates))
        else:
            _remove_old(folder)
            known, together = None, _bounded(predicates)
        if together == known:
            os.utime(path)  # so that it is not removed as old
        else:
            _write(path, together)
    return together


def _bounded(predicates: Predicates) -> Predicates:
    """Return the predicates, widened if they are too large to be kept."""
    if len(msgspec.json.encode(predicates)) <= MOST_BYTES:
        return predicates
    without_keys = replace(predicates, keys=None)
    return without_keys if len(msgspec.json.encode(without_keys)) <= MOST_BYTES else EVERYTHING


def _write(path: Path, predicates: Predicates) -> None:
    """Replace the file atomically: a process that is killed here leaves the old one."""
    new = path.with_name(path.name + _NEW)
    new.write_bytes(msgspec.json.encode(predicates))
    new.replace(path)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes. The lock ends with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _folder() -> Path:
    """Return the folder of this user, to which no other user can write.

    It is named by the user's number, because users in containers may have no name.
    """
    folder = Path(tempfile.gettempdir()) / f"headrace-scans-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadArgument("TMPDIR", folder, "it belongs to another user; set TMPDIR to a folder of your own")
    return folder


def _remove_old(folder: Path) -> None:
    """Remove the files of frames that were last planned a week ago, because their sessions have ended."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()
