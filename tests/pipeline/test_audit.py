"""Audit and repair, by the shipped job in a Spark session."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.pipeline.by_hand import Operator, Sql, operator_of
from tests.pipeline.test_backfill import live
from tests.pipeline.tier import Tier, append_all
from typer.testing import CliRunner

from headrace.cli.pipelines import app
from headrace.journal import grow_topic
from headrace.log import Log
from headrace.model import TopicPartition
from headrace.pipeline import AuditReport, Endpoints, FindingKind, Selection, audit
from headrace.store import EventRow, Store
from headrace.testing.plugin import Size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

CRASHES = ("replicate.before-meta", "replicate.before-deletions", "replicate.after-key", "replicate.before-offset")


def audited(tier: Tier, topic: str, *, repair: bool = False, events_at_once: int | None = None) -> AuditReport:
    report = audit(tier.spark, tier.endpoints, Selection((topic,)), repair=repair, events_at_once=events_at_once)
    report.close()
    return report


def named(report: AuditReport) -> set[tuple[str, FindingKind, int | None]]:
    return {(found.id, found.kind, found.seq_nr) for found in report.findings}


@pytest.fixture
def operator(tier: Tier) -> Iterator[Operator]:
    made = operator_of(tier)
    yield made
    made.close()


def test_random_histories_with_crashes_end_in_what_the_log_says(tier: Tier, topic: str, size: Size) -> None:
    """E17, K15: append, mark, delete, purge; workers die at each step of the writing; then the audit is clean."""
    audit_each = size(len(CRASHES), 1)  # a later run repairs nothing: what an earlier crash broke is seen at the end
    for seed, point in enumerate(CRASHES):
        tier.with_journal(topic, lambda journal, seed=seed: live(journal, seed=seed + 10, steps=24))
        tier.arm(point, nth=random.Random(seed).randint(1, 3))
        tier.replicate(topic)
        assert tier.disarm(), f"nobody passed {point}"
        if (seed + 1) % audit_each:
            continue
        report = audited(tier, topic)
        assert report.findings == [], [str(found) for found in report.findings]
        assert report.total("busy") == 0
    assert report.total("journals") == 6
    assert report.total("rows") > 0
    by_slices = audited(tier, topic, events_at_once=3)
    assert (by_slices.found, by_slices.total("rows")) == (0, report.total("rows"))
    assert tier.dump(topic) == tier.expected(topic)


def test_a_replicated_offset_beyond_the_log_is_no_clean_audit(
    spark: SparkSession, crash_file: Path, topic: str, tmp_path: Path
) -> None:
    """FP7: an offset past the log's end is named, also after a repair, which can't know what is right."""
    tier = Tier(
        spark, Endpoints.of(f"embedded:{tmp_path}"), crash_file
    )  # its own: queries by tag stop at such an offset
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 2), partitions=1)
    tier.apply(topic)
    at = TopicPartition(topic, 0)

    async def move(_: Log, store: Store) -> None:
        stored = await store.reader.replicated(at)
        assert stored is not None
        await store.writer.move_replicated(msgspec.structs.replace(stored, offset=900))

    tier.on(move)
    for repair in (False, True):
        report = audited(tier, topic, repair=repair)
        assert named(report) == {("", FindingKind.POINTER_CHANGED, None)}
        assert not report.is_clean


def test_what_was_done_by_hand_is_named_and_repaired(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: rows removed, changed or added, heads changed or added, are named by id and seq_nr, and repaired."""
    tier.with_journal(topic, lambda journal: append_all(journal, 6, 5))
    tier.with_journal(topic, lambda journal: journal.delete("k5", to=2))
    tier.apply(topic)
    before = tier.dump(topic)
    rows = before[1]
    far = msgspec.structs.replace(rows["k1"][4], seq_nr=10_001, segment=1, timestamp_ms=5)
    operator.add(topic, "k1", far)
    operator.add_head(topic, "nobody")
    expected = {("k1", FindingKind.ROW_ADDED, 10_001), ("nobody", FindingKind.META_ADDED, None)}
    if isinstance(operator, Sql):
        expected |= edit(operator, topic, rows)
    found = audited(tier, topic)
    assert named(found) == expected
    assert not found.is_clean
    assert found.counts[FindingKind.META_ADDED] == 1
    repaired = audited(tier, topic, repair=True)
    assert named(repaired) == expected
    assert repaired.is_clean, [str(each) for each in repaired.findings if not each.repaired]
    assert audited(tier, topic).found == 0
    assert tier.with_journal(topic, lambda journal: journal.pointer("nobody")) is None
    after = tier.dump(topic)
    assert {id_: meta for id_, meta in after[0].items() if id_ != "nobody"} == before[0]
    assert {id_: found for id_, found in after[1].items() if id_ != "nobody"} == rows
    tier.with_journal(topic, lambda journal: journal.purge("k2"))
    tier.apply(topic)
    assert tier.dump(topic)[1]["k2"] == []


