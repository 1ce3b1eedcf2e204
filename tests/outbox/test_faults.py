"""Processes that die and freeze, brokers and databases that go away, clocks that are wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url
from tests.outbox.conftest import GROUNDS, GROUNDS_OF_SLOW_TESTS, SERVERS
from tests.outbox.setting import Ground, count, database_id, first_times, numbered, publish, rows, sequences, shown
from tests.outbox.watched import WatchedLog

from headrace.errors import OutdatedTables
from headrace.log import open_log
from headrace.model import NewRecord, TopicPartition
from headrace.outbox import OutboxSettings, Relay, migrate, schema_version, wake
from headrace.outbox import exactly_once as notes
from headrace.outbox import log_lines as unheard
from headrace.outbox.dialects import mysql, sqlite
from headrace.outbox.engines import engine_for
from headrace.outbox.exactly_once import Notes
from headrace.outbox.messages import Lane, Message
from headrace.outbox.schema import NEWEST, need_newest
from headrace.services import RunningService
from headrace.testing import ChildProcess, running, running_function
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.plugin import Size
from headrace.testing.proxy import TcpProxy

CHILDREN = "tests.outbox.children"


@pytest.mark.parametrize("ground", GROUNDS_OF_SLOW_TESTS, indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_frozen_worker_finds_its_lease_gone(ground: Ground, delivery: str) -> None:
    """L11, L22: frozen between send and delete it is replaced; thawed it deletes and releases nothing, and stops."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 5))
    settings = {"lease_s": 0.3, "delivery": delivery, "source": topic}
    # It renews nothing meanwhile: frozen in the middle of that, it would keep SQLite's only lock.
    frozen_settings = {**settings, "lease_s": 60.0}
    freezing = (f"{CHILDREN}:relay_and_freeze", shown(ground), ground.address, topic, frozen_settings)
    with running_function(*freezing, "outbox.after-send") as frozen:
        await eventually(lambda: _is_stopped(frozen), within_s=60)
        async with ground.relay(**settings) as relay:
            await relay.drain()
            publish(ground.engine, topic, numbered(6, 8))
            await relay.drain()
        publish(ground.engine, topic, [Message(b"9", "k0")])
        before = rows(ground.engine, "kafka_topic_info", "topic")[0]
        frozen.send_signal(signal.SIGCONT)
        await asyncio.to_thread(frozen.wait_for_line, "lost 1", 30)
        assert before["epoch"] >= 2
    records = await ground.records(topic)

    assert [record.value for record in first_times(records)][:8] == [b"%d" % n for n in range(1, 9)]
    if delivery == "exactly_once":
        assert len(records) == len(first_times(records))


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", pytest.param("exactly_once", marks=pytest.mark.full)])
async def test_a_worker_frozen_in_its_transaction_holds_up_nobody(ground: Ground, delivery: str) -> None:
    """L8, L11: a server does not keep the locks of one that stands still for longer than its lease."""
    topic = await ground.topic()
    publish(ground.engine, topic, numbered(1, 5))
    settings = {"lease_s": 1.0, "delivery": delivery, "source": topic}
    freezing = (f"{CHILDREN}:relay_and_freeze", shown(ground), ground.address, topic, settings)
    with running_function(*freezing, "outbox.before-delete-commit") as frozen:
        await eventually(lambda: _is_stopped(frozen), within_s=60)
        await ground.relayed(**settings)
        frozen.send_signal(signal.SIGCONT)
        publish(ground.engine, topic, numbered(6, 8))
        await eventually(lambda: _is_empty(ground))
    records = await ground.records(topic)

    assert [record.value for record in first_times(records)] == [b"%d" % n for n in range(1, 9)]
    if delivery == "exactly_once":
        assert len(records) == len(first_times(records))


async def _is_stopped(child: ChildProcess) -> bool:
    wait = os.waitid  # does not block: WNOHANG
    return wait(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[3:], indirect=True)
