"""The bank of the examples, and the code in docs/engine.md, run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import engine
from headrace.engine import Rejected
from headrace.errors import CommandFailed, WrongVersion
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.engines import EngineHarness, given

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module, as `python -m examples.bank` finds it."""
    monkeypatch.syspath_prepend(str(ROOT))
    import examples.bank.accounts

    yield examples.bank.accounts
    for name in [name for name in sys.modules if name == "examples" or name.startswith("examples.")]:
        del sys.modules[name]


def test_the_decisions_of_the_bank(shown: Any) -> None:
    """N27: what each command leads to, given what has happened before."""
    bank, ann = shown.bank, shown.Created("ann", 1000)
    given(bank).when(shown.Create("ann", 1000)).then(ann, state=shown.Account("ann", 1000))
    given(bank, ann).when(shown.Create("ann", 1)).then(rejected="exists")
    given(bank, ann).when(shown.Credit(100)).then(shown.Credited(100), state=shown.Account("ann", 1100))
    given(bank, ann, shown.Debited(900)).when(shown.Debit(101)).then(rejected="overdrawn")
    given(bank).when(shown.Debit(1)).then(rejected="unknown-account")
    given(bank, ann).when(shown.Debit(1), expected_version=3).then(failed=WrongVersion)


def test_an_expectation_that_is_wrong_is_an_error(shown: Any) -> None:
    """N27: events, states, rejections and failures that differ from what was expected are said."""
    done = given(shown.bank).when(shown.Create("ann", 1))
    rejected = given(shown.bank).when(shown.Credit(1))
    failed = given(shown.bank).when(shown.Credit(1), expected_version=1)
    for wrong in (
        lambda: done.then(),
        lambda: done.then(shown.Created("ann", 1), state=shown.Account("ann", 2)),
        lambda: done.then(rejected="exists"),
        lambda: rejected.then(shown.Credited(1)),
        lambda: rejected.then(rejected="overdrawn"),
        lambda: failed.then(),
        lambda: failed.then(failed=CommandFailed),
        lambda: done.then(shown.Created("ann", 1), sate=shown.Account("ann", 1)),
    ):
        with pytest.raises(AssertionError):
            wrong()


async def test_the_bank_runs(shown: Any) -> None:
    """N27: create 1000, credit 100: 1100; overdraw is rejected with a code; the journal has the two events."""
    async with EngineHarness(shown.bank) as harness:
        account = harness.aggregate("acc-1")
        await account.send(shown.Create("ann", 1000), command_id="open-acc-1")
        credited = await account.send(shown.Credit(100))
        overdrawn = await account.send(shown.Debit(5000))
        assert credited.state == await account.state() == shown.Account("ann", 1100)  # type: ignore[union-attr]
        assert isinstance(overdrawn, Rejected)
        assert (overdrawn.code, overdrawn.details) == ("overdrawn", {"balance": 1100})
        assert await harness.events("acc-1") == [shown.Created("ann", 1000), shown.Credited(100)]


async def test_a_transfer_arrives_or_comes_back(shown: Any) -> None:
    """N39: the saga takes an amount to the other account, and back to its sender if there is none; each step once."""
    async with EngineHarness(shown.bank) as harness:
        ann, bob = harness.aggregate("ann"), harness.aggregate("bob")
        await ann.send(shown.Create("ann", 100))
        await bob.send(shown.Create("bob", 0))
        await ann.send(shown.Transfer("bob", 30))
        await ann.send(shown.Transfer("nobody", 50))
        overdrawn = await ann.send(shown.Transfer("bob", 30))
        assert isinstance(overdrawn, Rejected)

        async def has_settled() -> bool:
            events = [*await harness.events("ann"), *await harness.events("bob")]
            return {type(each).__name__ for each in events} >= {"TransferReceived", "TransferReturned"}

        await eventually(has_settled, every_s=0.02, what="the transfers")
        assert (await ann.state(), await bob.state()) == (shown.Account("ann", 70), shown.Account("bob", 30))
        assert await harness.events("nobody") == [shown.TransferRefused("ann", 50)]


