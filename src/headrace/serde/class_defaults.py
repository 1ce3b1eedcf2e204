"""A field's default: the class's own, put into the form that schemas use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, NoSchemaFor
from headrace.serde.branches import chosen_branch
from headrace.serde.defaults import default_of_datum
from headrace.serde.encoding import encoder_of
from headrace.serde.options import AvroField
from headrace.serde.shapes import NO_DEFAULT, FieldShape, Shape, UnionShape

__all__ = ["with_default"]


def with_default(
    field: FieldShape, make_default: Callable[[], Any] | None, said: AvroField, *, owner: str
) -> FieldShape:
    """Give the field its default, if it has one; a union's branch that the default belongs to moves to the front."""
    make = (lambda: said.default) if said.default is not NO_DEFAULT else make_default
    if make is None:
        return field
    try:
        value = make()
        changes = bool(make() != value)
        field.shape = _default_first(field.shape, value)
        field.default = default_of_datum(field.shape, encoder_of(field.shape)(value))
        json.dumps(field.default, allow_nan=False)
    except (HeadraceError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise NoSchemaFor(owner, field.name, f"its default can't be written as Avro: {error}") from error
    if changes:
        reason = "its default is another at each call; give readers of old data one with AvroField(default=…)"
        raise NoSchemaFor(owner, field.name, reason)
    field.make_default = make
    return field


def _default_first(shape: Shape, value: Any) -> Shape:  # noqa: ANN401
    if not isinstance(shape, UnionShape):
        return shape
    first = chosen_branch(shape, value)
    return UnionShape((first, *(branch for branch in shape.branches if branch is not first)))
