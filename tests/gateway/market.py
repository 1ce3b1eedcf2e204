"""A keyspace and an engine for the tests of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine import Engine, Reject
from headrace.keyspace import Context, Keyspace, State, handles, state


@dataclass(frozen=True)
class Account:
    owner: str
    balance: int = 0


@dataclass(frozen=True)
class Deposit:
    id: str
    amount: int


@dataclass(frozen=True)
class CountAccounts:
    at_least: int = 0


class Accounts(Keyspace, partitions=2, replicas=1, store="memory"):
    balances: State[str, Account] = state(index={"owner": lambda account: account.owner})
    lines: State[tuple[str, int], int] = state()
    notes: State[int, str] = state()

    @handles
    async def deposit(self, message: Deposit, context: Context) -> Account:
        if message.amount < 0:
            raise ValueError("an amount is not negative")
        if message.amount == 0:
            raise RuntimeError("db-7.internal")
        found = await self.balances.get(message.id) or Account("ann")
        new = Account(found.owner, found.balance + message.amount)
        await self.balances.put(message.id, new)
        return new

    @handles(scatter=True, read=True)
    async def count(self, message: CountAccounts) -> int:
        return await self.balances.count()


@dataclass(frozen=True)
class Purse:
    coins: int


@dataclass(frozen=True)
class Pay:
    coins: int


@dataclass(frozen=True)
class Paid:
    coins: int


purses: Engine[Purse] = Engine("purses", state=Purse, partitions=1)


@purses.command
def pay(purse: Purse | None, command: Pay) -> Paid | Reject:
    if command.coins < 0:
        return Reject("negative", "coins are not negative", {"coins": command.coins})
    if command.coins == 0:
        raise RuntimeError("db-7.internal")
    return Paid(command.coins)


@purses.event
def paid(purse: Purse | None, event: Paid) -> Purse:
    return Purse((purse.coins if purse else 0) + event.coins)
