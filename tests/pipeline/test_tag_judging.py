"""What an audit says of views by tag, without Spark: its tasks are run here, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.pipeline.local_looks import audit_here
from tests.pipeline.tag_by_hand import TagSql
from tests.pipeline.test_backfill import live
from tests.pipeline.test_tag_audit import Named, rows_of
from tests.suites.journal_setting import replicate
from tests.suites.tags_filling import Filling
from tests.suites.tags_setting import Scene as TagScene

from headrace.config import HeadraceSettings
from headrace.errors import TagsInUse
from headrace.journal import JOURNAL_TOPIC, Journal, grow_topic
from headrace.log import Log
from headrace.model import Event, TopicPartition
from headrace.pipeline import Endpoints, Finding, FindingKind
from headrace.pipeline.jobs.job_reports import layout_of
from headrace.pipeline.spark.process import close_all, log_of, run, store_of, tag_writer_of
from headrace.store import Store, TagRow
from headrace.tags import TagRepair, TagTrim, TagWriter
from headrace.tags.registry import REGISTRY_KEY
from headrace.testing.crashes import SimulatedCrash, crash_at

TOPIC = "audited"
FILLED = "filled"
STEPS = ("tags.before-progress", "tags.after-progress", "replicate.after-views", "replicate.before-meta",
         "replicate.after-key", "replicate.before-offset")  # fmt: skip


class Scene:
    """A folder, and what is done there."""

    def __init__(self, folder: Path, **tags: object) -> None:
        fast = {"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}, "tags": tags}
        self.is_embedded = True
        self.folder = folder
        self.endpoints = Endpoints.of(f"embedded:{folder}", settings=HeadraceSettings.model_validate(fast))

    async def open(self) -> tuple[Log, Store, Journal]:
        log, store = await log_of(self.endpoints), await store_of(self.endpoints)
        return log, store, Journal(log, store, TOPIC, cache=None, partitions=4, lease_s=0.05)

    async def replicate(self) -> None:
        log, store, _ = await self.open()
        for _ in range(2):  # what lies behind a boundary is taken in the second round
            await replicate(log, store, TOPIC, views=TagWriter(store, self.endpoints.settings_of_tags(), log=log))

    async def audit(self, *, repair: bool = False, events_at_once: int = 20_000) -> list[Finding]:
        _, found = await asyncio.to_thread(
            audit_here, self.endpoints, TOPIC, repair=repair, events_at_once=events_at_once
        )
        return [msgspec.convert({k: v for k, v in row.items() if k != "count"}, Finding) for row in found]

    async def rows(self, tag: str) -> list[TagRow]:
        return await rows_of((await self.open())[1], tag)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Give a folder; the loop that the pipeline's parts share is closed afterwards."""
    yield Scene(tmp_path)
    close_all()


def named(findings: list[Finding]) -> Named:
    return {(found.id, found.kind, found.seq_nr, found.tag) for found in findings}


@pytest.mark.parametrize("is_grown", [False, True])
def test_what_replication_left_is_no_finding(scene: Scene, is_grown: bool) -> None:
    """K15: random histories, replicators that die at every step, a topic that grows: the views are right."""

    async def work() -> None:
        log, store, journal = await scene.open()
        for seed, step in enumerate(STEPS):
            await live(journal, seed=seed, steps=24)
            if is_grown and seed == 2:
                await grow_topic(log, store.settings, TOPIC, partitions=6, lease_s=0.01)
                journal = (await scene.open())[2]
            with crash_at(step, nth=2):
                try:
                    await scene.replicate()
                except SimulatedCrash:
                    await scene.replicate()
            assert [str(found) for found in await scene.audit()] == []
        assert await scene.rows("a")
        assert await scene.audit(events_at_once=3) == []

    run(work())


def test_every_row_that_is_lost_or_changed_is_named_and_repaired(scene: Scene) -> None:
    """K15: one by one, with deletes and a purge in the history: what is named is what was done, and comes back."""

    async def work() -> None:
        _, _, journal = await scene.open()
        await live(journal, seed=3, steps=40)
        await scene.replicate()
        rows, operator = await scene.rows("a"), TagSql(scene)  # type: ignore[arg-type]
        assert len({row.pid for row in rows}) > 2
        for number, row in enumerate(rows):
            kind = FindingKind.TAG_ROW_MISSING if number % 2 else FindingKind.TAG_ROW_CHANGED
            (operator.remove if number % 2 else operator.change)(row)
            expected = {(row.pid, kind, row.seq_nr, "a")}
            assert named(await scene.audit()) == expected
            repaired = await scene.audit(repair=True)
            assert named(repaired) == expected
            assert all(found.repaired for found in repaired)
            assert await scene.rows("a") == rows
        assert await scene.audit() == []

    run(work())


