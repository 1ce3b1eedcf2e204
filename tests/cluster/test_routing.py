"""Requests to partitions, wherever their owners are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace.cluster.client import Peer
from headrace.cluster.members import AnnouncedOwner, ClusterView, GroupSpec, MemberFacts, Placement
from headrace.cluster.requests import PartitionRequest
from headrace.cluster.retries import Attempts, RequestLanes, RetryVerdict, Trail, judge
from headrace.cluster.routing import ROUTED, Router
from headrace.cluster.routing_table import RoutingTable
from headrace.cluster.server import NodeServer
from headrace.config import ClusterSettings
from headrace.errors import (
    BadArgument,
    Busy,
    Fenced,
    HeadraceError,
    NotPartitionOwner,
    OperationFailed,
    TimedOut,
    Unreachable,
    WrongSeqNr,
)
from headrace.model import partition_of

SETTINGS = ClusterSettings(name="c")
SPEC = GroupSpec(name="accounts", partitions=4, replicas=2)
GROUPS = {"accounts": SPEC, "unplaced": GroupSpec(name="unplaced", partitions=1)}


class Site:
    """A node: its server, its router, and a handler that does what the test says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.owned: set[int] = set()
        self.owner_named = ""
        self.refusals = 0
        self.seen: list[PartitionRequest] = []
        self.errors: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.table = RoutingTable()
        self._peers: dict[str, Peer] = {}
        handlers = {} if name == "client" else {"accounts": self.handle}
        self.router = Router(name, self.table, self, handlers)
        self.server = NodeServer(name, {ROUTED: self.router.serve}, SETTINGS)

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        if request.partition not in self.owned:
            self.refusals += 1
            raise NotPartitionOwner("accounts", request.partition, self.name, self.owner_named)
        self.seen.append(request)
        if self.errors:
            raise self.errors.pop(0)
        await self.gate.wait()
        return f"{self.name} {request.partition} ".encode() + request.payload

    def peer(self, member: str, address: str) -> Peer:
        if member not in self._peers:
            self._peers[member] = Peer(address, node=self.name, settings=SETTINGS, expected=member)
        return self._peers[member]

    async def close(self) -> None:
        await self.router.close()
        for peer in self._peers.values():
            await peer.close()
        await self.server.stop()


class World:
    """Two nodes that hold partitions, and one that only asks."""

    def __init__(self) -> None:
        self.sites = {name: Site(name) for name in ("node-1", "node-2", "client")}
        self.epoch = 0
        self.view = ClusterView()

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]

    @property
    def router(self) -> Router:
        return self.sites["client"].router

    async def start(self) -> None:
        for site in self.sites.values():
            await site.server.start()
        members = {
            name: MemberFacts(id=name, incarnation="1", address=site.server.address, groups=(SPEC,))
            for name, site in self.sites.items()
        }
        placements = (Placement(replicas=("node-1", "node-2")),) * 4
        self.view = ClusterView(members=members, groups=GROUPS, placements={"accounts": placements})
        self.announce(dict.fromkeys(range(4), "node-1"))

    def announce(self, owners: Mapping[int, str], *, takes_over: bool = True) -> None:
        """Let the partitions belong to these, and all know it."""
        self.epoch += 1
        if takes_over:
            self.give(owners)
        known = {
            **self.view.owners.get("accounts", {}),
            **{n: AnnouncedOwner(each, self.epoch) for n, each in owners.items()},
        }
        self.view = msgspec.structs.replace(self.view, owners={"accounts": known}, revision=self.epoch)
        for site in self.sites.values():
            site.table.update(self.view)

    def place(self, replicas: Mapping[int, tuple[str, ...]]) -> None:
        """Let all know other replicas than there are."""
        placements = [Placement(replicas=replicas.get(n, ("node-1", "node-2"))) for n in range(4)]
        self.view = msgspec.structs.replace(self.view, placements={"accounts": tuple(placements)})
        for site in self.sites.values():
            site.table.update(self.view)

    def give(self, owners: Mapping[int, str]) -> None:
        """Let the partitions belong to these, and nobody know it."""
        for partition, owner in owners.items():
            for site in self.sites.values():
                site.owned.discard(partition)
            self.sites[owner].owned.add(partition)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    for site in world.sites.values():
        site.gate.set()
        await site.close()


