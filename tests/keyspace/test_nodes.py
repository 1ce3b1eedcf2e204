"""Several nodes in one process, each with a connection of its own to one folder: moves, copies, restarts, faults."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.keyspace.accounts import Accounts, Deposit
from tests.keyspace.keyspace_process import Add, Counters
from tests.keyspace.setting import Place, Served, new_key, serving

import headrace.app.nodes
import headrace.cluster.hosted_partition
from headrace.errors import (
    BadArgument,
    DuplicateNode,
    FolderUnusable,
    NotUnique,
    StateBroken,
    StateDiskFull,
    TimedOut,
    Unavailable,
    WrongGroupSize,
)
from headrace.keyspace import EVERY_NODE, Keyspace, KeyspaceClient, State, StateFolder, handles, resize_keyspace, state
from headrace.keyspace.partition import KeyspacePartition
from headrace.log import open_log
from headrace.model import Cleanup
from headrace.runtime import Backoff
from headrace.state import metrics
from headrace.state.rocksdb import RocksDbStore
from headrace.testing.conformance.log_setting import eventually


class Rates(Keyspace, partitions=1, replicas=EVERY_NODE, store="memory"):
    """Data that every node has."""

    rates: State[str, int] = state()


class Fading(Keyspace, partitions=1, replicas=2, store="memory"):
    """A keyspace whose every value has a time to live."""

    notes: State[str, str] = state(ttl="1h")


@dataclass
class Sell:
    """Sell some of what lies on a shelf."""

    shop: str
    shelf: int


class Shelves(Keyspace, partitions=2, replicas=1, store="memory"):
    """Messages whose keys have two parts, the first of which decides the partition."""

    sold: State[tuple[str, int], int] = state()

    @handles(key=lambda message: (message.shop, message.shelf))
    async def sell(self, message: Sell) -> int:
        """Count."""
        total = (await self.sold.get((message.shop, message.shelf)) or 0) + 1
        await self.sold.put((message.shop, message.shelf), total)
        return total


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(f"embedded:{tmp_path / 'log'}", str(tmp_path / "state"))


async def until(claim: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return claim()

    await eventually(holds, every_s=0.01, what=what)


def copy_of(served: Served, partition: int, group: str = "accounts") -> KeyspacePartition:
    host = served.node._hosting.host(group, partition)
    assert isinstance(host, KeyspacePartition)
    return host


async def two_copies(*nodes: Served) -> None:
    """Wait until each node has a copy of everything that has caught up."""

    def have() -> bool:
        hosts = [node.node._hosting.host("accounts", n) for node in nodes for n in range(2)]
        return all(host is not None and host.is_online for host in hosts)

    await until(have, "copies everywhere")


async def test_an_id_is_remembered_by_the_next_owner(place: Place) -> None:
    """A repeat after the owner has gone gets the first reply; another message with the id is still refused."""
    keys = [new_key(0), new_key(1)]
    async with serving(place, "b", calls=Accounts) as caller:
        async with serving(place, "a", Accounts):
            first = [await caller.client.ask(Deposit(key, 5), message_id="m") for key in keys]
        async with serving(place, "c", Accounts):
            assert [await caller.client.ask(Deposit(key, 5), message_id="m") for key in keys] == first
            assert [await caller.client.get("balances", key) for key in keys] == [5, 5]


async def test_an_id_is_remembered_after_a_resize(place: Place) -> None:
    """C17: the reply to a message whose key has several parts moves to the partition of the key's first part."""
    messages = [Sell(new_key(), shelf) for shelf in range(6)]
    async with serving(place, "a", Shelves) as served:
        assert [await served.client.ask(each, message_id="m") for each in messages] == [1] * 6
        await resize_keyspace(served.headrace.log, served.headrace.settings, Shelves, 5)
        assert [await served.client.ask(each, message_id="m", timeout_s=60) for each in messages] == [1] * 6
        assert await served.client.ask(messages[0], message_id="n") == 2


async def test_changes_over_a_hand_over_have_no_hole_and_no_double(place: Place) -> None:
    """G13: a subscriber without a copy, and one with a copy, see each change once and in order while owners change."""
    key, last = new_key(), 60
    async with serving(place, "caller", calls=Accounts) as caller, contextlib.AsyncExitStack() as held:
        first = await held.enter_async_context(serving(place, "a", Accounts))
        followers = [asyncio.create_task(_follow(each.client, key, last)) for each in (caller, first)]
        second = await held.enter_async_context(serving(place, "b", Accounts))
        await two_copies(first, second)
        followers.append(asyncio.create_task(_follow(second.client, key, last)))
        for n in range(last):
            await caller.client.ask(Deposit(key, 1))
            if n == last // 3:
                await first.node.drain()
        async with asyncio.timeout(30):
            seen = await asyncio.gather(*followers)
    for values in seen:
        assert values == list(range(values[0], last + 1))
    assert seen[0][0] == 0


