"""Tags that were given to history afterwards: what all processes must know of them. Pure.

A tag that is being filled is left out by replication, and queries of it wait. In each partition the fill has two
places: events up to `since` may have been written under the tag before anybody knew of the fill, and are replaced; up
to `cut` the fill decides which events have the tag. Above the cut events bring it themselves, and replication numbers
on. Both places are those of Marks, written after the facts that they stand for: whoever has read so far in the log
finds the facts.

A place counts for the partition it is in and for no other. A journal that moved when its topic grew is counted at the
places of the partition it lives in since then, though its last record may lie in the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from headrace.errors import TagBuilding
from headrace.journal import Layout
from headrace.model import TopicPartition, partition_of
from headrace.store import Place

__all__ = ["FillState", "PlacesOfTopic", "TagFill", "check_filled"]


class FillState(StrEnum):
    """How far a fill is. While it is closing, replication waits at the cut."""

    BUILDING = "building"
    CLOSING = "closing"
    READY = "ready"


class PlacesOfTopic(msgspec.Struct, frozen=True):
    """A place in each partition of a topic, all of one generation. One that `is_gone` gets no more records."""

    generation: int
    offsets: Mapping[int, int]
    is_gone: bool = False


class TagFill(msgspec.Struct, frozen=True):
    """One tag's fill; `function` names what chooses the events, `close_id` an attempt to close it."""

    id: str
    function: str
    state: FillState = FillState.BUILDING
    close_id: str = ""
    since: Mapping[str, PlacesOfTopic] = {}
    cut: Mapping[str, PlacesOfTopic] = {}

    @property
    def is_ready(self) -> bool:
        """Whether history is counted."""
        return self.state is FillState.READY

    def since_of(self, at: TopicPartition) -> Place:
        """Return the place that all which was written before the fill lies below."""
        places = self.since.get(at.topic)
        return Place(-1, -1) if places is None else Place(places.generation, places.offsets.get(at.partition, -1))

    def home_of(self, layout: Layout, id_: str, partition: int) -> TopicPartition:
        """Return where a journal lives as long as the fill lasts, whose records, or rows, are in a partition.

        In a topic that has never grown that is where they are, also if their producer does not go by the key.
        """
        places = self.since.get(layout.topic)
        if places is None or places.generation <= 0:
            return TopicPartition(layout.topic, partition)
        return TopicPartition(
            layout.topic, partition_of(id_.encode(), layout.generations[places.generation].partitions)
        )

    def cut_of(self, at: TopicPartition) -> Place | None:
        """Return the last place that the fill decides about; None where it decides about nothing."""
        places = self.cut.get(at.topic)
        if places is None or at.partition not in places.offsets:
            return None
        return Place(places.generation, places.offsets[at.partition])

    def leaves_out(self, at: TopicPartition, place: Place) -> bool:
        """Say whether replication has to leave an event's row to the fill."""
        cut = self.cut_of(at)
        return not self.is_ready or (cut is not None and place <= cut)

    def last_offset(self, at: TopicPartition, start: int) -> int | None:
        """Return the last offset that replication, which stands at `start`, may go to; None: any."""
        if self.state is not FillState.CLOSING:
            return None
        cut = self.cut_of(at)
        return start if cut is None else cut.offset


def check_filled(fills: Mapping[str, TagFill], tag: str, before: Mapping[str, TagFill] | None = None) -> None:
    """Raise TagBuilding if history is not counted yet, or was counted anew since `before`."""
    fill = fills.get(tag)
    if fill is None:
        return
    is_same = before is None or (tag in before and before[tag].id == fill.id)
    if not fill.is_ready or not is_same:
        raise TagBuilding(tag, fill.function)
