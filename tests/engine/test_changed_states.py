"""States that the present class can't read, as after a release that renamed a field: nothing is spent on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import headrace
from headrace.engine import (
    AggregateRecord,
    AggregateValues,
    CommandHandling,
    Engine,
    Failed,
    RecordLimits,
    Success,
    Timer,
    rebuild_some,
)
from headrace.engine.timer_loop import TimerAttempts, TimerFiring
from headrace.errors import CommandFailed
from headrace.state import BatchName


class Named(msgspec.Struct):
    """A state of the first release."""

    name: str


class Renamed(msgspec.Struct):
    """The state of the second release, which can't read the first one's."""

    title: str


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class WasNamed:
    name: str


def engine_of(state: type[Any]) -> Engine[Any]:
    things: Engine[Any] = Engine("things", state=state, partitions=1)

    @things.command
    def name(thing: Any, command: Name) -> WasNamed:
        return WasNamed(command.name)

    @things.event
    def named(thing: Any, event: WasNamed) -> Any:
        return state(event.name)

    return things


async def test_a_state_that_can_not_be_read_spends_no_command_id(tmp_path: Path) -> None:
    """N8, N25: the error says how to make the states again, and after that the same command, with its id, is done."""
    first, second = engine_of(Named), engine_of(Renamed)
    async with headrace.connect(f"embedded:{tmp_path}") as hr:
        async with hr.node(first):
            before = await hr.engine(first).aggregate("t-1").send(Name("old"))
            assert isinstance(before, Success)
        async with hr.node(second):
            thing = hr.engine(second).aggregate("t-1")
            failed = await thing.try_send(Name("new"), command_id="c-1", since=before.since)
            assert isinstance(failed, Failed)
            assert isinstance(failed.error, CommandFailed)
            assert "headrace engine rebuild" in str(failed.error)
            assert "another command id" not in str(failed.error)
        journal = hr.journal("things", read_only=True)
        count = await rebuild_some(hr.log, hr.store.settings, journal, second, hr.settings, ["t-1"])
        assert count == 1
        async with hr.node(second):
            done = await hr.engine(second).aggregate("t-1").send(Name("new"), command_id="c-1")
            assert isinstance(done, Success)
            assert (done.state, done.version, done.is_repeated) == (Renamed("new"), 2, False)


async def test_a_timer_is_put_off_while_its_state_can_not_be_read() -> None:
    """N40: the timer is not over, and no event is written: it fires when the state can be read again."""
    engine = engine_of(Renamed)
    values = AggregateValues(engine.state_codec())
    handling = CommandHandling(engine, values, 0, RecordLimits(1_000_000, 1_000_000))
    timer = Timer("reminder", 1_000, "Name", b'{"name":"new"}')
    record = AggregateRecord(1, 1, b'{"name":"old"}', timers=(timer,))
    firing = TimerFiring(handling, "t-1", TimerAttempts(lambda _: None), puts_off=False)

    decided = await firing.decide(record, floor=BatchName(0, 0), now_ms=2_000)
    outcome = firing.finish(record, decided, batch=BatchName(1, 1), floor=BatchName(0, 0), now_ms=2_000)

    assert outcome is not None
    assert outcome.handled.records == ()
    assert outcome.handled.record is not None
    (left,) = outcome.handled.record.timers
    assert (left.name, left.delays, left.due_ms > 2_000) == ("reminder", 1, True)
