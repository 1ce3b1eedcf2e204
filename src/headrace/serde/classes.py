"""One view of the fields of dataclasses, NamedTuples, TypedDicts, attrs classes, Structs and pydantic models.

Instances of a TypedDict are plain dicts, and a key that is not required may be absent. Avro has no absent fields, so an
absent key is written as null, and null is read as an absent key. Such a key can't be None at the same time.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NewType, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import is_typeddict  # that of typing does not know the TypedDicts of typing_extensions

from headrace.errors import NoSchemaFor
from headrace.serde.options import options_of

__all__ = [
    "ClassField",
    "constructor",
    "doc_of",
    "fields_of",
    "has_extras",
    "instance_class",
    "is_record_class",
    "values_of",
]

Values: TypeAlias = Callable[[Any], dict[str, Any]]

# Compared by name: those of typing and typing_extensions are different objects in some versions of Python.
_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


@dataclasses.dataclass(frozen=True, slots=True)
class ClassField:
    """A field as its class declares it."""

    name: str
    hint: Any
    make_default: Callable[[], Any] | None
    doc: str | None = None


def is_record_class(hint: object) -> bool:
    """Return True if the class can be an Avro record."""
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint)
        or issubclass(hint, msgspec.Struct)
        or issubclass(hint, BaseModel)
        or _is_named_tuple(hint)
        or _is_attrs(hint)
        or is_typeddict(hint)
    )


def instance_class(cls: type[Any]) -> type[Any]:
    """Return the class of the instances; those of a TypedDict are plain dicts."""
    return dict if is_typeddict(cls) else cls


def fields_of(cls: type[Any]) -> list[ClassField]:
    """Return the fields that make up the class's record, in order."""
    hints = _hints(cls)
    if is_typeddict(cls):
        absent = _absent_keys(cls, hints)
        return [
            ClassField(name, hint, _constant(None) if name in absent else None)
            for name, hint in _typed_dict_hints(cls, hints).items()
        ]
    if issubclass(cls, BaseModel):
        return [
            ClassField(name, hints[name], _pydantic_default(field), field.description)
            for name, field in cls.model_fields.items()
        ]
    if issubclass(cls, msgspec.Struct):
        return [ClassField(f.name, hints[f.name], _struct_default(f)) for f in msgspec.structs.fields(cls)]
    if _is_named_tuple(cls):
        defaults = cls._field_defaults
        return [
            ClassField(name, _given(cls, name, hints), _constant(defaults[name]) if name in defaults else None)
            for name in cls._fields
        ]
    if _is_attrs(cls):
        hints = {**{field.name: field.type for field in _attrs_fields(cls) if field.type is not None}, **hints}
        return [ClassField(f.name, _given(cls, f.name, hints), _attrs_default(f)) for f in _attrs_fields(cls)]
    _refuse_init_vars(cls)
    return [ClassField(f.name, hints[f.name], _dataclass_default(f)) for f in dataclasses.fields(cls) if f.init]


def values_of(cls: type[Any], names: tuple[str, ...]) -> Values:
    """Return a function from an instance to a new dict of its fields. It raises TypeError for unknown keys."""
    if is_typeddict(cls):
        return _typed_dict_values(names, _absent_keys(cls, _hints(cls)))
    if issubclass(cls, msgspec.Struct):
        return msgspec.structs.asdict
    if _has_dict(cls) and not _is_named_tuple(cls):
        return lambda instance: instance.__dict__.copy()
    return lambda instance: {name: getattr(instance, name) for name in names}


def has_extras(cls: type[Any]) -> bool:
    """Return True if instances may hold fields that the class does not declare."""
    return issubclass(cls, BaseModel) and cls.model_config.get("extra") == "allow"