async def test_a_transaction_that_a_stranger_left_open_costs_its_time_and_no_more(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L22: it hides the notes behind it; the lane is held back until it has ended, and nothing is sent twice."""
    monkeypatch.setattr(notes, "_NOTE_S", 0.2)
    topic = await ground.topic()
    key = f"{Notes(ground.log, source=topic).transactional_id(Lane(topic, 0))}@{database_id(ground)}"
    at = await Notes(ground.log, source=topic).partition(key)
    before = (await ground.log.bounds(at)).high_watermark
    stranger = await ground.log.transactional(f"stranger-{topic}", timeout_s=60)
    await stranger.begin()
    await stranger.append([NewRecord(notes.PROGRESS_TOPIC, b"stranger", b"{}", partition=at.partition)])
    await eventually(lambda: _is_higher(ground, at, before))
    publish(ground.engine, topic, numbered(1, 3))

    async with ground.relay(delivery="exactly_once", source=topic, max_retry_s=0.5) as relay:
        await eventually(lambda: _has_error(ground, topic))
        assert await ground.values(topic) == []
        await stranger.close()
        await relay.drain()

    assert await ground.values(topic) == [b"1", b"2", b"3"]


async def _is_higher(ground: Ground, at: TopicPartition, before: int) -> bool:
    return (await ground.log.bounds(at)).high_watermark > before


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:], indirect=True)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_broker_that_is_away_costs_nothing_but_time(
    ground: Ground, kafka: RunningService, delivery: str
) -> None:
    """L9: held back with the error on record, nothing dead, and all of it arrives in order when the broker is back."""
    topic = await ground.topic()
    settings = {"send_timeout_s": 1.0, "max_retry_s": 0.5, "delivery": delivery, "source": topic}
    async with ground.relay(**settings) as relay:
        publish(ground.engine, topic, numbered(1, 10))
        await relay.drain()
        await asyncio.to_thread(kafka.pause)
        try:
            publish(ground.engine, topic, numbered(11, 30))
            # A commit waits for the log's own time-out, which is longer than we want to.
            await eventually(lambda: _has_error(ground, topic) if delivery == "at_least_once" else _is_locked(ground))
            assert count(ground.engine) == 20
        finally:
            await asyncio.to_thread(kafka.resume)
        publish(ground.engine, topic, numbered(31, 35))
        await relay.drain(60)
    records = await ground.records(topic)

    assert [record.value for record in first_times(records)] == [b"%d" % n for n in range(1, 36)]
    assert count(ground.engine, "kafka_dead_messages") == 0
    if delivery == "exactly_once":
        assert len(records) == 35


async def _has_error(ground: Ground, topic: str) -> bool:
    return any(row["error"] and row["topic"] == topic for row in rows(ground.engine, "kafka_topic_info", "topic"))


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
async def test_a_database_that_goes_away_needs_no_restart(ground: Ground) -> None:
    """L19: workers crash, are started again, for ever; when the database is back they go on."""
    topic = await ground.topic()
    with TcpProxy(ground.url.host or "", ground.url.port or 0) as proxy:
        through = ground.url.set(host=proxy.host, port=proxy.port)
        async with Relay(through, ground.log, settings=OutboxSettings(lease_s=1.0, threads=2)) as relay:
            publish(ground.engine, topic, numbered(1, 10))
            await relay.drain()
            proxy.cut()
            publish(ground.engine, topic, numbered(11, 20))
            await eventually(lambda: _is_down(relay))
            proxy.restore()
            await eventually(lambda: _is_empty(ground), within_s=60)

    assert [record.value for record in first_times(await ground.records(topic))] == [b"%d" % n for n in range(1, 21)]


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[2:3], indirect=True)
async def test_a_database_that_falls_silent_is_noticed(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: a pulled cable resets no connection; no thread waits forever for an answer on one that is dead."""
    monkeypatch.setattr(mysql, "_SILENCE_S", 1)
    topic = await ground.topic()
    with TcpProxy(ground.url.host or "", ground.url.port or 0) as proxy:
        through = ground.url.set(host=proxy.host, port=proxy.port)
        async with Relay(through, ground.log) as relay:
            publish(ground.engine, topic, numbered(1, 10))
            await relay.drain()
            proxy.drop()
            await eventually(lambda: _is_down(relay))
            proxy.restore()
            publish(ground.engine, topic, numbered(11, 20))
            await eventually(lambda: _is_empty(ground), within_s=60)

    assert [record.value for record in first_times(await ground.records(topic))] == [b"%d" % n for n in range(1, 21)]


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:3], indirect=True)
@pytest.mark.parametrize("is_at_work", [False, True])
async def test_a_relay_ends_though_its_database_is_frozen(ground: Ground, is_at_work: bool) -> None:
    """L18: idle, or with a batch in hand: no thread and no task goes on waiting for an answer."""
    topic = await ground.topic()
    log = WatchedLog(ground.log)
    with TcpProxy(ground.url.host or "", ground.url.port or 0) as proxy:
        through = ground.url.set(host=proxy.host, port=proxy.port)
        relay = Relay(through, log, settings=OutboxSettings(poll_interval_s=0.05))
        await relay.start()
        if is_at_work:
            log.may_pass.clear()
            publish(ground.engine, topic, numbered(1, 3))
            await log.entered.wait()
        else:
            await eventually(lambda: _is_true(relay._database._connections._open))
        proxy.drop()
        log.may_pass.set()
        started_s = time.monotonic()
        await relay.stop(timeout_s=0.5)
        took_s = time.monotonic() - started_s
        await eventually(lambda: _are_over(relay), within_s=15)  # one may be connecting, for 10 s at most

    assert took_s < 8


