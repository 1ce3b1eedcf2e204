"""Timers: set, replaced and cancelled with their command, fired once at or after their time, whatever owners do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import EngineNode, EngineSetting, embedded_only

from headrace.cluster import batch_of
from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    Cancel,
    CommandContext,
    Engine,
    EngineLimits,
    Rejected,
    Schedule,
    Timer,
    timer_loop,
)
from headrace.engine.timers import RecordTimers, due_at_ms
from headrace.errors import (
    BadArgument,
    CommandFailed,
    NotReadable,
    OutcomeUnknown,
    TransactionFailed,
    UnknownCommand,
)
from headrace.runtime import SYSTEM_CLOCK, Backoff
from headrace.state import JsonValues
from headrace.testing.clock import SettableClock
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.engines import EngineHarness, given


class Set(msgspec.Struct, frozen=True):
    """Set a timer for `Ring`."""

    name: str
    after: float = 10.0
    to: str | None = None
    note: str = "rang"


class Stop(msgspec.Struct, frozen=True):
    name: str


class Ring(msgspec.Struct, frozen=True):
    note: str = "rang"


class Erase(msgspec.Struct, frozen=True):
    then_ring: bool = False


class Wrote(msgspec.Struct, frozen=True):
    note: str


class Erased(msgspec.Struct, frozen=True):
    pass


def clock_engine(name: str, **options: Any) -> Engine[list[str]]:
    """Return an engine whose timers write a note into the journal."""
    engine: Engine[list[str]] = Engine(name, **{"state": list[str], "partitions": 1, **options})

    @engine.command
    def set_(notes: list[str] | None, command: Set, context: CommandContext[list[str]]) -> Wrote:
        context.schedule(Ring(command.note), after=command.after, name=command.name, aggregate=command.to)
        return Wrote("set")

    @engine.command
    def stop(notes: list[str] | None, command: Stop) -> list[Any]:
        return [Cancel(command.name)]

    @engine.command
    def ring(notes: list[str] | None, command: Ring, context: CommandContext[list[str]]) -> Wrote:
        if command.note == "broken":
            raise ValueError("the bell is broken")
        if command.note == "refused":
            context.reject("refused")
        return Wrote(command.note)

    @engine.command
    def erase(notes: list[str] | None, command: Erase) -> list[Any]:
        return [Erased(), *([Schedule(command=Ring("after"), after=10)] if command.then_ring else [])]

    @engine.event
    def wrote(notes: list[str] | None, event: Wrote) -> list[str]:
        return [*(notes or []), event.note]

    @engine.event
    def erased(notes: list[str] | None, event: Erased) -> None:
        return None

    return engine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    """A clock that tests move, ahead of the log's own; owners look at it often."""
    monkeypatch.setattr(timer_loop, "_LOOK_AGAIN_S", 0.005)
    return SettableClock(SYSTEM_CLOCK.now_ms() + 3 * 3_600_000)


async def notes_of(node: EngineNode, aggregate: str = "a") -> list[str]:
    record = await node.record(aggregate)
    return [] if record is None or record.state is None else msgspec.json.decode(record.state)


async def until(node: EngineNode, claim: Callable[[list[str]], bool], aggregate: str = "a") -> list[str]:
    async def holds() -> bool:
        return claim(await notes_of(node, aggregate))

    await eventually(holds, every_s=0.005, what="the note of a timer")
    return await notes_of(node, aggregate)


