"""Decoders: functions from data of the Avro reader to Python values, compiled once for each pair of schemas.

fastavro reads the body with the writer's schema. The differences to the reader's schema (fields added, dropped or
renamed, numbers widened, unknown symbols) are resolved here, by Avro's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from headrace.errors import NotDecodable
from headrace.serde.classes import constructor
from headrace.serde.compatibility import NAMED, as_it_is, is_same_name, matching_branch, promotion, source_of
from headrace.serde.defaults import datum_of_default
from headrace.serde.encoding import Convert
from headrace.serde.shapes import (
    NO_DEFAULT,
    ArrayShape,
    EnumShape,
    FieldShape,
    FixedShape,
    GenericRecord,
    MapShape,
    PrimitiveShape,
    RecordShape,
    Shape,
    Symbol,
    UnionShape,
    branch_name,
)

__all__ = ["decoder_of", "make_default"]


def decoder_of(writer: Shape, reader: Shape) -> Convert:
    """Return the function from data of `writer` to values of `reader`. Raises NotDecodable if there is none."""
    return _Decoders(branch_name(reader)).of(writer, reader, "") or as_it_is


def make_default(field: FieldShape) -> Callable[[], Any] | None:
    """Return the function that makes the field's value if the data has none; None if there is no default."""
    if field.make_default is not None:
        return field.make_default
    if field.default is NO_DEFAULT:
        return None
    decode = decoder_of(field.shape, field.shape)
    return lambda: decode(datum_of_default(field.shape, field.default))