async def _are_over(relay: Relay) -> bool:
    return not any(thread.is_alive() for thread in relay._database._threads._threads)


async def _is_true(claim: object) -> bool:
    return bool(claim)


async def test_a_relay_that_can_not_connect_is_heard_without_logging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L19: where no handler is set up, one line on stderr says what is wrong; with one, the logs say it."""
    monkeypatch.setattr(unheard, "_has_handlers", lambda _logger: False)
    log = await open_log(f"embedded:{tmp_path / 'log'}")
    async with Relay("postgresql://nobody@127.0.0.1:1/none", log) as relay:
        said: list[str] = []

        async def is_told() -> bool:
            said.append(capsys.readouterr().err)
            return "headrace outbox: the relay can't reach its database: " in "".join(said)

        await eventually(is_told)
        dispatcher = relay._helping._workers["outbox-dispatcher"]
        await eventually(lambda: _is_true(dispatcher.restarts >= 2))

    assert "".join([*said, capsys.readouterr().err]).count("can't reach its database") == 1
    monkeypatch.undo()
    assert unheard._has_handlers(logging.getLogger("headrace.outbox"))  # pytest's own
    unheard.warn_without_logging("something else")
    assert capsys.readouterr().err == ""
    await log.close()


@pytest.mark.parametrize("ground", GROUNDS[:1], indirect=True)
async def test_tables_of_an_earlier_version_are_named(ground: Ground, tmp_path: Path) -> None:
    """FO3: a relay needs the newest tables; until they are there it says what to run, and then begins by itself."""
    url = f"sqlite:///{tmp_path / 'early.db'}"
    migrate(url, to="0001")
    topic = await ground.topic()
    engine = engine_for(url)
    publish(engine, topic, numbered(1, 2))
    with pytest.raises(OutdatedTables, match=rf"version 0001.*needs {NEWEST}; run: headrace outbox migrate"):
        need_newest(url, schema_version(url))
    async with Relay(url, ground.log) as relay:
        await eventually(lambda: _is_down(relay))
        assert count(engine) == 2
        migrate(url)
        await relay.drain()
    engine.dispose()

    assert await ground.values(topic) == [b"1", b"2"]


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[3:], indirect=True)
async def test_a_database_that_is_locked_for_long_needs_no_restart(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L19: a file that another process locks is like a server that is away; when the lock is gone the relay goes on."""
    assert await _is_empty(ground)  # opens this test's own connection, which waits for the relay as long as ever
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_MS", 50)
    topic = await ground.topic()
    async with ground.relay(threads=2) as relay:
        publish(ground.engine, topic, numbered(1, 10))
        await relay.drain()
        with closing(sqlite3.connect(ground.url.database or "", isolation_level=None)) as stranger:
            stranger.execute("BEGIN EXCLUSIVE")
            await eventually(lambda: _is_down(relay))
        publish(ground.engine, topic, numbered(11, 20))
        await eventually(lambda: _is_empty(ground), within_s=60)

    assert [record.value for record in first_times(await ground.records(topic))] == [b"%d" % n for n in range(1, 21)]


async def _is_down(relay: Relay) -> bool:
    return not relay.health.is_up


async def _is_empty(ground: Ground) -> bool:
    return count(ground.engine) == 0


@pytest.mark.parametrize("ground", GROUNDS_OF_SLOW_TESTS, indirect=True)
async def test_wrong_clocks_change_nothing(ground: Ground) -> None:
    """L24: relays five minutes ahead and behind share the work; no lease is stolen, so nothing is sent twice."""
    topic = await ground.topic(partitions=2)
    settings = {"batch_size": 5, "turn_batches": 1, "lease_s": 30.0}
    relaying = (f"{CHILDREN}:relay", shown(ground), ground.address, settings)
    with running_function(*relaying, 300) as ahead, running_function(*relaying, -300) as behind:
        for child in (ahead, behind):
            await asyncio.to_thread(child.wait_for_line, "relaying", 60)
        for first in range(1, 200, 20):
            publish(ground.engine, topic, numbered(first, first + 19, keys=5), buckets=2)
        await eventually(lambda: _is_empty(ground), within_s=60)
    found = sequences(await ground.records(topic))

    assert sorted(n for values in found.values() for n in values) == list(range(1, 201))
    assert all(values == sorted(values) for values in found.values())


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
async def test_notify_wakes_a_relay_in_another_process(ground: Ground, looked: asyncio.Event) -> None:
    """L15: on PostgreSQL a commit elsewhere is told after the commit, and nothing else is needed."""
    topic = await ground.topic()
    with running_function(f"{CHILDREN}:publish_when_told", shown(ground), topic) as child:
        await asyncio.to_thread(child.wait_for_line, "ready", 60)
        async with ground.relay():
            await looked.wait()
            for _ in range(5):
                child.send_line("")
                await asyncio.to_thread(child.wait_for_line, "published", 60)
                await eventually(lambda: _is_empty(ground))


