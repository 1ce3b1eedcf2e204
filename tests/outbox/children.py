"""What the children of the outbox's tests do, each in a process of its own. They report by printing lines."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from sqlalchemy import create_engine, text

from headrace.log import open_log
from headrace.outbox import Outbox, OutboxSettings, Relay
from headrace.outbox.engines import engine_for
from headrace.outbox.metrics import LEASES_LOST
from headrace.runtime import watching
from headrace.runtime.crash_points import CRASH_AT_VARIABLE

COUNTERS = "CREATE TABLE IF NOT EXISTS test_counters (name VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"


def die_while_writing(
    url: str, address: str, topic: str, names: list[str], rounds: int, settings: dict[str, Any]
) -> None:
    """Let two writers share keys, and run two relays that are killed with -9, round after round.

    All are forked from this process, which has imported what they need and runs no thread; that makes a round cheap.
    """
    _import_drivers(url, address)
    with _writing(url, topic, names):
        for nr in range(rounds):
            print(f"round {nr} {_die(nr, url, address, settings):.2f} s", flush=True)
    print("written", flush=True)


def _import_drivers(url: str, address: str) -> None:
    engine_for(url).dispose()
    import_module("headrace.log.kafka.log" if address.startswith("kafka:") else "headrace.log.embedded.log")


@contextmanager
def _writing(url: str, topic: str, names: list[str]) -> Iterator[None]:
    """Have two writers until the block ends, and see that both ended well."""
    told, tell = os.pipe()

    def write() -> None:
        os.close(tell)
        _write_until(told, url, topic, names)

    writers = [_forked(write) for _ in range(2)]
    yield
    os.close(tell)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in writers]
    if codes != [0, 0]:
        raise AssertionError(f"writers ended with {codes}")


def _write_until(told: int, url: str, topic: str, names: list[str]) -> None:
    """Raise counters, one in a transaction, and publish each new value under the counter's name."""
    engine = engine_for(url) if url.startswith("sqlite") else create_engine(url)
    producer = Outbox(OutboxSettings(buckets=2)).producer(topic)
    while not select.select([told], [], [], 0.002)[0]:
        name = random.choice(names)
        with engine.begin() as db:
            db.execute(text("UPDATE test_counters SET n = n + 1 WHERE name = :name"), {"name": name})
            n = db.execute(text("SELECT n FROM test_counters WHERE name = :name"), {"name": name}).scalar_one()
            producer.publish(db, b"%d" % n, key=name)


def _die(nr: int, url: str, address: str, settings: dict[str, Any]) -> float:
    """Run two relays; when the first has died at its crash point kill the other wherever it stands.

    Returns how long it took until one had taken over what the last round's dead left, sent some of it and died.
    """
    points = ("outbox.after-send", "outbox.before-delete-commit")
    started_s = time.monotonic()
    armed = [f"{points[(nr + n) % 2]}:{1 + 3 * (nr % 3)}" for n in range(2)]
    relays = [_forked(partial(_relay_armed, at, url, address, settings)) for at in armed]
    _wait_for_a_crash(relays, within_s=60)
    took_s = time.monotonic() - started_s
    for pid in relays:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return took_s


def _relay_armed(armed: str, url: str, address: str, settings: dict[str, Any]) -> None:
    os.environ[CRASH_AT_VARIABLE] = armed
    asyncio.run(_relay(url, address, settings))


def _wait_for_a_crash(relays: list[int], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for pid in relays:
            died = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if died is not None and died.si_code == os.CLD_KILLED:
                return
            if died is not None:
                raise AssertionError(f"a relay ended by itself with {died.si_status}")
        time.sleep(0.005)
    raise AssertionError(f"in {within_s} s no relay came to its crash point: they stand still")


def _forked(work: Callable[[], None]) -> int:
    """Return the process in which the work goes on; it never comes back from here."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


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


def relay_and_freeze(url: str, address: str, topic: str, settings: dict[str, Any], at: str) -> None:
    """Stop the own process when it first comes to a crash point; when thawed, go on until the lease was lost."""
    passes = iter([True])

    def freeze(name: str) -> None:
        if name == at and next(passes, False):
            # To this very thread: sent to the process, another thread may take it, and this one run on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

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
