"""Settings: typed, read in layers, with all mistakes of every layer reported together, and listed for documentation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import PydanticUndefined

from headrace.config.environment import deployment_files, misspelt_variables, read_environment, variable_for
from headrace.config.layers import DEFAULTS, KeyPath, Layer, Tree, leaves, merge, read_toml, read_toml_file, without
from headrace.config.schema import (
    annotation_at,
    fields_of,
    holds_many_values,
    is_secret,
    model_in,
    suggestion,
    type_name,
    unknown_paths,
)
from headrace.config.secrets import HIDDEN, redact
from headrace.errors import InvalidSettings, SettingsProblem

__all__ = ["Count", "EffectiveValue", "Seconds", "Section", "Settings", "reference"]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

CODE = "code"


class Section(BaseModel):
    """A group of settings. Unknown names are refused, values can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting as it is: secrets hidden, with the layer that it came from."""

    key: str
    value: Any
    source: str
    description: str


class Settings(Section):
    """The root of a program's settings; an application derives its own from it.

    Promises: `load` lays packaged defaults, the given files, the files that PREFIX_CONFIG names and PREFIX__
    variables over one another, later ones winning; what it returns is valid, and what it raises names every
    mistake of every layer with its source.
    """

    env_prefix: ClassVar[str] = "HEADRACE"
    packaged_defaults: ClassVar[tuple[str, str] | None] = None
    """The package and file name of a TOML file with defaults, shipped inside the package."""

    other_variables: ClassVar[frozenset[str]] = frozenset()
    """Variables that begin with the prefix and are no settings. Where there are any, all further ones are mistakes."""

    _origins: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(
        cls,
        files: Iterable[str | os.PathLike[str]] = (),
        *,
        environ: Mapping[str, str] | None = None,
        env_prefix: str | None = None,
    ) -> Self:
        """Read all layers. `files` are the application's TOML files; they must be there. Raises InvalidSettings."""
        environ = os.environ if environ is None else environ
        prefix = env_prefix or cls.env_prefix
        read = list(cls._read([Path(name) for name in files], environ, prefix))
        unreadable = tuple(each for each in read if isinstance(each, SettingsProblem))
        checked = _check(cls, [each for each in read if isinstance(each, Layer)], prefix)
        if problems := unreadable + checked.problems:
            raise InvalidSettings(problems)
        settings = cls.model_validate(checked.tree)
        settings._origins = checked.origins  # noqa: SLF001 - an instance of this class
        return settings

    def describe(self) -> list[EffectiveValue]:
        """Return every effective value, in the order of the model, with the layer it came from."""
        return list(self._describe(self, ()))

    @classmethod
    def _read(cls, files: Iterable[Path], environ: Mapping[str, str], prefix: str) -> Iterator[Layer | SettingsProblem]:
        if cls.packaged_defaults is not None:
            package, name = cls.packaged_defaults
            layer = read_toml(resources.files(package).joinpath(name).read_text(encoding="utf-8"), DEFAULTS)
            yield Layer(DEFAULTS, layer.tree) if isinstance(layer, Layer) else layer
        for file in (*files, *deployment_files(environ, prefix)):
            yield read_toml_file(file)
        yield from read_environment(cls, environ, prefix)
        # An application may use its own prefix for other variables; the prefix HEADRACE is for settings only.
        if any(name.startswith(f"{prefix}_") for name in cls.other_variables):
            yield from misspelt_variables(cls, environ, prefix, others=cls.other_variables)

    def _describe(self, section: BaseModel, above: KeyPath) -> Iterator[EffectiveValue]:
        for name, field in type(section).model_fields.items():
            path, value = (*above, field.alias or name), getattr(section, name)
            if isinstance(value, BaseModel):
                yield from self._describe(value, path)
                continue
            unread = CODE if name in section.model_fields_set else DEFAULTS
            for at, inner in leaves({path[-1]: value}, above):
                shown = HIDDEN if inner is not None and is_secret(type(self), at) else redact(at[-1], inner)
                source = self._origins.get(at, unread)
                yield EffectiveValue(".".join(at), shown, source, field.description or "")


@dataclass(frozen=True)
class _Checked:
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


def _check(model: type[BaseModel], layers: Sequence[Layer], prefix: str) -> _Checked:
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
    return _Checked(tree, origins, tuple(problems))


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


def reference(model: type[Settings]) -> str:
    """Return a Markdown table of every setting: key, type, default, environment variable, meaning."""
    rows = ["| key | type | default | variable | meaning |", "|---|---|---|---|---|", *_rows(model, (), model)]
    return "\n".join(rows) + "\n"


def _rows(section: type[BaseModel], above: KeyPath, root: type[Settings]) -> Iterator[str]:
    for name, field in fields_of(section).items():
        path = (*above, name)
        inner = model_in(field.annotation)
        if inner is not None:
            yield from _rows(inner, path, root)
            continue
        variable = variable_for(path, root.env_prefix)
        default = _default_text(field.get_default(call_default_factory=True, validated_data={}))
        cells = (f"`{'.'.join(path)}`", type_name(field.annotation), default, f"`{variable}`", field.description or "")
        yield f"| {' | '.join(cells)} |"


def _default_text(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    return "unset" if default is None else f"`{json.dumps(default, default=str)}`"
