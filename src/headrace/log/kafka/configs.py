"""Topic settings in Kafka's words, there and back."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model import Cleanup, TopicConfig

__all__ = ["from_kafka", "to_kafka"]

_CLEANUP = "cleanup.policy"
_RETENTION = "retention.ms"
_TOMBSTONES = "delete.retention.ms"
_COMPACTION_LAG = "min.compaction.lag.ms"
_MAX_BYTES = "max.message.bytes"
_AHEAD = "message.timestamp.after.max.ms"
_OURS = frozenset({_CLEANUP, _RETENTION, _TOMBSTONES, _COMPACTION_LAG, _MAX_BYTES, _AHEAD})


def to_kafka(config: TopicConfig) -> dict[str, str]:
    """Return what to set on a topic. `extra` wins: whoever writes a Kafka name there means it."""
    return {
        _CLEANUP: str(config.cleanup),
        _RETENTION: str(-1 if config.retention_ms is None else config.retention_ms),
        _TOMBSTONES: str(config.tombstone_retention_ms),
        _COMPACTION_LAG: str(config.min_compaction_lag_ms),
        _MAX_BYTES: str(config.max_record_bytes),
        _AHEAD: str(config.timestamp_ahead_ms),
        **config.extra,
    }


def from_kafka(effective: Mapping[str, str], own: Mapping[str, str]) -> TopicConfig:
    """Return a topic's settings from all that hold for it and those set on the topic itself."""
    retention_ms = int(effective[_RETENTION])
    policies = {policy.strip() for policy in effective[_CLEANUP].split(",")} - {""}
    return TopicConfig(
        cleanup=_cleanup_of(policies),
        # Kafka takes no policy at all for "keep everything", and a retention of 0; both have a neighbour here.
        retention_ms=None if retention_ms < 0 or not policies else max(1, retention_ms),
        tombstone_retention_ms=int(effective[_TOMBSTONES]),
        min_compaction_lag_ms=int(effective[_COMPACTION_LAG]),
        max_record_bytes=max(1, int(effective[_MAX_BYTES])),
        timestamp_ahead_ms=max(1, int(effective[_AHEAD])),
        extra={name: value for name, value in own.items() if name not in _OURS},
    )


def _cleanup_of(policies: set[str]) -> Cleanup:
    if "compact" not in policies:
        return Cleanup.DELETE
    return Cleanup.COMPACT_DELETE if "delete" in policies else Cleanup.COMPACT
