"""A projection in a bad week: worker counts that change, rebuilds beside workers, kills, and handlers that fail.

The oracle knows only what was appended and what the handler did. With a database every event must have one effect.
Without one every event must be handled at least once since the last reset, and a journal's events never out of order:
an event may come again, but none may come before the one it follows.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from tests.projection.test_projections import Embedded, mariadb_database, postgres_database
from tests.suites.tags_setting import Scene, TagSetting

from headrace.errors import HandlerFailed, OperationFailed, ProjectionRebuilding, SlotsMoved, TimedOut
from headrace.log import Log
from headrace.model import NewRecord, TopicConfig, TopicPartition
from headrace.projection import Projection, ProjectionRunner, Recovery, open_target, rebuild
from headrace.runtime import Backoff, watching
from headrace.services import RunningService
from headrace.tags import TaggedEvent
from headrace.testing.crashes import SimulatedCrash
from headrace.testing.plugin import Size

IDS = [f"pid{n}" for n in range(9)]
SLOTS = 8
AT_ONCE = Backoff(first_s=0.0, limit_s=0.0)
# What ends a worker's run in this world, and is followed by another run.
EXPECTED = (TimedOut, SlotsMoved, HandlerFailed, OperationFailed, ProjectionRebuilding, SimulatedCrash)


class World:
    """Rounds of workers and rebuilds that run at the same time, over a tag that grows."""

    def __init__(self, scene: Scene, dice: random.Random, projection: Projection) -> None:
        self.scene = scene
        self.dice = dice
        self.projection = projection
        self.appended: Counter[str] = Counter()
        self.crashes = 0
        self.rebuilds = 0
        self.ended: Counter[str] = Counter()

    async def run(self, *, rounds: int) -> None:
        """Let things happen, then let one worker bring the projection to the end in peace."""
        for number in range(rounds):
            await self._append(self.dice.randint(5, 15))
            workers = self.dice.randint(1, 4)
            present = self.dice.sample(range(workers), self.dice.randint(1, workers))
            actors = [self._work(worker, workers) for worker in present]
            if self.dice.random() < 0.3:  # somebody who does not know yet that their number has changed
                actors.append(self._work(0, self.dice.randint(1, 4)))
            if number % 5 == 2:  # in between slots drift apart
                actors.append(self._rebuild())  # never ends because a worker was quicker
            with self._crashing():
                await asyncio.gather(*(self._until_it_ends(actor) for actor in actors))
        await self._finish()

    async def _append(self, many: int) -> None:
        for _ in range(many):
            id_ = self.dice.choice(IDS)
            self.appended[id_] += 1
            tags = self.dice.choice(["x", "y", "xy"]) if self.projection.tags else None
            await self.scene.append(id_, self.appended[id_], tags)

    async def _work(self, worker: int, workers: int) -> None:
        target = open_target(self.projection, self.scene.store.settings)
        runner = ProjectionRunner(self.projection, self.scene.again().queries, target, worker=worker, workers=workers)
        await runner.catch_up()

    async def _rebuild(self) -> None:
        self.rebuilds += 1
        target = open_target(self.projection, self.scene.store.settings)
        try:
            await rebuild(self.projection, self.scene.again().queries, target)
        except SlotsMoved as error:
            raise AssertionError("a rebuild ended because a worker was quicker") from error

    async def _until_it_ends(self, actor: Awaitable[None]) -> None:
        try:
            await actor
        except EXPECTED as error:
            self.ended[type(error).__name__] += 1

    async def _finish(self) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await self._work(0, 1)
                    return
                except ProjectionRebuilding:  # its rebuild was killed: an operator runs it again
                    await self._until_it_ends(self._rebuild())
                except EXPECTED:
                    continue

    @contextmanager
    def _crashing(self) -> Iterator[None]:
        """Kill at most one actor, wherever it passes a crash point next but n."""
        countdown, lock = self.dice.randint(1, 40), threading.Lock()

        def watch(name: str) -> None:
            nonlocal countdown
            if not name.startswith("projection."):
                return
            with lock:
                countdown -= 1
                is_due = countdown == 0
            if is_due:
                self.crashes += 1
                raise SimulatedCrash(name, 1)

        with watching(watch):
            yield


class Flaky:
    """Says now and then that an event can't be handled this time."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._lock = threading.Lock()

    def moment_s(self, up_to_s: float) -> float:
        """Return how long to take, so that others get between."""
        with self._lock:
            return self._dice.random() * up_to_s

    def pause(self, up_to_s: float) -> None:
        """Take a moment."""
        time.sleep(self.moment_s(up_to_s))

    def fail(self) -> None:
        """Fail one time in thirty."""
        with self._lock:
            is_bad = self._dice.random() < 1 / 30
        if is_bad:
            raise ValueError("not this time")


def fed_from(scene: Scene, seed: int) -> dict[str, Any]:
    """Return one tag, or with an odd seed two: journals have events under one of them, or under both."""
    return {"tags": scene.tags(["x", "y"])} if seed % 2 else {"tag": scene.tag}


