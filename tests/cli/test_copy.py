"""`headrace copy`: journals from one place to another, exactly, however often it is interrupted and run again."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from tests.cli.conftest import Command
from tests.suites.journal_setting import replicate

from headrace import Event, Headrace, connect
from headrace.app import CopyReport, copy_journals
from headrace.config import HeadraceSettings
from headrace.errors import NothingThere, TargetDiffers, TimedOut, UnknownTopic
from headrace.journal import Journal
from headrace.model import MAX_SEQ_NR, NewRecord, Position, StoredEvent
from headrace.observe import span, traces
from headrace.services import RunningService

FAST = HeadraceSettings.model_validate({"log": {"embedded": {"fsync": False}}, "store": {"embedded": {"fsync": False}}})


class Pair(NamedTuple):
    """Where journals are copied from, and to."""

    source: Headrace
    target: Headrace
    topic: str

    async def copy(self) -> CopyReport:
        (report,) = await copy_journals(self.source, self.target, [self.topic])
        return report

    def journals(self) -> tuple[Journal, Journal]:
        return self.source.journal(self.topic, partitions=3), self.target.journal(self.topic)


@pytest_asyncio.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two folders."""
    async with AsyncExitStack() as stack:
        places = [f"embedded:{tmp_path / name}" for name in ("from", "to")]
        source, target = [await stack.enter_async_context(connect(place, settings=FAST)) for place in places]
        yield Pair(source, target, "accounts")


async def write_all_kinds(journal: Journal) -> list[str]:
    """Write journals of every kind, and return their ids; the one that is purged has none any more."""
    await journal.append("plain", [Event(1, {"n": 1}, ("vip", "eu")), Event(2, "text")], metadata={"by": "me"})
    await journal.append("plain", [Event(3, b"\x00\xff"), Event(4)], headers={"h": "1"}, origin="o", version="v")
    await journal.append("plain", [Event(9, 1.5, ("vip",))], payload_metadata=[1])
    await journal.append("cut", [Event(n, n) for n in range(1, 6)])
    await journal.delete("cut", to=3)
    await journal.append("emptied", [Event(n, n) for n in range(1, 6)])
    await journal.delete("emptied", to=MAX_SEQ_NR)
    await journal.append("purged", [Event(1, 1)])
    await journal.purge("purged")
    await journal.append("again", [Event(1, "old")])
    await journal.purge("again")
    await journal.append("again", [Event(1, "new"), Event(2, "new")])
    await journal.append("saved", [Event(n, n) for n in range(1, 8)])
    for seq_nr in (3, 5):
        await journal.snapshots.save("saved", seq_nr, {"sum": seq_nr}, timestamp_ms=1000 * seq_nr)
    await journal.delete("saved", to=5)
    await journal.append("late", [Event(5, 5)])
    return ["plain", "cut", "emptied", "again", "saved", "late", "purged"]


def shown(event: StoredEvent) -> tuple[Any, ...]:
    record = (event.metadata, event.payload_metadata, dict(event.headers), event.origin, event.version)
    return (event.seq_nr, event.payload, event.tags, *record)


async def state_of(journal: Journal, ids: Sequence[str]) -> dict[str, Any]:
    """Return all that a reader can see, which events were appended together included."""
    found: dict[str, Any] = {}
    for id_ in ids:
        events = [event async for event in journal.read(id_)]
        places = [(event.partition, event.offset) for event in events]
        together = [place == before for before, place in pairwise(places)]
        snapshot = await journal.snapshots.load(id_)
        older = await journal.snapshots.load(id_, max_seq_nr=snapshot.seq_nr - 1) if snapshot else None
        found[id_] = (await journal.pointer(id_), [shown(event) for event in events], together, snapshot, older)
    return found


