"""Placing an order: the row and its message, in one transaction."""

from __future__ import annotations

from examples.shop.tables import Order
from sqlalchemy.orm import Session

from headrace.outbox import JsonSerializer, Outbox

__all__ = ["TOPIC", "place_order"]

TOPIC = "shop-orders"

_placed = Outbox().producer(TOPIC, serializer=JsonSerializer())


def place_order(session: Session, item: str, price: int) -> Order:
    """Add an order and publish it; the caller commits both, or neither. Raises ValueError."""
    order = Order(item=item, price=price)
    session.add(order)
    session.flush()  # the database gives the order its id
    _placed.publish(session, {"id": order.id, "item": item, "price": price}, key=f"order-{order.id}")
    if price < 0:
        raise ValueError(f"a price of {price} is none")
    return order
