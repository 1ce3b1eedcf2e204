"""Queries of a settings model: the type at a path, its name in words, and what it accepts."""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from headrace.config.layers import KeyPath, Tree
from headrace.config.secrets import looks_secret

__all__ = [
    "annotation_at",
    "fields_of",
    "holds_many_values",
    "is_optional",
    "is_secret",
    "model_in",
    "suggestion",
    "takes_text",
    "type_name",
    "unknown_paths",
]


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the model's fields by the names used in files."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def annotation_at(model: type[BaseModel], path: KeyPath) -> Any:  # noqa: ANN401 - annotations have no type
    """Return the type declared at a path, `Any` inside free-form tables, None where nothing is declared."""
    annotation: Any = model
    for name in path:
        section = model_in(annotation)
        if section is not None:
            found = fields_of(section).get(name)
            if found is None:
                return None
            annotation = found.annotation
        else:
            annotation = _value_type(annotation)
    return annotation


def model_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401
    """Return the section that an annotation such as `Section | None` allows, if it allows one."""
    return next((kind for kind in _alternatives(annotation) if _is_model(kind)), None)


def holds_many_values(annotation: Any) -> bool:  # noqa: ANN401
    """Return True if the type holds more than one value, so that an environment variable must be JSON."""
    return any(_is_model(kind) or _is_container(get_origin(kind) or kind) for kind in _alternatives(annotation))


def takes_text(annotation: Any) -> bool:  # noqa: ANN401
    """Return True if the type accepts plain text."""
    return any(kind in (str, Any) for kind in _alternatives(annotation))


def is_optional(annotation: Any) -> bool:  # noqa: ANN401
    """Return True if the type takes None."""
    return type(None) in _alternatives(annotation)


def is_secret(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value at the path is a secret, by its type or its name."""
    secret_types = (Secret, SecretStr, SecretBytes)
    if any(looks_secret(name) for name in path):
        return True
    return any(
        any((get_origin(kind) or kind) in secret_types for kind in _deep(annotation_at(model, path[:depth])))
        for depth in range(1, len(path) + 1)
    )


def type_name(annotation: Any) -> str:  # noqa: ANN401
    """Return the type in words: `whole number`, `console or json`, `table of text`."""
    kinds = [kind for kind in _alternatives(annotation) if kind is not type(None)]
    return " or ".join(_plain_name(kind) for kind in kinds)


def unknown_paths(model: type[BaseModel], tree: Tree, above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the topmost path of everything in the tree that no section declares."""
    for name, value in tree.items():
        path = (*above, name)
        annotation = annotation_at(model, path)
        if annotation is None:
            yield path
        elif isinstance(value, Mapping):
            yield from unknown_paths(model, value, path)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known one, or all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known here: {', '.join(names)}"


def _alternatives(annotation: Any) -> tuple[Any, ...]:  # noqa: ANN401
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _alternatives(part))
    return (annotation,)


def _deep(annotation: Any) -> Iterator[Any]:  # noqa: ANN401
    for kind in _alternatives(annotation):
        yield kind
        for part in get_args(kind):
            yield from _deep(part)


def _plain_name(kind: Any) -> str:  # noqa: ANN401
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin in (dict, Mapping):
        return f"table of {type_name(parts[1])}"
    if origin in (list, tuple, set, frozenset):
        return f"list of {type_name(parts[0])}"
    return _WORDS.get(kind, kind.__name__ if isinstance(kind, type) else str(kind))


_WORDS: dict[Any, str] = {
    str: "text",
    SecretStr: "secret text",
    int: "whole number",
    float: "number",
    bool: "true or false",
}


def _value_type(annotation: Any) -> Any:  # noqa: ANN401
    for kind in _alternatives(annotation):
        if (get_origin(kind) or kind) in (dict, Mapping):
            return (get_args(kind) or (Any, Any))[1]
    # Not a table at all: the value's own validation says what is wrong with it.
    return Any


def _is_container(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, str | bytes)


def _is_model(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, BaseModel)
