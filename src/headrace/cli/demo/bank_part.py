"""A bank on two nodes: accounts take commands, and the node that owns an account is killed under load."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headrace.app import Headrace, RunningNode
from headrace.cli.demo.node_processes import Load, both_ready, node_process, owners_of
from headrace.cli.demo.voice import say, tell
from headrace.engine import Aggregate, Engine, EngineClient, Reject, Rejected, Success, audit_engine
from headrace.model import partition_of

__all__ = ["Account", "Deposit", "Deposited", "Open", "Opened", "Withdraw", "Withdrawn", "bank", "show_bank"]

_CUSTOMERS = 8
_PARTITIONS = 4
_SERVED = "headrace.cli.demo.bank_part:bank"


@dataclass(frozen=True)
class Account:
    """What is in an account."""

    balance: int


@dataclass(frozen=True)
class Open:
    """Open an account with an amount."""

    amount: int


@dataclass(frozen=True)
class Deposit:
    """Pay in."""

    amount: int


@dataclass(frozen=True)
class Withdraw:
    """Take out."""

    amount: int


@dataclass(frozen=True)
class Opened:
    """An account was opened."""

    amount: int


@dataclass(frozen=True)
class Deposited:
    """An amount was paid in."""

    amount: int


@dataclass(frozen=True)
class Withdrawn:
    """An amount was taken out."""

    amount: int


bank: Engine[Account] = Engine("demo-bank", state=Account, partitions=_PARTITIONS)


@bank.command
def open_account(account: Account | None, command: Open) -> Opened | Reject:
    """Open an account that does not exist."""
    return Opened(command.amount) if account is None else Reject("exists", f"the balance is {account.balance}")


@bank.command
def deposit(account: Account | None, command: Deposit) -> Deposited | Reject:
    """Pay into an account."""
    return Deposited(command.amount) if account is not None else Reject("unknown", "open the account first")


@bank.command
def withdraw(account: Account | None, command: Withdraw) -> Withdrawn | Reject:
    """Take out what the account has, and no more."""
    balance = account.balance if account is not None else 0
    return Withdrawn(command.amount) if command.amount <= balance else Reject("overdrawn", f"the balance is {balance}")


@bank.event
def opened(account: Account | None, event: Opened) -> Account:
    """Return the new account."""
    return Account(event.amount)


@bank.event
def changed(account: Account, event: Deposited | Withdrawn) -> Account:
    """Return the account with its new balance."""
    change = event.amount if isinstance(event, Deposited) else -event.amount
    return Account(account.balance + change)


async def show_bank(hr: Headrace, address: str, store: str | None, suffix: str) -> None:
    """Start two nodes, open accounts, kill the owner of one while all of them get deposits, and audit the bank."""
    say("A bank: accounts that take commands, on two nodes; the one that owns an account is killed under load")
    first = node_process(address, "demo-c", _SERVED, store=store)
    second = node_process(address, "demo-d", _SERVED, store=store)
    async with first as c, second as d, hr.node() as me:
        await me.online(bank.name, timeout_s=60)
        await _try_out(hr.engine(bank).aggregate(f"ann{suffix}"))
        await both_ready(me, bank.name)
        await _kill_under_load(hr, me, {"demo-c": c, "demo-d": d}, suffix)


async def _try_out(ann: Aggregate[Account]) -> None:
    _tell("open Ann's account with 100", await ann.send(Open(100)))
    _tell("deposit 20", await ann.send(Deposit(20), command_id="payment-1"))
    _tell("deposit 20 again, with the same command id", await ann.send(Deposit(20), command_id="payment-1"))
    _tell("withdraw 500", await ann.send(Withdraw(500)))


def _tell(what: str, result: Success[Account] | Rejected) -> None:
    again = "; it was done before, and is not done twice" if result.is_repeated else ""
    if isinstance(result, Rejected):
        tell(f"{what}: rejected as {result.code}, {result.message}")
    elif result.state is not None:
        tell(f"{what}: the balance is {result.state.balance}{again}")


async def _kill_under_load(
    hr: Headrace, me: RunningNode, nodes: dict[str, asyncio.subprocess.Process], suffix: str
) -> None:
    engine, customers = hr.engine(bank), [f"customer-{n}{suffix}" for n in range(_CUSTOMERS)]
    await asyncio.gather(*(engine.aggregate(customer).send(Open(0)) for customer in customers))
    owners = owners_of(me, bank.name)
    tell(f"{_PARTITIONS} partitions, {owners}; {_CUSTOMERS} customers deposit 1 again and again")
    victim = me.view.owners[bank.name][partition_of(customers[0].encode(), _PARTITIONS)].member
    deposits = _Deposits(engine)
    await deposits.load.run(customers, deposits.send, nodes[victim], victim=victim, calls="deposits")
    for customer, number in deposits.load.done.items():  # those who waited for the new owner to the end
        await deposits.repeat(customer, number)
    known = f"{sum(deposits.repeated.values())} of {len(deposits.repeated)}"
    tell(f"after the kill each customer sent the last deposit again, with its id: {known} were known as done")
    await _audit(hr, deposits.load.done)


class _Deposits:
    """Deposits of customers; after the kill each of them sends the last one again."""

    def __init__(self, engine: EngineClient[Account]) -> None:
        self.load = Load()
        self.repeated: dict[str, bool] = {}
        self._engine = engine

    async def send(self, customer: str, number: int) -> str | None:
        """Deposit 1, and return what is wrong with the answer."""
        if self.load.has_killed and number > 1:
            await self.repeat(customer, number - 1)
        done = await self._engine.aggregate(customer).send(Deposit(1), command_id=f"deposit-{number}")
        if isinstance(done, Success) and done.state == Account(number):
            return None
        return f"{customer} has {done} after {number} deposits"

    async def repeat(self, customer: str, number: int) -> None:
        """Send a deposit again that was acknowledged, once for each customer."""
        if customer not in self.repeated:
            again = await self._engine.aggregate(customer).send(Deposit(1), command_id=f"deposit-{number}")
            self.repeated[customer] = isinstance(again, Success) and again.is_repeated


async def _audit(hr: Headrace, done: dict[str, int]) -> None:
    """Compare the balances with what was acknowledged, and with the events in the journal."""
    states = [await hr.engine(bank).aggregate(customer).state() for customer in done]
    balances = [state.balance if state is not None else 0 for state in states]
    is_equal = balances == list(done.values())
    tell(f"{sum(done.values())} deposits acknowledged, balances {balances}: {'equal' if is_equal else 'NOT EQUAL'}")
    audit = await audit_engine(hr.log, hr.journal(bank.name, read_only=True), bank, ids=list(done))
    verdict = "every balance is what its events add up to" if audit.is_clean else f"NOT EQUAL: {audit.differences}"
    tell(f"the audit reads the journals of these {audit.aggregates} accounts: {verdict}")
