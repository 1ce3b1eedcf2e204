"""Codecs: values to Avro bodies and back, without framing."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from headrace.errors import HeadraceError, NotDecodable, NotEncodable
from headrace.serde.avro_library import reader, writer
from headrace.serde.decoding import decoder_of
from headrace.serde.encoding import blame, encoder_of
from headrace.serde.hints import infer
from headrace.serde.json_form import datum_of_json, json_of_datum
from headrace.serde.schemas import Schema, schema_of
from headrace.serde.shapes import Shape, has_named_branches
from headrace.serde.size_guard import MAX_DEPTH, MAX_DEPTH_READ, skimmer_of

__all__ = ["Codec", "GenericCodec", "codec_for"]

T = TypeVar("T")

# The exceptions that fastavro and the classes' own code raise for wrong values and bytes.
_WRONG = (TypeError, ValueError, OverflowError, AttributeError, KeyError, IndexError, EOFError, ArithmeticError)
_TOO_DEEP = f"it is nested too deeply; records may be nested at most {MAX_DEPTH} deep"


class Codec(Generic[T]):
    """Encodes and decodes values of one schema, compiled once. `hint` is a class, or any hint with a schema."""

    def __init__(self, hint: type[T] | Any) -> None:  # noqa: ANN401
        self._set_up(schema_of(hint), infer(hint))

    def _set_up(self, schema: Schema, shape: Shape) -> None:
        self.schema = schema
        self.shape = shape
        self._to_datum = encoder_of(shape)
        self._write = writer()
        self._read = reader()
        self._from_datum: Callable[[Any], Any] | None = None
        self._writers: dict[bytes, Callable[[T], bytes]] = {}
        self._readers: dict[Schema, Callable[[bytes, int], Any]] = {}

    def encode(self, value: T, *, prefix: bytes = b"") -> bytes:
        """Return `prefix` and the value's bytes. Raises NotEncodable, naming the field."""
        return self.writer_of(prefix)(value)

    def writer_of(self, prefix: bytes = b"") -> Callable[[T], bytes]:
        """Return the function that writes values after `prefix`, for frequent use instead of `encode`."""
        found = self._writers.get(prefix)
        if found is None:
            found = self._writers[prefix] = self._new_writer(prefix)
        return found

    def _new_writer(self, prefix: bytes) -> Callable[[T], bytes]:
        write, prepared, to_datum = self._write, self.schema.prepared, self._to_datum
        skim = skimmer_of(self.schema.shape, max_depth=MAX_DEPTH)

        def encode(value: T) -> bytes:
            file = io.BytesIO()
            file.write(prefix)
            try:
                write(file, prepared, to_datum(value))
            except _WRONG as error:
                raise NotEncodable(self.schema.name, *blame(self.shape, value, error)) from error
            except RecursionError as error:
                raise NotEncodable(self.schema.name, "the top", _TOO_DEEP) from error
            data = file.getvalue()
            if skim is not None:
                self._check_written(skim, data, len(prefix))
            return data

        return encode

    def _check_written(self, skim: Callable[[bytes, int], None], data: bytes, start: int) -> None:
        """Raise NotEncodable for bytes that readers would refuse."""
        try:
            skim(data, start)
        except ValueError as error:
            raise NotEncodable(
                self.schema.name, "the top", str(error)
            ) from None  # its traceback has hundreds of frames

    def decode(self, data: bytes, *, written_as: Schema | None = None, start: int = 0) -> T:
        """Return the value in `data` from `start` on. The default of `written_as` is the codec's schema.

        Raises NotDecodable.
        """
        schema = written_as or self.schema
        read = self._readers.get(schema)
        if read is None:
            read = self._readers[schema] = self.reader_of(schema)
        return cast("T", read(data, start))

    def reader_of(self, written_as: Schema) -> Callable[[bytes, int], T]:
        """Return the function that reads data of another schema. Raises NotDecodable if the schemas don't match."""
        convert, prepared, name = self._resolve(written_as), written_as.prepared, self.schema.name
        read, skim = self._read, skimmer_of(written_as.shape, max_depth=MAX_DEPTH_READ)
        # It is only given if a union has named branches, because every keyword argument takes time.
        named = {"return_named_type": True} if has_named_branches(written_as.shape) else {}

        def decode(data: bytes, start: int) -> T:
            file = io.BytesIO(data)
            file.seek(start)
            try:
                if skim is not None:
                    skim(data, start)
                datum = read(file, prepared, **named) if named else read(file, prepared)
                value = convert(datum)
            except HeadraceError:
                raise
            except _WRONG as error:
                raise NotDecodable(name, f"byte {file.tell()}", f"{type(error).__name__} {error}".strip()) from error
            except RecursionError as error:
                raise NotDecodable(name, f"byte {file.tell()}", _TOO_DEEP) from error
            if file.tell() != len(data):
                raise NotDecodable(name, f"byte {file.tell()}", f"{len(data) - file.tell()} bytes follow its end")
            return cast("T", value)

        return decode

    def to_json(self, value: T) -> Any:  # noqa: ANN401
        """Return the value as JSON values, with records as {"type": …, "data": …}. Raises NotEncodable."""
        try:
            return json_of_datum(self.shape, self._to_datum(value))
        except _WRONG as error:
            raise NotEncodable(self.schema.name, *blame(self.shape, value, error)) from error
        except RecursionError as error:
            raise NotEncodable(self.schema.name, "the top", _TOO_DEEP) from error

    def from_json(self, value: Any) -> T:  # noqa: ANN401
        """Return the value of JSON as `to_json` writes it; unknown fields are ignored. Raises NotDecodable."""
        if self._from_datum is None:
            self._from_datum = decoder_of(self.shape, self.shape)
        try:
            return cast("T", self._from_datum(datum_of_json(self.shape, value)))
        except RecursionError as error:
            raise NotDecodable("JSON", "the top", _TOO_DEEP) from error

    def _resolve(self, written_as: Schema) -> Callable[[Any], Any]:
        shape = self.shape if written_as == self.schema else written_as.shape
        return decoder_of(shape, self.shape)


class GenericCodec(Codec[Any]):
    """Encodes and decodes values of a schema without classes: `GenericRecord`, `Symbol` and plain values."""

    def __init__(self, schema: Schema) -> None:
        self._set_up(schema, schema.shape)


def codec_for(what: Any) -> Codec[Any]:  # noqa: ANN401
    """Return the codec of a class, a hint, or a schema."""
    return GenericCodec(what) if isinstance(what, Schema) else Codec(what)
