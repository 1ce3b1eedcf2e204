"""How much of each partition one micro-batch takes: pure."""

from __future__ import annotations

from headrace.model import TopicPartition
from headrace.pipeline.logs.offsets import Offsets

__all__ = ["admit"]


def admit(starts: Offsets, ends: Offsets, most: int) -> dict[TopicPartition, int]:
    """Return where each partition's part ends so that all together hold at most `most` offsets.

    Small backlogs are taken whole; what they leave of their share goes to the larger ones. A partition that has
    anything gets at least one record, so that none starves.
    """
    waiting = {at: max(0, end - starts.get(at, 0)) for at, end in ends.items()}
    taken: dict[TopicPartition, int] = {}
    left = most
    for count, (size, at) in enumerate(sorted((size, at) for at, size in waiting.items())):
        share = max(1, left // (len(waiting) - count))
        taken[at] = min(size, share)
        left -= taken[at]
    return {at: starts.get(at, 0) + taken[at] for at in ends}
