"""Copies that come back: from a checkpoint, from the log's start, after compaction, kills, lost and replaced topics."""

from __future__ import annotations

import asyncio
import math
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.state.scripted_log import ScriptedLog

from headrace.errors import (
    BadArgument,
    StateAhead,
    StateBroken,
    StateOffline,
    StateStale,
    TimedOut,
    WrongStateTopic,
)
from headrace.log import Log, open_log
from headrace.model import Batch, Bounds, Cleanup, NewRecord, TopicConfig, TopicPartition
from headrace.runtime import CRASH_AT_VARIABLE, BootMoment, BootTime, moment_of
from headrace.services import RunningService
from headrace.state import StatePartition, StateSpec
from headrace.state.metrics import APPLIED
from headrace.state.progress import (
    ChangelogProgress,
    Checkpoint,
    CompactionLimits,
    decode_checkpoint,
    encode_checkpoint,
)
from headrace.state.rocksdb import RocksDbStore
from headrace.testing.conformance.log_cleaning import QUICK_SEGMENTS
from headrace.testing.conformance.log_setting import eventually, read_all
from headrace.testing.processes import running

RETENTION_S = 1000
BRIEF = TopicConfig(tombstone_retention_ms=RETENTION_S * 1000, min_compaction_lag_ms=100_000)


def applied(spec: StateSpec[Any, Any]) -> float:
    return float(APPLIED.labels(spec.topic)._value.get())


async def everything(partition: StatePartition, spec: StateSpec[Any, Any]) -> list[tuple[Any, Any]]:
    return [item async for item in partition.state(spec).items()]


async def test_a_copy_reads_what_it_lacks_and_no_more(tier: Any) -> None:
    """S5: 4 appends, no checkpoint: 4 are replayed, the checkpoint is behind offset 3, 2 keys; reopened: 0."""
    spec = tier.spec()
    made = await tier.open(spec)
    await made.close()
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", b"4")):
        await tier.log.append([NewRecord(spec.topic, key, value)])
    replayed = []
    for _ in range(2):
        before = applied(spec)
        copy = await tier.open(spec, store="rocksdb")
        replayed.append(applied(spec) - before)
        assert copy.replicas[spec.name].progress.position == 4
        assert await everything(copy, spec) == [("a", "3"), ("b", "4")]
        await copy.close()
    assert replayed == [4, 0]


async def test_the_last_record_of_a_reserved_key_outlives_a_restart(embedded: Any) -> None:
    """S5: a copy that goes on from its checkpoint knows it; it is no key of the state; a tombstone removes it."""
    spec, key = embedded.spec(), b"\x00hr.note"
    await (await embedded.open(spec)).close()
    await embedded.log.append([NewRecord(spec.topic, key, value, partition=0) for value in (b"1", b"2")])
    for _ in range(2):
        copy = await embedded.open(spec, store="rocksdb")
        assert copy.replicas[spec.name].reserved(key) == b"2"
        assert (copy.replicas[spec.name].key_count, await everything(copy, spec)) == (0, [])
        await copy.close()
    await embedded.log.append([NewRecord(spec.topic, key, None, partition=0)])
    copy = await embedded.open(spec, store="rocksdb")
    assert copy.replicas[spec.name].reserved(key) is None


async def test_a_corrupt_checkpoint_is_reported_and_everything_read_again(
    tier: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """S5: whatever stands in its place, the answer is right: damaged, cut, empty, or of another version."""
    spec = tier.spec()
    await (await tier.open(spec)).close()
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b"3")):
        await tier.log.append([NewRecord(spec.topic, key, value)])
    await (await tier.open(spec, store="rocksdb")).close()
    folder = tier.folder / "a" / spec.name
    store = RocksDbStore(folder)
    good = store.checkpoint or b""
    store.close()
    for bad in (b"", b"nonsense", good[:-1], good[:10] + b"\x00" + good[11:], encode_checkpoint("x")):  # type: ignore[arg-type]
        store = RocksDbStore(folder)
        store.write([(b"dghost", store.get(b"db") or b"")], checkpoint=bad)
        store.close()
        before = applied(spec)
        caplog.clear()
        copy = await tier.open(spec, store="rocksdb")
        assert "the checkpoint is corrupt" in caplog.text
        assert applied(spec) - before == 4
        assert await everything(copy, spec) == [("b", "3")]
        await copy.close()


