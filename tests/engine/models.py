"""Engines that the tests share."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headrace.engine import CommandContext, Engine, Reject

__all__ = [
    "Account",
    "Close",
    "Closed",
    "Deposit",
    "Deposited",
    "Fail",
    "Noted",
    "Query",
    "Withdraw",
    "Withdrawn",
    "bank_engine",
    "counter_engine",
]


class Account(msgspec.Struct):
    balance: int = 0


class Deposit(msgspec.Struct, frozen=True):
    amount: int


class Withdraw(msgspec.Struct, frozen=True):
    amount: int


class Close(msgspec.Struct, frozen=True):
    pass


class Query(msgspec.Struct, frozen=True):
    pass


class Fail(msgspec.Struct, frozen=True):
    """Fails where it is told: in the handler, in the event's handler, or when it is written."""

    where: str


class Note(msgspec.Struct, frozen=True):
    text: str


class Deposited(msgspec.Struct, frozen=True):
    amount: int


class Withdrawn(msgspec.Struct, frozen=True):
    amount: int


class Closed(msgspec.Struct, frozen=True):
    pass


class Noted(msgspec.Struct, frozen=True):
    """Leaves the state as it is."""

    text: str


class Broken(msgspec.Struct, frozen=True):
    what: Any


def bank_engine(name: str = "bank", *, partitions: int = 1, **options: Any) -> Engine[Account]:  # noqa: C901
    """Return an engine with a journal, new for each test."""
    bank: Engine[Account] = Engine(name, state=Account, partitions=partitions, **options)

    @bank.command
    def deposit(account: Account | None, command: Deposit) -> Deposited:
        return Deposited(command.amount)

    @bank.command
    async def withdraw(account: Account | None, command: Withdraw) -> Withdrawn | Reject:
        await asyncio.sleep(0)
        balance = account.balance if account is not None else 0
        if command.amount > balance:
            return Reject("overdrawn", f"there are {balance}", {"balance": balance})
        return Withdrawn(command.amount)

    @bank.command
    def close(account: Account | None, command: Close) -> Closed:
        return Closed()

    @bank.command
    def query(account: Account | None, command: Query, context: CommandContext[Account]) -> None:
        context.reply(account.balance if account is not None else None)

    @bank.command
    def note(account: Account | None, command: Note) -> Noted:
        return Noted(command.text)

    @bank.command
    def fail(account: Account | None, command: Fail) -> Broken:
        if account is not None:
            account.balance = -1  # what a handler does to its copy must not matter
        if command.where == "handler":
            raise ValueError("the handler is broken")
        return Broken(object() if command.where == "serializer" else "event handler")

    @bank.event
    def applied(account: Account | None, event: Deposited | Withdrawn | Noted) -> Account:
        before = account.balance if account is not None else 0
        match event:
            case Deposited():
                return Account(before + event.amount)
            case Withdrawn():
                return Account(before - event.amount)
            case Noted():
                return Account(before)

    @bank.event
    def closed(account: Account | None, event: Closed) -> None:
        return None

    @bank.event
    def broken(account: Account | None, event: Broken) -> Account | None:
        if event.what == "event handler":
            raise KeyError("the event handler is broken")
        return account

    return bank


def counter_engine(name: str = "counter", **options: Any) -> Engine[int]:
    """Return an engine without a journal: its handlers set the state."""
    counter: Engine[int] = Engine(name, state=int, journal=None, partitions=1, **options)

    @counter.command
    def add(count: int | None, command: Deposit, context: CommandContext[int]) -> None:
        context.update_state((count or 0) + command.amount)

    @counter.event
    def added(count: int | None, event: Deposited) -> int:
        return (count or 0) + event.amount

    return counter