async def _follow(client: KeyspaceClient, key: str, last: int) -> list[int]:
    seen: list[int] = []
    async with contextlib.aclosing(client.changes("balances", key)) as changes:
        async for change in changes:
            if change.is_lagged:  # only before the first change: a copy that was opened later does not reach back to it
                assert (change.value, seen) == (None, [0])
                continue
            seen.append(change.value or 0)
            if change.value == last:
                return seen
    raise AssertionError("the changes ended")


async def test_a_standby_answers_within_the_bound_or_not_at_all(place: Place) -> None:
    """C12, S16: a read that allows staleness is answered by the node's own copy; too old a copy asks the owner.

    A copy is too old for an offset, or a consistency token, that it has not reached.
    """
    key = new_key(0)
    async with serving(place, "a", Accounts) as first, serving(place, "b", Accounts) as second:
        await two_copies(first, second)
        owner, standby = (first, second) if ("accounts", 0) in first.node.owned else (second, first)
        first_put = await owner.client.put("balances", key, 1)
        written = await owner.client.read("balances", key)
        await until(lambda: _has(standby, key), "the standby's copy")
        read = await standby.client.read("balances", key, max_staleness_s=5.0, at_least=written.version)
        assert (read.value, read.version) == (1, written.version)
        for asked in (owner, standby):
            assert await asked.client.get("balances", key, max_staleness_s=math.inf) == 1
            for wrong in (math.nan, -1, True, "5"):
                with pytest.raises(BadArgument, match="number of seconds, 0 or more"):
                    await asked.client.get("balances", key, max_staleness_s=wrong)  # type: ignore[arg-type]
        assert read.age_ms is not None
        assert read.age_ms <= 5000
        await copy_of(standby, 0).states.stop_following()
        second_put = await owner.client.put("balances", key, 2)
        stale = await standby.client.read("balances", key, max_staleness_s=60.0, at_least=first_put.token)
        assert (stale.value, await standby.client.get("balances", key)) == (1, 2)
        assert await standby.client.get("balances", key, max_staleness_s=60.0, at_least=second_put.token) == 2
        written = await owner.client.read("balances", key)
        fresh = await standby.client.read("balances", key, max_staleness_s=60.0, at_least=written.version)
        assert fresh.value == 2


def _has(served: Served, key: str) -> bool:
    return copy_of(served, 0).states.replica("balances").entry(key.encode()) is not None


async def test_a_copy_that_was_owned_until_now_answers_no_stale_read(place: Place) -> None:
    """C12: between losing a partition and following it, a copy does not know its age, and so refuses."""
    key = new_key(0)
    async with serving(place, "a", Accounts) as served:
        await served.client.put("balances", key, 1)
        host = copy_of(served, 0)
        ending = asyncio.Event()
        finish = host.states._queue.finish

        async def slow_finish() -> None:
            await ending.wait()
            await finish()

        host.states._queue.finish = slow_finish  # type: ignore[method-assign]
        await host.lost()
        try:
            with pytest.raises(Unavailable):
                await served.client.get("balances", key, max_staleness_s=60.0, timeout_s=0.3)
        finally:
            ending.set()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
def either(request: pytest.FixtureRequest, place: Place) -> Place:
    """Return a cluster on either log."""
    if request.param == "embedded":
        return place
    kafka = request.getfixturevalue("kafka")
    return Place(f"kafka://{kafka.address}", place.folder, f"c-{uuid.uuid4().hex[:8]}")


async def test_global_state_is_everywhere(either: Place) -> None:
    """S13, C4: every node reads its own copy of the same data; what any node writes goes through the one owner."""
    place = either
    async with (
        serving(place, "a", Rates) as first,
        serving(place, "b", Rates) as second,
        serving(place, "c", Rates) as third,
    ):
        nodes = (first, second, third)
        for n, each in enumerate(nodes):
            await each.client.put("rates", f"k{n}", n)
        assert sum(len(each.node.owned) for each in nodes) == 1
        expected = {f"k{n}": n for n in range(3)}

        async def is_everywhere() -> bool:
            found = [
                {key: await each.client.get("rates", key, max_staleness_s=60.0) for key in expected} for each in nodes
            ]
            copies = [each.node._hosting.host("rates", 0) for each in nodes]
            return all(copies) and found == [expected] * 3

        await eventually(is_everywhere, every_s=0.02, what="the same data everywhere")


