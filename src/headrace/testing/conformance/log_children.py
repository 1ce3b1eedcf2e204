"""The child processes of the log's tests, which report by printing lines."""

from __future__ import annotations

import asyncio
import sys
import time

from headrace.errors import HeadraceError
from headrace.log import Log, Member, open_log, transaction
from headrace.model import NewRecord, TopicPartition
from headrace.testing.conformance.log_groups import Recorder

__all__ = ["append_forever", "append_numbered", "append_on_input", "commit_forever", "member", "transact_and_hang"]


def append_numbered(address: str, topic: str, name: str, count: int) -> None:
    """Append `count` records, one at a time, keyed by name."""

    async def run() -> None:
        log = await open_log(address)
        for n in range(count):
            await log.append([NewRecord(topic, name.encode(), b"%d" % n)])
        await log.close()
        print("done")

    asyncio.run(run())


def append_forever(address: str, topic: str, in_flight: int) -> None:
    """Append until killed, several at once; each acknowledged value is printed after its acknowledgement."""

    async def one(log: Log, worker: int) -> None:
        n = worker
        while True:
            await log.append([NewRecord(topic, b"%d" % worker, b"%d" % n)])
            print(n, flush=True)
            n += in_flight

    async def run() -> None:
        log = await open_log(address)
        print("ready", flush=True)
        await asyncio.gather(*(one(log, worker) for worker in range(in_flight)))

    asyncio.run(run())


def commit_forever(address: str, first: str, second: str, transactional_id: str) -> None:
    """Write the same number to two topics in one transaction, until killed; print each that was committed."""

    async def run() -> None:
        log = await open_log(address)
        producer = await log.transactional(transactional_id)
        print("ready", flush=True)
        n = 0
        while True:
            async with transaction(producer) as opened:
                await opened.append(NewRecord(first, b"k", b"%d" % n), NewRecord(second, b"k", b"%d" % n))
            print(n, flush=True)
            n += 1

    asyncio.run(run())


def append_on_input(address: str, topic: str) -> None:
    """For each line of input append one record that holds the time at which its append began."""

    async def run() -> None:
        log = await open_log(address)
        await log.append([NewRecord(topic, b"k", b"warm")])
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            await log.append([NewRecord(topic, b"k", b"%d" % time.time_ns())])
        await log.close()

    asyncio.run(run())


def transact_and_hang(address: str, topic: str, transactional_id: str) -> None:
    """Open a transaction, append to it, print that, and wait to be killed."""

    async def run() -> None:
        log = await open_log(address)
        producer = await log.transactional(transactional_id)
        await producer.begin()
        await producer.append([NewRecord(topic, b"k", b"never")])
        print("open", flush=True)
        await asyncio.sleep(3600)

    asyncio.run(run())


def member(address: str, topic: str, group: str, session_timeout_s: float) -> None:
    """Join a group; print the calls of the listener, and try to commit partitions that were lost."""

    async def run() -> None:
        log = await open_log(address)
        listener = Recorder()
        joined = await log.groups.join(group, [topic], listener=listener, session_timeout_s=session_timeout_s)
        printed = 0
        while True:
            await joined.poll(timeout_s=0.1)
            for kind, partitions in listener.calls[printed:]:
                print(kind, sorted(at.partition for at in partitions), flush=True)
                if kind == "lost":
                    await _try_commit(joined, dict.fromkeys(partitions, 0))
            printed = len(listener.calls)

    async def _try_commit(joined: Member, offsets: dict[TopicPartition, int]) -> None:
        try:
            await joined.commit(offsets)
            print("committed", flush=True)
        except HeadraceError as error:
            print("refused", type(error).__name__, flush=True)

    asyncio.run(run())
