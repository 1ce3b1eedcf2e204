"""Another number of partitions for a keyspace that is in use."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.keyspace.setting import Place, serving
from typer.testing import CliRunner

import headrace
from headrace.app import Headrace, RunningNode
from headrace.cli.main import app as command
from headrace.cluster import PartitionRequest
from headrace.config import ClusterSettings, HeadraceSettings
from headrace.errors import BadArgument, Fenced, HeadraceError, OperationFailed, PartitionClosed, TimedOut
from headrace.keyspace import Keyspace, State, change_phase, handles, resize_keyspace, state
from headrace.keyspace.layouts import layouts_topic
from headrace.keyspace.messages import Call, encode
from headrace.model import NewRecord
from headrace.testing.conformance.log_setting import eventually


@dataclass
class More:
    """Add one."""

    id: str


def sums_of(keyspace: str) -> type[Keyspace]:
    """Declare counters; on a broker each test has a keyspace, and so topics, of its own."""

    class Sums(Keyspace, name=keyspace, partitions=2, replicas=2, store="memory"):
        counts: State[str, int] = state()

        @handles
        async def more(self, message: More) -> int:
            """Add one, and return the sum."""
            count = (await self.counts.get(message.id) or 0) + 1
            await self.counts.put(message.id, count)
            return count

    return Sums


def pairs_of(keyspace: str) -> type[Keyspace]:
    """Declare counters by two parts."""

    class Pairs(Keyspace, name=keyspace, partitions=2, store="memory"):
        counts: State[tuple[str, int], int] = state()

    return Pairs


Sums = sums_of("sums")


def settings_of(name: str) -> HeadraceSettings:
    return HeadraceSettings(cluster=ClusterSettings(node_id=name))


@contextlib.asynccontextmanager
async def node_of(address: str, name: str) -> AsyncIterator[tuple[Headrace, RunningNode]]:
    """Run a node in this process."""
    async with headrace.connect(address, settings=settings_of(name)) as hr, hr.node(Sums) as node:
        yield hr, node


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a cluster of the test's own, in a folder and on the run's broker."""
    is_kafka = request.param == "kafka"
    address = f"kafka://{request.getfixturevalue('kafka').address}" if is_kafka else f"embedded:{tmp_path / 'log'}"
    return Place(address, str(tmp_path / "state"), f"c-{uuid.uuid4().hex[:8]}")


async def test_nothing_is_lost_while_a_keyspace_is_resized_under_load(place: Place) -> None:
    """C17: to more and to fewer partitions, while callers add and read: no call fails, every sum is right.

    A standby may answer a read with the token of a write, also one from before the resize, and shows the write.
    """
    kind = sums_of(f"sums-{place.name}")
    async with serving(place, "a", kind), serving(place, "b", kind) as (hr, node, sums):
        done: dict[str, int] = {}
        is_over = asyncio.Event()

        async def add(name: str, is_repeatable: bool) -> None:
            while not is_over.is_set():
                message_id = uuid.uuid4().hex if is_repeatable else None
                answer, token = await sums.ask_with_token(More(name), message_id=message_id, timeout_s=60)
                done[name] = done.get(name, 0) + 1
                assert answer == done[name]
                stale = await sums.get("counts", name, max_staleness_s=60, at_least=token, timeout_s=60)
                assert stale is not None
                assert stale >= done[name]
                assert await sums.get("counts", name, timeout_s=60) >= done[name]

        adding = [asyncio.create_task(add(f"k{n}", n % 2 == 0)) for n in range(6)]
        for partitions in (5, 3):
            await asyncio.sleep(0.2)
            report = await resize_keyspace(hr.log, hr.settings, kind, partitions)
            assert report.partitions == partitions
            await node.online(f"sums-{place.name}")
        await asyncio.sleep(0.3)
        is_over.set()
        await asyncio.gather(*adding)
        assert {name: await sums.get("counts", name) for name in done} == done
        assert await sums.count("counts") == len(done)


