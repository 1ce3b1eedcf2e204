"""The bank's decisions without anything running, and the bank on the embedded tier."""

from __future__ import annotations

from examples.bank.accounts import Account, Create, Created, Credit, Credited, Debit, Debited, bank

from headrace.engine import Rejected
from headrace.testing.engines import EngineHarness, given

_ANN = Created("ann", 1000)


def test_the_decisions_of_the_bank() -> None:
    """N27: what each command leads to, given what has happened before."""
    given(bank).when(Create("ann", 1000)).then(_ANN, state=Account("ann", 1000))
    given(bank, _ANN).when(Create("ann", 1)).then(rejected="exists")
    given(bank, _ANN).when(Credit(100)).then(Credited(100), state=Account("ann", 1100))
    given(bank, _ANN, Debited(900)).when(Debit(101)).then(rejected="overdrawn")
    given(bank).when(Debit(1)).then(rejected="unknown-account")


async def test_the_bank_runs() -> None:
    """N27: create 1000, credit 100: 1100; overdraw is rejected with a code; the journal has the two events."""
    async with EngineHarness(bank) as harness:
        account = harness.aggregate("acc-1")
        await account.send(Create("ann", 1000), command_id="open-acc-1")
        credited = await account.send(Credit(100))
        overdrawn = await account.send(Debit(5000))
        assert credited.state == await account.state() == Account("ann", 1100)  # type: ignore[union-attr]
        assert isinstance(overdrawn, Rejected)
        assert (overdrawn.code, overdrawn.details) == ("overdrawn", {"balance": 1100})
        assert await harness.events("acc-1") == [_ANN, Credited(100)]
