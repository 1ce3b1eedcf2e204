"""Appends to held journals: none is reported as refused if it can become visible later."""

from __future__ import annotations

import pytest
from tests.suites.journal_setting import JournalSetting, actions_of, numbers, replicate

from headrace.errors import JournalHeld, OperationFailed, WrongSeqNr
from headrace.journal import Journal, pass_verdict
from headrace.log import Log
from headrace.model import Event, NewRecord
from headrace.protocol.actions import Append
from headrace.store import Store

__all__ = ["Holds"]


async def poison(log: Log, topic: str, id_: str) -> None:
    """Write an undecodable record of a journal."""
    await log.append([NewRecord(topic, id_.encode(), None, (("journal.action", b"{"),), partition=0)])


class Holds(JournalSetting):
    """The tests of checked appends behind a record that can't be decoded."""

    async def test_a_checked_append_to_a_held_journal_writes_nothing(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """FJ5: where the store knows of the hold, the append is refused as held, before it is in the log."""
        await journal.append("k", [Event(1)])
        await poison(log, topic, "k")
        await replicate(log, store, topic)
        for options in ({"expected": 1}, {"expected": 0}, {"append_id": "a"}):
            with pytest.raises(JournalHeld):
                await journal.append("k", [Event(2)], **options)
        with pytest.raises(JournalHeld):
            await journal.prepare("k")
        assert len(await actions_of(log, topic, Append)) == 1
        await pass_verdict(log, store, topic, "k", skip=True)
        await replicate(log, store, topic)
        assert await numbers(journal, "k") == [1]
        await journal.append("k", [Event(2)], append_id="a")
        assert await numbers(journal, "k") == [1, 2]

    @pytest.mark.parametrize("expected", [1, 0])
    async def test_an_append_that_met_a_hold_has_an_unknown_outcome(
        self, log: Log, store: Store, journal: Journal, topic: str, expected: int
    ) -> None:
        """FJ5: it is in the log behind the hold and may count later; the same call tells, once the hold is over."""
        await journal.append("k", [Event(1)])
        await poison(log, topic, "k")
        for options in ({"expected": expected}, {"expected": expected, "append_id": "a"}):
            with pytest.raises(OperationFailed) as unknown:
                await journal.append("k", [Event(2, "x")], **options)
            assert not unknown.value.outcome_known
            assert "held from offset" in str(unknown.value)
        await replicate(log, store, topic)
        await pass_verdict(log, store, topic, "k", skip=True)
        for _ in range(2):
            if expected == 1:
                with pytest.raises(WrongSeqNr):  # the one without an id was first
                    await journal.append("k", [Event(2, "x")], expected=1, append_id="a")
            await replicate(log, store, topic)
            assert await numbers(journal, "k") == ([1, 2] if expected == 1 else [1])

    async def test_a_retry_behind_a_hold_makes_no_duplicate(
        self, log: Log, store: Store, journal: Journal, topic: str
    ) -> None:
        """FJ5: tries before, behind and after the hold are one append, and the last one answers success."""
        await journal.append("k", [Event(1)])
        await poison(log, topic, "k")
        for _ in range(2):
            with pytest.raises(OperationFailed):
                await journal.append("k", [Event(2, "x")], expected=1, append_id="a")
        await replicate(log, store, topic)
        await pass_verdict(log, store, topic, "k", skip=True)
        landed = await journal.append("k", [Event(2, "x")], expected=1, append_id="a")
        await replicate(log, store, topic)
        assert await journal.append("k", [Event(2, "x")], expected=1, append_id="a") == landed
        assert await numbers(journal, "k") == [1, 2]