@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_what_is_read_page_by_page_is_whole_or_an_error(place: Place) -> None:
    """C17: the partitions after a resize have other keys; those that were read before it say nothing about them."""
    kind = sums_of("paged")
    async with serving(place, "a", kind) as (hr, node, sums):
        await asyncio.gather(*(sums.put("counts", f"k{n}", n) for n in range(600)))

        async def read_over_a_resize() -> None:
            reading = sums.items("counts")
            await anext(reading)
            await resize_keyspace(hr.log, hr.settings, kind, 3)
            await node.online("paged")
            async for _ in reading:
                pass

        with pytest.raises(OperationFailed, match="its keyspace was resized; begin again"):
            await read_over_a_resize()
        assert sorted([key async for key, _ in sums.items("counts")]) == sorted(f"k{n}" for n in range(600))


@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_reads_of_partitions_wait_until_the_new_ones_are_served(place: Place) -> None:
    """C17: also after the layout has changed, and before the cluster knows who serves it."""
    kind = pairs_of("pairs")
    async with serving(place, "a", kind), serving(place, "b", calls=kind) as (hr, node, pairs):
        await node.online("pairs")
        await pairs.put("counts", ("k", 1), 1)
        await resize_keyspace(hr.log, hr.settings, kind, 3)
        assert (await pairs.prefix("counts", "k")).items == [(("k", 1), 1)]
        await resize_keyspace(hr.log, hr.settings, kind, 4)
        assert (await anext(pairs.changes("counts", ("k", 1)))).value == 1


@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_frozen_owner_of_an_old_partition_acknowledges_nothing(place: Place) -> None:
    """C17: an owner whose lease is over, and that has not heard of the resize, is refused by the log."""
    name = f"sums-{place.name}"
    kind = sums_of(name)
    async with serving(place, "frozen", kind) as (_, node, sums):
        await sums.ask(More("k"))
        hosting = node._hosting
        held = [hosting.host(name, n) for n in range(2)]
        hosting._tasks[0].cancel()  # renews no more
        following = [task for task in asyncio.all_tasks() if task.get_name() == "headrace-worker-keyspaces"]
        assert following
        for task in following:
            task.cancel()  # hears nothing any more
        async with headrace.connect(settings=place.settings("tool")) as tool:
            await resize_keyspace(tool.log, tool.settings, kind, 3)
        payload = sums._codecs.message_bytes(More("k"))
        call = encode(Call("More", payload, b"k", uuid.uuid4().hex))
        partition = headrace.model.partition_of(b"k", 2)
        host = held[partition]
        assert host is not None
        with pytest.raises(HeadraceError):
            await host.handle(PartitionRequest(name, partition, call), asyncio.get_running_loop().time() + 2)
    async with serving(place, "new", kind) as (_, _, sums):
        assert await sums.get("counts", "k") == 1
        assert await sums.ask(More("k")) == 2


async def test_a_resize_that_was_cut_off_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: it died while it copied: nobody serves the keyspace, and a second run brings it to its end."""
    address = f"embedded:{tmp_path}"
    async with node_of(address, "a") as (hr, _):
        sums = hr.keyspace(Sums)
        for n in range(20):
            await sums.ask(More(f"k{n}"))
        from headrace.keyspace import resizing

        with monkeypatch.context() as broken:

            async def die(*given: object) -> int:
                raise PartitionClosed("sums-counts", 0, 1)

            broken.setattr(resizing._Resizing, "_copy_partition", die)
            with pytest.raises(PartitionClosed):
                await resize_keyspace(hr.log, hr.settings, Sums, 4)
        waiting = asyncio.create_task(sums.get("counts", "k7", timeout_s=60))
        await resize_keyspace(hr.log, hr.settings, Sums, 4)
        assert await waiting == 1
        assert await sums.count("counts") == 20


async def test_a_resize_that_was_frozen_can_not_undo_anything_when_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: another run has brought it to its end, and callers have written since: what was acknowledged stays."""
    from headrace.keyspace import resizing

    address = f"embedded:{tmp_path}"
    copy, frozen, wakes = resizing._Resizing._copy_partition, asyncio.Event(), asyncio.Event()

    async def freeze(self: resizing._Resizing, *given: Any) -> int:
        if not frozen.is_set():
            frozen.set()
            await wakes.wait()
        return await copy(self, *given)

    monkeypatch.setattr(resizing._Resizing, "_copy_partition", freeze)
    async with node_of(address, "a") as (hr, _):
        sums = hr.keyspace(Sums)
        for n in range(20):
            await sums.ask(More(f"k{n}"))
        first = asyncio.create_task(resize_keyspace(hr.log, hr.settings, Sums, 4))
        await frozen.wait()
        report = await resize_keyspace(hr.log, hr.settings, Sums, 4)
        for n in range(20):
            assert await sums.ask(More(f"k{n}"), timeout_s=60) == 2
        wakes.set()
        with pytest.raises(Fenced):
            await first
        assert await hr.log.admin.describe(f"sums-counts.{report.generation}")
    async with node_of(address, "b") as (hr, _):
        sums = hr.keyspace(Sums)
        assert [await sums.get("counts", f"k{n}", timeout_s=60) for n in range(20)] == [2] * 20