def key_of(partition: int) -> bytes:
    return next(key for nr in range(1000) if partition_of(key := f"key-{nr}".encode(), 4) == partition)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - it can only be asked
            await asyncio.sleep(0.005)


async def test_a_key_goes_to_the_owner_of_its_partition(world: World) -> None:
    """C1: the partition is the one of Kafka's partitioner, wherever its owner is."""
    world.announce({2: "node-2"})
    assert world.router.partition("accounts", b"test-value-for-partitioner") == 3
    assert await world.router.ask("accounts", b"test-value-for-partitioner", b"x") == b"node-1 3 x"
    assert await world.router.ask("accounts", key_of(2), b"y") == b"node-2 2 y"


async def test_the_owner_itself_is_asked_without_the_network(world: World) -> None:
    """C8: its own handler is called, and refuses and replies as it would for others."""
    await world["node-1"].server.stop()
    assert await world["node-1"].router.ask("accounts", key_of(0), b"x") == b"node-1 0 x"
    world["node-1"].errors = [WrongSeqNr("k", 1, 2)]
    with pytest.raises(WrongSeqNr):
        await world["node-1"].router.ask("accounts", key_of(0), b"x")
    for raised in (ValueError("no such colour"), TimeoutError("of its own")):
        world["node-1"].errors = [raised]
        with pytest.raises(OperationFailed, match=f"{type(raised).__name__}: {raised}") as failed:
            await world["node-1"].router.ask("accounts", key_of(0), b"x")
        assert not failed.value.outcome_known
    world["node-1"].gate.clear()
    with pytest.raises(TimedOut) as timed_out:
        await world["node-1"].router.ask("accounts", key_of(0), b"x", timeout_s=0.05)
    assert not timed_out.value.outcome_known


async def test_an_answer_that_names_the_owner_is_followed(world: World) -> None:
    """C8: the partition has moved and the coordinator does not say so yet; the next request goes there directly."""
    world.place({1: ("node-1",)})
    world.give({1: "node-2"})
    world["node-1"].owner_named = "node-2"
    assert await world.router.ask("accounts", key_of(1), b"x") == b"node-2 1 x"
    assert world["client"].table.owner("accounts", 1) == "node-2"
    assert await world.router.ask("accounts", key_of(1), b"y") == b"node-2 1 y"
    world.announce({1: "node-1"})
    assert await world.router.ask("accounts", key_of(1), b"z") == b"node-1 1 z"


async def test_an_answer_that_names_nobody_leads_to_the_other_replicas(world: World) -> None:
    """C8: with the coordinator away, the replicas are asked in turn."""
    world.give({1: "node-2"})
    assert await world.router.ask("accounts", key_of(1), b"x") == b"node-2 1 x"


async def test_a_partition_without_an_owner_is_waited_for(world: World) -> None:
    """C8: NotOwner is retried until somebody owns the partition, or the deadline passes with a known outcome."""
    world["node-1"].owned.clear()
    asking = asyncio.create_task(world.router.ask("accounts", key_of(0), b"x", timeout_s=20))
    with pytest.raises(TimedOut, match=r"unplaced\[0\] did not finish within 0.2 s; nothing was done") as timed_out:
        await world.router.ask("unplaced", b"k", b"other", timeout_s=0.2)
    assert timed_out.value.outcome_known
    assert not asking.done()
    world.announce({0: "node-2"})
    assert await asyncio.wait_for(asking, 5) == b"node-2 0 x"


async def test_an_owner_that_lost_its_session_is_still_asked(world: World) -> None:
    """C6: the coordinator misses it, and its partitions are proposed to others; it owns them until one takes over."""
    world.announce({0: "node-2"})
    members = {name: facts for name, facts in world.view.members.items() if name != "node-2"}
    owners = {"accounts": {n: owner for n, owner in world.view.owners["accounts"].items() if n != 0}}
    world.view = msgspec.structs.replace(world.view, members=members, owners=owners)
    for site in world.sites.values():
        site.table.update(world.view)
    assert await world.router.ask("accounts", key_of(0), b"x") == b"node-2 0 x"
    assert world["node-1"].refusals == 0
    world.announce({0: "node-1"})
    assert await world.router.ask("accounts", key_of(0), b"x") == b"node-1 0 x"
    assert set(world["client"].table.addresses) == {"node-1", "client"}


