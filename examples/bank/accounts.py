"""The accounts of a bank: commands in, events and balances out, and transfers from one account to another."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine import Engine, Reject, SagaContext, saga

__all__ = [
    "Account",
    "Create",
    "Created",
    "Credit",
    "Credited",
    "Debit",
    "Debited",
    "ReceiveTransfer",
    "ReturnTransfer",
    "Transfer",
    "TransferReceived",
    "TransferRefused",
    "TransferReturned",
    "TransferSent",
    "bank",
]


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


@dataclass(frozen=True)
class Transfer:
    """Send an amount to another account."""

    to: str
    amount: int


@dataclass(frozen=True)
class ReceiveTransfer:
    """Take in what another account has sent."""

    sender: str
    amount: int


@dataclass(frozen=True)
class ReturnTransfer:
    """Take back what the other account did not take in."""

    to: str
    amount: int


@dataclass(frozen=True)
class TransferSent:
    """An amount has left for another account."""

    to: str
    amount: int


@dataclass(frozen=True)
class TransferReceived:
    """An amount of another account has arrived."""

    sender: str
    amount: int


@dataclass(frozen=True)
class TransferRefused:
    """There is no such account: the amount goes back."""

    sender: str
    amount: int


@dataclass(frozen=True)
class TransferReturned:
    """An amount came back."""

    to: str
    amount: int


bank: Engine[Account] = Engine("bank", state=Account, partitions=4, command_topic="bank-commands")


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


@bank.command
def transfer(account: Account | None, command: Transfer) -> TransferSent | Reject:
    """Send what the account has; the saga below takes it to the other account."""
    if account is None:
        return Reject("unknown-account")
    if command.amount > account.balance:
        return Reject("overdrawn", f"the balance is {account.balance}", {"balance": account.balance})
    return TransferSent(command.to, command.amount)


@bank.command
def receive_transfer(account: Account | None, command: ReceiveTransfer) -> TransferReceived | TransferRefused:
    """Take in an amount, or say that there is no account for it."""
    if account is None:
        return TransferRefused(command.sender, command.amount)
    return TransferReceived(command.sender, command.amount)


@bank.command
def return_transfer(account: Account | None, command: ReturnTransfer) -> TransferReturned:
    """Take back an amount."""
    return TransferReturned(command.to, command.amount)


@saga(of=bank)
def transfers(event: TransferSent | TransferRefused, context: SagaContext) -> None:
    """Take what was sent to its account, and what was refused back to its sender; each once."""
    if isinstance(event, TransferSent):
        context.send(bank, event.to, ReceiveTransfer(context.aggregate, event.amount))
    else:
        context.send(bank, event.sender, ReturnTransfer(context.aggregate, event.amount))


@bank.event
def created(account: Account | None, event: Created) -> Account:
    """Return the new account."""
    return Account(event.owner, event.balance)


@bank.event
def changed(account: Account, event: Credited | Debited) -> Account:
    """Return the account with its new balance."""
    change = event.amount if isinstance(event, Credited) else -event.amount
    return Account(account.owner, account.balance + change)


@bank.event
def transferred(account: Account, event: TransferSent | TransferReceived | TransferReturned) -> Account:
    """Return the account after a part of a transfer."""
    change = -event.amount if isinstance(event, TransferSent) else event.amount
    return Account(account.owner, account.balance + change)


@bank.event
def refused(account: Account | None, event: TransferRefused) -> Account | None:
    """Return the account as it is: usually there is none."""
    return account


@bank.tags
def tags(event: Created | Credited | Debited | TransferSent | TransferReceived) -> list[str]:
    """Return the tags of an event: large amounts, and transfers that arrived, can be followed by their tags."""
    amount = event.balance if isinstance(event, Created) else event.amount
    arrived = ["arrived"] if isinstance(event, TransferReceived) else []
    return [*arrived, "large"] if amount >= 1000 else arrived
