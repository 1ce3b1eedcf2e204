"""Audit and back-fill, task by task, while something else happens to the topic: removal, growth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.pipeline.by_hand import Sql
from tests.pipeline.local_looks import Between, audit_here, backfill_here
from tests.pipeline.tier import dump_of
from tests.suites.journal_setting import replicate

from headrace.journal import JOURNAL_TOPIC, Journal, grow_topic, pass_verdict
from headrace.log import Log
from headrace.model import Event, NewRecord, TopicPartition, partition_of
from headrace.pipeline import Endpoints
from headrace.pipeline.audits import second_look
from headrace.pipeline.audits.journal_frames import HeadRowReader
from headrace.pipeline.audits.second_look import AuditTask
from headrace.pipeline.jobs.job_reports import AuditedPartition, BackfilledPartition
from headrace.pipeline.spark.process import close_all, log_of, run, store_of
from headrace.protocol import ACTION_HEADER
from headrace.protocol.headers import append_headers
from headrace.protocol.payloads import encode_json_payload
from headrace.store import JournalMeta, Store

TOPIC = "t"
KEYS = [f"k{n}" for n in range(12)]
T = TypeVar("T")


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[Endpoints]:
    yield Endpoints.of(f"embedded:{tmp_path}")
    close_all()


class Here:
    """Some places, and somebody with access to the store below Headrace."""

    topic = TOPIC

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints

    def on(self, use: Callable[[Log, Store], Awaitable[T]]) -> T:
        async def work() -> T:
            return await use(await log_of(self.endpoints), await store_of(self.endpoints))

        return run(work())

    def write(self, first: int, last: int, *, partitions: int | None = None) -> None:
        """Append events to all journals, and carry them into the store."""

        async def write(log: Log, store: Store) -> None:
            if partitions is not None:
                await log.admin.create(self.topic, partitions=partitions, config=JOURNAL_TOPIC)
            journal = Journal(log, store, self.topic, cache=None, lease_s=0.05)  # growth waits for it
            for n in range(first, last + 1):
                for id_ in KEYS:
                    await journal.append(id_, [Event(n, {"n": n})])
            for _ in range(2):  # behind a boundary partitions wait for one another
                await replicate(log, store, self.topic)

        self.on(write)

    def grow(self, partitions: int) -> None:
        self.on(lambda log, store: grow_topic(log, store.settings, self.topic, partitions=partitions, lease_s=0.0))

    def dump(self) -> object:
        return self.on(lambda _, store: dump_of(store, self.topic))

    def lose_rows(self) -> None:
        Sql(self).lose_rows(self.topic, KEYS)  # type: ignore[arg-type]

    def audit(
        self, *, repair: bool = False, between: Between | None = None
    ) -> tuple[list[AuditedPartition], list[dict[str, Any]]]:
        """Audit all partitions; returns their reports and the findings."""
        return audit_here(self.endpoints, self.topic, repair=repair, events_at_once=5, between=between)

    def backfill(self, *, between: Between | None = None, **asked: int) -> list[BackfilledPartition]:
        """Back-fill all partitions; returns their reports."""
        return backfill_here(self.endpoints, self.topic, between=between, **asked)

    def remove(self, before: int) -> None:
        """Remove the start of the log, as replication would."""
        self.on(lambda log, _: log.retention.truncate(TopicPartition(self.topic, 0), before=before))


@pytest.fixture
def here(endpoints: Endpoints) -> Here:
    return Here(endpoints)


def test_an_audit_goes_on_when_the_start_of_its_window_is_removed(here: Here) -> None:
    """K15: what replication removes meanwhile is in the store; the rest is judged, and every journal is looked at."""
    here.write(1, 3, partitions=1)
    (report,), findings = here.audit(between=lambda: here.remove(before=30))
    assert (findings, report.journals, report.first) == ([], len(KEYS), 30)


def test_journals_whose_records_were_all_removed_meanwhile_are_judged_too(here: Here) -> None:
    """K15: a head that somebody changed is found, though no record of the journal is left when its turn comes."""
    here.write(1, 3, partitions=1)
    Sql(here).change_head(TOPIC, "k0")  # type: ignore[arg-type]
    (report,), findings = here.audit(between=lambda: here.remove(before=36))
    assert report.journals == len(KEYS)
    assert {finding["id"] for finding in findings} == {"k0"}


def test_a_back_fill_goes_on_when_the_start_of_its_window_is_removed(here: Here) -> None:
    """K14: what is left of the range is applied, and the report says from where."""
    here.write(1, 3, partitions=1)
    before = here.dump()
    (report,) = here.backfill(between=lambda: here.remove(before=30))
    assert (report.first, report.last, report.records) == (30, 35, 6)
    assert here.dump() == before


def test_a_journal_that_moves_during_an_audit_is_not_taken_for_one_without_records(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K15: the topic grows between the first look and the second: the journal is left to the next audit."""
    here.write(1, 3, partitions=1)
    before = here.dump()
    moved = next(id_ for id_ in KEYS if partition_of(id_.encode(), 2) == 1)
    seen = AuditTask._look_again

    async def grow_first(task: AuditTask, log: Log, store: Store, suspects: list[str]) -> Any:
        if (await log.admin.describe(TOPIC)).partitions == 1:
            await grow_topic(log, store.settings, TOPIC, partitions=2, lease_s=0.0)
            await replicate(log, store, TOPIC)
        return await seen(task, log, store, suspects)

    monkeypatch.setattr(AuditTask, "_look_again", grow_first)
    monkeypatch.setattr(second_look, "_LOOK_AGAIN_S", 0.0)
    Sql(here).change_head(TOPIC, moved)  # type: ignore[arg-type]
    (report,), findings = here.audit(repair=True)
    assert (findings, report.busy) == ([], 1)
    reports, _ = here.audit(repair=True)
    assert [(each.findings, each.repaired) for each in reports] == [(0, 0), (1, 1)]
    assert here.dump() == before


