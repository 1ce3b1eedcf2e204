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


def test_the_python_of_the_document_runs(tmp_path: Path) -> None:
    """N1: the program ends well and prints what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "engine.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Account(balance=10) 1",
        "Account(balance=10) True",
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