async def test_data_without_a_checkpoint_is_wiped(embedded: Any) -> None:
    """S18: rows that nobody vouches for are removed before anything is read."""

    class Unfinished(RocksDbStore):
        checkpoint = property(lambda self: None if self.is_cut else super().checkpoint)  # type: ignore[assignment]
        is_cut = True

    spec = embedded.spec()
    partition = await embedded.owned(spec)
    await partition.state(spec).put("a", "1")
    store = RocksDbStore(embedded.folder / "cut")
    store.write([(b"dghost", b"x" * 30)], checkpoint=b"")
    store.close()

    async def open_store(_: Any) -> RocksDbStore:
        return Unfinished(embedded.folder / "cut")

    copy = await StatePartition.open(embedded.log, [spec], 0, open_store=open_store, clock=embedded.clock)
    embedded.opened.append(copy)
    await copy.catch_up()
    assert await everything(copy, spec) == [("a", "1")]


async def compacted_deletion(setting: Any, spec: StateSpec[Any, Any], owner: StatePartition, key: str) -> None:
    """Delete a key and wait until compaction has removed its tombstone, too."""
    await owner.state(spec).delete(key)
    for _ in range(4):
        await setting.log.retention.enforce()
        setting.clock.advance(RETENTION_S / 2 + 100)
    await setting.log.retention.enforce()
    left = [record.key for record in await read_all(setting.log, spec.topic)]
    assert key.encode() not in left


@pytest.mark.parametrize("is_rebooted", [False, True])
async def test_a_key_deleted_while_a_copy_was_away_does_not_come_back(is_rebooted: bool, embedded: Any) -> None:
    """S14: a checkpoint older than tombstones are kept, less a quarter, is not gone on from; also after a reboot."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    for key in ("a", "b"):
        await owner.state(spec).put(key, "1")
    await (await embedded.open(spec, store="rocksdb", node="b")).close()
    await compacted_deletion(embedded, spec, owner, "a")
    if is_rebooted:
        embedded.clock.reboot()
    copy = await embedded.open(spec, store="rocksdb", node="b")
    assert await everything(copy, spec) == [("b", "1")]


async def test_a_clock_that_went_back_makes_a_checkpoint_too_old(embedded: Any) -> None:
    """S14: across a reboot the wall clock counts, and one that shows less than before can't be trusted."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    await (await embedded.open(spec, store="rocksdb", node="b")).close()
    before = applied(spec)
    embedded.clock.reboot()
    embedded.clock.set(embedded.clock.now_ms() - 10)
    await embedded.open(spec, store="rocksdb", node="b")
    assert applied(spec) - before == 1


async def test_a_quiet_state_is_not_rebuilt_at_a_restart(embedded: Any) -> None:
    """S14: a copy that followed all the time knows so, though nothing was written for longer than tombstones stay."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    copy = await embedded.open(spec, store="rocksdb", node="b")
    for _ in range(4):
        embedded.clock.advance(RETENTION_S / 2)
        await copy.catch_up()
    await copy.close()
    before = applied(spec)
    await embedded.open(spec, store="rocksdb", node="b")
    assert applied(spec) == before


async def test_a_copy_that_stalls_in_mid_read_starts_over(embedded: Any) -> None:
    """S14: a read that takes longer than tombstones stay is not trusted: a key deleted meanwhile does not come back."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    for key in ("a", "b", "c", "d"):
        await owner.state(spec).put(key, "1")
    slow = ScriptedLog(embedded.log, max_records=2)
    stalls = 0

    async def stall() -> None:
        nonlocal stalls
        stalls += 1
        if stalls == 1:  # "a" was read; its tombstone comes and goes before the rest is
            await compacted_deletion(embedded, spec, owner, "a")

    slow.between = stall
    setting = type(embedded)(slow, embedded.clock, embedded.folder)
    copy = await setting.open(spec, store="rocksdb", node="b")
    assert stalls > 1
    assert [key for key, _ in await everything(copy, spec)] == ["b", "c", "d"]
    await copy.close()


