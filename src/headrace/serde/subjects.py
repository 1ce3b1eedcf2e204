"""Subjects: under which names a topic's schemas are kept, and all the schemas of a topic.

`<topic>-value` and `<topic>-key` are Confluent's default. A topic that holds records of many types, as journals do, has
one subject for each: `<topic>-<name of the record>` (Confluent's TopicRecordNameStrategy).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from headrace.errors import UnknownSubject
from headrace.serde.ports import Registry, Version

__all__ = ["Part", "latest_version", "record_subject_of", "subject_of", "topic_schemas", "topic_versions"]

Part: TypeAlias = Literal["key", "value"]


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
    with contextlib.suppress(UnknownSubject):  # a topic of many types has none
        found.extend(await registry.versions(subject_of(topic, part)))
    if part == "value":
        found.extend(await _of_record_subjects(registry, topic))
    return sorted(found, key=lambda version: (version.schema_id, version.subject))


async def topic_schemas(registry: Registry, topic: str, part: Part = "value") -> Mapping[int, str]:
    """Return the JSON of each schema of the topic by its id: what a reader outside Python needs, Spark for one."""
    return {version.schema_id: version.schema.text for version in await topic_versions(registry, topic, part)}


async def _of_record_subjects(registry: Registry, topic: str) -> list[Version]:
    found: list[Version] = []
    for subject in await registry.subjects():
        if subject.startswith(f"{topic}-") and subject not in (subject_of(topic), subject_of(topic, "key")):
            # Another topic's subject may begin alike: `a-b-value` is none of topic `a`.
            name = subject.removeprefix(f"{topic}-")
            found.extend(each for each in await registry.versions(subject) if each.schema.name == name)
    return found