class _Decoders:
    """One compilation. Pairs of records are remembered, because records may be recursive."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._pairs: dict[tuple[int, int], list[Convert]] = {}

    def of(self, writer: Shape, reader: Shape, where: str) -> Convert | None:
        """Return the function, or None if the datum is already the value."""
        if isinstance(writer, UnionShape):
            return self._from_union(writer, reader, where)
        if isinstance(reader, UnionShape):
            return self.of(writer, self._branch(writer, reader, where), where)
        match writer, reader:
            case ((PrimitiveShape() | FixedShape()), (PrimitiveShape() | FixedShape())):
                return self._primitive(writer, reader, where)
            case EnumShape(), EnumShape() if is_same_name(writer, reader):
                return self._enum(writer, reader, where)
            case ArrayShape(), ArrayShape():
                return self._array(writer, reader, where)
            case MapShape(), MapShape():
                return self._map(writer, reader, where)
            case RecordShape(), RecordShape() if is_same_name(writer, reader):
                return self._record(writer, reader, where)
        raise self._unlike(writer, reader, where)

    def _unlike(self, writer: Shape, reader: Shape, where: str) -> NotDecodable:
        reason = f"it was written as {_described(writer)} and can't be read as {_described(reader)}"
        return NotDecodable(self._schema, where or "the top", reason)

    def _primitive(
        self, writer: PrimitiveShape | FixedShape, reader: PrimitiveShape | FixedShape, where: str
    ) -> Convert | None:
        convert = promotion(writer, reader)
        if convert is None:
            raise self._unlike(writer, reader, where)
        if isinstance(reader, PrimitiveShape) and reader.choices:
            return self._choice(convert, reader, where)
        return None if convert is as_it_is else convert

    def _choice(self, convert: Convert, reader: PrimitiveShape, where: str) -> Convert:
        def decode(datum: Any) -> Any:  # noqa: ANN401
            value = convert(datum)
            if value not in reader.choices:
                choices = ", ".join(map(repr, reader.choices))
                raise NotDecodable(self._schema, where or "the top", f"{value!r} is none of {choices}")
            return value

        return decode

    def _branch(self, writer: Shape, reader: UnionShape, where: str, *, others: Sequence[Shape] = ()) -> Shape:
        branch = matching_branch(writer, reader, others=others)
        if branch is None:
            raise self._unlike(writer, reader, where)
        return branch

    def _from_union(self, writer: UnionShape, reader: Shape, where: str) -> Convert | None:
        branches = [(branch, self._of_branch(branch, writer, reader, where)) for branch in writer.branches]
        named = {branch_name(b): convert for b, convert in branches if _is_named(b)}
        if not named and all(convert is None for _, convert in branches):
            return None
        by_class = {_class_read(b): convert or as_it_is for b, convert in branches if not _is_named(b)}

        def decode(datum: Any) -> Any:  # noqa: ANN401
            if type(datum) is tuple:
                convert = named[datum[0]]
                return datum[1] if convert is None else convert(datum[1])
            return by_class[type(datum)](datum)

        return decode

    def _of_branch(self, branch: Shape, writer: UnionShape, reader: Shape, where: str) -> Convert | None:
        """Return the function for one branch. A branch that the reader lacks fails only when such a value is read."""
        wanted = reader if isinstance(reader, UnionShape) else UnionShape((reader,))
        try:
            if isinstance(branch, NAMED):
                return self.of(branch, self._branch(branch, wanted, where, others=writer.branches), where)
            return self.of(branch, reader, where)
        except NotDecodable as error:
            return _raiser(error.schema, error.field, error.reason)

    def _enum(self, writer: EnumShape, reader: EnumShape, where: str) -> Convert:
        # Not `bound[symbol]`: the __getitem__ of enums that are text is that of str.
        members = reader.bound.__members__ if reader.bound else {}
        known = {symbol: members.get(symbol, Symbol(reader.name, symbol)) for symbol in reader.symbols}
        fallback = None if reader.default is None else known[reader.default]

        def decode(symbol: str) -> Any:  # noqa: ANN401
            found = known.get(symbol, fallback)
            if found is None:
                raise NotDecodable(self._schema, where or "the top", f"{reader.name} has no symbol {symbol!r}")
            return found

        return decode

    def _array(self, writer: ArrayShape, reader: ArrayShape, where: str) -> Convert | None:
        each, make = self.of(writer.items, reader.items, f"{where}[]"), reader.make
        if each is None:
            return None if make is list else make
        if make is list:
            return lambda items: [each(item) for item in items]
        return lambda items: make([each(item) for item in items])

    def _map(self, writer: MapShape, reader: MapShape, where: str) -> Convert | None:
        each = self.of(writer.values, reader.values, f"{where}{{}}")
        return None if each is None else lambda values: {key: each(value) for key, value in values.items()}

    def _record(self, writer: RecordShape, reader: RecordShape, where: str) -> Convert:
        pair = (id(writer), id(reader))
        if pair not in self._pairs:
            cell: list[Convert] = []
            self._pairs[pair] = cell
            cell.append(self._compile(writer, reader, where))
            return cell[0]
        cell = self._pairs[pair]
        return lambda datum: cell[0](datum)  # noqa: PLW0108 - the cell of a recursive record is still empty here

    def _compile(self, writer: RecordShape, reader: RecordShape, where: str) -> Convert:
        names, conversions, makers = [], [], []
        for field in reader.fields:
            inside = f"{where}.{field.name}" if where else field.name
            source = source_of(field, writer, reader)
            if source is None:
                makers.append((field.name, self._maker(field, inside)))
                continue
            names.append((field.name, source.name))
            if convert := self.of(source.shape, field.shape, inside):
                conversions.append((field.name, convert))
        as_written = [(field.name, field.name) for field in writer.fields]
        is_as_written = sorted(names) == sorted(as_written)
        written = [field.name for field in writer.fields] if is_as_written else [name for name, _ in names]
        order = (*written, *(name for name, _ in makers))
        make = partial(GenericRecord, reader.name) if reader.bound is None else constructor(reader.bound, order)

        def decode(datum: dict[str, Any]) -> Any:  # noqa: ANN401
            if not is_as_written:
                datum = {name: datum[source] for name, source in names}
            for name, convert in conversions:
                datum[name] = convert(datum[name])
            for name, make_value in makers:
                datum[name] = make_value()
            try:
                return make(datum)
            except Exception as error:  # whatever the class's own checks raise
                raise NotDecodable(self._schema, where or reader.name, f"{reader.name} refuses it: {error}") from error

        return decode

    def _maker(self, field: FieldShape, where: str) -> Callable[[], Any]:
        make = make_default(field)
        if make is None:
            raise NotDecodable(self._schema, where, "the writer's schema lacks it and it has no default")
        return make


def _is_named(shape: Shape) -> bool:
    return isinstance(shape, RecordShape | EnumShape | FixedShape)


def _class_read(shape: Shape) -> type:
    from headrace.serde.encoding import classes_of

    return classes_of(shape)[0]


def _described(shape: Shape) -> str:
    if isinstance(shape, UnionShape):
        return " or ".join(branch_name(branch) for branch in shape.branches)
    logical = shape.logical if isinstance(shape, PrimitiveShape | FixedShape) else None
    return f"{branch_name(shape)} ({logical})" if logical else branch_name(shape)


def _raiser(schema: str, field: str, reason: str) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise NotDecodable(schema, field, reason)

    return fail