async def test_a_following_copy_that_stalls_starts_over(embedded: Any) -> None:
    """S14: the same for a standby that had caught up, then stood still, and goes on."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    for key in ("a", "b"):
        await owner.state(spec).put(key, "1")
    copy = await embedded.open(spec, store="rocksdb", node="b")
    await compacted_deletion(embedded, spec, owner, "a")
    copy.follow()
    await eventually(lambda: is_only(copy, spec, ["b"]), within_s=20, what="the copy without the deleted key")


@pytest.mark.timeout(120)
async def test_a_copy_that_was_away_while_the_log_forgot_a_deletion_starts_over(tier: Any) -> None:
    """S14: on either log, after real compaction: a copy that was closed, one in mid-read, and one that stood still."""
    compacting = TopicConfig(tombstone_retention_ms=200, min_compaction_lag_ms=1, extra=QUICK_SEGMENTS)
    spec = tier.spec(topic_config=compacting)
    owner = await tier.owned(spec)
    for key in ("a", "b", "c", "d"):
        await owner.state(spec).put(key, "1")
    await (await tier.open(spec, store="rocksdb", node="closed")).close()
    still = await tier.open(spec, store="rocksdb", node="still")
    reading, may_go_on = asyncio.Event(), asyncio.Event()
    slow = ScriptedLog(tier.log, max_records=2)

    async def stall() -> None:
        reading.set()  # "a" was read
        await may_go_on.wait()

    slow.between = stall
    setting = type(tier)(slow, tier.clock, tier.folder)
    slow_copy = asyncio.create_task(setting.open(spec, store="rocksdb", node="slow"))
    await reading.wait()
    await owner.state(spec).delete("a")
    await forgotten(tier.log, spec.topic, b"a")
    tier.clock.advance(1)
    may_go_on.set()
    stalled, reopened = await slow_copy, await tier.open(spec, store="rocksdb", node="closed")
    await still.catch_up()
    for copy in (reopened, still, stalled):
        assert [key for key, _ in await everything(copy, spec) if not key.startswith("filler")] == ["b", "c", "d"]
    await setting.opened[0].close()


async def forgotten(log: Log, topic: str, key: bytes) -> None:
    """Wait until compaction has removed all records of a key; new records make brokers close the segment before."""

    async def is_forgotten() -> bool:
        await log.append([NewRecord(topic, f"filler-{uuid.uuid4().hex}".encode(), b"x")])
        await log.retention.enforce()
        return all(record.key != key for record in await read_all(log, topic, start=0))

    await eventually(is_forgotten, within_s=60, every_s=0.2, what="compaction")


async def is_only(copy: StatePartition, spec: StateSpec[Any, Any], keys: list[str]) -> bool:
    try:
        return [key for key, _ in await everything(copy, spec)] == keys
    except StateOffline:
        return False


async def test_a_checkpoint_beyond_the_end_of_the_log_is_an_error(embedded: Any) -> None:
    """S15: it names both offsets after asking twice, nothing is wiped, and with the log back all goes on."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    for n in range(5):
        await owner.state(spec).put(f"k{n}", "1")
    copy = await embedded.open(spec, store="rocksdb", node="b")
    scripted = ScriptedLog(embedded.log)
    scripted.change_bounds = lambda bounds: Bounds(bounds.start, 3, 3)
    copy.replicas[spec.name]._log = scripted
    with pytest.raises(StateAhead, match="up to offset 10, but the log ends at 3"):
        await copy.replicas[spec.name].ask()
    assert scripted.asked == 2
    await copy.close()
    setting = type(embedded)(scripted, embedded.clock, embedded.folder)
    with pytest.raises(StateAhead, match="Restore the log"):
        await setting.open(spec, store="rocksdb", node="b")
    again = await embedded.open(spec, store="rocksdb", node="b")
    assert len(await everything(again, spec)) == 5


