"""The state of an aggregate as its journal has it, and whether that is the state which the state topic holds.

Nothing here reads or writes. Audits, rebuilds and replays all fold with `AggregateFold`, so that they agree.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from headrace.engine.models import Engine
from headrace.engine.records import AggregateRecord, AggregateValues
from headrace.errors import EventsMissing, FoldFailed, HeadraceError, NotReadable
from headrace.model import StoredEvent
from headrace.runtime import error_text
from headrace.state import ValueCodec

__all__ = ["AggregateDifference", "AggregateFold", "DifferenceKind", "StoredAggregate", "difference_of", "shown_state"]

S = TypeVar("S")
DifferenceKind: TypeAlias = Literal["missing", "version", "state", "unreadable record", "unreadable journal"]

_SHOWN_AT_MOST = 2000


class AggregateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregate whose record in the state topic is not what its journal says.

    States are as JSON has them, and None where there is none or it can't be read; then `problem` says why.
    """

    id: str
    kind: DifferenceKind
    stored_version: int | None = None
    stored_state: Any = None
    folded_version: int | None = None
    folded_state: Any = None
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.id}: {self.kind}: {self.problem}"
        stored = "nothing" if self.stored_version is None else f"version {self.stored_version}, {self.stored_state}"
        return f"{self.id}: stored is {stored}; the journal makes version {self.folded_version}, {self.folded_state}"


class StoredAggregate(msgspec.Struct, frozen=True):
    """What the state topic holds of an aggregate: the bytes of its record, None if there is none."""

    id: str
    value: bytes | None


class AggregateFold(Generic[S]):
    """Applies the events of one journal, in order; memory does not grow with their number."""

    def __init__(self, engine: Engine[S], aggregate: str) -> None:
        self.aggregate = aggregate
        self.state: S | None = None
        self.version = 0
        self._engine = engine

    def add(self, event: StoredEvent) -> tuple[Any, ...]:
        """Apply the next event; return it as the engine's code sees it.

        Raises EventsMissing, UpcastFailed, FoldFailed.
        """
        self.check_next(event.seq_nr)
        events = self.events_of(event)
        for each in events:
            self.apply(each, event.seq_nr)
        self.version = event.seq_nr
        return events

    def events_of(self, event: StoredEvent) -> tuple[Any, ...]:
        """Return a stored event as the engine's code sees it. Raises UpcastFailed, FoldFailed."""
        place = f"event {event.seq_nr} of {self.aggregate!r}"
        try:
            return self._engine.events.events_of(event.payload, place)
        except NotReadable as error:
            name = event.payload.get("type", "") if isinstance(event.payload, dict) else ""
            raise self._failed(event.seq_nr, str(name) or "which has no type", error) from error

    def check_next(self, seq_nr: int) -> None:
        """Check that no event is missing before this number. Raises EventsMissing."""
        if seq_nr != self.version + 1:
            raise EventsMissing(self._engine.name, self.aggregate, self.version + 1, seq_nr)

    def apply(self, event: Any, seq_nr: int) -> None:  # noqa: ANN401
        """Apply one event of a present class. Raises FoldFailed."""
        try:
            self.state = self._engine.apply(self.state, event)
        except Exception as error:  # the application's own
            raise self._failed(seq_nr, type(event).__name__, error) from error

    def encoded(self, codec: ValueCodec[S]) -> bytes | None:
        """Return the state's bytes; None if there is no state. Raises FoldFailed if the codec does not take it."""
        if self.state is None:
            return None
        try:
            return codec.encode(self.state)
        except Exception as error:
            raise self._failed(self.version, "after which the state can't be stored", error) from error

    def _failed(self, seq_nr: int, event: str, error: Exception) -> FoldFailed:
        reason = error_text(error)
        return FoldFailed(self._engine.name, self.aggregate, seq_nr, event, reason)


def difference_of(
    values: AggregateValues, stored: StoredAggregate, fold: AggregateFold[Any] | HeadraceError
) -> AggregateDifference | None:
    """Return how a stored record differs from the fold of its journal; None if they agree.

    A journal that can't be folded is a difference, whatever is stored. The codec is ready for the record's bytes.
    """
    try:
        record = values.decode(stored.value) if stored.value is not None else None
        state = values.inner.decode(record.state) if record is not None and record.state is not None else None
    except (HeadraceError, ValueError, TypeError) as error:
        return _different(stored.id, "unreadable record", None, None, fold, problem=str(error))
    if isinstance(fold, HeadraceError):
        return _different(stored.id, "unreadable journal", record, state, fold, problem=str(fold))
    if record is None:
        return None if fold.version == 0 else _different(stored.id, "missing", None, None, fold)
    if record.version != fold.version:
        return _different(stored.id, "version", record, state, fold)
    try:
        encoded = fold.encoded(values.inner)
    except FoldFailed as error:
        return _different(stored.id, "unreadable journal", record, state, error, problem=str(error))
    if _is_same(values.inner, record.state, state, encoded):
        return None
    return _different(stored.id, "state", record, state, fold)


def _is_same(codec: ValueCodec[Any], stored: bytes | None, state: object, encoded: bytes | None) -> bool:
    """Return True if two states are equal, as values or as bytes.

    Stored bytes may be of an older version of the state's class, so that they are written again first.
    """
    if stored is None or encoded is None:
        return stored is encoded
    return stored == encoded or state == codec.decode(encoded) or codec.encode(state) == encoded


def _different(
    aggregate: str,
    kind: DifferenceKind,
    record: AggregateRecord | None,
    state: object,
    fold: AggregateFold[Any] | HeadraceError,
    *,
    problem: str = "",
) -> AggregateDifference:
    made = fold if isinstance(fold, AggregateFold) else None
    return AggregateDifference(
        id=aggregate,
        kind=kind,
        stored_version=None if record is None else record.version,
        stored_state=shown_state(state),
        folded_version=None if made is None else made.version,
        folded_state=None if made is None else shown_state(made.state),
        problem=problem,
    )


def shown_state(state: object) -> Any:  # noqa: ANN401
    """Return a state as JSON has it, or as text if JSON has no form for it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(state))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(state)[:_SHOWN_AT_MOST]