def test_a_row_that_can_not_be_decoded_is_named_and_repaired(scene: Scene) -> None:
    """K15: the audit is what the error of such a row tells to run, so it must get past the row."""

    async def work() -> None:
        _, store, journal = await scene.open()
        await journal.append("k", [Event(n, {"n": n}, ("a",)) for n in (1, 2, 3)])
        await scene.replicate()
        rows = await scene.rows("a")
        await store.tags.views.write([msgspec.structs.replace(rows[1], payload=b"{", metadata="no JSON")])
        expected = {("k", FindingKind.TAG_ROW_CHANGED, 2, "a")}
        assert named(await scene.audit()) == expected
        repaired = await scene.audit(repair=True)
        assert named(repaired) == expected
        assert all(found.repaired for found in repaired)
        assert await scene.rows("a") == rows

    run(work())


def test_rows_that_were_trimmed_are_not_missed(tmp_path: Path) -> None:
    """K15: an audit misses nothing where old buckets were removed; above them a row that is lost is found and repaired,
    with the number it had."""
    scene = Scene(tmp_path, bucket="MINUTE")

    async def work() -> None:
        log, store, _ = await scene.open()
        past = TagScene(log, store, bucket="MINUTE")
        past.topics.append(TOPIC)
        await log.admin.create(TOPIC, partitions=4, config=JOURNAL_TOPIC)
        for n in range(1, 7):
            events = [Event(n, {"n": n}, ("a",))]
            await past.append_events("k", events, at_ms=past.now_ms - (60 - n) * 60_000)
        await scene.replicate()
        rows = await scene.rows("a")
        trim = TagTrim(log, store, scene.endpoints.settings_of_tags())
        assert await trim.before("a", datetime.fromtimestamp(rows[3].bucket_ms / 1000, UTC)) == 3
        assert await scene.audit(repair=True) == []
        assert await scene.rows("a") == rows[3:]
        TagSql(scene).remove(rows[4])  # type: ignore[arg-type]
        repaired = await scene.audit(repair=True)
        assert named(repaired) == {("k", FindingKind.TAG_ROW_MISSING, 5, "a")}
        assert all(found.repaired for found in repaired)
        assert [row.number for row in await scene.rows("a")] == [4, 5, 6]
        await store.tags.views.write(rows[:1])  # a late writer
        assert await scene.audit() == []

    run(work())
    close_all()


def test_a_log_that_was_cut_tells_enough(scene: Scene) -> None:
    """K15: the numbers before the log's start are unknown; rows that are there tell them, and what is lost is found."""

    async def work() -> None:
        log, _, journal = await scene.open()
        for n in range(1, 11):
            await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, ("a",))]) for key in range(4)))
        await scene.replicate()
        rows = await scene.rows("a")
        cut = {TopicPartition(TOPIC, row.partition): row.offset for row in rows if row.seq_nr == 6}
        for at, offset in cut.items():
            await log.retention.truncate(at, before=offset)
        assert await scene.audit() == []
        lost = next(row for row in rows if row.seq_nr == 9)
        TagSql(scene).remove(lost)  # type: ignore[arg-type]
        added = msgspec.structs.replace(lost, number=77, seq_nr=77)
        TagSql(scene).add(added)  # type: ignore[arg-type]
        expected = {
            (lost.pid, FindingKind.TAG_ROW_MISSING, 9, "a"),
            (lost.pid, FindingKind.TAG_ROW_ADDED, 77, "a"),
        }
        assert named(await scene.audit(repair=True)) == expected
        assert await scene.rows("a") == rows
        assert await scene.audit() == []

    run(work())


@pytest.mark.parametrize("is_begun_again", [False, True])
def test_rows_of_a_journal_that_was_purged_stay_though_the_log_was_cut(scene: Scene, is_begun_again: bool) -> None:
    """K15, T9: no row of the journal says any more which appends counted; those with rows in views did."""

    async def work() -> None:
        log, _, journal = await scene.open()
        first = await journal.append("old", [Event(1, 1, ("a",))])
        await journal.append("old", [Event(2, 2, ("a",)), Event(3, 3, ("a", "b"))])
        await journal.append("old", [Event(4, 4, ("b",))])
        await journal.purge("old")
        if is_begun_again:
            await journal.append("old", [Event(n, n, ("a",)) for n in range(1, 6)])
        await scene.replicate()
        await log.retention.truncate(TopicPartition(TOPIC, first.partition), before=first.offset + 1)
        before = [await scene.rows(tag) for tag in "ab"]
        assert [str(found) for found in await scene.audit()] == []
        await scene.audit(repair=True)
        assert [await scene.rows(tag) for tag in "ab"] == before

    run(work())


