"""TypedDicts: their instances are plain dicts, and a key that is not required may be absent.

Avro has no absent fields, so an absent key is written as null, and null is read as an absent key. Such a key can't be
None at the same time.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from headrace.errors import NoSchemaFor

__all__ = ["absent_keys", "typed_dict_hints", "typed_dict_values", "without_absent"]

# Compared by name: those of typing and typing_extensions are different objects in some versions of Python.
_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


def absent_keys(cls: type[Any], hints: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that may be absent.

    `__optional_keys__` of the class is wrong if its hints were text, as with `from __future__ import annotations`.
    """
    optional: frozenset[str] = getattr(cls, "__optional_keys__", frozenset())
    return frozenset(
        name for name, hint in hints.items() if _is_absent(_qualifiers(hint), is_optional=name in optional)
    )


def typed_dict_hints(cls: type[Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hints without qualifiers; keys that may be absent also accept None. Raises NoSchemaFor."""
    absent, found = absent_keys(cls, hints), {}
    for name, hint in hints.items():
        bare, extras = _unwrapped(hint)
        if name in absent and _takes_none(bare):
            reason = "it may be absent and may be None, and Avro has one null for both; drop NotRequired, or None"
            raise NoSchemaFor(cls.__qualname__, name, reason)
        wanted = Union[bare, None] if name in absent else bare  # noqa: UP007 - the hint is a value here
        found[name] = Annotated[wanted, *extras] if extras else wanted
    return found


def typed_dict_values(names: tuple[str, ...], absent: frozenset[str]) -> Callable[[Any], dict[str, Any]]:
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


def without_absent(absent: frozenset[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
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
