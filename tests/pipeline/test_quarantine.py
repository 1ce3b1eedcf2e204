"""Records that can't be decoded, by the shipped job in a Spark session."""

from __future__ import annotations

import pytest
from tests.pipeline.tier import Seen, Tier

from headrace.errors import BadArgument, JournalHeld
from headrace.journal import Held, Journal, held_journals, pass_verdict
from headrace.log import Log
from headrace.model import Event, NewRecord
from headrace.store import Store

pytestmark = pytest.mark.timeout(300)


async def put(log: Log, topic: str, key: str | None, headers: dict[str, str]) -> int:
    """Write a record that no journal would."""
    encoded = tuple((name, value.encode()) for name, value in headers.items())
    record = NewRecord(topic, key.encode() if key is not None else None, b"{}", encoded, partition=0)
    (position,) = await log.append([record])
    return position.offset


async def held_in(store: Store, topic: str) -> list[Held]:
    return [held async for held in held_journals(store, topic)]


def append(tier: Tier, topic: str, id_: str, *numbers: int) -> None:
    async def write(journal: Journal) -> None:
        for number in numbers:
            await journal.append(id_, [Event(number, number)])

    tier.with_journal(topic, write, partitions=1)


def test_unknown_kinds_and_foreign_records_are_passed(tier: Tier, topic: str) -> None:
    """E9: an unknown action kind is skipped; a record without key or header is skipped and counted."""
    append(tier, topic, "k", 1)
    tier.on(lambda log, _: put(log, topic, "k", {"journal.action": '{"invented":{}}'}))
    tier.on(lambda log, _: put(log, topic, None, {"journal.action": '{"purge":{}}'}))
    tier.on(lambda log, _: put(log, topic, "k", {}))
    append(tier, topic, "k", 2)
    seen = Seen()
    tier.replicate(topic, watcher=seen)
    assert tier.numbers(topic, "k") == [1, 2]
    assert sum(outcome.skipped for report in seen.reports for outcome in report.outcomes) == 3
    assert tier.dump(topic) == tier.expected(topic)


def test_a_malformed_header_holds_its_key_alone(tier: Tier, topic: str) -> None:
    """E9: the key is quarantined with an alarm, its later records are kept, reads of it name the offset."""
    append(tier, topic, "good", 1)
    append(tier, topic, "bad", 1)
    poison = tier.on(lambda log, _: put(log, topic, "bad", {"journal.action": '{"append":{"range":7}}'}))
    append(tier, topic, "bad", 2)
    append(tier, topic, "good", 2)
    seen = Seen()
    tier.replicate(topic, watcher=seen)
    append(tier, topic, "bad", 3)
    tier.apply(topic)
    assert any("'bad' is quarantined" in event for event in seen.events)
    assert tier.numbers(topic, "good") == [1, 2]
    with pytest.raises(JournalHeld, match=f"held from offset {poison}"):
        tier.numbers(topic, "bad")
    (held,) = tier.on(lambda _, store: held_in(store, topic))
    assert (held.id, held.offset, held.records) == ("bad", poison, 3)
    assert "journal.action" in held.reason


def test_skip_passes_the_record_and_applies_what_was_held(tier: Tier, topic: str) -> None:
    """E9: skip is a record of the partition; replicated, the events behind the poison are there, in order."""
    append(tier, topic, "bad", 1)
    tier.on(lambda log, _: put(log, topic, "bad", {"journal.action": "nonsense"}))
    append(tier, topic, "bad", 2, 3)
    tier.apply(topic)
    tier.on(lambda log, store: pass_verdict(log, store, topic, "bad", skip=True))
    append(tier, topic, "bad", 4)
    tier.arm("replicate.before-meta")
    tier.replicate(topic)
    assert tier.disarm()
    assert tier.numbers(topic, "bad") == [1, 2, 3, 4]
    assert tier.on(lambda _, store: held_in(store, topic)) == []
    metas, rows = tier.dump(topic)
    assert [row.seq_nr for row in rows["bad"]] == [1, 2, 3, 4]
    assert metas["bad"].held_from is None
    with pytest.raises(BadArgument, match="no journal of that id that is held"):
        tier.on(lambda log, store: pass_verdict(log, store, topic, "bad", skip=True))
    append(tier, topic, "bad", 5)
    tier.apply(topic)
    assert tier.numbers(topic, "bad") == [1, 2, 3, 4, 5]


def test_release_of_what_still_can_not_be_decoded_changes_nothing(tier: Tier, topic: str) -> None:
    """E9: release tries again; a record that is still malformed holds the journal as before, with all behind it."""
    append(tier, topic, "bad", 1)
    poison = tier.on(lambda log, _: put(log, topic, "bad", {"journal.action": "nonsense"}))
    append(tier, topic, "bad", 2)
    tier.apply(topic)
    tier.on(lambda log, store: pass_verdict(log, store, topic, "bad", skip=False))
    tier.apply(topic)
    (held,) = tier.on(lambda _, store: held_in(store, topic))
    assert (held.offset, held.records) == (poison, 2)
    tier.on(lambda log, store: pass_verdict(log, store, topic, "bad", skip=True))
    tier.apply(topic)
    assert tier.numbers(topic, "bad") == [1, 2]


def test_a_skip_counts_before_it_is_replicated(tier: Tier, topic: str) -> None:
    """E9: where poison and verdict both lie in the head of the log, reads follow the verdict at once."""
    append(tier, topic, "bad", 1)
    poison = tier.on(lambda log, _: put(log, topic, "bad", {"journal.action": "nonsense"}))
    append(tier, topic, "bad", 2)
    verdict = {"journal.action": '{"mark":{"id":"v"}}', "headrace.verdict": "skip", "headrace.held-from": str(poison)}
    tier.on(lambda log, _: put(log, topic, "bad", verdict))
    assert tier.numbers(topic, "bad") == [1, 2]
    tier.apply(topic)
    assert tier.numbers(topic, "bad") == [1, 2]