def test_an_append_that_did_not_count_gets_no_row_though_the_log_was_cut(scene: Scene) -> None:
    """K15, T9: the journal's rows were purged, and only the views can tell that the append came too late."""

    async def work() -> None:
        log, _, journal = await scene.open()
        first = await journal.append("old", [Event(n, n, ("a",)) for n in range(1, 6)])
        await (await scene.open())[2].append("old", [Event(2, "void", ("a",))])
        await journal.append("old", [Event(6, 6, ("a",))])
        await journal.delete("old", to=1)
        await journal.purge("old")
        await scene.replicate()
        await log.retention.truncate(TopicPartition(TOPIC, first.partition), before=first.offset + 1)
        rows = await scene.rows("a")
        assert [row.seq_nr for row in rows] == [1, 2, 3, 4, 5, 6]
        assert [str(found) for found in await scene.audit()] == []
        await scene.audit(repair=True)
        assert await scene.rows("a") == rows
        TagSql(scene).remove(rows[-1])  # type: ignore[arg-type]
        assert named(await scene.audit()) == {("old", FindingKind.TAG_ROW_MISSING, 6, "a")}

    run(work())


@pytest.mark.parametrize("is_grown_first", [True, False])
def test_a_tag_that_was_filled_is_judged_by_the_cuts_of_its_own_partitions(scene: Scene, is_grown_first: bool) -> None:
    """FT11: journals that moved before a fill, or after it: nothing is wrong with what the fill left."""

    async def work() -> None:
        log, store, journal = await scene.open()
        for n in range(1, 5):
            await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, ())]) for key in range(12)))
        await scene.replicate()
        if is_grown_first:
            await grow_topic(log, store.settings, TOPIC, partitions=7, lease_s=0.01)
        await _fill(log, store)
        if not is_grown_first:
            await grow_topic(log, store.settings, TOPIC, partitions=7, lease_s=0.01)
        journal = (await scene.open())[2]
        await asyncio.gather(*(journal.append(f"k{key}", [Event(5, {}, (FILLED,))]) for key in range(12)))
        await scene.replicate()
        assert len(await scene.rows(FILLED)) == 36
        assert [str(found) for found in await scene.audit()] == []

    run(work())


def test_a_repair_says_repaired_only_where_queries_give_all_again(scene: Scene) -> None:
    """FT12: numbers were noted at a place that the log has not come to, so that later events got none.

    No number is given twice, nothing is said to be repaired as long as a query lacks events, and the next audit is not
    clean either.
    """

    async def work() -> None:
        log, store, journal = await scene.open()
        for n in range(1, 5):
            await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, ())]) for key in range(6)))
        await scene.replicate()
        await _fill(log, store)
        for key in range(3):
            known = (await store.tags.numbers.of(TOPIC, f"k{key}"))[FILLED]
            await store.tags.numbers.write([msgspec.structs.replace(known, offset=known.offset + 500)])
        await asyncio.gather(*(journal.append(f"k{key}", [Event(5, {}, (FILLED,))]) for key in range(6)))
        await scene.replicate()
        found = await scene.audit(repair=True)
        assert {(each.id, each.kind) for each in found} == {
            (f"k{key}", kind)
            for key in range(3)
            for kind in (FindingKind.TAG_ROW_MISSING, FindingKind.TAG_NUMBER_CHANGED)
        }
        rows = await scene.rows(FILLED)
        assert len({(row.pid, row.number) for row in rows}) == len(rows) == 15
        assert not any(each.repaired for each in found)
        assert named(await scene.audit()) == named(found)

    run(work())


