"""Entries of the registry in the log, and their fold.

An entry says what it adds and which number it wants to be: `nr` is one more than that of the last entry its writer had
seen. It counts if it is the first with its number, in the order of the log; any other is void, and its writer looks
again. So nodes that register at once agree on every id without a lock, whatever version of this code decided what
was compatible: the fold only counts.

Every entry has a key of its own. Compaction therefore never removes one that counts, and never moves one behind
another; void ones are given back by a tombstone.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from headrace.errors import IncompatibleData
from headrace.model import Record
from headrace.serde.levels import Level
from headrace.serde.ports import Version
from headrace.serde.registries.catalogue import Catalogue
from headrace.serde.schemas import Schema

__all__ = ["Entries", "Entry", "entry_of_level", "entry_of_version"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """What goes into the log."""

    key: bytes
    value: bytes


def entry_of_version(nr: int, version: Version) -> Entry:
    """Return the entry that adds a version."""
    content = {"subject": version.subject, "version": version.version, "id": version.schema_id}
    return _entry(nr, {**content, "schema": version.schema.text})


def entry_of_level(nr: int, subject: str | None, level: Level) -> Entry:
    """Return the entry that sets a level."""
    return _entry(nr, {"subject": subject, "level": level})


class Entries:
    """The fold: entries in the order of the log, into a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._last_nr = 0
        self._counted: set[bytes | None] = set()

    @property
    def next_nr(self) -> int:
        """The number that the next entry must have to count."""
        return self._last_nr + 1

    def counts(self, key: bytes) -> bool:
        """Say whether the entry with that key was taken in."""
        return key in self._counted

    def apply(self, record: Record) -> None:
        """Take a record in, if it counts."""
        if record.value is None:
            return
        content = _content(record)
        if content["nr"] < self.next_nr:
            return
        if content["nr"] > self.next_nr:
            # Its writer had seen the one before, so that was in the log.
            found = f"entry {content['nr']} without entry {self.next_nr}"
            raise IncompatibleData(_where(record), found, "topics that nobody truncated")
        if "level" in content:
            self._catalogue.set_level(content["subject"], Level(content["level"]))
        else:
            schema = Schema(content["schema"])
            self._catalogue.add(Version(content["subject"], content["version"], content["id"], schema))
        self._last_nr = content["nr"]
        self._counted.add(record.key)


def _entry(nr: int, content: dict[str, Any]) -> Entry:
    value = json.dumps({"format": FORMAT, "nr": nr, **content}, ensure_ascii=False)
    return Entry(f"{nr}/{uuid.uuid4().hex}".encode(), value.encode())


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}] offset {record.offset}"


def _content(record: Record) -> dict[str, Any]:
    where = _where(record)
    try:
        content: dict[str, Any] = json.loads(record.value or b"")
        found = content["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleData(where, "no entry of a schema registry", f"format {FORMAT}") from error
    if found != FORMAT:
        raise IncompatibleData(where, f"format {found}", f"format {FORMAT}")
    return content
