"""Inference of shapes from type hints and defaults of classes."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import enum
import json
import types
import typing
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from headrace.errors import HeadraceError, NoSchemaFor
from headrace.serde.classes import ClassField, doc_of, fields_of, is_record_class
from headrace.serde.defaults import default_of_datum
from headrace.serde.encoding import chosen_branch, classes_of, encoder_of
from headrace.serde.options import AvroField, options_of
from headrace.serde.primitives import PYTHON_TYPES
from headrace.serde.schema_json import LOGICAL_TYPES, PRIMITIVES, is_name
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FieldShape,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    UnionShape,
    branch_name,
)

__all__ = ["HintKey", "infer", "with_default"]


def with_default(
    field: FieldShape, make_default: Callable[[], Any] | None, given: AvroField, *, owner: str
) -> FieldShape:
    """Give the field its default, if it has one. The union's branch of the default moves to the front."""
    make = (lambda: given.default) if given.default is not NO_DEFAULT else make_default
    if make is None:
        return field
    try:
        value = make()
        changes = bool(make() != value)
        field.shape = _default_first(field.shape, value)
        field.default = default_of_datum(field.shape, encoder_of(field.shape)(value))
        json.dumps(field.default, allow_nan=False)
    except (HeadraceError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise NoSchemaFor(owner, field.name, f"its default can't be written as Avro: {error}") from error
    if changes:
        reason = "its default differs at each call; give readers of old data a fixed one with AvroField(default=…)"
        raise NoSchemaFor(owner, field.name, reason)
    field.make_default = make
    return field


def _default_first(shape: Shape, value: Any) -> Shape:  # noqa: ANN401
    if not isinstance(shape, UnionShape):
        return shape
    first = chosen_branch(shape, value)
    return UnionShape((first, *(branch for branch in shape.branches if branch is not first)))


_SIMPLE: dict[Any, PrimitiveShape] = {
    None: PrimitiveShape("null"),
    type(None): PrimitiveShape("null"),
    bool: PrimitiveShape("boolean"),
    int: PrimitiveShape("long"),
    float: PrimitiveShape("double"),
    bytes: PrimitiveShape("bytes"),
    str: PrimitiveShape("string"),
    dt.datetime: PrimitiveShape("long", "timestamp-micros"),
    dt.date: PrimitiveShape("int", "date"),
    dt.time: PrimitiveShape("long", "time-micros"),
    uuid.UUID: PrimitiveShape("string", "uuid"),
}
_COLLECTIONS: dict[Any, Any] = {
    list: list,
    abc.Sequence: list,
    abc.Iterable: list,
    abc.Collection: list,
    set: set,
    abc.Set: frozenset,
    frozenset: frozenset,
}
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
_PLAIN = AvroField()


def infer(hint: Any) -> Shape:  # noqa: ANN401
    """Return the shape of a class, or of any hint that a field may have. Raises NoSchemaFor."""
    return _infer(HintKey(hint))


class HintKey:
    """A cache key of a hint that keeps the order of unions: `str | int` equals `int | str` in Python, not in Avro."""

    __slots__ = ("_key", "hint")

    def __init__(self, hint: Any) -> None:  # noqa: ANN401
        self.hint = hint
        self._key = _ordered(hint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HintKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _ordered(hint: Any) -> Any:  # noqa: ANN401
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return Literal, *((type(choice), choice) for choice in arguments)  # 1 and True are equal
    return (get_origin(hint), *map(_ordered, arguments)) if arguments else hint


@lru_cache(maxsize=4096)
def _infer(asked: HintKey) -> Shape:
    hint = asked.hint
    owner = hint.__qualname__ if isinstance(hint, type) else str(hint)
    return _Inference().shape(hint, _Place(owner, "itself"))


class _Place(typing.NamedTuple):
    owner: str
    field: str
    namespace: str = ""

    def refuse(self, reason: str) -> NoSchemaFor:
        return NoSchemaFor(self.owner, self.field, reason)


class _Inference:
    """One walk over a class and the classes in its fields."""

    def __init__(self) -> None:
        self._of_class: dict[type, RecordShape | EnumShape] = {}
        self._names: dict[str, type] = {}

    def shape(self, hint: Any, place: _Place, given: AvroField = _PLAIN) -> Shape:  # noqa: ANN401
        if isinstance(hint, NewType):
            return self.shape(hint.__supertype__, place, given)
        if get_origin(hint) is Annotated:
            inner, *extras = get_args(hint)
            return self.shape(inner, place, next((e for e in extras if isinstance(e, AvroField)), given))
        if given.type is not None:
            return _explicit_type(hint, given, place)
        if hint is Decimal:
            return _decimal(given, place)
        if isinstance(hint, abc.Hashable) and hint in _SIMPLE:
            return _SIMPLE[hint]
        if get_origin(hint) in (Union, types.UnionType):
            return self._union(hint, place, given)
        if get_origin(hint) is Literal:
            return _literal(get_args(hint), place)
        return self._compound(hint, place)

    def _compound(self, hint: Any, place: _Place) -> Shape:  # noqa: ANN401
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in _COLLECTIONS:
            return ArrayShape(self.shape(arguments[0], place), _COLLECTIONS[origin])
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return ArrayShape(self.shape(arguments[0], place), tuple)
        if origin in _MAPS:
            if arguments[0] is not str:
                raise place.refuse(f"keys of an Avro map are text, not {_shown(arguments[0])}")
            return MapShape(self.shape(arguments[1], place))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return self._enum(hint, place)
        if is_record_class(hint):
            return self._record(hint, place)
        raise place.refuse(f"Avro has nothing for {_shown(hint)}; {_advice(hint)}")

    def _union(self, hint: Any, place: _Place, given: AvroField) -> Shape:  # noqa: ANN401
        branches = tuple(self.shape(each, place, _for_branch(given, each)) for each in get_args(hint))
        # None comes first, as is usual in Avro; a default of another branch moves that one to the front.
        ordered = sorted(branches, key=lambda branch: branch_name(branch) != "null")
        names = [branch_name(branch) for branch in ordered]
        if len(set(names)) < len(names):
            raise place.refuse(f"{_shown(hint)} has two branches that are {_twice(names)} in Avro; wrap one in a class")
        if sum(dict in classes_of(branch) for branch in ordered) > 1:
            raise place.refuse(f"{_shown(hint)} has two branches that are dicts in Python; make one a dataclass")
        return UnionShape(tuple(ordered))

    def _enum(self, cls: type[enum.Enum], place: _Place) -> EnumShape:
        if cls in self._of_class:
            return typing.cast("EnumShape", self._again(cls, place))
        options, symbols = options_of(cls), tuple(cls.__members__)
        bad = [symbol for symbol in symbols if not is_name(symbol)]
        if bad or not symbols:
            raise place.refuse(f"{cls.__name__} has members that Avro can't name: {bad}")
        if options.default is not None and options.default not in symbols:
            raise place.refuse(f"default {options.default!r} is no member of {cls.__name__}")
        doc = options.doc or doc_of(cls)
        name = self._claim(cls, place)
        shape = EnumShape(name, symbols, options.default, options.aliases_in(_namespace(name)), doc, cls)
        self._of_class[cls] = shape
        return shape

    def _record(self, cls: type, place: _Place) -> RecordShape:
        if cls in self._of_class:
            return typing.cast("RecordShape", self._again(cls, place))
        options = options_of(cls)
        doc = options.doc or doc_of(cls)
        name = self._claim(cls, place)
        shape = RecordShape(name, aliases=options.aliases_in(_namespace(name)), doc=doc, bound=cls)
        self._of_class[cls] = shape
        for field in fields_of(cls):
            shape.fields.append(self._field(cls, field, _namespace(name)))
        return shape

    def _field(self, cls: type, field: ClassField, namespace: str) -> FieldShape:
        place, given = _Place(cls.__qualname__, field.name, namespace), _avro_field_of(field.hint)
        if not is_name(field.name):
            raise place.refuse("Avro's names are ASCII letters, digits and '_'")
        shape = FieldShape(field.name, self.shape(field.hint, place), given.aliases, given.doc or field.doc)
        return with_default(shape, field.make_default, given, owner=cls.__qualname__)

    def _again(self, cls: type, place: _Place) -> RecordShape | EnumShape:
        """Return the shape of a class that was seen before.

        Raises NoSchemaFor if it has no namespace and is named inside of one, where its name would be another type's.
        """
        shape = self._of_class[cls]
        if place.namespace and not _namespace(shape.name):
            reason = f"{shape.name} has no namespace and can't be named inside of {place.namespace!r}"
            raise place.refuse(f"{reason}; give it one with @avro(namespace=…)")
        return shape

    def _claim(self, cls: type, place: _Place) -> str:
        """Return the full name of a class. Raises NoSchemaFor if another class of the schema has the same name."""
        options = options_of(cls)
        name = options.name or cls.__name__
        namespace = options.namespace or place.namespace
        full = f"{namespace}.{name}" if namespace else name
        if not is_name(full):
            raise place.refuse(f"{full!r} is no Avro name; give one with @avro(name=…)")
        if self._names.setdefault(full, cls) is not cls:
            raise place.refuse(f"two classes are named {full!r}; rename one with @avro(name=…) or @avro(namespace=…)")
        return full


def _namespace(full: str) -> str:
    return full.rpartition(".")[0]


def _literal(choices: tuple[Any, ...], place: _Place) -> Shape:
    """Return the common type of the choices. The choices are checked when values are written and read."""
    kinds = {type(choice) for choice in choices if choice is not None}
    if len(kinds) != 1 or not kinds <= {str, int, bool, bytes}:
        raise place.refuse(f"choices are all text, numbers, bytes or booleans, not {list(choices)}")
    values = tuple(choice for choice in choices if choice is not None)
    chosen = dataclasses.replace(_SIMPLE[kinds.pop()], choices=values)
    return chosen if None not in choices else UnionShape((_SIMPLE[None], chosen))


def _decimal(given: AvroField, place: _Place) -> PrimitiveShape:
    if not 0 <= given.scale <= given.precision or given.precision < 1:
        raise place.refuse(f"precision {given.precision} and scale {given.scale} make no decimal")
    return PrimitiveShape("bytes", "decimal", given.precision, given.scale)


def _explicit_type(hint: Any, given: AvroField, place: _Place) -> PrimitiveShape:  # noqa: ANN401
    asked = str(given.type)
    if asked not in PRIMITIVES | LOGICAL_TYPES.keys() or PYTHON_TYPES[asked] is not hint:
        raise place.refuse(f"{asked!r} is no Avro type for {_shown(hint)}")
    if asked == "decimal":
        return _decimal(given, place)
    return PrimitiveShape(asked) if asked in PRIMITIVES else PrimitiveShape(LOGICAL_TYPES[asked], asked)


def _for_branch(given: AvroField, hint: Any) -> AvroField:  # noqa: ANN401
    """Return the options of one branch: those of `Annotated[X | None, …]` apply to X."""
    return _PLAIN if hint is type(None) else given


def _avro_field_of(hint: Any) -> AvroField:  # noqa: ANN401
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, AvroField)), _PLAIN)


def _advice(hint: Any) -> str:  # noqa: ANN401
    if hint in _COLLECTIONS or hint in _MAPS or hint is tuple:
        return "name the type of its items"
    return "use a type listed in docs/avro.md, or keep such values as text or bytes"


def _shown(hint: Any) -> str:  # noqa: ANN401
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _twice(names: list[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
