"""Events by tag: every event of a tag, once, in order, milliseconds after it was written; from any place on, for years.

Promises: one order for all readers, (log time, topic, partition, offset); numbers per journal and tag without gaps; an
offset that can be stored, and resumed from without missing or repeating an event, with no delay to tune.
Does not promise: an order by the clocks of those who wrote, or anything about events of journals that are held.
"""

from headrace.tags.buckets import Bucket
from headrace.tags.events import TaggedEvent
from headrace.tags.history import Chooser
from headrace.tags.offsets import After, TagOffset, after_of
from headrace.tags.query import TagQueries
from headrace.tags.repairing import TagRepair
from headrace.tags.trimming import TagTrim
from headrace.tags.untagged import UntaggedViews
from headrace.tags.writing import TagWriter

__all__ = [
    "After",
    "Bucket",
    "Chooser",
    "TagOffset",
    "TagQueries",
    "TagRepair",
    "TagTrim",
    "TagWriter",
    "TaggedEvent",
    "UntaggedViews",
    "after_of",
]