async def test_a_node_that_starts_again_finds_its_data(place: Place) -> None:
    """S5: a copy in RocksDB goes on from its checkpoint, and reads nothing of the log again."""
    keys = [new_key() for _ in range(20)]
    async with serving(place, "a", Counters) as served:
        for key in keys:
            await served.client.ask(Add(key))
    applied = metrics.APPLIED.labels("counters-totals")._value.get()
    async with serving(place, "a", Counters) as served:
        assert [await served.client.get("totals", key) for key in keys] == [1] * 20
        assert metrics.APPLIED.labels("counters-totals")._value.get() == applied


async def test_a_second_node_with_the_id_is_refused(place: Place) -> None:
    """C16: the first goes on; the second hears who is there, and whose folder it is."""
    async with serving(place, "a", Counters) as served:
        with pytest.raises(DuplicateNode, match="'a'"):
            async with serving(place, "a", Counters):
                pass
        with pytest.raises(FolderUnusable, match="another process uses it"):
            StateFolder(Path(place.folder) / place.name, "a")
        assert await served.client.ask(Add("k")) == 1


async def test_other_numbers_of_partitions_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """S12: a node that disagrees with its cluster stops; a topic of another size is shown, with what to do."""

    class More(Keyspace, name="accounts", partitions=3, store="memory"):
        balances: State[str, int] = state()

    async with serving(place, "a", Accounts):
        with pytest.raises(WrongGroupSize, match="'accounts' has 2 partitions"):
            async with serving(place, "b", More):
                pass
    monkeypatch.setattr(headrace.app.nodes, "_ONLINE_S", 0.5)
    async with serving(place._replace(name="other"), "c", More) as served:
        await until(lambda: len(served.node.failures) == 3, "the failures")
        assert all("2 partitions, the state is declared with 3" in why for why in served.node.failures.values())
        with pytest.raises(TimedOut):
            await served.client.get("balances", "k", timeout_s=0.1)


async def test_a_broken_copy_harms_its_partition_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder that RocksDB can't open is shown; the other partition is served, and that one after the repair."""
    keys = [new_key(n) for n in range(2)]
    async with serving(place, "a", Counters) as served:
        for key in keys:
            await served.client.ask(Add(key))
    broken = Path(place.folder) / place.name / "a" / "counters" / "totals" / "0"
    current = (broken / "CURRENT").read_bytes()
    (broken / "CURRENT").write_bytes(b"nonsense")
    monkeypatch.setattr(headrace.app.nodes, "_ONLINE_S", 0.5)
    monkeypatch.setattr(headrace.cluster.hosted_partition, "_BACKOFF", Backoff(first_s=0.1, limit_s=0.1))
    async with serving(place, "a", Counters) as served:
        assert await served.client.ask(Add(keys[1])) == 2
        assert list(served.node.failures) == [("counters", 0)]
        assert str(broken) in served.node.failures["counters", 0]
        (broken / "CURRENT").write_bytes(current)
        assert await served.client.ask(Add(keys[0]), timeout_s=30) == 2
        assert not served.node.failures


