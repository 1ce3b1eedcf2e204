"""Random histories: writes, crashes, stalls, compaction, wipes, restarts and fail-overs; a copy is the fold of the log.

The oracle keeps every record that was committed, which the log itself does not: it is compacted all the time.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.state.scripted_log import ScriptedLog

from headrace.config import EmbeddedLogSettings, LogSettings
from headrace.errors import StateOffline, SubscriptionEnded, TransactionFailed
from headrace.log.embedded import EmbeddedLog, open_log
from headrace.model import NewRecord, Position, TopicConfig
from headrace.runtime import BootTime, crash_point
from headrace.state import KeyValueStore, StatePartition, StateSpec, StoredPair, StoreWrite
from headrace.state.memory import MemoryStore
from headrace.state.replica import StartOver, StateReplica
from headrace.state.rocksdb import RocksDbStore
from headrace.state.subscriptions import PresentValue, RawChange, Subscription
from headrace.testing.clock import SettableClock
from headrace.testing.crashes import SimulatedCrash, crash_at
from headrace.testing.plugin import Size

LAG_S, RETENTION_S = 100, 1000
KEYS = [f"k{n}" for n in range(6)]
CRASH_POINTS = (
    "state.before-apply",
    "state.after-apply",
    "state.rocksdb.before-write",
    "state.rocksdb.after-write",
    "state.rocksdb.before-rename",
    "state.rocksdb.after-rename",
)


class Committed(NamedTuple):
    """A record that was acknowledged, and when."""

    offset: int
    key: bytes
    value: bytes | None
    at: BootTime


class Oracle:
    """All that was ever committed."""

    def __init__(self) -> None:
        self.records: list[Committed] = []

    def fold(self, below: int) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        for record in self.records:
            if record.offset < below:
                values.pop(record.key, None)
                if record.value is not None:
                    values[record.key] = record.value
        return values

    def between(self, after: int, upto: int) -> list[tuple[int, bytes, bytes | None]]:
        return [(r.offset, r.key, r.value) for r in self.records if after < r.offset <= upto]


class RecordingWriter:
    """A plain transactional producer that tells the oracle. Some commits fail, and of some nobody learns the end."""

    def __init__(self, producer: Any, simulation: Simulation) -> None:
        self._producer = producer
        self._simulation = simulation

    async def commit(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        fate = self._simulation.chance.choice(["good"] * 17 + ["refused", "unknown, lost", "unknown, written"])
        if fate == "refused":
            raise TransactionFailed("things-0", fate)
        if fate == "unknown, lost":
            raise TransactionFailed("things-0", fate, outcome_known=False)
        await self._producer.begin()
        await self._producer.append(records)
        positions: Sequence[Position] = await self._producer.commit()
        at = self._simulation.clock.boot_time()
        self._simulation.oracle.records += [
            Committed(position.offset, record.key or b"", record.value, at)
            for record, position in zip(records, positions, strict=True)
        ]
        if fate != "good":
            raise TransactionFailed("things-0", fate, outcome_known=False)
        return positions


class DiskStore(MemoryStore):
    """A store that outlives its process, and loses its newest batches in a power cut; RocksDB without the waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[tuple[list[StoredPair], bytes | None]] = []

    def write(self, writes: Sequence[StoreWrite], *, checkpoint: bytes) -> None:
        crash_point("state.rocksdb.before-write")
        self._batches = [*self._batches[-5:], (list(self.scan(b"", None, limit=10_000)), self.checkpoint)]
        super().write(writes, checkpoint=checkpoint)
        crash_point("state.rocksdb.after-write")

    def wipe(self) -> None:
        crash_point("state.rocksdb.before-rename")
        super().wipe()
        self._batches.clear()
        crash_point("state.rocksdb.after-rename")

    def close(self) -> None:
        """Stay as it is, for the next process."""

    def lose_batches(self, count: int) -> None:
        for pairs, checkpoint in self._batches[-count:][:1]:
            super().wipe()
            super().write(pairs, checkpoint=checkpoint or b"")
            self._checkpoint = checkpoint
            del self._batches[-count:]