async def test_an_announcement_of_a_lower_epoch_changes_nothing(world: World) -> None:
    """C6: a deposed owner that came back to the view still shows what it owned."""
    world.announce({0: "node-2"})
    table = world["client"].table
    old = msgspec.structs.replace(world.view, owners={"accounts": {0: AnnouncedOwner("node-1", 1)}})
    table.update(old)
    assert table.owner("accounts", 0) == "node-2"


async def test_a_node_that_leaves_serves_nothing_more(world: World) -> None:
    """C13: further requests are answered as by one that owns nothing, and find the next owner."""
    world["node-1"].router.stop_serving()
    world["node-2"].owned.add(0)
    assert await world.router.ask("accounts", key_of(0), b"x") == b"node-2 0 x"


async def test_an_owner_that_is_gone_is_retried_until_the_next_one_took_over(world: World) -> None:
    """C8: nothing was sent, so the request needs no id."""
    await world["node-1"].server.stop()
    asking = asyncio.create_task(world.router.ask("accounts", key_of(0), b"x", timeout_s=20))
    await asyncio.sleep(0.05)
    world.announce({0: "node-2"})
    assert await asyncio.wait_for(asking, 5) == b"node-2 0 x"


async def test_an_unknown_outcome_is_repeated_only_with_an_id(world: World) -> None:
    """C8: without one the caller hears of it; with one the attempt says that it is not the first."""
    unknown = Unreachable("somewhere", "lost", outcome_known=False)
    world["node-1"].errors = [unknown]
    with pytest.raises(Unreachable):
        await world.router.ask("accounts", key_of(0), b"x")
    world["node-1"].errors = [unknown]
    assert await world.router.ask("accounts", key_of(0), b"x", command_id="c-1") == b"node-1 0 x"
    assert [each.attempt for each in world["node-1"].seen] == [1, 1, 2]
    world["node-1"].errors = [unknown]
    assert await world.router.ask("accounts", key_of(0), b"x", is_read=True) == b"node-1 0 x"


async def test_an_owner_that_never_replies(world: World) -> None:
    """C8: the deadline ends a request, and says whether it may have been done."""
    world["node-1"].gate.clear()
    with pytest.raises(TimedOut) as timed_out:
        await world.router.ask("accounts", key_of(0), b"x", command_id="c", timeout_s=0.1)
    assert not timed_out.value.outcome_known


async def test_a_repeatable_request_follows_its_partition(world: World) -> None:
    """C8: it does not wait for an owner that is frozen when another one has taken over."""
    world["node-1"].gate.clear()
    reading = asyncio.create_task(world.router.ask("accounts", key_of(0), b"r", is_read=True, timeout_s=30))
    writing = asyncio.create_task(world.router.ask("accounts", key_of(0), b"w", timeout_s=30))
    await until(lambda: len(world["node-1"].seen) == 2)
    world.announce({0: "node-2"})
    assert await asyncio.wait_for(reading, 5) == b"node-2 0 r"
    assert not writing.done(), "a write without an id waits for its own outcome"
    world["node-1"].gate.set()
    assert await writing == b"node-1 0 w"


async def test_a_read_waits_for_no_other_request(world: World) -> None:
    """C9: one that is repeated overtakes what a frozen owner was asked before, and may never answer."""
    world["node-1"].gate.clear()
    writing = asyncio.create_task(world.router.ask("accounts", key_of(0), b"w", timeout_s=30))
    await until(lambda: len(world["node-1"].seen) == 1)
    reading = asyncio.create_task(world.router.ask("accounts", key_of(0), b"r", is_read=True, timeout_s=30))
    await until(lambda: len(world["node-1"].seen) == 2)
    world.announce({0: "node-2"})
    assert await asyncio.wait_for(reading, 10) == b"node-2 0 r"
    assert not writing.done()
    world["node-1"].gate.set()
    assert await writing == b"node-1 0 w"


