"""The keyspaces that the tests use, and what they do to one another's handlers while these run."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from headrace.errors import ContextEnded, HeadraceError, StateReadOnly
from headrace.keyspace import Context, Keyspace, State, handles, state

GATES: dict[str, asyncio.Event] = {}
"""By key: a handler that was told to wait does so until the test opens the gate."""
RUNS: Counter[str] = Counter()
"""By key: how often a handler began."""
LATE: dict[str, list[HeadraceError]] = {}
"""By key: what a task was told that wrote after its handler had returned."""
LATE_TASKS: list[asyncio.Task[None]] = []


@dataclass
class Customer:
    """Somebody with an address that nobody else has."""

    city: str
    mail: str


@dataclass
class Deposit:
    """Add to a balance, and note it."""

    id: str
    amount: int


@dataclass
class Audit:
    """Return the balance and how many entries led to it."""

    id: str


@dataclass
class SlowAdd:
    """Read, wait for the test, then write."""

    id: str
    amount: int
    stuck_in_run: int = 0


class PanicError(BaseException):
    """What extensions in Rust raise when they panic is no Exception."""


class UnprintableError(Exception):
    """An error whose text can't be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class LeaveBehind:
    """Start a task that writes, and return before it does."""

    id: str


@dataclass
class Break:
    """Write and emit, and then fail."""

    id: str
    topic: str
    how: str = "error"


@dataclass
class Emit:
    """Write, and emit so many bytes."""

    id: str
    topic: str
    size: int
    partition: int | None = None


@dataclass
class Forward:
    """Ask the next of these keys, which asks the one after it."""

    id: str
    rest: list[str]


@dataclass
class Sneak:
    """Write in a handler that is marked as a read."""

    id: str


@dataclass
class Describe:
    """Return what the context says."""

    id: str


@dataclass
class Sum:
    """Add up one partition."""

    about: str


@dataclass
class Notify:
    """Tell another key, and fail afterwards if that is wanted."""

    id: str
    to: str
    fails: bool


class Accounts(Keyspace, partitions=2, replicas=2, store="memory"):
    """Balances with their entries, and customers."""

    balances: State[str, int] = state()
    entries: State[tuple[str, int], int] = state()
    customers: State[str, Customer] = state(
        index={"city": lambda each: each.city}, unique={"mail": lambda each: each.mail}
    )
    notes: State[str, str] = state(ttl_of=lambda key, _: timedelta(milliseconds=1) if key.startswith("due") else None)
    papers: State[str, dict] = state()  # type: ignore[type-arg]

    @handles
    async def deposit(self, message: Deposit) -> int:
        """Write two states."""
        balance = (await self.balances.get(message.id) or 0) + message.amount
        count = len((await self.entries.prefix((message.id,))).items)
        await self.balances.put(message.id, balance)
        await self.entries.put((message.id, count + 1), message.amount)
        return balance

    @handles(read=True)
    async def audit(self, message: Audit) -> tuple[int, int]:
        """Read two states."""
        found = (await self.entries.prefix((message.id,))).items
        return (await self.balances.get(message.id) or 0, sum(amount for _, amount in found))

    @handles
    async def slow_add(self, message: SlowAdd) -> int:
        """Give others time between reading and writing."""
        RUNS[message.id] += 1
        balance = await self.balances.get(message.id) or 0
        if 0 < message.stuck_in_run <= RUNS[message.id]:
            await asyncio.Event().wait()
        gate = GATES.get(message.id)
        if gate is not None:
            await gate.wait()
        await self.balances.put(message.id, balance + message.amount)
        return balance + message.amount

    @handles
    async def break_off(self, message: Break, context: Context) -> None:
        """Leave nothing behind."""
        RUNS[message.id] += 1
        await self.balances.put(message.id, 1)
        context.emit(message.topic, b"must not be seen")
        match message.how:
            case "timeout":
                raise TimeoutError("of its own")
            case "cancelled":
                raise asyncio.CancelledError
            case "unprintable":
                raise UnprintableError
            case "panic":
                raise PanicError
            case _:
                raise KeyError("no such thing")

    @handles
    async def leave_behind(self, message: LeaveBehind, context: Context) -> None:
        """Return before a task that writes, emits and tells."""

        async def write() -> None:
            await GATES[message.id].wait()
            try:
                await self.balances.put(message.id, 1)
            except StateReadOnly as error:
                LATE[message.id] = [error]
            for late in (lambda: context.emit("late", b"x"), lambda: context.tell(Accounts, Deposit(message.id, 1))):
                try:
                    late()
                except ContextEnded as error:
                    LATE[message.id].append(error)

        LATE_TASKS.append(asyncio.create_task(write()))

    @handles
    async def emit(self, message: Emit, context: Context) -> int:
        """Write to another topic in the same transaction."""
        await self.balances.put(message.id, message.size)
        context.emit(message.topic, bytes(message.size), key=message.id.encode(), partition=message.partition)
        return message.size

    @handles
    async def forward(self, message: Forward, context: Context) -> list[str]:
        """Ask along a chain of keys."""
        RUNS[message.id] += 1
        if not message.rest:
            return [message.id]
        below: list[str] = await context.ask(Accounts, Forward(message.rest[0], message.rest[1:]))
        return [message.id, *below]

    @handles(read=True)
    async def sneak(self, message: Sneak) -> int:
        """Do what a read must not."""
        await self.balances.put(message.id, 1)
        return 1

    @handles
    def describe(self, message: Describe, context: Context) -> dict[str, str | int | bool]:
        """Return plain facts; a handler need not be async."""
        return {"key": context.key, "partition": context.partition, "has_time": context.left_s > 0}

    @handles(scatter=True, read=True)
    async def sum(self, message: Sum) -> int:
        """Add up what begins with a word."""
        return sum([value async for key, value in self.balances.items() if key.startswith(message.about)])

    @handles
    async def notify(self, message: Notify, context: Context) -> None:
        """Tell in the middle of the work."""
        context.tell(Accounts, Deposit(message.to, 1))
        if message.fails:
            raise ValueError("after the tell")