async def test_the_example_opens_each_account_once(
    shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """N21, N27: run again, it goes on with the accounts of the first run, and opens none twice."""
    from examples.bank.__main__ import main

    monkeypatch.chdir(tmp_path)
    await main()
    first = capsys.readouterr().out.splitlines()
    await main()
    second = capsys.readouterr().out.splitlines()
    assert first[:3] == [
        "open acc-1 with 1000: Account(owner='ann', balance=1000)",
        "pay in 100: Account(owner='ann', balance=1100)",
        "take out 5000: rejected as overdrawn, the balance is 1100",
    ]
    assert first[-1].startswith("in the journal of acc-2: {'type': 'TransferReceived'")
    assert second[:2] == [f"{first[0]}, done before", "pay in 100: Account(owner='ann', balance=1175)"]


def test_the_python_of_the_document_runs(tmp_path: Path) -> None:
    """N1: the program ends well and prints what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "engine.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Account(balance=10) 1 False",
        "Account(balance=10) 1 True",
        "overdrawn {'balance': 10}",
        "Account(balance=10)",
        "[(1, {'type': 'Deposited', 'data': {'amount': 10}})]",
    ]


def test_the_declarations_of_the_document_hold() -> None:
    """N39, N40: the timers, inputs and sagas of the document can be declared, and decide what it says."""
    text = (ROOT / "docs" / "engine.md").read_text()
    blocks = [code for code in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "@shop" in code or "@saga" in code]
    inputs = [code for code in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "commands_from" in code]
    names: dict[str, Any] = {name: getattr(engine, name) for name in engine.__all__}
    exec(_DECLARED, names)
    for code in [*inputs, *blocks]:
        exec(code, names)
    shop, remind = names["shop"], names["Remind"]()
    ordered = given(shop).when(names["Order"](("tea",)))
    ordered.then(names["Ordered"](("tea",)), timers={"reminder": remind})
    assert list(names["bank"].inputs) == ["payments"]
    assert list(names["bank"].sagas) == ["transfers"]


def test_the_upcasters_of_the_document_make_what_it_says() -> None:
    """Old events of each version, and those of a class that is gone, become the events of today."""
    text = (ROOT / "docs" / "engine.md").read_text()
    (code,) = [each for each in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "@bank.upcast" in each]
    names: dict[str, Any] = {"Any": Any, **{name: getattr(engine, name) for name in engine.__all__}}
    exec(_MONEY, names)
    exec(code, names)
    deposited, events = names["Deposited"], names["bank"].events
    assert events.events_of({"type": "Deposited", "data": {"amount": 3}}) == (deposited(300, "EUR"),)
    assert events.events_of({"type": "Deposited", "data": {"cents": 3}, "version": 2}) == (deposited(3, "EUR"),)
    moved = events.events_of({"type": "Moved", "data": {"cents": 5}})
    assert moved == (names["Withdrawn"](5, "EUR"), deposited(5, "EUR"))


_MONEY = """
from dataclasses import dataclass

@dataclass
class Deposited: cents: int; currency: str
@dataclass
class Withdrawn: cents: int; currency: str

bank = Engine("bank", state=int)

@bank.event
def changed(balance: int | None, event: Deposited | Withdrawn) -> int:
    return 0
"""


_DECLARED = """
from dataclasses import dataclass

@dataclass
class Account: balance: int
@dataclass
class Deposit: amount: int
@dataclass
class TransferSent: to: str; amount: int
@dataclass
class ReceiveTransfer: sender: str; amount: int
@dataclass
class Basket: items: tuple[str, ...]
@dataclass
class Order: items: tuple[str, ...]
@dataclass
class Ordered: items: tuple[str, ...]
@dataclass
class Pay: pass
@dataclass
class Paid: pass
@dataclass
class Remind: pass

shop = Engine("shop", state=Basket)
shop.commands.add(Remind)

@shop.event
def changed(basket: Basket | None, event: Ordered | Paid) -> Basket:
    return Basket(("tea",))
"""
