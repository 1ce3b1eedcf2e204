"""Subjects: the names of a topic's schemas in the registry; and the rendering of a topic's bytes as JSON.

`<topic>-value` and `<topic>-key` are Confluent's default. A topic with records of many types, such as a journal's, has
one subject for each type: `<topic>-<name of the record>` (Confluent's TopicRecordNameStrategy).
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from headrace.errors import BadArgument, BadSchema, NotDecodable, UnknownSchema, UnknownSubject
from headrace.serde.codecs import GenericCodec
from headrace.serde.framing import HEADER_BYTES, is_framed, schema_id_of
from headrace.serde.ports import Registry, Version

__all__ = [
    "JsonRenderer",
    "Part",
    "check_subject",
    "latest_version",
    "record_subject_of",
    "subject_of",
    "topic_schemas",
    "topic_versions",
]

Part: TypeAlias = Literal["key", "value"]


def check_subject(subject: str) -> None:
    """Raise BadArgument unless the text can be a subject's name."""
    if not subject or len(subject.encode()) > 255 or not subject.isprintable():
        raise BadArgument("subject", subject, "a subject is 1 to 255 bytes of printable text")


def subject_of(topic: str, part: Part = "value") -> str:
    """Return the subject of a topic's keys or values."""
    return f"{topic}-{part}"


def record_subject_of(topic: str, record: str) -> str:
    """Return the subject of one type of record in a topic."""
    return f"{topic}-{record}"


async def latest_version(registry: Registry, subject: str) -> Version:
    """Return a subject's last version. Raises UnknownSubject."""
    return (await registry.versions(subject))[-1]


async def topic_versions(registry: Registry, topic: str, part: Part = "value") -> Sequence[Version]:
    """Return every version that values (or keys) of the topic may have been written with, oldest ids first."""
    found: list[Version] = []
    with contextlib.suppress(UnknownSubject):  # a topic with many types has no subject of its own
        found.extend(await registry.versions(subject_of(topic, part)))
    if part == "value":
        found.extend(await _of_record_subjects(registry, topic))
    return sorted(found, key=lambda version: (version.schema_id, version.subject))


async def topic_schemas(registry: Registry, topic: str, part: Part = "value") -> Mapping[int, str]:
    """Return the JSON of each schema of the topic by id, for readers outside of Python such as Spark."""
    return {version.schema_id: version.schema.text for version in await topic_versions(registry, topic, part)}


async def _of_record_subjects(registry: Registry, topic: str) -> list[Version]:
    found: list[Version] = []
    for subject in await registry.subjects():
        if subject.startswith(f"{topic}-") and subject not in (subject_of(topic), subject_of(topic, "key")):
            # A subject of another topic may have the same prefix: `a-b-value` does not belong to topic `a`.
            name = subject.removeprefix(f"{topic}-")
            found.extend(each for each in await registry.versions(subject) if each.schema.name == name)
    return found


class JsonRenderer:
    """Renders keys and values as JSON. Bytes that can't be decoded are rendered as base64, with the reason."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._readers: dict[int, Callable[[bytes], Any]] = {}

    async def render(self, data: bytes | None) -> Any:  # noqa: ANN401
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
