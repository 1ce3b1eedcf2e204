"""Back-fill and re-replication, by the shipped jobs in a Spark session."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from tests.pipeline.by_hand import operator_of
from tests.pipeline.tier import Tier, append_all, dump_of

from headrace.errors import BadArgument
from headrace.journal import Journal
from headrace.model import Event
from headrace.pipeline import Endpoints, Selection, backfill
from headrace.pipeline.spark.process import run, store_of

pytestmark = pytest.mark.timeout(300)


async def live(journal: Journal, *, keys: int = 6, steps: int = 30, seed: int = 1) -> None:
    """Do a bit of everything."""
    chance = random.Random(seed)
    for _ in range(steps):
        id_ = f"k{chance.randrange(keys)}"
        pointer = await journal.pointer(id_) or 0
        kind = chance.choices(("append", "delete", "purge", "mark"), (60, 20, 10, 10))[0]
        if kind == "append":
            count = chance.randint(1, 4)
            events = [Event(pointer + n, {"n": n}, tags=("a",) if n % 2 else ()) for n in range(1, count + 1)]
            await journal.append(id_, events, expire_after="9 days" if chance.random() < 0.2 else None)
        elif kind == "delete" and pointer:
            await journal.delete(id_, to=chance.randint(1, pointer))
        elif kind == "purge":
            await journal.purge(id_)
        else:
            await journal.mark(id_, f"m{chance.random()}")


def _other_store(tier: Tier, folder: Path) -> Endpoints:
    if tier.is_embedded:
        return msgspec.structs.replace(tier.endpoints, store=f"embedded:{folder / 'other'}")
    return msgspec.structs.replace(tier.endpoints, store=f"{tier.endpoints.store}_anew")


def test_a_whole_log_makes_the_same_store_again(tier: Tier, topic: str, tmp_path: Path) -> None:
    """K14: the log replicated bit by bit, and in one go into an empty store: equal, row for row."""
    for seed in range(3):
        tier.with_journal(topic, lambda journal, seed=seed: live(journal, seed=seed))
        tier.replicate(topic, max_records=7)
    anew = _other_store(tier, tmp_path)
    summary = tier.replicate(topic, endpoints=anew)
    assert summary.records > 0

    async def dump() -> object:
        return await dump_of(await store_of(anew), topic)

    first = tier.dump(topic)
    assert sum(len(rows) for rows in first[1].values()) > 0
    assert run(dump()) == first == tier.expected(topic)


def test_what_was_right_stays_and_what_is_missing_comes_back(tier: Tier, topic: str) -> None:
    """K14: a range applied again changes nothing; rows of it that were lost come back, others do not."""
    tier.with_journal(topic, lambda journal: append_all(journal, 1, 12), partitions=1)
    tier.with_journal(topic, lambda journal: journal.delete("k0", to=2), partitions=1)
    tier.apply(topic)
    selection, before = Selection((topic,)), tier.dump(topic)
    done = backfill(tier.spark, tier.endpoints, selection)
    assert (done.records, done.rows, done.restored, done.busy) == (13, 10, 0, 0)
    assert tier.dump(topic) == before
    rows = {row.seq_nr: row for row in before[1]["k0"]}
    operator = operator_of(tier)
    operator.lose_rows(topic, ["k0"])
    operator.close()
    done = backfill(tier.spark, tier.endpoints, selection, first=rows[9].offset, last=rows[10].offset)
    assert (done.records, done.rows, done.restored) == (2, 2, 2)
    assert [row.seq_nr for row in tier.dump(topic)[1]["k0"]] == [9, 10]
    until_ms = rows[12].timestamp_ms + 1
    done = backfill(tier.spark, tier.endpoints, selection, since_ms=rows[3].timestamp_ms, until_ms=until_ms)
    assert done.restored == 8
    assert tier.dump(topic) == before


def test_an_empty_range_is_refused(tier: Tier) -> None:
    """K14: a range that ends before it begins is a mistake of the caller."""
    with pytest.raises(BadArgument):
        backfill(tier.spark, tier.endpoints, Selection(("none",)), first=5, last=4)
