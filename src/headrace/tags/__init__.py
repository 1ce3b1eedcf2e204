"""Events by tag: every event of a tag, once, in order, milliseconds after it was written.

Promises: one order for all readers, (log time, topic, partition, offset); numbers per journal and tag without gaps; an
offset that can be stored, and from which a query resumes without missing or repeating an event; no delay to tune.
Does not promise: an order by the writers' clocks, or anything about events of journals that are held.
"""

from headrace.tags.events import After, TaggedEvent, TagOffset, after_of, tagged_row
from headrace.tags.fill import Chooser, Counted, HistoryCount, TagFills
from headrace.tags.gaps import Sequences
from headrace.tags.query import TagQueries
from headrace.tags.registry import (
    REGISTRY_KEY,
    Bucket,
    PlacesOfTopic,
    TagFacts,
    TagFill,
    TagRegistry,
    TagUse,
    decode_registry,
)
from headrace.tags.repair import CatchingUp, TagRepair
from headrace.tags.trim import ALL_TAGS, TagTrim
from headrace.tags.view_rows import Trimmed, all_trimmed, is_trimmed
from headrace.tags.write import Numbering, TagWriter, UntaggedViews, number_of

__all__ = [
    "ALL_TAGS",
    "REGISTRY_KEY",
    "After",
    "Bucket",
    "CatchingUp",
    "Chooser",
    "Counted",
    "HistoryCount",
    "Numbering",
    "PlacesOfTopic",
    "Sequences",
    "TagFacts",
    "TagFill",
    "TagFills",
    "TagOffset",
    "TagQueries",
    "TagRegistry",
    "TagRepair",
    "TagTrim",
    "TagUse",
    "TagWriter",
    "TaggedEvent",
    "Trimmed",
    "UntaggedViews",
    "after_of",
    "all_trimmed",
    "decode_registry",
    "is_trimmed",
    "number_of",
    "tagged_row",
]