def constructor(cls: type[Any], order: tuple[str, ...]) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes an instance from a dict of fields in that order, with the class's own checks.

    The function takes ownership of the dict.
    """
    if is_typeddict(cls):
        return _without_absent(_absent_keys(cls, _hints(cls)))
    if issubclass(cls, BaseModel):
        # model_validate calls this after reading its options, and takes half as long again; some models override it.
        is_changed = cls.model_validate.__func__ is not BaseModel.model_validate.__func__  # type: ignore[attr-defined]
        validate = cls.model_validate if is_changed else cls.__pydantic_validator__.validate_python
        return lambda values: validate(values, by_name=True, by_alias=False)
    if _init_only_assigns(cls):
        return partial(_filled, cls)
    if _is_attrs(cls):
        arguments = {field.name: field.alias for field in _attrs_fields(cls)}
        return lambda values: cls(**{arguments[name]: value for name, value in values.items()})
    if issubclass(cls, msgspec.Struct) and order == _positional(cls):
        return lambda values: cls(*values.values())
    return lambda values: cls(**values)


def doc_of(cls: type) -> str | None:
    """Return the docstring that the class's author wrote; generated docstrings of dataclasses are left out."""
    doc = vars(cls).get("__doc__")
    is_made = dataclasses.is_dataclass(cls) or _is_named_tuple(cls)
    if not doc or (is_made and doc.startswith(f"{cls.__name__}(")):
        return None
    return inspect.cleandoc(doc)


def _is_named_tuple(cls: type[Any]) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_field_defaults")


def _is_attrs(cls: type[Any]) -> bool:
    """Return True if attrs made the class, without importing attrs."""
    return hasattr(cls, "__attrs_attrs__")


def _attrs_fields(cls: type[Any]) -> list[Any]:
    return [field for field in cls.__attrs_attrs__ if field.init]


def _given(cls: type[Any], field: str, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401
    if field not in hints:
        raise NoSchemaFor(cls.__qualname__, field, "it has no type hint")
    return hints[field]


def _attrs_default(field: Any) -> Callable[[], Any] | None:  # noqa: ANN401
    """Return the function that makes the default; None if there is none, or if it needs the instance."""
    default = field.default
    if hasattr(default, "takes_self"):
        return None if default.takes_self else cast("Callable[[], Any]", default.factory)
    return None if type(default).__name__ == "_Nothing" else _constant(default)


def _positional(cls: type[Any]) -> tuple[str, ...]:
    parameters = inspect.signature(cls).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)


def _has_dict(cls: type[Any]) -> bool:
    return cls.__dictoffset__ != 0


def _init_only_assigns(cls: type[Any]) -> bool:
    """Return True if making an instance only fills its dict, as for most dataclasses."""
    if "__dataclass_params__" not in vars(cls) or hasattr(cls, "__post_init__") or not _has_dict(cls):
        return False
    is_plain = getattr(cls, "__new__", None) is object.__new__ and not hasattr(cls, "__pydantic_validator__")
    slots = any(vars(owner).get("__slots__") for owner in cls.__mro__)
    generated = cls.__dataclass_params__.init and all(field.init for field in dataclasses.fields(cls))
    return is_plain and not slots and bool(generated) and not _sets_attributes_itself(cls)


def _sets_attributes_itself(cls: type[Any]) -> bool:
    return not cls.__dataclass_params__.frozen and getattr(cls, "__setattr__", None) is not object.__setattr__


def _filled(cls: type[Any], values: dict[str, Any]) -> Any:  # noqa: ANN401
    made = object.__new__(cls)
    object.__setattr__(made, "__dict__", values)  # a frozen class's own __setattr__ would refuse it
    return made


def _hints(cls: type) -> dict[str, Any]:
    around = {**(options_of(cls).around or {}), cls.__name__: cls}
    try:
        return get_type_hints(cls, localns=around, include_extras=True)
    except (NameError, TypeError) as error:
        raise NoSchemaFor(
            cls.__qualname__, _unresolved_field(cls, around), f"its hint can't be resolved: {error}"
        ) from error


def _unresolved_field(cls: type, around: Mapping[str, Any]) -> str:
    """Return the name of the field whose hint can't be resolved."""
    for owner in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(owner).items():
            probe = type("probe", (), {"__annotations__": {name: hint}, "__module__": owner.__module__})
            try:
                get_type_hints(probe, localns=dict(around))
            except (NameError, TypeError):
                return name
    return "?"


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None if field.default is dataclasses.MISSING else _constant(field.default)


def _struct_default(field: msgspec.structs.FieldInfo) -> Callable[[], Any] | None:
    if field.default_factory is not msgspec.NODEFAULT:
        return cast("Callable[[], Any]", field.default_factory)
    return None if field.default is msgspec.NODEFAULT else _constant(field.default)


