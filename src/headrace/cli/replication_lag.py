"""A notice about records that are not replicated yet, for commands that list what the store has."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from headrace.app import Headrace, journal_topics
from headrace.errors import UnknownTopic
from headrace.model import TopicPartition

__all__ = ["journal_topics", "tell_unreplicated"]


async def tell_unreplicated(hr: Headrace, topics: Iterable[str]) -> None:
    """Print on stderr how many records are not replicated yet, if any."""
    count = 0
    for topic in topics:
        try:
            described = await hr.log.admin.describe(topic)
        except UnknownTopic:  # deleted: nothing of it waits
            continue
        for partition in range(described.partitions):
            at = TopicPartition(topic, partition)
            known, bounds = await hr.store.reader.replicated(at), await hr.log.bounds(at)
            count += max(0, bounds.end - max(bounds.start, known.offset + 1 if known is not None else 0))
    if count:
        typer.echo(
            f"{count:,} records of the log are not replicated yet, and what they bring is not listed here; "
            "run: headrace pipeline replicate --once",
            err=True,
        )
