"""Expiry, by the shipped job in a Spark session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.pipeline.tier import Tier

from headrace.journal import Journal
from headrace.model import Event
from headrace.pipeline import Selection, purge_expired
from headrace.pipeline.jobs.expiry import is_expired
from headrace.store import JournalMeta, Place

pytestmark = pytest.mark.timeout(300)


async def pointers(journal: Journal, *ids: str) -> list[int | None]:
    return [await journal.pointer(id_) for id_ in ids]


def after(**time: float) -> datetime:
    return datetime.now(UTC) + timedelta(**time)


def test_what_is_past_its_time_is_purged_and_nothing_else(tier: Tier, topic: str) -> None:
    """K9: expired journals go, those of missed days too; others stay; a second run is harmless."""

    async def write(journal: Journal) -> None:
        for n in range(6):
            await journal.append(f"day{n}", [Event(1, n), Event(2, n)], expire_after="1 day")
        await journal.append("month", [Event(1, 1)], expire_after="30 days")
        await journal.append("ever", [Event(1, 1)])
        await journal.append("cleared", [Event(1, 1)], expire_after="1 day")
        await journal.append("cleared", [Event(2, 2)])

    tier.with_journal(topic, write)
    tier.apply(topic)
    selection = Selection((topic,))
    early = purge_expired(tier.spark, tier.endpoints, selection)
    assert (early.journals, early.purged, early.partitions) == (9, 0, 4)
    first = purge_expired(tier.spark, tier.endpoints, selection, now=after(days=9))
    assert (first.journals, first.purged) == (9, 6)
    ids = [*(f"day{n}" for n in range(6)), "month", "ever", "cleared"]
    assert tier.with_journal(topic, lambda journal: pointers(journal, *ids)) == [*[None] * 6, 1, 1, 2]
    again = purge_expired(tier.spark, tier.endpoints, selection, now=after(days=9))
    assert again.purged == 0, "the store does not know of the first run's purges yet, but the log does"
    tier.apply(topic)
    last = purge_expired(tier.spark, tier.endpoints, selection, now=after(days=9))
    assert (last.journals, last.purged) == (3, 0)
    assert tier.dump(topic) == tier.expected(topic)
    assert tier.with_journal(topic, lambda journal: pointers(journal, *ids)) == [*[None] * 6, 1, 1, 2]


def test_who_renews_meanwhile_wins(tier: Tier, topic: str) -> None:
    """K9: an append that the job did not see, and an incarnation begun between two runs, both stay."""
    selection = Selection((topic,))

    async def write(journal: Journal) -> None:
        await journal.append("renewed", [Event(1, 1)], expire_after="1 day")
        await journal.append("again", [Event(1, 1)], expire_after="1 day")

    async def renew(journal: Journal) -> None:
        await journal.append("renewed", [Event(2, 2)], expire_after="30 days")

    async def begin_again(journal: Journal) -> None:
        await journal.append("again", [Event(1, "new")], expire_after="30 days")

    tier.with_journal(topic, write)
    tier.apply(topic)
    tier.with_journal(topic, renew)
    assert purge_expired(tier.spark, tier.endpoints, selection, now=after(days=2)).purged == 1
    tier.with_journal(topic, begin_again)
    assert purge_expired(tier.spark, tier.endpoints, selection, now=after(days=2)).purged == 0
    assert tier.numbers(topic, "renewed") == [1, 2]
    assert tier.numbers(topic, "again") == [1]
    tier.apply(topic)
    assert tier.numbers(topic, "renewed") == [1, 2]
    assert tier.numbers(topic, "again") == [1]
    assert tier.dump(topic) == tier.expected(topic)


def test_a_journal_expires_exactly_at_its_time() -> None:
    """K9: at the millisecond, not before; markers, held journals and those without a time never."""
    meta = JournalMeta(
        topic="t", id="a", generation=0, partition=0, offset=1, seq_nr=1, segment_size=10, last_append=Place(0, 1)
    )

    def with_(**fields: object) -> JournalMeta:
        import msgspec

        return msgspec.structs.replace(meta, **{"expire_on_ms": 1000, **fields})

    assert not is_expired(meta, 10**15)
    assert not is_expired(with_(), 999)
    assert is_expired(with_(), 1000)
    assert not is_expired(with_(is_purged=True), 1000)
    assert not is_expired(with_(held_from=1), 1000)