class OnADatabase(Embedded, TagSetting):
    """Each event has exactly one effect."""

    @pytest.fixture
    def database(self) -> str:
        """Return the URL of an empty database."""
        raise NotImplementedError("override the fixture `database`")

    @pytest.mark.parametrize("seed", [2, 3])
    async def test_every_event_has_one_effect(self, scene: Scene, database: str, seed: int, size: Size) -> None:
        """FT3, FT4, FT10: whatever happens, the table holds what was appended, each event once."""
        engine = create_engine(database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id VARCHAR(50), seq_nr INTEGER)"))
        dice = random.Random(seed)
        flaky = Flaky(random.Random(seed + 100))

        def handle(connection: Connection, event: TaggedEvent) -> None:
            values = {"id": event.id, "n": event.seq_nr}
            connection.execute(text("INSERT INTO effects VALUES (:id, :n)"), values)
            flaky.pause(0.002)
            flaky.fail()

        def reset(connection: Connection) -> None:
            connection.execute(text("DELETE FROM effects"))
            flaky.pause(0.05)

        recovery = Recovery("fail", retries=dice.randint(0, 3), backoff=AT_ONCE)
        options: dict[str, Any] = {"database": engine, "reset": reset, "slots": SLOTS, "recovery": recovery}
        projection = Projection(scene.tag, handler=handle, batch_size=4, **fed_from(scene, seed), **options)
        world = World(scene, dice, projection)
        await world.run(rounds=size(12, 100))
        with engine.connect() as connection:
            effects = Counter((id_, n) for id_, n in connection.execute(text("SELECT id, seq_nr FROM effects")))
        engine.dispose()
        expected = Counter((id_, n) for id_, last in world.appended.items() for n in range(1, last + 1))
        assert effects == expected
        assert world.crashes
        assert world.rebuilds


@pytest.mark.asyncio(loop_scope="module")
class TestOnSqlite(OnADatabase):
    """A file."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> str:
        """Return a file."""
        return f"sqlite:///{tmp_path / 'effects.db'}"


@pytest.mark.servers
@pytest.mark.asyncio(loop_scope="module")
class TestOnPostgres(OnADatabase):
    """A real server."""

    @pytest.fixture
    def database(self, postgres: RunningService) -> str:
        """Return a database of its own."""
        return postgres_database(postgres)


@pytest.mark.servers
@pytest.mark.asyncio(loop_scope="module")
class TestOnMariadb(OnADatabase):
    """A real server."""

    @pytest.fixture
    def database(self, mariadb: RunningService) -> str:
        """Return a database of its own."""
        return mariadb_database(mariadb)


class IntoTheLog(TagSetting):
    """Without a database, into a topic: each event at least once, and none before the one it follows."""

    @pytest.fixture
    def lease_s(self) -> float:
        """Return how long the claims of the dead count."""
        return 0.2

    @pytest.fixture
    def rounds(self, size: Size) -> int:
        """Return how long the run is."""
        return size(12, 100)

    @pytest.fixture(params=[2, 3])
    def seed(self, request: pytest.FixtureRequest) -> int:
        """Return what the dice begin with."""
        return int(request.param)

    async def test_no_event_is_lost_or_out_of_order(self, scene: Scene, seed: int, rounds: int, lease_s: float) -> None:
        """FT3, FT4, FT10: since the last reset each journal's events were handled in order, repeats aside."""
        dice, flaky = random.Random(seed), Flaky(random.Random(seed + 100))
        output = f"{scene.tag}-output"
        await scene.log.admin.create(output, partitions=1, config=TopicConfig())

        async def handle(event: TaggedEvent) -> None:
            flaky.fail()
            await asyncio.sleep(flaky.moment_s(0.003))
            await scene.log.append([NewRecord(output, event.id.encode(), b"%d" % event.seq_nr)])

        async def reset() -> None:
            await scene.log.append([NewRecord(output, b"reset", b"")])
            await asyncio.sleep(0.01)

        save_every = dice.choice([1, 3, None])
        recovery = Recovery("fail", retries=1, backoff=AT_ONCE)
        options: dict[str, Any] = {"slots": SLOTS, "batch_size": 4, "save_every": save_every, "lease_s": lease_s}
        projection = Projection(
            scene.tag, handler=handle, reset=reset, recovery=recovery, **fed_from(scene, seed), **options
        )
        world = World(scene, dice, projection)
        await world.run(rounds=rounds)
        assert _in_order(await _read(scene.log, output)) == world.appended
        assert world.crashes
        assert world.rebuilds
        await scene.log.admin.delete(output)


@pytest.mark.asyncio(loop_scope="module")
class TestIntoTheEmbeddedLog(Embedded, IntoTheLog):
    """A folder."""


def _in_order(seen: list[tuple[str, int]]) -> Counter[str]:
    """Return how far each journal is; fails if an event came before the one it follows."""
    reached: Counter[str] = Counter()
    for id_, n in seen:
        assert n <= reached[id_] + 1, f"{id_} {n} came before {reached[id_] + 1}"
        reached[id_] = max(reached[id_], n)
    return reached


async def _read(log: Log, topic: str) -> list[tuple[str, int]]:
    """Return what handlers wrote since the last reset."""
    at, seen = TopicPartition(topic, 0), []
    async for batch in log.read(at, 0, (await log.bounds(at)).end):
        for record in batch.records:
            if record.key == b"reset":
                seen.clear()
            else:
                seen.append(((record.key or b"").decode(), int(record.value or b"0")))
    return seen