@pytest.mark.parametrize("replicated", ["nothing", "half", "all"])
async def test_what_a_reader_sees_is_copied(pair: Pair, replicated: str) -> None:
    """Events, pointers, deletes and snapshots, wherever the source keeps them; a second run changes nothing."""
    source, target = pair.journals()
    if replicated == "half":
        await source.append("first", [Event(1, "x")])
        await replicate(pair.source.log, pair.source.store, pair.topic)
    ids = await write_all_kinds(source)
    if replicated == "all":
        await replicate(pair.source.log, pair.source.store, pair.topic)
    first = await pair.copy()
    expected = await state_of(source, ids)
    assert await state_of(target, ids) == expected
    assert expected["purged"][:2] == (None, [])
    assert expected["emptied"][:2] == (5, [])
    half = 1 if replicated == "half" else 0
    assert (first.journals, first.events_copied, first.snapshots_copied) == (6 + half, 12 + half, 2)
    assert (await pair.target.log.admin.describe(pair.topic)).partitions == 3
    again = await pair.copy()
    assert (again.journals, again.events_copied, again.events_present) == (6 + half, 0, 12 + half)
    assert (again.snapshots_copied, again.deletes, again.held) == (0, 0, [])
    await replicate(pair.target.log, pair.target.store, pair.topic)
    assert await state_of(target, ids) == expected
    back = await copy_journals(pair.target, pair.source, [pair.topic])
    assert (back[0].events_copied, back[0].deletes) == (0, 0), "the way back finds that all is there"


async def test_a_traced_copy_adds_no_headers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy's own trace is not part of what a reader sees: a second run finds equal events, and changes nothing."""
    source, target = pair.journals()
    await source.append("untraced", [Event(1, "x")])
    monkeypatch.setattr(traces, "_tracer", TracerProvider(shutdown_on_exit=False).get_tracer("headrace"))
    await source.append("traced", [Event(1, "x")])
    ids = ["untraced", "traced"]
    with span("copy"):
        assert (await pair.copy()).events_copied == 2
        assert (await pair.copy()).events_copied == 0
    assert await state_of(target, ids) == await state_of(source, ids)


async def test_what_happened_since_is_added(pair: Pair) -> None:
    """A later run brings later appends, deletes and new journals, and appends only those."""
    source, target = pair.journals()
    ids = await write_all_kinds(source)
    await pair.copy()
    await source.append("plain", [Event(10, "more")])
    await source.delete("plain", to=2)
    await source.delete("again", to=MAX_SEQ_NR)
    await source.append("newborn", [Event(1, 1)])
    later = await pair.copy()
    assert (later.events_copied, later.deletes) == (2, 2)
    assert await state_of(target, [*ids, "newborn"]) == await state_of(source, [*ids, "newborn"])


async def test_a_snapshot_that_was_saved_again_is_copied_again(pair: Pair) -> None:
    """A state that was put right in the source after the first run is the one that the target has after the second."""
    source, target = pair.journals()
    await source.append("k", [Event(1), Event(2)])
    await source.snapshots.save("k", 2, "wrong", timestamp_ms=2000)
    assert (await pair.copy()).snapshots_copied == 1
    await source.snapshots.save("k", 2, "right", timestamp_ms=3000)
    assert [(await pair.copy()).snapshots_copied for _ in range(2)] == [1, 0]
    assert await target.snapshots.load("k") == await source.snapshots.load("k")


class FailingLog:
    """A log whose n-th append or delete is written, or is not, and answered with a time-out either way."""

    def __init__(self, log: Any, fails_at: int, *, is_written: bool) -> None:
        self._log, self._left, self._is_written = log, fails_at, is_written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[NewRecord]) -> Sequence[Position]:
        if any(b'"mark"' in (value or b"") for record in records for _, value in record.headers):
            marks: Sequence[Position] = await self._log.append(records)
            return marks
        self._left -= 1
        is_failing = self._left == 0
        if not is_failing or self._is_written:
            written: Sequence[Position] = await self._log.append(records)
            if not is_failing:
                return written
        raise TimedOut("append", 1.0, outcome_known=False)


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "lost"])
async def test_an_interrupted_copy_goes_on(pair: Pair, is_written: bool) -> None:
    """Whichever write fails, and whether or not it was written: the next run ends where a single run would have."""
    source, target = pair.journals()
    ids = await write_all_kinds(source)
    expected = await state_of(source, ids)
    log, interrupted = pair.target.log, 0
    for fails_at in (1, 2, 3, 4, 1, 2, 1):
        pair.target.log = FailingLog(log, fails_at, is_written=is_written)  # type: ignore[assignment]
        try:
            await pair.copy()
        except TimedOut:
            interrupted += 1
        finally:
            pair.target.log = log
    await pair.copy()
    assert interrupted
    assert await state_of(target, ids) == expected
    moments = [m async for m in target.history("plain")]
    assert [m.effect for m in moments].count("appended") == 3


