"""Settings: typed, read in layers, with all mistakes reported together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from headrace.config.checks import check
from headrace.config.environment import deployment_files, misspelt_variables, read_environment
from headrace.config.layers import DEFAULTS, KeyPath, Layer, leaves, read_toml, read_toml_file
from headrace.config.schema import is_secret
from headrace.config.secrets import HIDDEN, redact
from headrace.errors import InvalidSettings, SettingsProblem

__all__ = ["Count", "EffectiveValue", "Seconds", "Section", "Settings"]

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
        checked = check(cls, [each for each in read if isinstance(each, Layer)], prefix)
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
