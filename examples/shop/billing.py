"""The consumer: bills each order once, however often its message arrives."""

from __future__ import annotations

import asyncio

import msgspec
from examples.shop.ordering import TOPIC
from examples.shop.tables import Bill
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from headrace.log import Log
from headrace.model import Record, TopicPartition
from headrace.outbox import Inbox

__all__ = ["bill", "bill_for_ever"]

_inbox = Inbox("billing")


class Placed(msgspec.Struct):
    """The message."""

    id: int
    item: str
    price: int


def bill(engine: Engine, record: Record) -> None:
    """Write the bill with the note that its event was seen: both, or neither."""
    with Session(engine) as session, session.begin():
        if record.value is not None and _inbox.accept(session, record):
            order = msgspec.json.decode(record.value, type=Placed)
            session.add(Bill(order_id=order.id, amount=order.price))


async def bill_for_ever(log: Log, engine: Engine) -> None:
    """Follow the topic as a member of a group; an offset is committed when its bill is."""
    member = await log.groups.join("billing", [TOPIC])
    try:
        while True:
            for record in await member.poll(timeout_s=0.5):
                await asyncio.to_thread(bill, engine, record)
                await member.commit({TopicPartition(record.topic, record.partition): record.offset + 1})
    finally:
        await member.leave()
