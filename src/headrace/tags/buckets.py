"""Buckets: how much time of a tag one partition of its view holds."""

from __future__ import annotations

from enum import Enum

__all__ = ["Bucket"]


class Bucket(Enum):
    """The size of a bucket; chosen by volume, and fixed once events are there."""

    DAY = 24 * 60 * 60 * 1000
    HOUR = 60 * 60 * 1000
    MINUTE = 60 * 1000

    def start_of(self, log_time_ms: int) -> int:
        """Return when the bucket of a log time begins."""
        return log_time_ms - log_time_ms % int(self.value)