async def test_one_wrong_answer_about_the_end_is_asked_again(embedded: Any) -> None:
    """S15: a broker that does not know the end yet is not taken for one that lost it."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    await (await embedded.open(spec, store="rocksdb", node="b")).close()
    scripted = ScriptedLog(embedded.log)
    scripted.change_bounds = lambda bounds: Bounds(0, 0, 0) if scripted.asked == 1 else bounds
    setting = type(embedded)(scripted, embedded.clock, embedded.folder)
    copy = await setting.open(spec, store="rocksdb", node="b")
    assert await everything(copy, spec) == [("a", "1")]
    await copy.close()


async def test_another_topic_of_the_same_name_wipes_the_copy(tier: Any) -> None:
    """S15: offsets of the topic before mean nothing; the copy is rebuilt, at its opening and while it follows."""
    spec = tier.spec()
    await (await tier.open(spec)).close()
    await tier.log.append([NewRecord(spec.topic, b"old", b"1"), NewRecord(spec.topic, b"older", b"1")])
    await (await tier.open(spec, store="rocksdb")).close()
    await tier.log.admin.delete(spec.topic)
    await tier.log.admin.create(spec.topic, partitions=1, config=spec.config)
    await tier.log.append([NewRecord(spec.topic, b"new", b"1")])
    copy = await tier.open(spec, store="rocksdb")
    assert await everything(copy, spec) == [("new", "1")]
    copy.follow()
    await tier.log.admin.delete(spec.topic)
    await tier.log.admin.create(spec.topic, partitions=1, config=spec.config)
    await tier.log.append([NewRecord(spec.topic, b"newest", b"1")])
    await eventually(lambda: is_only(copy, spec, ["newest"]), within_s=60, what="the copy of the new topic")


async def test_a_folder_of_another_partition_is_not_taken_for_ones_own(embedded: Any) -> None:
    """S15: a folder that was copied to the wrong place is of the same topic, and as long; the copy is rebuilt."""
    spec = embedded.spec(partitions=2)
    await (await embedded.open(spec)).close()
    await embedded.log.append([NewRecord(spec.topic, b"k%d" % number, b"1", partition=number) for number in (0, 1)])
    await (await embedded.open(spec, store="rocksdb", number=0)).close()
    copy = await embedded.open(spec, store="rocksdb", number=1)
    assert await everything(copy, spec) == [("k1", "1")]


async def test_a_checkpoint_below_the_start_of_the_log_wipes_the_copy(tier: Any) -> None:
    """S15: what lies between is gone, a deletion perhaps; the copy is what the log holds from its start on."""
    spec = tier.spec(ttl="30d")  # brokers truncate only topics that delete by age
    await (await tier.open(spec)).close()
    await tier.log.append([NewRecord(spec.topic, b"old", b"1")])
    await (await tier.open(spec, store="rocksdb")).close()
    await tier.log.append([NewRecord(spec.topic, key, b"1") for key in (b"old", b"lost", b"kept")])
    await tier.log.retention.truncate(TopicPartition(spec.topic, 0), before=3)
    copy = await tier.open(spec, store="rocksdb")
    assert await everything(copy, spec) == [("kept", "1")]


# Nothing uncommitted is ever in the embedded log.
@pytest.mark.parametrize("tier", [pytest.param("kafka", marks=pytest.mark.servers)], indirect=True)
async def test_an_open_transaction_makes_a_copy_old(tier: Any) -> None:
    """S16: records that may be acknowledged any moment lie above what a reader gets; the age tells."""
    spec = tier.spec()
    copy = await tier.open(spec)
    state, at = copy.state(spec), TopicPartition(spec.topic, 0)
    assert (await state.read("a", max_staleness_s=0)).age_ms == 0
    producer = await tier.log.transactional(f"open-{spec.topic}")
    await producer.begin()
    await producer.append([NewRecord(spec.topic, b"a", b"1", partition=0)])

    async def is_above() -> bool:
        return (await tier.log.bounds(at)).high_watermark > 0

    await eventually(is_above, what="the open transaction in the log")
    tier.clock.advance(3)
    with pytest.raises(StateStale, match="3000 ms old"):
        await state.get("a", max_staleness_s=1)
    with pytest.raises(TimedOut):
        await copy.catch_up(timeout_s=0.5)
    await producer.commit()
    await copy.catch_up()
    assert (await state.read("a", max_staleness_s=0)).value == "1"
    await producer.close()


async def test_a_copy_tells_its_age_from_when_it_asked(embedded: Any) -> None:
    """S16: an answer that took 5 s is 5 s old, and a watermark that was not reached makes nothing younger."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    await owner.state(spec).put("a", "1")
    copy = await embedded.open(spec)
    replica = copy.replicas[spec.name]
    scripted = ScriptedLog(embedded.log)
    replica._log = scripted

    def slowly(bounds: Bounds) -> Bounds:
        embedded.clock.advance(5)
        return bounds

    scripted.change_bounds = slowly
    await replica.ask()
    assert replica.age_ms == 5000
    scripted.change_bounds = lambda bounds: Bounds(0, bounds.end, bounds.high_watermark + 1)
    await replica.ask()
    assert replica.age_ms == 5000
    with pytest.raises(StateStale, match="4000 ms are allowed, it is 5000 ms old"):
        await copy.state(spec).get("a", max_staleness_s=4)