@pytest.mark.parametrize("options", [{"is_read": True}, {"command_id": "x"}])
async def test_a_member_that_may_be_the_owner_is_not_waited_for_to_the_end(
    world: World, options: Mapping[str, Any]
) -> None:
    """C9: the owner, not ready for a moment, sends callers to a replica that is frozen; they come back to it."""
    world.announce({0: "node-2"}, takes_over=False)
    world["node-1"].owned = {0}
    world["node-1"].gate.clear()
    asking = asyncio.create_task(world.router.ask("accounts", key_of(0), b"x", timeout_s=8, **options))
    async with asyncio.timeout(5):
        while not world["node-1"].seen:  # noqa: ASYNC110 - it is only looked at
            await asyncio.sleep(0.005)
        world["node-2"].owned = {0}
        assert await asking == b"node-2 0 x"


async def test_a_refusal_is_never_repeated(world: World) -> None:
    """C8: not by an ask, and not by an ack."""
    for send in (world.router.ask, world.router.ack):
        world["node-1"].seen.clear()
        world["node-1"].errors = [WrongSeqNr("acc-1", 4, 6)]
        with pytest.raises(WrongSeqNr):
            await send("accounts", key_of(0), b"x")
        assert len(world["node-1"].seen) == 1


async def test_an_ack_has_three_attempts(world: World) -> None:
    """C8: after time-outs and failures; all carry one id, and each its number."""
    unknown = OperationFailed("commit", "lost", outcome_known=False)
    world["node-1"].errors = [unknown, unknown]
    assert await world.router.ack("accounts", key_of(0), b"x") == b"node-1 0 x"
    assert [each.attempt for each in world["node-1"].seen] == [1, 2, 3]
    assert len({each.command_id for each in world["node-1"].seen}) == 1
    world["node-1"].seen.clear()
    world["node-1"].errors = [unknown] * 4
    with pytest.raises(OperationFailed):
        await world.router.ack("accounts", key_of(0), b"x", message_id="m-1")
    assert [each.command_id for each in world["node-1"].seen] == ["m-1"] * 3
    world["node-1"].seen.clear()
    world["node-1"].errors.clear()
    world["node-1"].gate.clear()
    with pytest.raises(TimedOut):
        await world.router.ack("accounts", key_of(0), b"x", attempt_s=0.2)
    numbers = [each.attempt for each in world["node-1"].seen]
    assert numbers in ([1], [1, 2], [1, 2, 3]), "a slow machine may give an attempt up before it arrives"


async def test_an_ack_waits_for_the_next_owner_within_an_attempt(world: World) -> None:
    """C8: answers that nothing was done are no attempts."""
    world["node-1"].owned.clear()
    acking = asyncio.create_task(world.router.ack("accounts", key_of(0), b"x", attempt_s=20))
    await until(lambda: world["node-1"].refusals > 3)
    world.announce({0: "node-2"})
    assert await asyncio.wait_for(acking, 5) == b"node-2 0 x"
    assert len(world["node-2"].seen) == 1


async def test_a_tell_is_sent_at_most_once(world: World) -> None:
    """C8: it finds the owner, is not repeated when it may have been done, and raises nothing."""
    world.give({0: "node-2"})
    world.router.tell("accounts", key_of(0), b"t")
    await until(lambda: len(world["node-2"].seen) == 1)
    world["node-2"].errors = [Unreachable("somewhere", "lost", outcome_known=False)]
    world.router.tell("accounts", key_of(0), b"t")
    await until(lambda: len(world["node-2"].seen) == 2)
    assert await world.router.ask("accounts", key_of(0), b"after") == b"node-2 0 after"
    assert len(world["node-2"].seen) == 3


