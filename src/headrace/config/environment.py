"""Settings from environment variables: PREFIX__SECTION__NAME, typed by the model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace.config.layers import KeyPath, Layer
from headrace.config.schema import annotation_at, fields_of, is_optional, model_in, takes_structure, takes_text
from headrace.errors import SettingsProblem

__all__ = ["SEPARATOR", "deployment_files", "read_environment", "variable_for"]

SEPARATOR = "__"


def deployment_files(environ: Mapping[str, str], prefix: str) -> list[Path]:
    """Return the files that PREFIX_CONFIG names; several are separated as in PATH."""
    return [Path(name) for name in environ.get(f"{prefix}_CONFIG", "").split(os.pathsep) if name]


def read_environment(
    model: type[BaseModel], environ: Mapping[str, str], prefix: str
) -> Iterator[Layer | SettingsProblem]:
    """Yield one layer for each variable that begins with PREFIX__, sections before what is in them."""
    for name in sorted(environ):
        if not name.upper().startswith(f"{prefix}{SEPARATOR}".upper()):
            continue
        path = _path(model, name[len(prefix) + len(SEPARATOR) :].split(SEPARATOR))
        source = f"environment {name}"
        try:
            value = _value(environ[name], annotation_at(model, path))
        except json.JSONDecodeError as error:
            yield SettingsProblem(source, ".".join(path), f"must be JSON, such as [1, 2]: {error.msg}")
        else:
            yield Layer(source, _nested(path, value))


def variable_for(path: KeyPath, prefix: str) -> str:
    """Return the name of the variable that sets a key."""
    return SEPARATOR.join((prefix, *path)).upper()


def _path(model: type[BaseModel], parts: list[str]) -> KeyPath:
    """Find the declared spelling of each part; in free-form tables the variable's own spelling counts."""
    path: KeyPath = ()
    for part in parts:
        section = model_in(annotation_at(model, path))
        known = {name.lower(): name for name in fields_of(section)} if section else {}
        path = (*path, known.get(part.lower(), part.lower() if section else part))
    return path


def _value(text: str, annotation: Any) -> Any:  # noqa: ANN401 - annotations and values of any type
    if text == "null" and is_optional(annotation):
        return None
    if not takes_structure(annotation):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if takes_text(annotation):
            return text
        raise


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:  # noqa: ANN401
    for name in reversed(path):
        value = {name: value}
    return dict(value)
