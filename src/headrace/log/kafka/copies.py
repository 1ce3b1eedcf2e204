"""How many copies of each record a topic keeps. Pure decisions; the admin acts on them."""

from __future__ import annotations

from headrace.config import KafkaLogSettings

__all__ = ["MIN_IN_SYNC", "copies_for", "durability_of"]

MIN_IN_SYNC = "min.insync.replicas"
_ENOUGH = 3


def copies_for(settings: KafkaLogSettings, brokers: int) -> int:
    """Return the copies of a topic that is made now: as many as there are brokers, up to three.

    The brokers' own default is one copy, unless somebody has changed it: what one broker loses would be gone.
    """
    return settings.replication_factor or max(1, min(brokers, _ENOUGH))


def durability_of(settings: KafkaLogSettings, copies: int) -> dict[str, str]:
    """Return what a topic with so many copies is made with: an append waits for all but one of them."""
    if settings.min_in_sync_replicas is not None:
        return {MIN_IN_SYNC: str(settings.min_in_sync_replicas)}
    return {MIN_IN_SYNC: str(copies - 1)} if copies > 1 else {}
