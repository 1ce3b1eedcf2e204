"""avro: records of ten fields to framed Avro and back, as classes, beside fastavro on plain dicts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from time import thread_time
from typing import Any, NamedTuple, TypeAlias, get_type_hints

import fastavro
import msgspec
import pydantic

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from headrace.serde import Registry, Serde, open_registry, schema_of

COUNT = 40_000
SLICES = 50
AGAINST = "fastavro's schemaless functions on a plain dict"


@dataclasses.dataclass
class Order:
    """An order with ten fields of usual types."""

    id: str
    customer: str
    count: int
    price: float
    is_paid: bool
    note: str | None
    tags: list[str]
    placed: dt.datetime
    weight_g: int
    currency: str


FIELDS = get_type_hints(Order)
OrderStruct = msgspec.defstruct("Order", list(FIELDS.items()))
MODEL_FIELDS: dict[str, Any] = {name: (kind, ...) for name, kind in FIELDS.items()}
OrderModel: Any = pydantic.create_model("Order", **MODEL_FIELDS)
KINDS: dict[str, Any] = {"dataclass": Order, "struct": OrderStruct, "model": OrderModel}


def values(nr: int) -> dict[str, Any]:
    """Return the fields of one order."""
    placed = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=nr)
    named = {
        "id": f"order-{nr:08d}",
        "customer": f"customer-{nr % 1000}",
        "currency": "EUR",
        "note": "leave at the door",
    }
    numbers = {"count": nr % 7, "price": nr * 0.01, "is_paid": nr % 2 == 0, "weight_g": nr % 5000}
    return {**named, **numbers, "tags": ["new", "gift"], "placed": placed}


Encode: TypeAlias = Callable[[Any], bytes | None]
Decode: TypeAlias = Callable[[bytes], Any]


class Side(NamedTuple):
    """One side of the comparison: its functions and its data."""

    encode: Encode
    decode: Decode
    objects: Sequence[Any]


def fastavro_side(dicts: Sequence[dict[str, Any]]) -> Side:
    """Return the bound."""
    schema = fastavro.parse_schema(msgspec.json.decode(schema_of(Order).text))

    def encode(value: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, value)
        return file.getvalue()

    def decode(data: bytes) -> object:
        return fastavro.schemaless_reader(io.BytesIO(data), schema)

    return Side(encode, decode, dicts)


async def our_side(registry: Registry, name: str, dicts: Sequence[dict[str, Any]]) -> Side:
    """Return Headrace's side: framed values of a serde whose schema is registered."""
    serde: Serde[Any] = Serde(registry, f"{name}-value", KINDS[name])
    return Side(await serde.encoder(), serde.decoder, [KINDS[name](**each) for each in dicts])


def side_by_side(sides: Sequence[Side]) -> list[tuple[float, float]]:
    """Return the seconds of this thread's CPU that each side took to encode and to decode.

    The sides take turns, slice by slice, so that a disturbance affects both.
    """
    spent = [(0.0, 0.0) for _ in sides]
    size = max(1, len(sides[0].objects) // SLICES)
    for start in range(0, len(sides[0].objects), size):
        for nr, side in enumerate(sides):
            began = thread_time()
            framed = [side.encode(each) for each in side.objects[start : start + size]]
            turned = thread_time()
            for each in framed:
                side.decode(each)  # type: ignore[arg-type]
            spent[nr] = (spent[nr][0] + turned - began, spent[nr][1] + thread_time() - turned)
    return spent


def rates(name: str, count: int, spent: tuple[float, float]) -> dict[str, float]:
    """Return the rates: both ways together, encoding, decoding."""
    encode, decode = spent
    return {
        f"{name}_per_s": count / (encode + decode),
        f"{name}_encode_per_s": count / encode,
        f"{name}_decode_per_s": count / decode,
    }


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    dicts = [values(nr) for nr in range(stage.count(COUNT, least=SLICES))]
    registry = await open_registry("memory:")
    ours = {name: await our_side(registry, name, dicts) for name in KINDS}
    plain, limits = fastavro_side(dicts), dict[str, float]()

    async def work() -> Readings:
        readings: dict[str, float] = {}
        for name, side in ours.items():
            our_time, their_time = side_by_side([side, plain])
            readings |= rates(name, len(dicts), our_time)
            limits.update(rates(name, len(dicts), their_time))
        return readings

    async def bound() -> Readings:
        return dict(limits)

    yield Contest(work, bound)


def measures() -> Iterator[Measure]:
    for name in KINDS:
        for part, unit in (("", "round trips/s"), ("encode_", "records/s"), ("decode_", "records/s")):
            yield Measure(f"{name}_{part}per_s", unit=unit, against=AGAINST, target=at_least(0.7))


BENCH = Bench(
    name="avro",
    work="encode and decode of a 10-field record, framed, as a class; by CPU time",
    measures=tuple(measures()),
    setup=setup,
)