class Node:
    """One copy with a subscriber to all of it, and how to kill it."""

    def __init__(self, simulation: Simulation, name: str, kind: str) -> None:
        self._simulation = simulation
        self._folder = simulation.folder / name
        self._kind = kind
        self._store: KeyValueStore = DiskStore() if kind == "disk" else MemoryStore()
        self.log = ScriptedLog(simulation.log, max_records=2)
        self.partition: StatePartition | None = None
        self.subscription: Subscription | None = None
        self.told: int | None = None

    @property
    def replica(self) -> StateReplica:
        assert self.partition is not None
        return self.partition.replicas["things"]

    async def open(self) -> StatePartition:
        if self.partition is None:
            self.partition = await StatePartition.open(
                self.log,  # type: ignore[arg-type]
                [self._simulation.spec],
                0,
                open_store=self._open_store,
                clock=self._simulation.clock,
            )
        return self.partition

    async def _open_store(self, _: StateSpec[Any, Any]) -> KeyValueStore:
        if self._kind != "disk":
            self._store = RocksDbStore(self._folder) if self._kind == "rocksdb" else MemoryStore()
        return self._store

    async def stop(self) -> None:
        """End without a word, as a killed process does."""
        self.partition = self.subscription = None
        self._store.close()

    def lose_disk(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._kind == "disk":
            self._store = DiskStore()

    def lose_power(self, batches: int) -> None:
        if isinstance(self._store, DiskStore) and batches:
            self._store.lose_batches(batches)

    async def listen(self) -> None:
        """Take what the subscriber gets now, and compare it with all that was committed."""
        replica, oracle = self.replica, self._simulation.oracle
        if replica.feed.last_offset is None or replica.feed.last_offset < (self.told or 0):
            return  # it would wait until this copy has come so far
        if self.subscription is None:
            self.subscription = replica.feed.subscribe(None, after=self.told, heartbeat_s=0)
        while True:
            try:
                item = await anext(self.subscription)
            except SubscriptionEnded:
                self.subscription = None
                return
            if isinstance(item, PresentValue):
                assert item.is_lagged or self.told is None
            elif isinstance(item, RawChange):
                assert self.told is not None
                missed = oracle.between(self.told, item.offset)
                assert missed == [(item.offset, item.key, item.value)], f"told {item} after {self.told}"
            else:
                assert self.told is not None
                assert oracle.between(self.told, item.offset) == []
                return
            self.told = item.offset


class Simulation:
    """One history."""

    def __init__(self, seed: int, folder: Path, log: EmbeddedLog, clock: SettableClock, *, disk: str) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.log = log
        self.clock = clock
        self.oracle = Oracle()
        config = TopicConfig(
            min_compaction_lag_ms=LAG_S * 1000,
            tombstone_retention_ms=RETENTION_S * 1000,
            timestamp_ahead_ms=1 << 40,  # the clock is put back again and again
        )
        index = {"i": lambda value: value[:1]}
        self.spec = StateSpec(
            name="things",
            topic="things",
            key=str,
            value=str,
            topic_config=config,
            index=index,
            ttl_of=self.chance.choice([None, lambda key, value: 300 if key < "k3" else None]),
        )
        self.nodes = [Node(self, f"n{n}", kind) for n, kind in enumerate((disk, disk, "memory"))]
        self.owner = self.nodes[2]
        self.is_stalling = False

    async def run(self, steps: int) -> None:
        for node in self.nodes:
            await (await node.open()).catch_up()
        await self.fail_over()
        for _ in range(steps):
            await self.chance.choice(
                [self.write, self.write, self.pass_time, self.clean, self.catch_up, self.catch_up, self.crash,
                 self.restart, self.lose_disk, self.fail_over, self.reboot, self.refresh, self.set_clock,
                 self.crash_owner]
            )()  # fmt: skip
            await self.check()
        for node in self.nodes:
            await (await node.open()).catch_up()
            assert self.stored(node) == self.oracle.fold(1 << 60)
            await self.check()

    # What happens.

    async def write(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            partition = await self.owner.open()
            try:
                await self.chance.choice([self.put, self.put, self.delete, self.read, self.expire])(partition)
            except TransactionFailed:
                if partition.unsettled is not None:
                    await self.settle(partition)

    async def put(self, partition: StatePartition) -> None:
        async with partition.unit_of_work() as unit:
            things = partition.state(self.spec, unit)
            for _ in range(self.chance.randint(1, 2)):
                await things.put(self.chance.choice(KEYS), f"{self.chance.randint(0, 9)} {len(self.oracle.records)}")

    async def delete(self, partition: StatePartition) -> None:
        await partition.state(self.spec).delete(self.chance.choice(KEYS))

    async def read(self, partition: StatePartition) -> None:
        """What the owner shows is what was committed last; a key that it calls gone has a tombstone."""
        key = self.chance.choice(KEYS)
        value = await partition.state(self.spec).get(key)
        committed = self.oracle.fold(1 << 60).get(key.encode())
        assert (value or "").encode() == (committed or b"")

    async def expire(self, partition: StatePartition) -> None:
        await partition.expire_due()

    async def settle(self, partition: StatePartition) -> None:
        """Find out what became of a commit: by reading on, or by giving the partition to somebody else."""
        with pytest.raises(StateOffline):
            await partition.state(self.spec).get("k0")
        if self.is_stalling or self.chance.random() < 0.5:
            await partition.catch_up()
        else:
            await self.fail_over()

    async def pass_time(self) -> None:
        self.clock.advance(self.chance.choice([1, 30, LAG_S * 0.7, LAG_S, RETENTION_S * 0.4, RETENTION_S * 1.1]))

    async def clean(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            await self.log.retention.enforce()
            self.clock.advance(self.chance.choice([0, LAG_S * 1.1, RETENTION_S * 1.1]))
        await self.log.retention.enforce()

    async def stall(self) -> None:
        """Let the world go on in the middle of a read."""
        if not self.is_stalling and self.chance.random() < 0.3:
            self.is_stalling = True
            for _ in range(self.chance.randint(1, 3)):
                await self.chance.choice([self.write, self.pass_time, self.clean])()
            self.is_stalling = False

    async def catch_up(self) -> None:
        node = self.a_standby()
        node.log.between = node.log.before_answer = self.stall
        node.log.max_records = self.chance.choice([2, 1000])
        try:
            await (await node.open()).catch_up()
        finally:
            node.log.between = node.log.before_answer = None

    async def refresh(self) -> None:
        """Ask for the end without reading up to it."""
        node = self.a_standby()
        if node.partition is not None and node.replica.is_online:
            node.log.before_answer = self.stall
            with contextlib.suppress(StartOver):
                await node.replica.ask()
            node.log.before_answer = None

    async def set_clock(self) -> None:
        """Put the wall clock back or forward, as operators and NTP do."""
        self.clock.set(self.clock.now_ms() + self.chance.choice([-50_000, -20_000, 500_000]))

    async def crash(self) -> None:
        """Kill a copy at a step of its next catching up."""
        node = self.a_standby()
        await node.stop()
        try:
            with crash_at(self.chance.choice(CRASH_POINTS), self.chance.randint(1, 3)):
                await self.catch_up_of(node)
        except SimulatedCrash:
            await node.stop()

    async def catch_up_of(self, node: Node) -> None:
        await (await node.open()).catch_up()

    async def crash_owner(self) -> None:
        """Kill the owner before, between or behind commit and store; another one takes over."""
        steps = ("state.before-commit", "state.after-commit", "state.rocksdb.before-write", "state.after-apply")
        try:
            with crash_at(self.chance.choice(steps)):
                await self.write()
        except SimulatedCrash:
            await self.owner.stop()
            await self.fail_over()

    async def restart(self) -> None:
        node = self.a_standby()
        await node.stop()
        if self.chance.random() < 0.5:
            await self.pass_time()
        await self.catch_up_of(node)

    async def lose_disk(self) -> None:
        node = self.a_standby()
        await node.stop()
        node.lose_disk()

    async def reboot(self) -> None:
        """Start the machine again, its wall clock wrong at times; all copies begin again from their disks."""
        for node in self.nodes:
            await node.stop()
            node.lose_power(self.chance.choice([0, 1, 3]))
        self.clock.reboot()
        if self.chance.random() < 0.3:
            self.clock.set(self.clock.now_ms() - self.chance.choice([0, 5_000]))
        await self.fail_over()

    async def fail_over(self) -> None:
        """Give the partition to some copy that reads everything first."""
        if self.owner.partition is not None:
            await self.owner.partition.disown()
        self.owner = self.chance.choice(self.nodes)
        partition = await self.owner.open()
        producer = await self.log.transactional("things-0")
        await partition.catch_up()
        partition.own(RecordingWriter(producer, self))

    def a_standby(self) -> Node:
        return self.chance.choice([node for node in self.nodes if node is not self.owner])

    # What must hold.

    async def check(self) -> None:
        for node in self.nodes:
            if node.partition is not None and node.replica.is_online:
                self.check_content(node)
                self.check_age(node)
                await node.listen()

    def stored(self, node: Node) -> dict[bytes, bytes]:
        return {key: entry.value for key, entry in node.replica.entries(b"", None, limit=1000)}

    def check_content(self, node: Node) -> None:
        """The copy is the fold of the log where it says that it is whole, and never older than that."""
        replica, stored = node.replica, self.stored(node)
        complete, position = replica.complete_offset, replica.progress.position
        assert replica.key_count == len(stored)
        rows = {row for row, _ in replica.rows(b"i", b"j", limit=1000)}
        assert len(rows) == len(stored), "one row of the index for each key"
        if complete is None:
            return
        if complete == position:
            assert stored == self.oracle.fold(complete)
            return
        whole = self.oracle.fold(complete)
        for key in map(str.encode, KEYS):
            later = [value for _, k, value in self.oracle.between(complete - 1, position - 1) if k == key]
            assert stored.get(key) in [whole.get(key), *later]

    def check_age(self, node: Node) -> None:
        """Everything that was acknowledged before the copy's age is in it."""
        replica, now = node.replica, self.clock.boot_time()
        age_ms = replica.age_ms
        if age_ms is not None and replica.progress.since.boot.boot_id == now.boot_id:
            known = [r.offset for r in self.oracle.records if r.at.boot_id == now.boot_id and r.at.ms < now.ms - age_ms]
            assert replica.progress.position > max(known, default=-1)


@pytest.mark.parametrize(("disk", "small", "full"), [("disk", 60, 10_000), ("rocksdb", 3, 300)])
async def test_a_copy_is_the_fold_of_the_log(disk: str, small: int, full: int, tmp_path: Path, size: Size) -> None:
    """S14: whatever happens, no copy shows a key that was deleted, lacks one that was not, or tells a gap as none."""
    for seed in range(size(small, full)):
        clock, folder = SettableClock(), tmp_path / str(seed)
        settings = LogSettings(embedded=EmbeddedLogSettings(fsync=False))
        log = await open_log(f"embedded:{folder / 'log'}", settings, clock=clock)
        simulation = Simulation(seed, folder, log, clock, disk=disk)
        try:
            await simulation.run(40)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            for node in simulation.nodes:
                await node.stop()
            await log.close()
        shutil.rmtree(folder)
