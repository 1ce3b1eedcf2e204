"""Run the bank: `python -m examples.bank`."""

from __future__ import annotations

import asyncio

from examples.bank.accounts import Create, Credit, Debit, bank

import headrace


async def main() -> None:
    """Open an account, pay in, and try to take out too much."""
    async with headrace.connect("embedded:./bank-data") as hr, hr.node(bank):
        account = hr.engine(bank).aggregate("acc-1")
        print(await account.send(Create("ann", 1000), command_id="open-acc-1"))
        print(await account.send(Credit(100)))
        print(await account.send(Debit(5000)))
        print(await account.state())


if __name__ == "__main__":
    asyncio.run(main())