def test_a_journal_that_moved_and_was_not_written_since_is_judged(here: Here) -> None:
    """K15: a topic grew twice and is quiet: of its new place a journal has nothing yet, and is not busy for that."""
    here.write(1, 3, partitions=2)
    here.grow(5)
    here.write(4, 6)
    here.grow(8)
    here.write(7, 6)  # nothing more, but replication passes the boundaries
    before = here.dump()
    here.lose_rows()
    reports, _ = here.audit(repair=True)
    assert [report.busy for report in reports] == [0] * 8
    assert sum(report.repaired for report in reports) == 6 * len(KEYS)
    assert here.dump() == before


def test_a_back_fill_restores_what_journals_left_where_they_were_before(here: Here) -> None:
    """K14: a topic grew twice: rows of records in the partitions that a journal has left come back too, and count."""
    here.write(1, 2, partitions=1)
    here.grow(2)
    here.write(3, 4)
    here.grow(5)
    here.write(5, 6)
    before = here.dump()
    here.lose_rows()
    reports = here.backfill()
    assert here.dump() == before
    assert sum(report.restored for report in reports) == 6 * len(KEYS)
    assert sum(report.records for report in reports) == 6 * len(KEYS)


def test_a_range_of_offsets_is_one_of_each_partition(here: Here) -> None:
    """K14: a record is within the range by its own partition's offset, also when its journal has moved since."""
    here.write(1, 2, partitions=1)
    here.grow(2)
    here.write(3, 4)
    here.lose_rows()
    reports = here.backfill(first=0, last=3)
    _, rows = here.dump()  # type: ignore[misc]
    found = sorted((row.partition, row.offset) for of_id in rows.values() for row in of_id)
    assert [offset for partition, offset in found if partition == 0] == [0, 1, 2, 3]
    assert [offset for partition, offset in found if partition == 1] == [0, 1, 2, 3]
    assert sum(report.restored for report in reports) == sum(report.records for report in reports) == 8


def test_a_held_journal_is_judged_by_the_record_that_holds_it(here: Here) -> None:
    """K15, E9: a record that looks like a Mark and can't be decoded holds its journal, until a verdict releases it."""
    here.write(1, 2, partitions=1)
    poison = NewRecord(TOPIC, b"k0", b"{}", ((ACTION_HEADER, b'{"mark":{}}'),), partition=0)

    async def hold(log: Log, store: Store) -> JournalMeta | None:
        await log.append([poison])
        await replicate(log, store, TOPIC)
        return await store.reader.meta(TOPIC, "k0")

    async def skip(log: Log, store: Store) -> JournalMeta | None:
        await pass_verdict(log, store, TOPIC, "k0", skip=True)
        await replicate(log, store, TOPIC)
        return await store.reader.meta(TOPIC, "k0")

    held = here.on(hold)
    assert held is not None
    assert held.held_from == 2 * len(KEYS)
    assert here.audit()[1] == []
    assert here.on(skip) is not None
    assert here.audit()[1] == []


def test_a_journal_that_a_foreign_producer_begins_meanwhile_is_no_finding(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K15: its first record is not in its key's partition, and is replicated after the log and before the heads."""
    here.write(1, 1, partitions=2)
    away = 1 - partition_of(b"foreign", 2)
    read_heads = HeadRowReader.__call__

    async def begin(log: Log, store: Store) -> None:
        headers = append_headers(1, 1, "json", None, None)
        await log.append([NewRecord(TOPIC, b"foreign", encode_json_payload(1, b"{}"), headers, partition=away)])
        await replicate(log, store, TOPIC)

    def begin_first(reader: HeadRowReader, part: Any) -> Any:
        here.on(begin)
        return read_heads(reader, part)

    monkeypatch.setattr(HeadRowReader, "__call__", begin_first)
    assert here.audit(repair=True)[1] == []


@pytest.mark.parametrize("is_poisoned_again", [False, True])
def test_a_verdict_on_a_record_that_has_left_the_log_is_no_finding(here: Here, is_poisoned_again: bool) -> None:
    """K15, E9: what it applied can't be known from the log that is left: repair and back-fill leave the journal."""
    here.write(1, 1, partitions=1)
    headers = append_headers(2, 2, "json", None, None)
    held = NewRecord(TOPIC, b"k0", encode_json_payload(2, b"{}"), headers, partition=0)
    poison = NewRecord(TOPIC, b"k0", b"{}", ((ACTION_HEADER, b'{"append":'),), partition=0)

    async def live(log: Log, store: Store) -> None:
        await log.append([poison, held, *([poison] if is_poisoned_again else []), held])
        await replicate(log, store, TOPIC)
        await log.retention.truncate(TopicPartition(TOPIC, 0), before=len(KEYS) + 2)
        for _ in range(1 + is_poisoned_again):
            await pass_verdict(log, store, TOPIC, "k0", skip=True)
            await replicate(log, store, TOPIC)

    here.on(live)
    before = here.dump()
    assert here.audit(repair=True)[1] == []
    here.backfill()
    assert here.dump() == before
