"""Journals whose ids, tags and payloads are anything an application may write, as tables and in SQL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tests.pipeline.tier import Tier
from tests.suites.journal_setting import replicate

from headrace.journal import Journal
from headrace.log import Log
from headrace.model import Event
from headrace.pipeline import Selection, journal_frame, meta_frame, query
from headrace.store import Store

pytestmark = pytest.mark.timeout(300)

IDS = [
    *("it's", 'say "x"', "''", "two\nlines", "tab\tand\rreturn", "back\\slash\\", "\\n", "`key`", "-- no comment"),
    *(
        "/* nor this */",
        "%s {} $x ${y}",
        " blanks ",
        "ünï ☃ 𝒳",
        "e\u0301",
        "é",
        "null",
        "NULL",
        "1",
        "x" * 3000,
        "\x7f\x01",
    ),
]
TAGS = ("it's", 'say "x"', "two\nlines", "back\\slash", "☃", ",", "[]")
PAYLOADS: list[Any] = [
    b"",
    "",
    {},
    [],
    None,
    b"\x00\xff",
    "\x00 '\"\\\n",
    {"a'b": 'c"d\n'},
    "x" * 700_000,
    b"\x01" * 2_000_000,
]


@pytest.fixture
def odd(tier: Tier, topic: str) -> str:
    """Return a topic of odd journals: some stored, some in the log only, some deleted in part, one purged."""

    async def fill(journal: Journal) -> None:
        for id_ in IDS:
            await journal.append(id_, [Event(1, {"id": id_}, TAGS), Event(2, id_)])
        for nr, payload in enumerate(PAYLOADS, 1):
            await journal.append("payloads", [Event(nr, payload)])
        await journal.delete("it's", to=1)
        await journal.purge("''")

    async def go_on(journal: Journal) -> None:
        await journal.append("two\nlines", [Event(3, b"")])
        await journal.delete('say "x"', to=2)
        await journal.purge("`key`")

    async def take_more(log: Log, _store: Store) -> None:
        config = (await log.admin.describe(topic)).config
        await log.admin.configure(topic, msgspec.structs.replace(config, max_record_bytes=4_000_000))

    tier.with_journal(topic, lambda journal: journal.append("first", [Event(1, None)]), partitions=3)
    tier.on(take_more)
    tier.with_journal(topic, fill)
    tier.on(lambda log, store: replicate(log, store, topic))
    tier.with_journal(topic, go_on)
    return topic


def expected() -> dict[str, list[int]]:
    living = {id_: [1, 2] for id_ in IDS}
    living |= {"it's": [2], "two\nlines": [1, 2, 3]}
    return {id_: numbers for id_, numbers in living.items() if id_ not in ("''", "`key`", 'say "x"')}


def literal(text: str) -> str:
    """Return text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r") + "'"


def asked(spark: Any, tier: Tier, topic: str, statement: str) -> list[Any]:
    """Return the answer to a statement over the topic's journals."""
    return query(spark, tier.endpoints, statement, Selection((topic,))).collect()


def test_ids_of_any_kind_are_found(tier: Tier, odd: str) -> None:
    """K5, FP1: at once and one by one, by frame and by SQL, in a new session; ids and tags come back as written."""
    spark = tier.spark.newSession()
    frame = journal_frame(spark, tier.endpoints, Selection((odd,)))
    rows = (
        frame.where(~F.col("key").isin("payloads", "first")).select("key", "seq_nr", "tags", "payload_text").collect()
    )

    found: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row.seq_nr):
        found.setdefault(row.key, []).append(row.seq_nr)
    assert found == expected()
    heads = meta_frame(spark, tier.endpoints, Selection((odd,))).select("key", "is_purged").collect()
    assert {(row.key, row.is_purged) for row in heads} >= {("''", True), ("it's", False), ("`key`", False)}
    assert {tuple(row.tags) for row in rows if row.seq_nr == 1} == {TAGS}
    assert {row.key for row in rows if row.seq_nr == 2 and row.payload_text == row.key} == set(found)
    listed = ", ".join(literal(id_) for id_ in IDS)
    counted = query(
        spark,
        tier.endpoints,
        f"select key, count(*) n from journal where key in ({listed}) group by key",
        Selection((odd,)),
    )
    assert {row.key: row.n for row in counted.collect()} == {id_: len(numbers) for id_, numbers in found.items()}
    for id_ in ("it's", "back\\slash\\", "-- no comment", "two\nlines", "`key`"):
        one = query(
            spark,
            tier.endpoints,
            f"select seq_nr from journal where key = {literal(id_)} order by 1",
            Selection((odd,)),
        )
        assert [row.seq_nr for row in one.collect()] == found.get(id_, [])


def test_payloads_of_any_kind_come_back(tier: Tier, odd: str) -> None:
    """K5: empty ones, none, control characters and two megabytes, each as the journal's own read gives it."""

    async def read(journal: Journal) -> list[Any]:
        return [event.payload async for event in journal.read("payloads")]

    rows = journal_frame(tier.spark.newSession(), tier.endpoints, Selection((odd,))).where("key = 'payloads'")
    found = rows.orderBy("seq_nr").select("payload_type", "payload", "payload_text", F.length("payload").alias("n"))
    shown = found.collect()
    written = tier.with_journal(odd, read)

    assert written == PAYLOADS
    assert [row.payload_type for row in shown] == [
        *("binary", "text", "json", "json", None, "binary", "text", "json", "text", "binary")
    ]
    for row, payload in zip(shown, written, strict=True):
        if isinstance(payload, bytes):
            assert bytes(row.payload) == payload
        elif isinstance(payload, str):
            assert row.payload_text == payload
    assert (shown[0].n, shown[1].payload_text, shown[4].payload) == (0, "", None)
    assert shown[-1].n == 2_000_000