async def test_a_standby_read_is_within_its_bound_or_refused(tier: Any) -> None:
    """C12: a copy answers within max_staleness, after asking the log if need be, and waits for offsets it lacks."""
    spec = tier.spec()
    owner = await tier.owned(spec)
    await owner.state(spec).put("a", "1")
    copy = await tier.open(spec)
    state = copy.state(spec)
    tier.clock.advance(10)
    assert (await state.read("a", max_staleness_s=1)) == ("1", (await state.read("a")).offset, 0)
    await owner.state(spec).put("a", "2")
    written = owner.replicas[spec.name].entry(b"a").offset  # type: ignore[union-attr]
    with pytest.raises(StateStale, match=f"offset {written} is asked for"):
        await state.get("a", at_least=written)
    assert await owner.state(spec).get("a", at_least=written) == "2"
    copy.follow()
    await asyncio.wait_for(copy.replicas[spec.name].wait_past(written), 20)
    assert await state.get("a", at_least=written, max_staleness_s=20) == "2"
    assert await state.get("a", max_staleness_s=math.inf) == "2"
    with pytest.raises(BadArgument, match="max_staleness_s is nan"):
        await state.get("a", max_staleness_s=math.nan)


def moment(ms: int, boot: str = "boot", wall_ms: int = 0) -> BootMoment:
    return BootMoment(BootTime(boot, ms), wall_ms)


def test_the_complete_offset_stands_still_where_compaction_may_have_hidden_something() -> None:
    """S16: it follows the position while the last reached watermark is young, else it stays until one is reached."""
    limits = CompactionLimits(tombstones_ms=750, replaced_ms=75)
    place = ChangelogProgress.begin(10, limits=limits, now=moment(0))
    assert place.advanced(20, moment(1)).complete is None, "whole at no offset before the first watermark"
    place = place.asked(30, moment(2), moment(3)).asked(99, moment(4), moment(4)).advanced(30, moment(10))
    assert (place.complete, place.since, place.has_caught_up) == (30, moment(2), True)
    assert place.advanced(35, moment(76)).complete == 35
    late = place.advanced(40, moment(77))
    assert late.complete == 30
    assert not late.is_too_old(moment(751))
    assert late.is_too_old(moment(752))
    asked = late.asked(50, moment(80), moment(81)).advanced(45, moment(90))
    assert asked.complete == 30
    assert asked.advanced(50, moment(100)).complete == 50
    assert asked.advanced(50, moment(155)).complete == 30, "reached, but asked too long ago"


def test_ages_across_boots_are_told_by_the_wall_clock() -> None:
    """S14: within a boot only the time since the boot counts; across boots a wall clock that went back is too old."""
    limits = CompactionLimits(tombstones_ms=750, replaced_ms=75)
    then = moment(1000, wall_ms=5000)
    assert not limits.is_too_old(then, moment(1700, wall_ms=99_999_999))
    assert not limits.is_too_old(then, moment(3, "next", wall_ms=5700))
    assert limits.is_too_old(then, moment(3, "next", wall_ms=5800))
    assert limits.is_too_old(then, moment(3, "next", wall_ms=4999))


