"""Checks of the settings, which collect every mistake of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from headrace.config.environment import variable_for
from headrace.config.layers import KeyPath, Layer, Tree, leaves, merge, without
from headrace.config.schema import (
    annotation_at,
    fields_of,
    holds_many_values,
    is_secret,
    model_in,
    suggestion,
    unknown_paths,
)
from headrace.config.secrets import redact
from headrace.errors import SettingsProblem

__all__ = ["Checked", "check"]


@dataclass(frozen=True)
class Checked:
    """The valid values, the source of each, and the mistakes."""

    tree: Tree
    origins: Mapping[KeyPath, str]
    problems: tuple[SettingsProblem, ...]


@dataclass(frozen=True)
class _Mistake:
    path: KeyPath
    kind: str
    message: str
    given: Any

    @property
    def is_about_a_section(self) -> bool:
        """True if it breaks a rule between several keys, which is checked on all layers together."""
        return self.kind in ("value_error", "assertion_error") and isinstance(self.given, Mapping)


def check(model: type[BaseModel], layers: Sequence[Layer], prefix: str) -> Checked:
    """Merge the layers, lowest first, and check each one.

    A value is checked even if a higher layer replaces it: the mistake would show when that layer is removed.
    """
    tree: Tree = {}
    origins: dict[KeyPath, str] = {}
    problems: list[SettingsProblem] = []
    bad_paths: list[KeyPath] = []
    for layer in layers:
        good = layer.tree
        for mistake in _mistakes_in(model, tree, layer):
            problems.append(SettingsProblem(layer.source_of(mistake.path), _key(mistake.path), mistake.message))
            bad_paths.append(mistake.path)
            good = without(good, _value_around(mistake.path, good))
        tree = merge(tree, good)
        origins.update({path: layer.source_of(path) for path, _ in leaves(good)})
    problems += _problems_of_the_whole(model, tree, origins, bad_paths, prefix)
    return Checked(tree, origins, tuple(problems))


def _mistakes_in(model: type[BaseModel], below: Tree, layer: Layer) -> Iterator[_Mistake]:
    """Yield the mistakes of this layer alone: unknown keys, and values of the wrong kind."""
    known = layer.tree
    for path in unknown_paths(model, layer.tree):
        section = model_in(annotation_at(model, path[:-1]))
        hint = suggestion(path[-1], fields_of(section) if section else ())
        yield _Mistake(path, "unknown", f"unknown key; {hint}", None)
        known = without(known, path)
    for mistake in _mistakes(model, merge(below, known)):
        is_ours = _has(known, _value_around(mistake.path, known))
        if is_ours and mistake.kind != "missing" and not mistake.is_about_a_section:
            yield mistake


def _problems_of_the_whole(
    model: type[BaseModel], tree: Tree, origins: Mapping[KeyPath, str], bad_paths: Sequence[KeyPath], prefix: str
) -> Iterator[SettingsProblem]:
    """Yield the mistakes that only show in all layers together: missing keys, and rules between several keys."""
    for mistake in _mistakes(model, tree):
        at = mistake.path
        # A mistake in a section was removed, so a complaint about the section may be a consequence of that.
        if any(bad[: len(at)] == at for bad in bad_paths):
            continue
        if mistake.kind == "missing":
            hint = f"is required; set it in a file, or as {variable_for(at, prefix)}"
            yield SettingsProblem("no layer", _key(at), hint)
        else:
            sources = dict.fromkeys(source for path, source in origins.items() if path[: len(at)] == at)
            yield SettingsProblem(", ".join(sources) or "no layer", _key(at), mistake.message)


def _mistakes(model: type[BaseModel], tree: Tree) -> Iterator[_Mistake]:
    """Yield the model's errors for the tree, one for each path."""
    try:
        model.model_validate(tree)
    except ValidationError as error:
        found: dict[KeyPath, _Mistake] = {}
        for each in error.errors(include_url=False):
            path = _path(each["loc"], tree, is_missing=each["type"] == "missing")
            is_shown = not is_secret(model, path) and not holds_many_values(annotation_at(model, path))
            message = _message(each["type"], each["msg"], each["input"], is_shown=is_shown)
            # Only a union's first error is reported: it is about the main type of the field.
            found.setdefault(path, _Mistake(path, each["type"], message, each["input"]))
        yield from found.values()


def _path(place: tuple[int | str, ...], tree: Tree, *, is_missing: bool) -> KeyPath:
    """Return the path of an error in the file: pydantic adds the names of a union's members, which are left out."""
    path: KeyPath = ()
    inside: Any = tree
    for part in place:
        if _holds(inside, part):
            inside = inside[part]
        elif not (is_missing and part == place[-1]):
            continue
        path = (*path, str(part))
    return path


def _holds(inside: object, part: int | str) -> bool:
    if isinstance(inside, list):
        return isinstance(part, int) and part < len(inside)
    return isinstance(inside, Mapping) and part in inside


def _message(kind: str, message: str, given: object, *, is_shown: bool) -> str:
    if kind == "extra_forbidden":
        return "unknown key"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a table"
    problem = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    problem = problem[:1].lower() + problem[1:]
    # Only plain numbers, flags and texts are shown; a table may hold a password.
    if not is_shown or not isinstance(given, str | int | float):
        return problem
    return f"{problem}, got {redact('', given)!r}"


def _value_around(path: KeyPath, tree: Tree) -> KeyPath:
    """Return the path of the value that a mistake is in: a list is one value, whichever item is wrong."""
    inside: Any = tree
    for depth, name in enumerate(path):
        if not isinstance(inside, Mapping) or name not in inside:
            return path[:depth] if depth and not isinstance(inside, Mapping) else path
        inside = inside[name]
    return path


def _has(tree: Tree, path: KeyPath) -> bool:
    inside: Any = tree
    for name in path:
        if not isinstance(inside, Mapping) or name not in inside:
            return False
        inside = inside[name]
    return True


def _key(path: KeyPath) -> str:
    return ".".join(path) or "(all)"