async def test_a_timer_fires_once_at_its_time_and_leaves_the_record_with_its_effect(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: nothing happens before its time; then the event and the record without the timer are one batch."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=10))
    clock.advance(9.999)
    assert node.partition._own_work.timers._until_next_s() == 0.001
    assert await notes_of(node) == ["set"]
    clock.advance(0.001)
    assert await until(node, lambda notes: "rang" in notes) == ["set", "rang"]
    last, event = (await setting.records(engine.state_topic))[-1], (await setting.records(engine.name))[-1]
    assert batch_of(last) == batch_of(event)
    assert (await setting.states(engine))[-1].timers == ()  # type: ignore[union-attr]
    clock.advance(100)
    await node.send("b", Ring())
    assert await notes_of(node) == ["set", "rang"]


@pytest.mark.parametrize("loses", ["", "commit", "answer"])
async def test_a_timer_outlives_its_owner_and_fires_once(
    setting: EngineSetting, clock: SettableClock, loses: str
) -> None:
    """N40: the owner dies before it fires, or the commit of the firing or its answer is lost: it fires once."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=10))
    if not loses:
        node = await setting.fails_over(node, "n2")
    # The first commit only counts the attempt.
    setting.unsure.skips, setting.unsure.loses = (1, loses) if loses else (0, "")
    clock.advance(10)
    assert await until(node, lambda notes: "rang" in notes) == ["set", "rang"]
    await node.send("b", Ring())
    assert not setting.unsure.loses
    assert await setting.payloads(engine) == [{"note": "set"}, {"note": "rang"}, {"note": "rang"}]


async def test_an_owner_that_dies_after_firing_leaves_nothing_to_fire(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: the next owner finds the record without the timer."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=1))
    clock.advance(1)
    await until(node, lambda notes: "rang" in notes)
    node = await setting.fails_over(node, "n2")
    clock.advance(1)
    await node.send("b", Ring())
    assert await notes_of(node) == ["set", "rang"]


@embedded_only
async def test_a_timer_that_was_cancelled_or_replaced_does_not_fire(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: cancelled is cancelled; of one name there is one timer, the last; what was set in a rejection is not set."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("cancelled", after=1))
    await node.send("a", Set("t", after=1, note="first"))
    await node.send("a", Set("t", after=5, note="second"))
    await node.send("a", Set("other", after=2, note="other"))
    await node.send("a", Stop("cancelled"))
    clock.advance(2)
    assert await until(node, lambda notes: "other" in notes) == ["set"] * 4 + ["other"]
    clock.advance(3)
    assert (await until(node, lambda notes: "second" in notes))[-2:] == ["other", "second"]


@pytest.mark.parametrize("none_states", ["keep", "purge"])
async def test_an_aggregate_that_is_gone_takes_its_timers_along(
    setting: EngineSetting, clock: SettableClock, none_states: Any
) -> None:
    """N40: timers set before are cancelled with the state; one set by that very command stays, and fires."""
    engine = clock_engine(setting.name(), none_states=none_states)
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=1))
    await node.send("a", Erase(then_ring=True))
    node.partition.housekeeping.sweep()
    clock.advance(10)
    assert await until(node, bool) == ["after"]
    record = await node.record("a")
    assert record is not None
    assert record.version == (3 if none_states == "keep" else 1)
    await node.send("a", Set("t", after=1))
    assert [each.name for each in (await node.record("a")).timers] == ["t"]  # type: ignore[union-attr]
    await node.send("a", Erase())
    assert (await node.record("a")).timers == ()  # type: ignore[union-attr]


@embedded_only
async def test_a_clock_that_is_put_back_neither_fires_early_nor_holds_timers_up(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: the partition's time goes on where it was, also for timers that are set meanwhile."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=10))
    clock.set(clock.now_ms() - 3_600_000)
    clock.advance(9.5)
    await node.send("b", Set("u", after=10))
    assert (await notes_of(node), await notes_of(node, "b")) == (["set"], ["set"])
    clock.advance(0.5)
    await until(node, lambda notes: "rang" in notes)
    assert await notes_of(node, "b") == ["set"]
    clock.advance(9.5)
    await until(node, lambda notes: "rang" in notes, "b")


@embedded_only
async def test_many_due_timers_fire_some_at_a_time_and_commands_are_handled_between_them(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: at most 100 are on their way; a command is answered while all of those wait, also of passivated ones."""
    engine: Engine[int] = Engine(setting.name(), state=int, partitions=1)
    running, may_go, most = [0], asyncio.Event(), [0]

    @engine.command
    def set_(count: int | None, command: Set) -> list[Any]:
        return [Schedule(command=Ring(), after=1)]

    @engine.command
    async def ring(count: int | None, command: Ring) -> Wrote:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await may_go.wait()
        running[0] -= 1
        return Wrote("")

    @engine.command
    def stop(count: int | None, command: Stop) -> Wrote:
        return Wrote("")

    @engine.event
    def wrote(count: int | None, event: Wrote) -> int:
        return (count or 0) + 1

    node = await setting.owner(engine, clock=clock)
    await asyncio.gather(*(node.send(f"a{n}", Set("t")) for n in range(250)))
    assert node.partition.live.passivate(before_s=float("inf")) == 250
    clock.advance(1)

    async def is_full() -> bool:
        return running[0] == 100

    await eventually(is_full, every_s=0.005, what="as many timers as may fire at once")
    assert (await node.send("b", Stop(""))).state == 1
    may_go.set()

    async def all_rang() -> bool:
        return len(await setting.records(engine.name)) == 251

    await eventually(all_rang, every_s=0.02, what="all timers")
    assert most[0] == 100


@embedded_only
async def test_a_timer_whose_command_is_rejected_or_fails_is_over(setting: EngineSetting, clock: SettableClock) -> None:
    """N40: it is not tried again, and the next one fires."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    for after, note in enumerate(("refused", "broken", "rang"), start=1):
        await node.send("a", Set(note, after=after, note=note))
    clock.advance(3)
    assert (await until(node, lambda notes: "rang" in notes))[-1] == "rang"
    assert (await node.record("a")).timers == ()  # type: ignore[union-attr]


@embedded_only
async def test_a_timer_that_ends_its_process_is_put_off_after_three_deaths(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N37, N40: owners that die while it is handled are counted in the log; then it waits, and others fire."""
    engine: Engine[int] = Engine(setting.name(), state=int, partitions=1)
    deaths = asyncio.Event()

    @engine.command
    def set_(count: int | None, command: Set) -> list[Any]:
        return [Schedule(command=Ring(command.note), after=command.after, name=command.note)]

    @engine.command
    async def ring(count: int | None, command: Ring) -> Wrote:
        if command.note == "deadly":
            deaths.set()
            await asyncio.Event().wait()
        return Wrote("")

    @engine.event
    def wrote(count: int | None, event: Wrote) -> int:
        return (count or 0) + 1

    node = await setting.owner(engine, clock=clock)
    await node.send("a", Set("t", after=1, note="deadly"))
    await node.send("a", Set("t", after=2, note="rang"))
    clock.advance(2)
    for death in range(3):
        await asyncio.wait_for(deaths.wait(), 20)
        deaths.clear()
        node = await setting.fails_over(node, f"n{death + 2}")

    async def has_rung() -> bool:
        return bool(await setting.payloads(engine))

    await eventually(has_rung, every_s=0.005, what="the other timer")
    assert not deaths.is_set()
    record = await node.record("a")
    assert record is not None
    (timer,) = record.timers
    assert (timer.name, timer.delays, timer.due_ms) == ("deadly", 1, clock.now_ms() + 60_000)
    delays = [timer.put_off(0)]
    while len(delays) < 8:
        delays.append(delays[-1].put_off(0))
    assert [each.due_ms // 60_000 for each in delays] == [4, 16, 64, 256, 1024, 1440, 1440, 1440]
    clock.advance(60)
    await asyncio.wait_for(deaths.wait(), 20)


async def test_the_owner_after_a_death_fires_one_timer_at_a_time(setting: EngineSetting, clock: SettableClock) -> None:
    """N37, N40: all timers before the one that ends the process have fired then, and it is the first one left."""
    engine: Engine[int] = Engine(setting.name(), state=int, partitions=1)
    deaths = asyncio.Event()

    @engine.command
    def set_(count: int | None, command: Set) -> list[Any]:
        return [Schedule(command=Ring(command.note), after=command.after)]

    async def never(records: Any) -> Any:
        await asyncio.Event().wait()

    @engine.command
    async def ring(count: int | None, command: Ring) -> Wrote:
        if command.note == "deadly":
            node.owner.commit = never  # type: ignore[method-assign]
            deaths.set()
            await asyncio.Event().wait()
        return Wrote("")

    @engine.event
    def wrote(count: int | None, event: Wrote) -> int:
        return (count or 0) + 1

    node = await setting.owner(engine, clock=clock)
    for n, note in enumerate(["fine", "fine", "fine", "deadly", "fine"], start=1):
        await node.send(f"a{n}", Set("t", after=n, note=note))
    clock.advance(5)
    await asyncio.wait_for(deaths.wait(), 20)
    assert await setting.payloads(engine) == []
    deaths.clear()
    node = await setting.fails_over(node, "n2")
    await asyncio.wait_for(deaths.wait(), 20)
    assert len(await setting.payloads(engine)) == 3


class Picky(JsonValues[list[str]]):
    """States of which some can't be read at the moment."""

    is_picky = False

    async def prepare(self, data: bytes) -> None:
        if self.is_picky and b"unreadable" in data:
            raise NotReadable("a state", "unreadable", "its schema is gone")


async def test_timers_that_can_not_fire_now_hold_up_no_others(
    setting: EngineSetting, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N40: as many as may fire at once fail again and again; those behind them fire."""
    monkeypatch.setattr(timer_loop, "_BACKOFF", Backoff(first_s=0.1, limit_s=0.1))
    codec = Picky(list[str])
    engine = clock_engine(setting.name(), state=codec)
    node = await setting.owner(engine, clock=clock)
    await asyncio.gather(*(node.send(f"a{n}", Ring("unreadable")) for n in range(100)))
    await asyncio.gather(*(node.send(f"a{n}", Set("t", after=1)) for n in range(100)))
    await node.send("b", Set("t", after=2))
    codec.is_picky = True
    node.partition.live.passivate(before_s=float("inf"))
    clock.advance(2)
    assert await until(node, lambda notes: "rang" in notes, "b") == ["set", "rang"]
    codec.is_picky = False
    assert await until(node, lambda notes: "rang" in notes, "a1") == ["unreadable", "set", "rang"]


async def test_aggregates_with_many_timers_that_wait_hold_up_no_others(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: the timers behind those of a slow aggregate do not count among those that are on their way."""
    engine: Engine[int] = Engine(setting.name(), state=int, partitions=1)

    @engine.command
    def set_(count: int | None, command: Set) -> list[Any]:
        many = 100 if command.note == "slow" else 1
        return [Schedule(command=Ring(command.note), after=command.after + n / 1000, name=str(n)) for n in range(many)]

    @engine.command
    async def ring(count: int | None, command: Ring) -> Wrote:
        if command.note == "slow":
            await asyncio.Event().wait()
        return Wrote("")

    @engine.event
    def wrote(count: int | None, event: Wrote) -> int:
        return (count or 0) + 1

    node = await setting.owner(engine, clock=clock)
    for name in "abc":
        await node.send(name, Set("t", after=1, note="slow"))
    await node.send("d", Set("t", after=2))
    clock.advance(2)

    async def has_rung() -> bool:
        return bool(await setting.payloads(engine))

    await eventually(has_rung, every_s=0.005, what="the timer of another aggregate")


async def test_a_timer_that_was_set_by_a_commit_without_an_answer_fires(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: nobody knows whether the batch is committed; it is, and the owner finds its timer in the log."""
    engine = clock_engine(setting.name())
    node = await setting.owner(engine, clock=clock)
    commit = node.owner.commit

    async def unsure(records: Any) -> Any:
        node.owner.commit = commit  # type: ignore[method-assign]
        await commit(records)
        raise TransactionFailed("id", "no answer", outcome_known=False)

    node.owner.commit = unsure  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await node.send("a", Set("t", after=1))
    clock.advance(1)
    assert await until(node, lambda notes: "rang" in notes) == ["set", "rang"]


async def test_a_timer_for_another_aggregate_is_over_if_the_engine_has_no_command_topic_any_more(
    setting: EngineSetting, clock: SettableClock
) -> None:
    """N40: it fails as any other would, and those after it fire."""
    name = setting.name()
    node = await setting.owner(clock_engine(name, command_topic=f"{name}-commands"), clock=clock)
    await node.send("a", Set("t", after=1, to="b"))
    await node.send("a", Set("u", after=2))
    await node.stop()
    setting.nodes.clear()
    node = await setting.owner(clock_engine(name), "n2", clock=clock)
    clock.advance(2)
    assert await until(node, lambda notes: "rang" in notes) == ["set", "set", "rang"]
    assert (await node.record("a")).timers == ()  # type: ignore[union-attr]


async def test_a_timer_for_another_aggregate_reaches_its_partition() -> None:
    """N40: its command goes through the command topic, in the transaction in which the timer leaves."""
    engine = clock_engine("clock", partitions=4, command_topic="clock-commands")
    async with EngineHarness(engine) as harness:
        for name in ("b", "c", "d"):
            await harness.aggregate("a").send(Set(name, after=0, to=name))

        async def all_rang() -> bool:
            states = [await harness.aggregate(name).state() for name in ("b", "c", "d")]
            return states == [["rang"]] * 3

        await eventually(all_rang, every_s=0.01, what="the timers of others")
        assert await harness.aggregate("a").state() == ["set"] * 3
    alone = clock_engine("alone")
    assert isinstance(given(alone).when(Set("t", to="b")).result.error, CommandFailed)  # type: ignore[union-attr]


def test_what_a_handler_decides_about_timers() -> None:
    """N40: timers are part of what is given, and of what a command leads to; a wrong one fails its command."""
    engine = clock_engine("clock", limits=EngineLimits(timers=1))
    given(engine).when(Set("t")).then(Wrote("set"), timers={"t": Ring()})
    given(engine, Wrote("set")).when(Stop("t")).then(timers={})
    assert Schedule(Ring(), after=1) == Schedule(command=Ring(), after=1)  # as the context takes it

    @engine.command
    def two(notes: list[str] | None, command: Two, context: CommandContext[list[str]]) -> Any:
        if command.what == "reject":
            context.schedule(Ring(), after="10m")
            context.reject("no")
        if command.what == "cancel":
            context.schedule(Ring(), after=timedelta(minutes=1))
            assert (context.cancel("Ring"), context.cancel("Ring")) == (True, False)
            return None
        if command.what == "unknown":
            return Schedule(command=Wrote("no command"), after=1)
        return [Schedule(command=Ring(), after=1, name=name) for name in ("one", "two")]

    assert isinstance(given(engine).when(Two("reject")).result, Rejected)
    given(engine).when(Two("cancel")).then(timers={})
    given(engine).when(Two("unknown")).then(failed=(CommandFailed, UnknownCommand))
    given(engine).when(Two("many")).then(failed=CommandFailed, timers={})


class Two(msgspec.Struct, frozen=True):
    what: str


def test_a_record_of_an_older_version_has_no_timers() -> None:
    """N40: the timers are the last part of a record, and what lacks it is read as before, by owner and index."""
    older = msgspec.msgpack.encode([1, 3, b"[]", [], [2, 7]])
    assert AggregateValues(clock_engine("clock").state_codec()).decode(older).timers == ()
    assert RecordTimers().decode(older) == ()
    newer = AggregateRecord(1, 3, b"[]", timers=(Timer("t", 17, "Ring", b"{}"), Timer("u", 9, "Ring", b"{}")))
    found = RecordTimers().decode(msgspec.msgpack.encode(newer))
    assert (found, RecordTimers.due_times(found)) == (newer.timers, [9, 17])
    for nonsense in (b"nonsense", msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(NotReadable):
            RecordTimers().decode(nonsense)


def test_when_a_timer_is_due() -> None:
    """N40: a time is rounded up, so that nothing fires before it; a delay counts from the partition's time."""
    now_ms = 1_000_000
    assert due_at_ms(None, 1.5, now_ms=now_ms) == 1_001_500
    assert due_at_ms(None, timedelta(seconds=2), now_ms=now_ms) == 1_002_000
    assert due_at_ms(None, "3m", now_ms=now_ms) == 1_180_000
    at = datetime(1970, 1, 1, 1, microsecond=1, tzinfo=UTC)
    assert due_at_ms(at, None, now_ms=now_ms) == 3_600_001
    assert due_at_ms(datetime(1960, 1, 1, tzinfo=UTC), None, now_ms=now_ms) == 0
    for wrong in ((None, None), (at, 1.0), (datetime(2026, 1, 1), None), (None, -1), (None, "soon"), (None, True)):  # noqa: DTZ001
        with pytest.raises(BadArgument):
            due_at_ms(*wrong, now_ms=now_ms)  # type: ignore[arg-type]
