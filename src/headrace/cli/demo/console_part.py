"""The console on a demo that goes on: two nodes, an engine, journals, an outbox, and users of all of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.app import Headrace, RunningNode, connect
from headrace.cli.demo.keyspace_part import Add, Counters
from headrace.cli.demo.node_processes import node_process
from headrace.cli.demo.voice import say, tell
from headrace.config import HeadraceSettings
from headrace.engine import Engine, Reject
from headrace.errors import BadArgument
from headrace.journal import Topology, replicate_batch
from headrace.model import Cleanup, Event, TopicConfig, TopicPartition
from headrace.runtime import Supervisor, shutdown_on_signals
from headrace.tags import TagWriter

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine as SqlEngine

    from headrace.outbox import Relay

__all__ = ["serve_console", "tills"]

_NODES = ("demo-a", "demo-b")
_PARTS = ("headrace.cli.demo.keyspace_part:app", "headrace.cli.demo.console_part:tills")
_NAMES = ("alice", "bob", "carol", "dave", "erin")
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Till:
    """What is in a till."""

    coins: int = 0


@dataclass(frozen=True)
class Pay:
    """Pay into a till."""

    coins: int


@dataclass(frozen=True)
class Paid:
    """Coins were paid."""

    coins: int


tills: Engine[Till] = Engine("demo-tills", state=Till, partitions=2)


@tills.command
def pay(till: Till | None, command: Pay) -> Paid | Reject:
    """Accept coins."""
    return Paid(command.coins) if command.coins > 0 else Reject("empty", "pay at least one coin", {})


@tills.event
def paid(till: Till | None, event: Paid) -> Till:
    """Add coins."""
    return Till((till or Till()).coins + event.coins)


async def serve_console(address: str, store: str | None, suffix: str, folder: Path, listen: str) -> None:
    """Start two nodes and a gateway, use them without end, and serve the console until a signal comes."""
    from headrace.gateway import serving

    if store is None and not address.startswith("embedded:"):
        raise BadArgument("--store", store, "the engine and the journals of this demo need the store of the log")
    say("The console: two nodes, an engine, journals and an outbox, in use until you press Ctrl-C")
    logging.getLogger("headrace.cluster").setLevel(logging.ERROR)
    logging.getLogger("headrace.outbox").setLevel(logging.CRITICAL)  # the dead message is printed below
    settings = _settings_of(folder, listen)
    async with contextlib.AsyncExitStack() as stack:
        stopping = await stack.enter_async_context(shutdown_on_signals())
        for name in _NODES:
            await stack.enter_async_context(node_process(address, name, *_PARTS, store=store))
        hr = await stack.enter_async_context(connect(address, store=store, settings=settings))
        node = await stack.enter_async_context(hr.node())
        if not await is_online(node, stopping):
            return
        users = await stack.enter_async_context(_Users.opened(hr, suffix, folder))
        running = await stack.enter_async_context(serving(hr.gateway(Counters, tills), settings.gateway))
        background = Supervisor("demo")
        for each in (users.change_accounts, users.count, users.pay, users.order, users.replicate):
            background.add(each.__name__, each)
        await stack.enter_async_context(background)
        tell("one message of the outbox can't be sent, on purpose: it has no key")
        tell(f"the console is at {running.url}/console")
        running.ended.add_done_callback(lambda _: stopping.set())
        await stopping.wait()
        tell("stopping")


async def is_online(node: RunningNode, stopping: asyncio.Event) -> bool:
    """Wait until the counters have owners. Return False if a signal came first: it has ended the other nodes, too."""
    works = [asyncio.create_task(node.online("demo-counters", timeout_s=60)), asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        if stopping.is_set():
            return False
        works[0].result()
        return True
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def _settings_of(folder: Path, listen: str) -> HeadraceSettings:
    loaded = HeadraceSettings.load()
    gateway = loaded.gateway.model_copy(update={"listen": listen, "console_sample_s": 2.0})
    outbox = type(loaded.outbox).model_validate({"database": f"sqlite:///{folder / 'orders.db'}"})
    cluster = loaded.cluster.model_copy(update={"node_id": "demo-console"})
    return loaded.model_copy(update={"gateway": gateway, "outbox": outbox, "cluster": cluster})


class _Users:
    """People who use the demo: each method is one of them, and goes on until it is cancelled."""

    def __init__(self, hr: Headrace, suffix: str, engine: SqlEngine, relay: Relay) -> None:
        self._hr = hr
        self._suffix = suffix
        self._engine = engine
        self._relay = relay
        self.journal = hr.journal(f"accounts-live{suffix}", partitions=4, origin="demo")
        self._random = random.Random(7)  # noqa: S311 - which account is changed next is no secret

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, hr: Headrace, suffix: str, folder: Path) -> Any:  # noqa: ANN401 - an iterator of one
        """Make the outbox, with a message that can't be sent, and a relay."""
        from headrace.outbox import Relay, engine_for, migrate

        url = f"sqlite:///{folder / 'orders.db'}"
        await asyncio.to_thread(migrate, url)
        for topic, cleanup in ((f"orders-live{suffix}", Cleanup.DELETE), (f"prices{suffix}", Cleanup.COMPACT)):
            await hr.log.admin.create(topic, partitions=2, config=TopicConfig(cleanup=cleanup))
        engine = engine_for(url)
        try:
            async with Relay(url, hr.log) as relay:
                users = cls(hr, suffix, engine, relay)
                await users.journal.append("alice", [Event(1, {"opened": 100}, ("vip",))])
                await asyncio.to_thread(users.publish, f"prices{suffix}", {"lamp": 20, "note": "a message without key"})
                yield users
        finally:
            engine.dispose()

    def publish(self, topic: str, message: dict[str, Any], key: str | None = None) -> None:
        """Write a message in a transaction of its own."""
        from headrace.outbox import JsonSerializer, Outbox

        with self._engine.begin() as db:
            Outbox().producer(topic, serializer=JsonSerializer()).publish(db, message, key=key)

    async def change_accounts(self) -> None:
        """Append to journals."""
        journal = self.journal

        async def change(number: int) -> None:
            name = self._random.choice(_NAMES)
            at = await journal.pointer(name) or 0
            payload = {"deposited": self._random.randrange(1, 100), "note": "cash" if number % 3 else "<b>not bold</b>"}
            await journal.append(name, [Event(at + 1, payload, ("vip",) if name == "alice" else ())], expected=at)

        await _repeat(change, _PAUSE_S)

    async def count(self) -> None:
        """Ask a keyspace."""
        counters = self._hr.keyspace(Counters)
        await _repeat(lambda number: counters.ask(Add(f"counter-{number % 4}", 1)), _PAUSE_S / 2)

    async def pay(self) -> None:
        """Send commands to an engine."""
        engine = self._hr.engine(tills)
        await _repeat(lambda number: engine.aggregate(f"till-{number % 3}").send(Pay(1 + number % 9)), _PAUSE_S / 2)

    async def order(self) -> None:
        """Publish through the outbox."""
        topic = f"orders-live{self._suffix}"
        await _repeat(
            lambda number: asyncio.to_thread(self.publish, topic, {"order": number}, f"order-{number}"), 5 * _PAUSE_S
        )

    async def replicate(self) -> None:
        """Bring the journals into the store, a little later than they are written; Spark does so elsewhere."""
        for topic in itertools.cycle((self.journal.topic, tills.name)):
            await _replicate(self._hr, topic)
            await asyncio.sleep(1.5)


async def _repeat(work: Callable[[int], Awaitable[Any]], pause_s: float) -> None:
    for number in itertools.count(1):
        await work(number)
        await asyncio.sleep(pause_s)


async def _replicate(hr: Headrace, topic: str) -> None:
    layout = await Topology(hr.log, hr.store.settings, topic).layout()
    views = TagWriter(hr.store, hr.settings.tags, log=hr.log)
    await views.open_topic(layout)
    for partition in range(layout.partitions):
        at = TopicPartition(topic, partition)
        bounds, known = await hr.log.bounds(at), layout.of_topic(await hr.store.reader.replicated(at))
        first = bounds.start if known is None else known.offset + 1
        if first < bounds.end:
            records = [each async for batch in hr.log.read(at, first, bounds.end) for each in batch.records]
            await replicate_batch(hr.store, layout, at, records, up_to=bounds.end - 1, views=views)
