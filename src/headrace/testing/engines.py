"""Tests of an application's engine: `given(…).when(…).then(…)` without anything running, and an engine on one machine.

given(bank, Opened(100)).when(Withdraw(30)).then(Withdrawn(30), state=Account(70))
given(bank, Opened(100)).when(Withdraw(500)).then(rejected="overdrawn")

async with EngineHarness(bank) as harness:
    await harness.aggregate("acc-1").send(Deposit(10))
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headrace.app import Headrace, connect
from headrace.config import EmbeddedLogSettings, HeadraceSettings, LogSettings
from headrace.engine import (
    Aggregate,
    AggregateRecord,
    AggregateValues,
    CommandHandling,
    CommandRequest,
    CommandResult,
    Engine,
    Failed,
    RecordLimits,
    Rejected,
    Success,
    result_of,
)
from headrace.model import TopicConfig
from headrace.runtime import SYSTEM_CLOCK
from headrace.state import BatchName

__all__ = ["EngineHarness", "Given", "When", "given"]

S = TypeVar("S")
T = TypeVar("T")

_AGGREGATE = "aggregate-1"
_LIMITS = RecordLimits(1_000_000, 1_000_000)
_BATCH, _NOTHING = BatchName(1, 1), BatchName(0, 0)


def given(engine: Engine[S], *events: Any, aggregate: str = _AGGREGATE) -> Given[S]:  # noqa: ANN401
    """Return an aggregate to which these events have happened."""
    return Given(engine, events, aggregate)


class Given(Generic[S]):
    """An aggregate to which events have happened, before a command."""

    def __init__(self, engine: Engine[S], events: tuple[Any, ...], aggregate: str) -> None:
        self._engine = engine
        self._aggregate = aggregate
        outputs = dict.fromkeys([*engine.outputs, *filter(None, [engine.command_topic])], 1_000_000)
        codec = AggregateValues(engine.state_codec())
        self._handling = CommandHandling(engine, codec, 0, _LIMITS._replace(outputs_bytes=outputs))
        state = engine.fold(events)
        encoded = codec.inner.encode(state) if state is not None else None
        self._record = AggregateRecord(1, len(events), encoded) if events else None

    def when(self, command: Any, *, expected_version: int | None = None) -> When[S]:  # noqa: ANN401
        """Handle a command as the engine does, and return what it leads to."""
        kind, data = self._engine.commands.encode(command)
        request = CommandRequest(aggregate=self._aggregate, kind=kind, data=data, expected_version=expected_version)
        now_ms = SYSTEM_CLOCK.now_ms()
        decision = _run(self._handling.decide(self._record, request, now_ms=now_ms))
        handled = self._handling.finish(self._record, request, decision, batch=_BATCH, floor=_NOTHING, now_ms=now_ms)
        inner, record = self._handling.values.inner, handled.record or self._record
        timers = {
            timer.name: self._engine.commands.decode(timer.kind, timer.data)
            for timer in (record.timers if record is not None else ())
        }
        return When(result_of(self._engine, inner, handled.reply, since=_BATCH, is_repeated=False), timers)


class When(Generic[S]):
    """What a command led to: its result, and the commands that the aggregate's timers wait with, by their names."""

    def __init__(self, result: CommandResult[S], timers: Mapping[str, Any] | None = None) -> None:
        self.result = result
        self.timers = timers or {}

    def then(self, *events: Any, **expected: Any) -> None:  # noqa: ANN401
        """Check the events, and what is named: `state`, `rejected` (a code), `failed` (a type of error), `value`.

        `timers` are the commands of the aggregate's timers, by their names. Raises AssertionError.
        """
        unknown = expected.keys() - {"state", "rejected", "failed", "value", "timers"}
        assert not unknown, f"{sorted(unknown)}: a result has a state, a value, timers, or is rejected or failed"
        timers = expected.pop("timers", self.timers)
        assert timers == self.timers, f"the timers are {self.timers}"
        match self.result:
            case Success() as done:
                assert expected.keys() <= {"state", "value"}, f"the command was done: {done}"
                assert done.events == events, f"it led to {done.events}, not to {events}"
                for name in expected:
                    assert getattr(done, name) == expected[name], f"{name} is {getattr(done, name)}"
            case Rejected() as rejected:
                assert not events, f"the command was rejected: {rejected}"
                assert expected.get("rejected") == rejected.code, f"the command was rejected: {rejected}"
            case Failed(error):
                assert isinstance(error, expected.get("failed", ())), f"the command failed: {error!r}"


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also from code that an event loop runs."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()


class EngineHarness(Generic[S]):
    """An engine on the embedded tier, with everything real, in a folder that is removed at the end.

    `others` are engines that run beside it, `topics` are made before they start, with this number of partitions.
    """

    def __init__(self, engine: Engine[S], *others: Engine[Any], topics: Mapping[str, int] | None = None) -> None:
        self.engine = engine
        self._others = others
        self._topics = topics or {}
        self._stack = contextlib.AsyncExitStack()
        self._opened: Headrace | None = None

    @property
    def connection(self) -> Headrace:
        """The connection, for journals, tags and projections."""
        assert self._opened is not None, "the harness is used as `async with EngineHarness(engine):`"
        return self._opened

    def aggregate(self, aggregate_id: str) -> Aggregate[S]:
        """Return an aggregate to send commands to."""
        return self.connection.engine(self.engine).aggregate(aggregate_id)

    async def events(self, aggregate_id: str) -> list[Any]:
        """Return the events of an aggregate's journal."""
        topic = self.engine.journal_topic
        assert topic is not None, f"engine {self.engine.name!r} has no journal"
        journal = self.connection.journal(topic, read_only=True)
        read = journal.read(aggregate_id)
        return [event async for each in read for event in self.engine.events.events_of(each.payload)]

    async def __aenter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-engine-"))
        settings = HeadraceSettings(log=LogSettings(embedded=EmbeddedLogSettings(fsync=False)))
        self._opened = await self._stack.enter_async_context(connect(f"embedded:{folder}", settings=settings))
        for topic, partitions in self._topics.items():
            await self._opened.log.admin.create(topic, partitions=partitions, config=TopicConfig())
        await self._stack.enter_async_context(self._opened.node(self.engine, *self._others))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()
