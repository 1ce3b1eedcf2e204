"""What states count."""

from __future__ import annotations

from headrace.observe import counter

__all__ = ["APPLIED", "COMMITS", "REBUILDS", "UNINDEXED"]

APPLIED = counter("state", "applied_records", "Records of a changelog that were applied to a copy.", ["topic"])
COMMITS = counter(
    "state", "commits", "Commits of an owner by how they ended: committed, refused, unknown.", ["outcome"]
)
REBUILDS = counter(
    "state", "rebuilds", "Copies that were wiped and read again from the log's start.", ["topic", "reason"]
)
UNINDEXED = counter(
    "state", "unindexed_values", "Stored values in no index: they can't be decoded, or it fails for them.", ["topic"]
)
