"""Settings from environment variables: PREFIX__SECTION__NAME, typed by the model."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace.config.layers import KeyPath, Layer
from headrace.config.schema import annotation_at, fields_of, holds_many_values, is_optional, model_in, takes_text
from headrace.errors import SettingsProblem

__all__ = ["SEPARATOR", "deployment_files", "misspelt_variables", "read_environment", "variable_for"]

SEPARATOR = "__"

# Kubernetes sets these for every service, also for one whose name begins with our prefix.
_OF_KUBERNETES = re.compile(r".*_SERVICE_(HOST|PORT(_\w+)?)|.*_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?")
_ADDRESS_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://.*")


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


def misspelt_variables(
    model: type[BaseModel], environ: Mapping[str, str], prefix: str, *, others: Collection[str]
) -> Iterator[SettingsProblem]:
    """Yield a problem for each variable that begins with PREFIX_ and is neither a setting nor one of the others."""
    for name in sorted(environ):
        if not name.upper().startswith(f"{prefix}_".upper()) or name in others:
            continue
        if name.upper().startswith(f"{prefix}{SEPARATOR}".upper()) or _is_of_kubernetes(name, environ[name]):
            continue
        near = _nearest(name, [*others, *_variables(model, (), prefix)], prefix)
        hint = f"did you mean {near}?" if near else f"settings are set as {variable_for(('section', 'name'), prefix)}"
        yield SettingsProblem(f"environment {name}", "variable", f"matches no setting; {hint}")


def _is_of_kubernetes(name: str, value: str) -> bool:
    if _OF_KUBERNETES.fullmatch(name):
        return True
    return name.endswith("_PORT") and _ADDRESS_OF_KUBERNETES.fullmatch(value) is not None


def _variables(section: type[BaseModel], above: KeyPath, prefix: str) -> Iterator[str]:
    for name, field in fields_of(section).items():
        inner = model_in(field.annotation)
        if inner is None:
            yield variable_for((*above, name), prefix)
        else:
            yield from _variables(inner, (*above, name), prefix)


def _nearest(name: str, known: Collection[str], prefix: str) -> str | None:
    """Return the most similar known name; the number of consecutive underscores is ignored."""
    flat = {_flat(each, prefix): each for each in known}
    near = difflib.get_close_matches(_flat(name.upper(), prefix), flat, n=1, cutoff=0.7)
    return flat[near[0]] if near else None


def _flat(name: str, prefix: str) -> str:
    return re.sub("_+", "_", name[len(prefix) :])


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
    if not holds_many_values(annotation):
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
