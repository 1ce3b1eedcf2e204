"""Run the bank: `python -m examples.bank`."""

from __future__ import annotations

import asyncio

from examples.bank.accounts import Account, Create, Credit, Debit, Transfer, bank

import headrace
from headrace.engine import Rejected, Success


async def main() -> None:
    """Open an account, pay in, try to take out too much, and send an amount to another account."""
    async with headrace.connect("embedded:./bank-data") as hr, hr.node(bank):
        account, other = hr.engine(bank).aggregate("acc-1"), hr.engine(bank).aggregate("acc-2")
        show("open acc-1 with 1000", await account.send(Create("ann", 1000), command_id="open-acc-1"))
        show("pay in 100", await account.send(Credit(100)))
        show("take out 5000", await account.send(Debit(5000)))
        show("open acc-2 with 0", await other.send(Create("bob", 0), command_id="open-acc-2"))
        show("send 25 to acc-2", await account.send(Transfer("acc-2", 25)))
        async for event in hr.events_by_tag("arrived", live=True):  # the saga takes it there
            print(f"in the journal of {event.id}: {event.payload}")
            break


def show(what: str, result: Success[Account] | Rejected) -> None:
    """Print what a command led to."""
    again = ", done before" if result.is_repeated else ""
    if isinstance(result, Rejected):
        print(f"{what}: rejected as {result.code}, {result.message}{again}")
    else:
        print(f"{what}: {result.state}{again}")


if __name__ == "__main__":
    asyncio.run(main())