def edit(operator: Sql, topic: str, rows: Mapping[str, Sequence[EventRow]]) -> set[tuple[str, FindingKind, int | None]]:
    """Do what only shows in the embedded store: on Cassandra a plain edit of what was written has no effect."""
    operator.change(topic, "k0", rows["k0"][2])
    operator.add(topic, "k5", msgspec.structs.replace(rows["k5"][0], seq_nr=1, timestamp_ms=5))
    operator.remove(topic, "k2", rows["k2"][3])
    operator.change_head(topic, "k3")
    return {
        ("k0", FindingKind.ROW_CHANGED, 3),
        ("k5", FindingKind.ROW_ADDED, 1),
        ("k2", FindingKind.ROW_MISSING, 4),
        ("k3", FindingKind.META_CHANGED, None),
    }


def test_what_can_not_be_repaired_is_said(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: rows deleted or changed with replication's own write times are named, and that they were not repaired."""
    if tier.is_embedded:
        pytest.skip("only Cassandra keeps the times of what people do")
    tier.with_journal(topic, lambda journal: append_all(journal, 2, 3))
    tier.apply(topic)
    rows = tier.dump(topic)[1]
    operator.change(topic, "k0", rows["k0"][0])
    operator.remove(topic, "k1", rows["k1"][1])
    report = audited(tier, topic, repair=True)
    assert named(report) == {("k0", FindingKind.ROW_CHANGED, 1), ("k1", FindingKind.ROW_MISSING, 2)}
    assert [found.repaired for found in report.findings] == [False, False]
    assert not report.is_clean


def test_rows_that_were_lost_come_back(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: a store that lost all rows of a topic, its heads still there, has them back after a repair."""
    tier.with_journal(topic, lambda journal: append_all(journal, 5, 4))
    tier.apply(topic)
    before = tier.dump(topic)
    operator.lose_rows(topic, before[0])
    assert sum(len(rows) for rows in tier.dump(topic)[1].values()) == 0
    report = audited(tier, topic, repair=True)
    assert (report.found, report.repaired, report.counts) == (20, 20, {FindingKind.ROW_MISSING: 20})
    assert tier.dump(topic) == before


def test_a_log_that_was_cut_is_no_reason_for_alarm(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: with the log's start gone nothing that is right is reported, and what was done within the window is."""
    for seed in range(3):
        tier.with_journal(topic, lambda journal, seed=seed: live(journal, seed=seed + 30), partitions=2)
    tier.with_journal(topic, lambda journal: append_all(journal, 1, 1, first=900), partitions=2)
    tier.apply(topic)
    for partition in range(2):
        at = TopicPartition(topic, partition)
        end = tier.on(lambda log, _, at=at: log.bounds(at)).end
        tier.on(lambda log, _, at=at, end=end: log.retention.truncate(at, before=max(0, end - 12)))
    report = audited(tier, topic)
    assert report.findings == [], [str(found) for found in report.findings]
    assert max(partition.first for partition in report.partitions) > 0
    row = tier.dump(topic)[1]["k0"][-1]
    assert row.seq_nr == 900
    operator.change(topic, "k0", row)
    assert named(audited(tier, topic)) == {("k0", FindingKind.ROW_CHANGED, 900)}
    operator.lose_rows(topic, ["k0"])
    lost = audited(tier, topic, repair=True)
    assert ("k0", FindingKind.ROW_MISSING, 900) in named(lost)
    assert [found.repaired for found in lost.findings if found.seq_nr == 900] == [True]


def test_journals_that_moved_are_followed(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: after a topic grew, journals are compared with their records of both partitions."""
    if not tier.is_embedded:
        pytest.skip("growing waits for a lease of writers; once is enough")
    tier.with_journal(topic, lambda journal: live(journal, keys=9, steps=40, seed=77), partitions=2)
    tier.apply(topic)
    tier.on(lambda log, store: grow_topic(log, store.settings, topic, partitions=5, lease_s=0.1))
    tier.with_journal(topic, lambda journal: live(journal, keys=9, steps=40, seed=78), partitions=5)
    tier.replicate(topic)
    report = audited(tier, topic)
    assert report.findings == [], [str(found) for found in report.findings]
    assert report.total("journals") == len(tier.dump(topic)[0])
    moved = _moved(tier, topic)
    operator.remove(topic, *moved)
    assert named(audited(tier, topic)) == {(moved[0], FindingKind.ROW_MISSING, moved[1].seq_nr)}
    assert audited(tier, topic, repair=True).is_clean
    assert audited(tier, topic).found == 0


def _moved(tier: Tier, topic: str) -> tuple[str, EventRow]:
    metas, rows = tier.dump(topic)
    for id_, found in rows.items():
        for row in found:
            if row.partition != metas[id_].partition:
                return id_, row
    raise AssertionError("no journal moved")


def test_replication_at_work_is_no_finding(tier: Tier, topic: str) -> None:
    """K15: an audit while replication runs reports nothing."""
    tier.with_journal(topic, lambda journal: live(journal, steps=10))
    with tier.replicating(topic, max_records=9):
        for seed in range(3):
            tier.with_journal(topic, lambda journal, seed=seed: live(journal, seed=seed + 50, steps=20))
            report = audited(tier, topic)
            assert report.findings == [], [str(found) for found in report.findings]
    tier.replicate(topic)
    assert audited(tier, topic).found == 0


def command(endpoints: Endpoints, *words: str) -> tuple[int, str]:
    where = ["--log", endpoints.log, *([] if endpoints.log == endpoints.store else ["--store", endpoints.store])]
    done = CliRunner().invoke(app, [*words, *where])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_the_command_ends_with_one_until_all_is_repaired(tier: Tier, topic: str, operator: Operator) -> None:
    """K15: `audit` names what is wrong and exits 1; with `--repair` it exits 0; purge-expired and backfill answer."""
    tier.with_journal(topic, lambda journal: append_all(journal, 3, 3))
    tier.apply(topic)
    assert command(tier.endpoints, "audit", "--topics", topic)[0] == 0
    operator.lose_rows(topic, ["k1"])
    code, text = command(tier.endpoints, "audit", "--topics", topic)
    assert code == 1
    assert "k1" in text
    assert "row missing" in text
    code, text = command(tier.endpoints, "audit", "--topics", topic, "--json")
    found = json.loads(text)
    assert code == 1
    assert {("k1", 1), ("k1", 2), ("k1", 3)} <= {(each["id"], each["seq_nr"]) for each in found["findings"]}
    code, text = command(tier.endpoints, "audit", "--topics", topic, "--repair")
    assert (code, f"{found['found']} repaired" in text) == (0, True)
    code, text = command(tier.endpoints, "backfill", "--topics", topic, "--json")
    assert (code, json.loads(text)["restored"]) == (0, 0)
    code, text = command(tier.endpoints, "purge-expired", "--topics", topic, "--now", "2100-01-01T00:00:00")
    assert (code, text.strip()) == (0, "purged 0 of 3 journals")