async def test_a_partition_that_its_new_owner_can_not_serve_goes_to_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose copy is broken gives the partition back, though its lease goes on; callers only wait."""
    owns = KeyspacePartition.owns

    async def broken(self: KeyspacePartition, epoch: int) -> None:
        if self._node == "b":
            raise StateBroken("the folder", "it can't be read")
        await owns(self, epoch)

    async with serving(place, "a", Accounts) as served, serving(place, "b", Accounts) as other:
        await two_copies(served, other)
        partition = served.node._hosting.owned()[0][1]
        key = new_key(partition)
        await served.client.ask(Deposit(key, 1))
        monkeypatch.setattr(KeyspacePartition, "owns", broken)
        monkeypatch.setattr(headrace.cluster.hosted_partition, "_STAND_BACK_S", 0.6)
        hosted = served.node._hosting._hosted["accounts", partition]
        assert hosted._owner is not None
        hosted._release(hosted._owner)
        assert await served.client.get("balances", key) == 1


async def test_who_has_handed_over_is_next_in_line_at_once(place: Place) -> None:
    """The new owner may die in the next moment; its predecessor has not to wait for the time that it stood back."""
    async with serving(place, "a", Accounts) as served, serving(place, "b", Accounts) as other:
        await two_copies(served, other)
        partition = served.node._hosting.owned()[0][1]
        hosted = served.node._hosting._hosted["accounts", partition]
        owner = hosted._owner
        assert owner is not None
        hosted._release(owner)
        await until(lambda: copy_of(other, partition).is_owned, "the other node owns the partition")
        await until(lambda: hosted._releasing is None and owner.owner == "b", "the first node has read so")
        began_s = asyncio.get_running_loop().time()
        await until(lambda: owner._rank is not None, "the first node is in line")
        assert asyncio.get_running_loop().time() - began_s < 1.0


async def test_a_full_disk_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that is committed and can't be applied is unknown to its caller, and read by nobody until it is applied.

    The other partition goes on; when there is space again, the partition does, too, with everything committed. The
    log is told once, and not several times a second.
    """
    keys, others = [new_key(0) for _ in range(2)], [new_key(1) for _ in range(2)]
    write = RocksDbStore.write
    is_full = False

    def full(self: RocksDbStore, writes: object, *, checkpoint: bytes) -> None:
        if is_full and self._folder.match("totals/0"):
            raise StateDiskFull(str(self._folder), "No space left on device")
        write(self, writes, checkpoint=checkpoint)  # type: ignore[arg-type]

    monkeypatch.setattr(RocksDbStore, "write", full)
    async with serving(place, "a", Counters) as served:
        assert [await served.client.ask(Add(key)) for key in keys + others] == [1] * 4
        is_full = True
        with pytest.raises(Unavailable) as failed:
            await served.client.ask(Add(keys[0]), timeout_s=0.5)
        assert not failed.value.outcome_known
        with pytest.raises(TimedOut):
            await served.client.get("totals", keys[1], timeout_s=0.7)
        assert [await served.client.ask(Add(key)) for key in others] == [2, 2]
        assert sum("minding failed" in each.getMessage() for each in caplog.records) == 1
        is_full = False
        assert [await served.client.get("totals", key) for key in keys + others] == [2, 1, 2, 2]


async def test_records_of_owners_outlive_every_time_to_live(place: Place) -> None:
    """An owner's record must never be deleted by age: who starts later would not know that there is an owner.

    The partition is named after the topic that every keyspace has, so that its id does not change with its states.
    """
    async with serving(place, "a", Fading) as served:
        host = copy_of(served, 0, "fading")
        assert host.changelogs[0].topic == "fading-replies"
        log = await open_log(place.address)
        try:
            kinds = [(await log.admin.describe(at.topic)).config.cleanup for at in host.changelogs]
        finally:
            await log.close()
        assert kinds == [Cleanup.COMPACT, Cleanup.COMPACT_DELETE]


async def test_a_keyspace_that_nobody_serves(place: Place) -> None:
    """The error names the keyspaces that there are; a connection without a node says what to do."""
    async with serving(place, "a", Counters) as served:
        with pytest.raises(BadArgument, match="'counters'"):
            await served.headrace.keyspace(Accounts).ask(Deposit("k", 1))
        with pytest.raises(BadArgument, match="has a node already"):
            async with served.headrace.node(Accounts):
                pass
    with pytest.raises(BadArgument, match=r"async with hr\.node"):
        served.headrace.keyspace(Counters)


def _release(*fields: tuple[str, type, Any]) -> type[Keyspace]:
    """Return a release of one keyspace: the class of its values has the same name in each, and some more fields."""
    kind = make_dataclass("Member", [("mail", str), *fields], namespace={"__module__": __name__})

    class Members(Keyspace, partitions=1, replicas=1, store="memory"):
        members: State[str, kind] = state(unique={"mail": lambda each: each.mail})  # type: ignore[valid-type]

    return Members


async def test_a_caller_of_a_newer_release_writes_values_that_must_be_unique(place: Place) -> None:
    """The owner fetches the schema of a value before it looks at it: callers may be upgraded before nodes are."""
    old, new = _release(), _release(("age", int, 0))
    kind = new.spec.states["members"][2]
    async with serving(place, "n1", old) as owner, serving(place, "n2", calls=new) as caller:
        await caller.client.put("members", "ann", kind("a@x", 40))
        with pytest.raises(NotUnique, match="mail 'a@x' belongs to 'ann'"):
            await caller.client.put("members", "bob", kind("a@x", 41))
        assert (await owner.client.get("members", "ann")).mail == "a@x"
        assert await caller.client.get("members", "ann") == kind("a@x", 40)
