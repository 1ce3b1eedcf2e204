"""Compatibility levels: who must be able to read whom, and the check of a new version against those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from headrace.errors import IncompatibleSchema
from headrace.serde.compatibility import Problem, problems_of_reading
from headrace.serde.ports import Version
from headrace.serde.schemas import Schema

__all__ = ["Level", "check_compatible", "incompatibilities"]


class Level(StrEnum):
    """What a subject promises about its versions.

    BACKWARD: the new one reads what the last wrote. FORWARD: the last reads what the new one writes. FULL: both.
    With TRANSITIVE that holds for all earlier versions, not only for the last.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier versions count."""
        return self.endswith("_TRANSITIVE")

    @property
    def directions(self) -> tuple[str, ...]:
        """BACKWARD, FORWARD, both or none."""
        plain = self.removesuffix("_TRANSITIVE")
        return {"NONE": (), "FULL": ("BACKWARD", "FORWARD")}.get(plain, (plain,))


def incompatibilities(new: Schema, earlier: Sequence[Version], level: Level) -> Iterator[tuple[int, str, Problem]]:
    """Yield what breaks the level: the version, the direction, the problem; the latest version first."""
    relevant = sorted(earlier, key=lambda each: -each.version)
    for each in relevant if level.is_transitive else relevant[:1]:
        for direction in level.directions:
            old = each.schema.shape
            writer, reader = (old, new.shape) if direction == "BACKWARD" else (new.shape, old)
            for problem in problems_of_reading(writer, reader):
                yield each.version, direction, problem


def check_compatible(new: Schema, earlier: Sequence[Version], level: Level, *, subject: str) -> None:
    """Raise IncompatibleSchema, with every problem, if the new schema breaks the level."""
    found = list(incompatibilities(new, earlier, level))
    if not found:
        return
    version, _, first = found[0]
    lines = tuple(_line(*each) for each in found)
    raise IncompatibleSchema(subject, level, first.field, version, first.rule, lines)


def _line(version: int, direction: str, problem: Problem) -> str:
    who = f"the new schema reading version {version}"
    if direction == "FORWARD":
        who = f"version {version} reading the new schema"
    return f"field {problem.field!r}: {problem.rule} against version {version} ({direction}, {who}): {problem.detail}"
