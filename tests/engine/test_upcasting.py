"""Events of old versions: every path that folds sees them as the engine's present code wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace.engine import Engine, EngineClient, Failed, OldEvent
from headrace.engine.commands import Answer, SuccessReply, encode_answer
from headrace.errors import BadArgument, NotReadable, NotStorable, ReplyNotReadable, UpcastFailed
from headrace.state import BatchName
from headrace.testing.engines import EngineHarness


class Wallet(msgspec.Struct):
    cents: int = 0


class Pay(msgspec.Struct, frozen=True):
    cents: int


class Paid(msgspec.Struct, frozen=True):
    cents: int
    currency: str


def wallet_engine() -> Engine[Wallet]:
    """Return the engine as it is now: events once had euros, then cents, and have a currency today."""
    wallets: Engine[Wallet] = Engine("wallets", state=Wallet, partitions=1)

    @wallets.command
    def pay(wallet: Wallet | None, command: Pay) -> Paid:
        return Paid(command.cents, "EUR")

    @wallets.event
    def paid(wallet: Wallet | None, event: Paid) -> Wallet:
        return Wallet((wallet.cents if wallet else 0) + event.cents)

    @wallets.upcast("Paid", version=1)
    def in_cents(data: dict[str, Any]) -> dict[str, Any]:
        return {"cents": data["euros"] * 100}

    @wallets.upcast("Paid", version=2)
    def with_currency(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "currency": "EUR"}

    @wallets.upcast("PaidTwice")
    def two_payments(data: dict[str, Any]) -> list[Any]:
        return [OldEvent("Paid", data), Paid(data["euros"] * 100, "EUR")]

    @wallets.upcast("Forgotten")
    def nothing(data: dict[str, Any]) -> None:
        return None

    return wallets


def test_an_old_event_goes_through_every_upcaster_after_its_version() -> None:
    """A chain of versions, another name, several events, or none: what comes out is of present classes."""
    events = wallet_engine().events
    assert events.events_of({"type": "Paid", "data": {"euros": 3}}) == (Paid(300, "EUR"),)
    assert events.events_of({"type": "Paid", "version": 2, "data": {"cents": 3}}) == (Paid(3, "EUR"),)
    assert events.events_of({"type": "Paid", "version": 3, "data": {"cents": 3, "currency": "CHF"}}) == (
        Paid(3, "CHF"),
    )
    assert events.events_of({"type": "PaidTwice", "data": {"euros": 2}}) == (Paid(200, "EUR"), Paid(200, "EUR"))
    assert events.events_of({"type": "Forgotten", "data": {}}) == ()
    with pytest.raises(NotReadable, match="makes 2 events"):
        events.of_payload({"type": "PaidTwice", "data": {"euros": 2}})


def test_new_events_are_written_in_the_version_after_the_last_upcaster() -> None:
    """An event says its version from the second on; a class without upcasters writes none."""
    events = wallet_engine().events
    assert events.payload(Paid(1, "EUR")) == {"type": "Paid", "version": 3, "data": {"cents": 1, "currency": "EUR"}}
    plain: Engine[Wallet] = Engine("plain", state=Wallet)
    plain.events.add(Paid)
    assert plain.events.payload(Paid(1, "EUR")) == {"type": "Paid", "data": {"cents": 1, "currency": "EUR"}}


def test_an_upcaster_that_fails_says_which_event() -> None:
    """The error names the event, its version and its place, and says what was wrong."""
    engine = wallet_engine()
    with pytest.raises(UpcastFailed, match=r"version 1 of Paid \(event 3 of 'w'\): KeyError: 'euros'"):
        engine.events.events_of({"type": "Paid", "data": {}}, "event 3 of 'w'")
    with pytest.raises(UpcastFailed, match=r"no upcaster for it, and the class is at version 3"):
        engine.events.events_of({"type": "Paid", "version": 4, "data": {}})
    engine.upcast("Odd")(lambda data: 5)
    engine.upcast("Circle")(lambda data: OldEvent("Circle", data))
    engine.upcast("Nameless")(lambda data: OldEvent(["Paid"], data))  # type: ignore[arg-type]
    with pytest.raises(UpcastFailed, match="whose name is to be a text"):
        engine.events.events_of({"type": "Nameless", "data": {}})
    with pytest.raises(UpcastFailed, match="this is of type int"):
        engine.events.events_of({"type": "Odd", "data": {}})
    with pytest.raises(UpcastFailed, match="after 100 upcasters"):
        engine.events.events_of({"type": "Circle", "data": {}})
    with pytest.raises(BadArgument, match="version 1 of it has an upcaster already"):
        engine.upcast("Odd")(lambda data: None)
    with pytest.raises(BadArgument, match="the first version"):
        engine.upcast("Odd", version=0)(lambda data: None)


@dataclass
class Checked:
    """An event that checks itself, with an error of its own kind."""

    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise KeyError("no such sum")


def test_an_event_that_its_own_class_refuses_is_not_readable() -> None:
    """Whatever a class raises when it is made from its fields is an error that names the event."""
    engine: Engine[Wallet] = Engine("wallets", state=Wallet)
    engine.events.add(Checked)
    with pytest.raises(NotReadable, match="KeyError: 'no such sum'"):
        engine.events.events_of({"type": "Checked", "data": {"cents": -1}})
    event = Checked(1)
    event.cents = -1
    with pytest.raises(NotStorable, match="no such sum"):
        engine.events.payload(event)


class Answering:
    """The way to an owner that has done the command, and answers as its own program does."""

    def __init__(self, payload: dict[str, Any], state: bytes = b'{"cents":1}') -> None:
        reply = SuccessReply(1, state, msgspec.json.encode([payload]))
        self._answer = encode_answer(Answer(reply, BatchName(1, 1)))

    def partition(self, group: str, key: bytes) -> int:
        return 0

    async def ask(self, group: str, key: bytes, payload: bytes, **options: Any) -> bytes:
        return self._answer


@pytest.mark.parametrize(
    ("payload", "state"),
    [
        ({"type": "Paid", "version": 9, "data": {}}, b"{}"),
        ({"type": "Unheard", "data": {}}, b"{}"),
        ({"type": "Paid", "version": 3, "data": {"cents": 1, "currency": "EUR"}}, b'{"cents":"many"}'),
    ],
)
async def test_a_reply_that_the_caller_can_not_read_does_not_seem_undone(payload: dict[str, Any], state: bytes) -> None:
    """N12: the command was done by a node with a newer program; the caller's error says that it may have been."""
    engine = wallet_engine()
    client = EngineClient(engine, lambda: Answering(payload, state))
    result = await client.aggregate("w").try_send(Pay(1))
    assert isinstance(result, Failed)
    assert not result.outcome_known
    with pytest.raises(ReplyNotReadable, match="a command for 'w' of engine 'wallets' was handled"):
        await client.aggregate("w").send(Pay(1))


async def test_a_journal_holds_the_version_and_is_read_through_upcasters() -> None:
    """What the engine writes carries the version, and the engine reads it and replies with present events."""
    async with EngineHarness(wallet_engine()) as harness:
        done = await harness.aggregate("w").send(Pay(5), command_id="x")
        again = await harness.aggregate("w").send(Pay(5), command_id="x")
        assert (done.state, done.events, again.events) == (Wallet(5), (Paid(5, "EUR"),), (Paid(5, "EUR"),))
        journal = harness.connection.journal("wallets", read_only=True)
        assert [event.payload["version"] async for event in journal.read("w")] == [3]
        assert await harness.events("w") == [Paid(5, "EUR")]
