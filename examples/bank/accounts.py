"""The accounts of a bank: commands in, events and balances out."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine import Engine, Reject

__all__ = ["Account", "Create", "Created", "Credit", "Credited", "Debit", "Debited", "bank"]


@dataclass(frozen=True)
class Account:
    """What the bank knows of an account."""

    owner: str
    balance: int


@dataclass(frozen=True)
class Create:
    """Open an account with an amount."""

    owner: str
    balance: int


@dataclass(frozen=True)
class Credit:
    """Pay in."""

    amount: int


@dataclass(frozen=True)
class Debit:
    """Take out."""

    amount: int


@dataclass(frozen=True)
class Created:
    """An account was opened."""

    owner: str
    balance: int


@dataclass(frozen=True)
class Credited:
    """An amount was paid in."""

    amount: int


@dataclass(frozen=True)
class Debited:
    """An amount was taken out."""

    amount: int


bank = Engine("bank", state=Account, partitions=4)


@bank.command
def create(account: Account | None, command: Create) -> Created | Reject:
    """Open an account that does not exist."""
    return Reject("exists") if account else Created(command.owner, command.balance)


@bank.command
def credit(account: Account | None, command: Credit) -> Credited | Reject:
    """Pay into an account."""
    return Credited(command.amount) if account else Reject("unknown-account")


@bank.command
def debit(account: Account | None, command: Debit) -> Debited | Reject:
    """Take from an account what it has, and no more."""
    if account is None:
        return Reject("unknown-account")
    if command.amount > account.balance:
        return Reject("overdrawn", f"the balance is {account.balance}", {"balance": account.balance})
    return Debited(command.amount)


@bank.event
def created(account: Account | None, event: Created) -> Account:
    """Return the new account."""
    return Account(event.owner, event.balance)


@bank.event
def changed(account: Account, event: Credited | Debited) -> Account:
    """Return the account with its new balance."""
    change = event.amount if isinstance(event, Credited) else -event.amount
    return Account(account.owner, account.balance + change)


@bank.tags
def tags(event: Created | Credited | Debited) -> list[str]:
    """Return the tags of an event: large amounts can be followed by their tag."""
    amount = event.balance if isinstance(event, Created) else event.amount
    return ["large"] if amount >= 1000 else []
