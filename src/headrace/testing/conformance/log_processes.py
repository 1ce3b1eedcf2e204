"""Several processes that use one log concurrently, some of which are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import defaultdict

import pytest

from headrace.log import Log, transaction
from headrace.model import NewRecord, TopicPartition
from headrace.testing.conformance.log_groups import poll_until
from headrace.testing.conformance.log_setting import LogSetting, new_topic, numbered, read_all, values
from headrace.testing.processes import ChildProcess, running_function

__all__ = ["Processes"]

CHILDREN = "headrace.testing.conformance.log_children"


class Processes(LogSetting):
    """The tests of several processes on one log."""

    wake_up_s = 0.05

    async def test_processes_append_at_once(self, log: Log, topic: str, address: str) -> None:
        """Three processes, one partition: every record once, each process' own order kept."""
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(running_function(f"{CHILDREN}:append_numbered", address, topic, name, 100))
                for name in ("a", "b", "c")
            ]
            for child in children:
                await line(child, "done")
        found = defaultdict(list)
        for record in await read_all(log, topic):
            found[record.key].append(int(record.value or b""))
        assert found == {name: list(range(100)) for name in (b"a", b"b", b"c")}

    async def test_a_reader_is_woken_by_another_process(self, log: Log, topic: str, address: str) -> None:
        """From the append in one process to the waiting reader in another: milliseconds, at the median."""
        delays = []
        with running_function(f"{CHILDREN}:append_on_input", address, topic) as child:
            await line(child, "ready")
            reader = log.read(TopicPartition(topic, 0), 1)
            for _ in range(21):
                waiting = asyncio.ensure_future(anext(reader))
                await asyncio.sleep(0.01)
                child.send_line("go")
                (record,) = (await asyncio.wait_for(waiting, 20)).records
                delays.append((time.time_ns() - int(record.value or b"0")) / 1e9)
            await reader.aclose()  # type: ignore[attr-defined]
        assert statistics.median(delays) < self.wake_up_s

    async def test_what_was_acknowledged_survives_kill_9(self, log: Log, address: str) -> None:
        """A process is killed at random moments while it appends: nothing acknowledged is lost or doubled."""
        for _ in range(3):
            topic = await new_topic(log)
            with running_function(f"{CHILDREN}:append_forever", address, topic, 20) as child:
                await line(child, "ready")
                await asyncio.sleep(random.uniform(0.05, 0.6))
                child.kill()
                acknowledged = {int(text) for text in child.stdout.split("\n")[1:-1]}
            found = [int(value or b"") for value in values(await read_all(log, topic))]
            assert acknowledged <= set(found)
            assert len(found) == len(set(found))
            await log.append(numbered(topic, 1))

    async def test_a_transaction_killed_at_any_moment_is_whole_or_absent(self, log: Log, address: str) -> None:
        """Two topics written together hold the same numbers, and all that was acknowledged."""
        for round_number in range(3):
            first, second = await new_topic(log), await new_topic(log)
            id_ = f"id-{first}-{round_number}"
            with running_function(f"{CHILDREN}:commit_forever", address, first, second, id_) as child:
                await line(child, "ready")
                await asyncio.sleep(random.uniform(0.1, 0.6))
                child.kill()
                acknowledged = child.stdout.split("\n")[1:-1]
            successor = await log.transactional(id_)  # ends the transaction that the dead owner left open
            await successor.close()
            found = values(await read_all(log, first))
            assert found == values(await read_all(log, second))
            assert found[: len(acknowledged)] == [text.encode() for text in acknowledged]

    async def test_a_dead_owner_leaves_nothing_half_done(self, log: Log, topic: str, address: str) -> None:
        """Killed with a transaction open: its successor takes the id, and the dead owner's record is never read."""
        with running_function(f"{CHILDREN}:transact_and_hang", address, topic, f"id-{topic}") as child:
            await line(child, "open")
            child.kill()
        producer = await log.transactional(f"id-{topic}")
        async with transaction(producer) as opened:
            await opened.append(NewRecord(topic, b"k", b"mine"))
        await producer.close()
        assert values(await read_all(log, topic)) == [b"mine"]

    @pytest.mark.timeout(120)
    async def test_a_frozen_member_loses_its_partitions_and_is_informed(self, log: Log, address: str) -> None:
        """Stopped longer than its session: another member takes over; resumed, it gets `lost` and can't commit."""
        topic = await new_topic(log, partitions=2)
        with running_function(f"{CHILDREN}:member", address, topic, f"g-{topic}", 6.0) as child:
            await line(child, r"assigned \[0, 1\]|assigned")
            child.pause()
            member = await log.groups.join(f"g-{topic}", [topic], session_timeout_s=6.0)
            await poll_until(lambda: len(member.assignment) == 2, member, within_s=60)
            child.resume()
            polling = asyncio.ensure_future(poll_until(lambda: False, member, within_s=60))
            await line(child, r"lost \[")
            await line(child, "refused NotOwner")
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await polling
            await member.leave()


async def line(child: ChildProcess, pattern: str) -> str:
    """Wait for a line of a child without holding up the loop."""
    return (await asyncio.to_thread(child.wait_for_line, pattern, 60)).string
