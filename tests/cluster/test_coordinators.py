"""Every coordinator takes the exam of all coordinators: in SQLite, in ZooKeeper, in a topic of the log."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from headrace.services import RunningService
from headrace.testing.conformance import CoordinatorConformance
from headrace.testing.conformance.coordinator_setting import OpenCoordinator, Outage, member, until
from headrace.testing.conformance.store_setting import deadline
from headrace.testing.proxy import TcpProxy


class TestEmbeddedCoordinator(CoordinatorConformance):
    """Each test on a file of its own."""

    session_s = 1.0

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"embedded:{tmp_path}"

    @pytest.fixture
    def outage(self, tmp_path: Path, cluster_name: str) -> Outage:
        """Somebody holds the file's lock; readers don't care, so the file is unreadable, too."""
        path = tmp_path / f"cluster-{cluster_name}.db"

        @asynccontextmanager
        async def locked() -> AsyncIterator[None]:
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                db.execute("ROLLBACK")
                db.close()

        return locked


def remove_at_once(client: KazooClient, path: str) -> None:
    """Remove a tree in one transaction: members begin to enter again as soon as a part of it is gone."""
    is_late = deadline(10)
    while True:
        paths = [path]
        for parent in paths:  # grows while it is walked
            with suppress(NoNodeError):
                paths += [f"{parent}/{child}" for child in client.get_children(parent)]
        transaction = client.transaction()
        for each in reversed(paths):
            transaction.delete(each)
        if not any(isinstance(outcome, Exception) for outcome in transaction.commit()):
            return
        assert not is_late(), "the tree changed all the time"


@pytest.mark.servers
class TestZooKeeperCoordinator(CoordinatorConformance):
    """Each test on a cluster of its own, behind a proxy that can be cut."""

    @pytest.fixture
    def proxy(self, zookeeper: RunningService) -> Iterator[TcpProxy]:
        with TcpProxy(zookeeper.host, zookeeper.port) as proxy:
            yield proxy

    @pytest.fixture
    def address(self, proxy: TcpProxy) -> str:
        return f"zookeeper://{proxy.address}"

    @pytest.fixture
    def outage(self, proxy: TcpProxy) -> Outage:
        @asynccontextmanager
        async def cut() -> AsyncIterator[None]:
            proxy.cut()
            try:
                yield
            finally:
                proxy.restore()

        return cut

    async def test_a_server_that_has_lost_everything_gets_it_again(
        self, another: OpenCoordinator, zookeeper: RunningService, cluster_name: str
    ) -> None:
        """C6: members enter again, there is a plan again, and it is the same cluster."""
        one, two = await another(), await another()
        await one.join(member("node-1"))
        await two.join(member("node-2"))
        before = await until(two, lambda view: len(view.members) == 2 and "accounts" in view.placements)
        await until(one, lambda view: view.cluster_id == before.cluster_id)  # a node brings back what it has seen
        client = KazooClient(zookeeper.address)
        await asyncio.to_thread(client.start)
        await asyncio.to_thread(remove_at_once, client, f"/headrace/{cluster_name}")
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
        async with asyncio.timeout(20):
            while len((after := await two.fresh_view()).members) < 2 or "accounts" not in after.placements:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert after.cluster_id == before.cluster_id
        await one.request_drain("node-2")
        await until(one, lambda view: view.draining == {"node-2"})


@pytest.mark.servers
class TestKafkaCoordinator(CoordinatorConformance):
    """Each test on a topic and a group of its own."""

    @pytest.fixture
    def address(self, kafka: RunningService) -> str:
        return f"kafka://{kafka.address}"

    @pytest.fixture
    def outage(self, kafka: RunningService) -> Outage:
        @asynccontextmanager
        async def paused() -> AsyncIterator[None]:
            kafka.pause()
            try:
                yield
            finally:
                kafka.resume()

        return paused
