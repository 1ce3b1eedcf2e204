"""What the children of the outbox's tests do, each in a process of its own. They report by printing lines."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from sqlalchemy import create_engine, text

from headrace.log import open_log
from headrace.outbox import Outbox, OutboxSettings, Relay
from headrace.outbox.engines import engine_for
from headrace.outbox.metrics import LEASES_LOST
from headrace.runtime import watching
from headrace.runtime.crash_points import CRASH_AT_VARIABLE

COUNTERS = "CREATE TABLE IF NOT EXISTS test_counters (name VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"


def write_until_told(url: str, topic: str, names: list[str], buckets: int) -> None:
    """Raise counters, one in a transaction, and publish each new value under the counter's name; two may share them."""
    engine = engine_for(url) if url.startswith("sqlite") else create_engine(url)
    producer = Outbox(OutboxSettings(buckets=buckets)).producer(topic)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    print("ready", flush=True)
    while not told.is_set():
        name = random.choice(names)
        with engine.begin() as db:
            db.execute(text("UPDATE test_counters SET n = n + 1 WHERE name = :name"), {"name": name})
            n = db.execute(text("SELECT n FROM test_counters WHERE name = :name"), {"name": name}).scalar_one()
            producer.publish(db, b"%d" % n, key=name)
        time.sleep(0.002)
    print("done", flush=True)


def die_again_and_again(url: str, address: str, topic: str, rounds: int, settings: dict[str, Any]) -> None:
    """Run two relays and kill both with -9, round after round: one at a crash point, the other wherever it stands.

    They are forked from a process that has imported all there is and runs no thread, which makes a round cheap.
    """
    points = ("outbox.after-send", "outbox.before-delete-commit")
    for nr in range(rounds):
        armed = f"{points[nr % 2]}:{1 + nr % 3}"
        first, second = _forked(url, address, settings, armed), _forked(url, address, settings, None)
        _wait(first, within_s=20)
        for pid in (first, second):
            _kill(pid)
        print(f"round {nr}", flush=True)


def _forked(url: str, address: str, settings: dict[str, Any], armed: str | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    if armed:
        os.environ[CRASH_AT_VARIABLE] = armed
    asyncio.run(_relay(url, address, settings))
    os._exit(0)


def _wait(pid: int, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < deadline:
        time.sleep(0.01)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def _relay(url: str, address: str, settings: dict[str, Any]) -> None:
    log = await open_log(address)
    async with Relay(url, log, settings=OutboxSettings(**settings)):
        print("relaying", flush=True)
        await asyncio.sleep(3600)


def relay(url: str, address: str, settings: dict[str, Any], skew_s: float = 0) -> None:
    """Relay until killed, with a clock that is wrong."""
    if skew_s:
        true_ns, true_s = time.time_ns, time.time
        time.time_ns = lambda: true_ns() + int(skew_s * 1e9)
        time.time = lambda: true_s() + skew_s
    asyncio.run(_relay(url, address, settings))


def relay_and_freeze(url: str, address: str, topic: str, settings: dict[str, Any]) -> None:
    """Stop the own process between the first send and its delete; when thawed, tell how the lease was lost."""
    passes = iter([True])

    def freeze(name: str) -> None:
        if name == "outbox.after-send" and next(passes, False):
            os.kill(os.getpid(), signal.SIGSTOP)

    async def run() -> None:
        log = await open_log(address)
        async with Relay(url, log, settings=OutboxSettings(**settings)):
            while LEASES_LOST.labels(topic)._value.get() == 0:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.01)
            print(f"lost {LEASES_LOST.labels(topic)._value.get():.0f}", flush=True)
        await log.close()

    with watching(freeze):
        asyncio.run(run())


def publish_when_told(url: str, topic: str) -> None:
    """Publish one message for each line of input."""
    engine = engine_for(url) if url.startswith("sqlite") else create_engine(url)
    producer = Outbox().producer(topic)
    with engine.begin() as db:
        db.execute(text("SELECT 1"))
    print("ready", flush=True)
    while sys.stdin.readline():
        with engine.begin() as db:
            producer.publish(db, b"%d" % time.time_ns())
        print("published", flush=True)
