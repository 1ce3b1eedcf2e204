"""Classes that the tests write and read, one of each kind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Annotated

import msgspec
import pydantic

from headrace.serde import AvroField, avro


@avro(default="UNKNOWN")
class Suit(enum.Enum):
    """Of cards."""

    UNKNOWN = 0
    HEARTS = 1
    SPADES = 2


@avro
@dataclasses.dataclass
class Place:
    street: str
    number: int = 1


@avro(namespace="shop", aliases=("Client",))
@dataclasses.dataclass
class Customer:
    """Somebody who buys."""

    id: uuid.UUID
    name: Annotated[str, AvroField(aliases=("label",), doc="as on the door")]
    born: dt.date
    seen: dt.datetime
    wakes: dt.time
    credit: Annotated[Decimal, AvroField(precision=12, scale=2)]
    photo: bytes
    height: float
    is_vip: bool
    suit: Suit
    home: Place | None
    tags: tuple[str, ...] = ()
    places: dict[str, Place] = dataclasses.field(default_factory=lambda: {"x": Place("y", 2)})
    contact: int | str | Place | Suit | list[int] | None = 5
    friends: list[Customer] = dataclasses.field(default_factory=list)
    visits: frozenset[int] = frozenset({1})
    small: Annotated[int, AvroField(type="int")] = 7
    local: Annotated[dt.datetime, AvroField(type="local-timestamp-micros")] = dt.datetime(2026, 1, 1)  # noqa: DTZ001


@avro
class StructOrder(msgspec.Struct):
    """An order, as a Struct."""

    sku: str
    count: int = 1
    place: Place | None = None


@avro
class ModelOrder(pydantic.BaseModel):
    """An order, as a model."""

    sku: str = pydantic.Field(alias="SKU", description="what is bought")
    count: int = pydantic.Field(default=1, ge=0)
    places: list[Place] = []

    model_config = pydantic.ConfigDict(populate_by_name=True)


@avro
@dataclasses.dataclass(frozen=True, slots=True)
class FrozenOrder:
    sku: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")


def customer(**changes: object) -> Customer:
    """Return a customer with every field set."""
    values = {
        "id": uuid.UUID(int=7),
        "name": "Ann",
        "born": dt.date(1990, 2, 3),
        "seen": dt.datetime(2026, 11, 15, 12, 30, 1, 123456, tzinfo=dt.UTC),
        "wakes": dt.time(7, 30, 0, 5),
        "credit": Decimal("12.50"),
        "photo": b"\x00\xff",
        "height": 1.75,
        "is_vip": True,
        "suit": Suit.SPADES,
        "home": Place("Main", 5),
    }
    return Customer(**{**values, **changes})  # type: ignore[arg-type]
