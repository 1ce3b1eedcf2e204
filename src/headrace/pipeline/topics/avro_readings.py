"""Which schemas framed bytes may have been written with, and which one each is read as. No Spark in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import BadSchema, UnknownSubject
from headrace.pipeline.topics.avro_resolution import resolved
from headrace.pipeline.topics.spark_limits import spark_limit
from headrace.serde import BlockingRegistry, Registry, Schema, Version, problems_of_reading, subject_of, topic_versions
from headrace.serde.shapes import short_name
from headrace.serde.subjects import Part

__all__ = ["Member", "Reading", "reading_of_topic", "reading_of_topics", "reading_of_versions"]


@dataclass(frozen=True, slots=True)
class Member:
    """One type: its newest schema, and all that were written under it, by id."""

    name: str
    reader: Schema
    writers: Mapping[int, Schema]

    @property
    def limit(self) -> str | None:
        """Why Spark has no type for it, if that is so."""
        return spark_limit(self.reader)

    def problem_of(self, schema_id: int) -> str | None:
        """Return why the newest schema can't read what that one wrote; only levels below BACKWARD allow that."""
        found = problems_of_reading(self.writers[schema_id].shape, self.reader.shape)
        if found:
            return f"field {found[0].field!r}: {found[0].rule}: {found[0].detail}"
        try:
            resolved(self.writers[schema_id], self.reader)
        except BadSchema as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """The types that bytes may be of. `what` is what errors call the bytes; `is_single` where they have one subject."""

    what: str
    members: Sequence[Member]
    is_single: bool

    @property
    def ids(self) -> Sequence[int]:
        """All ids, sorted."""
        return sorted(schema_id for member in self.members for schema_id in member.writers)


def reading_of_topic(
    registry: BlockingRegistry, topic: str, part: Part = "value", *, subject: str | None = None
) -> Reading | None:
    """Return how a topic's values (or keys) are read, by its subjects or by the one that is named; None without any."""
    what = f"the {part}s of topic {topic!r}"
    versions = registry.run(_versions(registry.registry, topic, part, subject))
    return reading_of_versions(what, versions, alone=subject or subject_of(topic, part)) if versions else None


def reading_of_topics(registry: BlockingRegistry, topics: Sequence[str]) -> Reading | None:
    """Return how the events of these journals are read; None when no schema is there."""
    found = {topic: registry.run(_versions(registry.registry, topic, "value", None)) for topic in topics}
    versions = [version for each in found.values() for version in each]
    named = ", ".join(repr(topic) for topic, each in found.items() if each)
    return reading_of_versions(f"the events of {named}", versions) if versions else None


def reading_of_versions(what: str, versions: Sequence[Version], *, alone: str | None = None) -> Reading:
    """Return how bytes of these versions are read: those of a subject as its last one. `alone` can have one type."""
    by_subject: dict[str, list[Version]] = {}
    for version in sorted(versions, key=lambda each: (each.subject, each.version)):
        by_subject.setdefault(version.subject, []).append(version)
    grouped: dict[str, list[list[Version]]] = {}
    for group in by_subject.values():
        grouped.setdefault(group[-1].schema.name, []).append(group)
    writers = _writers(grouped)
    names = _names(grouped)
    members = [Member(names[name], _newest(groups), writers[name]) for name, groups in sorted(grouped.items())]
    return Reading(what, members, is_single=set(by_subject) == {alone})


async def _versions(registry: Registry, topic: str, part: Part, subject: str | None) -> Sequence[Version]:
    if subject is None:
        return await topic_versions(registry, topic, part)
    try:
        return await registry.versions(subject)
    except UnknownSubject:
        return ()


def _newest(groups: Sequence[Sequence[Version]]) -> Schema:
    """Return what one type is read as; of several subjects, the last version that came in last."""
    return max((group[-1] for group in groups), key=lambda version: version.schema_id).schema


def _writers(grouped: Mapping[str, Sequence[Sequence[Version]]]) -> dict[str, dict[int, Schema]]:
    """Return each type's schemas by id. One that is in two types' subjects belongs to the type of its name."""
    owners: dict[int, tuple[str, Schema]] = {}
    for name, groups in grouped.items():
        for version in (each for group in groups for each in group):
            if version.schema_id not in owners or version.schema.name == name:
                owners[version.schema_id] = (name, version.schema)
    found: dict[str, dict[int, Schema]] = {name: {} for name in grouped}
    for schema_id, (name, schema) in sorted(owners.items()):
        found[name][schema_id] = schema
    return found


def _names(grouped: Mapping[str, object]) -> dict[str, str]:
    """Return what the types are called as columns: short names, or whole ones where two would be called alike."""
    short = [short_name(name).lower() for name in grouped]
    return {
        name: short_name(name) if short.count(short_name(name).lower()) == 1 else name.replace(".", "_")
        for name in grouped
    }
