"""One frame or table used several times in a statement: every use gets its own rows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipeline.tier import Tier, append_all
from tests.suites.journal_setting import replicate

from headrace.journal import Journal
from headrace.model import Event
from headrace.pipeline import Selection, journal_frame, meta_frame, pointer_frame, query

pytestmark = pytest.mark.timeout(300)

COUNTS = {"k0": 5, "k1": 7, "k2": 3}


@pytest.fixture
def journals(tier: Tier, topic: str) -> str:
    """Return a topic with three journals of different lengths, half of them replicated."""

    async def fill(journal: Journal) -> None:
        for key, count in COUNTS.items():
            await journal.append(key, [Event(n, {"n": n}) for n in range(1, count + 1)])

    tier.with_journal(topic, lambda journal: append_all(journal, 1, 1), partitions=3)
    tier.with_journal(topic, lambda journal: journal.purge("k0"))
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, fill)
    return topic


# Each statement uses one table twice, with filters that differ; beside it, what it must give.
STATEMENTS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "scalar subqueries": (
        """select (select count(*) from journal where key = 'k0'), (select count(*) from journal where key = 'k1')""",
        [(5, 7)],
    ),
    "union": (
        """select key, seq_nr from journal where key = 'k0' and seq_nr = 5 union all
           select key, seq_nr from journal where key = 'k1' and seq_nr = 1 order by 1""",
        [("k0", 5), ("k1", 1)],
    ),
    "self-join": (
        """select a.key, count(*) from journal a join journal b on a.seq_nr = b.seq_nr
           where a.key = 'k1' and b.key = 'k2' group by a.key""",
        [("k1", 3)],
    ),
    "in": (
        """select key, count(*) from journal where seq_nr in (select seq_nr from journal where key = 'k1')
           group by key order by key""",
        [("k0", 5), ("k1", 7), ("k2", 3)],
    ),
    "with": (
        """with late as (select * from journal where seq_nr > 4)
           select (select count(*) from late), (select count(*) from journal)""",
        [(4, 15)],
    ),
    "all beside one": (
        """select a.n, b.n from (select count(*) as n from journal) a,
                                (select count(*) as n from journal where key='k2') b""",
        [(15, 3)],
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_table_used_twice_gives_each_use_its_rows(tier: Tier, journals: str, name: str) -> None:
    """FP6: subqueries, self-joins, unions and CTEs over one table each see the rows that their own filter selects."""
    statement, expected = STATEMENTS[name]
    rows = query(tier.spark, tier.endpoints, statement, Selection((journals,))).collect()
    assert [tuple(row) for row in rows] == expected


def test_every_frame_can_be_used_twice(tier: Tier, journals: str) -> None:
    """FP6: frames of journals, heads and offsets answer two filters in one action, and in two, in any order."""
    spark, endpoints, selection = tier.spark, tier.endpoints, Selection((journals,))
    events = journal_frame(spark, endpoints, selection)
    both = events.where("key = 'k0'").union(events.where("key = 'k1'"))
    assert both.count() == COUNTS["k0"] + COUNTS["k1"]
    one = events.where("key = 'k1'")
    one.explain()
    assert events.where("key = 'k2'").count() == COUNTS["k2"]
    assert one.count() == COUNTS["k1"]
    tier.on(lambda log, store: replicate(log, store, journals))
    heads = meta_frame(spark, endpoints, selection)
    pairs = heads.where("key = 'k0'").alias("a").crossJoin(heads.where("key = 'k1'").alias("b"))
    assert [tuple(row) for row in pairs.selectExpr("a.seq_nr", "b.seq_nr").collect()] == [(5, 7)]
    offsets = pointer_frame(spark, endpoints)
    mine = offsets.where(f"topic = '{journals}'")
    nobody = offsets.where("topic = 'there is no such topic'")
    assert mine.union(nobody).count() == 3
    assert nobody.union(mine).count() == 3
