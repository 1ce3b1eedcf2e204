"""Random classes round-trip; random evolutions keep what the compatibility check promises."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from typing import Any

import fastavro
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.serde.strategies import CLASSES, Hinted, schemas, values_of, versions

from headrace.errors import IncompatibleSchema, NotDecodable
from headrace.serde import Codec, GenericCodec, Schema, open_registry, problems_of_reading

SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(st.data(), CLASSES)
def test_random_classes_come_back(data: st.DataObject, hinted: Hinted) -> None:
    """V2, V7: any class of inferable fields: bytes, generic bytes, and JSON all give the value back."""
    hint, strategy = hinted
    value = data.draw(strategy)
    codec: Codec[Any] = Codec(hint)
    encoded = codec.encode(value)
    assert codec.decode(encoded) == value
    generic = GenericCodec(codec.schema)
    assert generic.encode(generic.decode(encoded)) == encoded
    shown = json.loads(json.dumps(codec.to_json(value)))
    assert codec.from_json(shown) == value
    assert generic.to_json(generic.decode(encoded)) == codec.to_json(value)


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["null", "long"])
)
_ENVELOPES = ("type", "data")
JSON: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.fixed_dictionaries(dict.fromkeys(_ENVELOPES, inner))
    ),
    max_leaves=6,
)


def _spoiled(data: st.DataObject, shown: Any) -> Any:
    """Return JSON with something else in one place of it."""
    if isinstance(shown, dict) and shown and data.draw(st.integers(0, 3)):
        name = data.draw(st.sampled_from(sorted(shown)))
        return {**shown, name: _spoiled(data, shown[name])}
    if isinstance(shown, list) and shown and data.draw(st.integers(0, 3)):
        return [_spoiled(data, shown[0]), *shown[1:]]
    return data.draw(JSON)


@settings(SETTINGS, max_examples=150)
@given(st.data(), CLASSES)
def test_json_that_does_not_fit_is_not_decodable_and_nothing_else(data: st.DataObject, hinted: Hinted) -> None:
    """V7: whatever stands in one place of the JSON of a value, it is read, or NotDecodable says where it is wrong."""
    hint, strategy = hinted
    codec: Codec[Any] = Codec(hint)
    spoiled = _spoiled(data, json.loads(json.dumps(codec.to_json(data.draw(strategy)))))
    with contextlib.suppress(NotDecodable):
        codec.encode(codec.from_json(spoiled))


@SETTINGS
@given(st.data(), schemas(), schemas())
def test_what_is_called_readable_is_read(data: st.DataObject, old: dict[str, Any], new: dict[str, Any]) -> None:
    """V3, V4: no problem between two schemas: every value of the one is read by the other, and fastavro agrees."""
    writer, reader = GenericCodec(Schema(old)), GenericCodec(Schema(new))
    assume(not problems_of_reading(writer.shape, reader.shape))
    encoded = writer.encode(data.draw(values_of(writer.shape)))
    found = reader.decode(encoded, written_as=writer.schema)
    assert reader.decode(reader.encode(found)) == found
    fastavro.schemaless_reader(io.BytesIO(encoded), writer.schema.prepared, reader.schema.prepared)


@SETTINGS
@given(st.data(), versions())
def test_versions_that_were_registered_read_one_another(data: st.DataObject, history: list[dict[str, Any]]) -> None:
    """V3, V4: under FULL_TRANSITIVE any registered version reads what any other wrote, both ways."""

    async def register() -> list[GenericCodec]:
        registry = await open_registry("memory:")
        for raw in history:
            try:
                await registry.register("s", Schema(raw))
            except IncompatibleSchema:
                continue
        return [GenericCodec(version.schema) for version in await registry.versions("s")]

    codecs = asyncio.run(register())
    for writer in codecs:
        encoded = writer.encode(data.draw(values_of(writer.shape)))
        for reader in codecs:
            reader.decode(encoded, written_as=writer.schema)


@SETTINGS
@given(schemas())
def test_a_schema_is_compatible_with_itself_and_spelt_one_way(raw: dict[str, Any]) -> None:
    """V4, V5: at every level; its text says the same when it is read again."""
    schema = Schema(raw)
    assert problems_of_reading(schema.shape, schema.shape) == []
    assert Schema(schema.text) == schema
    assert Schema(json.dumps(raw, indent=4)) == schema


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40), schemas())
def test_random_bytes_never_escape_as_another_error(data: bytes, raw: dict[str, Any]) -> None:
    """V1: garbage is decoded to something or refused with a typed error, and nothing else."""
    codec = GenericCodec(Schema(raw))
    with contextlib.suppress(NotDecodable):
        codec.decode(data)
