"""Errors of events by tag."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable

__all__ = [
    "TagBuilding",
    "TagGap",
    "TagTrimmed",
    "TagViewsLost",
    "TagsDisabled",
    "TagsInUse",
    "TagsIncomplete",
    "WrongBucketSize",
]


@dataclass(eq=False)
class TagTrimmed(Refused):
    """Events that a query would have to return were removed from the tag's view because of their age."""

    tag: str
    asked_from: str
    before_ms: int
    last: str

    def __str__(self) -> str:
        time = datetime.fromtimestamp(self.before_ms / 1000, UTC).isoformat()
        return (
            f"the events of tag {self.tag!r} from before {time} were removed, up to offset {self.last}, and "
            f"{self.asked_from} is before that; to skip them, begin after {self.last} (queries: skip_trimmed; "
            f"headrace projection offset set, or rebuild --from)"
        )


@dataclass(eq=False)
class TagBuilding(Unavailable):
    """A tag is being back-filled; its events have no numbers before that is done."""

    tag: str
    function: str
    says: ClassVar[str] = (
        "tag {tag!r} is being back-filled by {function}; ask again later, or, if no back-fill is running, "
        "run: headrace tags backfill {tag} {function} --again"
    )


@dataclass(eq=False)
class TagsDisabled(Misconfigured):
    """Views by tag are switched off here."""

    operation: str
    says: ClassVar[str] = "cannot {operation}: tags are disabled; set tags.enabled, or HEADRACE__TAGS__ENABLED=true"


@dataclass(eq=False)
class TagsInUse(Misconfigured):
    """A process whose tags are disabled tried to replicate into a store that keeps views by tag."""

    says: ClassVar[str] = (
        "cannot replicate without views by tag: this store keeps them, and they would never get these events; "
        "set tags.enabled, or HEADRACE__TAGS__ENABLED=true, or stop keeping views with: headrace tags off"
    )


@dataclass(eq=False)
class TagsIncomplete(Misconfigured):
    """Journals were replicated while tags were disabled: their events are in no view."""

    says: ClassVar[str] = (
        "this store has journals that were replicated while tags were disabled, and views by tag would lack their "
        "events; stop replication and run: headrace tags rebuild --all"
    )


@dataclass(eq=False)
class WrongBucketSize(Misconfigured):
    """The bucket size of views by tag can't be changed after the first event."""

    stored: str
    configured: str
    says: ClassVar[str] = (
        "the views by tag were made with buckets of a {stored}, the settings say {configured}; "
        "set tags.bucket = {stored!r}, or use another store"
    )


@dataclass(eq=False)
class TagViewsLost(Misconfigured):
    """Tables of views by tag were emptied or replaced; continuing would give numbers twice."""

    tables: tuple[str, ...]

    def __str__(self) -> str:
        lost = ", ".join(self.tables)
        return f"the epoch of {lost} is missing: emptied, or restored from elsewhere; run: headrace tags rebuild --all"


@dataclass(eq=False)
class TagGap(Misconfigured):
    """Numbers of (pid, tag) are missing in the store."""

    tag: str
    topic: str
    pid: str
    expected: int
    found: int
    waited_s: float

    def __str__(self) -> str:
        missing = self.found - self.expected
        which = f"number {self.expected}" if missing == 1 else f"{missing} numbers from {self.expected} on"
        waited = f" after {self.waited_s:g} s" if self.waited_s else ""
        return (
            f"tag {self.tag!r} of {self.pid!r} in {self.topic!r}: {which} missing{waited}, expected {self.expected}, "
            f"found {self.found}; run: headrace tags rebuild {self.tag} --topic {self.topic} --id {self.pid}"
        )