async def test_scatter_and_gather(world: World) -> None:
    """C11: all partitions, wherever they are; the failures of some don't hide the replies of others."""
    world.announce({1: "node-2", 3: "node-2"})
    gathered = await world.router.scatter("accounts", b"?")
    assert gathered.all() == {0: b"node-1 0 ?", 1: b"node-2 1 ?", 2: b"node-1 2 ?", 3: b"node-2 3 ?"}
    world["node-2"].errors = [BadArgument("x", 1, "no")] * 2
    gathered = await world.router.scatter("accounts", b"?", partitions=[0, 1, 3])
    assert set(gathered.replies) == {0}
    assert {n: type(each) for n, each in gathered.failures.items()} == {1: BadArgument, 3: BadArgument}
    with pytest.raises(BadArgument):
        gathered.all()


async def test_later_requests_of_a_key_wait_for_one_that_is_repeated(world: World) -> None:
    """C8: they would overtake it; those of other keys don't wait."""
    world["node-1"].owned.discard(0)
    key = key_of(0)
    first = asyncio.create_task(world.router.ask("accounts", key, b"1", timeout_s=20))
    second = asyncio.create_task(world.router.ask("accounts", key, b"2", timeout_s=20))
    await asyncio.sleep(0.05)
    third = asyncio.create_task(world.router.ask("accounts", key, b"3", timeout_s=20))
    assert await world.router.ask("accounts", key_of(1), b"other") == b"node-1 1 other"
    with pytest.raises(TimedOut, match="waiting for an earlier request of the key"):
        await world.router.ask("accounts", key, b"4", timeout_s=0.05)
    world.announce({0: "node-2"})
    await asyncio.gather(first, second, third)
    assert [each.payload for each in world["node-2"].seen] == [b"1", b"2", b"3"]


async def test_unknown_groups_and_partitions_are_refused(world: World) -> None:
    """The error says what there is, and what to do if the nodes of a group have not started yet."""
    with pytest.raises(BadArgument, match="the groups of the cluster are 'accounts', 'unplaced'; start a node"):
        await world.router.ask("orders", b"k", b"x")
    with pytest.raises(BadArgument, match="has 4, from 0 on"):
        await world.router.ask_partition("accounts", 4, b"x")


async def test_arguments_of_the_wrong_kind_are_refused(world: World) -> None:
    """Before anything is sent; a time of 0 is no time, not the default."""
    bad: list[tuple[Any, Any, Any]] = [("k", b"x", 1), (b"k", "x", 1), (b"k", bytearray(b"x"), 1), (None, b"x", 1)]
    bad += [(b"k", b"x", timeout) for timeout in (0, -1, float("nan"), float("inf"))]
    for key, payload, timeout_s in bad:
        with pytest.raises(BadArgument):
            await world.router.ask("accounts", key, payload, timeout_s=timeout_s)
    assert world["node-1"].seen == []


async def test_cancelling_at_random_leaves_nothing_behind(world: World) -> None:
    """C8: neither in the router, nor in the connections, nor at the nodes that were asked; others are not harmed."""
    rng = random.Random(7)
    calls = []
    for nr in range(300):
        if nr % 20 == 0:
            world.announce({n: rng.choice(["node-1", "node-2"]) for n in range(4)})
        key, is_read = f"key-{rng.randrange(20)}".encode(), rng.random() < 0.5
        work = world.router.ask("accounts", key, b"x", is_read=is_read, timeout_s=rng.choice([0.001, 0.01, 30]))
        calls.append(asyncio.create_task(work))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(calls).cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert {type(each) for each in outcomes} <= {bytes, asyncio.CancelledError, TimedOut}
    assert sum(isinstance(each, bytes) for each in outcomes) > 50
    assert world.router._lanes._lanes == {}
    assert world.router._away == {}
    for peer in world["client"]._peers.values():
        for connection in peer._opened:
            assert connection._requests == {}
    for name in ("node-1", "node-2"):
        streams = list(world[name].server._streams)
        await until(lambda streams=streams: not any(each._running for each in streams))  # type: ignore[misc]
    assert (await world.router.ask("accounts", b"k", b"after")).endswith(b"after")


async def test_a_node_that_does_not_serve_the_group_names_the_owner(world: World) -> None:
    """C8: a request that came to the wrong node finds its way."""
    peer = world["node-1"].peer("client", world["client"].server.address)
    request = msgspec.msgpack.encode(PartitionRequest("accounts", 2, b"x"))
    with pytest.raises(NotPartitionOwner) as refused:
        await peer.call(ROUTED, request, timeout_s=5)
    assert refused.value.owner == "node-1"


