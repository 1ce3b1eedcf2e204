"""Records that can't be decoded or stored hold their own journal, are listed one by one, and let all others pass."""

from __future__ import annotations

import msgspec
import pytest
from tests.suites.journal_setting import JournalSetting, numbers, replicate

from headrace.errors import BadArgument, JournalHeld
from headrace.journal import Held, Journal, held_journals, pass_verdict
from headrace.journal.quarantine import stand_in_for
from headrace.log import Log
from headrace.model import Event, NewRecord
from headrace.store import Store
from headrace.store.limits import MAX_ID_BYTES, MAX_TAG_BYTES

__all__ = ["Quarantine"]

UNSTORABLE_TAGS = {"empty": "", "too long": "ü" * (MAX_TAG_BYTES // 2 + 1), "reserved": "\0epoch"}
UNSTORABLE_IDS = {"empty": "", "too long": "ü" * (MAX_ID_BYTES // 2 + 1), "beyond 64 KiB": "x" * 70_000}


async def put(log: Log, topic: str, id_: str, seq_nr: int, *, tag: str = "t", is_poison: bool = False) -> int:
    """Write an append as another service would, which knows no limits; returns its offset."""
    header = {"append": {"range": {"from": seq_nr, "to": seq_nr}, "payloadType": "json", "metadata": {}}}
    event = {"seqNr": seq_nr, "tags": [tag], "payloadType": "text", "payload": "x"}
    headers = (("journal.action", b"nonsense" if is_poison else msgspec.json.encode(header)),)
    value = msgspec.json.encode({"events": [event], "metadata": {}})
    (position,) = await log.append([NewRecord(topic, id_.encode(), value, headers, partition=0)])
    return position.offset


async def held_in(store: Store, topic: str) -> list[Held]:
    return [held async for held in held_journals(store, topic)]


class Quarantine(JournalSetting):
    """E9, by tier."""

    @pytest.mark.parametrize("tag", UNSTORABLE_TAGS.values(), ids=list(UNSTORABLE_TAGS))
    async def test_an_event_that_no_store_takes_holds_its_journal_alone(
        self, log: Log, store: Store, topic: str, journal: Journal, tag: str
    ) -> None:
        """FT2: one event with an empty tag stopped its whole partition forever; now its journal is held, by name."""
        await put(log, topic, "bad", 1)
        offset = await put(log, topic, "bad", 2, tag=tag)
        await put(log, topic, "bad", 3)
        await journal.append("good", [Event(1)])
        await replicate(log, store, topic)
        assert await numbers(journal, "good") == [1]
        with pytest.raises(JournalHeld, match=f"held from offset {offset}"):
            await numbers(journal, "bad")
        (held,) = await held_in(store, topic)
        assert (held.id, held.offset, held.records) == ("bad", offset, 2)
        assert "event 2: a tag" in held.reason
        await pass_verdict(log, store, topic, "bad", skip=True, offset=offset)
        await replicate(log, store, topic)
        assert await numbers(journal, "bad") == [1, 3]
        assert await held_in(store, topic) == []

    @pytest.mark.parametrize("id_", UNSTORABLE_IDS.values(), ids=list(UNSTORABLE_IDS))
    async def test_an_id_that_no_store_takes_holds_nobody_else(
        self, log: Log, store: Store, topic: str, journal: Journal, id_: str
    ) -> None:
        """FT2: records under an id beyond the key's limit are kept aside, whole, and listed; the others flow."""
        first = await put(log, topic, id_, 1)
        await journal.append("good", [Event(1)])
        await replicate(log, store, topic, move_to=-1)
        await put(log, topic, id_, 2)
        await replicate(log, store, topic)
        assert await numbers(journal, "good") == [1]
        (held,) = await held_in(store, topic)
        assert (held.id, held.offset, held.records) == (stand_in_for(id_), first, 2)
        assert "its id" in held.reason
        with pytest.raises(BadArgument, match="can only be copied, under another id"):
            await pass_verdict(log, store, topic, held.id, skip=True)

    async def test_two_poison_records_are_decided_about_one_by_one(
        self, log: Log, store: Store, topic: str, journal: Journal
    ) -> None:
        """FJ12: the list named the later of two and skip dropped the first: now both are about the first one held."""
        await put(log, topic, "bad", 1)
        first = await put(log, topic, "bad", 2, is_poison=True)
        await put(log, topic, "bad", 2)
        await replicate(log, store, topic)
        second = await put(log, topic, "bad", 3, is_poison=True)
        await put(log, topic, "bad", 4)
        await replicate(log, store, topic)
        (held,) = await held_in(store, topic)
        assert (held.offset, held.records) == (first, 4)
        with pytest.raises(BadArgument, match=f"is held from offset {first}; decide about that first"):
            await pass_verdict(log, store, topic, "bad", skip=True, offset=second)
        await pass_verdict(log, store, topic, "bad", skip=True, offset=first)
        await replicate(log, store, topic)
        (held,) = await held_in(store, topic)
        assert (held.offset, held.records) == (second, 2)
        with pytest.raises(JournalHeld, match=f"held from offset {second}"):
            await numbers(journal, "bad")
        with pytest.raises(BadArgument, match=f"is held from offset {second}"):
            await pass_verdict(log, store, topic, "bad", skip=True, offset=first)
        await pass_verdict(log, store, topic, "bad", skip=True, offset=second)
        await replicate(log, store, topic)
        assert await numbers(journal, "bad") == [1, 2, 4]
        assert await held_in(store, topic) == []
