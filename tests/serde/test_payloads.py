"""Journals whose events are classes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import BadArgument, NotRegistered
from headrace.model import Event
from headrace.serde import GenericRecord, Payloads, avro, open_registry, topic_schemas
from headrace.services import RunningService


@dataclasses.dataclass
class Opened:
    owner: str


@dataclasses.dataclass
class Deposited:
    amount: int
    note: str | None = None


async def write_and_read(address: str, store: str | None = None) -> None:
    async with headrace.connect(address, store=store) as hr:
        registry = await open_registry(log=hr.log, settings=hr.settings.registry)
        payloads = Payloads(registry, "accounts", [Opened, Deposited])
        accounts = hr.journal("accounts", partitions=1)
        events = await payloads.events(1, [Opened("Ann"), Deposited(20)], tags=["vip"])
        await accounts.append("acc-1", [*events, Event(3, {"plain": "json"}), Event(4, b"\xffraw")])
        stored = [event async for event in accounts.read("acc-1")]
        assert [await payloads.decode(event.payload) for event in stored] == [
            Opened("Ann"),
            Deposited(20),
            {"plain": "json"},
            b"\xffraw",
        ]
        assert stored[0].tags == ("vip",)
        assert isinstance(stored[0].payload, bytes)
        assert stored[0].payload[0] == 0
        assert (await payloads.decoded(stored[1])).payload == Deposited(20)
        only_some = Payloads(registry, "accounts", [Opened])
        assert await only_some.decode(stored[1].payload) == GenericRecord("Deposited", {"amount": 20, "note": None})
        with pytest.raises(BadArgument, match="the payloads are of Opened"):
            await only_some.encode(Deposited(1))
        schemas = await topic_schemas(registry, "accounts")
        assert sorted(json.loads(text)["name"] for text in schemas.values()) == ["Deposited", "Opened"]


async def test_a_journal_of_classes_on_the_embedded_tier(tmp_path: Path) -> None:
    """V1, V2: events go in as objects, are framed Avro in the log, and come back as objects; other payloads stay."""
    await write_and_read(f"embedded:{tmp_path / 'data'}")


@pytest.mark.servers
async def test_a_journal_of_classes_on_kafka(kafka: RunningService, tmp_path: Path, monkeypatch: Any) -> None:
    """V1, V2: the same on Kafka, the registry in a topic beside the journal."""
    monkeypatch.setenv("HEADRACE__REGISTRY__ADDRESS", "log:headrace-schemas")
    await write_and_read(f"kafka://{kafka.address}", store=f"embedded:{tmp_path / 'store'}")


async def test_subjects_of_topics_with_like_names_are_told_apart() -> None:
    """V5: topic `a` does not get the schemas of topic `a-b`."""
    registry = await open_registry("memory:")
    for topic in ("a", "a-b"):
        await Payloads(registry, topic, [Opened]).encode(Opened("x"))
    await Payloads(registry, "a-b", [Deposited]).encode(Deposited(1))
    assert len(await topic_schemas(registry, "a")) == 1
    assert len(await topic_schemas(registry, "a-b")) == 2
    assert await topic_schemas(registry, "a", "key") == {}


async def test_events_with_one_short_name_come_back_as_their_own_class() -> None:
    """FA2: `a.Created` and `b.Created` are two events; one that is neither is a GenericRecord."""
    registry = await open_registry("memory:")
    kinds = [avro(namespace=space)(dataclasses.make_dataclass("Created", [("name", str)])) for space in ("a", "b", "c")]
    everything = Payloads(registry, "t", kinds)
    written = [await everything.encode(kind("x")) for kind in kinds]
    for listed in (kinds[:2], kinds[1::-1]):
        payloads = Payloads(registry, "t", listed)
        found = [await payloads.decode(payload) for payload in written]
        assert [type(each) for each in found] == [kinds[0], kinds[1], GenericRecord]


async def test_schemas_are_not_registered_in_passing_where_that_is_switched_off() -> None:
    """With auto_register False an unknown schema is refused with the command to run, and a known one is used."""
    registry = await open_registry("memory:")
    careful = Payloads(registry, "accounts", [Opened], auto_register=False)
    with pytest.raises(NotRegistered, match=r"headrace schema register accounts-Opened FILE"):
        await careful.encode(Opened("Ann"))
    assert await registry.subjects() == []
    await Payloads(registry, "accounts", [Opened]).encode(Opened("Ann"))
    assert await careful.decode(await careful.encode(Opened("Bob"))) == Opened("Bob")