def test_checkpoints_come_back() -> None:
    """S6: every field survives."""
    checkpoint = Checkpoint("id", "layout", 7, 5, moment(1, "b", 2), True, 3, 99, (4, 5), 6, 8)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


OWNER = """
import asyncio, sys
from pathlib import Path
from headrace.log import open_log
from headrace.state import ProducerWriter, StatePartition, StateSpec
from headrace.state.rocksdb import RocksDbStore

async def main(folder, address, topic):
    log = await open_log(address)
    spec = StateSpec(name="s", topic=topic, key=str, value=str, ttl="1h", index={"i": lambda value: value})
    async def open_store(spec):
        return RocksDbStore(folder / "store")
    partition = await StatePartition.open(log, [spec], 0, open_store=open_store)
    await partition.catch_up()
    partition.own(ProducerWriter(await log.transactional(topic)))
    state = partition.state(spec)
    for n in range(30):
        await state.put(f"k{n % 7}", str(n))
        print("acknowledged", n, flush=True)

asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "point",
    [
        "state.before-commit:9",
        "log.embedded.in-transaction:9",
        "state.after-commit:9",
        "state.rocksdb.before-write:14",
        "state.after-apply:14",
    ],
)
async def test_an_owner_killed_at_any_step_loses_nothing(point: str, tmp_path: Path) -> None:
    """S6: after kill -9 the store goes on from its checkpoint and becomes what the log says, indexes included."""
    await check_kill(point, f"embedded:{tmp_path / 'log'}", tmp_path)


@pytest.mark.servers
@pytest.mark.parametrize("point", ["state.after-commit:9", "state.after-apply:14"])
async def test_an_owner_on_kafka_killed_at_any_step_loses_nothing(
    point: str, tmp_path: Path, kafka: RunningService
) -> None:
    """S6: the same on Kafka, whose records don't lie side by side."""
    await check_kill(point, f"kafka://{kafka.address}", tmp_path)


async def check_kill(point: str, address: str, tmp_path: Path) -> None:
    """Let an owner be killed at a point, and compare what it leaves with the log."""
    topic = f"s-{uuid.uuid4().hex[:10]}"
    with running("-c", OWNER, str(tmp_path), address, topic, environ={CRASH_AT_VARIABLE: point}) as child:
        assert child.wait(60) == -signal.SIGKILL
        acknowledged = child.stdout.count("acknowledged")
    log = await open_log(address)
    spec = StateSpec(name="s", topic=topic, key=str, value=str, ttl="1h", index={"i": lambda value: value})
    records = await read_all(log, topic)
    assert len(records) in (acknowledged, acknowledged + 1)
    before = applied(spec)

    async def open_store(_: Any) -> RocksDbStore:
        return RocksDbStore(tmp_path / "store")

    partition = await StatePartition.open(log, [spec], 0, open_store=open_store)
    await partition.catch_up()
    assert applied(spec) - before <= 2, "it goes on from the checkpoint"
    folded = {(record.key or b"").decode(): (record.value or b"").decode() for record in records}
    assert dict(await everything(partition, spec)) == folded
    for key, value in folded.items():
        assert (await partition.state(spec).find("i", value)).items == [(key, value)]
    assert await partition.state(spec).count() == len(folded)
    await partition.close()
    await log.close()


