"""The owner's exam on the embedded log."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.cluster.owner_exam import OwnerExam, StartNode, owned

from headrace.cluster import OwnedPartition, PartitionTakeover
from headrace.cluster.tail import seconds
from headrace.errors import TimedOut
from headrace.log import Log
from headrace.log.embedded.log import FILE_NAME
from headrace.model import TopicPartition
from headrace.runtime import SYSTEM_CLOCK
from headrace.testing.conformance.log_setting import eventually


class TestOwnerEmbedded(OwnerExam):
    """All of it."""

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        """A folder of the test's own."""
        return f"embedded:{tmp_path / 'log'}"

    async def test_reads_stop_while_another_process_holds_the_write_lock(
        self, tmp_path: Path, topic: str, start: StartNode
    ) -> None:
        """C14: a process stopped in mid-write stops all leases; the owner keeps its partition, and reads on later."""
        node = await start("a")
        owner = await owned(node.replica(TopicPartition(topic, 0)))
        await owner.serve_gate(timeout_s=20)
        with contextlib.closing(sqlite3.connect(tmp_path / "log" / FILE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            async def is_over() -> bool:
                return not owner.may_serve()

            await eventually(is_over, every_s=0.01, what="the end of the lease")
            other.execute("ROLLBACK")
        await owner.serve_gate(timeout_s=20)
        assert not node.losses

    async def test_many_readers_do_not_keep_the_lease_from_being_renewed(
        self, tmp_path: Path, topic: str, start: StartNode
    ) -> None:
        """Readers that wait for a lease look for it together; if each did for itself, nobody had time to renew it."""
        owner = await owned((await start("a")).replica(TopicPartition(topic, 0)))
        await owner.serve_gate(timeout_s=20)
        looks, may_serve = 0, owner.may_serve

        def count() -> bool:
            nonlocal looks
            looks += 1
            return may_serve()

        with contextlib.closing(sqlite3.connect(tmp_path / "log" / FILE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            async def is_over() -> bool:
                return not owner.may_serve()

            await eventually(is_over, every_s=0.01, what="the end of the lease")
            owner.may_serve = count  # type: ignore[method-assign]
            gates = [asyncio.create_task(owner.serve_gate(timeout_s=20)) for _ in range(1000)]
            with pytest.raises(TimedOut):
                await owner.serve_gate(timeout_s=0.3)
            assert looks < 1500
            other.execute("ROLLBACK")
        await asyncio.gather(*gates)

    async def test_a_tool_releases_nothing_before_its_wait_is_over(self, log: Log, topic: str, prefix: str) -> None:
        """C15: raising the epoch goes by a Release, after which nobody waits any more."""
        partition = OwnedPartition(prefix, (TopicPartition(topic, 0),))
        tool = PartitionTakeover(log, partition, "cluster", name="tool", waits_for="?")
        await tool.take_over(timeout_s=20)
        tenure = tool._owner._tenure
        assert tenure is not None
        tenure.wait_until_s = until_s = seconds(SYSTEM_CLOCK) + 0.3
        await tool.raise_epoch(100, timeout_s=20)
        assert seconds(SYSTEM_CLOCK) >= until_s
        assert tool.epoch == 101
        await tool.close()
