"""The list of all settings of a model, for documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headrace.config.environment import variable_for
from headrace.config.layers import KeyPath
from headrace.config.schema import fields_of, model_in, type_name
from headrace.config.settings import Settings

__all__ = ["reference"]


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
        default = _shown(field.get_default(call_default_factory=True, validated_data={}))
        cells = (f"`{'.'.join(path)}`", type_name(field.annotation), default, f"`{variable}`", field.description or "")
        yield f"| {' | '.join(cells)} |"


def _shown(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    return "unset" if default is None else f"`{json.dumps(default, default=str)}`"