def _pydantic_default(field: FieldInfo) -> Callable[[], Any] | None:
    if field.default_factory is not None:
        return partial(field.get_default, call_default_factory=True, validated_data={})
    return None if field.default is PydanticUndefined else _constant(field.default)


def _constant(value: Any) -> Callable[[], Any]:  # noqa: ANN401
    return lambda: value


def _refuse_init_vars(cls: type[Any]) -> None:
    known = {field.name for field in dataclasses.fields(cls)}
    for name, hint in inspect.get_annotations(cls).items():
        is_init_var = isinstance(hint, dataclasses.InitVar) or "InitVar[" in str(hint)
        if name not in known and is_init_var and not hasattr(cls, name):
            raise NoSchemaFor(cls.__qualname__, name, "an InitVar is not kept, so it can't be written")


def _absent_keys(cls: type[Any], hints: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that may be absent.

    `__optional_keys__` of the class is wrong if its hints were text, as with `from __future__ import annotations`.
    """
    optional: frozenset[str] = getattr(cls, "__optional_keys__", frozenset())
    return frozenset(
        name for name, hint in hints.items() if _is_absent(_qualifiers(hint), is_optional=name in optional)
    )


def _typed_dict_hints(cls: type[Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hints without qualifiers; keys that may be absent also accept None. Raises NoSchemaFor."""
    absent, found = _absent_keys(cls, hints), {}
    for name, hint in hints.items():
        bare, extras = _unwrapped(hint)
        if name in absent and _takes_none(bare):
            reason = "it may be absent and may be None, and Avro has one null for both; drop NotRequired, or None"
            raise NoSchemaFor(cls.__qualname__, name, reason)
        wanted = Union[bare, None] if name in absent else bare  # noqa: UP007 - the hint is a value here
        found[name] = Annotated[wanted, *extras] if extras else wanted
    return found


def _typed_dict_values(names: tuple[str, ...], absent: frozenset[str]) -> Callable[[Any], dict[str, Any]]:
    """Return a function that copies a dict, with None for absent keys. It raises TypeError for wrong keys."""
    required = [name for name in names if name not in absent]
    known = frozenset(names)

    def values(given: Mapping[str, Any]) -> dict[str, Any]:
        if not given.keys() <= known:
            raise TypeError(f"there is no field {min(given.keys() - known, key=str)!r}")
        for name in required:
            if name not in given:
                raise TypeError(f"field {name!r} is missing")
        for name in absent & given.keys():
            if given[name] is None:
                raise TypeError(f"field {name!r} may be absent, and can't be None")
        return {name: given.get(name) for name in names}

    return values


def _without_absent(absent: frozenset[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that removes the keys from a dict that are None because they were absent."""

    def without(values: dict[str, Any]) -> dict[str, Any]:
        for name in absent:
            if values[name] is None:
                del values[name]
        return values

    return without


def _is_absent(qualifiers: set[str], *, is_optional: bool) -> bool:
    return "NotRequired" in qualifiers or (is_optional and "Required" not in qualifiers)


def _qualifiers(hint: Any) -> set[str]:  # noqa: ANN401
    name, found = _qualifier(hint), set[str]()
    while name or get_origin(hint) is Annotated:
        found.add(name)
        hint = get_args(hint)[0]
        name = _qualifier(hint)
    return found


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401
    """Return the hint inside of qualifiers and Annotated, and the annotations."""
    extras: tuple[Any, ...] = ()
    while _qualifier(hint) or get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        extras, hint = (*more, *extras), inner
    return hint, extras


def _qualifier(hint: Any) -> str:  # noqa: ANN401
    name = getattr(get_origin(hint), "_name", None)
    return name if name in _QUALIFIERS else ""


def _takes_none(hint: Any) -> bool:  # noqa: ANN401
    if hint is None or hint is type(None):
        return True
    if isinstance(hint, NewType):
        return _takes_none(hint.__supertype__)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return None in arguments
    if origin is Annotated:
        return _takes_none(arguments[0])
    return origin in (Union, types.UnionType) and any(map(_takes_none, arguments))