def test_a_process_that_was_forked_has_no_relays() -> None:
    """L15: the event loops of the process before do not run in a worker of a pre-fork server."""
    url, calls = make_url("sqlite:///app.db"), list[int]()

    def note() -> None:
        calls.append(os.getpid())

    wake.add_listener(wake.listening_name(url), note)
    with wake._lock:
        child = os.fork()
        if not child:
            signal.alarm(10)
            wake.announce(url)
            os._exit(len(calls))
    wake.announce(url)
    wake.remove_listener(wake.listening_name(url), note)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert calls == [os.getpid()]


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# Every signal on one ground, and every database with one signal; what else there is to pair is left to --full.
GROUNDS_AND_SIGNALS = [
    *(pytest.param("sqlite-kafka", number, marks=SERVERS) for number in SIGNALS),
    *(pytest.param(f"{database}-kafka", SIGNALS[0], marks=SERVERS) for database in ("postgres", "mariadb")),
    *(
        pytest.param(f"{database}-kafka", number, marks=[SERVERS, pytest.mark.full])
        for database in ("postgres", "mariadb")
        for number in SIGNALS[1:]
    ),
    *(pytest.param("sqlite-embedded", number, marks=pytest.mark.full) for number in SIGNALS),
]


@pytest.mark.parametrize(("ground", "number"), GROUNDS_AND_SIGNALS, indirect=["ground"])
async def test_a_signal_ends_the_relay_in_good_order(ground: Ground, number: signal.Signals, size: Size) -> None:
    """L18: within 5 s under a backlog, with the batch in hand finished, all leases given back and nothing lost."""
    topic, total = await ground.topic(), size(10_000, 100_000)
    publish(ground.engine, topic, [Message(b"%d" % n, key="k") for n in range(1, total + 1)])
    command = ("-m", "headrace.cli", "outbox", "relay", "--database", shown(ground), "--log", ground.address)
    with running(*command, environ={"HEADRACE__OUTBOX__BATCH_SIZE": "100"}) as child:
        await asyncio.to_thread(child.wait_for_line, "relaying", 60)
        await eventually(lambda: _is_below(ground, total), within_s=30)
        started = time.monotonic()
        child.send_signal(number)
        assert await asyncio.to_thread(child.wait, 10) == 0, child.stderr
        took_s = time.monotonic() - started
    left = count(ground.engine)

    assert took_s < 5
    assert {row["locked_by"] for row in rows(ground.engine, "kafka_topic_info", "topic")} == {None}
    assert len(await ground.values(topic)) == total - left
    assert "Traceback" not in child.stderr


async def _is_below(ground: Ground, total: int) -> bool:
    return count(ground.engine) < total


@pytest.mark.servers
@pytest.mark.parametrize("ground", GROUNDS[1:2], indirect=True)
async def test_a_second_signal_ends_the_relay_at_once(ground: Ground, kafka: RunningService) -> None:
    """L18: even while the broker is away and the first one waits."""
    topic = await ground.topic()
    command = ("-m", "headrace.cli", "outbox", "relay", "--database", shown(ground), "--log", ground.address)
    with running(*command) as child:
        await asyncio.to_thread(child.wait_for_line, "relaying", 60)
        publish(ground.engine, topic, numbered(1, 1))
        await eventually(lambda: _is_empty(ground))
        await asyncio.to_thread(kafka.pause)
        try:
            publish(ground.engine, topic, numbered(2, 10))
            await eventually(lambda: _is_locked(ground))
            child.send_signal(signal.SIGTERM)
            await asyncio.to_thread(child.wait_for_line, "stopping", 60)
            started = time.monotonic()
            child.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(child.wait, 10)
            took_s = time.monotonic() - started
        finally:
            await asyncio.to_thread(kafka.resume)

    assert code == 128 + signal.SIGTERM
    assert took_s < 2  # the first one alone would have waited for 3


async def _is_locked(ground: Ground) -> bool:
    return any(row["locked_by"] for row in rows(ground.engine, "kafka_topic_info", "topic"))
