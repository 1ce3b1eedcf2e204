"""Avro classes as payloads, on every database and both logs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from sqlalchemy.orm import Session
from tests.outbox.setting import Ground, count

from headrace.errors import HeadraceError
from headrace.outbox import AvroDecoder, AvroSerializer, Outbox, OutboxSettings, Relay
from headrace.serde import Serde, open_registry, subject_of


@dataclass
class OrderPlaced:
    id: int
    item: str


async def test_avro_classes_are_encoded_at_publish(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """O4, M3: framed Avro in the table and in the log, shown decoded; what does not fit fails where it is published."""
    topic = await ground.topic()
    registry = await open_registry("memory:")
    orders = Outbox().producer(topic, serializer=await AvroSerializer.register(registry, topic, OrderPlaced))
    with Session(ground.engine) as session:
        with pytest.raises(HeadraceError, match="item"):
            orders.publish(session, OrderPlaced(1, None), key="order-1")  # type: ignore[arg-type]
        orders.publish(session, OrderPlaced(2, "lamp"), key="order-2")
        orders.publish(session, None, key="order-1")
        session.commit()
    assert count(ground.engine) == 2
    serde: Serde[OrderPlaced] = Serde(registry, subject_of(topic), OrderPlaced)
    await serde.encoder()
    settings = OutboxSettings(log_topics=[topic])
    with caplog.at_level(logging.INFO):
        async with Relay(ground.url, ground.log, settings=settings, decoder=AvroDecoder(serde.decoder)) as relay:
            await relay.drain()

    first, tombstone = await ground.values(topic)
    assert await serde.decode(first) == OrderPlaced(2, "lamp")
    assert tombstone is None
    assert any("message=OrderPlaced(id=2, item='lamp')" in record.getMessage() for record in caplog.records)
    await registry.close()