async def test_a_copy_whose_wiping_failed_is_opened_again(embedded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S18: a disk that could not be emptied is an error, and the next attempt begins with what is there."""
    spec = embedded.spec(topic_config=BRIEF)
    owner = await embedded.owned(spec)
    for key in ("a", "b"):
        await owner.state(spec).put(key, "1")
    copy = await embedded.open(spec, store="rocksdb", node="b")
    await compacted_deletion(embedded, spec, owner, "a")

    def fail(*_: object) -> None:
        raise PermissionError("not now")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        with pytest.raises(StateBroken, match="not now"):
            await copy.catch_up()
    with pytest.raises(StateOffline):
        await copy.state(spec).get("a")
    await copy.catch_up()
    assert [key for key, _ in await everything(copy, spec)] == ["b"]


async def test_a_topic_that_forgets_deletions_at_once_is_named(embedded: Any) -> None:
    """S14: a copy that could never be in time says so, instead of starting over forever."""
    spec = embedded.spec(is_external=True)
    config = TopicConfig(cleanup=Cleanup.COMPACT, tombstone_retention_ms=0)
    await embedded.log.admin.create(spec.topic, partitions=1, config=config)
    await embedded.log.append([NewRecord(spec.topic, b"a", b"1")])
    with pytest.raises(WrongStateTopic, match=r"delete\.retention\.ms, which is 0; raise it"):
        await embedded.open(spec)


async def test_an_owner_that_reads_its_log_again_takes_no_writes_meanwhile(embedded: Any) -> None:
    """S2: what comes during that time is refused, nothing is applied twice, and values never go back."""
    spec = embedded.spec()
    owner = await embedded.owned(spec)
    things = owner.state(spec)
    await things.put("a", "1")
    scripted = ScriptedLog(embedded.log)
    owner.replicas[spec.name]._log = scripted
    refused = []

    async def write_meanwhile() -> None:
        with pytest.raises(StateOffline, match="read again"):
            await things.put("a", "2")
        refused.append(True)

    scripted.before_answer = write_meanwhile
    await owner.catch_up()
    assert refused
    await things.put("a", "3")
    replica = owner.replicas[spec.name]
    position = replica.progress.position
    await replica.take(Batch(await read_all(embedded.log, spec.topic, start=0), position - 2))
    assert (await things.get("a"), replica.progress.position) == ("3", position)


async def test_a_copy_becomes_the_owner_only_when_it_has_read_everything(embedded: Any) -> None:
    """S16: a copy that follows, or was never read to the end, takes no writer."""
    spec = embedded.spec()
    copy = await embedded.open(spec)
    writer = await embedded.writer(spec)
    copy.follow()
    with pytest.raises(BadArgument, match="catch_up"):
        copy.own(writer)
    await copy.catch_up()
    copy.own(writer)
    await copy.state(spec).put("a", "1")
    replica = copy.replicas[spec.name]
    embedded.clock.advance(50)
    assert replica.age_ms == 50_000
    copy.confirm(moment_of(embedded.clock))
    assert replica.age_ms == 0
    await copy.disown()
    copy.follow()
    await asyncio.wait_for(replica.wait_past(0), 20)


RESTORE = """
import asyncio, sys
from pathlib import Path
from headrace.log import open_log
from headrace.state import StatePartition, StateSpec
from headrace.state.rocksdb import RocksDbStore

async def main(folder):
    log = await open_log(f"embedded:{folder / 'log'}")
    async def open_store(spec):
        return RocksDbStore(folder / "store")
    spec = StateSpec(name="s", topic="s", key=str, value=str)
    partition = await StatePartition.open(log, [spec], 0, open_store=open_store)
    await partition.catch_up()

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_a_copy_killed_while_it_is_restored_does_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    """S18: half a copy is offline and whole at no offset; it goes on from where it was, and then is right."""
    log = await open_log(f"embedded:{tmp_path / 'log'}")
    spec = StateSpec(name="s", topic="s", key=str, value=str)
    await log.admin.create("s", partitions=1, config=spec.config)
    for start in range(0, 2000, 1000):
        await log.append([NewRecord("s", b"%d" % n, b"v") for n in range(start, start + 1000)])
    await log.append([NewRecord("s", b"%d" % n, None) for n in range(500)])
    with running("-c", RESTORE, str(tmp_path), environ={CRASH_AT_VARIABLE: "state.after-apply:3"}) as child:
        assert child.wait(60) == -signal.SIGKILL

    async def open_store(_: Any) -> RocksDbStore:
        return RocksDbStore(tmp_path / "store")

    partition = await StatePartition.open(log, [spec], 0, open_store=open_store)
    replica = partition.replicas["s"]
    assert (replica.progress.position, replica.complete_offset, replica.age_ms) == (1000, None, None)
    assert not partition.is_online
    for call in (partition.state(spec).get("1"), partition.state(spec).count()):
        with pytest.raises(StateOffline):
            await call
    before = applied(spec)
    await partition.catch_up()
    assert applied(spec) - before == 1500
    assert await partition.state(spec).count() == 1500
    assert replica.complete_offset == 2500
    await partition.close()
    await log.close()
