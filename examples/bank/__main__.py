"""Run the bank: `python -m examples.bank`."""

from __future__ import annotations

import asyncio

from examples.bank.accounts import Create, Credit, Debit, Transfer, bank

import headrace


async def main() -> None:
    """Open an account, pay in, try to take out too much, and send an amount to another account."""
    async with headrace.connect("embedded:./bank-data") as hr, hr.node(bank):
        account = hr.engine(bank).aggregate("acc-1")
        print(await account.send(Create("ann", 1000), command_id="open-acc-1"))
        print(await account.send(Credit(100)))
        print(await account.send(Debit(5000)))
        print(await account.state())
        other = hr.engine(bank).aggregate("acc-2")
        await other.send(Create("bob", 0), command_id="open-acc-2")
        print(await account.send(Transfer("acc-2", 25)))
        async for event in hr.events_by_tag("arrived", live=True):  # the saga takes it there
            print(event.id, event.payload)
            break


if __name__ == "__main__":
    asyncio.run(main())
