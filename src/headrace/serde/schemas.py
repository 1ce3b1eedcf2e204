"""Schemas as values, with their text, shape and fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from headrace.errors import BadSchema
from headrace.serde.avro_library import prepared
from headrace.serde.hints import HintKey, infer
from headrace.serde.schema_json import PRIMITIVES, json_of_shape, shape_of_json, without_ignored
from headrace.serde.shapes import Shape, branch_name

__all__ = ["Schema", "schema_of"]

_ORDER = ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size")


class Schema:
    """An Avro schema. Two are equal if their content is, including docs and defaults, however the JSON is written."""

    def __init__(self, source: str | Mapping[str, Any] | list[Any]) -> None:
        try:
            raw = _json(source) if isinstance(source, str) else source
            self.shape: Shape = shape_of_json(raw)
            self.text: str = json.dumps(_tidy(raw), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except RecursionError as error:
            raise BadSchema("the top", "it is nested too deeply") from error
        except ValueError as error:
            raise BadSchema("the top", f"it can't be written as JSON: {error}") from error

    @property
    def name(self) -> str:
        """The full name of a named type, or the name of another type."""
        return branch_name(self.shape)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def prepared(self) -> Any:  # noqa: ANN401
        """The schema in the form that the Avro reader and writer need."""
        return prepared(without_ignored(json.loads(self.text)))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Schema], tuple[str]]:
        return Schema, (self.text,)

    def __repr__(self) -> str:
        return f"Schema({self.text!r})"


def schema_of(hint: Any) -> Schema:  # noqa: ANN401
    """Return the schema of a class, or of any hint that a field may have. Raises NoSchemaFor."""
    return _schema_of(HintKey(hint))


@lru_cache(maxsize=4096)
def _schema_of(asked: HintKey) -> Schema:
    return Schema(json_of_shape(infer(asked.hint)))


def _json(text: str) -> Any:  # noqa: ANN401
    if text in PRIMITIVES:
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise BadSchema("the top", f"it is no JSON: {error}") from error


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def _tidy(raw: Any) -> Any:  # noqa: ANN401
    """Return the JSON in a canonical form: attributes in one order, no object around a name, no empty aliases."""
    if isinstance(raw, list):
        return [_tidy(each) for each in raw]
    if not isinstance(raw, Mapping):
        return raw
    if raw.keys() == {"type"}:
        return _tidy(raw["type"])
    keys = sorted(raw, key=lambda key: (_ORDER.index(key) if key in _ORDER else len(_ORDER), key))
    return {key: _tidy_part(key, raw[key]) for key in keys if raw[key] != [] or key not in ("aliases",)}


def _tidy_part(key: str, part: Any) -> Any:  # noqa: ANN401
    if key == "fields":
        return [_tidy_field(field) for field in part]
    return _tidy(part) if key in ("type", "items", "values") else part


def _tidy_field(raw: Mapping[str, Any]) -> dict[str, Any]:
    order = ("name", "doc", "aliases", "type", "default")
    keys = sorted(raw, key=lambda key: (order.index(key) if key in order else len(order), key))
    return {key: _tidy(raw[key]) if key == "type" else raw[key] for key in keys if raw[key] != [] or key != "aliases"}
