"""Nodes: joined, serving, routing, moving and draining, in one process and in several."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.cluster import ClusterView, GroupSpec, Holding, Node, PartitionRequest
from headrace.cluster.node import ConnectionPool
from headrace.cluster.server import IncomingRequest, NodeServer
from headrace.config import ClusterSettings, HeadraceSettings, LogSettings
from headrace.errors import BadArgument, Closed, DuplicateNode, NotPartitionOwner, TimedOut
from headrace.testing.processes import running_function

SPEC = GroupSpec(name="accounts", partitions=6, replicas=2)
OpenNode = Callable[[str], Awaitable["Owning"]]


class Owning:
    """A node that takes what it is proposed for at once. The real thing asks the partition's log first."""

    def __init__(self, node_id: str, folder: Path) -> None:
        cluster = ClusterSettings(name="c", node_id=node_id, session_s=1.0, absence_s=0.05)
        settings = HeadraceSettings(log=LogSettings(address=f"embedded:{folder}"), cluster=cluster)
        self.node = Node([(SPEC, self.handle)], settings=settings)
        self.epochs: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def handle(self, request: PartitionRequest, deadline_s: float) -> bytes:
        if request.partition not in self.epochs:
            owner = self.node.view.owner_of("accounts", request.partition) or ""
            raise NotPartitionOwner("accounts", request.partition, self.node.id, owner)
        return f"{self.node.id} ".encode() + request.payload

    async def start(self) -> None:
        await self.node.start()
        self._task = asyncio.create_task(self._obey())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.node.close()

    async def _obey(self) -> None:
        async for view in self.node.views():
            for partition, placement in enumerate(view.placements.get("accounts", ())):
                self._take(view, partition, placement.replicas)

    def _take(self, view: ClusterView, partition: int, replicas: tuple[str, ...]) -> None:
        known = view.owners.get("accounts", {}).get(partition)
        is_first = replicas[:1] == (self.node.id,)
        if is_first and partition not in self.epochs:
            self.epochs[partition] = (known.epoch if known else 0) + 1
        if not is_first:
            self.epochs.pop(partition, None)
        if self.node.id in replicas:
            epoch = self.epochs.get(partition, 0)
            self.node.hold(Holding(group="accounts", partition=partition, offset=9, is_online=True, epoch=epoch))
        else:
            self.node.drop("accounts", partition)


@pytest_asyncio.fixture
async def another(tmp_path: Path) -> AsyncIterator[OpenNode]:
    opened: list[Owning] = []

    async def open_node(node_id: str) -> Owning:
        opened.append(Owning(node_id, tmp_path))
        await opened[-1].start()
        return opened[-1]

    yield open_node
    for each in opened:
        await each.close()


async def until(node: Node, is_so: Callable[[ClusterView], bool]) -> ClusterView:
    async with asyncio.timeout(30):
        async for view in node.views():
            if is_so(view):
                return view
    raise AssertionError("the views ended")


def owners(view: ClusterView) -> set[str]:
    return {each.member for each in view.owners.get("accounts", {}).values()}


async def test_nodes_answer_for_one_another(another: OpenNode) -> None:
    """C2, C8: every node reaches every key, whoever owns it."""
    one, two = await another("node-1"), await another("node-2")
    await until(one.node, lambda view: owners(view) == {"node-1", "node-2"} and len(view.owners["accounts"]) == 6)
    for asking in (one, two):
        for nr in range(20):
            key = f"key-{nr}".encode()
            owner = asking.node.view.owner_of("accounts", asking.node.router.partition("accounts", key))
            reply = await asking.node.router.ask("accounts", key, b"hello")
            assert reply.endswith(b" hello")
            assert owner is not None
    assert len((await one.node.router.scatter("accounts", b"?")).all()) == 6