def test_what_a_fill_counted_is_counted_on_by_a_repair(scene: Scene) -> None:
    """FT12: all rows behind the cut and the numbering are lost: they come back with the numbers after the fill's."""

    async def work() -> None:
        log, store, journal = await scene.open()
        for n in range(1, 5):
            await asyncio.gather(*(journal.append(f"k{key}", [Event(n, {"n": n}, ())]) for key in range(6)))
        await scene.replicate()
        await _fill(log, store)
        await asyncio.gather(*(journal.append(f"k{key}", [Event(5, {}, (FILLED,))]) for key in range(6)))
        await scene.replicate()
        rows, operator = await scene.rows(FILLED), TagSql(scene)  # type: ignore[arg-type]
        for row in rows:
            if row.seq_nr == 5:
                operator.remove(row)
                operator.remove_number(row)
        found = await scene.audit(repair=True)
        assert {each.id for each in found} == {f"k{key}" for key in range(6)}
        assert all(each.repaired for each in found)
        assert await scene.rows(FILLED) == rows
        assert await scene.audit() == []

    run(work())


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_was_removed_on_purpose_is_no_finding(scene: Scene, is_lost: bool) -> None:
    """FT5: rows that an operator removed, or that a rebuild could not bring back, are not missed; later losses are."""

    async def work() -> None:
        log, store, journal = await scene.open()
        await asyncio.gather(*(_write_all(journal, f"k{key}") for key in range(4)))
        await asyncio.gather(*(journal.delete(f"k{key}", to=2) for key in range(4)))
        await scene.replicate()
        repair = TagRepair(log, store, scene.endpoints.settings_of_tags())
        if is_lost:
            TagSql(scene).empty()  # type: ignore[arg-type]
            await repair.rebuild_all()
        else:
            await repair.delete(TOPIC, "k1", "a")
        await asyncio.gather(*(journal.append(f"k{key}", [Event(4, {}, ("a",))]) for key in range(4)))
        await scene.replicate()
        rows = await scene.rows("a")
        assert [str(found) for found in await scene.audit()] == []
        lost = next(row for row in rows if row.pid == "k1" and row.seq_nr == 4)
        TagSql(scene).remove(lost)  # type: ignore[arg-type]
        repaired = await scene.audit(repair=True)
        assert named(repaired) == {("k1", FindingKind.TAG_ROW_MISSING, 4, "a")}
        assert all(found.repaired for found in repaired)
        assert await scene.rows("a") == rows

    run(work())


@pytest.mark.parametrize("is_told", [True, False])
def test_a_repair_with_other_settings_brings_no_redacted_payload_back(scene: Scene, is_told: bool) -> None:
    """FT13: the log still has what was deleted and redacted; an auditor that was not told of the policy follows it.

    Where the store was not told either, the rows that say they are redacted stay so.
    """
    private = Scene(scene.folder, redact=["a"])

    async def work() -> None:
        _, store, journal = await scene.open()
        await asyncio.gather(*(_write_all(journal, f"k{key}") for key in range(4)))
        await private.replicate()
        await asyncio.gather(*(journal.delete(f"k{key}", to=2) for key in range(4)))
        await private.replicate()
        rows, operator = await scene.rows("a"), TagSql(scene)  # type: ignore[arg-type]
        assert [row.payload is None for row in rows if row.is_redacted] == [True] * 8
        if not is_told:
            await _forget_policy(store)
        assert await scene.audit() == []
        await scene.audit(repair=True)
        assert await scene.rows("a") == rows
        changed = next(row for row in rows if row.is_redacted)
        operator.change(changed)
        lost = next(row for row in rows if row.is_redacted and row.pid != changed.pid)
        if is_told:
            operator.remove(lost)
        repaired = await scene.audit(repair=True)
        assert {found.id for found in repaired} == ({changed.pid, lost.pid} if is_told else {changed.pid})
        assert all(found.repaired for found in repaired)
        assert await scene.rows("a") == rows

    run(work())


def test_a_process_with_tags_disabled_follows_the_store_or_is_refused(scene: Scene) -> None:
    """FT7: its audit looks at the views that the store has, and it does not replicate past them."""
    without = Scene(scene.folder, enabled=False)

    async def work() -> None:
        log, store, journal = await scene.open()
        await _write_all(journal, "k")
        await scene.replicate()
        rows = await scene.rows("a")
        TagSql(scene).remove(rows[1])  # type: ignore[arg-type]
        assert named(await without.audit()) == {("k", FindingKind.TAG_ROW_MISSING, 2, "a")}
        views = await tag_writer_of(without.endpoints)
        with pytest.raises(TagsInUse):
            await views.open_topic(await layout_of(log, store, TOPIC))

    run(work())


async def _write_all(journal: Journal, id_: str) -> None:
    for n in range(1, 4):
        await journal.append(id_, [Event(n, {"secret": n}, ("a",))])


async def _forget_policy(store: Store) -> None:
    """Leave the facts as a version left them that kept the policy in the settings of processes."""
    stored = await store.settings.get(REGISTRY_KEY)
    assert stored is not None
    facts = {name: value for name, value in msgspec.json.decode(stored).items() if name != "redact"}
    assert await store.settings.put(REGISTRY_KEY, msgspec.json.encode(facts).decode(), expected=stored)


async def _fill(log: Log, store: Store) -> None:
    """Give a tag to the even events of history."""
    tagged = TagScene(log, store)
    tagged.tag, tagged.topics = FILLED, [TOPIC]
    await Filling(tagged).all()
