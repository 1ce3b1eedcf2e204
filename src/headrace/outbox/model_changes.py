"""Publishing what happens to ORM models: a message for each row that is inserted, updated or deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args
from weakref import WeakKeyDictionary

from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection
from sqlalchemy.orm import InstanceState, Mapper, object_session
from sqlalchemy.sql import ClauseElement

from headrace.errors import BadArgument
from headrace.outbox.producers import Producer

__all__ = ["ChangeKind", "ModelChange", "publish_changes"]

T = TypeVar("T")
ChangeKind: TypeAlias = Literal["insert", "update", "delete"]

_KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)


@dataclass(frozen=True, slots=True)
class ModelChange(Generic[T]):
    """What happened to a model: `changed` has the old and the new value of each column that an update changed."""

    kind: ChangeKind
    target: T
    changed: Mapping[str, tuple[Any, Any]]

    @property
    def row(self) -> dict[str, Any]:
        """The columns' values as they are now, or were when the row was deleted, by the model's own names."""
        state = _state_of(self.target)
        return {attribute.key: getattr(self.target, attribute.key) for attribute in state.mapper.column_attrs}

    @property
    def identity(self) -> Any:  # noqa: ANN401 - what the model has
        """The primary key: its value, or a tuple of values."""
        values = _state_of(self.target).mapper.primary_key_from_instance(self.target)
        return values[0] if len(values) == 1 else tuple(values)


def publish_changes(
    producer: Producer,
    *,
    on: Collection[ChangeKind] = _KINDS,
    key: Callable[[ModelChange[Any]], Any] | None = None,
    payload: Callable[[ModelChange[Any]], Any] | None = None,
    when: Callable[[ModelChange[Any]], bool] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a mapped class, by which its changes are published with the transaction that makes them.

    `key` is the primary key by default, `payload` a dict of kind, row and the names of changed columns; a
    payload of None is a tombstone. `when` says which changes are worth a message. Subclasses are included. SQL that
    goes past the session's unit of work (`session.execute(update(…))`, bulk inserts) is not seen.
    """
    unknown = [kind for kind in on if kind not in _KINDS]
    if unknown or not on:
        raise BadArgument("on", on, f"it must be some of {', '.join(_KINDS)}")

    def decorate(model: type[T]) -> type[T]:
        mapper = inspect(model, raiseerr=False)
        if not isinstance(mapper, Mapper):
            raise BadArgument("model", model, "only a mapped class has changes to publish")
        if "update" in on:
            _know_old_values(mapper)
            event.listen(model, "before_update", _note_expressions, propagate=True)
        if "delete" in on:
            event.listen(model, "before_delete", _load_columns, propagate=True)
        for kind in on:
            listener = _Listener(producer, kind, key, payload, when)
            event.listen(model, f"after_{kind}", listener.heard, propagate=True)
        return model

    return decorate


@dataclass(frozen=True, slots=True)
class _Listener:
    """Publishes changes of one kind."""

    producer: Producer
    kind: ChangeKind
    key: Callable[[ModelChange[Any]], Any] | None
    payload: Callable[[ModelChange[Any]], Any] | None
    when: Callable[[ModelChange[Any]], bool] | None

    def heard(self, _mapper: Mapper[Any], connection: Connection, target: object) -> None:
        """Publish through the model's session, or on the connection for one without."""
        change = ModelChange(self.kind, target, _changed(target) if self.kind == "update" else {})
        if self.kind == "update" and not change.changed:
            return  # only its relationships have changed
        if self.when is not None and not self.when(change):
            return
        payload = _payload(change) if self.payload is None else self.payload(change)
        key = change.identity if self.key is None else self.key(change)
        self.producer.publish(object_session(target) or connection, payload, key=key)


def _know_old_values(mapper: Mapper[Any]) -> None:
    """Have the old value loaded when a column is set: else one that is set to what it was looks like a change."""
    # The columns of a mapper that is not configured yet, as those of a later subclass, are not known yet.
    event.listen(mapper, "mapper_configured", lambda mapper, _model: _listen_to_columns(mapper), propagate=True)
    for each in mapper.self_and_descendants:
        if each.configured:
            _listen_to_columns(each)


def _listen_to_columns(mapper: Mapper[Any]) -> None:
    for each in mapper.column_attrs:
        event.listen(each.class_attribute, "set", _heard_set, active_history=True, propagate=True)


def _heard_set(_target: object, _value: object, _old: object, _initiator: object) -> None:
    """Do nothing: a listener makes SQLAlchemy load the old value."""


_expressions: WeakKeyDictionary[InstanceState[Any], dict[str, Any]] = WeakKeyDictionary()
"""The old values of columns that the update under way sets to SQL expressions, whose results it does not bring back."""


def _note_expressions(_mapper: Mapper[Any], _connection: Connection, target: object) -> None:
    """Note what the update's own statement computes: after it, such a column is not loaded and has no history."""
    changed = _changed_in_memory(target)
    _expressions[_state_of(target)] = {name: old for name, (old, new) in changed.items() if _is_expression(new)}


def _is_expression(value: object) -> bool:
    return isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")


def _load_columns(_mapper: Mapper[Any], _connection: Connection, target: object) -> None:
    """Load what is not loaded while the row is still there: columns that are deferred, expired or a subclass's."""
    for each in _state_of(target).mapper.column_attrs:
        getattr(target, each.key)


def _payload(change: ModelChange[Any]) -> dict[str, Any]:
    return {"change": change.kind, "row": change.row, "changed": sorted(change.changed)}


def _changed(target: object) -> dict[str, tuple[Any, Any]]:
    computed = {name: (old, getattr(target, name)) for name, old in _expressions.get(_state_of(target), {}).items()}
    return _changed_in_memory(target) | {name: (old, new) for name, (old, new) in computed.items() if old != new}


def _changed_in_memory(target: object) -> dict[str, tuple[Any, Any]]:
    state = _state_of(target)
    histories = {each.key: state.attrs[each.key].history for each in state.mapper.column_attrs}
    return {
        name: (history.deleted[0] if history.deleted else None, history.added[0])
        for name, history in histories.items()
        if history.added and history.has_changes()
    }


def _state_of(target: object) -> InstanceState[Any]:
    state: InstanceState[Any] = inspect(target)
    return state
