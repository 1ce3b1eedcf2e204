"""The shop's own tables."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "Bill", "Order"]


class Base(DeclarativeBase):
    """Where the tables are gathered."""


class Order(Base):
    """What a customer wants."""

    __tablename__ = "shop_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(100))
    price: Mapped[int]


class Bill(Base):
    """What a customer owes; made by the consumer."""

    __tablename__ = "shop_bill"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    amount: Mapped[int]
