"""Settings of journals, from the environment to what they change."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.config import HeadraceSettings
from headrace.errors import InvalidSettings
from headrace.model import Event


async def test_settings_reach_the_journals_of_a_connection(tmp_path: Path) -> None:
    """Partitions, the ring of snapshots and the bounds of the head: set in the environment, seen at work."""
    environ = {
        "HEADRACE__JOURNAL__PARTITIONS": "3",
        "HEADRACE__JOURNAL__SNAPSHOTS_KEPT": "2",
        "HEADRACE__JOURNAL__HEAD__MAX_ACTIONS": "2",
        "HEADRACE__JOURNAL__HEAD__MAX_RECORD_BYTES": "0",
    }
    async with headrace.connect(f"embedded:{tmp_path}", settings=HeadraceSettings.load(environ=environ)) as hr:
        journal = hr.journal("t")
        for n in range(1, 6):
            await journal.append("k", [Event(n)])
        assert (await hr.log.admin.describe("t")).partitions == 3
        for n in range(1, 6):
            await journal.snapshots.save("k", n, f"state {n}", timestamp_ms=n)
        assert await journal.snapshots.load("k", max_seq_nr=3) is None
        assert [event.seq_nr async for event in journal.read("k")] == [1, 2, 3, 4, 5]
        cache = hr._head_cache
        assert cache is not None
        assert (cache.actions <= 2, cache.record_bytes) == (True, 0)
        wide = hr.journal("wide", partitions=5)
        await wide.append("k", [Event(1)])
        assert len(await wide.stats()) == 5


@pytest.mark.parametrize(("name", "value"), [("LEASE_S", "0"), ("PARTITIONS", "0"), ("HEAD__MAX_ACTIONS", "0")])
def test_what_no_journal_could_work_with_is_refused(name: str, value: str) -> None:
    """A lease of no time, no partitions, no room: named with the variable they came from."""
    with pytest.raises(InvalidSettings, match=f"HEADRACE__JOURNAL__{name}"):
        HeadraceSettings.load(environ={f"HEADRACE__JOURNAL__{name}": value})
