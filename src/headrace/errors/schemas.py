"""Errors of Avro: schemas, their registry, and values that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Refused

__all__ = [
    "BadSchema",
    "IncompatibleSchema",
    "NoSchemaFor",
    "NotDecodable",
    "NotEncodable",
    "NotFramed",
    "NotRegistered",
    "UnknownSchema",
    "UnknownSubject",
]


@dataclass(eq=False)
class NoSchemaFor(Refused):
    """The Avro schema of a class can't be inferred."""

    owner: str
    field: str
    reason: str
    says: ClassVar[str] = "no Avro schema for field {field!r} of {owner}: {reason}"


@dataclass(eq=False)
class BadSchema(Refused):
    """A schema is not valid Avro."""

    where: str
    reason: str
    says: ClassVar[str] = "not a valid Avro schema, at {where}: {reason}"


@dataclass(eq=False)
class IncompatibleSchema(Refused):
    """A schema breaks the compatibility that its subject promises; field, version and rule are of the first problem."""

    subject: str
    level: str
    field: str
    version: int
    rule: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return (
            f"the schema is not {self.level} compatible under {self.subject!r}:{lines}\n"
            "give new and removed fields defaults, keep types, rename through aliases, or use another subject"
        )


@dataclass(eq=False)
class UnknownSchema(Refused):
    """The registry has no schema with that id."""

    schema_id: int
    registry: str
    says: ClassVar[str] = "there is no schema with id {schema_id} in {registry}; was it written with another registry?"


@dataclass(eq=False)
class UnknownSubject(Refused):
    """The registry does not have that subject, or that version of it."""

    subject: str
    registry: str
    version: int | None = None

    def __str__(self) -> str:
        what = f"no version {self.version} of subject" if self.version is not None else "no subject"
        return f"there is {what} {self.subject!r} in {self.registry}; see: headrace schema list"


@dataclass(eq=False)
class NotRegistered(Refused):
    """The subject has no version with this schema, and automatic registration is off."""

    subject: str
    schema: str
    says: ClassVar[str] = (
        "the schema of {schema} is not registered under {subject!r}, and automatic registration is off; "
        "run: headrace schema register {subject} FILE"
    )


@dataclass(eq=False)
class NotEncodable(Refused):
    """A value does not fit its Avro schema."""

    schema: str
    field: str
    reason: str
    says: ClassVar[str] = "can't write {schema} as Avro: at {field!r}: {reason}"


@dataclass(eq=False)
class NotFramed(Refused):
    """The bytes do not begin like framed Avro: a zero, then four bytes of schema id."""

    size_bytes: int
    reason: str
    says: ClassVar[str] = "{size_bytes} bytes are not framed Avro: {reason}"


@dataclass(eq=False)
class NotDecodable(Refused):
    """Avro data does not follow its schema, or its reader can't decode it; `schema` is "JSON" for its JSON form."""

    schema: str
    field: str
    reason: str
    says: ClassVar[str] = "can't read {schema}: at {field!r}: {reason}"
