"""Bytes of a topic as people read them: framed Avro by its schema, else JSON, text, or base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from headrace.errors import BadSchema, NotDecodable, UnknownSchema
from headrace.serde.codecs import GenericCodec
from headrace.serde.framing import HEADER_BYTES, is_framed, schema_id_of
from headrace.serde.ports import Registry

__all__ = ["Shower"]


class Shower:
    """Shows keys and values. What can't be decoded is shown as base64 with the reason, never left out."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._readers: dict[int, Callable[[bytes], Any]] = {}

    async def show(self, data: bytes | None) -> Any:  # noqa: ANN401
        """Return the bytes as JSON values."""
        if data is None:
            return None
        if not is_framed(data):
            return _plain(data)
        try:
            return (await self._reader(schema_id_of(data)))(data)
        except (UnknownSchema, NotDecodable, BadSchema) as error:
            return {"base64": base64.b64encode(data).decode(), "error": str(error)}

    async def _reader(self, schema_id: int) -> Callable[[bytes], Any]:
        if schema_id not in self._readers:
            schema = await self._registry.schema(schema_id)
            codec = GenericCodec(schema)
            read = codec.reader_of(schema)
            self._readers[schema_id] = lambda data: codec.to_json(read(data, HEADER_BYTES))
        return self._readers[schema_id]


def _plain(data: bytes) -> Any:  # noqa: ANN401
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