async def test_a_drained_node_hands_over_without_a_failed_request(another: OpenNode) -> None:
    """C13: requests go on while a node drains and leaves."""
    one, two = await another("node-1"), await another("node-2")
    await until(one.node, lambda view: owners(view) == {"node-1", "node-2"})
    stop, count = asyncio.Event(), 0

    async def load() -> None:
        nonlocal count
        while not stop.is_set():
            await one.node.router.ask("accounts", f"key-{count}".encode(), b"x")
            count += 1
            await asyncio.sleep(0)  # a request to the node itself needs no turn of the loop

    loading = asyncio.create_task(load())
    await two.node.drain(timeout_s=30)
    assert not two.epochs
    await two.close()
    await until(one.node, lambda view: set(view.members) == {"node-1"})
    before = count
    while count < before + 50 and not loading.done():  # noqa: ASYNC110 - it can only be asked
        await asyncio.sleep(0.005)
    stop.set()
    await loading


async def test_what_a_member_was_asked_before_it_left_is_answered() -> None:
    """C13: a caller that hears of its leaving first does not cut the connection that the reply will come over."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: IncomingRequest) -> bytes:
        asked.set()
        await may_answer.wait()
        return request.payload

    settings = ClusterSettings(name="c")
    server, pool = NodeServer("two", {"echo": answer}, settings), ConnectionPool("one", settings)
    await server.start()
    calling = asyncio.create_task(pool.peer("two", server.address).call("echo", b"x", timeout_s=30))
    await asked.wait()
    pool.keep(())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(calling), 0.05)
    may_answer.set()
    assert await calling == b"x"
    await pool.close()
    await server.stop()


async def test_a_second_node_with_the_id_stops(another: OpenNode) -> None:
    """C16: its start fails with an error that names the first, and everything it had opened is closed."""
    one = await another("node-1")
    with pytest.raises(DuplicateNode, match=one.node.address.replace(".", r"\.")):
        await another("node-1")
    assert await one.node.router.ask("accounts", b"k", b"on", timeout_s=5) == b"node-1 on"


async def test_a_killed_node_is_replaced(another: OpenNode, tmp_path: Path) -> None:
    """C9: a request that found the owner dead is answered by the next one."""
    one = await another("node-1")
    with running_function("tests.cluster.nodes:run_node", str(tmp_path), "node-2") as child:
        await asyncio.to_thread(child.wait_for_line, "started", 30)
        view = await until(one.node, lambda view: owners(view) == {"node-1", "node-2"})
        partition = next(n for n, owner in view.owners["accounts"].items() if owner.member == "node-2")
        assert await one.node.router.ask_partition("accounts", partition, b"x") == b"node-2 x"
        child.send_signal(signal.SIGKILL)
        reply = await one.node.router.ask_partition("accounts", partition, b"x", is_read=True, timeout_s=30)
        assert reply == b"node-1 x"


async def test_draining_that_does_not_end_says_so(tmp_path: Path) -> None:
    """The last node has nobody to hand over to."""
    one = Owning("node-1", tmp_path)
    await one.start()
    await until(one.node, lambda view: len(view.owners.get("accounts", {})) == 6)
    with pytest.raises(TimedOut, match="still owns 6 partitions"):
        await one.node.drain(timeout_s=0.2)
    await one.close()
    with pytest.raises(Closed):
        _ = one.node.view


async def test_offsets_are_told_rarely(another: OpenNode) -> None:
    """A busy partition does not keep the coordinator busy; who owns it is told at once."""
    one = await another("node-1")
    await until(one.node, lambda view: len(view.owners.get("accounts", {})) == 6)
    for offset in range(1000):
        one.node.hold(Holding(group="accounts", partition=0, offset=offset, is_online=True, epoch=one.epochs[0]))
    facts = one.node.coordinator._facts
    assert facts is not None
    assert facts.holdings[0].offset == 9
    one.epochs[0] = 99
    one.node.hold(Holding(group="accounts", partition=0, offset=1000, is_online=True, epoch=99))
    await until(one.node, lambda view: view.owners["accounts"][0].epoch == 99)


def test_a_group_is_served_once() -> None:
    """Two handlers for one group are a mistake."""

    async def handle(request: PartitionRequest, deadline_s: float) -> bytes:
        return b""

    with pytest.raises(BadArgument, match="each group is served once"):
        Node([(SPEC, handle), (SPEC, handle)])