async def test_a_record_that_is_no_layout_stops_nobody(tmp_path: Path) -> None:
    """What others write among the layouts is passed over; keyspaces start, and are resized."""
    address = f"embedded:{tmp_path}"
    async with node_of(address, "a") as (hr, _):
        topic = layouts_topic(hr.settings.cluster.name)
        await hr.log.append([NewRecord(topic, each, b"nonsense", partition=0) for each in (b"sums", b"\xff")])
        await hr.keyspace(Sums).ask(More("k"))
    async with node_of(address, "a") as (hr, _):
        assert (await resize_keyspace(hr.log, hr.settings, Sums, 4)).generation == 2
        assert await hr.keyspace(Sums).get("counts", "k", timeout_s=60) == 1


async def test_callers_wait_while_a_keyspace_is_paused(place: Place) -> None:
    """C10: nobody serves it until it is resumed; who asked meanwhile is answered then, and nothing is lost."""
    name = f"sums-{place.name}"
    async with serving(place, "a", sums_of(name)) as (hr, node, sums):
        assert await sums.ask(More("k")) == 1
        cluster = hr.settings.cluster.name
        assert (await change_phase(hr.log, cluster, name, "paused")).phase == "paused"

        async def is_given_up() -> bool:
            return not node.owned

        await eventually(is_given_up, what="all partitions released")
        with pytest.raises(TimedOut, match="paused"):
            await sums.get("counts", "k", timeout_s=0.2)
        waiting = asyncio.create_task(sums.ask(More("k"), timeout_s=30))
        await change_phase(hr.log, cluster, name, "serving")
        assert await waiting == 2
        with pytest.raises(BadArgument, match="no node of cluster"):
            await change_phase(hr.log, cluster, "nothing", "paused")


async def test_a_node_that_failed_to_follow_a_layout_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C17: one failure does not leave it with the partitions of yesterday."""
    async with node_of(f"embedded:{tmp_path}", "a") as (hr, node):
        sums = hr.keyspace(Sums)
        assert await sums.ask(More("k")) == 1
        withdraw, failures = node._hosting.withdraw, iter([True])

        async def fails_once(name: str) -> None:
            if next(failures, False):
                raise OperationFailed("withdrawing", "once")
            await withdraw(name)

        monkeypatch.setattr(node._hosting, "withdraw", fails_once)
        await resize_keyspace(hr.log, hr.settings, Sums, 3)
        assert await sums.ask(More("k"), timeout_s=30) == 2


async def test_a_keyspace_that_nobody_has_served_is_not_resized(tmp_path: Path) -> None:
    """C17: there is nothing to copy, and the error says so."""
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        with pytest.raises(BadArgument, match="no node of the cluster has served it"):
            await resize_keyspace(hr.log, hr.settings, Sums, 4)


async def test_the_command_resizes_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: headrace keyspace resize and show."""
    address = f"embedded:{tmp_path}"
    async with node_of(address, "a") as (hr, _):
        assert await hr.keyspace(Sums).ask(More("k")) == 1
    where = f"{__name__}:Sums"
    done = await asyncio.to_thread(
        CliRunner().invoke, command, ["keyspace", "resize", where, "--partitions", "3", "--yes", "--log", address]
    )
    assert done.exit_code == 0, done.output
    assert "sums has 3 partitions now" in done.output
    shown = await asyncio.to_thread(CliRunner().invoke, command, ["keyspace", "show", "sums", "--log", address])
    assert "sums has 3 partitions, in generation 2, and is served" in shown.output
    async with node_of(address, "a") as (hr, _):
        assert await hr.keyspace(Sums).get("counts", "k") == 1