@pytest.mark.parametrize(
    ("rival", "message"),
    [
        ({"plain": [Event(1, "other")]}, "has event 1, and the source has another event there"),
        ({"plain": [Event(1, {"n": 1}, ("eu", "vip"))]}, "has event 1, and the source has another event there"),
        ({"plain": [Event(20, 1)]}, "has event 20, and the source is at 9"),
        ({"plain": [Event(7, 1)]}, "has event 7, and the source has no such event"),
        ({"own": [Event(1, 1)]}, "has event 1, and the source has no such journal"),
        ({"purged": [Event(1, 1)]}, "has event 1, and the source has no such journal"),
    ],
    ids=["payload", "tags", "ahead", "between", "own", "purged"],
)
async def test_a_target_with_other_events_is_refused(pair: Pair, rival: dict[str, list[Event]], message: str) -> None:
    """Nothing is appended to a journal of the target that is not the source's, and nothing is removed from it."""
    source, target = pair.journals()
    await write_all_kinds(source)
    for id_, events in rival.items():
        await target.append(id_, events)
    before = await state_of(target, list(rival))
    with pytest.raises(TargetDiffers, match=message):
        await pair.copy()
    assert await state_of(target, list(rival)) == before


async def test_a_copy_expires_when_the_original_would_have(pair: Pair) -> None:
    """The time that has passed counts: an hour's rest of a day is an hour in the copy too."""
    source, _ = pair.journals()
    await source.append("k", [Event(1, 1)], expire_after="2 days")
    await pair.copy()
    for hr in (pair.source, pair.target):
        await replicate(hr.log, hr.store, pair.topic)
    metas = [await hr.store.reader.meta(pair.topic, "k") for hr in (pair.source, pair.target)]
    expire_ms = [meta.expire_on_ms for meta in metas if meta is not None and meta.expire_on_ms is not None]
    assert abs(expire_ms[1] - expire_ms[0]) <= 1000


async def test_a_topic_that_is_not_there_is_an_error(pair: Pair) -> None:
    """It is not taken for one without journals."""
    with pytest.raises(UnknownTopic):
        await copy_journals(pair.source, pair.target, ["nope"])


def test_copy_from_the_command_line(command: Command) -> None:
    """All journal topics, counts for people and as JSON lines; an empty source is named and makes no target."""
    assert isinstance(command("copy", "embedded:./none", "embedded:./to").exception, NothingThere)
    for topic in ("accounts", "orders"):
        command("journal", "append", topic, "a", "1", "2")
    assert not Path("to").exists()
    done = command("copy", "embedded:./data", "embedded:./to")
    assert "accounts: 1 journals, 2 events copied, 0 were there" in done.stdout
    again = command("copy", "embedded:./data", "embedded:./to", "--json")
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [(row["topic"], row["events_copied"], row["events_present"]) for row in rows] == [
        ("accounts", 0, 2),
        ("orders", 0, 2),
    ]
    assert "same place" in str(command("copy", "embedded:./data", "embedded:./data").exception)


@pytest.mark.servers
@pytest.mark.timeout(300)
async def test_from_a_folder_to_servers_and_back(
    kafka: RunningService, cassandra: RunningService, tmp_path: Path
) -> None:
    """Embedded to Kafka and Cassandra and from there into another folder: all three show the same."""
    topic = f"copied-{uuid.uuid4().hex[:8]}"
    keyspace = f"cassandra://{cassandra.address}/copies"
    async with (
        connect(f"embedded:{tmp_path / 'one'}", settings=FAST) as one,
        connect(f"kafka://{kafka.address}", store=keyspace) as served,
        connect(f"embedded:{tmp_path / 'two'}", settings=FAST) as two,
    ):
        ids = await write_all_kinds(one.journal(topic, partitions=3))
        expected = await state_of(one.journal(topic), ids)
        await Pair(one, served, topic).copy()
        assert await state_of(served.journal(topic), ids) == expected
        assert (await Pair(one, served, topic).copy()).events_copied == 0
        await replicate(served.log, served.store, topic)
        await Pair(served, two, topic).copy()
        assert await state_of(two.journal(topic), ids) == expected