@pytest.mark.parametrize(
    ("error", "with_id", "without"),
    [
        (NotPartitionOwner("t", 0, "n", ""), RetryVerdict(True, False), RetryVerdict(True, False)),
        (Busy("n", 1), RetryVerdict(False, False), RetryVerdict(False, False)),
        (Unreachable("a", "b"), RetryVerdict(True, False), RetryVerdict(True, False)),
        (Unreachable("a", "b", False), RetryVerdict(True, True), RetryVerdict(False, True)),
        (TimedOut("a", 1, False), RetryVerdict(True, True), RetryVerdict(False, True)),
        (BadArgument("a", 1, "b"), RetryVerdict(False, False), RetryVerdict(False, False)),
        (Fenced("t", False), RetryVerdict(False, True), RetryVerdict(False, True)),
    ],
)
def test_what_is_sent_again(error: HeadraceError, with_id: RetryVerdict, without: RetryVerdict) -> None:
    """C8: what says that nothing was done, always; what may have been done, if that is safe; a refusal, never."""
    assert judge(error, is_repeatable=True) == with_id
    assert judge(error, is_repeatable=False) == without


def test_a_busy_node_is_asked_again_about_what_may_have_been_done() -> None:
    """N41: only so can a caller learn what became of its first attempt; all others get Busy at once."""
    assert judge(Busy("n", 1), is_repeatable=True, has_unknown=True) == RetryVerdict(True, False)


def test_members_are_asked_in_turn_until_one_is_named() -> None:
    """C8: a newly named owner is asked next, whoever's turn it is."""
    trail = Trail()
    asked = [trail.next(["a", "b", "c"]) for _ in range(4)]
    assert asked == ["a", "b", "c", "a"]
    assert [trail.next(["c", "a", "b"]), trail.next(["c", "a", "b"]), trail.next(["c"])] == ["c", "a", "c"]
    assert Attempts().after(is_unknown=True).after(is_unknown=False) == Attempts(number=2, failures=2)


async def test_a_request_is_repeated_after_all_earlier_ones_of_its_key() -> None:
    """C8: one that is still under way may have to be repeated, too, and was first."""
    lanes, first = RequestLanes(), ExitStack()
    first.enter_context(lanes.ticket("k"))
    with lanes.ticket("k") as second, lanes.ticket("other") as other:
        await asyncio.wait_for(other.wait_to_repeat(), 1)
        repeating = asyncio.create_task(second.wait_to_repeat())
        await asyncio.sleep(0)
        assert not repeating.done()
        first.close()
        await repeating


async def test_lanes_are_forgotten() -> None:
    """Keys without requests under way cost nothing."""
    lanes, first = RequestLanes(), ExitStack()
    first.enter_context(lanes.ticket("k")).is_repeated = True
    with lanes.ticket("k") as second:
        waiting = asyncio.create_task(second.wait_to_send())
        await asyncio.sleep(0)
        assert not waiting.done()
        first.close()
        await waiting
    assert lanes._lanes == {}


async def test_a_busy_key_does_not_hold_the_requests_that_have_ended() -> None:
    """Requests of one key that overlap without end must not keep all that came before them in memory."""
    lanes = RequestLanes()
    tickets = [lanes.ticket("k").__enter__()]
    for _ in range(10):
        tickets.append(lanes.ticket("k").__enter__())
        tickets[-2].__exit__(None, None, None)
    assert not any(ticket._before for ticket in tickets[:-1])
    tickets[-1].__exit__(None, None, None)
    assert lanes._lanes == {}


class OwnRequest:
    """A request that node-1 answers itself, in words, and others in bytes."""

    def __init__(self, site: Site, partition: int = 0) -> None:
        self._site = site
        self._request = PartitionRequest("accounts", partition, b"x")

    async def here(self, deadline_s: float) -> str:
        return (await self._site.handle(self._request, deadline_s)).decode() + " here"

    def payload(self) -> bytes:
        return self._request.payload

    def decoded(self, reply: bytes) -> str:
        return reply.decode()


async def _ask_here(world: World, *, timeout_s: float = 20.0, command_id: str | None = None) -> str:
    site = world["node-1"]
    asked = OwnRequest(site)
    return await site.router.ask_here("accounts", key_of(0), 0, asked, command_id=command_id, timeout_s=timeout_s)


async def test_the_owner_in_this_process_is_asked_without_bytes(world: World) -> None:
    """C8: its errors reach the caller as those of any owner do."""
    router = world["node-1"].router
    assert router.is_here("accounts", 0)
    assert not router.is_here("unplaced", 0)
    assert await _ask_here(world) == "node-1 0 x here"
    world["node-1"].errors = [WrongSeqNr("k", 1, 2)]
    with pytest.raises(WrongSeqNr):
        await _ask_here(world)
    world["node-1"].errors = [TimeoutError("of its own")]
    with pytest.raises(OperationFailed, match="TimeoutError: of its own") as failed:
        await _ask_here(world)
    assert not failed.value.outcome_known
    world["node-1"].errors = [TimeoutError("of its own")]
    assert await _ask_here(world, command_id="c-1") == "node-1 0 x", "with an id it is asked again"


async def test_what_the_own_copy_does_not_own_goes_to_its_owner(world: World) -> None:
    """C8: the copy names the owner; an unknown outcome is repeated only with an id, and says so."""
    world["node-1"].errors = [Unreachable("the log", "lost", outcome_known=False)]
    with pytest.raises(Unreachable):
        await _ask_here(world)
    world["node-1"].errors = [Unreachable("the log", "lost", outcome_known=False)]
    assert await _ask_here(world, command_id="c-1") == "node-1 0 x"
    assert [each.attempt for each in world["node-1"].seen] == [1, 1, 2]
    world.give({0: "node-2"})
    world["node-1"].owner_named = "node-2"
    assert await _ask_here(world) == "node-2 0 x"
    assert not world["node-1"].router.is_here("accounts", 0)


async def test_a_repeatable_request_to_the_own_copy_follows_its_partition(world: World) -> None:
    """C8: this node may not hear from the log that it was deposed, while the coordinator tells it."""
    world["node-1"].gate.clear()
    once = asyncio.create_task(_ask_here(world))
    repeatable = asyncio.create_task(_ask_here(world, command_id="c-1"))
    await until(lambda: len(world["node-1"].seen) == 2)
    world.announce({0: "node-2"})
    lane = world["node-1"].router._lanes._lanes["accounts", key_of(0)]
    await until(lambda: any(ticket.is_repeated for ticket in lane))
    later = asyncio.create_task(_ask_here(world))
    await asyncio.sleep(0)
    assert not once.done(), "one without an id waits for its own outcome"
    world["node-1"].gate.set()
    assert await once == "node-1 0 x here"
    assert await repeatable == "node-2 0 x"
    assert await later == "node-2 0 x", "it waits behind one that is being repeated"


async def test_what_may_have_been_done_is_not_reported_as_undone_after_waiting_for_others(world: World) -> None:
    """C8: the own copy took both requests; the second can't be repeated in time behind the first, and may be done."""
    world["node-1"].gate.clear()
    world["node-2"].gate.clear()
    first = asyncio.create_task(_ask_here(world, command_id="c-1"))
    second = asyncio.create_task(_ask_here(world, command_id="c-2", timeout_s=0.3))
    await until(lambda: len(world["node-1"].seen) == 2)
    world.announce({0: "node-2"})
    with pytest.raises(TimedOut, match="waiting for an earlier request of the key") as late:
        await second
    assert not late.value.outcome_known
    world["node-2"].gate.set()
    assert await first == "node-2 0 x"


async def test_a_copy_that_refuses_at_once_leaves_time_for_others(world: World) -> None:
    """C8: whoever asks its own node again in a loop lets others run."""
    refused, others = 0, 0

    async def run_beside() -> None:
        nonlocal others
        while refused < 5:
            others += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(run_beside())
    for _ in range(5):
        world["node-1"].errors = [WrongSeqNr("k", 1, 2)]
        with pytest.raises(WrongSeqNr):
            await _ask_here(world)
        refused += 1
    await beside
    assert others >= 5
